/* StageModel: the seconds and bytes of stages and pipelines by tables, which stage_dp.c minimises.
 *
 *     place     consecutive devices [first, first + width); places of equal links and types are a class
 *     table     the units of the module on one device, for a batch, a tensor degree and each device type
 *     pricing   the units with one strategy on one class of places, in one number of micro-batches
 *
 * A stage of units [u, v) has the sums of its units' pricings. A step is the 1F1B recursion over the stages
 * (stage_model_seconds()). This header is internal to planners/pipeline; tests include it, too.
 */
#ifndef PLANNERS_PIPELINE_STAGE_MODEL_H
#define PLANNERS_PIPELINE_STAGE_MODEL_H

#include "cost/collective/collective.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/pipeline/stage_dp.h"

enum {
    PIPELINE_MOST_PLACES = 1024,
    PIPELINE_MOST_CLASSES = 24,
    PIPELINE_MOST_TENSORS = 6,
    PIPELINE_MOST_TABLES = 160,
    PIPELINE_MOST_TYPES = 16
};

typedef struct PlaceClass {
    DeviceRange place; /* the first of them */
    bool has_type[PIPELINE_MOST_TYPES];
    double limit;                   /* bytes that a plan may fill of the smallest device */
    double memory_bytes_per_second; /* of the slowest */
    CollectivePartition partitions[PIPELINE_MOST_TENSORS][2]; /* [tensor degree][data, model] */
} PlaceClass;

struct StageModel {
    Arena arena;
    const LayerCosts *costs;
    const Cluster *cluster; /* that of the costs, or `part` */
    Cluster *part;          /* its devices in another order, which the model owns; or NULL */
    const int32_t *devices; /* [device_count] this order; NULL: the cluster's */
    StageModelSettings settings;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], number_count; /* of micro-batches */
    int32_t tensors[PIPELINE_MOST_TENSORS], tensor_count;
    DeviceRange places[PIPELINE_MOST_PLACES];
    int32_t place_count;
    bool ignores_pinned_widths; /* widths and places of pins on numbers of devices */
    bool *pinned_borders;       /* [device_count + 1] of pins on devices; NULL: no pin */
    PlaceClass classes[PIPELINE_MOST_CLASSES];
    int32_t class_count;
    LayerTable *tables; /* of another model where `devices` is set */
    int32_t table_count;
    bool lacks_tables; /* more than settings.most_tables are of use */
};

/* Returns the model whose places the stages of a pipeline have. */
static inline const StageModel *stage_model_of(const StageModel *own, const PipelineLayout *pipeline) {
    return pipeline->order ? pipeline->order : own;
}

/* One unit of a stage with a strategy on a class of places: seconds of an iteration, collectives among
 * them. */
typedef struct UnitCost {
    double forward, backward, update;
    LayerBytes bytes;
    double checkpoint_bytes; /* of an iteration that recomputation keeps, if the unit's segment ends in the
                                stage */
    double saved_bytes[RECOMPUTE_MOST_LEVELS]; /* of an iteration, that a level keeps besides */
    double again[RECOMPUTE_MOST_LEVELS];       /* seconds of an iteration that a level computes again */
    bool ends_segment;                         /* followed by a checkpoint */
} UnitCost;

typedef struct StagePricing {
    const PlaceClass *class;
    const LayerTable *table;
    StageStrategy strategy;
    int32_t micro_batches, data, local_batch, tensor /* its number in the model's */;
    double reduce_latency, reduce_per_byte; /* of gradients */
    UnitCost *units;
} StagePricing;

/* Sums over the units of a stage. A segment is a range that is recomputed at once. */
typedef struct StageSums {
    double forward, backward, update;
    LayerBytes bytes;
    double checkpoint_bytes; /* of the segments before the last one */
    double saved_bytes[RECOMPUTE_MOST_LEVELS], again[RECOMPUTE_MOST_LEVELS];
    double segment_checkpoint; /* of the last one so far */
    double segment_kept, most_segment_kept;
    bool segment_ended;
} StageSums;

/* Prepares the prices of stages. Returns false where there is no such stage. Units are in the arena. */
bool stage_pricing_open(StagePricing *pricing, const StageModel *model, Arena *arena, int32_t micro_batches,
                        int32_t class, const StageStrategy *strategy);
/* Adds one unit after those that the sums have. */
void stage_sums_add(StageSums *sums, const UnitCost *unit);
void stage_sums_cost(const StageModel *model, const StagePricing *pricing, const StageSums *sums,
                     int32_t first_unit, StageCost *cost);

/* Returns the transfer across a cut between a stage that ends before `device` and the one that begins there,
 * in one iteration. */
double stage_model_transfer(const StageModel *model, int32_t micro_batches, int32_t cut, int32_t device,
                            bool returns);

/* Returns the seconds of 1F1B with unequal stages, exact: values up to stage s take up[s], values down from
 * it down[s]. */
double stage_model_clock(const StageCost *costs, const double *up, const double *down, int32_t stages,
                         int32_t iterations);

#endif
