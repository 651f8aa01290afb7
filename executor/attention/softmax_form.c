/* Recognises a region as plain attention.
 *
 * evaluate_term() finds the term of each value from those of its operands (softmax_terms.h), in the region's
 * order. find_role() then finds the role of each output: the output, a statistic, or a gradient.
 * softmax_form_find() refuses regions in which a term has no use, or two places of the form have different
 * operands.
 */
#include "executor/attention/softmax_terms.h"

#include <string.h>

#include "executor/array/scalar64.h"

static bool has_equal_labels(const SoftmaxSearch *self, int32_t a, int32_t b) {
    const RegionLabels *labels = &self->form->blocks.labels;
    if (labels->values[a].count != labels->values[b].count) return false;
    for (int32_t k = 0; k < labels->values[a].count; k++)
        if (!softmax_has(self, b, labels->values[a].list[k])) return false;
    return true;
}

/* Returns whether exactly the key is summed over; `*is_none`: nothing is. */
static bool sums_key(const SoftmaxSearch *self, int32_t operand, int32_t result, bool *is_none) {
    bool is_key = false, is_other = false;
    for (int32_t l = 0; l < self->form->blocks.labels.count; l++) {
        if (!softmax_has(self, operand, l) || softmax_has(self, result, l)) continue;
        if (l == self->form->key) is_key = true;
        else is_other = true;
    }
    *is_none = !is_key && !is_other;
    return is_key && !is_other;
}

static SoftmaxTerm reduce_term(SoftmaxSearch *self, const ProgramInstruction *instruction) {
    const SoftmaxTerm *a = &self->terms[instruction->operands[0]],
                      *initial = &self->terms[instruction->operands[1]];
    SbpReduction fold =
        sbp_reduction_of(ir_computation_operator(self->region->module, instruction->compute.called));
    double number;
    bool is_none, is_key = sums_key(self, instruction->operands[0], instruction->first_result, &is_none);
    if (!softmax_is_number(initial, &number) || (!is_key && !is_none)) return softmax_other();
    if (fold == SBP_ADD && number == 0) return is_none ? *a : softmax_sum_keys(a);
    if (fold != SBP_MAX || !(number <= SOFTMAX_LOW) || is_none) return softmax_other();
    SoftmaxTerm scores = softmax_as_scores(self, a);
    if (scores.kind != TERM_SCORES) return softmax_other();
    return (SoftmaxTerm){.kind = TERM_MAXIMUM};
}

/* Recognises the gradient of the scores, g e / l - r e / l^2, times `*factor`. */
static bool is_score_gradient(const SoftmaxTerm *a, double *factor) {
    static const int32_t first[SYMBOLS] = {1, -1, 1, 0}, second[SYMBOLS] = {1, -2, 0, 1};
    if (a->kind != TERM_POLYNOMIAL || a->count != 2) return false;
    int32_t k = memcmp(a->list[0].powers, first, sizeof first) != 0;
    *factor = a->list[k].factor;
    return memcmp(a->list[k].powers, first, sizeof first) == 0 &&
           memcmp(a->list[!k].powers, second, sizeof second) == 0 &&
           softmax_is_same(-a->list[!k].factor, *factor);
}

static SoftmaxTerm multiply_matrices(SoftmaxSearch *self, const ProgramInstruction *instruction) {
    SoftmaxForm *form = self->form;
    const SoftmaxTerm *of[2] = {&self->terms[instruction->operands[0]],
                                &self->terms[instruction->operands[1]]};
    int32_t result = instruction->first_result;
    bool by_row = softmax_has(self, result, form->row), by_key = softmax_has(self, result, form->key);
    if (instruction->operand_count != 2) return softmax_other();
    if (by_row && by_key) {
        int32_t rows = softmax_has(self, instruction->operands[0], form->row) ? 0 : 1;
        if (of[0]->kind != TERM_INPUT || of[1]->kind != TERM_INPUT ||
            softmax_has(self, instruction->operands[rows], form->key) ||
            softmax_has(self, instruction->operands[!rows], form->row) ||
            !has_equal_labels(self, result, form->blocks.scores->first_result))
            return softmax_other();
        return (SoftmaxTerm){.kind = TERM_PRODUCT,
                             .parameter = of[rows]->parameter,
                             .other = of[!rows]->parameter,
                             .factor = of[0]->factor * of[1]->factor,
                             .bias = -1};
    }
    int32_t tile = of[0]->kind == TERM_INPUT ? 1 : 0;
    const SoftmaxTerm *weights = of[tile], *input = of[!tile];
    double factor;
    if (by_row == by_key || input->kind != TERM_INPUT) return softmax_other();
    SoftmaxTerm made = {.kind = TERM_RESULT, .parameter = input->parameter};
    if (is_score_gradient(weights, &factor)) {
        made.factor = factor * input->factor;
        made.role = by_row ? SOFTMAX_QUERY_GRADIENT : SOFTMAX_KEY_GRADIENT;
        return made;
    }
    /* e / l, or e, times a factor */
    if (weights->kind != TERM_POLYNOMIAL || weights->count != 1 ||
        weights->list[0].powers[EXPONENTIAL] != 1 || weights->list[0].powers[SLOPE] != 0 ||
        weights->list[0].powers[SLOPE_SUM] != 0)
        return softmax_other();
    made.factor = weights->list[0].factor * input->factor;
    made.sums = weights->list[0].powers[SUM];
    made.role = by_row ? SOFTMAX_OUTPUT : SOFTMAX_VALUE_GRADIENT;
    return made;
}

