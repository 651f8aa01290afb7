/* Data flow of the canonical module: one forward pass resolves tuple elements; it
 * relies on the topological numbering. */
#include "ir/dataflow.h"

bool ir_same_dimensions(const IrShape *a, const IrShape *b) {
    if (a->type == DTYPE_TUPLE || b->type == DTYPE_TUPLE || a->rank != b->rank) return false;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->dimensions[d] != b->dimensions[d]) return false;
    return true;
}

bool ir_is_scalar(const IrShape *shape) {
    return shape->type != DTYPE_TUPLE && shape->rank == 0;
}

int32_t ir_dataflow_element(const IrDataflow *flow, int32_t value, int64_t k) {
    const IrInstruction *instruction = &flow->module->instructions[value];
    if (instruction->opcode != IR_TUPLE || k < 0 || k >= instruction->operand_count) return -1;
    return flow->sources[instruction->operands[k]];
}

int32_t ir_dataflow_operand(const IrDataflow *flow, const IrInstruction *instruction, int32_t k) {
    return flow->sources[instruction->operands[k]];
}

AmStatus ir_dataflow_make(IrDataflow *flow, Arena *arena, const IrModule *canonical, AmError *error) {
    const IrComputation *entry = &canonical->computations[canonical->entry];
    const IrInstruction *root = &canonical->instructions[entry->root];
    bool packed = root->opcode == IR_TUPLE;
    *flow = (IrDataflow){
        .module = canonical, .count = entry->count, .output_count = packed ? root->operand_count : 1};
    flow->sources = ARENA_ARRAY(arena, int32_t, canonical->instruction_count);
    flow->outputs = ARENA_ARRAY(arena, int32_t, flow->output_count);
    flow->output_values = ARENA_ARRAY(arena, int32_t, flow->output_count);
    if (!flow->sources || !flow->outputs || !flow->output_values)
        return am_fail_memory(error, (int64_t)canonical->instruction_count * 4);
    for (int32_t i = 0; i < canonical->instruction_count; i++) {
        const IrInstruction *instruction = &canonical->instructions[i];
        flow->sources[i] = i;
        if (instruction->opcode == IR_GET_TUPLE_ELEMENT) {
            int32_t tuple = flow->sources[instruction->operands[0]];
            int32_t element = ir_dataflow_element(flow, tuple, instruction->attributes->tuple_index);
            if (element >= 0) flow->sources[i] = element;
        } else if (instruction->opcode == IR_OPT_BARRIER && instruction->operand_count == 1) {
            flow->sources[i] = flow->sources[instruction->operands[0]];
        }
    }
    for (int32_t k = 0; k < flow->output_count; k++) {
        flow->outputs[k] = packed ? root->operands[k] : entry->root;
        flow->output_values[k] = flow->sources[flow->outputs[k]];
    }
    return AM_OK;
}
