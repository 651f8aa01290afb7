/* Evaluates a region on terms: what is known of each value. A term is a polynomial, an operand times a
 * number, or one of the forms between the scores and the exponential, which have no polynomial.
 *
 *   kind        value                                            producer
 *   OTHER       nothing is known                                 all other operators
 *   POLYNOMIAL  sum of monomials in e, l, g and r; a number      exp, constants, sums and products of these
 *   INPUT       factor times a parameter                         parameter, multiply by a number
 *   POSITION    along * row + across * key + offset, integers    iota, add, subtract
 *   SEES        the mask, or its negation                        compare of positions, and, not
 *   PRODUCT     factor times rows of a parameter by keys         dot of two inputs
 *   SCORES      such a product, perhaps with bias and mask       add of a bias, select by a mask
 *   MAXIMUM     maximum of the scores of a row                   reduce by maximum
 *   SHIFTED     scores minus a statistic of the row              subtract
 *   LOGARITHM   logarithm of the sum of exponentials             log
 *   LOG_SUM     maximum plus logarithm                           add
 *   RESULT      factor times a product of weights or gradients   dot with a polynomial
 */
#include "executor/attention/softmax_form.h"

#include <math.h>
#include <string.h>

#include "base/integers.h"
#include "executor/array/wide.h"

static const double low_number = -0.99e9; /* -1e9 in bf16 is above -1e9 */

typedef enum TermKind {
    TERM_OTHER,
    TERM_POLYNOMIAL, /* a number is one of degree 0 */
    TERM_INPUT,      /* factor times a parameter */
    TERM_POSITION,   /* along * row + across * key + offset, of integers */
    TERM_SEES,       /* the mask, or its negation */
    TERM_PRODUCT,    /* factor times rows of a parameter by keys of another */
    TERM_SCORES,     /* such a product, perhaps with bias and mask */
    TERM_MAXIMUM,    /* of scores, by row */
    TERM_SHIFTED,    /* scores minus a statistic of the row */
    TERM_LOGARITHM,  /* of the sum of exponentials */
    TERM_LOG_SUM,
    TERM_RESULT /* factor times a product of weights or gradients: an output's role */
} TermKind;

enum { EXPONENTIAL, SUM, SLOPE, SLOPE_SUM, SYMBOLS, MOST_MONOMIALS = 4 };

typedef struct Monomial {
    double factor;
    int32_t powers[SYMBOLS];
} Monomial;

typedef struct Term {
    TermKind kind;
    int32_t count; /* of monomials */
    Monomial list[MOST_MONOMIALS];
    double factor;
    int32_t parameter, other, bias; /* of rows, of keys; -1: none */
    int64_t along, across, offset;
    SoftmaxMask mask;
    bool is_negated;
    bool is_normal; /* TERM_SHIFTED: by the log-sum-exp */
    SoftmaxRole role;
    int32_t sums; /* TERM_RESULT: power of the sum in an output */
} Term;

typedef struct FormSearch {
    SoftmaxForm *form;
    const Program *region;
    Term *terms; /* [value] */
    int32_t statistic_count;
    bool has_scores, has_slopes, is_inconsistent;
} FormSearch;

static bool has(const FormSearch *self, int32_t value, int32_t label) {
    return region_labels_has(&self->form->blocks.labels, value, label);
}

static Term other(void) {
    return (Term){.kind = TERM_OTHER};
}

static Term number_term(double number) {
    Term term = {.kind = TERM_POLYNOMIAL, .count = number != 0, .list[0].factor = number};
    return term;
}

static bool is_number(const Term *term, double *number) {
    if (term->kind != TERM_POLYNOMIAL || term->count > 1) return false;
    for (int32_t k = 0; k < SYMBOLS && term->count == 1; k++)
        if (term->list[0].powers[k] != 0) return false;
    *number = term->count == 0 ? 0 : term->list[0].factor;
    return true;
}

static bool is_same(double a, double b) {
    return fabs(a - b) <= 1e-2 * fabs(b); /* bf16 rounds a factor by up to 2^-8 */
}

