/* Pins as prefixes of axis priorities. Assignment of the prefixes alone shows
 * whether the pins hold, once for all plans: a pinned parameter has no dimension
 * in a class that could be listed after them. */
#include "planners/problem/mesh_pins.h"

#include <string.h>

#include "lowering/spmd/lower_chunks.h"
#include "lowering/spmd/ranks.h"
#include "propagation/stages/stages.h"

/* Returns whether a stored state splits the dimensions that a pin names; shards may be of unequal size. */
static bool is_so(const Mesh *mesh, SbpState stored, SbpState pinned) {
    bool is_same = true;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        is_same = is_same && stored.axis[axis] == pinned.axis[axis];
    return is_same;
}

/* Excludes every dimension of a parameter from the class sets. */
static void exclude_parameter(MeshPins *result, const PlanContext *context, int32_t instruction) {
    for (int32_t d = 0; d < plan_context_instruction(context, instruction)->shape.rank; d++) {
        int32_t class_index = classes_of(context->classes, context->rules, instruction, d);
        if (class_index >= 0) result->is_pinned[class_index] = true;
    }
}

/* Fails because a parameter is stored in another state than its pin requires. The error names the first
 * difference: an axis of one device, a split that the other pins prevent, or a split that they cause. */
static AmStatus fail_state(const PinnedParameter *pinned, const IrParameter *parameter, const Mesh *mesh,
                           SbpState stored, AmError *error) {
    char label[PIN_LABEL_BYTES];
    Text sizes = {0}, reason = {0};
    int32_t axis = 0;
    while (axis < mesh->axis_count && stored.axis[axis] == pinned->state.axis[axis]) axis++;
    if (axis < mesh->axis_count) {
        const MeshAxis *of = &mesh->axes[axis];
        Sbp wanted = pinned->state.axis[axis];
        if (of->size == 1) text_append(&reason, "axis %s has one device", of->name);
        else if (sbp_is_split(wanted))
            text_append(&reason, "the pins of other parameters prevent %s in dimension %d", of->name,
                        sbp_dimension(wanted));
        else
            text_append(&reason, "the pins of other parameters set %s in dimension %d", of->name,
                        sbp_dimension(stored.axis[axis]));
    }
    mesh_append(&sizes, mesh, " ");
    am_fail(error, AM_ERROR_INFEASIBLE, "", "%s: %s cannot have this sharding on mesh %s: %s",
            pin_label(label, pinned->pin), parameter->path, sizes.data ? sizes.data : "",
            reason.data ? reason.data : "");
    text_free(&reason);
    text_free(&sizes);
    return AM_ERROR_INFEASIBLE;
}

/* Excludes the decisions of kept shardings: their splits, and every dimension of a kept parameter. */
static AmStatus keep_shardings(MeshPins *result, Arena *arena, const PlanContext *context, PlanStage *stage,
                               const KeptShardings *kept, AmError *error) {
    AmWarnings warnings = {.arena = arena};
    TRY(propagation_keep_shardings(stage, arena, context, kept, &warnings, error));
    result->overrides = stage->overrides;
    result->override_count = stage->override_count;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t k = 0; k < stage->axis_priorities[axis].count; k++)
            if (stage->axis_priorities[axis].entries[k].class_index >= 0)
                result->is_pinned[stage->axis_priorities[axis].entries[k].class_index] = true;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        int32_t instruction = context->roles->parameters[p].instruction;
        if (propagation_is_kept(kept, instruction)) exclude_parameter(result, context, instruction);
    }
    return AM_OK;
}

/* Puts the pins into the axis priorities of a stage. A pin that the mesh refuses is left out: it becomes a
 * refusal. */
static AmStatus list_pins(PinnedParameter *pinned, PlanStage *stage, Arena *arena, const PlanContext *context,
                          const PinSet *set, AmError *error) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        PinnedParameter *of = &pinned[p];
        AmError refusal = {0};
        if (set->is_held && !set->is_held[p]) of->pin = NULL;
        if (!of->pin) continue;
        if (set->fails && sbp_is_split(of->state.axis[0])) sbp_set(&of->state, 0, SBP_B);
        if (of->refusal) continue;
        AmStatus status = propagation_pin_parameter(stage, arena, context, of->pin,
                                                    &context->roles->parameters[p], of->state, &refusal);
        if (status == AM_OK) continue;
        if (status != AM_ERROR_INFEASIBLE) return am_pass_error(status, &refusal, error);
        of->refusal = arena_copy_string(arena, refusal.text);
        if (!of->refusal) return am_fail_memory(error, (int64_t)sizeof refusal.text);
    }
    return AM_OK;
}

