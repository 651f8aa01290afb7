/* The algebra of terms (softmax_terms.h): products, sums, masks and exponentials.
 *
 * Parameters get their places in the form where a term shows their use: a product of two becomes queries and
 * keys when scores are needed, and the output's gradient and values when a polynomial is needed.
 */
#include "executor/attention/softmax_terms.h"

#include <math.h>
#include <string.h>

bool softmax_has(const SoftmaxSearch *self, int32_t value, int32_t label) {
    return region_labels_has(&self->form->blocks.labels, value, label);
}

SoftmaxTerm softmax_other(void) {
    return (SoftmaxTerm){.kind = TERM_OTHER};
}

SoftmaxTerm softmax_number(double number) {
    SoftmaxTerm term = {.kind = TERM_POLYNOMIAL, .count = number != 0, .list[0].factor = number};
    return term;
}

bool softmax_is_number(const SoftmaxTerm *term, double *number) {
    if (term->kind != TERM_POLYNOMIAL || term->count > 1) return false;
    for (int32_t k = 0; k < SYMBOLS && term->count == 1; k++)
        if (term->list[0].powers[k] != 0) return false;
    *number = term->count == 0 ? 0 : term->list[0].factor;
    return true;
}

bool softmax_is_same(double a, double b) {
    return fabs(a - b) <= 1e-2 * fabs(b); /* bf16 rounds a factor by up to 2^-8 */
}

static SoftmaxTerm symbol(int32_t which, double factor) {
    SoftmaxTerm term = {.kind = TERM_POLYNOMIAL, .count = 1, .list[0].factor = factor};
    term.list[0].powers[which] = 1;
    return term;
}

void softmax_settle(SoftmaxSearch *self, int32_t *place, int32_t parameter) {
    if (*place >= 0 && *place != parameter) self->is_inconsistent = true;
    *place = parameter;
}

bool softmax_is_statistic(const SoftmaxSearch *self, int32_t value) {
    const RegionLabels *labels = &self->form->blocks.labels;
    const ValueLabels *scores = &labels->values[self->form->blocks.scores->first_result];
    if (labels->values[value].count != scores->count - 1 || softmax_has(self, value, self->form->key))
        return false;
    for (int32_t k = 0; k < labels->values[value].count; k++)
        if (!softmax_has(self, self->form->blocks.scores->first_result, labels->values[value].list[k]))
            return false;
    return dtype_is_floating(self->region->values[value].shape.type);
}

/* Takes a product of operands as the slopes g, a statistic as the sum l. */
static SoftmaxTerm as_polynomial(SoftmaxSearch *self, const SoftmaxTerm *term) {
    if (term->kind == TERM_PRODUCT) {
        softmax_settle(self, &self->form->output_gradient, term->parameter);
        softmax_settle(self, &self->form->values, term->other);
        self->has_slopes = true;
        return symbol(SLOPE, term->factor);
    }
    if (term->kind == TERM_INPUT && softmax_is_statistic(self, self->region->parameters[term->parameter]) &&
        self->statistic_count > 1 && term->parameter != self->form->maximum) {
        softmax_settle(self, &self->form->sum, term->parameter);
        return symbol(SUM, term->factor);
    }
    return term->kind == TERM_POLYNOMIAL ? *term : softmax_other();
}

SoftmaxTerm softmax_as_scores(SoftmaxSearch *self, const SoftmaxTerm *term) {
    SoftmaxTerm scores = *term;
    if (term->kind == TERM_SCORES) return scores;
    if (term->kind != TERM_PRODUCT) return softmax_other();
    softmax_settle(self, &self->form->queries, term->parameter);
    softmax_settle(self, &self->form->keys, term->other);
    scores.kind = TERM_SCORES;
    scores.bias = -1;
    return scores;
}

SoftmaxTerm softmax_multiply(SoftmaxSearch *self, const SoftmaxTerm *a, const SoftmaxTerm *b) {
    double number;
    if (softmax_is_number(a, &number) && !softmax_is_number(b, &number)) return softmax_multiply(self, b, a);
    if (softmax_is_number(b, &number) && a->kind != TERM_POLYNOMIAL) {
        SoftmaxTerm scaled = *a;
        scaled.factor *= number;
        bool scales = a->kind == TERM_INPUT || a->kind == TERM_PRODUCT || a->kind == TERM_RESULT ||
                      (a->kind == TERM_SCORES && a->bias < 0 && number > 0);
        return scales ? scaled : softmax_other();
    }
    if (a->kind == TERM_RESULT && a->role == SOFTMAX_OUTPUT) {
        SoftmaxTerm sum = as_polynomial(self, b), result = *a;
        if (sum.kind != TERM_POLYNOMIAL || sum.count != 1 || sum.list[0].powers[EXPONENTIAL] != 0 ||
            sum.list[0].powers[SLOPE] != 0 || sum.list[0].powers[SLOPE_SUM] != 0)
            return softmax_other();
        result.factor *= sum.list[0].factor;
        result.sums += sum.list[0].powers[SUM];
        return result;
    }
    if (b->kind == TERM_RESULT && a->kind != TERM_RESULT) return softmax_multiply(self, b, a);
    SoftmaxTerm x = as_polynomial(self, a), y = as_polynomial(self, b), result = {.kind = TERM_POLYNOMIAL};
    if (x.kind != TERM_POLYNOMIAL || y.kind != TERM_POLYNOMIAL || x.count * y.count > SOFTMAX_MONOMIALS)
        return softmax_other();
    for (int32_t i = 0; i < x.count; i++)
        for (int32_t j = 0; j < y.count; j++) {
            SoftmaxMonomial *made = &result.list[result.count++];
            made->factor = x.list[i].factor * y.list[j].factor;
            for (int32_t k = 0; k < SYMBOLS; k++) made->powers[k] = x.list[i].powers[k] + y.list[j].powers[k];
        }
    return result;
}

