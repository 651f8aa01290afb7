/* Simulates the plans of all data, tensor and pipeline degrees. Strategies share common work: the module is
 * analysed once, cut once per number of stages, and rewritten once per number of micro-batches (twice if
 * pipelines need a separate backward pass). Both run concurrently, and then all strategies do. */
#include "planners/baselines/degree_sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/parallel.h"
#include "base/system/stop.h"
#include "cost/memory/rank_memory.h"
#include "cost/simulate/simulate.h"
#include "lowering/interleave/interleave.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/problem/schedule_fallback.h"
#include "planners/problem/scratch.h"

#define MOST_TENSORS 64 /* tensor degrees */
#define MOST_CHUNKS  SEARCH_DEFAULT_CHUNKS

/* Megatron-LM's split over a number of devices. */
typedef struct SweepTensor {
    int32_t size;
    bool found;
    AxisPlan axis_plan; /* its axis 1 */
} SweepTensor;

/* The module rewritten for a number of micro-batches. */
typedef struct SweepContext {
    const PlanContext *context;
    PlanContext *owned; /* `context` where this sweep created it; else NULL */
    int32_t micro_batches;
    bool has_stages; /* the backward pass has iterations of its own */
    bool alternates; /* iterations of both passes may alternate */
    Arena arena;
    StageProblem *problem; /* class sets; of all meshes the same, as there are no pins */
    SweepTensor *tensors;  /* [tensor_count], by size */
    AmStatus status;
    AmError error;
    double seconds, baseline_seconds;
} SweepContext;

/* The beginnings of stages, for each number of them. */
typedef struct SweepCuts {
    bool found;
    int32_t cuts[STAGES_MOST + 1];
} SweepCuts;

typedef struct SweepTask {
    SweepRow row;
    ScheduleKind schedule; /* SCHEDULE_KINDS: 1f1b where it can be */
    const SweepContext *in;
    Arena arena;    /* holds row.reason */
    Arena *scratch; /* temporary allocations */
    AmStatus status;
    AmError error;
    SweepSeconds seconds;
} SweepTask;

typedef struct DegreeSweep {
    const PlanContext *primary;
    const Cluster *cluster;
    const SweepOptions *options;
    int64_t batch;
    SweepCuts *cuts[MOST_CHUNKS + 1]; /* [STAGES_MOST + 1], by chunks of a stage and number of stages */
    SweepContext contexts[2 * MICRO_BATCHES_MOST_NUMBERS];
    int32_t context_count;
    int32_t tensor_sizes[MOST_TENSORS], tensor_count;
    SweepTask *tasks;
    int32_t task_count;
    Scratch *scratch;
} DegreeSweep;

/* ---- what strategies share ---- */

static AmStatus open_context(const DegreeSweep *self, SweepContext *context, AmError *error) {
    const MicroBatchSettings settings = {.micro_batches = context->micro_batches,
                                         .relaxations = self->options->relaxations,
                                         .separate_backward = context->has_stages};
    context->context = self->primary;
    if (context->micro_batches > 1) {
        TRY(plan_context_split(&context->owned, self->primary, &settings, error));
        context->context = context->owned;
    }
    return schedule_alternates(&context->alternates, &context->arena, context->context, error);
}

static void open_task(void *user, int32_t k) {
    DegreeSweep *self = user;
    SweepContext *context = &self->contexts[k];
    double start = clock_thread_seconds();
    context->status = open_context(self, context, &context->error);
    context->seconds = clock_thread_seconds() - start;
}

static AmStatus choose_tensors(const DegreeSweep *self, SweepContext *context, AmError *error) {
    const ProblemSettings settings = problem_settings(SPACE_AUTO, self->options->memory_fraction);
    Mesh mesh = {.axis_count = 2,
                 .axes = {{.name = "data", .size = 1}, {.name = "model", .size = 1}},
                 .device_count = 1};
    int32_t *device = ARENA_ARRAY(&context->arena, int32_t, 1);
    context->tensors = ARENA_ARRAY(&context->arena, SweepTensor, self->tensor_count);
    if (context->arena.failed) return am_fail_memory(error, self->tensor_count);
    TRY(problem_create(&context->problem, context->context, self->cluster, &mesh, device, &settings, error));
    for (int32_t k = 0; k < self->tensor_count; k++) {
        SweepTensor *tensor = &context->tensors[k];
        StageProblem problem = *context->problem;
        problem.mesh.axes[1].size = problem.mesh.device_count = tensor->size = self->tensor_sizes[k];
        TRY(baseline_megatron(&problem, 1, &tensor->axis_plan, &tensor->found, error));
    }
    return AM_OK;
}

