/* Paths over steps of their own, 64 of these at a time; see separation.h.
 *
 * Readers of one value are in different steps for the same reason, so that a chain of them, each waiting for
 * a step that waits for the one before, reads it as often as the chain is long. The longest chain pays.
 *
 * Of each instruction one word says which of 64 such steps wait for it, and one which it waits for; both are
 * found in one pass over the module. Where the words of an operand and of its reader meet, there is a path
 * from the one to the other over that step.
 */
#include "cost/separation.h"

#include "propagation/program.h"

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

bool separation_may_be_taken(const PlanContext *context, int32_t i) {
    const IrModule *module = context->canonical;
    const Choices *choices = context->choices;
    if (module->instructions[i].opcode != IR_ADD || module->instructions[i].shape.type != DTYPE_F32)
        return false;
    for (int32_t k = choices->first_operand[i]; k < choices->first_operand[i + 1]; k++) {
        int32_t made = choices->operands[k];
        while (module->instructions[made].opcode == IR_TRANSPOSE)
            made = choices->operands[choices->first_operand[made]];
        if (module->instructions[made].opcode == IR_DOT) return true;
    }
    return false;
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

enum { MOST_READERS = 32 };

/* An element-wise reader of a value. */
typedef struct Reader {
    int32_t place;  /* in choices->operands */
    int32_t reader; /* instruction */
    uint32_t
        later; /* readers of the same value (bits, in their order) that wait for a step that waits for it */
} Reader;

typedef struct Paths {
    Arena *arena;
    const PlanContext *context;
    uint64_t *is_one;     /* [instruction]: its own bit, if it is among the steps looked at */
    uint64_t *waited_for; /* [instruction]: steps that wait for it */
    uint64_t *waits_for;  /* [instruction]: steps that it waits for */
    int32_t *leaf;        /* [instruction]: see find_leaf() */
    int32_t *first;       /* [instruction + 1]: its readers */
    Reader *readers;
} Paths;

/* What a value would be made of again: one array that is as large at most, several or none, of which nothing
 * is claimed, or it would not be, as that takes more than to write and read it. */
enum { NOT_REDONE = -1, OF_SEVERAL = -2 };

static int32_t find_leaf(const Paths *self, int32_t i) {
    const Choices *choices = self->context->choices;
    const IrInstruction *instruction = &self->context->canonical->instructions[i];
    int32_t leaf = OF_SEVERAL, count = 0;
    double bytes = 0;
    if (!separation_is_element_wise(self->context->canonical, i) || !program_may_redo(instruction->opcode))
        return NOT_REDONE;
    for (int32_t k = choices->first_operand[i]; k < choices->first_operand[i + 1]; k++) {
        int32_t source = choices->operands[k];
        if (self->context->rules->on_demand[source]) continue;
        if (self->leaf[source] == OF_SEVERAL) return OF_SEVERAL;
        if (self->leaf[source] != NOT_REDONE) source = self->leaf[source];
        if (count > 0 && source == leaf) continue;
        count++;
        leaf = source;
        bytes += choices->array_bytes[source];
    }
    if (bytes >= 2 * choices->array_bytes[i]) return NOT_REDONE;
    return count == 1 && bytes <= choices->array_bytes[i] ? leaf : OF_SEVERAL;
}

/* The value that an element-wise reader pays for, in place of an operand that it may make again. */
static int32_t paid_value(const Paths *self, int32_t place) {
    int32_t source = self->context->choices->operands[place], leaf = self->leaf[source];
    return leaf == NOT_REDONE ? source : leaf;
}

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

static bool reads(const Paths *self, int32_t i, int32_t place) {
    return separation_is_element_wise(self->context->canonical, i) &&
           !self->context->rules->on_demand[self->context->choices->operands[place]] &&
           paid_value(self, place) != OF_SEVERAL;
}

/* Readers by what they read, in the order of the program. */
static AmStatus list_readers(Paths *self, AmError *error) {
    const Choices *choices = self->context->choices;
    int32_t count = self->context->rules->count;
    self->first = ARENA_ARRAY(self->arena, int32_t, count + 2);
    self->readers = ARENA_ARRAY(self->arena, Reader, choices->first_operand[count] + 1);
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t n = 0; n < choices->decided_count; n++)
        for (int32_t i = choices->decided[n], k = choices->first_operand[i];
             k < choices->first_operand[i + 1]; k++)
            if (reads(self, i, k)) self->first[paid_value(self, k) + 2]++;
    for (int32_t i = 0; i < count; i++) self->first[i + 2] += self->first[i + 1];
    for (int32_t n = 0; n < choices->decided_count; n++)
        for (int32_t i = choices->decided[n], k = choices->first_operand[i];
             k < choices->first_operand[i + 1]; k++)
            if (reads(self, i, k))
                self->readers[self->first[paid_value(self, k) + 1]++] = (Reader){.place = k, .reader = i};
    return AM_OK;
}

