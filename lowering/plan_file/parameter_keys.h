/* Parameters by their paths, in every form of the layers.
 *
 * A model keeps its layers apart or in stacks, and the index of a layer has another place in the path:
 *
 *     params['layers'][3]['kernel'], params['layer_3']['kernel']    one parameter for each layer
 *     params['layers']['kernel'][3]                                 part 3 of a split stack
 *     params['layers']['kernel']                                    the stack
 *
 * A key is the path without one of its numbers, and that number: (params/layer/kernel, 3) above. Two
 * parameters are the same if their paths, or one key of each, agree.
 */
#ifndef LOWERING_PLAN_FILE_PARAMETER_KEYS_H
#define LOWERING_PLAN_FILE_PARAMETER_KEYS_H

#include "ir/analysis/roles.h"

typedef struct ParameterKeys {
    struct ParameterKey *keys; /* [count] ascending */
    int32_t count;
} ParameterKeys;

/* Finds the keys of all parameters. The arena owns them. */
AmStatus parameter_keys_make(ParameterKeys *keys, Arena *arena, const IrRoles *roles, AmError *error);

/* Returns whether some parameters are layers 0 and 1 of one key. */
bool parameter_keys_have_layers(const ParameterKeys *keys);

/* Returns the number of the parameter with this path; -1: none has it, or several do. */
int32_t parameter_keys_find(const ParameterKeys *keys, const char *path);

/* Finds the parameters that are the layers of the stack with this path, in the order of their layers, as
 * (*layers)[0..count). Returns 0 where they are not layers 0, 1, ... once each. `*layers` is in the arena. */
int32_t parameter_keys_layers(const ParameterKeys *keys, Arena *arena, int32_t **layers, const char *path);

#endif
