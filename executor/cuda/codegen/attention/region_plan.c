/* Plans a region's kernels: the kinds of labels and dots, and the phases of sums.
 *
 * region_plan_find() finds rows and keys (find_sides()) and classifies every dot and reduction as a score or
 * a sum (find_sums()). It puts sums in phases as late as possible (order_phases()), attaches outputs to
 * phases, and places stored sums in scratch memory.
 */
#include "executor/cuda/codegen/attention/region_plan.h"

#include <string.h>

#include "base/integers.h"

static bool is_used(const RegionPlan *self, int32_t i) {
    return self->blocks.stage[i] != REGION_UNUSED;
}

static bool is_sum(const RegionPlan *self, int32_t value) {
    return self->sum_of[value] >= 0;
}

/* Returns the operands whose labels are summed over: both of a dot, the first of a reduction. */
static int32_t summed_operands(const ProgramInstruction *instruction) {
    return instruction->opcode == IR_DOT ? 2 : instruction->opcode == IR_REDUCE ? 1 : 0;
}

/* Returns whether some summed operand has the label and the result has not. */
static bool sums_over(const RegionPlan *self, const ProgramInstruction *instruction, int32_t label) {
    if (region_plan_has(self, instruction->first_result, label)) return false;
    for (int32_t k = 0; k < summed_operands(instruction); k++)
        if (region_plan_has(self, instruction->operands[k], label)) return true;
    return false;
}

static bool has_width(const RegionPlan *self, int32_t value) {
    const ValueLabels *labels = &self->blocks.labels.values[value];
    for (int32_t k = 0; k < labels->count; k++)
        if (region_plan_is_width(self, labels->list[k])) return true;
    return false;
}

/* Returns whether every label of `part` is one of `whole`. */
static bool is_within(const RegionPlan *self, int32_t part, int32_t whole) {
    const ValueLabels *labels = &self->blocks.labels.values[part];
    for (int32_t k = 0; k < labels->count; k++)
        if (!region_plan_has(self, whole, labels->list[k])) return false;
    return true;
}

/* Finds the rows and keys of the scores: labels of one of their operands each. */
static AmStatus find_sides(RegionPlan *self, AmError *error) {
    const RegionBlocks *blocks = &self->blocks;
    const ProgramInstruction *scores = blocks->scores;
    self->row = blocks->row;
    self->key = -1;
    const ValueLabels *labels = &blocks->labels.values[scores->first_result];
    bool on_left = region_labels_has(&blocks->labels, scores->operands[0], self->row);
    for (int32_t k = 0; k < labels->count; k++) {
        int32_t label = labels->list[k];
        self->is_unit[label] = label != self->row;
        if (!region_labels_has(&blocks->labels, scores->operands[on_left], label) ||
            region_labels_has(&blocks->labels, scores->operands[!on_left], label))
            continue;
        if (self->key < 0 || blocks->labels.sizes[label] > blocks->labels.sizes[self->key]) self->key = label;
    }
    if (self->key < 0) return region_refuse("its scores have no keys", error);
    self->is_unit[self->key] = false;
    return AM_OK;
}

/* Returns whether it is a dot over widths whose result is a tile, of a value with rows and one with keys. */
static bool is_score(const RegionPlan *self, const ProgramInstruction *instruction) {
    if (instruction->opcode != IR_DOT || !region_plan_is_tile(self, instruction->first_result)) return false;
    for (int32_t l = 0; l < self->blocks.labels.count; l++)
        if (sums_over(self, instruction, l) && !region_plan_is_width(self, l)) return false;
    bool left_rows = region_plan_has(self, instruction->operands[0], self->row);
    int32_t rows = instruction->operands[!left_rows], keys = instruction->operands[left_rows];
    return region_plan_has(self, rows, self->row) && !region_plan_has(self, rows, self->key) &&
           region_plan_has(self, keys, self->key) && !region_plan_has(self, keys, self->row) &&
           !has_width(self, instruction->first_result);
}