/* Compares the states that the axis priorities give with those that the pins require. */
static AmStatus check_states(const PinnedParameter *pinned, const PlanContext *context, const Mesh *mesh,
                             const Assignment *assignment, bool *fails, AmError *error) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        SbpState stored = assignment->stored[parameter->instruction];
        if (!pinned[p].pin) continue;
        bool holds = !pinned[p].refusal && is_so(mesh, stored, pinned[p].state);
        if (fails) fails[p] = !holds;
        if (fails || holds) continue;
        if (pinned[p].refusal) return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", pinned[p].refusal);
        return fail_state(&pinned[p], parameter, mesh, stored, error);
    }
    return AM_OK;
}

/* Appends overrides for the pinned values of the set. Without knowledge of the first axis it only notes
 * values that cannot be split. */
static AmStatus pin_values(MeshPins *result, const PinnedValue *values, int32_t count, Arena *arena,
                           const PlanContext *context, const Mesh *mesh, const PinSet *set, AmError *error) {
    PlanOverride *overrides = ARENA_ARRAY(arena, PlanOverride, result->override_count + count + 1);
    if (!overrides) return am_fail_memory(error, (int64_t)sizeof *overrides * count);
    for (int32_t k = 0; k < result->override_count; k++) overrides[k] = result->overrides[k];
    result->overrides = overrides;
    for (int32_t k = 0; k < count; k++) {
        PinnedValue value = values[k];
        AmError refusal = {0};
        if (set->is_computed && !set->is_computed[value.instruction]) continue;
        if (set->value_fails) sbp_set(&value.state, 0, SBP_B);
        AmStatus status = value_pin_check(&value, context, mesh, set->is_even, &refusal);
        if (set->value_fails) {
            set->value_fails[value.instruction] = status != AM_OK;
            continue;
        }
        TRY(am_pass_error(status, &refusal, error));
        int32_t at = 0;
        while (at < result->override_count && overrides[at].instruction != value.instruction) at++;
        if (at == result->override_count) result->override_count++;
        overrides[at] = (PlanOverride){
            .instruction = value.instruction, .has_states = true, .is_pinned = true, .states = value.state};
    }
    return AM_OK;
}

/* Compares the states of values with those that their pins require; `is_computed` NULL: all. */
static AmStatus check_values(const PinnedValue *values, int32_t count, const PlanContext *context,
                             const Mesh *mesh, const Assignment *assignment, const bool *is_computed,
                             AmError *error) {
    for (int32_t k = 0; k < count; k++) {
        int32_t i = values[k].instruction;
        const IrInstruction *instruction = plan_context_instruction(context, i);
        char label[PIN_LABEL_BYTES];
        bool is_pinned = assignment->pinned && assignment->pinned[i];
        if (is_computed && !is_computed[i]) continue;
        if (is_pinned && is_so(mesh, assignment->stored[i], values[k].state)) continue;
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s: %s cannot have this sharding in the plan",
                       pin_label(label, values[k].pin),
                       instruction->op_name[0] ? instruction->op_name : instruction->name);
    }
    return AM_OK;
}

AmStatus pins_on_mesh(MeshPins *result, Arena *arena, const PlanContext *context, const Mesh *mesh,
                      const PinSet *set, AmError *error) {
    *result = (MeshPins){.is_pinned = ARENA_ARRAY(arena, bool, context->classes->count)};
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    PinnedParameter *pinned;
    PinnedValue *values;
    Assignment *assignment;
    Arena scratch = {0};
    int32_t value_count;
    if (arena->failed) return am_fail_memory(error, context->classes->count);
    if (set->count == 0 && !set->kept) return AM_OK;
    stage->mesh = *mesh;
    stage->is_even = set->is_even;
    TRY(propagation_resolve_pins(&pinned, arena, context, mesh, set->pins, set->count, error));
    TRY(list_pins(pinned, stage, arena, context, set, error));
    if (set->count > 0) result->parameters = pinned;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (!pinned[p].pin) continue;
        exclude_parameter(result, context, context->roles->parameters[p].instruction);
        result->count++;
    }
    if (set->kept) TRY(keep_shardings(result, arena, context, stage, set->kept, error));
    result->count += set->kept != NULL;
    TRY(value_pins_find(&values, &value_count, arena, context, mesh, set->pins, set->count, error));
    TRY(pin_values(result, values, value_count, arena, context, mesh, set, error));
    if (result->count + result->override_count == 0) return AM_OK;
    stage->overrides = result->overrides;
    stage->override_count = result->override_count;
    AmStatus status = plan_assign(&assignment, &scratch, context, stage, error);
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        result->prefix[axis] = stage->axis_priorities[axis];
    if (status == AM_OK) status = check_states(pinned, context, mesh, assignment, set->fails, error);
    if (status == AM_OK && !set->value_fails)
        status = check_values(values, value_count, context, mesh, assignment, set->is_computed, error);
    arena_free(&scratch);
    return status;
}

