/* Makes the tables of layer_costs.h.
 *
 * First the module is cut into units, and checkpoints are found, at which few bytes cross. Then the axis
 * priority of each tensor degree is chosen. Each table assigns and lowers the module once for one device, and
 * adds the seconds, bytes and collectives of each operator to its unit and pass.
 */
#include "planners/layers/layer_costs.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "cost/collective/collective.h"
#include "cost/step/executed.h"
#include "cost/step/memory.h"
#include "ir/analysis/loops.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/lower.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/problem/scratch.h"

/* ---- units ---- */

/* Makes room for a cut among those in order: cuts[1 .. count]. A full list loses its
 * nearest cut instead. */
static void insert_cut(int32_t *cuts, int32_t *count, int32_t cut) {
    int32_t at = 1;
    while (at <= *count && cuts[at] < cut) at++;
    if (at <= *count && cuts[at] == cut) return;
    if (*count == LAYER_MOST_UNITS - 1) {
        bool is_last = at > *count || (at > 1 && cut - cuts[at - 1] < cuts[at] - cut);
        cuts[is_last ? at - 1 : at] = cut;
        return;
    }
    for (int32_t k = ++*count; k > at; k--) cuts[k] = cuts[k - 1];
    cuts[at] = cut;
}

/* Adds the cuts between operators that pins put on different stages: of the places between two such
 * operators the one with the fewest crossing bytes. */
static void add_stage_cuts(LayerCosts *self, const PipelineWork *work, int32_t *found) {
    const Placement *placement = self->pins.placement;
    int32_t last = -1;
    for (int32_t i = 0; i < work->count; i++) {
        const PropagationPin *pin = placement->on_stage[i];
        if (!pin) continue;
        if (last >= 0 && pin_number(pin) != pin_number(placement->on_stage[last])) {
            int32_t cut = i;
            for (int32_t k = last + 1; k < i; k++)
                if (work->is_cut[k] && work->crossing[k] < work->crossing[cut]) cut = k;
            insert_cut(self->units.cuts, found, cut);
        }
        last = i;
    }
}

/* Fewer units, as where one operator has nearly all work, are cut at every place. */
enum { LEAST_UNITS = 4 };

/* Fails because no stage can begin after the first forward operator, and names the largest one, which no cut
 * divides. */
static AmStatus fail_without_cut(const LayerCosts *self, const PipelineWork *work, AmError *error) {
    char place[256] = "";
    int32_t largest = -1;
    for (int32_t i = 0; i < work->count; i++)
        if (work->flops[i] > 0 && (largest < 0 || work->flops[i] > work->flops[largest])) largest = i;
    if (largest < 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
                       "too few forward operators for a pipeline: none has FLOPs");
    const IrInstruction *at = &self->context->canonical->instructions[largest];
    if (*at->source_file)
        snprintf(place, sizeof place, " (%.200s:%d)", at->source_file, (int)at->source_line);
    return am_fail(
        error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
        "too few forward operators for a pipeline: all stages would need a part of %s \"%.200s\"%s",
        ir_opcode_name(at->opcode), *at->op_name ? at->op_name : at->name, place);
}

/* Cuts units: among the places within half a unit of k / count of the work, the one with the fewest
 * crossing bytes. */
static AmStatus cut_units(LayerCosts *self, AmError *error) {
    PipelineWork work;
    TRY(even_pipeline_work(&work, &self->arena, self->context, error));
    double total = 0, done = 0;
    for (int32_t i = 0; i < work.count; i++) total += work.flops[i];
    self->units.cuts = ARENA_ARRAY(&self->arena, int32_t, LAYER_MOST_UNITS + 1);
    if (!self->units.cuts) return am_fail_memory(error, LAYER_MOST_UNITS);
    int32_t found = 0, window = 0, best = -1;
    for (int32_t i = 0; i < work.count; i++) {
        if (work.is_cut[i] && done > 0) {
            int32_t here = (int32_t)floor(done / total * LAYER_MOST_UNITS + 0.5);
            if (here != window && best >= 0) {
                self->units.cuts[++found] = best;
                best = -1;
            }
            window = here;
            bool is_inside = here > 0 && here < LAYER_MOST_UNITS;
            if (is_inside && (best < 0 || work.crossing[i] < work.crossing[best])) best = i;
        }
        done += work.flops[i];
    }
    if (best >= 0) self->units.cuts[++found] = best;
    bool is_short = found + 1 < LEAST_UNITS;
    done = 0;
    for (int32_t i = 0; i < work.count && is_short; i++) {
        if (work.is_cut[i] && done > 0) insert_cut(self->units.cuts, &found, i);
        done += work.flops[i];
    }
    if (self->pins.placement) add_stage_cuts(self, &work, &found);
    self->units.cuts[0] = 0;
    self->units.count = found + 1;
    self->units.cuts[self->units.count] = work.count;
    return found > 0 ? AM_OK : fail_without_cut(self, &work, error);
}