static bool has_product_type(const RegionPlan *self, const ProgramInstruction *instruction) {
    for (int32_t k = 0; k < 2; k++)
        if (!dtype_is_floating(self->blocks.region->values[instruction->operands[k]].shape.type))
            return false;
    return dtype_is_floating(self->blocks.region->values[instruction->first_result].shape.type);
}

/* Finds the kind of a sum. */
static AmStatus classify(const RegionPlan *self, RegionSum *sum, const ProgramInstruction *instruction,
                         AmError *error) {
    static const char unknown[] = "a sum has another form";
    int32_t operands = summed_operands(instruction), tiles = 0, widths = 0;
    for (int32_t k = 0; k < operands; k++) {
        bool is_tile = region_plan_is_tile(self, instruction->operands[k]);
        bool is_wide = has_width(self, instruction->operands[k]);
        if (is_tile) sum->tile = k;
        if (is_tile && is_wide) return region_refuse("a tile has widths", error);
        tiles += is_tile;
        widths += is_wide;
    }
    sum->kind = tiles == 0 ? SUM_FLAT : widths > 0 ? SUM_PRODUCT : SUM_ELEMENTS;
    if (sum->kind != SUM_PRODUCT) return AM_OK;
    int32_t other = instruction->operands[!sum->tile], result = instruction->first_result;
    bool by_row = region_plan_has(self, result, self->row), by_key = region_plan_has(self, result, self->key);
    if (by_row == by_key || region_plan_has(self, other, by_row ? self->row : self->key))
        return region_refuse(unknown, error);
    for (int32_t l = 0; l < self->blocks.labels.count; l++)
        if (sum->is_looped[l] && region_plan_is_width(self, l)) return region_refuse(unknown, error);
    return AM_OK;
}

/* Returns whether it folds floating numbers by addition, maximum or minimum. */
static bool folds(const RegionPlan *self, const ProgramInstruction *instruction) {
    const Program *region = self->blocks.region;
    SbpReduction reduction =
        sbp_reduction_of(ir_computation_operator(region->module, instruction->compute.called));
    return instruction->operand_count == 2 &&
           (reduction == SBP_ADD || reduction == SBP_MAX || reduction == SBP_MIN) &&
           dtype_is_floating(region->values[instruction->first_result].shape.type) &&
           cuda_has_arithmetic(region->values[instruction->first_result].shape.type);
}

/* Checks that every label is at one place of a value, and that a value's labels are those of its operands. */
static AmStatus check_labels(const RegionPlan *self, const ProgramInstruction *instruction, AmError *error) {
    const ValueLabels *labels = &self->blocks.labels.values[instruction->first_result];
    const IrShape *shape = &self->blocks.region->values[instruction->first_result].shape;
    for (int32_t k = 0; k < labels->count; k++)
        for (int32_t n = 0; n < k; n++)
            if (labels->list[n] == labels->list[k])
                return region_refuse("a value has one label twice", error);
    if (!cuda_has_arithmetic(shape->type)) return region_refuse("a value's type has no arithmetic", error);
    if (instruction->opcode == IR_CONSTANT)
        return labels->count == 0 ? AM_OK : region_refuse("it has an array of constants", error);
    if (summed_operands(instruction) > 0) return AM_OK;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        if (!is_within(self, instruction->operands[k], instruction->first_result))
            return region_refuse("dimensions are joined in another way", error);
    return instruction->operand_count <= 3 ? AM_OK : region_refuse("more than three operands", error);
}

