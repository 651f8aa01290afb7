/* A plan for JAX.
 *
 * Entry d of a spec lists the mesh axes that split dimension d, major first, or is null. An output
 * that updates a parameter has the parameter's sharding, so that a step's result can be passed to
 * the next step unchanged.
 */
#include "planners/export/export_jax.h"

#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "lowering/micro_batch/recompute.h"
#include "lowering/plan_file/plan_parts.h"
#include "lowering/spmd/ranks.h"
#include "planners/targets/target_checks.h"
#include "propagation/assign/storage.h"
#include "propagation/plan/pipeline_schedule.h"
#include "propagation/stages/stages.h"

/* Writes the spec of an instruction's result; refuses uneven shards. */
static AmStatus spec_to_json(json_t **spec, const Mesh *mesh, SbpState state,
                             const IrInstruction *instruction, AmError *error) {
    TRY(target_check_even(TARGET_JAX, mesh, state, instruction, error));
    *spec = plan_sharding_to_json(mesh, state, &instruction->shape);
    for (size_t d = 0; d < json_array_size(*spec); d++)
        if (json_array_size(json_array_get(*spec, d)) == 0) json_array_set_new(*spec, d, json_null());
    return AM_OK;
}

/* Returns {"shape", "axis_names"}, and "devices" if there are several stages. */
static json_t *mesh_to_json(const PlanStage *stage, bool has_devices) {
    json_t *shape = json_array(), *names = json_array(), *devices = has_devices ? json_array() : NULL;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        json_array_append_new(shape, json_integer(stage->mesh.axes[axis].size));
        json_array_append_new(names, json_string(stage->mesh.axes[axis].name));
    }
    for (int32_t d = 0; d < stage->mesh.device_count && has_devices; d++)
        json_array_append_new(devices, json_integer(stage->devices[d]));
    return json_pack("{s:o, s:o, s:o*}", "shape", shape, "axis_names", names, "devices", devices);
}

/* Returns the name of JAX's primitive: "dot_general" of "jit(step)/jvp()/dot_general". A parameter, or a part
 * of one, is named by its path, such as "x" or "state['mlp/linear']", and has none: "". */
static const char *primitive_of(const IrInstruction *instruction) {
    const char *slash = strrchr(instruction->op_name, '/');
    return slash && !strchr(slash, ']') ? slash + 1 : "";
}

static json_t *dimensions_to_json(const IrShape *shape) {
    json_t *dimensions = json_array();
    for (int32_t d = 0; d < shape->rank; d++)
        json_array_append_new(dimensions, json_integer((json_int_t)shape->dimensions[d]));
    return dimensions;
}

/* Writes where the optimizer state of a stage is kept: JAX's name of the host's memory. Scalars stay on the
 * device. */
static void set_memory(json_t *row, const PlanContext *context, const PlanStage *stage, int32_t parameter) {
    const IrParameter *of = &context->roles->parameters[parameter];
    bool is_there = stage->offloads_optimizer && of->role == IR_ROLE_OPTIMIZER && of->output >= 0 &&
                    context->canonical->instructions[of->instruction].shape.rank > 0;
    if (is_there) json_object_set_new(row, "memory_kind", json_string("pinned_host"));
}

/* ---- one stage ---- */

static AmStatus add_rows(json_t *parameters, json_t *outputs, const PlanContext *context,
                         const Assignment *assignment, AmError *error) {
    const Mesh *mesh = &assignment->stage->mesh;
    const IrRoles *roles = context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        json_t *spec;
        TRY(spec_to_json(&spec, mesh, assignment->stored[i], plan_context_instruction(context, i), error));
        const IrParameter *parameter = &roles->parameters[p];
        json_t *row = json_pack(
            "{s:i, s:o, s:o, s:o}", "number", p, "path", plan_string_to_json(parameter->path), "output",
            parameter->output >= 0 ? json_integer(parameter->output) : json_null(), "spec", spec);
        set_memory(row, context, assignment->stage, p);
        json_array_append_new(parameters, row);
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        int32_t i = target_output_source(context, k);
        json_t *spec;
        TRY(spec_to_json(&spec, mesh, assignment->stored[i], plan_context_instruction(context, i), error));
        json_t *row = json_pack("{s:i, s:o}", "index", k, "spec", spec);
        for (int32_t p = 0; p < roles->parameter_count; p++)
            if (roles->parameters[p].output == k) set_memory(row, context, assignment->stage, p);
        json_array_append_new(outputs, row);
    }
    return AM_OK;
}