static Term symbol(int32_t which, double factor) {
    Term term = {.kind = TERM_POLYNOMIAL, .count = 1, .list[0].factor = factor};
    term.list[0].powers[which] = 1;
    return term;
}

/* Takes a parameter, which must be the same wherever it is taken. */
static void settle(FormSearch *self, int32_t *place, int32_t parameter) {
    if (*place >= 0 && *place != parameter) self->is_inconsistent = true;
    *place = parameter;
}

/* Every label of the scores but the key: a statistic of rows. */
static bool is_statistic(const FormSearch *self, int32_t value) {
    const RegionLabels *labels = &self->form->blocks.labels;
    const ValueLabels *scores = &labels->values[self->form->blocks.scores->first_result];
    if (labels->values[value].count != scores->count - 1 || has(self, value, self->form->key)) return false;
    for (int32_t k = 0; k < labels->values[value].count; k++)
        if (!has(self, self->form->blocks.scores->first_result, labels->values[value].list[k])) return false;
    return dtype_is_floating(self->region->values[value].shape.type);
}

/* A product of operands as the slopes g, a statistic as the sum l. */
static Term as_polynomial(FormSearch *self, const Term *term) {
    if (term->kind == TERM_PRODUCT) {
        settle(self, &self->form->output_gradient, term->parameter);
        settle(self, &self->form->values, term->other);
        self->has_slopes = true;
        return symbol(SLOPE, term->factor);
    }
    if (term->kind == TERM_INPUT && is_statistic(self, self->region->parameters[term->parameter]) &&
        self->statistic_count > 1 && term->parameter != self->form->maximum) {
        settle(self, &self->form->sum, term->parameter);
        return symbol(SUM, term->factor);
    }
    return term->kind == TERM_POLYNOMIAL ? *term : other();
}

/* A product of operands as scores. */
static Term as_scores(FormSearch *self, const Term *term) {
    Term scores = *term;
    if (term->kind == TERM_SCORES) return scores;
    if (term->kind != TERM_PRODUCT) return other();
    settle(self, &self->form->queries, term->parameter);
    settle(self, &self->form->keys, term->other);
    scores.kind = TERM_SCORES;
    scores.bias = -1;
    return scores;
}

static Term multiply(FormSearch *self, const Term *a, const Term *b) {
    double number;
    if (is_number(a, &number) && !is_number(b, &number)) return multiply(self, b, a);
    if (is_number(b, &number) && a->kind != TERM_POLYNOMIAL) {
        Term scaled = *a;
        scaled.factor *= number;
        bool scales = a->kind == TERM_INPUT || a->kind == TERM_PRODUCT || a->kind == TERM_RESULT ||
                      (a->kind == TERM_SCORES && a->bias < 0 && number > 0);
        return scales ? scaled : other();
    }
    if (a->kind == TERM_RESULT && a->role == SOFTMAX_OUTPUT) {
        Term sum = as_polynomial(self, b), result = *a;
        if (sum.kind != TERM_POLYNOMIAL || sum.count != 1 || sum.list[0].powers[EXPONENTIAL] != 0 ||
            sum.list[0].powers[SLOPE] != 0 || sum.list[0].powers[SLOPE_SUM] != 0)
            return other();
        result.factor *= sum.list[0].factor;
        result.sums += sum.list[0].powers[SUM];
        return result;
    }
    if (b->kind == TERM_RESULT && a->kind != TERM_RESULT) return multiply(self, b, a);
    Term x = as_polynomial(self, a), y = as_polynomial(self, b), result = {.kind = TERM_POLYNOMIAL};
    if (x.kind != TERM_POLYNOMIAL || y.kind != TERM_POLYNOMIAL || x.count * y.count > MOST_MONOMIALS)
        return other();
    for (int32_t i = 0; i < x.count; i++)
        for (int32_t j = 0; j < y.count; j++) {
            Monomial *made = &result.list[result.count++];
            made->factor = x.list[i].factor * y.list[j].factor;
            for (int32_t k = 0; k < SYMBOLS; k++) made->powers[k] = x.list[i].powers[k] + y.list[j].powers[k];
        }
    return result;
}

