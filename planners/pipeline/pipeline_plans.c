/* Pipelines of the stage tables as plans: the module rewritten for their micro-batches, and the axis
 * priorities of every stage. */
#include "planners/pipeline/pipeline_plans.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "lowering/interleave/interleave.h"
#include "planners/baselines/baseline.h"
#include "planners/problem/schedule_fallback.h"

/* ---- contexts ---- */

/* Finds the units of chunk `chunk` of stage `stage`. */
static void find_units(const PipelineCandidate *candidate, int32_t stage, int32_t chunk, int32_t *first,
                       int32_t *end) {
    const StageLayout *layout = &candidate->pipeline.stages[stage];
    int32_t part = chunk * candidate->pipeline.stage_count + stage;
    *first = candidate->chunks.count > 1 ? candidate->chunks.units[part] : layout->first_unit;
    *end = candidate->chunks.count > 1 ? candidate->chunks.units[part + 1] : layout->end_unit;
}

static int32_t chunks_of(const PipelineCandidate *candidate) {
    return candidate->chunks.count > 1 ? candidate->chunks.count : 1;
}

/* Lists the ranges of instructions that a stage recomputes, from checkpoint to checkpoint: at most one a
 * unit. */
static int32_t list_segments(int32_t (*ranges)[2], const LayerCosts *costs,
                             const PipelineCandidate *candidate, int32_t stage) {
    int32_t count = 0;
    if (candidate->pipeline.stages[stage].strategy.recompute == RECOMPUTE_NONE) return 0;
    for (int32_t c = 0, first, end; c < chunks_of(candidate); c++) {
        find_units(candidate, stage, c, &first, &end);
        for (int32_t u = first; u < end; u++) {
            if (u + 1 < end && !costs->checkpoints.is_at[u + 1]) continue;
            ranges[count][0] = costs->units.cuts[first];
            ranges[count++][1] = costs->units.cuts[u + 1];
            first = u + 1;
        }
    }
    return count;
}

/* Lists the recomputation of the stages [first, end). */
static AmStatus list_recomputed(PlanRecomputation *recomputed, const PipelinePlans *self,
                                const PipelineCandidate *candidate, int32_t first, int32_t end,
                                AmError *error) {
    const LayerCosts *costs = self->costs;
    int32_t counts[PIPELINE_MOST_STAGES] = {0};
    *recomputed = (PlanRecomputation){
        .ranges = arena_alloc(self->arena, sizeof *recomputed->ranges * (size_t)costs->units.count)};
    if (!recomputed->ranges) return am_fail_memory(error, costs->units.count);
    for (int32_t pass = 0; pass < 2; pass++) {
        int32_t(*segments)[2] = recomputed->ranges;
        int32_t saved_count = 0;
        for (int32_t s = first; s < end; s++) {
            int32_t recompute = candidate->pipeline.stages[s].strategy.recompute;
            if (pass == 0) counts[s] = list_segments(segments, costs, candidate, s);
            int32_t *saved = pass == 0 ? NULL : recomputed->saved + saved_count;
            saved_count += recompute_levels_list(saved, &costs->recompute.levels,
                                                 recompute - RECOMPUTE_LEVELS, segments, counts[s]);
            segments += counts[s];
        }
        if (pass == 1) continue;
        recomputed->range_count = (int32_t)(segments - recomputed->ranges);
        recomputed->saved_count = saved_count;
        recomputed->saved = ARENA_ARRAY(self->arena, int32_t, saved_count + 1);
        if (!recomputed->saved) return am_fail_memory(error, saved_count);
    }
    return AM_OK;
}

/* Finds the context among those of the module, or makes it. The module is only read, so that several may be
 * made side by side. */
static AmStatus split_context(const PipelinePlans *self, PipelineContext *context, AmError *error) {
    const SearchRequest *request = self->request;
    const MicroBatchSettings settings = {.micro_batches = context->micro_batches,
                                         .recomputed = context->recomputed,
                                         .relaxations = self->relaxations,
                                         .separate_backward = context->has_stages,
                                         .stop = &self->costs->stop};
    /* Pins and degrees hold on the meshes of stages, not on this one of a single device: pin_stage() adds
     * the pins, the layouts keep the degrees. A pipeline keeps no shardings of the module. */
    ProblemSettings of_problem = problem_settings(SPACE_AUTO, request->constraints.memory_fraction);
    of_problem.constraints.is_even = request->constraints.is_even;
    of_problem.constraints.offloads_optimizer = request->constraints.offloads_optimizer;
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 1}, {.name = "model", .size = 1}},
                       .device_count = 1};
    int32_t *device = ARENA_ARRAY(&context->arena, int32_t, 1);
    if (!device) return am_fail_memory(error, 4);
    context->context = self->primary;
    const PlanContext *known = NULL;
    if (context->recomputed.range_count > 0) {
        known = plan_context_find_recomputed(self->primary, &context->recomputed);
        if (!known)
            TRY(plan_context_recompute(&context->repeating, self->primary, &context->recomputed,
                                       settings.stop, error));
        context->context = known ? known : context->repeating;
    }
    if (context->micro_batches > 1) {
        known = plan_context_find_split(context->context, &settings);
        if (!known) TRY(plan_context_split(&context->owned, context->context, &settings, error));
        context->context = known ? known : context->owned;
    }
    TRY(schedule_alternates(&context->alternates, &context->arena, context->context, error));
    return problem_create(&context->problem, context->context, self->cluster, &mesh, device, &of_problem,
                          error);
}