static AmStatus find_sums(RegionPlan *self, Arena *arena, AmError *error) {
    const Program *region = self->blocks.region;
    self->product = DTYPE_F32;
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        if (!is_used(self, i)) continue;
        TRY(check_labels(self, instruction, error));
        if (summed_operands(instruction) == 0) continue;
        if (instruction->opcode == IR_DOT && !has_product_type(self, instruction))
            return region_refuse("a product of integers", error);
        if (instruction->opcode == IR_REDUCE && !folds(self, instruction))
            return region_refuse("a reduction has another operator", error);
        if (region->values[instruction->first_result].shape.type == DTYPE_F64) self->product = DTYPE_F64;
        self->is_score[i] = is_score(self, instruction);
        if (self->is_score[i]) continue;
        RegionSum *sum = &self->sums[self->sum_count];
        *sum = (RegionSum){.instruction = i,
                           .value = instruction->first_result,
                           .is_looped = ARENA_ARRAY(arena, bool, self->blocks.labels.count + 1),
                           .output = -1};
        if (!sum->is_looped) return am_fail_memory(error, self->blocks.labels.count);
        for (int32_t l = 0; l < self->blocks.labels.count; l++)
            sum->is_looped[l] = sums_over(self, instruction, l);
        TRY(classify(self, sum, instruction, error));
        self->sum_of[sum->value] = self->sum_count++;
    }
    return AM_OK;
}

void region_plan_mark(const RegionPlan *plan, bool *needed, const int32_t *values, int32_t count,
                      int32_t self) {
    const Program *region = plan->blocks.region;
    for (int32_t k = 0; k < count; k++) needed[values[k]] = true;
    for (int32_t i = region->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t value = instruction->first_result;
        if (!needed[value] || value == self || is_sum(plan, value)) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) needed[instruction->operands[k]] = true;
    }
}

/* Sums are computed as late as possible, so that gradients of keys and values share a phase. */
static void order_phases(RegionPlan *self, int32_t *first, int32_t *last) {
    const Program *region = self->blocks.region;
    int32_t phases = 0;
    for (int32_t v = 0; v < region->value_count; v++) first[v] = 0;
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t *own = &first[instruction->first_result];
        if (!is_used(self, i)) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            *own = (int32_t)larger_integer(*own, first[instruction->operands[k]]);
        *own += is_sum(self, instruction->first_result);
        phases = (int32_t)larger_integer(phases, *own);
    }
    for (int32_t v = 0; v < region->value_count; v++) last[v] = phases + 1;
    for (int32_t i = region->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t bound = last[instruction->first_result];
        if (!is_used(self, i)) continue;
        if (is_sum(self, instruction->first_result)) {
            bound -= 1;
            self->sums[self->sum_of[instruction->first_result]].phase = bound;
        }
        for (int32_t k = 0; k < instruction->operand_count; k++)
            last[instruction->operands[k]] = (int32_t)smaller_integer(last[instruction->operands[k]], bound);
    }
}

bool region_plan_alike(const RegionPlan *plan, const RegionSum *a, const RegionSum *b) {
    if (a->phase != b->phase || (a->kind == SUM_FLAT) != (b->kind == SUM_FLAT)) return false;
    if (a->kind == SUM_FLAT) return a == b;
    for (int32_t l = 0; l < plan->blocks.labels.count; l++) {
        if (a->is_looped[l] != b->is_looped[l]) return false;
        if (!region_plan_is_width(plan, l) &&
            region_plan_has(plan, a->value, l) != region_plan_has(plan, b->value, l))
            return false;
    }
    return true;
}

/* Attaches an output to the sum of the latest phase that it depends on, if both have the same elements. */
static void attach_output(RegionPlan *self, int32_t k, bool *needed) {
    const Program *region = self->blocks.region;
    int32_t value = region->outputs[k], latest = -1;
    bool is_only = true;
    self->attached[k] = -1;
    memset(needed, 0, (size_t)region->value_count);
    region_plan_mark(self, needed, &value, 1, -1);
    for (int32_t s = 0; s < self->sum_count; s++) {
        if (!needed[self->sums[s].value]) continue;
        if (latest >= 0 && self->sums[s].phase == self->sums[latest].phase) is_only = false;
        if (latest >= 0 && self->sums[s].phase <= self->sums[latest].phase) continue;
        latest = s;
        is_only = true;
    }
    if (latest < 0 || !is_only) return;
    int32_t sum = self->sums[latest].value;
    if (is_within(self, value, sum) && is_within(self, sum, value)) self->attached[k] = latest;
}

