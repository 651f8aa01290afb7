/* Finds out whether a block may leave out the keys after its last row, as a causal mask removes them.
 *
 * Every value gets a class: the known facts of its elements whose key is after their row. A mask of indices
 * is false there, masked scores are at most -1e9, and their exponential is 0. Products with it are 0, too. A
 * sum over keys or rows loses nothing if its terms are 0 there. A maximum over keys loses nothing since the
 * row's own key is never masked; scores below -1e9 are not expected.
 *
 * Indices are an iota inside, or vectors of integers that the region is given: an iota outside; a device may
 * have a part of it. The kernel examines the numbers of such vectors in each run.
 */
#include "executor/attention/causal_keys.h"

#include "executor/array/scalar64.h"

typedef enum Class { ANY, ZERO, LOW, ALWAYS, NEVER, ROW_INDEX, KEY_INDEX } Class;

static const double low_number = -1e9;

typedef struct CausalSearch {
    const Program *region;
    const RegionBlocks *blocks; /* of the region */
    CausalMask *mask;
    int32_t key;
    uint8_t *classes; /* [value]: Class */
} CausalSearch;

static Class constant_class(const CausalSearch *self, const ProgramInstruction *instruction) {
    const IrShape *shape = &self->region->values[instruction->first_result].shape;
    Scalar64 number;
    if (shape->rank != 0 || !dtype_is_floating(shape->type) || !instruction->compute.literal->data)
        return ANY;
    scalar64_load(&number, instruction->compute.literal->data, shape->type, 1, 1);
    return number.floating == 0 ? ZERO : number.floating <= low_number ? LOW : ANY;
}

static Class iota_class(const CausalSearch *self, const ProgramInstruction *instruction) {
    const ValueLabels *labels = &self->blocks->labels.values[instruction->first_result];
    int32_t d =
        instruction->attributes->dimension_count > 0 ? (int32_t)instruction->attributes->dimensions[0] : 0;
    int32_t first = d > 0 ? labels->ends[d - 1] : 0;
    if (labels->ends[d] - first != 1) return ANY;
    return labels->list[first] == self->blocks->row ? ROW_INDEX
           : labels->list[first] == self->key       ? KEY_INDEX
                                                    : ANY;
}

/* Returns the class of a parameter. A vector of integers by row or by key may be positions. */
static Class parameter_class(const CausalSearch *self, int32_t value) {
    const ValueLabels *labels = &self->blocks->labels.values[value];
    Dtype type = self->region->values[value].shape.type;
    if (labels->count != 1 || !(type == DTYPE_S32 || type == DTYPE_S64)) return ANY;
    return labels->list[0] == self->blocks->row ? ROW_INDEX : labels->list[0] == self->key ? KEY_INDEX : ANY;
}

/* Notes the parameter that an index is made of; false: there are too many. */
static bool note_positions(CausalSearch *self, int32_t value) {
    const RegionBlocks *blocks = self->blocks;
    const Program *region = self->region;
    bool is_row = self->classes[value] == ROW_INDEX;
    int32_t *count = is_row ? &self->mask->row_count : &self->mask->key_count;
    int32_t *list = is_row ? self->mask->rows : self->mask->keys;
    while (blocks->producer[value] >= 0) {
        const ProgramInstruction *producer = &region->instructions[blocks->producer[value]];
        if (producer->opcode == IR_IOTA) return true;
        value = producer->operands[0];
    }
    for (int32_t k = 0; k < region->roles->parameter_count; k++) {
        if (region->values[region->parameters[k]].storage != region->values[value].storage) continue;
        for (int32_t known = 0; known < *count; known++)
            if (list[known] == k) return true;
        if (*count == MOST_POSITIONS) return false;
        list[(*count)++] = k;
        return true;
    }
    return false;
}

/* Returns the class of a comparison of row and key, where the key is larger; ANY if the row's own key is
 * masked too. */
static Class comparison_class(const char *direction, Class left, Class right) {
    bool is_less = direction[0] == 'L', is_greater = direction[0] == 'G', is_equal = direction[1] == 'E';
    bool row_first = left == ROW_INDEX;
    if (row_first ? is_less == is_equal : is_greater == is_equal) return ANY;
    if (left == ROW_INDEX && right == KEY_INDEX) return is_less ? ALWAYS : is_greater ? NEVER : ANY;
    if (left == KEY_INDEX && right == ROW_INDEX) return is_greater ? ALWAYS : is_less ? NEVER : ANY;
    return ANY;
}