static void choose_task(void *user, int32_t k) {
    DegreeSweep *self = user;
    SweepContext *context = &self->contexts[k];
    double start = clock_thread_seconds();
    if (context->status == AM_OK) context->status = choose_tensors(self, context, &context->error);
    context->baseline_seconds = clock_thread_seconds() - start;
}

static int32_t chunks_of(const SweepTask *task) {
    return task->schedule == SCHEDULE_INTERLEAVED ? SEARCH_DEFAULT_CHUNKS : 1;
}

static AmStatus find_cuts(DegreeSweep *self, int32_t chunks, Arena *arena, AmError *error) {
    self->cuts[chunks] = ARENA_ARRAY(arena, SweepCuts, STAGES_MOST + 1);
    if (!self->cuts[chunks]) return am_fail_memory(error, STAGES_MOST);
    for (int32_t stages = 2; stages <= STAGES_MOST / chunks; stages++) {
        SweepCuts *cuts = &self->cuts[chunks][stages];
        if (self->cluster->device_count % stages != 0) continue;
        TRY(even_pipeline_cuts(cuts->cuts, &cuts->found, self->primary, stages, chunks, error));
    }
    return AM_OK;
}

/* Adds one task for each requested schedule. */
static AmStatus add_tasks(DegreeSweep *self, Arena *arena, const SweepTask *task, int32_t *capacity,
                          AmError *error) {
    bool is_one = task->row.stages == 1 || self->options->schedules == 0;
    for (int32_t kind = 0; kind < SCHEDULE_KINDS; kind++) {
        if (is_one ? kind > 0 : !(self->options->schedules >> kind & 1)) continue;
        ARENA_RESERVE(arena, self->tasks, self->task_count, *capacity);
        if (arena->failed) return am_fail_memory(error, *capacity);
        self->tasks[self->task_count] = *task;
        self->tasks[self->task_count++].schedule = is_one ? SCHEDULE_KINDS : (ScheduleKind)kind;
    }
    return AM_OK;
}

/* Lists every way to deal the devices, by numbers of stages and then of tensor shards. */
static AmStatus list_tasks(DegreeSweep *self, Arena *arena, AmError *error) {
    int32_t devices = self->cluster->device_count, capacity = 0;
    for (int32_t stages = 1; stages <= devices; stages++) {
        if (devices % stages != 0) continue;
        for (int32_t tensor = 1; tensor <= devices / stages; tensor++) {
            if (devices / stages % tensor != 0 || tensor > self->tensor_sizes[self->tensor_count - 1])
                continue;
            for (int32_t k = stages > 1; k < self->context_count; k += 2) {
                if (self->contexts[k].status != AM_OK) continue;
                const SweepTask task = {.row = {.data = devices / stages / tensor,
                                                .tensor = tensor,
                                                .stages = stages,
                                                .micro_batches = self->contexts[k].micro_batches},
                                        .in = &self->contexts[k]};
                TRY(add_tasks(self, arena, &task, &capacity, error));
            }
        }
    }
    return AM_OK;
}

/* ---- one strategy ---- */

/* Finds the mesh of a stage and its axis priorities. `task->row.reason` is set if the module does not allow
 * them. */
static AmStatus find_stage(const DegreeSweep *self, SweepTask *task, PlanStage *inside, AmError *error) {
    SweepRow *row = &task->row;
    StageProblem problem = *task->in->problem;
    AxisPlan axis_plan = {0};
    int32_t count = row->data * row->tensor, k = 0;
    int32_t *devices = ARENA_ARRAY(task->scratch, int32_t, count);
    if (!devices) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    problem.devices = devices;
    problem.mesh.axes[0].size = row->data;
    problem.mesh.axes[1].size = row->tensor;
    problem.mesh.device_count = count;
    while (self->tensor_sizes[k] != row->tensor) k++;
    const SweepTensor *tensor = &task->in->tensors[k];
    if (tensor->found) axis_plan = tensor->axis_plan;
    if (row->data > 1 && !baseline_batch(&problem, 0, &axis_plan))
        row->reason =
            arena_format(&task->arena, "%d devices cannot share %s", row->data,
                         row->micro_batches > 1 ? "a micro-batch" : "a batch that they do not divide");
    else if (row->tensor > 1 && !tensor->found)
        row->reason =
            arena_format(&task->arena, "no weights can be split %d ways by the strict rules", row->tensor);
    else problem_stage(&problem, &axis_plan, task->scratch, inside);
    return task->arena.failed || task->scratch->failed ? am_fail_memory(error, count) : AM_OK;
}