static Term divide(FormSearch *self, const Term *a, const Term *b) {
    Term inverse = as_polynomial(self, b);
    if (inverse.kind != TERM_POLYNOMIAL || inverse.count != 1) return other();
    inverse.list[0].factor = 1 / inverse.list[0].factor;
    for (int32_t k = 0; k < SYMBOLS; k++) inverse.list[0].powers[k] *= -1;
    return multiply(self, a, &inverse);
}

static Term add_polynomials(const Term *a, const Term *b, double sign) {
    Term sum = *a;
    for (int32_t j = 0; j < b->count; j++) {
        int32_t i = 0;
        while (i < sum.count && memcmp(sum.list[i].powers, b->list[j].powers, sizeof sum.list[i].powers) != 0)
            i++;
        if (i == MOST_MONOMIALS) return other();
        if (i == sum.count) {
            sum.list[sum.count] = b->list[j];
            sum.list[sum.count++].factor = 0;
        }
        sum.list[i].factor += sign * b->list[j].factor;
    }
    return sum;
}

static Term add_positions(const Term *a, const Term *b, int64_t sign) {
    Term sum = {.kind = TERM_POSITION};
    const Term *parts[2] = {a, b};
    for (int32_t k = 0; k < 2; k++) {
        double number = 0;
        int64_t factor = k == 1 ? sign : 1;
        if (parts[k]->kind != TERM_POSITION && !is_number(parts[k], &number)) return other();
        if (parts[k]->kind != TERM_POSITION) sum.offset += factor * (int64_t)number;
        else {
            sum.along += factor * parts[k]->along;
            sum.across += factor * parts[k]->across;
            sum.offset += factor * parts[k]->offset;
        }
    }
    return sum;
}

static void restrict_mask(SoftmaxMask *mask, const SoftmaxMask *by) {
    if (by->has_last && (!mask->has_last || by->last < mask->last)) mask->last = by->last;
    if (by->has_first && (!mask->has_first || by->first < mask->first)) mask->first = by->first;
    mask->has_last |= by->has_last;
    mask->has_first |= by->has_first;
}

static bool has_mask(const SoftmaxMask *mask) {
    return mask->has_last || mask->has_first;
}

static bool is_same_mask(const SoftmaxMask *a, const SoftmaxMask *b) {
    return a->has_last == b->has_last && a->has_first == b->has_first &&
           (!a->has_last || a->last == b->last) && (!a->has_first || a->first == b->first);
}

static Term add(FormSearch *self, const Term *a, const Term *b, double sign) {
    if (a->kind == TERM_POSITION || b->kind == TERM_POSITION) return add_positions(a, b, (int64_t)sign);
    if (sign > 0 && a->kind == TERM_LOGARITHM && b->kind == TERM_MAXIMUM) return add(self, b, a, sign);
    if (sign > 0 && a->kind == TERM_MAXIMUM && b->kind == TERM_LOGARITHM) return (Term){.kind = TERM_LOG_SUM};
    bool a_scores = a->kind == TERM_PRODUCT || a->kind == TERM_SCORES;
    bool b_is_statistic = b->kind == TERM_INPUT && is_statistic(self, self->region->parameters[b->parameter]);
    if (sign < 0 && a_scores &&
        (b->kind == TERM_MAXIMUM || b->kind == TERM_LOG_SUM || (b_is_statistic && b->factor == 1))) {
        Term shifted = as_scores(self, a);
        if (b_is_statistic) settle(self, &self->form->maximum, b->parameter);
        shifted.kind = TERM_SHIFTED;
        shifted.is_normal = b->kind == TERM_LOG_SUM || (b_is_statistic && self->statistic_count == 1);
        return shifted;
    }
    if (sign > 0 && a->kind == TERM_INPUT && (b->kind == TERM_PRODUCT || b->kind == TERM_SCORES))
        return add(self, b, a, sign);
    if (sign > 0 && a_scores && b->kind == TERM_INPUT && b->factor == 1 &&
        has(self, self->region->parameters[b->parameter], self->form->key)) {
        Term biased = as_scores(self, a);
        if (biased.bias >= 0 || has_mask(&biased.mask)) return other();
        biased.bias = b->parameter;
        return biased;
    }
    Term x = as_polynomial(self, a), y = as_polynomial(self, b);
    return x.kind == TERM_POLYNOMIAL && y.kind == TERM_POLYNOMIAL ? add_polynomials(&x, &y, sign) : other();
}

