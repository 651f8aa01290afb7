/* Roles of a module with separate layers: each part of a parameter has the parameter's role, and is updated
 * by the same part of its output.
 */
#include "ir/layers/layers.h"

AmStatus ir_split_roles(IrRoles **split_roles, Arena *arena, IrModule *split, const IrLayerMap *map,
                        const IrRoles *roles, AmError *error) {
    const IrComputation *entry = &split->computations[split->entry];
    IrRoles *made = ARENA_ARRAY(arena, IrRoles, 1);
    IrParameter *parameters = ARENA_ARRAY(arena, IrParameter, map->parameter_count + 1);
    int32_t *first = ARENA_ARRAY(arena, int32_t, roles->output_count + 1);  /* first part of each output */
    int32_t *stride = ARENA_ARRAY(arena, int32_t, roles->output_count + 1); /* from each part to the next */
    if (arena->failed) return am_fail_memory(error, map->parameter_count);
    for (int32_t k = map->output_count - 1; k >= 0; k--) {
        int32_t original = map->outputs[k].original;
        stride[original] = first[original] - k;
        first[original] = k;
    }
    for (int32_t k = 0; k < map->parameter_count; k++) {
        const IrLayerPart *part = &map->parameters[k];
        IrParameter *parameter = &parameters[k];
        *parameter = roles->parameters[part->original];
        parameter->number = k;
        parameter->instruction = entry->parameters[k];
        if (part->layer >= 0) parameter->path = arena_format(arena, "%s[%d]", parameter->path, part->layer);
        if (parameter->output >= 0)
            parameter->output =
                first[parameter->output] + (part->layer < 0 ? 0 : part->layer * stride[parameter->output]);
        if (!parameter->path) return am_fail_memory(error, map->parameter_count);
    }
    *made = (IrRoles){.parameters = parameters, .parameter_count = map->parameter_count, .loss = -1};
    if (roles->loss >= 0) made->loss = first[roles->loss];
    TRY(ir_complete_roles(made, arena, split, error));
    *split_roles = made;
    return AM_OK;
}