/* Assigns the units as stages of one device each, which determines the place of all other
 * instructions. */
static AmStatus assign_units(LayerCosts *self, AmError *error) {
    int32_t count = self->units.count;
    PlanStage *stages = ARENA_ARRAY(&self->arena, PlanStage, count);
    int32_t(*ranges)[2] = arena_alloc(&self->arena, sizeof *ranges * (size_t)count);
    if (self->arena.failed) return am_fail_memory(error, count);
    for (int32_t u = 0; u < count; u++) {
        ranges[u][0] = self->units.cuts[u];
        ranges[u][1] = self->units.cuts[u + 1];
        stages[u] = (PlanStage){.ranges = &ranges[u], .range_count = 1, .mesh = {.device_count = 1}};
    }
    const Plan plan = {.stages = stages, .stage_count = count, .micro_batches = 1};
    return stages_assign(&self->units.map, &self->arena, self->context, &plan, error);
}

/* Returns the unit that computes an instruction, or -1. */
static int32_t unit_of(const LayerCosts *self, int32_t instruction) {
    StageSet held = instruction >= 0 ? self->units.map->held[instruction] : 0;
    return held ? stage_first(held) : -1;
}

/* Counts the bytes across each cut: values from their definition to the last (or first) unit that
 * needs them. */
static AmStatus count_crossing(LayerCosts *self, AmError *error) {
    const PlanContext *context = self->context;
    self->units.crossing = ARENA_ARRAY(&self->arena, double, self->units.count + 1);
    self->units.returning = ARENA_ARRAY(&self->arena, double, self->units.count + 1);
    if (self->arena.failed) return am_fail_memory(error, self->units.count);
    for (int32_t i = 0; i < context->rules->entry_count; i++) {
        IrPhase phase = context->roles->phases[i];
        int32_t unit = unit_of(self, i);
        StageSet needed = unit < 0 ? 0 : self->units.map->needed[i] & ~self->units.map->held[i];
        if (!needed || !context->split_options->live[i]) continue;
        bool is_forward = phase == IR_PHASE_FORWARD;
        if (!is_forward && phase != IR_PHASE_BACKWARD) continue;
        int32_t last = stage_last(needed), first = stage_first(needed);
        for (int32_t k = unit + 1; is_forward && k <= last; k++)
            self->units.crossing[k] += context->split_options->bytes[i];
        for (int32_t k = first + 1; !is_forward && k <= unit; k++)
            self->units.returning[k] += context->split_options->bytes[i];
    }
    return AM_OK;
}

/* Counts the values that recomputation keeps, by the unit that computes them, if they are used
 * after the next checkpoint. */