typedef struct ContextTasks {
    const PipelinePlans *plans;
    PipelineContext *contexts[PIPELINE_MOST_CONTEXTS];
} ContextTasks;

static void open_task(void *user, int32_t k) {
    const ContextTasks *tasks = user;
    PipelineContext *context = tasks->contexts[k];
    if (stop_wanted(&tasks->plans->costs->stop)) {
        context->status = am_fail(&context->error, AM_INTERRUPTED, "", "the search was stopped");
        return;
    }
    context->status = split_context(tasks->plans, context, &context->error);
}

/* Finds the context of a candidate, which may have to be opened. */
static AmStatus find_context(PipelinePlans *self, const PipelineCandidate *candidate, PipelineContext **found,
                             AmError *error) {
    const PipelineLayout *pipeline = &candidate->pipeline;
    PlanRecomputation recomputed = {0};
    bool has_stages = pipeline->stage_count > 1;
    TRY(list_recomputed(&recomputed, self, candidate, 0, pipeline->stage_count, error));
    for (int32_t k = 0; k < self->context_count; k++) {
        *found = self->contexts[k];
        if ((*found)->micro_batches == pipeline->micro_batches && (*found)->has_stages == has_stages &&
            recomputation_is_same(&(*found)->recomputed, &recomputed))
            return AM_OK;
    }
    PipelineContext *context = *found = ARENA_ARRAY(self->arena, PipelineContext, 1);
    if (!context) return am_fail_memory(error, (int64_t)sizeof *context);
    if (self->context_count == PIPELINE_MOST_CONTEXTS)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "a search makes at most %d modules of one",
                       PIPELINE_MOST_CONTEXTS);
    *context = (PipelineContext){
        .micro_batches = pipeline->micro_batches, .has_stages = has_stages, .recomputed = recomputed};
    self->contexts[self->context_count++] = context;
    return AM_OK;
}

AmStatus pipeline_plans_open(PipelinePlans *self, const PipelineCandidate *candidates, int32_t count,
                             AmError *error) {
    ContextTasks tasks = {.plans = self};
    int32_t opened = 0;
    for (int32_t k = 0; k < count; k++) {
        PipelineContext *context;
        if (candidates[k].given) continue;
        TRY(find_context(self, &candidates[k], &context, error));
        if (context->is_open) continue;
        context->is_open = true;
        tasks.contexts[opened++] = context;
    }
    parallel_for(opened, 0, open_task, &tasks);
    for (int32_t k = 0; k < opened; k++) {
        if (tasks.contexts[k]->repeating) plan_context_adopt(self->primary, tasks.contexts[k]->repeating);
        if (tasks.contexts[k]->owned) plan_context_adopt(self->primary, tasks.contexts[k]->owned);
    }
    return AM_OK;
}

void pipeline_plans_close(PipelinePlans *plans) {
    for (int32_t k = 0; k < plans->context_count; k++) {
        problem_free(plans->contexts[k]->problem);
        arena_free(&plans->contexts[k]->arena);
    }
}

/* ---- stages ---- */

/* Finds the list of the tensor axis, once for each degree. */
static AmStatus find_tensor(PipelineContext *context, const StageProblem *problem,
                            const StageStrategy *strategy, const AxisPlan **axis_plan, AmError *error) {
    int32_t key = strategy->tensor * 2 + strategy->splits_sequence;
    for (int32_t k = 0; k < context->tensor_count; k++)
        if (context->tensor_sizes[k] == key) {
            *axis_plan = context->tensor_found[k] ? &context->tensors[k] : NULL;
            return AM_OK;
        }
    int32_t k = context->tensor_count++;
    context->tensor_sizes[k] = key;
    TRY(baseline_megatron(problem, 1, &context->tensors[k], &context->tensor_found[k], error));
    if (strategy->splits_sequence && context->tensor_found[k])
        context->tensor_found[k] = baseline_sequence(problem, 1, &context->tensors[k]);
    *axis_plan = context->tensor_found[k] ? &context->tensors[k] : NULL;
    return AM_OK;
}

