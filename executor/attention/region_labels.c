/* Labels by union and division. Every dimension begins as one atom. Two lists of atoms that
 * step through the same elements are matched from the front: equal sizes become one atom, and an atom that is
 * a multiple of the other is divided. Atoms that cannot be matched are fixed.
 */
#include "executor/attention/region_labels.h"

#include "base/int_list.h"

enum { MOST_ATOMS = 4 * IR_MAX_RANK };

typedef struct Atom {
    int64_t size;
    int32_t same_as;      /* atom, or -1 */
    int32_t outer, inner; /* atoms that it was divided into, or -1 */
    bool is_fixed;
} Atom;

typedef struct AtomList {
    int32_t count, list[MOST_ATOMS];
} AtomList;

typedef struct LabelFinder {
    Arena *arena;
    const Program *region;
    Atom *atoms;
    int32_t count, capacity;
    int32_t *first; /* [value]: the atom of dimension 0 */
    bool overflows; /* a list was too long */
} LabelFinder;

static int32_t add_atom(LabelFinder *self, int64_t size) {
    ARENA_RESERVE(self->arena, self->atoms, self->count, self->capacity);
    if (self->arena->failed) return 0;
    self->atoms[self->count] = (Atom){.size = size, .same_as = -1, .outer = -1, .inner = -1};
    return self->count++;
}

static int32_t original(const LabelFinder *self, int32_t atom) {
    while (self->atoms[atom].same_as >= 0) atom = self->atoms[atom].same_as;
    return atom;
}

/* Appends the atoms into which an atom was divided. */
static void expand_atom(LabelFinder *self, AtomList *list, int32_t atom) {
    atom = original(self, atom);
    if (self->atoms[atom].size == 1) return;
    if (self->atoms[atom].outer >= 0) {
        expand_atom(self, list, self->atoms[atom].outer);
        expand_atom(self, list, self->atoms[atom].inner);
    } else if (list->count < MOST_ATOMS) list->list[list->count++] = atom;
    else self->overflows = true;
}

/* Divides an atom into an outer one of `size` and the rest; returns the rest. */
static int32_t divide(LabelFinder *self, int32_t atom, int64_t size) {
    int32_t outer = add_atom(self, size), inner = add_atom(self, self->atoms[atom].size / size);
    if (self->arena->failed) return 0;
    self->atoms[outer].is_fixed = self->atoms[inner].is_fixed = self->atoms[atom].is_fixed;
    self->atoms[atom].outer = outer;
    self->atoms[atom].inner = inner;
    return inner;
}

/* Marks an atom, and those into which it was divided, as belonging to a label that stays whole. */
static void fix(LabelFinder *self, int32_t atom) {
    atom = original(self, atom);
    self->atoms[atom].is_fixed = true;
    if (self->atoms[atom].outer < 0) return;
    fix(self, self->atoms[atom].outer);
    fix(self, self->atoms[atom].inner);
}

static void join_atoms(LabelFinder *self, int32_t a, int32_t b) {
    if (a == b) return;
    self->atoms[a].same_as = b;
    self->atoms[b].is_fixed |= self->atoms[a].is_fixed;
}

/* Matches the dimensions [first, end) of two values. */
static void match_dimensions(LabelFinder *self, int32_t a, int32_t a_dimension, int32_t a_count, int32_t b,
                             int32_t b_dimension, int32_t b_count) {
    AtomList x = {0}, y = {0};
    for (int32_t d = 0; d < a_count; d++) expand_atom(self, &x, self->first[a] + a_dimension + d);
    for (int32_t d = 0; d < b_count; d++) expand_atom(self, &y, self->first[b] + b_dimension + d);
    int32_t i = 0, j = 0;
    while (i < x.count && j < y.count && !self->arena->failed) {
        int32_t s = x.list[i] = original(self, x.list[i]), t = y.list[j] = original(self, y.list[j]);
        int64_t p = self->atoms[s].size, q = self->atoms[t].size;
        if (self->atoms[s].outer >= 0 || self->atoms[t].outer >= 0) break; /* divided in this very match */
        if (p == q) {
            join_atoms(self, s, t);
            i++, j++;
        } else if (p > q && p % q == 0) {
            x.list[i] = divide(self, s, q);
            join_atoms(self, self->atoms[s].outer, y.list[j++]);
        } else if (q > p && q % p == 0) {
            y.list[j] = divide(self, t, p);
            join_atoms(self, self->atoms[t].outer, x.list[i++]);
        } else break;
    }
    for (; i < x.count; i++) fix(self, x.list[i]);
    for (; j < y.count; j++) fix(self, y.list[j]);
}

