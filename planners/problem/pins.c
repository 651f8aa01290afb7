/* Pins as prefixes of lists. Assignment of the prefixes alone shows
 * whether the pins hold, once for all plans: a pinned parameter has no dimension
 * in a class that could be listed after them. */
#include "planners/problem/pins.h"

#include "lowering/spmd/lower.h"

typedef struct Pinning {
    MeshPins *result;
    const PlanContext *context;
    const Mesh *mesh;
    const Assignment *assignment; /* of the prefixes */
} Pinning;

/* Returns whether a stored state splits the dimensions that a pin names; shards may be of unequal size. */
static bool is_so(const Mesh *mesh, SbpState stored, SbpState pinned) {
    bool is_same = true;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        is_same = is_same && stored.axis[axis] == pinned.axis[axis];
    return is_same;
}

/* Appends the first difference between the stored and the pinned state: an axis of one device, a split that
 * the other pins prevent, or a split that they cause. */
static void explain_conflict(Text *text, const Mesh *mesh, SbpState stored, SbpState pinned) {
    int32_t axis = 0;
    while (axis < mesh->axis_count && stored.axis[axis] == pinned.axis[axis]) axis++;
    if (axis == mesh->axis_count) return;
    const MeshAxis *of = &mesh->axes[axis];
    if (of->size == 1) text_append(text, "axis %s has one device", of->name);
    else if (sbp_is_split(pinned.axis[axis]))
        text_append(text, "the pins of other parameters prevent %s in dimension %d", of->name,
                    sbp_dimension(pinned.axis[axis]));
    else
        text_append(text, "the pins of other parameters set %s in dimension %d", of->name,
                    sbp_dimension(stored.axis[axis]));
}

static AmStatus pin_parameter(void *data, const PropagationPin *pin, const IrParameter *parameter,
                              SbpState state, AmError *error) {
    Pinning *self = data;
    const PlanContext *context = self->context;
    int32_t instruction = parameter->instruction;
    for (int32_t d = 0; d < context->canonical->instructions[instruction].shape.rank; d++) {
        int32_t class_index = classes_of(context->classes, context->rules, instruction, d);
        if (class_index >= 0) self->result->is_pinned[class_index] = true;
    }
    if (is_so(self->mesh, self->assignment->stored[instruction], state)) return AM_OK;
    Text mesh = {0};
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++)
        text_append(&mesh, " %s=%d", self->mesh->axes[axis].name, self->mesh->axes[axis].size);
    Text reason = {0};
    explain_conflict(&reason, self->mesh, self->assignment->stored[instruction], state);
    am_fail(error, AM_ERROR_INFEASIBLE, "", "pin \"%s=%s\": %s cannot have this sharding on mesh%s: %s",
            pin->pattern, pin->sharding, parameter->path, mesh.data ? mesh.data : "",
            reason.data ? reason.data : "");
    text_free(&reason);
    text_free(&mesh);
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
        for (int32_t k = 0; k < stage->lists[axis].count; k++)
            if (stage->lists[axis].entries[k].class_index >= 0)
                result->is_pinned[stage->lists[axis].entries[k].class_index] = true;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        int32_t instruction = context->roles->parameters[p].instruction;
        if (!propagation_is_kept(kept, instruction)) continue;
        for (int32_t d = 0; d < context->canonical->instructions[instruction].shape.rank; d++) {
            int32_t class_index = classes_of(context->classes, context->rules, instruction, d);
            if (class_index >= 0) result->is_pinned[class_index] = true;
        }
    }
    return AM_OK;
}

AmStatus pins_on_mesh(MeshPins *result, Arena *arena, const PlanContext *context, const Mesh *mesh,
                      const PropagationPin *pins, int32_t count, const KeptShardings *kept, bool is_even,
                      AmError *error) {
    *result = (MeshPins){.is_pinned = ARENA_ARRAY(arena, bool, context->classes->count),
                         .count = count + (kept ? 1 : 0)};
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    Pinning self = {.result = result, .context = context, .mesh = mesh};
    Assignment *assignment;
    Arena scratch = {0};
    if (arena->failed) return am_fail_memory(error, context->classes->count);
    if (result->count == 0) return AM_OK;
    stage->mesh = *mesh;
    stage->is_even = is_even;
    TRY(propagation_pin_lists(stage, arena, context, pins, count, error));
    if (kept) TRY(keep_shardings(result, arena, context, stage, kept, error));
    AmStatus status = plan_assign(&assignment, &scratch, context, stage, error);
    if (status == AM_OK) {
        self.assignment = assignment;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) result->prefix[axis] = stage->lists[axis];
        status = propagation_for_each_pinned(context, mesh, pins, count, pin_parameter, &self, error);
    }
    arena_free(&scratch);
    return status;
}