static void open_problem(StageProblem *problem, const PipelineContext *context, const StageLayout *stage) {
    *problem = *context->problem;
    problem->mesh.axes[0].size = stage->place.width / stage->strategy.tensor;
    problem->mesh.axes[1].size = stage->strategy.tensor;
    problem->mesh.device_count = stage->place.width;
}

AmStatus pipeline_plans_problem(StageProblem *problem, PipelinePlans *plans,
                                const PipelineCandidate *candidate, int32_t stage, AmError *error) {
    PipelineContext *context;
    TRY(find_context(plans, candidate, &context, error));
    open_problem(problem, context, &candidate->pipeline.stages[stage]);
    return AM_OK;
}

/* Finds Megatron-LM's axis priorities, the batch over the other axis, and ZeRO's level. */
static AmStatus find_axis_plan(PipelineContext *context, const StageProblem *problem,
                               const StageStrategy *strategy, AxisPlan *axis_plan, AmError *error) {
    const AxisPlan *tensor;
    int32_t data = problem->mesh.axes[0].size;
    *axis_plan = (AxisPlan){0};
    if (strategy->tensor > 1) {
        TRY(find_tensor(context, problem, strategy, &tensor, error));
        if (!tensor)
            return am_fail(error, AM_ERROR_INFEASIBLE, "", "no weights can be split %d ways",
                           strategy->tensor);
        *axis_plan = *tensor;
    }
    if (data > 1 && !baseline_batch(problem, 0, axis_plan))
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "%d devices cannot share a micro-batch", data);
    if (data > 1 && problem_storage_kinds(problem, 0) > 0) axis_plan->storage[0] = strategy->storage;
    return AM_OK;
}

/* Sets the ranges of a stage, one for each chunk. */
static AmStatus list_ranges(const PipelinePlans *self, const PipelineCandidate *candidate, int32_t number,
                            PlanStage *made, AmError *error) {
    made->range_count = chunks_of(candidate);
    made->ranges = arena_alloc(self->arena, sizeof *made->ranges * (size_t)made->range_count);
    if (self->arena->failed) return am_fail_memory(error, made->range_count);
    for (int32_t c = 0, first, end; c < made->range_count; c++) {
        find_units(candidate, number, c, &first, &end);
        made->ranges[c][0] = self->costs->units.cuts[first];
        made->ranges[c][1] = self->costs->units.cuts[end];
    }
    if (candidate->cuts && made->range_count == 1) {
        made->ranges[0][0] = candidate->cuts[number];
        made->ranges[0][1] = candidate->cuts[number + 1];
    }
    return AM_OK;
}

/* Finds the contents of each stage, or NULL without pins. */
static AmStatus find_contents(StageContents **contents, const PipelinePlans *self,
                              const PipelineContext *context, const PipelineCandidate *candidate,
                              AmError *error) {
    int32_t count = candidate->pipeline.stage_count;
    *contents = NULL;
    if (self->request->constraints.pin_count == 0) return AM_OK;
    PlanStage *stages = ARENA_ARRAY(self->arena, PlanStage, count);
    if (!stages) return am_fail_memory(error, count);
    for (int32_t s = 0; s < count; s++) {
        stages[s].mesh.device_count = candidate->pipeline.stages[s].place.width;
        TRY(list_ranges(self, candidate, s, &stages[s], error));
    }
    const Plan plan = {.stages = stages,
                       .stage_count = count,
                       .micro_batches = candidate->pipeline.micro_batches,
                       .schedule = schedule_kind_name(candidate->schedule),
                       .context = context->context};
    return pins_find_contents(contents, self->arena, &plan, error);
}