/* Returns the seconds of this thread since `*since`, which becomes now. */
static double lap(double *since) {
    double before = *since;
    *since = clock_thread_seconds();
    return *since - before;
}

/* A strategy's plan under one schedule. */
typedef struct PricedStrategy {
    const DegreeSweep *sweep;
    SweepTask *task;
    Plan *plan;
    Simulation **simulation;
} PricedStrategy;

static AmStatus price_schedule(void *user, ScheduleKind schedule, AmError *error) {
    const PricedStrategy *priced = user;
    const DegreeSweep *self = priced->sweep;
    SweepTask *task = priced->task;
    Plan *plan = priced->plan;
    const SimulationOptions options = {.memory_fraction = self->options->memory_fraction};
    PlanRanks *ranks = ARENA_ARRAY(task->scratch, PlanRanks, 1);
    PlanCosts *costs;
    if (!ranks) return am_fail_memory(error, (int64_t)sizeof *ranks);
    if (plan->stage_count > 1) plan->schedule = schedule_kind_name(schedule);
    task->row.schedule = plan->schedule;
    double since = clock_thread_seconds();
    AmStatus status = plan_ranks(ranks, task->scratch, task->in->context, plan, error);
    if (status == AM_OK) status = plan_costs_lower(&costs, task->scratch, ranks, self->cluster, error);
    task->seconds.lower += lap(&since);
    if (status == AM_OK) status = plan_costs_price(costs, error);
    task->seconds.price += lap(&since);
    if (status == AM_OK) status = simulate_costs(priced->simulation, task->scratch, costs, &options, error);
    task->seconds.simulate += lap(&since);
    return status;
}

/* Simulates by the task's schedule; else as 1F1B if passes can alternate, or as GPipe. */
static AmStatus simulate_strategy(const DegreeSweep *self, SweepTask *task, Plan *plan,
                                  Simulation **simulation, AmError *error) {
    PricedStrategy priced = {self, task, plan, simulation};
    bool is_fixed = task->schedule != SCHEDULE_KINDS;
    ScheduleKind schedule = schedule_first(NULL, plan->stage_count > 1 && task->in->alternates);
    if (is_fixed) schedule = task->schedule;
    return schedule_simulate(&schedule, is_fixed, price_schedule, &priced, error);
}

/* Makes all of the plan but the schedule, in the task's scratch memory; or sets `task->row.reason`. */
static AmStatus make_plan(const DegreeSweep *self, SweepTask *task, Plan *plan, AmError *error) {
    SweepRow *row = &task->row;
    const SweepContext *in = task->in;
    int32_t chunks = chunks_of(task);
    PlanStage *inside = ARENA_ARRAY(task->scratch, PlanStage, 1);
    const SearchRequest request = {0};
    const SearchScope described = {.request = &request, .searcher = SEARCHER_BASELINE};
    if (!inside) return am_fail_memory(error, (int64_t)sizeof *inside);
    row->schedule = task->schedule == SCHEDULE_KINDS ? "none" : schedule_kind_name(task->schedule);
    if (row->stages > STAGES_MOST / chunks)
        row->reason = arena_format(&task->arena, "at most %d stages can be made", STAGES_MOST / chunks);
    else if (row->stages > 1 && !self->cuts[chunks][row->stages].found)
        row->reason = "too few forward operators for a pipeline";
    if (!row->reason) TRY(find_stage(self, task, inside, error));
    if (row->reason) return AM_OK;
    search_describe_plan(plan, in->context, self->cluster, &described);
    TRY(micro_batches_state_relaxations(plan, task->scratch, in->context, error));
    plan->stages = inside;
    plan->stage_count = row->stages;
    if (row->stages == 1) return AM_OK;
    inside->range_count = chunks;
    return even_pipeline_stages(&plan->stages, task->scratch, inside, self->cuts[chunks][row->stages].cuts,
                                row->stages, error);
}

