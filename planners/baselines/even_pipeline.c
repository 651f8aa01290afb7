/* Even pipelines. The forward operators have the order of the module, so that any place between two
 * of them is a cut. FLOPs up to a place grow with it; stage s should begin where they reach s / S
 * of all. Among the places within a tenth of a stage of that, the one with the fewest crossing
 * bytes is taken: values computed before it that a forward operator after it reads, each once.
 */
#include "planners/baselines/even_pipeline.h"

#include <math.h>

#include "base/system/stop.h"
#include "cost/simulate/simulate.h"
#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"
#include "lowering/interleave/interleave.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/problem/candidate_pool.h"
#include "planners/problem/schedule_fallback.h"
#include "propagation/stages/stages.h"

#define TOLERANCE 0.1 /* of a stage's FLOPs */

typedef struct Cutter {
    const PlanContext *context;
    const IrModule *module;
    int32_t count;     /* instructions of the entry */
    double *flops;     /* [count]: of forward operators; loops and conditionals include their computations */
    double *crossing;  /* [count + 1]: bytes that cross a cut before instruction i */
    int32_t *last_use; /* [count]: the last forward operator that reads it, -1: none */
} Cutter;

static void find_flops(Cutter *self, Arena *scratch) {
    const Rules *rules = self->context->rules;
    int32_t *outermost = ARENA_ARRAY(scratch, int32_t, rules->count + 1);
    if (!outermost) return;
    rules_find_outermost(rules, outermost);
    for (int32_t c = 0; c < self->module->computation_count; c++) {
        const IrComputation *body = &self->module->computations[c];
        for (int32_t i = body->first; rules->is_planned[c] && i < body->first + body->count; i++) {
            bool is_caller = rules_loop(rules, i) || rules_conditional(rules, i);
            if (is_caller || !self->context->split_options->live[i] ||
                !plan_context_in_forward(self->context, outermost[i]))
                continue;
            self->flops[outermost[i]] += rules->times[c] * ir_layers_of(self->module, i) *
                                         ir_instruction_flops(self->module, i, scratch);
        }
    }
}

static void find_crossing(Cutter *self) {
    const SplitOptions *split_options = self->context->split_options;
    for (int32_t i = 0; i < self->count; i++) self->last_use[i] = -1;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        if (!plan_context_in_forward(self->context, i)) continue;
        int32_t used = stages_is_transparent(self->context, i) ? self->last_use[i] : i;
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
            if (self->last_use[split_options->operands[k]] < used)
                self->last_use[split_options->operands[k]] = used;
    }
    for (int32_t i = 0; i < self->count; i++) {
        bool is_sent = plan_context_in_forward(self->context, i) && !stages_is_transparent(self->context, i);
        if (!is_sent || self->last_use[i] <= i) continue;
        self->crossing[i + 1] += split_options->bytes[i];
        self->crossing[self->last_use[i] + 1] -= split_options->bytes[i];
    }
    for (int32_t i = 1; i <= self->count; i++) self->crossing[i] += self->crossing[i - 1];
}

/* Returns the first instruction after the cut, after `least`, with work on its left since `least` and on
 * its right an operator for each of `after` parts; -1: none. `left` operators with work follow `least` in
 * total. */
static int32_t find_cut(const Cutter *self, int32_t least, double done, double target, double tolerance,
                        int32_t left, int32_t after) {
    int32_t best = -1, passed = 0;
    double best_crossing = 0, best_distance = 0;
    for (int32_t i = least; i < self->count && left - passed >= after; i++) {
        double distance = fabs(done - target);
        bool has_work = plan_context_in_forward(self->context, i) && self->flops[i] > 0;
        if (has_work && passed > 0 && ir_may_cut(self->module, i)) {
            bool near = distance <= tolerance, best_near = best >= 0 && best_distance <= tolerance;
            bool better = best < 0 || (near && !best_near) ||
                          (near && best_near && self->crossing[i] < best_crossing) ||
                          (!near && !best_near && distance < best_distance);
            if (better) {
                best = i;
                best_crossing = self->crossing[i];
                best_distance = distance;
            }
        }
        done += self->flops[i];
        passed += has_work;
    }
    return best;
}