static AmStatus make_stage(PipelinePlans *self, PipelineContext *context, const PipelineCandidate *candidate,
                           int32_t number, const StageContents *contents, AxisPlan *axis_plan,
                           PlanStage *made, AmError *error) {
    const StageLayout *stage = &candidate->pipeline.stages[number];
    StageProblem problem;
    int32_t width = stage->place.width;
    int32_t *devices = ARENA_ARRAY(self->arena, int32_t, width);
    if (!devices) return am_fail_memory(error, width);
    for (int32_t d = 0; d < width; d++)
        devices[d] = stage_model_device(candidate->pipeline.order, stage->place.first + d);
    open_problem(&problem, context, stage);
    problem.devices = devices;
    if (contents) { /* the pins of the stage's parameters and values */
        const PlanConstraints *constraints = &self->request->constraints;
        const PinSet set = {.pins = constraints->pins,
                            .count = constraints->pin_count,
                            .is_even = constraints->is_even,
                            .is_held = contents->parameters,
                            .is_computed = contents->values};
        TRY(pins_on_mesh(&problem.pins, self->arena, problem.context, &problem.mesh, &set, error));
        problem.has_storage &= problem.pins.count == 0;
    }
    if (candidate->axis_plans) *axis_plan = candidate->axis_plans[number];
    else TRY(find_axis_plan(context, &problem, &stage->strategy, axis_plan, error));
    problem_stage(&problem, axis_plan, self->arena, made);
    TRY(list_ranges(self, candidate, number, made, error));
    return list_recomputed(&made->recompute, self, candidate, number, number + 1, error);
}

static AmStatus take_plan(PipelinePlans *self, PipelineCandidate *candidate, AmError *error) {
    const Plan *given = candidate->given;
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    const PlanContext *context = plan_context_used(given, self->primary);
    search_describe_plan(plan, context, self->cluster, self->scope);
    TRY(micro_batches_state_relaxations(plan, self->arena, context, error));
    plan->stages = given->stages;
    plan->stage_count = given->stage_count;
    plan->schedule = given->schedule;
    candidate->plan = plan;
    return AM_OK;
}

static AmStatus make_plan(PipelinePlans *self, PipelineCandidate *candidate, AmError *error) {
    const PipelineLayout *pipeline = &candidate->pipeline;
    PipelineContext *context;
    if (candidate->given) return take_plan(self, candidate, error);
    TRY(find_context(self, candidate, &context, error));
    if (context->status != AM_OK) return am_pass_error(context->status, &context->error, error);
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(self->arena, PlanStage, pipeline->stage_count);
    AxisPlan *axis_plans = ARENA_ARRAY(self->arena, AxisPlan, pipeline->stage_count);
    StageContents *contents;
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *plan);
    search_describe_plan(plan, context->context, self->cluster, self->scope);
    TRY(micro_batches_state_relaxations(plan, self->arena, context->context, error));
    TRY(find_contents(&contents, self, context, candidate, error));
    for (int32_t s = 0; s < pipeline->stage_count; s++)
        TRY(make_stage(self, context, candidate, s, contents ? &contents[s] : NULL, &axis_plans[s],
                       &stages[s], error));
    plan->stages = stages;
    plan->stage_count = pipeline->stage_count;
    TRY(schedule_fall_back(&candidate->schedule, candidate->is_strict, context->alternates, error));
    if (plan->stage_count > 1) plan->schedule = schedule_kind_name(candidate->schedule);
    candidate->axis_plans = axis_plans;
    candidate->plan = plan;
    return AM_OK;
}

/* ---- simulation ---- */

typedef struct SimulationTask {
    const PipelinePlans *plans;
    PipelineCandidate *candidates;
} SimulationTask;

/* Simulates the first of the candidates under one schedule. */
static AmStatus simulate_candidate(void *user, ScheduleKind schedule, AmError *error) {
    const SimulationTask *task = user;
    const PipelinePlans *self = task->plans;
    PipelineCandidate *candidate = task->candidates;
    const SimulationOptions options = {.memory_fraction = self->request->constraints.memory_fraction,
                                       .stop = self->stop};
    Simulation *simulation;
    if (candidate->plan->stage_count > 1 && !candidate->given)
        candidate->plan->schedule = schedule_kind_name(schedule);
    TRY(simulate_plan(&simulation, &candidate->arena, candidate->plan->context, candidate->plan,
                      self->cluster, &options, error));
    TRY(simulation_predict(candidate->plan, &candidate->arena, simulation, error));
    candidate->seconds = simulation->step_seconds;
    candidate->fit = simulation->fit;
    for (int32_t s = 0, d = 0; !candidate->given && s < candidate->plan->stage_count; s++)
        for (int32_t k = 0; k < candidate->plan->stages[s].mesh.device_count; k++, d++) {
            const SimulatedDevice *device = &simulation->devices[d];
            double peak = (double)(device->memory.peak_bytes + device->channel_bytes);
            candidate->busy[s] = fmax(candidate->busy[s], simulation->step_seconds - device->idle_seconds);
            candidate->peak_bytes[s] = fmax(candidate->peak_bytes[s], peak);
        }
    return AM_OK;
}