static AmStatus count_checkpoints(LayerCosts *self, AmError *error) {
    const PlanContext *context = self->context;
    /* Cuts over which little more goes than over the least of their neighbours: between layers, not
     * within. */
    enum { REACH = 2 };
    const double most = 1.25;
    self->checkpoints.is_at = ARENA_ARRAY(&self->arena, bool, self->units.count + 1);
    if (!self->checkpoints.is_at) return am_fail_memory(error, self->units.count);
    self->checkpoints.is_at[0] = self->checkpoints.is_at[self->units.count] = true;
    for (int32_t u = 1; u < self->units.count; u++) {
        double least = self->units.crossing[u];
        for (int32_t k = u - REACH; k <= u + REACH; k++)
            if (k > 0 && k < self->units.count) least = fmin(least, self->units.crossing[k]);
        self->checkpoints.is_at[u] = self->units.crossing[u] <= most * least;
    }
    self->checkpoints.bytes = ARENA_ARRAY(&self->arena, double, self->units.count);
    if (!self->checkpoints.bytes) return am_fail_memory(error, self->units.count);
    for (int32_t i = 0; i < context->rules->entry_count; i++) {
        int32_t unit = unit_of(self, i), end = unit + 1;
        StageSet needed = unit < 0 ? 0 : self->units.map->needed[i] & ~self->units.map->held[i];
        if (!needed || !context->split_options->live[i] || context->roles->phases[i] != IR_PHASE_FORWARD)
            continue;
        while (!self->checkpoints.is_at[end]) end++;
        if (stage_last(needed) >= end)
            self->checkpoints.bytes[unit] +=
                context->split_options->bytes[i] * ir_layers_of(context->canonical, i);
    }
    return AM_OK;
}

/* Sums the shares of a level over the operators of each unit. */
static AmStatus find_shares(LayerCosts *self, int32_t level, AmError *error) {
    const RecomputeLevels *levels = &self->recompute.levels;
    double *saved = self->recompute.saved_share[level] = ARENA_ARRAY(&self->arena, double, self->units.count);
    double *again = self->recompute.again_share[level] = ARENA_ARRAY(&self->arena, double, self->units.count);
    if (self->arena.failed) return am_fail_memory(error, self->units.count);
    for (int32_t u = 0; u < self->units.count; u++) {
        double bytes = 0, seconds = 0;
        for (int32_t i = self->units.cuts[u]; i < self->units.cuts[u + 1]; i++) {
            RecomputeChoice choice = (RecomputeChoice)levels->choices[level][i];
            seconds += levels->seconds[i];
            if (levels->is_needed[i] && levels->seconds[i] > 0) bytes += levels->bytes[i];
            if (choice == RECOMPUTE_SAVED) saved[u] += levels->bytes[i];
            if (choice == RECOMPUTE_AGAIN) again[u] += levels->seconds[i];
        }
        saved[u] = bytes > 0 ? fmin(saved[u] / bytes, 1) : 0;
        again[u] = seconds > 0 ? again[u] / seconds : 0;
    }
    return AM_OK;
}

static AmStatus find_levels(LayerCosts *self, AmError *error) {
    int32_t *segments = ARENA_ARRAY(&self->arena, int32_t, self->units.count + 1), count = 0;
    if (!segments) return am_fail_memory(error, self->units.count);
    for (int32_t u = 0; u <= self->units.count; u++)
        if (self->checkpoints.is_at[u]) segments[count++] = self->units.cuts[u];
    TRY(recompute_levels_find(&self->recompute.levels, &self->arena, self->context, &self->cluster->types[0],
                              segments, count - 1, error));
    for (int32_t k = 0; k < self->recompute.levels.count; k++) TRY(find_shares(self, k, error));
    return AM_OK;
}

/* Finds the requirements of each unit, and the units with pinned parameters. */
static AmStatus find_pinned_units(LayerCosts *self, AmError *error) {
    const LayerPins *pins = &self->pins;
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 1}, {.name = "model", .size = 1}},
                       .device_count = 1};
    PinnedParameter *pinned;
    if (pins->count == 0) return AM_OK;
    self->units.is_pinned = ARENA_ARRAY(&self->arena, bool, self->units.count);
    if (!self->units.is_pinned) return am_fail_memory(error, self->units.count);
    TRY(propagation_resolve_pins(&pinned, &self->arena, self->context, &mesh, pins->pins, pins->count,
                                 error));
    for (int32_t p = 0; p < self->context->roles->parameter_count; p++)
        if (pinned[p].pin) self->units.is_pinned[self->units.map->owner[p]] = true;
    if (!pins->placement) return AM_OK;
    self->units.placed = ARENA_ARRAY(&self->arena, RangePlacement, self->units.count);
    if (!self->units.placed) return am_fail_memory(error, self->units.count);
    for (int32_t u = 0; u < self->units.count; u++)
        self->units.placed[u] =
            placement_of_range(pins->placement, self->units.cuts[u], self->units.cuts[u + 1]);
    return AM_OK;
}

