/* Positions of lookups: those of the first lookup of their table. */
#include "ir/canonical/lookups.h"

enum { MOST_OPERATORS = 64 }; /* of the indices of a lookup, behind the first lookup of its table */

/* Operators that move with a lookup. */
typedef struct Movers {
    int32_t items[MOST_OPERATORS];
    int32_t count;
} Movers;

/* Returns the parameter that instruction i is, converted perhaps; -1: it is none. */
static int32_t table_of(const IrInstruction *instructions, int32_t i) {
    while (instructions[i].opcode == IR_CONVERT) i = instructions[i].operands[0];
    return instructions[i].opcode == IR_PARAMETER ? i : -1;
}

static bool may_move(const IrInstruction *instruction) {
    bool is_integer = dtype_is_integer(instruction->shape.type) || instruction->shape.type == DTYPE_PRED;
    bool is_plain =
        instruction->called_count == 0 && instruction->control_count == 0 && !ir_has_effect(instruction);
    return is_plain &&
           (is_integer || instruction->opcode == IR_PARAMETER || instruction->opcode == IR_CONVERT);
}

static bool movers_have(const Movers *self, int32_t i) {
    for (int32_t k = 0; k < self->count; k++)
        if (self->items[k] == i) return true;
    return false;
}

/* Lists a lookup and all that it depends on behind a position. Returns whether that may move. */
static bool list_movers(Movers *self, const IrInstructionList *list, int32_t lookup, int64_t position) {
    self->count = 0;
    self->items[self->count++] = lookup;
    for (int32_t next = 0; next < self->count; next++) {
        const IrInstruction *user = &list->instructions[self->items[next]];
        for (int32_t k = 0; k < user->operand_count; k++) {
            int32_t operand = user->operands[k];
            if (list->positions[operand] <= position || movers_have(self, operand)) continue;
            if (self->count == MOST_OPERATORS || !may_move(&list->instructions[operand])) return false;
            self->items[self->count++] = operand;
        }
    }
    return true;
}

AmStatus ir_join_lookups(IrInstructionList *list, Arena *scratch, AmError *error) {
    int32_t *first = ARENA_ARRAY(scratch, int32_t, list->count); /* [table]: its first lookup + 1, or 0 */
    if (!first && list->count > 0) return am_fail_memory(error, (int64_t)list->count * 4);
    for (int32_t i = 0; i < list->count; i++) {
        if (list->instructions[i].opcode != IR_GATHER) continue;
        int32_t table = table_of(list->instructions, list->instructions[i].operands[0]);
        if (table >= 0 && (first[table] == 0 || list->positions[i] < list->positions[first[table] - 1]))
            first[table] = i + 1;
    }
    for (int32_t i = 0; i < list->count; i++) {
        if (list->instructions[i].opcode != IR_GATHER || list->instructions[i].control_count > 0) continue;
        int32_t table = table_of(list->instructions, list->instructions[i].operands[0]);
        if (table < 0 || first[table] == i + 1) continue;
        int64_t position = list->positions[first[table] - 1];
        Movers movers;
        if (!list_movers(&movers, list, i, position)) continue;
        for (int32_t k = 0; k < movers.count; k++) list->positions[movers.items[k]] = position;
    }
    return AM_OK;
}