bool pins_hold(const MeshPins *pins, const PlanContext *context, const Assignment *assignment) {
    const Mesh *mesh = &assignment->stage->mesh;
    bool holds = true;
    for (int32_t p = 0; pins->parameters && p < context->roles->parameter_count; p++) {
        SbpState stored = assignment->stored[context->roles->parameters[p].instruction];
        if (pins->parameters[p].pin) holds &= is_so(mesh, stored, pins->parameters[p].state);
    }
    for (int32_t k = 0; k < pins->override_count; k++) {
        const PlanOverride *pinned = &pins->overrides[k];
        if (pinned->is_pinned) holds &= is_so(mesh, assignment->stored[pinned->instruction], pinned->states);
    }
    return holds;
}

/* Returns whether a pin names an axis that has one device, which is reason enough to refuse it. */
static bool names_single_axis(const PinSet *set, const Mesh *mesh) {
    for (int32_t k = 0; k < set->count; k++)
        for (int32_t a = 0; a < mesh->axis_count; a++)
            if (mesh->axes[a].size == 1 && strstr(set->pins[k].sharding, mesh->axes[a].name)) return true;
    return false;
}

/* Returns whether each split(K) of the set has an axis of K devices. */
static bool has_numbers(const PinSet *set, const Mesh *mesh) {
    for (int32_t k = 0; k < set->count; k++) {
        int32_t number = pin_split_number(&set->pins[k]);
        bool has_axis = number < 2;
        for (int32_t a = 0; a < mesh->axis_count; a++) has_axis |= mesh->axes[a].size == number;
        if (!has_axis) return false;
    }
    return true;
}

/* Looks for a mesh data x model of a stage on which all pins of the set hold. `*on` is the last one tried,
 * with its reason in `refusal`: of those that have axes of the numbers of split(K), devices on the named
 * axes, that divide the devices, and of two proper axes, if there are. It is without devices where a mesh
 * takes the pins, or where there is none.
 */
static AmStatus find_mesh(Mesh *on, AmError *refusal, const PlanContext *context, const PinSet *set,
                          const Degrees *degrees, int32_t devices, AmError *error) {
    enum { ALL_WIDTHS = 16 }; /* above it only those that divide the devices, and powers of two */
    int32_t most = degrees->stages > 0 ? devices - degrees->stages + 1 : devices;
    int32_t shown = 0; /* the rank of `*on` */
    *on = (Mesh){0};
    for (int32_t width = 1; width <= most; width++) {
        bool is_likely = width <= ALL_WIDTHS || devices % width == 0 || (width & (width - 1)) == 0;
        if (!is_likely || !degrees_allow_width(degrees, width)) continue;
        for (int32_t model = 1; model <= width; model++) {
            if (width % model != 0 || !degrees_allow_mesh(degrees, width, model)) continue;
            const Mesh mesh = {
                .axis_count = 2,
                .axes = {{.name = "data", .size = width / model}, {.name = "model", .size = model}},
                .device_count = width};
            MeshPins on_mesh;
            AmError own = {0};
            Arena arena = {0};
            AmStatus status = pins_on_mesh(&on_mesh, &arena, context, &mesh, set, &own);
            arena_free(&arena);
            if (status == AM_OK) {
                *on = (Mesh){0};
                return AM_OK;
            }
            if (status != AM_ERROR_INFEASIBLE) return am_pass_error(status, &own, error);
            int32_t rank = 8 * has_numbers(set, &mesh) + 4 * !names_single_axis(set, &mesh) +
                           2 * (devices % width == 0) + (model > 1 && (model < width || width == 2));
            if (rank < shown) continue;
            shown = rank;
            *on = mesh;
            *refusal = own;
        }
    }
    return AM_OK;
}