/* Positions a, b with a - b = c (row - key) + offset compare as a mask. */
static Term compare(const char *direction, const Term *a, const Term *b) {
    Term difference = add_positions(a, b, -1), result = {.kind = TERM_SEES};
    if (difference.kind != TERM_POSITION || difference.along * difference.along != 1 ||
        difference.across != -difference.along || direction[0] == 'E' || direction[0] == 'N')
        return other();
    /* row - key >= bound, or its negation row - key < bound. */
    bool is_greater = (direction[0] == 'G') == (difference.along > 0);
    int64_t offset = difference.offset * difference.along, bound = -offset;
    bool is_strict = direction[1] == 'T';
    if (is_greater) {
        result.mask.has_last = true;
        result.mask.last = -(bound + is_strict);
    } else {
        result.mask.has_first = true;
        result.mask.first = bound - is_strict;
    }
    return result;
}

/* A negation of one bound is the other bound; both together have no negation. */
static bool make_positive(Term *sees) {
    if (!sees->is_negated) return true;
    if (sees->mask.has_last == sees->mask.has_first) return false;
    SoftmaxMask mask = {.has_last = sees->mask.has_first, .has_first = sees->mask.has_last};
    mask.last = -(sees->mask.first + 1);
    mask.first = -(sees->mask.last + 1);
    sees->mask = mask;
    sees->is_negated = false;
    return true;
}

static Term select(FormSearch *self, const Term *sees, const Term *yes, const Term *no) {
    double number;
    if (sees->kind != TERM_SEES) return other();
    const Term *inside = sees->is_negated ? no : yes, *outside = sees->is_negated ? yes : no;
    if (!is_number(outside, &number)) {
        Term turned = *sees; /* the same selection, with the bound on its other side */
        turned.is_negated = !turned.is_negated;
        if (!make_positive(&turned) || sees->is_negated) return other();
        return is_number(inside, &number) ? select(self, &turned, no, yes) : other();
    }
    double kept;
    if (is_number(inside, &kept) && kept == 1 && number == 0) {
        Term same = *sees;
        same.is_negated = false;
        return same;
    }
    if ((inside->kind == TERM_PRODUCT || inside->kind == TERM_SCORES) && number <= low_number) {
        /* A bias may be as low as the masked scores, as another mask is. */
        Term masked = as_scores(self, inside);
        if (masked.bias >= 0) return other();
        restrict_mask(&masked.mask, &sees->mask);
        return masked;
    }
    /* Weights are 0 outside of the mask, and so is what they are multiplied by. */
    if (number != 0 || inside->kind != TERM_POLYNOMIAL || !self->has_scores ||
        !is_same_mask(&sees->mask, &self->form->mask))
        return other();
    for (int32_t k = 0; k < inside->count; k++)
        if (inside->list[k].powers[EXPONENTIAL] < 1) return other();
    return *inside;
}

static Term exponential(FormSearch *self, const Term *a) {
    if (a->kind != TERM_SHIFTED) return other();
    SoftmaxForm *form = self->form;
    if (self->has_scores &&
        (form->bias != a->bias || !is_same(a->factor, form->scale) || !is_same_mask(&form->mask, &a->mask)))
        self->is_inconsistent = true;
    self->has_scores = true;
    form->bias = a->bias;
    form->scale = a->factor;
    form->mask = a->mask;
    Term result = symbol(EXPONENTIAL, 1);
    result.list[0].powers[SUM] = a->is_normal ? -1 : 0;
    return result;
}

static Term sum_keys(const Term *a) {
    Term sum = *a;
    if (a->kind != TERM_POLYNOMIAL) return other();
    for (int32_t k = 0; k < sum.count; k++) {
        int32_t *powers = sum.list[k].powers;
        if (powers[EXPONENTIAL] != 1 || powers[SLOPE] > 1 || powers[SLOPE] < 0) return other();
        powers[powers[SLOPE] == 1 ? SLOPE_SUM : SUM]++;
        powers[EXPONENTIAL] = powers[SLOPE] = 0;
    }
    return sum;
}