static AmStatus run_strategy(const DegreeSweep *self, SweepTask *task, AmError *error) {
    SweepRow *row = &task->row;
    Plan plan;
    Simulation *simulation;
    double since = clock_thread_seconds();
    TRY(make_plan(self, task, &plan, error));
    task->seconds.baseline = lap(&since);
    if (row->reason) return AM_OK;
    TRY(simulate_strategy(self, task, &plan, &simulation, error));
    row->step_seconds = simulation->step_seconds;
    if (self->batch > 1) row->examples_per_second = (double)self->batch / simulation->step_seconds;
    row->peak_bytes = simulation->fit.needed_bytes;
    row->fits = simulation->fit.fits;
    return AM_OK;
}

static void strategy_task(void *user, int32_t k) {
    DegreeSweep *self = user;
    SweepTask *task = &self->tasks[k];
    if (stop_flag_is_set(self->options->interrupted)) {
        task->status = am_fail(&task->error, AM_INTERRUPTED, "", "interrupted");
        return;
    }
    task->scratch = scratch_take(self->scratch);
    task->status = run_strategy(self, task, &task->error);
    scratch_give(self->scratch, task->scratch);
    if (task->status == AM_ERROR_INFEASIBLE) {
        task->row.reason = task->error.text;
        task->status = AM_OK;
    }
    bool has_plan = task->status == AM_OK && !task->row.reason && task->row.fits;
    search_watch_count(self->options->watch, 1, has_plan ? task->row.step_seconds : NAN);
}

/* ---- all of them ---- */

static int rank_of(const SweepRow *row) {
    return row->reason ? 2 : !row->fits;
}

static int compare_rows(const void *left, const void *right) {
    const SweepRow *a = left, *b = right;
    if (rank_of(a) != rank_of(b)) return rank_of(a) - rank_of(b);
    if (!a->reason && a->step_seconds != b->step_seconds) return a->step_seconds < b->step_seconds ? -1 : 1;
    if (a->stages != b->stages) return a->stages - b->stages;
    if (a->tensor != b->tensor) return a->tensor - b->tensor;
    if (strcmp(a->schedule, b->schedule) != 0) return strcmp(a->schedule, b->schedule);
    return a->micro_batches - b->micro_batches;
}

/* Returns the first failure of the tasks; without one, adds up rows and sums. */
static AmStatus collect_rows(Sweep *result, const DegreeSweep *self, Arena *arena, AmError *error) {
    result->rows = ARENA_ARRAY(arena, SweepRow, self->task_count);
    if (!result->rows) return am_fail_memory(error, self->task_count);
    for (int32_t k = 0; k < self->task_count; k++) {
        const SweepTask *task = &self->tasks[k];
        SweepRow *row = &result->rows[result->row_count++];
        TRY(am_pass_error(task->status, &task->error, error));
        *row = task->row;
        if (row->reason) row->reason = arena_copy_string(arena, row->reason);
        result->seconds.baseline += task->seconds.baseline;
        result->seconds.lower += task->seconds.lower;
        result->seconds.price += task->seconds.price;
        result->seconds.simulate += task->seconds.simulate;
    }
    for (int32_t k = 0; k < self->context_count; k++) {
        result->seconds.split += self->contexts[k].seconds;
        result->seconds.baseline += self->contexts[k].baseline_seconds;
    }
    if (arena->failed) return am_fail_memory(error, self->task_count);
    qsort(result->rows, (size_t)result->row_count, sizeof *result->rows, compare_rows);
    return AM_OK;
}

