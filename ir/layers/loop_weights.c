/* The weights that a loop reads, from the elements of its carried tuple: an element is stacked if the body
 * takes a row of it by a dynamic slice.
 */
#include "ir/layers/loop_weights.h"

#include "ir/layers/layer_values.h"

AmStatus ir_loop_weights(IrLoopWeights *weights, Arena *arena, const IrModule *module, const IrRoles *roles,
                         int32_t loop, AmError *error) {
    const IrInstruction *instruction = &module->instructions[loop];
    const IrInstruction *start = &module->instructions[instruction->operands[0]];
    bool is_tuple = start->opcode == IR_TUPLE;
    int32_t count = is_tuple ? start->operand_count : 1;
    bool *is_sliced = ARENA_ARRAY(arena, bool, count + 1);
    *weights = (IrLoopWeights){.first_same = -1};
    if (!is_sliced) return am_fail_memory(error, count);
    if (is_tuple) split_mark_sliced(module, instruction, is_sliced);
    for (int32_t k = 0; k < count; k++) {
        int32_t parameter =
            split_parameter_of(module, is_tuple ? start->operands[k] : instruction->operands[0]);
        if (parameter < 0 || roles->parameters[parameter].role != IR_ROLE_WEIGHT) continue;
        if (is_sliced[k]) weights->row_count++;
        else if (weights->same_count++ == 0) weights->first_same = parameter;
    }
    return AM_OK;
}
