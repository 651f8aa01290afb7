/* Divides a region into blocks: the labels along which it is cut, and the stage of every instruction.
 *
 * find_scores() finds the scores, divide_scores() chooses the rows and the labels beside them, join_small()
 * keeps heads with small scores together, and find_stage() assigns instructions to the programs before, in
 * and after the blocks. may_divide() has the condition for a label.
 */
#include "executor/attention/region_blocks.h"

AmStatus region_refuse(const char *reason, AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, "", "%s", reason);
}

/* Returns whether the instruction sums or folds over the label. */
static bool reduces(const RegionBlocks *self, const ProgramInstruction *instruction, int32_t label) {
    int32_t operands = ir_is_matrix_product(instruction->opcode) ? 2
                       : instruction->opcode == IR_REDUCE        ? 1
                                                                 : 0;
    if (region_labels_has(&self->labels, instruction->first_result, label)) return false;
    for (int32_t k = 0; k < operands; k++)
        if (region_labels_has(&self->labels, instruction->operands[k], label)) return true;
    return false;
}

static bool is_zero(const ProgramInstruction *instruction) {
    if (instruction->opcode != IR_CONSTANT || !instruction->compute.literal->data) return false;
    for (int64_t k = 0; k < instruction->compute.literal->bytes; k++)
        if (((const char *)instruction->compute.literal->data)[k] != 0) return false;
    return true;
}

/* Returns whether the instruction is a sum, so that it may be computed in parts. */
static bool is_sum(const RegionBlocks *self, const ProgramInstruction *instruction) {
    if (dtype_is_complex(self->region->values[instruction->first_result].shape.type)) return false;
    if (ir_is_matrix_product(instruction->opcode)) return instruction->operand_count == 2;
    int32_t start = self->producer[instruction->operands[1]];
    return start >= 0 && is_zero(&self->region->instructions[start]) &&
           sbp_reduction_of(ir_computation_operator(self->region->module, instruction->compute.called)) ==
               SBP_ADD;
}

/* Returns whether blocks may have a part of the label each; `after` [value] is work space. */
static bool may_divide(const RegionBlocks *self, int32_t label, bool *after) {
    const Program *region = self->region;
    if (self->labels.is_fixed[label]) return false;
    for (int32_t v = 0; v < region->value_count; v++) after[v] = false;
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        bool is_reduced = reduces(self, instruction, label), is_after = is_reduced;
        if (self->stage[i] == REGION_UNUSED) continue;
        if (is_reduced && !is_sum(self, instruction)) return false;
        for (int32_t k = 0; k < instruction->operand_count; k++) is_after |= after[instruction->operands[k]];
        after[instruction->first_result] = is_after;
        if (is_after && region_labels_has(&self->labels, instruction->first_result, label)) return false;
    }
    return true;
}

/* Returns whether a dot depends on the result of instruction i; `reached` [value] is work space. */
static bool feeds_dot(const RegionBlocks *self, int32_t i, bool *reached) {
    const Program *region = self->region;
    for (int32_t v = 0; v < region->value_count; v++) reached[v] = false;
    reached[region->instructions[i].first_result] = true;
    for (int32_t k = i + 1; k < region->instruction_count; k++) {
        const ProgramInstruction *instruction = &region->instructions[k];
        for (int32_t o = 0; o < instruction->operand_count && self->stage[k] != REGION_UNUSED; o++) {
            if (!reached[instruction->operands[o]]) continue;
            if (ir_is_matrix_product(instruction->opcode)) return true;
            reached[instruction->first_result] = true;
        }
    }
    return false;
}

/* Returns the dot with the largest result on which another dot depends, or NULL. */
static const ProgramInstruction *find_scores(const RegionBlocks *self, bool *reached) {
    const ProgramInstruction *found = NULL;
    int64_t most = 0;
    for (int32_t i = 0; i < self->region->instruction_count; i++) {
        const ProgramInstruction *instruction = &self->region->instructions[i];
        if (!ir_is_matrix_product(instruction->opcode) || self->stage[i] == REGION_UNUSED) continue;
        int64_t elements = ir_shape_elements(&self->region->values[instruction->first_result].shape);
        if (elements <= most || !feeds_dot(self, i, reached)) continue;
        found = instruction;
        most = elements;
    }
    return found;
}