AmStatus layer_costs_open(LayerCosts **costs, const PlanContext *context, const Cluster *cluster,
                          const ProblemSettings *settings, const LayerPins *pins, AmError *error) {
    Arena arena = {0};
    LayerCosts *self = ARENA_ARRAY(&arena, LayerCosts, 1);
    int32_t *device = ARENA_ARRAY(&arena, int32_t, 1);
    if (arena.failed) return am_fail_memory(error, (int64_t)sizeof *self);
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 1}, {.name = "model", .size = 1}},
                       .device_count = 1};
    *self = (LayerCosts){
        .arena = arena, .context = context, .cluster = cluster, .batch = micro_batches_limit(context)};
    if (pins) self->pins = *pins;
    AmStatus status;
    self->scratch = scratch_create();
    TRY_OR_FAIL(self->scratch ? AM_OK : am_fail_memory(error, (int64_t)sizeof *self->scratch));
    TRY_OR_FAIL(problem_create(&self->problem, context, cluster, &mesh, device, settings, error));
    TRY_OR_FAIL(cut_units(self, error));
    TRY_OR_FAIL(assign_units(self, error));
    TRY_OR_FAIL(find_pinned_units(self, error));
    TRY_OR_FAIL(count_crossing(self, error));
    TRY_OR_FAIL(count_checkpoints(self, error));
    TRY_OR_FAIL(find_levels(self, error));
    self->gradients = memory_find_gradients(&self->arena, context->canonical, context->roles);
    TRY_OR_FAIL(self->gradients ? AM_OK : am_fail_memory(error, context->rules->count));
    *costs = self;
    return AM_OK;
fail:
    layer_costs_close(self);
    return status;
}

void layer_costs_close(LayerCosts *costs) {
    if (!costs) return;
    scratch_free(costs->scratch);
    problem_free(costs->problem);
    Arena arena = costs->arena;
    arena_free(&arena);
}

/* ---- tables ---- */

static AmStatus find_tensor(const LayerCosts *self, LayerTensor *tensor, AmError *error) {
    StageProblem problem = *self->problem;
    StrictClassSets strict[MESH_MAX_AXES] = {0}; /* of this size; other threads have other sizes */
    problem.mesh.axes[1].size = problem.mesh.device_count = tensor->size;
    problem.strict = strict;
    TRY(baseline_megatron(&problem, 1, &tensor->axis_plan, &tensor->found, error));
    if (tensor->found && tensor->splits_sequence)
        tensor->found = baseline_sequence(&problem, 1, &tensor->axis_plan);
    return AM_OK;
}

typedef struct FindTasks {
    LayerCosts *costs;
    AmStatus status[LAYER_MOST_TENSORS];
    AmError errors[LAYER_MOST_TENSORS];
} FindTasks;

static void find_task(void *user, int32_t k) {
    FindTasks *tasks = user;
    if (stop_wanted(&tasks->costs->stop)) return;
    tasks->status[k] = find_tensor(tasks->costs, &tasks->costs->tensors.of[k], &tasks->errors[k]);
}

AmStatus layer_costs_find_tensors(LayerCosts *costs, const int32_t *sizes, int32_t count, int32_t threads,
                                  AmError *error) {
    FindTasks tasks = {.costs = costs};
    for (int32_t k = 0; k < 2 * count && costs->tensors.count < LAYER_MOST_TENSORS; k++)
        if (sizes[k / 2] > 1)
            costs->tensors.of[costs->tensors.count++] =
                (LayerTensor){.size = sizes[k / 2], .splits_sequence = k % 2 == 1};
    parallel_for(costs->tensors.count, threads, find_task, &tasks);
    for (int32_t k = 0; k < costs->tensors.count; k++) {
        TRY(am_pass_error(tasks.status[k], &tasks.errors[k], error));
    }
    return AM_OK;
}