static void match_dimension(LabelFinder *self, int32_t a, int32_t a_dimension, int32_t b,
                            int32_t b_dimension) {
    match_dimensions(self, a, a_dimension, 1, b, b_dimension, 1);
}

/* Matches the labels of a dot. Result dimension d is number dimensions[d] of batch, left free, right free. */
static void match_dot(LabelFinder *self, const ProgramInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    const IrDot *dot = attributes->dot;
    int32_t operands[2] = {instruction->operands[0], instruction->operands[1]};
    int32_t result = instruction->first_result, at = 0, place[IR_MAX_RANK] = {0};
    int32_t rank = self->region->values[result].shape.rank;
    for (int32_t d = 0; d < rank; d++)
        place[attributes->dimension_count > 0 ? attributes->dimensions[d] : d] = d;
    for (int32_t k = 0; k < dot->contracting_count; k++)
        match_dimension(self, operands[0], (int32_t)dot->lhs_contracting[k], operands[1],
                        (int32_t)dot->rhs_contracting[k]);
    for (int32_t k = 0; k < dot->batch_count; k++) {
        match_dimension(self, operands[0], (int32_t)dot->lhs_batch[k], operands[1],
                        (int32_t)dot->rhs_batch[k]);
        match_dimension(self, operands[0], (int32_t)dot->lhs_batch[k], result, place[at++]);
    }
    for (int32_t side = 0; side < 2; side++) {
        const int64_t *batch = side ? dot->rhs_batch : dot->lhs_batch;
        const int64_t *contracting = side ? dot->rhs_contracting : dot->lhs_contracting;
        for (int32_t d = 0; d < self->region->values[operands[side]].shape.rank; d++)
            if (!int_list_contains(batch, dot->batch_count, d) &&
                !int_list_contains(contracting, dot->contracting_count, d))
                match_dimension(self, operands[side], d, result, place[at++]);
    }
    if (instruction->operand_count > 2)
        for (int32_t d = 0; d < rank; d++) match_dimension(self, instruction->operands[2], d, result, d);
}

static bool match_element_wise(LabelFinder *self, const ProgramInstruction *instruction) {
    int32_t result = instruction->first_result, rank = self->region->values[result].shape.rank;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = &self->region->values[instruction->operands[k]].shape;
        if (operand->rank == 0) continue;
        if (operand->rank != rank) return false;
        for (int32_t d = 0; d < rank; d++) match_dimension(self, instruction->operands[k], d, result, d);
    }
    return true;
}

/* Returns false for an operator whose dimensions are not understood. */
static bool match_instruction(LabelFinder *self, const ProgramInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    const ProgramValue *values = self->region->values;
    int32_t result = instruction->first_result, rank = values[result].shape.rank;
    int32_t operand = instruction->operand_count > 0 ? instruction->operands[0] : -1;
    if (instruction->result_count != 1 || instruction->compute.place || instruction->regions.count > 0)
        return false;
    if (instruction->kind == PROGRAM_VIEW || instruction->opcode == IR_RESHAPE) {
        match_dimensions(self, operand, 0, values[operand].shape.rank, result, 0, rank);
        return true;
    }
    if (instruction->kind != PROGRAM_COMPUTE) return false;
    switch (instruction->opcode) {
    case IR_DOT:
        if (attributes->dot) match_dot(self, instruction);
        return attributes->dot != NULL;
    case IR_BROADCAST:
        for (int32_t d = 0; d < attributes->dimension_count; d++)
            match_dimension(self, operand, d, result, (int32_t)attributes->dimensions[d]);
        return true;
    case IR_TRANSPOSE:
        for (int32_t d = 0; d < rank; d++)
            match_dimension(self, operand, (int32_t)attributes->dimensions[d], result, d);
        return true;
    case IR_REDUCE: {
        int32_t kept = 0;
        if (instruction->operand_count != 2) return false;
        for (int32_t d = 0; d < values[operand].shape.rank; d++)
            if (!int_list_contains(attributes->dimensions, attributes->dimension_count, d))
                match_dimension(self, operand, d, result, kept++);
        return true;
    }
    case IR_CONSTANT:
        for (int32_t d = 0; d < rank; d++) fix(self, self->first[result] + d);
        return true;
    case IR_IOTA: return !instruction->compute.shard;
    default: return ir_is_elementwise(instruction->opcode) && match_element_wise(self, instruction);
    }
}