/* Takes back the division of inner labels, so that one block has the scores of several heads where these are
 * small: steps of less than a microsecond would take most of the time. Then the rows of a block are of the
 * next label, such as examples. */
static void join_small(RegionBlocks *self, const ValueLabels *scores) {
    int64_t bytes = 4;
    for (int32_t k = 0; k < scores->count; k++)
        if (!self->is_divided[scores->list[k]] || scores->list[k] == self->row)
            bytes *= self->labels.sizes[scores->list[k]];
    for (int32_t k = scores->count - 1; k >= 0; k--) {
        int32_t label = scores->list[k];
        if (!self->is_divided[label] || label == self->row) continue;
        if (bytes * self->labels.sizes[label] <= REGION_JOINED_BYTES) {
            bytes *= self->labels.sizes[label];
            self->is_divided[label] = false;
        } else {
            self->has_whole_rows = 2 * bytes <= REGION_JOINED_BYTES;
            if (!self->has_whole_rows) return;
            self->is_divided[self->row] = false;
            self->row = label;
            return;
        }
    }
}

/* Chooses the rows, the longest free dimension of one operand of the scores, and the labels beside them. */
static AmStatus divide_scores(RegionBlocks *self, Arena *arena, bool joins, AmError *error) {
    bool *after = ARENA_ARRAY(arena, bool, self->region->value_count + 1), may[REGION_MOST_LABELS] = {false};
    if (!after) return am_fail_memory(error, self->region->value_count);
    const ProgramInstruction *scores = find_scores(self, after);
    if (!scores) return region_refuse("no product depends on another", error);
    self->scores = scores;
    const ValueLabels *of = &self->labels.values[scores->first_result];
    const RegionLabels *labels = &self->labels;
    int32_t side = 0;
    self->row = -1;
    for (int32_t k = 0; k < of->count && k < REGION_MOST_LABELS; k++) {
        int32_t label = of->list[k];
        bool on_left = region_labels_has(labels, scores->operands[0], label);
        may[k] = may_divide(self, label, after);
        if (!may[k] || on_left == region_labels_has(labels, scores->operands[1], label)) continue;
        if (self->row >= 0 && labels->sizes[label] <= labels->sizes[self->row]) continue;
        self->row = label;
        side = on_left ? 0 : 1;
    }
    if (self->row < 0) return region_refuse("no dimension of the products can be divided", error);
    for (int32_t k = 0; k < of->count && k < REGION_MOST_LABELS; k++)
        self->is_divided[of->list[k]] =
            may[k] && region_labels_has(labels, scores->operands[side], of->list[k]);
    if (joins) join_small(self, of);
    for (int32_t i = 0; i < self->region->instruction_count; i++)
        for (int32_t l = 0; l < labels->count; l++)
            if (self->is_divided[l] && self->stage[i] != REGION_UNUSED &&
                reduces(self, &self->region->instructions[i], l))
                self->is_summed[l] = true;
    return AM_OK;
}

/* Returns whether every stage computes the value itself: constants, indices, and element-wise results of
 * them. */
static bool is_free(const RegionBlocks *self, const ProgramInstruction *instruction) {
    if (ir_is_matrix_product(instruction->opcode) || instruction->opcode == IR_REDUCE) return false;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer = self->producer[instruction->operands[k]];
        if (producer < 0 || !self->is_free[producer]) return false;
    }
    return true;
}