/* Returns whether the value may differ from key to key: it is no broadcast of a value without keys. */
static bool differs_by_key(const CausalSearch *self, int32_t value) {
    const RegionBlocks *blocks = self->blocks;
    while (region_labels_has(&blocks->labels, value, self->key)) {
        int32_t producer = blocks->producer[value];
        if (producer < 0) return true;
        const ProgramInstruction *instruction = &self->region->instructions[producer];
        bool passes = instruction->opcode == IR_BROADCAST || instruction->opcode == IR_CONVERT ||
                      instruction->kind == PROGRAM_VIEW;
        if (!passes) return true;
        value = instruction->operands[0];
    }
    return false;
}

static bool is_constant(const CausalSearch *self, int32_t value) {
    const RegionBlocks *blocks = self->blocks;
    int32_t producer = blocks->producer[value];
    while (producer >= 0 && self->region->instructions[producer].opcode == IR_BROADCAST)
        producer = blocks->producer[self->region->instructions[producer].operands[0]];
    return producer >= 0 && self->region->instructions[producer].opcode == IR_CONSTANT;
}

/* Returns whether a value is a product, perhaps scaled or capped, so that none of its elements is as low as a
 * masked score: another mask or a bias could be. */
static bool is_product(const CausalSearch *self, int32_t value) {
    const RegionBlocks *blocks = self->blocks;
    for (int32_t producer = blocks->producer[value]; producer >= 0; producer = blocks->producer[value]) {
        const ProgramInstruction *instruction = &self->region->instructions[producer];
        if (ir_is_matrix_product(instruction->opcode)) return instruction->operand_count == 2;
        bool passes = instruction->kind == PROGRAM_VIEW || instruction->opcode == IR_TRANSPOSE ||
                      instruction->opcode == IR_CONVERT || instruction->opcode == IR_TANH;
        bool is_scaled = instruction->opcode == IR_MULTIPLY || instruction->opcode == IR_DIVIDE;
        if (!passes && !(is_scaled && is_constant(self, instruction->operands[1]))) return false;
        value = instruction->operands[0];
    }
    return false;
}

static Class element_class(CausalSearch *self, const ProgramInstruction *instruction) {
    Class of[3] = {ANY, ANY, ANY};
    for (int32_t k = 0; k < instruction->operand_count && k < 3; k++)
        of[k] = (Class)self->classes[instruction->operands[k]];
    switch (instruction->opcode) {
    case IR_COMPARE: {
        const char *direction = instruction->attributes->comparison;
        Class class = direction ? comparison_class(direction, of[0], of[1]) : ANY;
        bool is_noted = class == ANY || (note_positions(self, instruction->operands[0]) &&
                                         note_positions(self, instruction->operands[1]));
        return is_noted ? class : ANY;
    }
    case IR_SELECT: {
        /* Dropped weights: zero, whatever the other mask says. */
        if (of[0] == ANY && of[1] == ZERO && of[2] == ZERO) return ZERO;
        if (of[0] != NEVER && of[0] != ALWAYS) return ANY;
        Class masked = of[0] == NEVER ? of[2] : of[1];
        int32_t scores = instruction->operands[of[0] == NEVER ? 1 : 2];
        return masked == LOW && !is_product(self, scores) ? ANY : masked;
    }
    case IR_NOT: return of[0] == NEVER ? ALWAYS : of[0] == ALWAYS ? NEVER : ANY;
    case IR_MULTIPLY: return of[0] == ZERO || of[1] == ZERO ? ZERO : ANY;
    case IR_DIVIDE: return of[0] == ZERO ? ZERO : ANY;
    case IR_ADD: return of[0] == of[1] && (of[0] == ZERO || of[0] == LOW) ? of[0] : ANY;
    case IR_SUBTRACT: /* the maximum of a row, or its log-sum-exp */
        if (of[0] == ZERO && of[1] == ZERO) return ZERO;
        return of[0] == LOW && !differs_by_key(self, instruction->operands[1]) ? LOW : ANY;
    case IR_EXPONENTIAL: return of[0] == LOW ? ZERO : ANY;
    case IR_NEGATE: return of[0] == ZERO ? ZERO : ANY;
    case IR_CONVERT:
    case IR_COPY: return of[0];
    default: return ANY;
    }
}

static bool is_reduced(const CausalSearch *self, const ProgramInstruction *instruction, int32_t operand,
                       int32_t label) {
    return region_labels_has(&self->blocks->labels, operand, label) &&
           !region_labels_has(&self->blocks->labels, instruction->first_result, label);
}

