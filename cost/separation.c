/* Paths over steps of their own, 64 of these at a time; see separation.h.
 *
 * Of each instruction one word says which of 64 such steps wait for it, and one which it waits for; both are
 * found in one pass over the module. Where the words of an operand and of its reader meet, there is a path
 * from the one to the other over that step.
 */
#include "cost/separation.h"

enum { STEPS_AT_ONCE = 64 };

bool separation_reduces_ones(const IrModule *module, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    return instruction->opcode == IR_REDUCE && instruction->shape.type != DTYPE_TUPLE &&
           ir_shape_elements(&instruction->shape) ==
               ir_shape_elements(&module->instructions[instruction->operands[0]].shape);
}

bool separation_is_element_wise(const IrModule *module, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    return ir_is_elementwise(instruction->opcode) && instruction->opcode != IR_COPY &&
           instruction->operand_count <= 3;
}

/* Runs as a step of its own in every plan: is no view, is not made where it is used, and no transpose, which
 * may become part of a product. */
static bool is_step(const PlanContext *context, int32_t i) {
    const IrModule *module = context->canonical;
    if (context->rules->on_demand[i] || separation_is_element_wise(module, i)) return false;
    switch (module->instructions[i].opcode) {
    case IR_PARAMETER:
    case IR_CONSTANT:
    case IR_TUPLE:
    case IR_GET_TUPLE_ELEMENT:
    case IR_COPY:
    case IR_RESHAPE:
    case IR_BITCAST:
    case IR_BROADCAST:
    case IR_TRANSPOSE:
    case IR_OPT_BARRIER: return false;
    default: return !separation_reduces_ones(module, i);
    }
}

typedef struct Paths {
    const PlanContext *context;
    uint64_t *is_one;     /* [instruction]: its own bit, if it is among the steps looked at */
    uint64_t *waited_for; /* [instruction]: steps that wait for it */
    uint64_t *waits_for;  /* [instruction]: steps that it waits for */
} Paths;

static void find_paths(const Paths *self) {
    const Choices *choices = self->context->choices;
    int32_t count = self->context->rules->count;
    for (int32_t i = 0; i < count; i++) {
        self->waited_for[i] = self->waits_for[i] = 0;
        for (int32_t k = choices->first_operand[i]; k < choices->first_operand[i + 1]; k++)
            self->waits_for[i] |= self->waits_for[choices->operands[k]] | self->is_one[choices->operands[k]];
    }
    for (int32_t i = count - 1; i >= 0; i--)
        for (int32_t k = choices->first_operand[i]; k < choices->first_operand[i + 1]; k++)
            self->waited_for[choices->operands[k]] |= self->waited_for[i] | self->is_one[i];
}

static void mark_separated(const Paths *self, bool *is_separated) {
    const Choices *choices = self->context->choices;
    const IrModule *module = self->context->canonical;
    for (int32_t n = 0; n < choices->decided_count; n++) {
        int32_t i = choices->decided[n];
        if (!separation_is_element_wise(module, i)) continue;
        for (int32_t k = choices->first_operand[i]; k < choices->first_operand[i + 1]; k++) {
            int32_t source = choices->operands[k];
            bool meets = (self->waited_for[source] & self->waits_for[i]) != 0;
            is_separated[k] |= meets && separation_is_element_wise(module, source);
        }
    }
}

AmStatus separation_find(bool **is_separated, Arena *arena, const PlanContext *context, AmError *error) {
    int32_t count = context->rules->count, waiting = 0;
    *is_separated = ARENA_ARRAY(arena, bool, context->choices->first_operand[count] + 1);
    ArenaMark mark = arena_mark(arena);
    Paths self = {.context = context,
                  .is_one = ARENA_ARRAY(arena, uint64_t, count + 1),
                  .waited_for = ARENA_ARRAY(arena, uint64_t, count + 1),
                  .waits_for = ARENA_ARRAY(arena, uint64_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)count * 24);
    for (int32_t next = 0; next < count;) {
        for (int32_t i = 0; i < count; i++) self.is_one[i] = 0;
        for (waiting = 0; next < count && waiting < STEPS_AT_ONCE; next++)
            if (context->choices->live[next] && is_step(context, next))
                self.is_one[next] = (uint64_t)1 << waiting++;
        if (waiting == 0) break;
        find_paths(&self);
        mark_separated(&self, *is_separated);
    }
    arena_release(arena, mark);
    return AM_OK;
}