static AmStatus find_stage(RegionBlocks *self, int32_t i, AmError *error) {
    const ProgramInstruction *instruction = &self->region->instructions[i];
    bool is_after = false, is_before = true, is_reduced = false, reads_block = false;
    self->is_free[i] = is_free(self, instruction);
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k], producer = self->producer[operand];
        is_after |= self->is_accumulated[operand] || (producer >= 0 && self->stage[producer] == REGION_AFTER);
        if (producer < 0 || self->is_free[producer]) continue;
        is_before &= self->stage[producer] == REGION_BEFORE;
        reads_block |= self->stage[producer] == REGION_BLOCK && !self->is_accumulated[operand];
    }
    for (int32_t l = 0; l < self->labels.count; l++) {
        bool is_summed = self->is_summed[l], is_of_rows = is_summed || l == self->row;
        is_reduced |= is_summed && reduces(self, instruction, l);
        if (!is_of_rows) continue;
        is_before &= !region_labels_has(&self->labels, instruction->first_result, l);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            is_before &= !region_labels_has(&self->labels, instruction->operands[k], l);
    }
    if (is_after && reads_block)
        return region_refuse("one operator reads a complete sum and a value of one block", error);
    self->stage[i] = is_after ? REGION_AFTER : is_before && !self->is_free[i] ? REGION_BEFORE : REGION_BLOCK;
    if (is_after || !is_reduced) return AM_OK;
    /* Every part of a sum is added once: each summed label is one of the result or of the terms. */
    for (int32_t l = 0; l < self->labels.count; l++)
        if (self->is_summed[l] && !region_labels_has(&self->labels, instruction->first_result, l) &&
            !reduces(self, instruction, l))
            return region_refuse("a sum lacks a divided dimension", error);
    self->is_accumulated[instruction->first_result] = true;
    return AM_OK;
}

AmStatus region_blocks_find(RegionBlocks *blocks, Arena *arena, const Program *region, bool joins,
                            AmError *error) {
    *blocks = (RegionBlocks){.region = region};
    TRY(region_labels_find(&blocks->labels, arena, region, error));
    blocks->producer = ARENA_ARRAY(arena, int32_t, region->value_count + 1);
    blocks->is_divided = ARENA_ARRAY(arena, bool, blocks->labels.count + 1);
    blocks->is_summed = ARENA_ARRAY(arena, bool, blocks->labels.count + 1);
    blocks->stage = ARENA_ARRAY(arena, uint8_t, region->instruction_count + 1);
    blocks->is_free = ARENA_ARRAY(arena, bool, region->instruction_count + 1);
    blocks->is_accumulated = ARENA_ARRAY(arena, bool, region->value_count + 1);
    if (arena->failed) return am_fail_memory(error, region->value_count * 8);
    if (region->execution.update_count > 0) return region_refuse("it repeats", error);
    for (int32_t k = 0; k < region->roles->output_count; k++)
        if (region->outputs[k] < 0) return region_refuse("an output is missing", error);
    for (int32_t v = 0; v < region->value_count; v++) blocks->producer[v] = -1;
    for (int32_t i = 0; i < region->instruction_count; i++)
        blocks->producer[region->instructions[i].first_result] = i;
    /* Marks what outputs need as part of the block, the rest as unused. */
    for (int32_t k = 0; k < region->roles->output_count; k++)
        if (blocks->producer[region->outputs[k]] >= 0)
            blocks->stage[blocks->producer[region->outputs[k]]] = REGION_BLOCK;
    for (int32_t i = region->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &region->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count && blocks->stage[i] != REGION_UNUSED; k++)
            if (blocks->producer[instruction->operands[k]] >= 0)
                blocks->stage[blocks->producer[instruction->operands[k]]] = REGION_BLOCK;
    }
    TRY(divide_scores(blocks, arena, joins, error));
    for (int32_t i = 0; i < region->instruction_count; i++)
        if (blocks->stage[i] != REGION_UNUSED) TRY(find_stage(blocks, i, error));
    /* Units write different elements: an output has every label that is not summed. */
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        if (blocks->producer[region->outputs[k]] < 0) return region_refuse("an output is a parameter", error);
        for (int32_t l = 0; l < blocks->labels.count; l++)
            if (blocks->is_divided[l] && !blocks->is_summed[l] &&
                !region_labels_has(&blocks->labels, region->outputs[k], l))
                return region_refuse("an output lacks a divided dimension", error);
    }
    return AM_OK;
}