/* Returns whether an instruction is the result of the primitive that it is named after: XLA gives a broadcast
 * of an operand the name of its user. */
static bool is_result(const PlanContext *primary, int32_t i) {
    const IrInstruction *instruction = plan_context_instruction(primary, i);
    return primary->split_options->live[i] && primitive_of(instruction)[0] &&
           (instruction->opcode != IR_BROADCAST ||
            strcmp(primitive_of(instruction), "broadcast_in_dim") == 0);
}

/* Adds [primitive, shape, count in the module, number, spec] of an intermediate value: it is numbered among
 * the results of one primitive and shape. XLA decides on values without a name, with partial sums, and with
 * shards of unequal size. */
static AmStatus add_constraint(json_t *rows, const PlanContext *primary, const Mesh *mesh, SbpState state,
                               int32_t value, AmError *error) {
    const IrInstruction *instruction = plan_context_instruction(primary, value);
    const char *name = primitive_of(instruction);
    int32_t count = 0, number = 0;
    json_t *spec;
    AmError uneven;
    if (!is_result(primary, value)) return AM_OK;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (sbp_is_partial(state.axis[axis])) return AM_OK;
    if (target_check_even(TARGET_JAX, mesh, state, instruction, &uneven) != AM_OK) return AM_OK;
    for (int32_t i = 0; i < primary->rules->entry_count; i++) {
        const IrInstruction *other = plan_context_instruction(primary, i);
        bool is_alike = is_result(primary, i) && strcmp(primitive_of(other), name) == 0 &&
                        ir_shape_equal(&other->shape, &instruction->shape);
        if (i == value) number = count;
        count += is_alike;
    }
    TRY(spec_to_json(&spec, mesh, state, instruction, error));
    json_array_append_new(rows, json_pack("[s, o, i, i, o]", name, dimensions_to_json(&instruction->shape),
                                          count, number, spec));
    return AM_OK;
}

/* Adds the results of operators with an override. `is_named` [instruction of the module as read] marks those
 * that have a row. */
static AmStatus add_overrides(json_t *rows, bool *is_named, const PlanContext *context,
                              const Assignment *assignment, AmError *error) {
    const PlanStage *stage = assignment->stage;
    for (int32_t k = 0; k < stage->override_count; k++) {
        const PlanOverride *override = &stage->overrides[k];
        int32_t value = plan_number_of(context, override->instruction);
        if (value < 0 || value >= plan_context_primary(context)->rules->entry_count || is_named[value])
            continue;
        SbpState state = override->has_states ? override->states : assignment->stored[override->instruction];
        is_named[value] = true;
        TRY(add_constraint(rows, plan_context_primary(context), &stage->mesh, state, value, error));
    }
    return AM_OK;
}

/* Adds the values that an override or a decision names; a decision does so because no parameter has their
 * class. Without it XLA has no sharding for them, such as for the parts of a batch that a loop reads.
 */
static AmStatus add_constraints(json_t *rows, Arena *arena, const PlanContext *context,
                                const Assignment *assignment, AmError *error) {
    const PlanStage *stage = assignment->stage;
    bool *is_named = ARENA_ARRAY(arena, bool, context->rules->entry_count + 1);
    if (!is_named) return am_fail_memory(error, context->rules->entry_count);
    TRY(add_overrides(rows, is_named, context, assignment, error));
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            const PlanEntry *entry = &stage->axis_priorities[axis].entries[e];
            if (entry->class_index == PLAN_ANY_CLASS || entry->kind != PLAN_COMPUTE) continue;
            const DimensionClass *class = &context->classes->classes[entry->class_index];
            if (class->named_by_parameter || class->number >= context->rules->entry_count ||
                is_named[class->number])
                continue;
            TRY(add_constraint(rows, context, &stage->mesh, assignment->stored[class->number], class->number,
                               error));
        }
    return AM_OK;
}