static bool has_equal_labels(const FormSearch *self, int32_t a, int32_t b) {
    const RegionLabels *labels = &self->form->blocks.labels;
    if (labels->values[a].count != labels->values[b].count) return false;
    for (int32_t k = 0; k < labels->values[a].count; k++)
        if (!has(self, b, labels->values[a].list[k])) return false;
    return true;
}

/* Returns whether exactly the key is summed over; `*is_none`: nothing is. */
static bool sums_key(const FormSearch *self, int32_t operand, int32_t result, bool *is_none) {
    bool is_key = false, is_other = false;
    for (int32_t l = 0; l < self->form->blocks.labels.count; l++) {
        if (!has(self, operand, l) || has(self, result, l)) continue;
        if (l == self->form->key) is_key = true;
        else is_other = true;
    }
    *is_none = !is_key && !is_other;
    return is_key && !is_other;
}

static Term reduce(FormSearch *self, const ProgramInstruction *instruction) {
    const Term *a = &self->terms[instruction->operands[0]], *initial = &self->terms[instruction->operands[1]];
    SbpReduction fold =
        sbp_reduction_of(ir_computation_operator(self->region->module, instruction->compute.called));
    double number;
    bool is_none, is_key = sums_key(self, instruction->operands[0], instruction->first_result, &is_none);
    if (!is_number(initial, &number) || (!is_key && !is_none)) return other();
    if (fold == SBP_ADD && number == 0) return is_none ? *a : sum_keys(a);
    if (fold != SBP_MAX || !(number <= low_number) || is_none) return other();
    Term scores = as_scores(self, a);
    if (scores.kind != TERM_SCORES) return other();
    return (Term){.kind = TERM_MAXIMUM};
}

/* The gradient of the scores, g e / l - r e / l^2, times `*factor`. */
static bool is_score_gradient(const Term *a, double *factor) {
    static const int32_t first[SYMBOLS] = {1, -1, 1, 0}, second[SYMBOLS] = {1, -2, 0, 1};
    if (a->kind != TERM_POLYNOMIAL || a->count != 2) return false;
    int32_t k = memcmp(a->list[0].powers, first, sizeof first) != 0;
    *factor = a->list[k].factor;
    return memcmp(a->list[k].powers, first, sizeof first) == 0 &&
           memcmp(a->list[!k].powers, second, sizeof second) == 0 && is_same(-a->list[!k].factor, *factor);
}

/* e / l, or e, times a factor. */
static bool is_weights(const Term *a) {
    return a->kind == TERM_POLYNOMIAL && a->count == 1 && a->list[0].powers[EXPONENTIAL] == 1 &&
           a->list[0].powers[SLOPE] == 0 && a->list[0].powers[SLOPE_SUM] == 0;
}

static Term multiply_matrices(FormSearch *self, const ProgramInstruction *instruction) {
    SoftmaxForm *form = self->form;
    const Term *of[2] = {&self->terms[instruction->operands[0]], &self->terms[instruction->operands[1]]};
    int32_t result = instruction->first_result;
    bool by_row = has(self, result, form->row), by_key = has(self, result, form->key);
    if (instruction->operand_count != 2) return other();
    if (by_row && by_key) {
        int32_t rows = has(self, instruction->operands[0], form->row) ? 0 : 1;
        if (of[0]->kind != TERM_INPUT || of[1]->kind != TERM_INPUT ||
            has(self, instruction->operands[rows], form->key) ||
            has(self, instruction->operands[!rows], form->row) ||
            !has_equal_labels(self, result, form->blocks.scores->first_result))
            return other();
        return (Term){.kind = TERM_PRODUCT,
                      .parameter = of[rows]->parameter,
                      .other = of[!rows]->parameter,
                      .factor = of[0]->factor * of[1]->factor,
                      .bias = -1};
    }
    int32_t tile = of[0]->kind == TERM_INPUT ? 1 : 0;
    const Term *weights = of[tile], *input = of[!tile];
    double factor;
    if (by_row == by_key || input->kind != TERM_INPUT) return other();
    Term made = {.kind = TERM_RESULT, .parameter = input->parameter};
    if (is_score_gradient(weights, &factor)) {
        made.factor = factor * input->factor;
        made.role = by_row ? SOFTMAX_QUERY_GRADIENT : SOFTMAX_KEY_GRADIENT;
        return made;
    }
    if (!is_weights(weights)) return other();
    made.factor = weights->list[0].factor * input->factor;
    made.sums = weights->list[0].powers[SUM];
    made.role = by_row ? SOFTMAX_OUTPUT : SOFTMAX_VALUE_GRADIENT;
    return made;
}