/* Returns the positions of rows or keys: an iota, or a parameter that counts. */
static SoftmaxTerm position(const SoftmaxSearch *self, int32_t label, int64_t first) {
    if (label != self->form->row && label != self->form->key) return softmax_other();
    return (SoftmaxTerm){.kind = TERM_POSITION,
                         .along = label == self->form->row,
                         .across = label == self->form->key,
                         .offset = first};
}

static SoftmaxTerm constant(const SoftmaxSearch *self, const ProgramInstruction *instruction) {
    const IrShape *shape = &self->region->values[instruction->first_result].shape;
    Scalar64 number;
    if (shape->rank != 0 || !instruction->compute.literal->data || !scalar64_supports(shape->type))
        return softmax_other();
    scalar64_load(&number, instruction->compute.literal->data, shape->type, 1, 1);
    Scalar64Kind kind = scalar64_kind(shape->type);
    return softmax_number(kind == SCALAR64_FLOATING ? number.floating
                          : kind == SCALAR64_SIGNED ? (double)number.as_signed
                                                    : (double)number.as_unsigned);
}

/* Returns the term of an iota: the position along its one label. */
static SoftmaxTerm iota(SoftmaxSearch *self, const ProgramInstruction *instruction) {
    const ValueLabels *labels = &self->form->blocks.labels.values[instruction->first_result];
    const IrAttributes *attributes = instruction->attributes;
    int64_t d = attributes->dimension_count > 0 ? attributes->dimensions[0] : 0;
    int32_t before = d > 0 ? labels->ends[d - 1] : 0;
    return labels->ends[d] - before == 1 ? position(self, labels->list[before], 0) : softmax_other();
}

/* Returns whether a term is the sum of exponentials alone. */
static bool is_sum(const SoftmaxTerm *term) {
    if (term->kind != TERM_POLYNOMIAL || term->count != 1 || term->list[0].factor != 1) return false;
    return term->list[0].powers[SUM] == 1 && term->list[0].powers[EXPONENTIAL] == 0 &&
           term->list[0].powers[SLOPE] == 0 && term->list[0].powers[SLOPE_SUM] == 0;
}

