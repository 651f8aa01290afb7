/* Pipelines of stage_dp.h as plans: the module rewritten for their micro-batches and recomputation, the
 * axis priorities of every stage, and the simulation of what that lowers to. */
#ifndef PLANNERS_PIPELINE_PIPELINE_PLANS_H
#define PLANNERS_PIPELINE_PIPELINE_PLANS_H

#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/pipeline/stage_dp.h"
#include "planners/problem/search_scope.h"

/* The context for making plans: one for each number of micro-batches and recomputation. */
typedef struct PipelineContext {
    int32_t micro_batches;
    bool has_stages;
    const PlanContext *context;
    bool alternates; /* iterations of the backward pass may alternate with those of the forward pass */
    StageProblem *problem;
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
} PipelineContext;

enum { PIPELINE_MOST_CONTEXTS = 64 };

typedef struct PipelinePlans {
    Arena *arena;
    PlanContext *primary;
    const Cluster *cluster;
    const LayerCosts *costs;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    uint32_t relaxations;
    const StopSignal *stop; /* ends pending simulations; NULL: they are completed */
    PipelineContext *contexts[PIPELINE_MOST_CONTEXTS];
    int32_t context_count;
} PipelinePlans;

/* For a pipeline with chunks: chunk c of stage s has the units from c S + s on. */
typedef struct PipelineChunks {
    int32_t count; /* of each stage; 0 or 1: the stages are as the pipeline says */
    int32_t units[STAGES_MOST + 1];
} PipelineChunks;

/* One pipeline, simulated. */
typedef struct PipelineCandidate {
    const Plan *given; /* an external plan, which replaces the other fields; or NULL */
    PlanOrigin origin; /* PLAN_ORIGIN_UNKNOWN: that of the pipeline */
    PipelineLayout pipeline;
    ScheduleKind schedule; /* wanted; GPipe where the module allows no other */
    bool is_strict;        /* fail instead of using another schedule */
    bool is_varied;        /* other schedules were tried */
    bool is_eased;         /* more recomputation was tried */
    bool is_apart; /* made without the tables, or with other axis priorities than theirs: its cuts are not
                      moved */
    PipelineChunks chunks;
    const int32_t *cuts; /* [stage_count + 1] instructions at which stages of one chunk begin; NULL: where
                          * their units do */
    const AxisPlan *axis_plans; /* [stage_count] axis priorities of the stages; NULL: those of their
                                   strategies. Set with plan */
    Plan *plan;                 /* NULL: infeasible, and `error` has the reason */
    double seconds;
    MemoryFit fit;
    double busy[PIPELINE_MOST_STAGES];       /* seconds in which the stage's busiest device does something */
    double peak_bytes[PIPELINE_MOST_STAGES]; /* of its fullest device */
    AmStatus status;
    AmError error;
    Arena arena;
} PipelineCandidate;

void pipeline_plans_close(PipelinePlans *plans);

/* Rewrites the module for all of the pipelines, side by side. */
AmStatus pipeline_plans_open(PipelinePlans *plans, const PipelineCandidate *candidates, int32_t count,
                             AmError *error);

/* Finds the problem of a stage's axis plan; it shares all but the mesh with others. */
AmStatus pipeline_plans_problem(StageProblem *problem, PipelinePlans *plans,
                                const PipelineCandidate *candidate, int32_t stage, AmError *error);

/* Makes the plans of all candidates, one after the other, and simulates them side by side. A candidate that
 * the module does not allow, or that was interrupted, has no plan. */
AmStatus pipeline_plans_simulate(PipelinePlans *plans, PipelineCandidate *candidates, int32_t count,
                                 AmError *error);

/* Writes a line to the log, if there is one: the pipeline, its estimate by the tables and its
 * simulation; `evaluations` so far. */
void pipeline_plans_log(const PipelinePlans *plans, const PipelineCandidate *candidate, int64_t evaluations);

bool pipeline_same_layout(const PipelineLayout *a, const PipelineLayout *b);
/* Compares cuts: stages of the same units may still begin at other instructions, and have other chunks. */
bool pipeline_same_cuts(const PipelineCandidate *a, const PipelineCandidate *b);

#endif
