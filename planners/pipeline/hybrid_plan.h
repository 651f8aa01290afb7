/* Pipelines of hybrid_stages.h as plans: the module rewritten for their micro-batches and recomputation, the
 * lists of every stage, and the simulation of what that lowers to. */
#ifndef PLANNERS_PIPELINE_HYBRID_PLAN_H
#define PLANNERS_PIPELINE_HYBRID_PLAN_H

#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/pipeline/hybrid_stages.h"
#include "planners/problem/search_options.h"

/* The context for making plans: one for each number of micro-batches and recomputation. */
typedef struct HybridContext {
    int32_t micro_batches;
    bool has_stages;
    const PlanContext *context;
    bool alternates; /* iterations of the backward pass may alternate with those of the forward pass */
    Problem *problem;
    AxisPlan tensors[2 * 8]; /* by the model's tensor degree and whether the sequence is split: its axis 1 */
    int32_t tensor_sizes[2 * 8];
    bool tensor_found[2 * 8];
    int32_t tensor_count;
    AmStatus status; /* AM_ERROR_INFEASIBLE: the module cannot be split so; `error` says why */
    AmError error;
    PlanRecomputation recomputed;
    bool is_open;
    PlanContext *repeating,
        *owned; /* with recomputation; in micro-batches: until the whole one adopts them */
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
    const StopSignal *stop; /* ends pending simulations; NULL: they are completed */
    HybridContext *contexts[HYBRID_MOST_CONTEXTS];
    int32_t context_count;
} HybridPlans;

/* For a pipeline with chunks: chunk c of stage s has the units from c S + s on. */
typedef struct HybridChunks {
    int32_t count; /* of each stage; 0 or 1: the stages are as the pipeline says */
    int32_t units[STAGES_MOST + 1];
} HybridChunks;

/* One pipeline, simulated. */
typedef struct HybridTry {
    const Plan *given; /* an external plan, which replaces the other fields; or NULL */
    PlanOrigin origin; /* PLAN_ORIGIN_UNKNOWN: that of the pipeline */
    HybridPipeline pipeline;
    ScheduleKind schedule; /* wanted; GPipe where the module allows no other */
    bool is_strict;        /* fail instead of using another schedule */
    bool is_varied;        /* other schedules were tried */
    bool is_eased;         /* more recomputation was tried */
    bool is_apart; /* made without the tables, or of other lists than theirs: its cuts are not moved */
    HybridChunks chunks;
    const int32_t *cuts; /* [stage_count + 1] instructions at which stages of one chunk begin; NULL: where
                          * their units do */
    const AxisPlan
        *axis_plans; /* [stage_count] lists of the stages; NULL: those of their recipes. Set with plan */
    Plan *plan;      /* NULL: infeasible, and `error` has the reason */
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
AmStatus hybrid_plans_open(HybridPlans *plans, const HybridTry *tries, int32_t count, AmError *error);

/* The problem that a stage's axis plan is of; it shares all but the mesh with others. */
AmStatus hybrid_plans_problem(Problem *problem, HybridPlans *plans, const HybridTry *try, int32_t stage,
                              AmError *error);

/* Makes the plans of all tries, one after the other, and simulates them side by side. A try that the module
 * does not allow, or that was interrupted, has no plan. */
AmStatus hybrid_plans_simulate(HybridPlans *plans, HybridTry *tries, int32_t count, AmError *error);

/* Writes a line to the log, if there is one: the pipeline, its estimate by the tables and its
 * simulation; `evaluations` so far. */
void hybrid_plans_log(const HybridPlans *plans, const HybridTry *try, int64_t evaluations);

bool hybrid_same_pipeline(const HybridPipeline *a, const HybridPipeline *b);
/* Stages of the same units may still begin at other instructions, and have other chunks. */
bool hybrid_same_cuts(const HybridTry *a, const HybridTry *b);

#endif