/* Returns whether a sum or maximum is the same without the keys after the rows. */
static bool may_leave_out(const CausalSearch *self, const ProgramInstruction *instruction) {
    const RegionLabels *labels = &self->blocks->labels;
    bool is_dot = ir_is_matrix_product(instruction->opcode), loses_key = false, loses_row = false,
         is_zero = false;
    for (int32_t k = 0; k < (is_dot ? 2 : 1); k++) {
        int32_t operand = instruction->operands[k];
        loses_key |= is_reduced(self, instruction, operand, self->key);
        for (int32_t l = 0; l < labels->count; l++)
            loses_row |= self->blocks->is_summed[l] && is_reduced(self, instruction, operand, l);
        is_zero |= self->classes[operand] == ZERO && region_labels_has(labels, operand, self->key);
    }
    loses_row &= region_labels_has(labels, instruction->first_result, self->key);
    if (!loses_key && !loses_row) return true;
    if (is_zero)
        return is_dot || sbp_reduction_of(ir_computation_operator(self->region->module,
                                                                  instruction->compute.called)) == SBP_ADD;
    return !is_dot && !loses_row && self->classes[instruction->operands[0]] == LOW &&
           sbp_reduction_of(ir_computation_operator(self->region->module, instruction->compute.called)) ==
               SBP_MAX;
}

/* Returns whether all that a block gives is the same without the keys after its rows. */
static bool is_causal(CausalSearch *self) {
    const RegionBlocks *blocks = self->blocks;
    const Program *region = self->region;
    self->mask->row_count = self->mask->key_count = 0;
    for (int32_t v = 0; v < region->value_count; v++) self->classes[v] = ANY;
    for (int32_t k = 0; k < region->roles->parameter_count; k++)
        self->classes[region->parameters[k]] = (uint8_t)parameter_class(self, region->parameters[k]);
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        Class class = ANY;
        bool is_sum = ir_is_matrix_product(instruction->opcode) || instruction->opcode == IR_REDUCE;
        bool is_seen = blocks->stage[i] == REGION_BLOCK || (blocks->stage[i] == REGION_BEFORE && !is_sum);
        if (!is_seen) continue;
        switch (instruction->opcode) {
        case IR_CONSTANT: class = constant_class(self, instruction); break;
        case IR_IOTA: class = iota_class(self, instruction); break;
        case IR_BROADCAST:
        case IR_RESHAPE:
        case IR_TRANSPOSE: class = (Class)self->classes[instruction->operands[0]]; break;
        case IR_DOT:
        case IR_REDUCE:
            if (!may_leave_out(self, instruction)) return false;
            break;
        default:
            class = instruction->kind == PROGRAM_VIEW ? (Class)self->classes[instruction->operands[0]]
                                                      : element_class(self, instruction);
        }
        self->classes[instruction->first_result] = (uint8_t) class;
    }
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        int32_t value = region->outputs[k];
        if (blocks->stage[blocks->producer[value]] == REGION_BLOCK && !blocks->is_accumulated[value] &&
            region_labels_has(&blocks->labels, value, self->key))
            return false;
    }
    return true;
}

/* Returns whether some vector of indices is by key. */
static bool has_key_index(const CausalSearch *self) {
    const Program *region = self->region;
    for (int32_t k = 0; k < region->roles->parameter_count; k++)
        if (parameter_class(self, region->parameters[k]) == KEY_INDEX) return true;
    for (int32_t i = 0; i < region->instruction_count; i++)
        if (region->instructions[i].opcode == IR_IOTA && self->blocks->stage[i] == REGION_BLOCK &&
            iota_class(self, &region->instructions[i]) == KEY_INDEX)
            return true;
    return false;
}

AmStatus region_blocks_find_causal(CausalMask *mask, Arena *arena, const RegionBlocks *blocks,
                                   AmError *error) {
    CausalSearch search = {.region = blocks->region,
                           .blocks = blocks,
                           .mask = mask,
                           .classes = ARENA_ARRAY(arena, uint8_t, blocks->region->value_count + 1)};
    *mask = (CausalMask){.key = -1};
    if (!search.classes) return am_fail_memory(error, blocks->region->value_count);
    for (int32_t l = 0; l < blocks->labels.count && mask->key < 0; l++) {
        search.key = l;
        if (!blocks->is_divided[l] && !blocks->labels.is_fixed[l] && has_key_index(&search) &&
            is_causal(&search))
            mask->key = l;
    }
    return AM_OK;
}
