/* Estimates of axis plans by the sharding graph of a sample of the module, in a hundredth of the time of a
 * price. */
#include "planners/single_stage/estimate.h"

#include "base/hash.h"
#include "base/open_table.h"
#include "base/system/parallel.h"

/* Estimates of smaller modules take less time than to start a thread. */
enum { LEAST_PARALLEL_INSTRUCTIONS = 1000 };

typedef struct Known {
    OpenEntry entry; /* its key: of the axis plan */
    ShardingGraphCost cost;
} Known;

struct Estimator {
    Arena *arena; /* the problem's */
    const StageProblem *problem;
    ShardingGraphSample *sample;
    double limit;    /* bytes of a device */
    OpenTable known; /* of Known */
};

static AmStatus open_sample(Estimator *self, AmError *error) {
    const StageProblem *problem = self->problem;
    ShardingGraph *graph;
    ReshardCosts *reshards;
    TRY(sharding_graph_create_estimate(&graph, self->arena, problem->context,
                                       &(PlacedMesh){&problem->mesh, problem->cluster, problem->devices},
                                       error));
    if (!graph) return AM_OK;
    TRY(reshard_costs_create(&reshards, self->arena,
                             &(PlacedMesh){&problem->mesh, problem->cluster, problem->devices},
                             RESHARD_AXIS_ORDER, error));
    graph->reshards = reshards;
    return sharding_graph_sample(&self->sample, self->arena, graph, error);
}

AmStatus estimator_of(Estimator **estimator, StageProblem *problem, AmError *error) {
    *estimator = problem->estimator;
    if (problem->has_estimator) return AM_OK;
    Estimator *self = ARENA_ARRAY(&problem->arena, Estimator, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (Estimator){.arena = &problem->arena,
                        .problem = problem,
                        .limit = problem_memory_limit(problem),
                        .known.arena = &problem->arena};
    TRY(open_sample(self, error));
    problem->has_estimator = true;
    if (self->sample) *estimator = problem->estimator = self;
    return AM_OK;
}

static AmStatus estimate_in(ShardingGraphCost *cost, const Estimator *self, Arena *scratch,
                            const AxisPlan *axis_plan, AmError *error) {
    PlanStage *stage = ARENA_ARRAY(scratch, PlanStage, 1);
    Assignment *assignment;
    if (!stage) return am_fail_memory(error, (int64_t)sizeof *stage);
    problem_stage(self->problem, axis_plan, scratch, stage);
    if (scratch->failed) return am_fail_memory(error, 0);
    TRY(plan_assign(&assignment, scratch, sharding_graph_sample_context(self->sample), stage, error));
    *cost = sharding_graph_sample_cost(self->sample, assignment);
    return AM_OK;
}

/* The estimate of an axis plan that is not cached. */
typedef struct EstimateTask {
    const Estimator *estimator;
    const AxisPlan *axis_plan;
    uint64_t key;
    ShardingGraphCost cost;
    AmStatus status;
    AmError error;
} EstimateTask;

static void estimate_task(void *user, int32_t k) {
    EstimateTask *task = (EstimateTask *)user + k;
    Scratch *arenas = task->estimator->problem->scratch;
    Arena *scratch = scratch_take(arenas);
    task->status = estimate_in(&task->cost, task->estimator, scratch, task->axis_plan, &task->error);
    scratch_give(arenas, scratch);
}

/* Caches the result of a task, unless it failed. */
static AmStatus note_task(Estimator *self, const EstimateTask *task, AmError *error) {
    TRY(am_pass_error(task->status, &task->error, error));
    const Known known = {.entry.key = task->key, .cost = task->cost};
    return open_table_add(&self->known, sizeof known, &known.entry) ? AM_OK : am_fail_memory(error, 0);
}

AmStatus estimate_axis_plans(Estimator *estimator, const AxisPlan *const *axis_plans, int32_t count,
                             AmError *error) {
    EstimateTask tasks[ESTIMATE_BATCH];
    int32_t task_count = 0;
    if (estimator->problem->context->rules->count < LEAST_PARALLEL_INSTRUCTIONS) return AM_OK;
    for (int32_t k = 0; k < count && task_count < ESTIMATE_BATCH; k++) {
        uint64_t key = hash_bytes(axis_plans[k], sizeof *axis_plans[k], 0);
        if (!open_table_find(&estimator->known, sizeof(Known), key))
            tasks[task_count++] =
                (EstimateTask){.estimator = estimator, .axis_plan = axis_plans[k], .key = key};
    }
    parallel_for(task_count, 0, estimate_task, tasks);
    for (int32_t k = 0; k < task_count; k++) TRY(note_task(estimator, &tasks[k], error));
    return AM_OK;
}

AmStatus estimate_axis_plan_parts(ShardingGraphCost *cost, PlanPrice *price, Estimator *estimator,
                                  const AxisPlan *axis_plan, AmError *error) {
    EstimateTask task = {
        .estimator = estimator, .axis_plan = axis_plan, .key = hash_bytes(axis_plan, sizeof *axis_plan, 0)};
    const Known *known = open_table_find(&estimator->known, sizeof *known, task.key);
    if (known) *cost = known->cost;
    else {
        estimate_task(&task, 0);
        TRY(note_task(estimator, &task, error));
        *cost = task.cost;
    }
    *price = (PlanPrice){
        .compute_seconds = cost->compute_seconds,
        .communication_seconds = cost->communication_seconds,
        .seconds = cost->compute_seconds + cost->communication_seconds,
        .excess = cost->kept_bytes > estimator->limit ? cost->kept_bytes / estimator->limit - 1 : 0};
    return AM_OK;
}

AmStatus estimate_axis_plan(PlanPrice *price, Estimator *estimator, const AxisPlan *axis_plan,
                            AmError *error) {
    ShardingGraphCost cost;
    return estimate_axis_plan_parts(&cost, price, estimator, axis_plan, error);
}