/* The place of a step. A step without one has the place of its predecessor. */
typedef struct StepPlace {
    int32_t unit;
    LayerPass pass;
} StepPlace;

static void find_place(const LayerCosts *self, int32_t origin, StepPlace *place) {
    int32_t unit = unit_of(self, origin);
    if (unit < 0) return;
    IrPhase phase = self->context->roles->phases[origin];
    place->unit = unit;
    place->pass = phase == IR_PHASE_OPTIMIZER                                  ? LAYER_UPDATE
                  : phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED ? LAYER_BACKWARD
                                                                               : LAYER_FORWARD;
}

static AmStatus add_collective(const LayerCosts *self, LayerTable *table, const ExecutedStep *executed,
                               const StepPlace *place, AmError *error) {
    const ProgramCollective *collective = executed->instruction->collective;
    bool over_batch = collective->axes & 1u;
    int32_t origin = executed->instruction->origin;
    bool is_update = place->pass == LAYER_UPDATE || (origin >= 0 && self->gradients[origin]);
    double bytes = collective_tensor_bytes(executed->program, executed->instruction);
    /* Values that depend on the weights alone, and scalars that are summed once for all iterations. */
    if (over_batch && (is_update || bytes < 64)) return AM_OK;
    ARENA_RESERVE(&table->arena, table->collectives, table->collective_count, table->collective_capacity);
    if (table->arena.failed) return am_fail_memory(error, table->collective_count);
    table->collectives[table->collective_count++] =
        (LayerCollective){.kind = collective_priced_kind(executed->instruction),
                          .pass = place->pass,
                          .over_batch = over_batch,
                          .unit = place->unit,
                          .bytes = bytes,
                          .times = executed->times};
    return AM_OK;
}

/* Returns the k-th value that a step of the program reads, or -1 after the last. */
static int32_t read_value(const Program *program, const ProgramStep *step, int32_t k) {
    if (step->fusion >= 0) {
        const ProgramFusion *fusion = &program->execution.fusions[step->fusion];
        return k < fusion->input_count ? fusion->inputs[k].value : -1;
    }
    const ProgramInstruction *instruction = &program->instructions[step->instruction];
    return k < instruction->operand_count ? instruction->operands[k] : -1;
}

/* Counts a forward value that the backward pass reads, for each layer that its operator stands for. */
static void count_kept(const LayerCosts *self, LayerBytes *bytes, const ProgramValue *value) {
    const IrModule *module = self->context->canonical;
    const bool *is_beside = module->loops ? module->loops->is_beside : NULL;
    int32_t layers = ir_layers_of(module, value->origin);
    if (is_beside && is_beside[value->origin]) {
        bytes->casts += (double)value->bytes;
        if (layers > 1) bytes->gathered += 2 * (double)value->bytes;
        return;
    }
    bytes->kept += (double)value->bytes * layers;
    bytes->again += (double)value->bytes;
}

/* Counts the forward values that the backward pass reads, and the peak need of a step. */
static AmStatus count_activations(const LayerCosts *self, LayerTable *table, Arena *scratch,
                                  const Program *program, const StepPlace *places, AmError *error) {
    bool *is_counted = ARENA_ARRAY(scratch, bool, program->value_count + 1);
    if (!is_counted) return am_fail_memory(error, program->value_count);
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        double working = 0;
        for (int32_t k = 0, value; (value = read_value(program, &program->execution.steps[s], k)) >= 0; k++) {
            int32_t storage = program->values[value].storage;
            bool is_temporary = storage >= 0 && program->values[storage].kind == PROGRAM_VALUE_TEMPORARY;
            if (!is_temporary || program->values[storage].bytes <= 0) continue;
            const IrShape *shape = &program->values[storage].shape;
            working += fmin((double)program->values[storage].bytes, (double)ir_shape_bytes(shape));
            StepPlace made = {-1, LAYER_UPDATE};
            find_place(self, program->values[storage].origin, &made);
            if (places[s].pass != LAYER_BACKWARD || made.pass != LAYER_FORWARD || is_counted[storage])
                continue;
            is_counted[storage] = true;
            count_kept(self, &table->bytes[made.unit], &program->values[storage]);
        }
        double *most = &table->bytes[places[s].unit].working;
        if (places[s].pass != LAYER_UPDATE && working > *most) *most = working;
    }
    return AM_OK;
}

