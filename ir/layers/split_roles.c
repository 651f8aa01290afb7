/* Roles of a module with separate layers: each part of a parameter has the parameter's role, and is updated
 * by the same part of its output. Its path is that of a model with one tree for each layer: layer 3 of
 * params['decoder']['up'] is params['decoder'][3]['up'] if other stacks are in params['decoder'].
 */
#include "ir/layers/layers.h"

#include <string.h>

/* Returns the bytes that begin the path of the stacks in one tree, to which layer `k` of the first one
 * belongs: the parts of one layer follow one another. All of the path if it is the only stack. */
static size_t tree_length(const IrLayerMap *map, const IrRoles *roles, int32_t k) {
    const char *path = roles->parameters[map->parameters[k].original].path;
    size_t length = strlen(path);
    for (int32_t next = k + 1; next < map->parameter_count && map->parameters[next].layer == 0; next++) {
        const char *other = roles->parameters[map->parameters[next].original].path;
        size_t common = 0;
        for (size_t at = 0; at <= length && path[at] == other[at]; at++)
            if (path[at] == '[' || path[at] == '.' || path[at] == '\0') common = at;
        length = common;
    }
    return length;
}

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
    size_t tree = 0;
    for (int32_t k = 0; k < map->parameter_count; k++) {
        const IrLayerPart *part = &map->parameters[k];
        IrParameter *parameter = &parameters[k];
        *parameter = roles->parameters[part->original];
        parameter->number = k;
        parameter->instruction = entry->parameters[k];
        bool is_first = part->layer == 0 && (k == 0 || part[-1].layer != 0);
        if (is_first) tree = tree_length(map, roles, k);
        if (part->layer >= 0)
            parameter->path = arena_format(arena, "%.*s[%d]%s", (int)tree, parameter->path, part->layer,
                                           parameter->path + tree);
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
