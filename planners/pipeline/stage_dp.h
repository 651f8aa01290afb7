/* The cost of stages by the tables of layer_costs.h, and the best pipelines of them.
 *
 * A strategy defines the inside of a stage: its tensor degree (Megatron-LM's axis priorities, with or without
 * the sequence), the batch over the rest of its devices, ZeRO's level, and recomputation. A place
 * is a run of devices. These, the units of a stage, M and the number of stages after it determine its
 * seconds and bytes: sums over its units. The position of the place in the cluster prices its collectives.
 *
 * stage_dp_find() is exact for pipelines of this kind: the stages are in the order of the devices. Each is on
 * a place that begins at a multiple of its width (or of a server). Each has the fastest strategy that fits
 * with min(M, stages from it to the last) kept iterations. It minimises
 *
 *     sum t + transfers + (M - 1) max(t + rest / M)    over a grid of 1.05 for the maximum
 *
 * where t is an iteration's forward and backward pass, and `rest` the time after all iterations. That is
 * neither 1F1B's time nor a bound on it. So 1F1B's recursion orders the pipelines that are found, and the
 * best of these are simulated (pipeline_search.h).
 */
#ifndef PLANNERS_PIPELINE_STAGE_DP_H
#define PLANNERS_PIPELINE_STAGE_DP_H

#include "planners/layers/layer_costs.h"
#include "planners/problem/degrees.h"

#define PIPELINE_MOST_STAGES    16
#define PIPELINE_FEW_ITERATIONS 8

typedef struct StageStrategy {
    int32_t tensor;
    bool splits_sequence;
    uint8_t recompute; /* RECOMPUTE_NONE, RECOMPUTE_FULL or a level */
    uint8_t storage;   /* kinds of storage in shards: ZeRO's level */
} StageStrategy;

/* Devices [first, first + width) of the cluster, or of an order of them. */
typedef struct DeviceRange {
    int32_t first, width;
    int32_t class; /* places of one class cost the same */
} DeviceRange;

typedef struct StageLayout {
    int32_t first_unit, end_unit;
    DeviceRange place;
    StageStrategy strategy;
} StageLayout;

/* The cost of a stage by the tables. */
typedef struct StageCost {
    double forward, backward; /* of an iteration */
    double rest;              /* after the last iteration: gradients over the devices, updates */
    double fixed_bytes, iteration_bytes;
} StageCost;

typedef struct StageModel StageModel;

typedef struct PipelineLayout {
    int32_t micro_batches, stage_count;
    const StageModel
        *order; /* whose places the stages have (stage_model_reorder()); NULL: the search's own */
    StageLayout stages[PIPELINE_MOST_STAGES];
    double seconds;    /* by the tables and 1F1B's recursion */
    PlanOrigin origin; /* PLAN_ORIGIN_UNKNOWN: stage_dp_find() */
} PipelineLayout;

typedef struct StageModelSettings {
    double memory_fraction;
    bool may_recompute, may_shard_storage; /* ZeRO */
    /* Also more stages than micro-batches, up to PIPELINE_FEW_ITERATIONS: of modules that cannot be split
     * into iterations. */
    bool has_few_iterations;
    Degrees degrees;     /* of every stage */
    bool are_alike;      /* stages have one width and one tensor degree */
    int32_t most_tables; /* priced at most; 0: PIPELINE_MOST_TABLES */
    int32_t threads;
} StageModelSettings;

/* Finds places, their classes, and the tables of all numbers of micro-batches [count]. Refers to `costs`. */
AmStatus stage_model_open(StageModel **model, LayerCosts *costs, const int32_t *micro_batches, int32_t count,
                          const StageModelSettings *settings, AmError *error);
/* Returns the number of plans of the whole module that were priced for the tables. */
int64_t stage_model_evaluations(const StageModel *model);
void stage_model_close(StageModel *model);
/* Makes a model of the tables of `of` on another order of the devices [device_count], for some numbers of
 * micro-batches [count].
 * Refers to `of`, which is closed after it. */
AmStatus stage_model_reorder(StageModel **model, const StageModel *of, const int32_t *devices,
                             const int32_t *micro_batches, int32_t count, AmError *error);
/* Returns the cluster's device at a position of the order of a model. */
int32_t stage_model_device(const StageModel *model, int32_t position);

/* Finds the cost of a stage of a pipeline with that number of micro-batches. Returns false where the tables
 * have no such stage. */
bool stage_model_cost(const StageModel *model, int32_t micro_batches, const StageLayout *stage,
                      StageCost *cost);
/* Returns the seconds of the pipeline by 1F1B's recursion; INFINITY where a stage does not exist. `*excess`:
 * by which part of a device's limit the fullest one lacks memory, 0 where all fit. */
double stage_model_seconds(const StageModel *model, const PipelineLayout *pipeline, double *excess);

/* Finds the place [first, first + width), with its class. Returns false where no stage may be there. */
bool stage_model_range(const StageModel *model, int32_t first, int32_t width, DeviceRange *place);

/* Finds the best `most` different pipelines, fastest first, over all numbers of micro-batches. `*count` may
 * be 0. `least`, or NULL: [number] the least objective found, at most 1.05 times the minimum. */
AmStatus stage_dp_find(const StageModel *model, PipelineLayout *pipelines, int32_t most, int32_t *count,
                       double *least, AmError *error);

#endif