AmStatus pins_check_meshes(const PlanContext *context, const PropagationPin *pins, int32_t count,
                           const Degrees *degrees, bool is_even, int32_t devices, AmError *error) {
    bool has_stages = false; /* pins may be on different ones */
    for (int32_t k = 0; k < count; k++) has_stages |= pin_kind(&pins[k]) >= PIN_STAGE;
    for (int32_t k = 0; k < count + !has_stages && count > 0; k++) {
        bool is_all = k == count; /* after each one alone */
        const PinSet set = {
            .pins = is_all ? pins : &pins[k], .count = is_all ? count : 1, .is_even = is_even};
        AmError refusal = {0};
        Mesh on;
        if (!is_all && pin_kind(&pins[k]) >= PIN_STAGE) continue;
        TRY(find_mesh(&on, &refusal, context, &set, degrees, devices, error));
        if (on.device_count == 0) continue;
        return am_fail(error, AM_ERROR_INFEASIBLE, context->module->source,
                       "no mesh of data x model of a stage takes %s; on data=%d,model=%d: %s",
                       is_all ? "all pins (expected stages between them, or more --evaluations)" : "the pin",
                       on.axes[0].size, on.axes[1].size, refusal.text);
    }
    return AM_OK;
}

/* ---- plans ---- */

AmStatus pins_find_contents(StageContents **contents, Arena *arena, const Plan *plan, AmError *error) {
    const PlanContext *context = plan->context;
    const Plan *parts = plan;
    int32_t parameters = context->roles->parameter_count, values = context->rules->count;
    StageContents *stages = ARENA_ARRAY(arena, StageContents, plan->stage_count);
    StageMap *map;
    if (!stages) return am_fail_memory(error, plan->stage_count);
    for (int32_t s = 0; s < plan->stage_count; s++)
        stages[s] =
            (StageContents){ARENA_ARRAY(arena, bool, parameters + 1), ARENA_ARRAY(arena, bool, values + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)plan->stage_count * (parameters + values));
    if (plan->stages[0].range_count > 1) TRY(plan_of_chunks(&parts, arena, plan, error));
    TRY(stages_assign(&map, arena, context, parts, error));
    for (int32_t p = 0; p < parameters; p++) stages[map->owner[p] % plan->stage_count].parameters[p] = true;
    for (int32_t s = 0; s < map->stage_count; s++)
        for (int32_t i = 0; i < values; i++)
            if (stage_in(map->held[i], s)) stages[s % plan->stage_count].values[i] = true;
    *contents = stages;
    return AM_OK;
}

AmStatus pins_check_plan(const PropagationPin *pins, int32_t count, const Plan *plan, AmError *error) {
    const PlanContext *context = plan->context;
    bool has_states = false;
    PlanRanks ranks;
    Arena arena = {0};
    AmStatus status;
    for (int32_t k = 0; k < count; k++) has_states |= pin_kind(&pins[k]) < PIN_STAGE;
    if (!has_states) return AM_OK;
    TRY_OR_FAIL(plan_ranks(&ranks, &arena, context, plan, error));
    bool *is_computed = ranks.map ? ARENA_ARRAY(&arena, bool, context->rules->count + 1) : NULL;
    if (arena.failed) TRY_OR_FAIL(am_fail_memory(error, context->rules->count));
    for (int32_t s = 0; s < ranks.parts->stage_count; s++) {
        const Mesh *mesh = &ranks.parts->stages[s].mesh;
        const Assignment *assignment = ranks.assignments[s];
        PinnedParameter *pinned;
        PinnedValue *values;
        int32_t value_count;
        TRY_OR_FAIL(propagation_resolve_pins(&pinned, &arena, context, mesh, pins, count, error));
        for (int32_t p = 0; ranks.map && p < context->roles->parameter_count; p++)
            if (ranks.map->owner[p] != s) pinned[p].pin = NULL;
        for (int32_t i = 0; ranks.map && i < context->rules->count; i++)
            is_computed[i] = stage_in(ranks.map->held[i], s);
        TRY_OR_FAIL(check_states(pinned, context, mesh, assignment, NULL, error));
        TRY_OR_FAIL(value_pins_find(&values, &value_count, &arena, context, mesh, pins, count, error));
        TRY_OR_FAIL(check_values(values, value_count, context, mesh, assignment, is_computed, error));
    }
fail:
    arena_free(&arena);
    return status;
}