/* Counts weights and their optimizer state, at the units that have them. */
static void count_parameters(const LayerCosts *self, LayerTable *table, const Program *program) {
    const IrRoles *roles = self->context->roles;
    const IrModule *module = self->context->canonical;
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrParameter *parameter = &roles->parameters[k];
        int32_t value = program->parameters[k], unit = self->units.map->owner[k];
        if (value < 0) continue;
        LayerBytes *bytes = &table->bytes[unit < 0 ? 0 : unit];
        const IrShape *shape = &program->values[value].shape;
        double once = (double)ir_shape_elements(shape) * (double)dtype_bytes(shape->type);
        int32_t layers = ir_layers_of(module, parameter->instruction);
        double here = once * layers;
        bool has_gradient = parameter->role == IR_ROLE_WEIGHT && parameter->output >= 0;
        if (program->values[value].is_on_host) continue;
        if (parameter->role == IR_ROLE_OPTIMIZER) bytes->optimizer += here;
        else bytes->weights += here;
        if (has_gradient) bytes->gradients += here;
        if (has_gradient && layers > 1) bytes->gathered += once;
    }
}

/* Adds the seconds of a host copy on every type of device. */
static void add_host_copy(double *seconds, const Cluster *cluster, const ExecutedStep *executed) {
    double bytes = collective_tensor_bytes(executed->program, executed->instruction);
    for (int32_t s = 0; s < cluster->server_count; s++) {
        int32_t device = cluster->servers[s].first_device, type = cluster->servers[s].type;
        bool is_first = true; /* server of its type */
        for (int32_t other = 0; other < s; other++) is_first &= cluster->servers[other].type != type;
        if (is_first) seconds[type] += executed->times * cluster_host_copy_seconds(cluster, device, bytes);
    }
}

static AmStatus read_steps(const LayerCosts *self, LayerTable *table, Arena *scratch, const Program *program,
                           AmError *error) {
    const Cluster *cluster = self->cluster;
    ExecutedStep *steps;
    int32_t count;
    TRY(executed_steps(&steps, &count, scratch, program, &cluster->types[0], error));
    StepPlace *places = ARENA_ARRAY(scratch, StepPlace, program->execution.step_count + 1);
    StepPlace place = {0, LAYER_FORWARD};
    if (!places) return am_fail_memory(error, count);
    for (int32_t s = 0; s < count; s++) {
        find_place(self, executed_origin(&steps[s]), &place);
        if (steps[s].program == program) places[steps[s].step] = place;
        const ProgramInstruction *collective = executed_collective(&steps[s]);
        double *seconds =
            &table->seconds[((int32_t)place.pass * self->units.count + place.unit) * cluster->type_count];
        if (collective && program_is_host_copy(collective->collective)) {
            add_host_copy(seconds, cluster, &steps[s]);
            continue;
        }
        if (collective) {
            TRY(add_collective(self, table, &steps[s], &place, error));
            continue;
        }
        OperatorWork work;
        executed_work(&work, &steps[s]);
        for (int32_t t = 0; t < cluster->type_count; t++)
            seconds[t] += steps[s].times * executed_work_seconds(&steps[s], &work, &cluster->types[t]);
    }
    count_parameters(self, table, program);
    return count_activations(self, table, scratch, program, places, error);
}

/* Puts the pins of the tensor axis before the axis priorities of a table's problem, and notes the units where
 * they cannot hold. */