static AmStatus run_all(Sweep *result, DegreeSweep *self, Arena *arena, AmError *error) {
    const SweepOptions *options = self->options;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], devices = self->cluster->device_count;
    int32_t count = micro_batches_numbers(numbers, self->primary, options->micro_batches);
    for (int32_t k = 0; k < 2 * count; k++)
        self->contexts[self->context_count++] =
            (SweepContext){.micro_batches = numbers[k / 2], .has_stages = k % 2 == 1};
    for (int32_t tensor = 1; tensor <= devices && self->tensor_count < MOST_TENSORS; tensor++)
        if (devices % tensor == 0) self->tensor_sizes[self->tensor_count++] = tensor;
    parallel_for(self->context_count, options->threads, open_task, self);
    parallel_for(self->context_count, options->threads, choose_task, self);
    /* The first refused number of micro-batches is reported; it ends the sweep if it is the only one. */
    for (int32_t k = 0; k < self->context_count; k++) {
        const SweepContext *context = &self->contexts[k];
        bool is_left_out = context->status == AM_ERROR_INFEASIBLE && self->options->micro_batches == 0;
        if (!is_left_out) TRY(am_pass_error(context->status, &context->error, error));
        if (context->status == AM_OK || result->refused > 0) continue;
        result->refused = context->micro_batches;
        result->refusal = arena_copy_string(arena, context->error.text);
    }
    TRY(find_cuts(self, 1, arena, error));
    if (options->schedules >> SCHEDULE_INTERLEAVED & 1)
        TRY(find_cuts(self, SEARCH_DEFAULT_CHUNKS, arena, error));
    TRY(list_tasks(self, arena, error));
    search_watch_expect(options->watch, self->task_count);
    parallel_for(self->task_count, options->threads, strategy_task, self);
    return collect_rows(result, self, arena, error);
}

AmStatus sweep(Sweep *result, Arena *arena, const PlanContext *primary, const Cluster *cluster,
               const SweepOptions *options, AmError *error) {
    double start = clock_seconds();
    DegreeSweep *self = ARENA_ARRAY(arena, DegreeSweep, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (DegreeSweep){.primary = primary,
                          .cluster = cluster,
                          .options = options,
                          .batch = micro_batches_limit(primary),
                          .scratch = scratch_create()};
    *result = (Sweep){.module_name = primary->canonical->name,
                      .cluster_name = cluster->name,
                      .device_count = cluster->device_count,
                      .batch = self->batch};
    AmStatus status = self->scratch ? run_all(result, self, arena, error) : am_fail_memory(error, 0);
    for (int32_t k = 0; k < self->task_count; k++) arena_free(&self->tasks[k].arena);
    scratch_free(self->scratch);
    for (int32_t k = 0; k < self->context_count; k++) {
        problem_free(self->contexts[k].problem);
        arena_free(&self->contexts[k].arena);
        plan_context_free(self->contexts[k].owned);
    }
    result->wall_seconds = clock_seconds() - start;
    return status;
}

/* ---- the plan of one row ---- */

static AmStatus rebuild(DegreeSweep *self, SweepTask *task, Plan *plan, AmError *error) {
    Simulation *simulation;
    TRY(choose_tensors(self, &self->contexts[0], error));
    TRY(find_cuts(self, chunks_of(task), task->scratch, error));
    TRY(make_plan(self, task, plan, error));
    if (task->row.reason) return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", task->row.reason);
    TRY(simulate_strategy(self, task, plan, &simulation, error));
    TRY(simulation_predict(plan, task->scratch, simulation, error));
    return rank_memory_predict(plan, task->scratch, self->primary, self->cluster, NULL, error);
}

AmStatus sweep_plan(Plan **plan, Arena *arena, PlanContext *primary, const Cluster *cluster,
                    const SweepOptions *options, const SweepRow *row, AmError *error) {
    MicroBatchSettings settings = {.micro_batches = row->micro_batches,
                                   .relaxations = options->relaxations,
                                   .separate_backward = row->stages > 1};
    DegreeSweep *self = ARENA_ARRAY(arena, DegreeSweep, 1);
    *plan = ARENA_ARRAY(arena, Plan, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (DegreeSweep){.primary = primary,
                          .cluster = cluster,
                          .options = options,
                          .contexts[0].micro_batches = row->micro_batches,
                          .tensor_sizes = {row->tensor},
                          .tensor_count = 1};
    SweepContext *in = &self->contexts[0];
    SweepTask task = {.in = in,
                      .row = {.data = row->data,
                              .tensor = row->tensor,
                              .stages = row->stages,
                              .micro_batches = row->micro_batches},
                      .schedule = row->stages > 1 ? schedule_kind_find(row->schedule) : SCHEDULE_KINDS,
                      .scratch = arena};
    AmStatus status = plan_context_for(&in->context, primary, &settings, error);
    if (status == AM_OK) status = rebuild(self, &task, *plan, error);
    problem_free(in->problem);
    arena_free(&in->arena);
    arena_free(&task.arena);
    return status;
}
