/* Roles of a sample of layers: those of the module's parameters and outputs that the sample has.
 *
 * Parameters and outputs are numbered anew; phases and repeated operators are those of the instructions in
 * the module.
 */
#include "ir/layers/layer_run.h"
#include "ir/layers/sample_layers.h"

AmStatus ir_sample_roles(IrRoles **sample_roles, Arena *arena, const IrModule *sample,
                         const IrLayerSample *record, const IrRoles *roles, AmError *error) {
    const IrComputation *entry = &sample->computations[sample->entry];
    const IrInstruction *root = &sample->instructions[entry->root];
    int32_t count = sample->instruction_count;
    IrRoles *made = ARENA_ARRAY(arena, IrRoles, 1);
    IrParameter *parameters = ARENA_ARRAY(arena, IrParameter, record->parameter_count + 1);
    int32_t *number = ARENA_ARRAY(arena, int32_t, roles->output_count + 1);
    IrPhase *phases = ARENA_ARRAY(arena, IrPhase, count + 1);
    int32_t *repeats = roles->repeats ? ARENA_ARRAY(arena, int32_t, count + 1) : NULL;
    int32_t *made_of = ARENA_ARRAY(arena, int32_t, record->from_count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < roles->output_count; k++) number[k] = LAYER_NONE;
    for (int32_t i = 0; i < record->from_count; i++) made_of[i] = LAYER_NONE;
    for (int32_t i = 0; i < count; i++) made_of[record->origins[i]] = i;
    for (int32_t k = 0; k < record->output_count; k++) number[record->outputs[k]] = k;
    for (int32_t p = 0; p < record->parameter_count; p++) {
        parameters[p] = roles->parameters[record->parameters[p]];
        parameters[p].number = p;
        parameters[p].instruction = entry->parameters[p];
        parameters[p].output = record->updates[p];
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t repeated = repeats ? roles->repeats[record->origins[i]] : LAYER_NONE;
        phases[i] = roles->phases[record->origins[i]];
        if (repeats) repeats[i] = repeated >= 0 ? made_of[repeated] : LAYER_NONE;
    }
    *made = (IrRoles){.parameters = parameters,
                      .parameter_count = record->parameter_count,
                      .outputs = (int32_t *)root->operands,
                      .output_count = record->output_count,
                      .loss = roles->loss >= 0 ? number[roles->loss] : LAYER_NONE,
                      .phases = phases,
                      .repeats = repeats};
    *sample_roles = made;
    return AM_OK;
}
