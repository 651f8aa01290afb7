/* A body's element k is the same in every iteration if its root returns it unchanged. Its value is then that
 * before the loop, which may be an element of an outer loop's body. A body that several loops share is left
 * out. Values of few element-wise operators on constants and indices are cheap to compute again inside of an
 * attention operator. */
#include "ir/attention/loop_constants.h"

enum { MOST_DEPTH = 16 };

typedef struct ConstantFinder {
    const IrModule *module;
    int32_t *same;
    int8_t *is_closed; /* [instruction]: 1, 0, or -1: unknown */
    int32_t *callers;  /* [computation] */
} ConstantFinder;

/* Returns whether a value depends on constants and indices alone, by way of few operators. */
static bool is_closed(ConstantFinder *self, int32_t i, int32_t depth) {
    const IrInstruction *instruction = &self->module->instructions[i];
    if (self->is_closed[i] >= 0) return self->is_closed[i];
    if (depth > MOST_DEPTH || instruction->called_count > 0) return false;
    if (instruction->opcode == IR_IOTA) return instruction->shape.rank == 1;
    if (instruction->opcode == IR_CONSTANT) return ir_shape_elements(&instruction->shape) == 1;
    bool keeps = ir_is_elementwise(instruction->opcode) || instruction->opcode == IR_BROADCAST ||
                 instruction->opcode == IR_RESHAPE || instruction->opcode == IR_TRANSPOSE ||
                 instruction->opcode == IR_COPY;
    for (int32_t k = 0; keeps && k < instruction->operand_count; k++)
        keeps = is_closed(self, instruction->operands[k], depth + 1);
    self->is_closed[i] = keeps;
    return keeps;
}

/* Elements of the body of one loop. */
static void find_in_loop(ConstantFinder *self, const IrInstruction *loop) {
    const IrInstruction *instructions = self->module->instructions;
    const IrComputation *body = &self->module->computations[loop->called[0]];
    const IrInstruction *before = &instructions[loop->operands[0]], *root = &instructions[body->root];
    if (before->opcode != IR_TUPLE || root->opcode != IR_TUPLE || self->callers[loop->called[0]] > 1) return;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *element = &instructions[i];
        if (element->opcode != IR_GET_TUPLE_ELEMENT ||
            instructions[element->operands[0]].opcode != IR_PARAMETER)
            continue;
        int64_t k = element->attributes->tuple_index;
        if (k >= root->operand_count || k >= before->operand_count) continue;
        const IrInstruction *next = &instructions[root->operands[k]];
        bool is_unchanged = next->opcode == IR_GET_TUPLE_ELEMENT &&
                            next->operands[0] == element->operands[0] && next->attributes->tuple_index == k;
        /* The operand may itself be a value that outer loops do not change. */
        int32_t operand = before->operands[k],
                outside = self->same[operand] >= 0 ? self->same[operand] : operand;
        if (is_unchanged && is_closed(self, outside, 0)) self->same[i] = outside;
    }
}

AmStatus ir_find_loop_constants(int32_t **same, Arena *arena, const IrModule *canonical, const bool *is_body,
                                AmError *error) {
    Arena scratch = {0};
    int32_t count = canonical->instruction_count;
    ConstantFinder self = {.module = canonical,
                           .same = ARENA_ARRAY(arena, int32_t, count + 1),
                           .is_closed = ARENA_ARRAY(&scratch, int8_t, count + 1),
                           .callers = ARENA_ARRAY(&scratch, int32_t, canonical->computation_count + 1)};
    *same = self.same;
    AmStatus status = arena->failed || scratch.failed ? am_fail_memory(error, count) : AM_OK;
    for (int32_t i = 0; i < count && status == AM_OK; i++) self.same[i] = self.is_closed[i] = -1;
    for (int32_t i = 0; i < count && status == AM_OK; i++)
        for (int32_t k = 0; k < canonical->instructions[i].called_count; k++)
            self.callers[canonical->instructions[i].called[k]]++;
    /* Outer loops come before inner ones. */
    for (int32_t c = 0; c < canonical->computation_count && status == AM_OK; c++)
        for (int32_t i = canonical->computations[c].first;
             is_body[c] && i < canonical->computations[c].first + canonical->computations[c].count; i++)
            if (canonical->instructions[i].opcode == IR_WHILE)
                find_in_loop(&self, &canonical->instructions[i]);
    arena_free(&scratch);
    return status;
}