SoftmaxTerm softmax_divide(SoftmaxSearch *self, const SoftmaxTerm *a, const SoftmaxTerm *b) {
    SoftmaxTerm inverse = as_polynomial(self, b);
    if (inverse.kind != TERM_POLYNOMIAL || inverse.count != 1) return softmax_other();
    inverse.list[0].factor = 1 / inverse.list[0].factor;
    for (int32_t k = 0; k < SYMBOLS; k++) inverse.list[0].powers[k] *= -1;
    return softmax_multiply(self, a, &inverse);
}

static SoftmaxTerm add_polynomials(const SoftmaxTerm *a, const SoftmaxTerm *b, double sign) {
    SoftmaxTerm sum = *a;
    for (int32_t j = 0; j < b->count; j++) {
        int32_t i = 0;
        while (i < sum.count && memcmp(sum.list[i].powers, b->list[j].powers, sizeof sum.list[i].powers) != 0)
            i++;
        if (i == SOFTMAX_MONOMIALS) return softmax_other();
        if (i == sum.count) {
            sum.list[sum.count] = b->list[j];
            sum.list[sum.count++].factor = 0;
        }
        sum.list[i].factor += sign * b->list[j].factor;
    }
    return sum;
}

static SoftmaxTerm add_positions(const SoftmaxTerm *a, const SoftmaxTerm *b, int64_t sign) {
    SoftmaxTerm sum = {.kind = TERM_POSITION};
    const SoftmaxTerm *parts[2] = {a, b};
    for (int32_t k = 0; k < 2; k++) {
        double number = 0;
        int64_t factor = k == 1 ? sign : 1;
        if (parts[k]->kind != TERM_POSITION && !softmax_is_number(parts[k], &number)) return softmax_other();
        if (parts[k]->kind != TERM_POSITION) sum.offset += factor * (int64_t)number;
        else {
            sum.along += factor * parts[k]->along;
            sum.across += factor * parts[k]->across;
            sum.offset += factor * parts[k]->offset;
        }
    }
    return sum;
}

void softmax_restrict_mask(SoftmaxMask *mask, const SoftmaxMask *by) {
    if (by->has_last && (!mask->has_last || by->last < mask->last)) mask->last = by->last;
    if (by->has_first && (!mask->has_first || by->first < mask->first)) mask->first = by->first;
    mask->has_last |= by->has_last;
    mask->has_first |= by->has_first;
}

static bool is_same_mask(const SoftmaxMask *a, const SoftmaxMask *b) {
    return a->has_last == b->has_last && a->has_first == b->has_first &&
           (!a->has_last || a->last == b->last) && (!a->has_first || a->first == b->first);
}

SoftmaxTerm softmax_add(SoftmaxSearch *self, const SoftmaxTerm *a, const SoftmaxTerm *b, double sign) {
    if (a->kind == TERM_POSITION || b->kind == TERM_POSITION) return add_positions(a, b, (int64_t)sign);
    if (sign > 0 && a->kind == TERM_LOGARITHM && b->kind == TERM_MAXIMUM)
        return softmax_add(self, b, a, sign);
    if (sign > 0 && a->kind == TERM_MAXIMUM && b->kind == TERM_LOGARITHM)
        return (SoftmaxTerm){.kind = TERM_LOG_SUM};
    bool a_scores = a->kind == TERM_PRODUCT || a->kind == TERM_SCORES;
    bool b_is_statistic =
        b->kind == TERM_INPUT && softmax_is_statistic(self, self->region->parameters[b->parameter]);
    if (sign < 0 && a_scores &&
        (b->kind == TERM_MAXIMUM || b->kind == TERM_LOG_SUM || (b_is_statistic && b->factor == 1))) {
        SoftmaxTerm shifted = softmax_as_scores(self, a);
        if (b_is_statistic) softmax_settle(self, &self->form->maximum, b->parameter);
        shifted.kind = TERM_SHIFTED;
        shifted.is_normal = b->kind == TERM_LOG_SUM || (b_is_statistic && self->statistic_count == 1);
        return shifted;
    }
    if (sign > 0 && a->kind == TERM_INPUT && (b->kind == TERM_PRODUCT || b->kind == TERM_SCORES))
        return softmax_add(self, b, a, sign);
    if (sign > 0 && a_scores && b->kind == TERM_INPUT && b->factor == 1 &&
        softmax_has(self, self->region->parameters[b->parameter], self->form->key)) {
        SoftmaxTerm biased = softmax_as_scores(self, a);
        if (biased.bias >= 0 || biased.mask.has_last || biased.mask.has_first) return softmax_other();
        biased.bias = b->parameter;
        return biased;
    }
    SoftmaxTerm x = as_polynomial(self, a), y = as_polynomial(self, b);
    return x.kind == TERM_POLYNOMIAL && y.kind == TERM_POLYNOMIAL ? add_polynomials(&x, &y, sign)
                                                                  : softmax_other();
}