/* Numbers of a row or key, by an iota or a parameter that counts. */
static Term position(const FormSearch *self, int32_t label, int64_t first) {
    if (label != self->form->row && label != self->form->key) return other();
    return (Term){.kind = TERM_POSITION,
                  .along = label == self->form->row,
                  .across = label == self->form->key,
                  .offset = first};
}

static Term constant(const FormSearch *self, const ProgramInstruction *instruction) {
    const IrShape *shape = &self->region->values[instruction->first_result].shape;
    Wide number;
    if (shape->rank != 0 || !instruction->compute.literal->data || !wide_supports(shape->type))
        return other();
    wide_load(&number, instruction->compute.literal->data, shape->type, 1, 1);
    WideKind kind = wide_kind(shape->type);
    return number_term(kind == WIDE_FLOATING ? number.floating
                       : kind == WIDE_SIGNED ? (double)number.as_signed
                                             : (double)number.as_unsigned);
}

static Term evaluate(FormSearch *self, const ProgramInstruction *instruction) {
    const RegionLabels *labels = &self->form->blocks.labels;
    Term none = other();
    const Term *of[3] = {&none, &none, &none};
    int32_t d;
    for (int32_t k = 0; k < instruction->operand_count && k < 3; k++)
        of[k] = &self->terms[instruction->operands[k]];
    if (instruction->kind == PROGRAM_VIEW) return *of[0];
    switch (instruction->opcode) {
    case IR_CONSTANT: return constant(self, instruction);
    case IR_IOTA:
        d = instruction->attributes->dimension_count > 0 ? (int32_t)instruction->attributes->dimensions[0]
                                                         : 0;
        int32_t before = d > 0 ? labels->values[instruction->first_result].ends[d - 1] : 0;
        if (labels->values[instruction->first_result].ends[d] - before != 1) return other();
        return position(self, labels->values[instruction->first_result].list[before], 0);
    case IR_DOT: return multiply_matrices(self, instruction);
    case IR_REDUCE: return reduce(self, instruction);
    case IR_MULTIPLY: return multiply(self, of[0], of[1]);
    case IR_DIVIDE: return divide(self, of[0], of[1]);
    case IR_ADD: return add(self, of[0], of[1], 1);
    case IR_SUBTRACT: return add(self, of[0], of[1], -1);
    case IR_NEGATE: {
        Term minus = number_term(-1);
        return multiply(self, of[0], &minus);
    }
    case IR_MAXIMUM: {
        double number;
        if (of[0]->kind != TERM_MAXIMUM) {
            const Term *first = of[0];
            of[0] = of[1];
            of[1] = first;
        }
        bool is_lowest = is_number(of[1], &number) && number <= low_number;
        return of[0]->kind == TERM_MAXIMUM && is_lowest ? *of[0] : other();
    }
    case IR_EXPONENTIAL: return exponential(self, of[0]);
    case IR_LOG: {
        bool is_sum = of[0]->kind == TERM_POLYNOMIAL && of[0]->count == 1 && of[0]->list[0].factor == 1 &&
                      of[0]->list[0].powers[SUM] == 1 && of[0]->list[0].powers[EXPONENTIAL] == 0 &&
                      of[0]->list[0].powers[SLOPE] == 0 && of[0]->list[0].powers[SLOPE_SUM] == 0;
        return is_sum ? (Term){.kind = TERM_LOGARITHM} : other();
    }
    case IR_COMPARE:
        return instruction->attributes->comparison
                   ? compare(instruction->attributes->comparison, of[0], of[1])
                   : other();
    case IR_AND: {
        Term both = *of[0], second = *of[1];
        if (both.kind != TERM_SEES || second.kind != TERM_SEES || !make_positive(&both) ||
            !make_positive(&second))
            return other();
        restrict_mask(&both.mask, &second.mask);
        return both;
    }
    case IR_NOT: {
        Term turned = *of[0];
        turned.is_negated = !turned.is_negated;
        return turned.kind == TERM_SEES ? turned : other();
    }
    case IR_SELECT: return select(self, of[0], of[1], of[2]);
    case IR_CONVERT:
    case IR_COPY:
    case IR_RESHAPE:
    case IR_BROADCAST:
    case IR_TRANSPOSE: return *of[0];
    default: return other();
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

/* The key: a label of the scores and of their operand without rows only. */
static AmStatus find_sides(FormSearch *self, AmError *error) {
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

static void find_parameters(FormSearch *self) {
    const Program *region = self->region;
    const RegionLabels *labels = &self->form->blocks.labels;
    for (int32_t k = 0; k < region->roles->parameter_count; k++) {
        int32_t value = region->parameters[k];
        if (value < 0) continue;
        const ProgramValue *of = &region->values[value];
        if (dtype_is_floating(of->shape.type))
            self->terms[value] = (Term){.kind = TERM_INPUT, .parameter = k, .factor = 1, .bias = -1};
        else if (of->is_iota && labels->values[value].count == 1)
            self->terms[value] = position(self, labels->values[value].list[0], of->iota_first);
        self->statistic_count += is_statistic(self, value);
    }
}

/* Every row sees a key. */
static bool is_useful(const FormSearch *self) {
    const SoftmaxMask *mask = &self->form->mask;
    const int64_t *sizes = self->form->blocks.labels.sizes;
    return (!mask->has_last || mask->last >= 0) &&
           (!mask->has_first || sizes[self->form->row] - 1 - mask->first <= sizes[self->form->key] - 1) &&
           (!mask->has_last || !mask->has_first || mask->last + mask->first >= 0);
}

static AmStatus find_role(FormSearch *self, int32_t k, AmError *error) {
    SoftmaxForm *form = self->form;
    int32_t value = self->region->outputs[k];
    const Term *term = &self->terms[value];
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
    if (is_output) settle(self, &form->values, term->parameter);
    if (is_value) settle(self, &form->output_gradient, term->parameter);
    if (term->role == SOFTMAX_QUERY_GRADIENT) settle(self, &form->keys, term->parameter);
    if (term->role == SOFTMAX_KEY_GRADIENT) settle(self, &form->queries, term->parameter);
    if ((is_output || is_value) && (term->sums != -1 || !is_same(term->factor, 1)))
        return region_refuse("its weights are scaled", error);
    if (!is_output && !is_value && !is_same(term->factor, form->scale))
        return region_refuse("a gradient is scaled", error);
    if (is_output) {
        const ValueLabels *scores = &form->blocks.labels.values[form->blocks.scores->first_result];
        for (int32_t l = 0; l < scores->count; l++)
            if (scores->list[l] != form->key && !has(self, value, scores->list[l]))
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
    FormSearch self = {.form = form, .region = region};
    *form = (SoftmaxForm){
        .queries = -1, .keys = -1, .values = -1, .output_gradient = -1, .bias = -1, .maximum = -1, .sum = -1};
    TRY(region_blocks_find(&form->blocks, arena, region, false, error));
    self.terms = ARENA_ARRAY(arena, Term, region->value_count + 1);
    form->roles = ARENA_ARRAY(arena, SoftmaxRole, region->roles->output_count + 1);
    if (arena->failed) return am_fail_memory(error, region->value_count * (int64_t)sizeof(Term));
    TRY(find_sides(&self, error));
    find_parameters(&self);
    if (self.statistic_count > 2) return region_refuse("it has more than two statistics of rows", error);
    for (int32_t i = 0; i < region->instruction_count; i++)
        self.terms[region->instructions[i].first_result] = evaluate(&self, &region->instructions[i]);
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
