/* The cost of stages by the tables of layer_costs.h, and the best pipelines of them.
 *
 * A recipe defines the inside of a stage: its tensor degree (Megatron-LM's lists, with or without
 * the sequence), the batch over the rest of its devices, ZeRO's level, and recomputation. A place
 * is a run of devices. For these, its units, M and the number of stages after it, a stage's seconds
 * and bytes are sums over its units, and its collectives are priced by the position of the place in
 * the cluster.
 *
 * hybrid_stages_find() is exact for: the stages in order of the devices, each on a place that
 * begins at a multiple of its width (or of a server), each with the fastest recipe that fits with
 * min(M, stages from it to the last) kept iterations. It minimises sum t + transfers + (M - 1)
 * max(t + rest / M), where t is an iteration's forward and backward pass and `rest` the time after
 * all iterations, over a grid of 1.05 for the maximum. That is neither 1F1B's time nor a bound on
 * it, so that the pipelines found are ordered by 1F1B's recursion, and the best of these are
 * simulated (hybrid.h).
 */
#ifndef PLANNERS_PIPELINE_HYBRID_STAGES_H
#define PLANNERS_PIPELINE_HYBRID_STAGES_H

#include "planners/layers/layer_costs.h"
#include "planners/problem/degrees.h"

#define HYBRID_MOST_STAGES 16
#define HYBRID_FEW_TURNS   8

typedef struct HybridRecipe {
    int32_t tensor;
    bool splits_sequence;
    uint8_t recompute; /* RECOMPUTE_NONE, RECOMPUTE_FULL or a level */
    uint8_t storage;   /* kinds of storage in shards: ZeRO's level */
} HybridRecipe;

/* Devices [first, first + width) of the cluster. */
typedef struct HybridPlace {
    int32_t first, width;
    int32_t class; /* places of one class cost the same */
} HybridPlace;

typedef struct HybridStage {
    int32_t first_unit, end_unit;
    HybridPlace place;
    HybridRecipe recipe;
} HybridStage;

/* By the tables. */
typedef struct HybridCost {
    double forward, backward; /* of a turn */
    double rest;              /* after the last turn: gradients over the devices, updates */
    double fixed_bytes, turn_bytes;
} HybridCost;

typedef struct HybridPipeline {
    int32_t micro_batches, stage_count;
    HybridStage stages[HYBRID_MOST_STAGES];
    double seconds;    /* by the tables and 1F1B's recursion */
    PlanOrigin origin; /* PLAN_ORIGIN_UNKNOWN: hybrid_stages_find() */
} HybridPipeline;

typedef struct HybridModel HybridModel;

typedef struct HybridSettings {
    double memory_fraction;
    bool may_recompute, may_shard_storage; /* ZeRO */
    /* Also more stages than micro-batches, up to HYBRID_FEW_TURNS: of modules that cannot be split into
     * turns. */
    bool has_few_turns;
    Degrees degrees;     /* of every stage */
    bool are_alike;      /* stages have one width and one tensor degree */
    int32_t most_tables; /* priced at most; 0: HYBRID_MOST_TABLES */
    int32_t threads;
} HybridSettings;

/* Places, their classes, and the tables of all numbers of micro-batches [count]. Refers to `costs`. */
AmStatus hybrid_model_open(HybridModel **model, LayerCosts *costs, const int32_t *micro_batches,
                           int32_t count, const HybridSettings *settings, AmError *error);
/* Plans of the whole module that were priced for the tables. */
int64_t hybrid_model_evaluations(const HybridModel *model);
void hybrid_model_close(HybridModel *model);

/* A stage with `kept` turns' activations. False where the tables have no such stage. */
bool hybrid_stage_cost(const HybridModel *model, int32_t micro_batches, const HybridStage *stage,
                       HybridCost *cost);
/* Seconds of the pipeline by 1F1B's recursion; INFINITY where a stage does not exist. `*excess`: by which
 * part of a device's limit the fullest one lacks memory, 0 where all fit. */
double hybrid_pipeline_seconds(const HybridModel *model, const HybridPipeline *pipeline, double *excess);

/* The place [first, first + width), with its class; false where no stage may be there. */
bool hybrid_model_place(const HybridModel *model, int32_t first, int32_t width, HybridPlace *place);

/* The best `most` different pipelines, fastest first, over all numbers of micro-batches. `*count`
 * may be 0. `least`, or NULL: [number] the least objective found, at most 1.05 times the minimum. */
AmStatus hybrid_stages_find(const HybridModel *model, HybridPipeline *pipelines, int32_t most, int32_t *count,
                            double *least, AmError *error);

#endif