/* Positions a, b with a - b = c (row - key) + offset compare as a mask. */
SoftmaxTerm softmax_compare(const char *direction, const SoftmaxTerm *a, const SoftmaxTerm *b) {
    SoftmaxTerm difference = add_positions(a, b, -1), result = {.kind = TERM_SEES};
    if (difference.kind != TERM_POSITION || difference.along * difference.along != 1 ||
        difference.across != -difference.along || direction[0] == 'E' || direction[0] == 'N')
        return softmax_other();
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

/* Replaces a negated mask. A negation of one bound is the other bound; both together have no negation. */
bool softmax_make_positive(SoftmaxTerm *sees) {
    if (!sees->is_negated) return true;
    if (sees->mask.has_last == sees->mask.has_first) return false;
    SoftmaxMask mask = {.has_last = sees->mask.has_first, .has_first = sees->mask.has_last};
    mask.last = -(sees->mask.first + 1);
    mask.first = -(sees->mask.last + 1);
    sees->mask = mask;
    sees->is_negated = false;
    return true;
}

SoftmaxTerm softmax_select(SoftmaxSearch *self, const SoftmaxTerm *sees, const SoftmaxTerm *yes,
                           const SoftmaxTerm *no) {
    double number;
    if (sees->kind != TERM_SEES) return softmax_other();
    const SoftmaxTerm *inside = sees->is_negated ? no : yes, *outside = sees->is_negated ? yes : no;
    if (!softmax_is_number(outside, &number)) {
        SoftmaxTerm turned = *sees; /* the same selection, with the bound on its other side */
        turned.is_negated = !turned.is_negated;
        if (!softmax_make_positive(&turned) || sees->is_negated) return softmax_other();
        return softmax_is_number(inside, &number) ? softmax_select(self, &turned, no, yes) : softmax_other();
    }
    double kept;
    if (softmax_is_number(inside, &kept) && kept == 1 && number == 0) {
        SoftmaxTerm same = *sees;
        same.is_negated = false;
        return same;
    }
    if ((inside->kind == TERM_PRODUCT || inside->kind == TERM_SCORES) && number <= SOFTMAX_LOW) {
        /* A bias may be as low as the masked scores, as another mask is. */
        SoftmaxTerm masked = softmax_as_scores(self, inside);
        if (masked.bias >= 0) return softmax_other();
        softmax_restrict_mask(&masked.mask, &sees->mask);
        return masked;
    }
    /* Weights are 0 outside of the mask, and so is what they are multiplied by. */
    if (number != 0 || inside->kind != TERM_POLYNOMIAL || !self->has_scores ||
        !is_same_mask(&sees->mask, &self->form->mask))
        return softmax_other();
    for (int32_t k = 0; k < inside->count; k++)
        if (inside->list[k].powers[EXPONENTIAL] < 1) return softmax_other();
    return *inside;
}

SoftmaxTerm softmax_exponential(SoftmaxSearch *self, const SoftmaxTerm *a) {
    if (a->kind != TERM_SHIFTED) return softmax_other();
    SoftmaxForm *form = self->form;
    if (self->has_scores && (form->bias != a->bias || !softmax_is_same(a->factor, form->scale) ||
                             !is_same_mask(&form->mask, &a->mask)))
        self->is_inconsistent = true;
    self->has_scores = true;
    form->bias = a->bias;
    form->scale = a->factor;
    form->mask = a->mask;
    SoftmaxTerm result = symbol(EXPONENTIAL, 1);
    result.list[0].powers[SUM] = a->is_normal ? -1 : 0;
    return result;
}

SoftmaxTerm softmax_sum_keys(const SoftmaxTerm *a) {
    SoftmaxTerm sum = *a;
    if (a->kind != TERM_POLYNOMIAL) return softmax_other();
    for (int32_t k = 0; k < sum.count; k++) {
        int32_t *powers = sum.list[k].powers;
        if (powers[EXPONENTIAL] != 1 || powers[SLOPE] > 1 || powers[SLOPE] < 0) return softmax_other();
        powers[powers[SLOPE] == 1 ? SLOPE_SUM : SUM]++;
        powers[EXPONENTIAL] = powers[SLOPE] = 0;
    }
    return sum;
}