/* Returns the term of an instruction's result from those of its operands. */
static SoftmaxTerm evaluate_term(SoftmaxSearch *self, const ProgramInstruction *instruction) {
    SoftmaxTerm none = softmax_other();
    const SoftmaxTerm *of[3] = {&none, &none, &none};
    for (int32_t k = 0; k < instruction->operand_count && k < 3; k++)
        of[k] = &self->terms[instruction->operands[k]];
    if (instruction->kind == PROGRAM_VIEW) return *of[0];
    switch (instruction->opcode) {
    case IR_CONSTANT: return constant(self, instruction);
    case IR_IOTA: return iota(self, instruction);
    case IR_DOT: return multiply_matrices(self, instruction);
    case IR_REDUCE: return reduce_term(self, instruction);
    case IR_MULTIPLY: return softmax_multiply(self, of[0], of[1]);
    case IR_DIVIDE: return softmax_divide(self, of[0], of[1]);
    case IR_ADD: return softmax_add(self, of[0], of[1], 1);
    case IR_SUBTRACT: return softmax_add(self, of[0], of[1], -1);
    case IR_NEGATE: {
        SoftmaxTerm minus = softmax_number(-1);
        return softmax_multiply(self, of[0], &minus);
    }
    case IR_MAXIMUM: {
        double number;
        if (of[0]->kind != TERM_MAXIMUM) {
            const SoftmaxTerm *first = of[0];
            of[0] = of[1];
            of[1] = first;
        }
        bool is_lowest = softmax_is_number(of[1], &number) && number <= SOFTMAX_LOW;
        return of[0]->kind == TERM_MAXIMUM && is_lowest ? *of[0] : softmax_other();
    }
    case IR_EXPONENTIAL: return softmax_exponential(self, of[0]);
    case IR_LOG: return is_sum(of[0]) ? (SoftmaxTerm){.kind = TERM_LOGARITHM} : softmax_other();
    case IR_COMPARE:
        return instruction->attributes->comparison
                   ? softmax_compare(instruction->attributes->comparison, of[0], of[1])
                   : softmax_other();
    case IR_AND: {
        SoftmaxTerm both = *of[0], second = *of[1];
        if (both.kind != TERM_SEES || second.kind != TERM_SEES || !softmax_make_positive(&both) ||
            !softmax_make_positive(&second))
            return softmax_other();
        softmax_restrict_mask(&both.mask, &second.mask);
        return both;
    }
    case IR_NOT: {
        SoftmaxTerm turned = *of[0];
        turned.is_negated = !turned.is_negated;
        return turned.kind == TERM_SEES ? turned : softmax_other();
    }
    case IR_SELECT: return softmax_select(self, of[0], of[1], of[2]);
    case IR_CONVERT:
    case IR_COPY:
    case IR_RESHAPE:
    case IR_BROADCAST:
    case IR_TRANSPOSE: return *of[0];
    default: return softmax_other();
    }
}

int32_t softmax_form_width(const SoftmaxForm *form, int32_t value) {
    const ValueLabels *labels = &form->blocks.labels.values[value];
    int32_t width = -1;
    for (int32_t k = 0; k < labels->count; k++) {
        bool is_of_scores =
            region_labels_has(&form->blocks.labels, form->blocks.scores->first_result, labels->list[k]);
        if (!is_of_scores && width >= 0) return -1;
        if (!is_of_scores) width = labels->list[k];
    }
    return width;
}

/* Finds the key: a label of the scores and of their operand without rows only. */
static AmStatus find_sides(SoftmaxSearch *self, AmError *error) {
    SoftmaxForm *form = self->form;
    const RegionLabels *labels = &form->blocks.labels;
    const ProgramInstruction *scores = form->blocks.scores;
    int32_t of_rows = region_labels_has(labels, scores->operands[0], form->blocks.row) ? 0 : 1;
    form->row = form->blocks.row;
    form->key = -1;
    for (int32_t k = 0; k < labels->values[scores->first_result].count; k++) {
        int32_t label = labels->values[scores->first_result].list[k];
        if (region_labels_has(labels, scores->operands[of_rows], label)) continue;
        if (form->key >= 0) return region_refuse("its keys have several dimensions", error);
        form->key = label;
    }
    return form->key >= 0 ? AM_OK : region_refuse("its scores have no keys", error);
}

static void find_parameters(SoftmaxSearch *self) {
    const Program *region = self->region;
    const RegionLabels *labels = &self->form->blocks.labels;
    for (int32_t k = 0; k < region->roles->parameter_count; k++) {
        int32_t value = region->parameters[k];
        if (value < 0) continue;
        const ProgramValue *of = &region->values[value];
        if (dtype_is_floating(of->shape.type))
            self->terms[value] = (SoftmaxTerm){.kind = TERM_INPUT, .parameter = k, .factor = 1, .bias = -1};
        else if (of->is_iota && labels->values[value].count == 1)
            self->terms[value] = position(self, labels->values[value].list[0], of->iota_first);
        self->statistic_count += softmax_is_statistic(self, value);
    }
}

/* Returns whether every row sees a key. */
static bool is_useful(const SoftmaxSearch *self) {
    const SoftmaxMask *mask = &self->form->mask;
    const int64_t *sizes = self->form->blocks.labels.sizes;
    return (!mask->has_last || mask->last >= 0) &&
           (!mask->has_first || sizes[self->form->row] - 1 - mask->first <= sizes[self->form->key] - 1) &&
           (!mask->has_last || !mask->has_first || mask->last + mask->first >= 0);
}