static AmStatus export_stage(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    Arena arena = {0};
    Assignment *assignment;
    json_t *parameters = json_array(), *outputs = json_array(), *constraints = json_array();
    AmStatus status;
    TRY_OR_FAIL(plan_assign(&assignment, &arena, context, &plan->stages[0], error));
    TRY_OR_FAIL(target_check_pools(TARGET_JAX, context, assignment->stored, error));
    TRY_OR_FAIL(add_rows(parameters, outputs, context, assignment, error));
    TRY_OR_FAIL(add_constraints(constraints, &arena, context, assignment, error));
    *root = json_pack("{s:s, s:o, s:O, s:O}", "format", "automap-jax-1", "mesh",
                      mesh_to_json(&plan->stages[0], false), "parameters", parameters, "outputs", outputs);
    if (!*root) status = am_fail_memory(error, 0);
    else if (json_array_size(constraints) > 0) json_object_set(*root, "constraints", constraints);
fail:
    json_decref(parameters);
    json_decref(outputs);
    json_decref(constraints);
    arena_free(&arena);
    return status;
}

/* ---- stages and micro-batches ---- */

/* Finds the dimension of the examples of each parameter, -1: none. *knows_all: of labels that only index
 * results, too. A step that micro-batches cannot run has it where products have examples. */
static AmStatus find_examples(int32_t *dimensions, bool *knows_all, const PlanContext *primary,
                              int32_t micro_batches, AmError *error) {
    int64_t batch = micro_batches_limit(primary), parts = micro_batches;
    AmError refusal;
    if (micro_batches == 1)
        for (parts = 2; parts < batch && batch % parts != 0;) parts++;
    *knows_all = parts <= batch && parts <= MICRO_BATCHES_MOST;
    AmStatus status =
        *knows_all ? micro_batches_check_examples(dimensions, primary, (int32_t)parts, &refusal) : AM_OK;
    if (status != AM_OK && micro_batches > 1) {
        if (error) *error = refusal;
        return status;
    }
    *knows_all &= status == AM_OK;
    for (int32_t p = 0; p < primary->roles->parameter_count && !*knows_all; p++)
        dimensions[p] = micro_batches_dimension(primary, p);
    return AM_OK;
}

/* Adds one row for each parameter, with the part that owns it. Layers of a stacked parameter have a row each,
 * with the number and the output of the stack. */
static AmStatus add_parameters(json_t *rows, const PlanRanks *ranks, const int32_t *batch_dimensions,
                               AmError *error) {
    const PlanContext *context = ranks->context;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        int32_t part = ranks->map ? ranks->map->owner[p] : 0;
        const Assignment *assignment = ranks->assignments[part];
        json_t *spec;
        TRY(spec_to_json(&spec, &assignment->stage->mesh, assignment->stored[parameter->instruction],
                         plan_context_instruction(context, parameter->instruction), error));
        IrLayerPart source = plan_source_parameter(context, p);
        int32_t output = parameter->output;
        if (output >= 0) output = plan_source_output(context, output).original;
        json_t *row =
            json_pack("{s:i, s:o, s:s, s:o, s:i, s:o}", "number", source.original, "path",
                      plan_string_to_json(parameter->path), "role", ir_role_name(parameter->role), "output",
                      output >= 0 ? json_integer(output) : json_null(), "part", part, "spec", spec);
        set_memory(row, context, assignment->stage, p);
        if (source.layer >= 0) json_object_set_new(row, "layer", json_integer(source.layer));
        if (batch_dimensions[p] >= 0)
            json_object_set_new(row, "batch_dimension", json_integer(batch_dimensions[p]));
        json_array_append_new(rows, row);
    }
    return AM_OK;
}

/* Writes the passes of a stage in order: [[pass, chunk, micro-batch], ...]; those of one stage alternate. */
static AmStatus passes_to_json(json_t **rows, Arena *arena, const Plan *plan, int32_t stage, AmError *error) {
    static const char *const names[SCHEDULE_PASSES] = {"forward", "backward", "weights"};
    ScheduleKind kind = plan->stage_count == 1 ? SCHEDULE_1F1B : plan_schedule(plan);
    const ScheduledStage scheduled = {.kind = kind,
                                      .stages = plan->stage_count,
                                      .stage = stage,
                                      .micro_batches = plan->micro_batches,
                                      .chunks = plan->stages[stage].range_count};
    ScheduleIteration *iterations;
    int32_t count;
    TRY(schedule_iterations(&iterations, &count, arena, &scheduled, error));
    *rows = json_array();
    for (int32_t k = 0; k < count; k++)
        json_array_append_new(*rows, json_pack("[s, i, i]", names[iterations[k].pass], iterations[k].chunk,
                                               iterations[k].micro_batch));
    return AM_OK;
}