/* Numbers the atoms that are not divided, in the order of the values. */
static AmStatus number_labels(LabelFinder *self, RegionLabels *labels, AmError *error) {
    const Program *region = self->region;
    int32_t *number = ARENA_ARRAY(self->arena, int32_t, self->count + 1);
    int64_t *sizes = ARENA_ARRAY(self->arena, int64_t, self->count + 1);
    bool *is_fixed = ARENA_ARRAY(self->arena, bool, self->count + 1);
    labels->values = ARENA_ARRAY(self->arena, ValueLabels, region->value_count + 1);
    if (self->arena->failed) return am_fail_memory(error, self->count * 16);
    *labels = (RegionLabels){.sizes = sizes, .is_fixed = is_fixed, .values = labels->values};
    for (int32_t k = 0; k < self->count; k++) number[k] = -1;
    for (int32_t v = 0; v < region->value_count; v++) {
        int32_t rank = region->values[v].shape.rank, *ends = ARENA_ARRAY(self->arena, int32_t, rank + 1);
        AtomList list = {0};
        for (int32_t d = 0; d < rank && ends; d++) {
            expand_atom(self, &list, self->first[v] + d);
            ends[d] = list.count;
        }
        int32_t *own = ARENA_ARRAY(self->arena, int32_t, list.count + 1);
        if (self->arena->failed) return am_fail_memory(error, list.count * 4);
        for (int32_t k = 0; k < list.count; k++) {
            int32_t *label = &number[list.list[k]];
            if (*label < 0) *label = labels->count++;
            own[k] = *label;
            sizes[*label] = self->atoms[list.list[k]].size;
            is_fixed[*label] |= self->atoms[list.list[k]].is_fixed;
            /* A part of both dimensions would be a part of the diagonal. */
            for (int32_t n = 0; n < k; n++) is_fixed[*label] |= own[n] == *label;
        }
        labels->values[v] = (ValueLabels){.count = list.count, .list = own, .ends = ends};
    }
    return AM_OK;
}

AmStatus region_labels_find(RegionLabels *labels, Arena *arena, const Program *region, AmError *error) {
    LabelFinder self = {.arena = arena, .region = region};
    bool *is_needed = ARENA_ARRAY(arena, bool, region->value_count + 1);
    self.first = ARENA_ARRAY(arena, int32_t, region->value_count + 1);
    if (arena->failed) return am_fail_memory(error, region->value_count * 4);
    /* Outputs depend on these values; a dead view may have another order of dimensions. */
    for (int32_t k = 0; k < region->roles->output_count; k++)
        if (region->outputs[k] >= 0) is_needed[region->outputs[k]] = true;
    for (int32_t i = region->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &region->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count && is_needed[instruction->first_result]; k++)
            is_needed[instruction->operands[k]] = true;
    }
    for (int32_t v = 0; v < region->value_count; v++) {
        const IrShape *shape = &region->values[v].shape;
        if (ir_shape_elements(shape) == 0)
            return am_fail(error, AM_ERROR_INPUT, "", "a value has no elements");
        self.first[v] = self.count;
        for (int32_t d = 0; d < shape->rank; d++) add_atom(&self, shape->dimensions[d]);
    }
    for (int32_t i = 0; i < region->instruction_count && !arena->failed; i++)
        if ((is_needed[region->instructions[i].first_result] || region->instructions[i].result_count != 1) &&
            !match_instruction(&self, &region->instructions[i]))
            return am_fail(error, AM_ERROR_INPUT, "", "'%s' is not computed by blocks",
                           ir_opcode_name(region->instructions[i].opcode));
    if (arena->failed) return am_fail_memory(error, self.count * (int64_t)sizeof(Atom));
    TRY(number_labels(&self, labels, error));
    return self.overflows ? am_fail(error, AM_ERROR_INPUT, "", "too many dimensions") : AM_OK;
}

bool region_labels_has(const RegionLabels *labels, int32_t value, int32_t label) {
    const ValueLabels *of = &labels->values[value];
    for (int32_t k = 0; k < of->count; k++)
        if (of->list[k] == label) return true;
    return false;
}