static bool find_cuts(const Cutter *self, int32_t *cuts, int32_t stages, int32_t chunks) {
    int32_t parts = stages * chunks, left = 0;
    double total = 0, done = 0;
    for (int32_t i = 0; i < self->count; i++) {
        total += self->flops[i];
        left += plan_context_in_forward(self->context, i) && self->flops[i] > 0;
    }
    cuts[0] = 0;
    cuts[parts] = self->count;
    for (int32_t s = 1; s < parts; s++) {
        cuts[s] =
            find_cut(self, cuts[s - 1], done, total * s / parts, TOLERANCE * total / stages, left, parts - s);
        if (cuts[s] < 0) return false;
        for (int32_t i = cuts[s - 1]; i < cuts[s]; i++) {
            done += self->flops[i];
            left -= plan_context_in_forward(self->context, i) && self->flops[i] > 0;
        }
    }
    return true;
}

AmStatus even_pipeline_work(PipelineWork *work, Arena *arena, const PlanContext *context, AmError *error) {
    int32_t count = context->rules->entry_count;
    Cutter self = {.context = context,
                   .module = context->canonical,
                   .count = count,
                   .flops = ARENA_ARRAY(arena, double, count + 1),
                   .crossing = ARENA_ARRAY(arena, double, count + 1),
                   .last_use = ARENA_ARRAY(arena, int32_t, count + 1)};
    *work = (PipelineWork){count, self.flops, self.crossing, ARENA_ARRAY(arena, bool, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    find_flops(&self, arena);
    find_crossing(&self);
    for (int32_t i = 0; i < count; i++)
        work->is_cut[i] =
            plan_context_in_forward(context, i) && self.flops[i] > 0 && ir_may_cut(self.module, i);
    return arena->failed ? am_fail_memory(error, count) : AM_OK;
}

AmStatus even_pipeline_cuts(int32_t *cuts, bool *found, const PlanContext *context, int32_t stages,
                            int32_t chunks, AmError *error) {
    Arena scratch = {0};
    int32_t count = context->rules->entry_count;
    Cutter self = {.context = context,
                   .module = context->canonical,
                   .count = count,
                   .flops = ARENA_ARRAY(&scratch, double, count + 1),
                   .crossing = ARENA_ARRAY(&scratch, double, count + 1),
                   .last_use = ARENA_ARRAY(&scratch, int32_t, count + 1)};
    if (!scratch.failed) find_flops(&self, &scratch);
    AmStatus status = scratch.failed ? am_fail_memory(error, count * 20) : AM_OK;
    if (status == AM_OK) {
        find_crossing(&self);
        *found = find_cuts(&self, cuts, stages, chunks);
    }
    arena_free(&scratch);
    return status;
}

/* ---- plans ---- */

typedef struct Pipelines {
    Arena *arena;
    const PlanContext *context;
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    PlanCandidate best;           /* by candidate_is_better(): perhaps one that does not fit */
    const char *reason;
    AmError refusal; /* of the fewest stages that the schedule cannot have */
    int64_t evaluations;
} Pipelines;

AmStatus even_pipeline_stages(PlanStage **stages, Arena *arena, const PlanStage *inside, const int32_t *cuts,
                              int32_t stage_count, AmError *error) {
    int32_t devices = inside->mesh.device_count, chunks = inside->range_count;
    *stages = ARENA_ARRAY(arena, PlanStage, stage_count);
    if (!*stages) return am_fail_memory(error, (int64_t)sizeof **stages * stage_count);
    for (int32_t s = 0; s < stage_count; s++) {
        PlanStage *stage = &(*stages)[s];
        *stage = *inside;
        stage->devices = ARENA_ARRAY(arena, int32_t, devices);
        stage->ranges = arena_alloc(arena, sizeof *stage->ranges * (size_t)chunks);
        if (arena->failed) return am_fail_memory(error, devices * 4);
        for (int32_t c = 0; c < chunks; c++) {
            stage->ranges[c][0] = cuts[c * stage_count + s];
            stage->ranges[c][1] = cuts[c * stage_count + s + 1];
        }
        for (int32_t d = 0; d < devices; d++) stage->devices[d] = s * devices + d;
    }
    return AM_OK;
}

/* Returns whether a plan that fits was found. */
static bool has_plan(const Pipelines *self) {
    return self->best.plan && self->best.fit.fits;
}

/* Returns whether an interrupt ends the pricing: the search has a plan already. */
static bool may_stop(const Pipelines *self) {
    return has_plan(self) || self->scope->known.rival_seconds > 0;
}

/* A plan under one schedule. */
typedef struct PricedPipeline {
    const Pipelines *pipelines;
    Arena *arena;
    Plan *plan;
    Simulation **simulation;
} PricedPipeline;

static AmStatus price_schedule(void *user, ScheduleKind schedule, AmError *error) {
    const PricedPipeline *priced = user;
    const Pipelines *self = priced->pipelines;
    const StopSignal stop = {.interrupted = self->request->callbacks.interrupted};
    const SimulationOptions simulated = {.memory_fraction = self->request->constraints.memory_fraction,
                                         .stop = may_stop(self) ? &stop : NULL,
                                         .in_parallel = true};
    priced->plan->schedule = schedule_kind_name(schedule);
    return simulate_plan(priced->simulation, priced->arena, self->context, priced->plan, self->cluster,
                         &simulated, error);
}

/* Prices a plan under the requested schedule; else as 1F1B if the module allows it, or as GPipe. The
 * simulation is in `arena`. */
static AmStatus price_schedules(Pipelines *self, Arena *arena, Plan *plan, Simulation **simulation,
                                AmError *error) {
    const char *wanted = self->request->space.schedule;
    PricedPipeline priced = {self, arena, plan, simulation};
    bool alternates;
    TRY(schedule_alternates(&alternates, arena, self->context, error));
    ScheduleKind schedule = schedule_first(wanted, alternates);
    if (schedule == SCHEDULE_KINDS)
        return am_fail(error, AM_ERROR_USAGE, "", "a pipeline has no schedule %.60s", wanted);
    return schedule_simulate(&schedule, wanted != NULL, price_schedule, &priced, error);
}

static bool has_tensor_axis(const Pipelines *self) {
    return self->scope->searcher == SEARCHER_BASELINE && self->scope->baseline == BASELINE_MEGATRON_3D;
}

/* Finds axis priorities: the batch over all axes; for Megatron-LM over all but the last, which splits
 * tensors. */
static AmStatus find_lists(Pipelines *self, const StageProblem *problem, AxisPlan *axis_plan,
                           AmError *error) {
    int32_t axes = problem->mesh.axis_count - has_tensor_axis(self);
    bool found;
    self->reason = NULL;
    for (int32_t axis = 0; axis < axes; axis++) baseline_batch(problem, axis, axis_plan);
    if (!has_tensor_axis(self)) return AM_OK;
    TRY(baseline_megatron(problem, axes, axis_plan, &found, error));
    if (!found) self->reason = "no weight dimension can be split by the strict rules on the model axis";
    return AM_OK;
}

/* Prices a plan that is complete but for its schedule, in memory that the caller releases. If it is
 * infeasible, other numbers of stages may be feasible. */
static AmStatus price_plan(Pipelines *self, Arena *arena, Plan *plan, AmError *error) {
    Simulation *simulation;
    AmError refusal = {0};
    AmStatus status = price_schedules(self, arena, plan, &simulation, &refusal);
    if (status == AM_ERROR_INFEASIBLE) {
        if (self->refusal.code == AM_OK) self->refusal = refusal;
        return AM_OK;
    }
    if (status == AM_INTERRUPTED) {
        self->reason = "the search was interrupted";
        return AM_OK;
    }
    TRY(am_pass_error(status, &refusal, error));
    TRY(simulation_predict(plan, self->arena, simulation, error));
    self->evaluations++;
    const PlanCandidate candidate = {
        .plan = plan, .seconds = plan->predicted_step_seconds, .fit = simulation->fit};
    if (candidate_is_better(&candidate, &self->best)) self->best = candidate;
    return AM_OK;
}

static AmStatus price_problem(Pipelines *self, const StageProblem *problem, int32_t stage_count,
                              AmError *error) {
    PlanStage inside, *stages;
    AxisPlan axis_plan = {0};
    int32_t cuts[STAGES_MOST + 1], chunks = 1; /* of each stage */
    const SpaceRequest *space = &self->request->space;
    bool found;
    if (space->schedule && schedule_kind_find(space->schedule) == SCHEDULE_INTERLEAVED)
        chunks = space->chunks > 0 ? space->chunks : SEARCH_DEFAULT_CHUNKS;
    if (chunks > STAGES_MOST / stage_count) {
        am_fail(&self->refusal, AM_ERROR_USAGE, "", "%d stages of %d chunks are more than %d parts",
                stage_count, chunks, STAGES_MOST);
        return AM_OK;
    }
    TRY(find_lists(self, problem, &axis_plan, error));
    if (self->reason) return AM_OK;
    TRY(even_pipeline_cuts(cuts, &found, plan_context_primary(self->context), stage_count, chunks, error));
    if (!found) {
        self->reason = "too few forward operators for a pipeline";
        return AM_OK;
    }
    problem_stage(problem, &axis_plan, self->arena, &inside);
    if (self->arena->failed) return am_fail_memory(error, 0);
    inside.range_count = chunks;
    TRY(even_pipeline_stages(&stages, self->arena, &inside, cuts, stage_count, error));
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    search_describe_plan(plan, self->context, self->cluster, self->scope);
    TRY(micro_batches_state_relaxations(plan, self->arena, self->context, error));
    plan->stages = stages;
    plan->stage_count = stage_count;
    Arena arena = {0};
    AmStatus status = price_plan(self, &arena, plan, error);
    arena_free(&arena);
    return status;
}

static AmStatus price_mesh(Pipelines *self, const Mesh *mesh, AmError *error) {
    int32_t *devices = ARENA_ARRAY(self->arena, int32_t, mesh->device_count);
    ProblemSettings settings = {.space = has_tensor_axis(self) ? SPACE_AUTO : SPACE_DATA,
                                .constraints = self->request->constraints,
                                .budget = {.limit = 1}};
    StageProblem *problem;
    if (!devices) return am_fail_memory(error, mesh->device_count * 4);
    for (int32_t d = 0; d < mesh->device_count; d++) devices[d] = d;
    TRY(problem_create(&problem, self->context, self->cluster, mesh, devices, &settings, error));
    AmStatus status = price_problem(self, problem, self->cluster->device_count / mesh->device_count, error);
    problem_free(problem);
    return status;
}

static AmStatus price_given_mesh(Pipelines *self, AmError *error) {
    const SearchRequest *request = self->request;
    Mesh mesh;
    int32_t devices = self->cluster->device_count;
    TRY(mesh_parse(&mesh, self->arena, request->space.mesh, error));
    if (mesh.axis_count > AXIS_PLAN_AXES)
        return am_fail(error, AM_ERROR_USAGE, "", "--mesh %s: at most %d axes can be searched",
                       request->space.mesh, AXIS_PLAN_AXES);
    int32_t stages = devices / mesh.device_count;
    if (devices % mesh.device_count != 0 || stages < 2 || stages > STAGES_MOST)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--mesh %s: the %d devices of cluster %s make no pipeline of such stages",
                       request->space.mesh, devices, self->cluster->name);
    return price_mesh(self, &mesh, error);
}

AmStatus even_pipeline_plan(Plan **plan, const char **reason, int64_t *evaluations, Arena *arena,
                            const PlanContext *context, const Cluster *cluster, const SearchScope *scope,
                            AmError *error) {
    const SearchRequest *request = scope->request;
    Pipelines self = {.arena = arena,
                      .context = context,
                      .cluster = cluster,
                      .scope = scope,
                      .request = scope->request,
                      .reason = "the devices cannot be dealt to 2 to 8 equal stages"};
    if (request->space.mesh) TRY(price_given_mesh(&self, error));
    bool is_3d = has_tensor_axis(&self);
    if (is_3d && !request->space.mesh)
        self.reason = "expected servers for 2 to 8 equal stages (its tensor degree is that of a server)";
    const Degrees *degrees = &request->constraints.degrees;
    if (!degrees_are_free(degrees)) self.reason = "it has other degrees";
    int32_t tensor = is_3d ? cluster->servers[0].device_count : 1, most = EVEN_PIPELINE_MOST_STAGES;
    if (is_3d && degrees->tensor > 1) tensor = degrees->tensor;
    if (degrees->stages > most) most = degrees->stages;
    for (int32_t stages = 2; stages <= most && stages <= STAGES_MOST && !request->space.mesh; stages++) {
        if (may_stop(&self) && stop_flag_is_set(request->callbacks.interrupted)) break;
        if (cluster->device_count % (stages * tensor) != 0) continue;
        int32_t devices = cluster->device_count / stages;
        if (!degrees_allow_stages(degrees, stages) || !degrees_allow_mesh(degrees, devices, tensor)) continue;
        if (is_3d || request->constraints.pin_count > 0) { /* pins may name the tensor axis */
            const Mesh both = {
                .axis_count = 2,
                .axes = {{.name = "data", .size = devices / tensor}, {.name = "model", .size = tensor}},
                .device_count = devices};
            TRY(price_mesh(&self, &both, error));
            continue;
        }
        Mesh mesh = {.axis_count = 1, .axes = {{.name = "data", .size = devices}}, .device_count = devices};
        TRY(price_mesh(&self, &mesh, error));
    }
    *plan = has_plan(&self) ? self.best.plan : NULL;
    *reason = has_plan(&self) ? NULL : self.reason;
    *evaluations = self.evaluations;
    if (!self.best.plan) TRY(am_pass_error(self.refusal.code, &self.refusal, error));
    if (!self.best.plan || has_plan(&self)) return AM_OK;
    return memory_fail(&self.best.fit, cluster, request->constraints.memory_fraction, error);
}