/* Forward operators of one of JAX's primitives with results of one shape. */
typedef struct PrimitiveGroup {
    const char *name;
    const IrShape *shape;
    int32_t count;      /* in the module */
    json_t *recomputed; /* numbers of those that a stage recomputes */
} PrimitiveGroup;

typedef struct PrimitiveGroups {
    PrimitiveGroup *rows;
    int32_t count, capacity;
} PrimitiveGroups;

static PrimitiveGroup *find_group(PrimitiveGroups *groups, Arena *arena, const IrInstruction *instruction) {
    const char *name = primitive_of(instruction);
    for (int32_t k = 0; k < groups->count; k++)
        if (strcmp(groups->rows[k].name, name) == 0 &&
            ir_shape_equal(groups->rows[k].shape, &instruction->shape))
            return &groups->rows[k];
    ARENA_RESERVE(arena, groups->rows, groups->count, groups->capacity);
    if (!groups->rows) return NULL;
    groups->rows[groups->count] = (PrimitiveGroup){.name = name, .shape = &instruction->shape};
    return &groups->rows[groups->count++];
}

/* Returns whether an instruction is a forward operator that rows number among those of its primitive and
 * shape. */
static bool is_numbered(const PlanContext *primary, int32_t i) {
    const IrInstruction *instruction = plan_context_instruction(primary, i);
    return primary->roles->phases[i] == IR_PHASE_FORWARD && primary->split_options->live[i] &&
           !stages_is_transparent(primary, i) && primitive_of(instruction)[0] &&
           instruction->shape.type != DTYPE_TUPLE;
}

/* Writes [[primitive, shape, count in the forward pass, [numbers of recomputed ones]], ...]: operators are
 * numbered in their order among those of one primitive and shape. */
static AmStatus recomputed_to_json(json_t **rows, Arena *arena, const PlanContext *primary,
                                   const PlanRecomputation *recompute, AmError *error) {
    PrimitiveGroups groups = {0};
    int32_t *range_of = ARENA_ARRAY(arena, int32_t, primary->rules->entry_count + 1);
    *rows = json_array();
    if (!range_of) return am_fail_memory(error, primary->rules->entry_count);
    if (recompute->range_count == 0) return AM_OK;
    TRY(recompute_ranges(range_of, arena, primary, recompute, error));
    for (int32_t i = 0; i < primary->rules->entry_count; i++) {
        const IrInstruction *instruction = plan_context_instruction(primary, i);
        if (!is_numbered(primary, i)) continue;
        PrimitiveGroup *group = find_group(&groups, arena, instruction);
        if (!group) return am_fail_memory(error, groups.capacity);
        if (!group->recomputed) group->recomputed = json_array();
        if (range_of[i] >= 0) json_array_append_new(group->recomputed, json_integer(group->count));
        group->count++;
    }
    for (int32_t k = 0; k < groups.count; k++) {
        const PrimitiveGroup *group = &groups.rows[k];
        json_t *row = json_pack("[s, o, i, o]", group->name, dimensions_to_json(group->shape), group->count,
                                group->recomputed);
        if (json_array_size(group->recomputed) > 0) json_array_append_new(*rows, row);
        else json_decref(row);
    }
    return AM_OK;
}

/* Adds [primitive, shape, count in the forward pass, number, part] of forward operators on a later part than
 * the parameters that they follow from, such as those of an attention whose first product is on the part
 * before. */
static AmStatus add_placed(json_t *rows, Arena *arena, const PlanContext *primary, const Plan *parts,
                           AmError *error) {
    const SplitOptions *options = primary->split_options;
    PrimitiveGroups groups = {0};
    StageSeeds seeds;
    int32_t count = primary->rules->entry_count;
    int32_t *number = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *last = ARENA_ARRAY(arena, int32_t, count + 1); /* [instruction]: part of its parameters */
    if (arena->failed) return am_fail_memory(error, count);
    TRY(stages_seed(&seeds, arena, primary, parts, error));
    for (int32_t p = 0; p < primary->roles->parameter_count; p++)
        last[primary->roles->parameters[p].instruction] = seeds.owner[p] > 0 ? seeds.owner[p] : 0;
    for (int32_t i = 0; i < count; i++) {
        for (int32_t k = options->first_operand[i]; k < options->first_operand[i + 1]; k++)
            if (last[options->operands[k]] > last[i]) last[i] = last[options->operands[k]];
        if (!is_numbered(primary, i)) continue;
        PrimitiveGroup *group = find_group(&groups, arena, plan_context_instruction(primary, i));
        if (!group) return am_fail_memory(error, groups.capacity);
        number[i] = group->count++;
    }
    for (int32_t i = 0; i < count; i++) {
        if (!is_numbered(primary, i) || !seeds.held[i] || stage_last(seeds.held[i]) <= last[i]) continue;
        const PrimitiveGroup *group = find_group(&groups, arena, plan_context_instruction(primary, i));
        json_array_append_new(rows,
                              json_pack("[s, o, i, i, i]", group->name, dimensions_to_json(group->shape),
                                        group->count, number[i], stage_last(seeds.held[i])));
    }
    return AM_OK;
}

