/* Pipelines of hybrid_stages.h as plans: the module rewritten for their micro-batches and recomputation, the
 * lists of every stage, and the simulation of what that lowers to. */
#ifndef PLANNERS_HYBRID_PLAN_H
#define PLANNERS_HYBRID_PLAN_H

#include "cost/simulate.h"
#include "planners/hybrid_stages.h"
#include "planners/search.h"
#include "propagation/micro_batches.h"

/* What plans are made with: one for each number of micro-batches and recomputation. */
typedef struct HybridContext {
    int32_t micro_batches;
    bool has_stages;
    const PlanContext *context;
    bool alternates; /* turns of the backward pass may go between those of the forward pass */
    Problem *problem;
    Genome tensors[2 * 8]; /* by the model's tensor degree and whether the sequence is split: its axis 1 */
    int32_t tensor_sizes[2 * 8];
    bool tensor_found[2 * 8];
    int32_t tensor_count;
    AmStatus status; /* AM_ERROR_INFEASIBLE: the module cannot be split so; `error` says why */
    AmError error;
    RecomputedRanges recomputed;
    bool is_open;
    PlanContext *owned; /* until the whole one adopts it */
    Arena arena;
} HybridContext;

enum { HYBRID_MOST_CONTEXTS = 64 };

typedef struct HybridPlans {
    Arena *arena;
    PlanContext *whole;
    const Cluster *cluster;
    const LayerCosts *costs;
    const SearchOptions *options;
    uint32_t relaxations;
    HybridContext *contexts[HYBRID_MOST_CONTEXTS];
    int32_t context_count;
} HybridPlans;

/* One pipeline, simulated. */
typedef struct HybridTry {
    HybridPipeline pipeline;
    ScheduleKind schedule; /* wanted; GPipe where the module allows no other */
    Plan *plan;            /* NULL: there is none, and `error` says why */
    double seconds;
    MemoryFit fit;
    double busy[HYBRID_MOST_STAGES];       /* seconds in which the stage's busiest device does something */
    double peak_bytes[HYBRID_MOST_STAGES]; /* of its fullest device */
    AmStatus status;
    AmError error;
    Arena arena;
} HybridTry;

void hybrid_plans_close(HybridPlans *plans);

/* Rewrites the module for all of the pipelines, side by side. */
AmStatus hybrid_plans_open(HybridPlans *plans, const HybridPipeline *pipelines, int32_t count,
                           AmError *error);

/* Makes the plans of all tries, one after the other, and simulates them side by side. A try that the module
 * does not allow has no plan. */
AmStatus hybrid_plans_simulate(HybridPlans *plans, HybridTry *tries, int32_t count, AmError *error);

#endif