static AmStatus find_role(SoftmaxSearch *self, int32_t k, AmError *error) {
    SoftmaxForm *form = self->form;
    int32_t value = self->region->outputs[k];
    const SoftmaxTerm *term = &self->terms[value];
    const int32_t *parameters = self->region->parameters;
    SoftmaxRole *role = &form->roles[k];
    if (term->kind == TERM_MAXIMUM || term->kind == TERM_LOG_SUM ||
        (term->kind == TERM_POLYNOMIAL && term->count == 1 && term->list[0].factor == 1 &&
         term->list[0].powers[SUM] == 1)) {
        *role = term->kind == TERM_MAXIMUM   ? SOFTMAX_MAXIMUM
                : term->kind == TERM_LOG_SUM ? SOFTMAX_LOG_SUM
                                             : SOFTMAX_SUM;
        bool is_plain = term->kind != TERM_POLYNOMIAL ||
                        (term->list[0].powers[EXPONENTIAL] == 0 && term->list[0].powers[SLOPE] == 0 &&
                         term->list[0].powers[SLOPE_SUM] == 0);
        return is_plain ? AM_OK : region_refuse("an output has another form", error);
    }
    if (term->kind != TERM_RESULT) return region_refuse("an output has another form", error);
    *role = term->role;
    bool is_output = term->role == SOFTMAX_OUTPUT, is_value = term->role == SOFTMAX_VALUE_GRADIENT;
    if (is_output) softmax_settle(self, &form->values, term->parameter);
    if (is_value) softmax_settle(self, &form->output_gradient, term->parameter);
    if (term->role == SOFTMAX_QUERY_GRADIENT) softmax_settle(self, &form->keys, term->parameter);
    if (term->role == SOFTMAX_KEY_GRADIENT) softmax_settle(self, &form->queries, term->parameter);
    if ((is_output || is_value) && (term->sums != -1 || !softmax_is_same(term->factor, 1)))
        return region_refuse("its weights are scaled", error);
    if (!is_output && !is_value && !softmax_is_same(term->factor, form->scale))
        return region_refuse("a gradient is scaled", error);
    if (is_output) {
        const ValueLabels *scores = &form->blocks.labels.values[form->blocks.scores->first_result];
        for (int32_t l = 0; l < scores->count; l++)
            if (scores->list[l] != form->key && !softmax_has(self, value, scores->list[l]))
                return region_refuse("its output lacks a dimension", error);
        return AM_OK;
    }
    int32_t like = is_value                               ? form->values
                   : term->role == SOFTMAX_QUERY_GRADIENT ? form->queries
                                                          : form->keys;
    return like >= 0 && has_equal_labels(self, value, parameters[like])
               ? AM_OK
               : region_refuse("a gradient has other dimensions than its operand", error);
}

AmStatus softmax_form_find(SoftmaxForm *form, Arena *arena, const Program *region, AmError *error) {
    SoftmaxSearch self = {.form = form, .region = region};
    *form = (SoftmaxForm){
        .queries = -1, .keys = -1, .values = -1, .output_gradient = -1, .bias = -1, .maximum = -1, .sum = -1};
    TRY(region_blocks_find(&form->blocks, arena, region, false, error));
    self.terms = ARENA_ARRAY(arena, SoftmaxTerm, region->value_count + 1);
    form->roles = ARENA_ARRAY(arena, SoftmaxRole, region->roles->output_count + 1);
    if (arena->failed) return am_fail_memory(error, region->value_count * (int64_t)sizeof(SoftmaxTerm));
    TRY(find_sides(&self, error));
    find_parameters(&self);
    if (self.statistic_count > 2) return region_refuse("it has more than two statistics of rows", error);
    for (int32_t i = 0; i < region->instruction_count; i++)
        self.terms[region->instructions[i].first_result] = evaluate_term(&self, &region->instructions[i]);
    if (!self.has_scores) return region_refuse("it has another form than a softmax of scores", error);
    for (int32_t k = 0; k < region->roles->output_count; k++) TRY(find_role(&self, k, error));
    form->is_backward = self.has_slopes;
    if (self.is_inconsistent) return region_refuse("it has several attentions", error);
    if (form->queries < 0 || form->keys < 0 || form->values < 0 ||
        (form->is_backward && form->output_gradient < 0))
        return region_refuse("it lacks an operand", error);
    if (form->is_backward && self.statistic_count == 2 && form->sum < 0)
        return region_refuse("it reads a statistic of unknown use", error);
    return is_useful(&self) ? AM_OK : region_refuse("a row sees no key", error);
}