/* Marks the sums that a kernel of these values reads. */
static void store_read(RegionPlan *self, const int32_t *values, int32_t count, int32_t own, bool *needed) {
    memset(needed, 0, (size_t)self->blocks.region->value_count);
    region_plan_mark(self, needed, values, count, own);
    for (int32_t s = 0; s < self->sum_count; s++)
        if (needed[self->sums[s].value] && self->sums[s].value != own) self->sums[s].is_stored = true;
}

static void place_sums(RegionPlan *self, bool *needed) {
    const Program *region = self->blocks.region;
    for (int32_t s = 0; s < self->sum_count; s++) {
        const ProgramInstruction *instruction = &region->instructions[self->sums[s].instruction];
        store_read(self, instruction->operands, instruction->operand_count, -1, needed);
    }
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        int32_t value = region->outputs[k], attached = self->attached[k];
        store_read(self, &value, 1, attached < 0 ? -1 : self->sums[attached].value, needed);
        if (attached >= 0 && self->sums[attached].value == value && self->sums[attached].output < 0)
            self->sums[attached].output = k;
    }
    for (int32_t s = 0; s < self->sum_count; s++) {
        RegionSum *sum = &self->sums[s];
        if (!sum->is_stored || sum->output >= 0) continue;
        sum->at = self->scratch_bytes;
        self->scratch_bytes += kernel_align(ir_shape_bytes(&region->values[sum->value].shape));
    }
}

AmStatus region_plan_find(RegionPlan *plan, Arena *arena, const Program *region, AmError *error) {
    *plan = (RegionPlan){0};
    TRY(region_blocks_find(&plan->blocks, arena, region, false, error));
    int32_t values = region->value_count + 1, labels = plan->blocks.labels.count + 1;
    int32_t outputs = region->roles->output_count + 1;
    int32_t *first = ARENA_ARRAY(arena, int32_t, values), *last = ARENA_ARRAY(arena, int32_t, values);
    bool *needed = ARENA_ARRAY(arena, bool, values);
    plan->is_unit = ARENA_ARRAY(arena, bool, labels);
    plan->sums = ARENA_ARRAY(arena, RegionSum, region->instruction_count + 1);
    plan->sum_of = ARENA_ARRAY(arena, int32_t, values);
    plan->is_score = ARENA_ARRAY(arena, bool, region->instruction_count + 1);
    plan->parameter_of = ARENA_ARRAY(arena, int32_t, values);
    plan->attached = ARENA_ARRAY(arena, int32_t, outputs);
    if (arena->failed) return am_fail_memory(error, values * 16);
    for (int32_t v = 0; v < region->value_count; v++) plan->sum_of[v] = plan->parameter_of[v] = -1;
    for (int32_t k = 0; k < region->roles->parameter_count; k++) {
        int32_t value = region->parameters[k];
        if (value < 0) continue;
        plan->parameter_of[value] = k;
        if (!cuda_has_arithmetic(region->values[value].shape.type))
            return region_refuse("a parameter's type has no arithmetic", error);
    }
    TRY(find_sides(plan, error));
    TRY(find_sums(plan, arena, error));
    order_phases(plan, first, last);
    for (int32_t k = 0; k < region->roles->output_count; k++) attach_output(plan, k, needed);
    place_sums(plan, needed);
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        int32_t value = region->outputs[k], attached = plan->attached[k];
        memset(needed, 0, (size_t)region->value_count);
        region_plan_mark(plan, needed, &value, 1, attached < 0 ? -1 : plan->sums[attached].value);
        for (int32_t i = 0; i < region->instruction_count; i++)
            if (plan->is_score[i] && needed[region->instructions[i].first_result])
                return region_refuse("an output has the scores' size", error);
    }
    TRY(region_blocks_find_causal(&plan->mask, arena, &plan->blocks, error));
    plan->has_mask = plan->mask.key == plan->key;
    return AM_OK;
}