static AmStatus pin_table(const LayerCosts *self, LayerTable *table, StageProblem *problem, Arena *scratch,
                          AmError *error) {
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = 1}, {.name = "model", .size = table->tensor}},
                       .device_count = table->tensor};
    int32_t parameters = self->context->roles->parameter_count;
    bool *fails = ARENA_ARRAY(scratch, bool, parameters + 1);
    bool *value_fails = ARENA_ARRAY(scratch, bool, plan_context_count(self->context) + 1);
    const PinSet set = {.pins = self->pins.pins,
                        .count = self->pins.count,
                        .is_even = problem->constraints.is_even,
                        .fails = fails,
                        .value_fails = value_fails};
    table->fails = ARENA_ARRAY(&table->arena, bool, self->units.count);
    if (!value_fails || !table->fails) return am_fail_memory(error, parameters);
    TRY(pins_on_mesh(&problem->pins, scratch, self->context, &mesh, &set, error));
    for (int32_t p = 0; p < parameters; p++)
        if (fails[p]) table->fails[self->units.map->owner[p]] = true;
    for (int32_t i = 0; i < plan_context_count(self->context); i++)
        if (value_fails[i] && unit_of(self, i) >= 0) table->fails[unit_of(self, i)] = true;
    return AM_OK;
}

static AmStatus fill_table(const LayerCosts *self, LayerTable *table, Arena *scratch, AmError *error) {
    StageProblem problem = *self->problem;
    AxisPlan axis_plan;
    PlanStage stage;
    Assignment *assignment;
    Program *program;
    if (table->local_batch < 1) return AM_OK; /* more micro-batches than examples */
    int64_t parts = (self->batch + table->local_batch - 1) / table->local_batch;
    problem.mesh.axes[0].size = (int32_t)parts;
    problem.mesh.axes[1].size = table->tensor;
    problem.mesh.device_count = (int32_t)parts * table->tensor;
    int32_t *devices = ARENA_ARRAY(scratch, int32_t, problem.mesh.device_count);
    if (!devices) return am_fail_memory(error, problem.mesh.device_count);
    problem.devices = devices;
    /* The batch is on the first axis, Megatron-LM's axis priority on the second. */
    axis_plan = (AxisPlan){0};
    bool found = table->tensor == 1;
    for (int32_t k = 0; k < self->tensors.count && !found; k++) {
        const LayerTensor *tensor = &self->tensors.of[k];
        if (tensor->size != table->tensor || tensor->splits_sequence != table->splits_sequence) continue;
        axis_plan = tensor->axis_plan;
        found = tensor->found;
    }
    table->found = found && (problem.mesh.axes[0].size == 1 || baseline_batch(&problem, 0, &axis_plan));
    if (!table->found) return AM_OK;
    int32_t type_count = self->cluster->type_count;
    table->seconds = ARENA_ARRAY(&table->arena, double, LAYER_PASSES * self->units.count * type_count);
    table->bytes = ARENA_ARRAY(&table->arena, LayerBytes, self->units.count);
    if (self->pins.count > 0) TRY(pin_table(self, table, &problem, scratch, error));
    problem_stage(&problem, &axis_plan, scratch, &stage);
    if (table->arena.failed || scratch->failed) return am_fail_memory(error, self->units.count);
    TRY(plan_assign(&assignment, scratch, self->context, &stage, error));
    TRY(plan_lower(&program, scratch, self->context, assignment, 0, error));
    return read_steps(self, table, scratch, program, error);
}

typedef struct FillTasks {
    const LayerCosts *costs;
    LayerTable *tables;
} FillTasks;

static void fill_task(void *user, int32_t k) {
    const FillTasks *tasks = user;
    LayerTable *table = &tasks->tables[k];
    if (stop_wanted(&tasks->costs->stop)) return;
    Arena *scratch = scratch_take(tasks->costs->scratch);
    table->status = fill_table(tasks->costs, table, scratch, &table->error);
    scratch_give(tasks->costs->scratch, scratch);
}

AmStatus layer_costs_fill(const LayerCosts *costs, LayerTable *tables, int32_t count, int32_t threads,
                          AmError *error) {
    FillTasks tasks = {costs, tables};
    parallel_for(count, threads, fill_task, &tasks);
    for (int32_t k = 0; k < count; k++) {
        TRY(am_pass_error(tables[k].status, &tables[k].error, error));
    }
    return AM_OK;
}

void layer_tables_free(LayerTable *tables, int32_t count) {
    for (int32_t k = 0; k < count; k++) arena_free(&tables[k].arena);
}