static bool is_between(const Paths *self, int32_t before, int32_t after) {
    return (self->waited_for[before] & self->waits_for[after]) != 0;
}

/* What the steps that are looked at separate. */
static void separate(const Paths *self, bool *is_from_memory) {
    for (int32_t source = 0; source < self->context->rules->count; source++) {
        Reader *readers = &self->readers[self->first[source]];
        int32_t count = self->first[source + 1] - self->first[source];
        for (int32_t a = 0; a < count; a++) {
            is_from_memory[readers[a].place] |= is_between(self, source, readers[a].reader);
            for (int32_t b = a + 1; b < count && b < MOST_READERS; b++)
                if (is_between(self, readers[a].reader, readers[b].reader)) readers[a].later |= 1u << b;
        }
    }
}

/* The longest chain of readers that take a value from memory. */
static void choose_chain(const Reader *readers, int32_t count, const Separation *separation) {
    int32_t length[MOST_READERS], next[MOST_READERS], best = -1;
    for (int32_t a = (count < MOST_READERS ? count : MOST_READERS) - 1; a >= 0; a--) {
        length[a] = 0;
        if (!separation->is_from_memory[readers[a].place]) continue;
        length[a] = 1;
        next[a] = -1;
        for (int32_t b = a + 1; b < count && b < MOST_READERS; b++)
            if (readers[a].later >> b & 1 && length[b] > 0 && 1 + length[b] > length[a]) {
                length[a] = 1 + length[b];
                next[a] = b;
            }
        if (best < 0 || length[a] >= length[best]) best = a;
    }
    for (; best >= 0; best = next[best]) separation->is_paid[readers[best].place] = true;
}

static void set_shares(Separation *separation, const Paths *self) {
    const Choices *choices = self->context->choices;
    for (int32_t place = 0; place < choices->first_operand[choices->count]; place++) {
        int32_t source = choices->operands[place], leaf = self->leaf[source];
        separation->is_redone[place] = leaf != NOT_REDONE;
        separation->share[place] = 1;
        if (leaf >= 0)
            separation->share[place] = (float)(choices->array_bytes[leaf] / choices->array_bytes[source]);
    }
}

AmStatus separation_find(Separation *separation, Arena *arena, const PlanContext *context, AmError *error) {
    int32_t count = context->rules->count, places = context->choices->first_operand[count];
    *separation = (Separation){.is_from_memory = ARENA_ARRAY(arena, bool, places + 1),
                               .is_paid = ARENA_ARRAY(arena, bool, places + 1),
                               .is_redone = ARENA_ARRAY(arena, bool, places + 1),
                               .share = ARENA_ARRAY(arena, float, places + 1)};
    ArenaMark mark = arena_mark(arena);
    Paths self = {.arena = arena,
                  .context = context,
                  .leaf = ARENA_ARRAY(arena, int32_t, count + 1),
                  .is_one = ARENA_ARRAY(arena, uint64_t, count + 1),
                  .waited_for = ARENA_ARRAY(arena, uint64_t, count + 1),
                  .waits_for = ARENA_ARRAY(arena, uint64_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)count * 24);
    for (int32_t i = 0; i < count; i++) self.leaf[i] = NOT_REDONE;
    for (int32_t n = 0; n < context->choices->decided_count; n++)
        self.leaf[context->choices->decided[n]] = find_leaf(&self, context->choices->decided[n]);
    set_shares(separation, &self);
    TRY(list_readers(&self, error));
    for (int32_t next = 0; next < count;) {
        int32_t looked_at = 0;
        for (int32_t i = 0; i < count; i++) self.is_one[i] = 0;
        for (; next < count && looked_at < STEPS_AT_ONCE; next++)
            if (context->choices->live[next] && is_step(context, next))
                self.is_one[next] = (uint64_t)1 << looked_at++;
        if (looked_at == 0) break;
        find_paths(&self);
        separate(&self, separation->is_from_memory);
    }
    for (int32_t source = 0; source < count; source++) {
        const Reader *readers = &self.readers[self.first[source]];
        int32_t reader_count = self.first[source + 1] - self.first[source];
        if (!separation_is_element_wise(context->canonical, source))
            for (int32_t k = 0; k < reader_count; k++) separation->is_from_memory[readers[k].place] = true;
        choose_chain(readers, reader_count, separation);
    }
    arena_release(arena, mark);
    return AM_OK;
}