static AmStatus add_stages(json_t *rows, Arena *arena, const PlanContext *primary, const Plan *plan,
                           AmError *error) {
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        json_t *passes, *recomputed;
        TRY(passes_to_json(&passes, arena, plan, s, error));
        json_t *row = json_pack("{s:o, s:b, s:b, s:o}", "mesh", mesh_to_json(stage, true), "recomputes",
                                stage->recompute.range_count > 0, "sharded_gradients",
                                storage_zero_level(stage) >= 2, "passes", passes);
        json_array_append_new(rows, row);
        AmStatus status = recomputed_to_json(&recomputed, arena, primary, &stage->recompute, error);
        json_object_set_new(row, "recomputed", recomputed);
        TRY(status);
    }
    return AM_OK;
}

static AmStatus export_stages(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    Arena arena = {0};
    PlanRanks ranks;
    json_t *parameters = json_array(), *stages = json_array(), *constraints = json_array();
    json_t *placed = json_array();
    AmStatus status;
    const PlanContext *primary = plan_context_primary(context);
    bool *is_named = ARENA_ARRAY(&arena, bool, primary->rules->entry_count + 1);
    int32_t *dimensions = ARENA_ARRAY(&arena, int32_t, primary->roles->parameter_count + 1);
    bool knows_examples;
    TRY_OR_FAIL(arena.failed ? am_fail_memory(error, primary->rules->entry_count) : AM_OK);
    TRY_OR_FAIL(find_examples(dimensions, &knows_examples, primary, plan->micro_batches, error));
    TRY_OR_FAIL(plan_ranks(&ranks, &arena, context, plan, error));
    for (int32_t part = 0; part < ranks.parts->stage_count; part++)
        TRY_OR_FAIL(target_check_pools(TARGET_JAX, ranks.context, ranks.assignments[part]->stored, error));
    TRY_OR_FAIL(add_parameters(parameters, &ranks, dimensions, error));
    for (int32_t part = 0; part < ranks.parts->stage_count; part++)
        TRY_OR_FAIL(add_overrides(constraints, is_named, ranks.context, ranks.assignments[part], error));
    TRY_OR_FAIL(add_stages(stages, &arena, primary, plan, error));
    if (ranks.map) TRY_OR_FAIL(add_placed(placed, &arena, primary, ranks.parts, error));
    *root = json_pack("{s:s, s:i, s:s, s:i, s:O, s:O}", "format", "automap-jax-2", "micro_batches",
                      plan->micro_batches, "schedule", plan->schedule, "parts", ranks.parts->stage_count,
                      "stages", stages, "parameters", parameters);
    if (!*root) status = am_fail_memory(error, 0);
    else if (json_array_size(constraints) > 0) json_object_set(*root, "constraints", constraints);
    if (*root && json_array_size(placed) > 0) json_object_set(*root, "placed", placed);
    if (*root && knows_examples)
        json_object_set_new(*root, "examples", json_integer((json_int_t)micro_batches_limit(primary)));
fail:
    json_decref(parameters);
    json_decref(stages);
    json_decref(constraints);
    json_decref(placed);
    arena_free(&arena);
    return status;
}

AmStatus export_jax(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    TRY(target_check_plan(TARGET_JAX, plan, error));
    bool has_one =
        plan->stage_count == 1 && plan->micro_batches == 1 && plan->stages[0].recompute.range_count == 0;
    bool in_order = true;
    for (int32_t d = 0; d < plan->stages[0].mesh.device_count; d++)
        in_order = in_order && plan->stages[0].devices[d] == d;
    bool is_split = plan_context_primary(context)->layer_map; /* its parameters are layers of the step's */
    return has_one && in_order && !is_split ? export_stage(root, context, plan, error)
                                            : export_stages(root, context, plan, error);
}
