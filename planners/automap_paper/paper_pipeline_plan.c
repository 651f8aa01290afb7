/* A pipeline as Auto-MAP cuts it as an ordinary plan: every stage shares its micro-batch among its devices.
 */
#include "planners/automap_paper/paper_pipeline_plan.h"

#include <string.h>

#include "cost/simulate/simulate.h"
#include "lowering/interleave/interleave.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/problem/schedule_fallback.h"
#include "propagation/stages/stages.h"

/* Devices [first, end) share the batch, and `storage` kinds of persistent values. */
static AmStatus make_stage(PlanStage *stage, Arena *arena, const PlanContext *context, const Cluster *cluster,
                           int32_t first, int32_t end, int32_t storage, AmError *error) {
    const Mesh mesh = {
        .axis_count = 1, .axes = {{.name = "data", .size = end - first}}, .device_count = end - first};
    const ProblemSettings settings = problem_settings(SPACE_DATA, 1);
    int32_t *devices = ARENA_ARRAY(arena, int32_t, end - first);
    StageProblem *problem;
    AxisPlan axis_plan = {0};
    if (!devices) return am_fail_memory(error, (end - first) * 4);
    for (int32_t d = first; d < end; d++) devices[d - first] = d;
    TRY(problem_create(&problem, context, cluster, &mesh, devices, &settings, error));
    if (end - first > 1) baseline_batch(problem, 0, &axis_plan);
    int32_t kinds = problem_storage_kinds(problem, 0);
    axis_plan.storage[0] = (uint8_t)(storage < kinds ? storage : kinds);
    problem_stage(problem, &axis_plan, arena, stage);
    stage->overrides = NULL; /* there are none */
    problem_free(problem);
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* The plan under one schedule. */
typedef struct PricedPlan {
    Plan *plan;
    Simulation *simulation;
    Arena *arena;
    const PlanContext *context;
    const Cluster *cluster;
    double memory_fraction;
} PricedPlan;

static AmStatus price(void *user, ScheduleKind schedule, AmError *error) {
    PricedPlan *self = user;
    self->plan->schedule = schedule_kind_name(schedule);
    return simulate_plan(&self->simulation, self->arena, self->context, self->plan, self->cluster,
                         &(SimulationOptions){.memory_fraction = self->memory_fraction}, error);
}

AmStatus paper_pipeline_plan(Plan **plan, MemoryFit *fit, Arena *arena, const PlanContext *context,
                             const Cluster *cluster, const SearchScope *scope, const PaperStageCuts *cuts,
                             AmError *error) {
    const SearchRequest *request = scope->request;
    Plan *made = ARENA_ARRAY(arena, Plan, 1);
    bool alternates;
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    search_describe_plan(made, context, cluster, scope);
    TRY(micro_batches_state_relaxations(made, arena, context, error));
    int32_t end = plan_context_primary(context)->rules->entry_count;
    made->stage_count = cuts->count + 1;
    made->stages = ARENA_ARRAY(arena, PlanStage, made->stage_count);
    if (!made->stages) return am_fail_memory(error, (int64_t)sizeof *made->stages * made->stage_count);
    for (int32_t s = 0; s <= cuts->count; s++) {
        int32_t first_device = s == 0 ? 0 : cuts->devices[s - 1];
        int32_t end_device = s == cuts->count ? cluster->device_count : cuts->devices[s];
        PlanStage *stage = &made->stages[s];
        TRY(make_stage(stage, arena, context, cluster, first_device, end_device, cuts->storage, error));
        stage->ranges[0][0] = s == 0 ? 0 : cuts->instructions[s - 1];
        stage->ranges[0][1] = s == cuts->count ? end : cuts->instructions[s];
    }
    TRY(schedule_alternates(&alternates, arena, context, error));
    ScheduleKind schedule = schedule_first(request->space.schedule, alternates);
    if (schedule == SCHEDULE_KINDS || schedule == SCHEDULE_INTERLEAVED)
        return am_fail(error, AM_ERROR_USAGE, "", "--objective paper makes no pipeline of schedule %.60s",
                       request->space.schedule);
    PricedPlan priced = {made, NULL, arena, context, cluster, request->constraints.memory_fraction};
    TRY(schedule_simulate(&schedule, request->space.schedule != NULL, price, &priced, error));
    TRY(simulation_predict(made, arena, priced.simulation, error));
    *fit = priced.simulation->fit;
    *plan = made;
    return AM_OK;
}