static void simulate_task(void *user, int32_t k) {
    const SimulationTask *all = user;
    PipelineCandidate *candidate = &all->candidates[k];
    SimulationTask one = {all->plans, candidate};
    if (!candidate->plan) return;
    bool is_fixed = candidate->is_strict || candidate->given || candidate->plan->stage_count == 1;
    candidate->status =
        schedule_simulate(&candidate->schedule, is_fixed, simulate_candidate, &one, &candidate->error);
}

/* Copies the prediction to the plans' arena; the rest of the simulation is released. */
static AmStatus keep_prediction(const PipelinePlans *self, PipelineCandidate *candidate, AmError *error) {
    if (candidate->status == AM_OK && candidate->plan) {
        size_t bytes = sizeof *candidate->plan->predicted * (size_t)candidate->plan->device_count;
        PlanDevicePrediction *predicted = arena_alloc(self->arena, bytes);
        if (!predicted) return am_fail_memory(error, (int64_t)bytes);
        memcpy(predicted, candidate->plan->predicted, bytes);
        candidate->plan->predicted = predicted;
    }
    arena_free(&candidate->arena);
    candidate->arena = (Arena){0};
    return AM_OK;
}

AmStatus pipeline_plans_simulate(PipelinePlans *self, PipelineCandidate *candidates, int32_t count,
                                 AmError *error) {
    SimulationTask task = {self, candidates};
    TRY(pipeline_plans_open(self, candidates, count, error));
    for (int32_t k = 0; k < count; k++) {
        candidates[k].status = make_plan(self, &candidates[k], &candidates[k].error);
        if (candidates[k].status == AM_OK)
            candidates[k].status = target_check_plan(self->request->constraints.target, candidates[k].plan,
                                                     &candidates[k].error);
        if (candidates[k].status == AM_OK)
            candidates[k].status = search_check_plan(self->scope, candidates[k].plan, &candidates[k].error);
        if (candidates[k].status != AM_OK) candidates[k].plan = NULL;
    }
    parallel_for(count, 0, simulate_task, &task);
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < count; k++) {
        AmStatus kept = keep_prediction(self, &candidates[k], error);
        if (status == AM_OK) status = kept;
        if (candidates[k].status == AM_OK) continue;
        candidates[k].plan = NULL;
        bool is_none = candidates[k].status == AM_ERROR_INFEASIBLE || candidates[k].status == AM_INTERRUPTED;
        if (is_none || status != AM_OK) continue;
        status = am_pass_error(candidates[k].status, &candidates[k].error, error);
    }
    return status;
}

void pipeline_plans_log(const PipelinePlans *plans, const PipelineCandidate *candidate, int64_t evaluations) {
    const SearchScope *scope = plans->scope;
    const PipelineLayout *pipeline = &candidate->pipeline;
    Text text = {0};
    if (!scope->request->callbacks.on_episode) return;
    text_append(&text, "{\"evaluations\": %lld, \"micro_batches\": %d, \"schedule\": \"%s\", \"stages\": [",
                (long long)evaluations, pipeline->micro_batches, candidate->plan->schedule);
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        const StageLayout *stage = &pipeline->stages[s];
        text_append(&text, "%s{\"units\": [%d, %d], \"data\": %d, \"model\": %d, \"zero\": %d}",
                    s ? ", " : "", stage->first_unit, stage->end_unit,
                    stage->place.width / stage->strategy.tensor, stage->strategy.tensor,
                    stage->strategy.storage);
    }
    text_append(&text, "], \"estimate\": %.9g, \"seconds\": %.9g, \"fits\": %s}", pipeline->seconds,
                candidate->seconds, candidate->fit.fits ? "true" : "false");
    if (!text.failed) scope->request->callbacks.on_episode(scope->request->callbacks.user, text.data);
    text_free(&text);
}

bool pipeline_same_layout(const PipelineLayout *a, const PipelineLayout *b) {
    return a->micro_batches == b->micro_batches && a->stage_count == b->stage_count && a->order == b->order &&
           memcmp(a->stages, b->stages, sizeof *a->stages * (size_t)a->stage_count) == 0;
}

bool pipeline_same_cuts(const PipelineCandidate *a, const PipelineCandidate *b) {
    int32_t stages = a->pipeline.stage_count;
    if ((a->cuts != NULL) != (b->cuts != NULL) || a->chunks.count != b->chunks.count) return false;
    if (a->cuts && memcmp(a->cuts, b->cuts, sizeof *a->cuts * (size_t)(stages + 1)) != 0) return false;
    size_t units = a->chunks.count > 1 ? (size_t)(stages * a->chunks.count + 1) : 0;
    return memcmp(a->chunks.units, b->chunks.units, sizeof *a->chunks.units * units) == 0;
}
