/* Terms: the known facts of each value of a region, as softmax_form.c evaluates it. Private to that file and
 * softmax_terms.c.
 *
 * A term is a polynomial, an operand times a number, or one of the forms between the scores and the
 * exponential, which have no polynomial.
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
#ifndef EXECUTOR_ATTENTION_SOFTMAX_TERMS_H
#define EXECUTOR_ATTENTION_SOFTMAX_TERMS_H

#include "executor/attention/softmax_form.h"

/* A number this low takes a score out of a softmax. */
#define SOFTMAX_LOW (-0.99e9) /* -1e9 in bf16 is above -1e9 */

typedef enum SoftmaxTermKind {
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
} SoftmaxTermKind;

/* The symbols of polynomials: e = exp(s - max), l = sum of e, g = do v^T, r = sum of g e. */
enum { EXPONENTIAL, SUM, SLOPE, SLOPE_SUM, SYMBOLS };
enum { SOFTMAX_MONOMIALS = 4 };

typedef struct SoftmaxMonomial {
    double factor;
    int32_t powers[SYMBOLS];
} SoftmaxMonomial;

typedef struct SoftmaxTerm {
    SoftmaxTermKind kind;
    int32_t count; /* of monomials */
    SoftmaxMonomial list[SOFTMAX_MONOMIALS];
    double factor;
    int32_t parameter, other, bias; /* of rows, of keys; -1: none */
    int64_t along, across, offset;
    SoftmaxMask mask;
    bool is_negated;
    bool is_normal; /* TERM_SHIFTED: by the log-sum-exp */
    SoftmaxRole role;
    int32_t sums; /* TERM_RESULT: power of the sum in an output */
} SoftmaxTerm;

typedef struct SoftmaxSearch {
    SoftmaxForm *form;
    const Program *region;
    SoftmaxTerm *terms; /* [value] */
    int32_t statistic_count;
    bool has_scores, has_slopes, is_inconsistent;
} SoftmaxSearch;

/* Returns whether a value has a dimension with the label. */
bool softmax_has(const SoftmaxSearch *self, int32_t value, int32_t label);
/* Takes a parameter as an operand of the form; `is_inconsistent` is set if another one was taken before. */
void softmax_settle(SoftmaxSearch *self, int32_t *place, int32_t parameter);
/* Returns whether a value has every label of the scores but the key: a statistic of rows. */
bool softmax_is_statistic(const SoftmaxSearch *self, int32_t value);

/* Return the term of an unknown value, and that of a number. */
SoftmaxTerm softmax_other(void);
SoftmaxTerm softmax_number(double number);
/* Returns whether a term is a number, and sets it. */
bool softmax_is_number(const SoftmaxTerm *term, double *number);
/* Returns whether factors are equal but for the rounding of bf16. */
bool softmax_is_same(double a, double b);

/* Returns the terms of operators on terms; TERM_OTHER if the result has none of the forms. */
SoftmaxTerm softmax_multiply(SoftmaxSearch *self, const SoftmaxTerm *a, const SoftmaxTerm *b);
SoftmaxTerm softmax_divide(SoftmaxSearch *self, const SoftmaxTerm *a, const SoftmaxTerm *b);
/* Returns a + b, or a - b with the sign -1. */
SoftmaxTerm softmax_add(SoftmaxSearch *self, const SoftmaxTerm *a, const SoftmaxTerm *b, double sign);
/* Compares; `direction`: that of HLO, "GE". */
SoftmaxTerm softmax_compare(const char *direction, const SoftmaxTerm *a, const SoftmaxTerm *b);
SoftmaxTerm softmax_select(SoftmaxSearch *self, const SoftmaxTerm *sees, const SoftmaxTerm *yes,
                           const SoftmaxTerm *no);
SoftmaxTerm softmax_exponential(SoftmaxSearch *self, const SoftmaxTerm *a);
/* Returns the sum over the keys of a row. */
SoftmaxTerm softmax_sum_keys(const SoftmaxTerm *a);

/* Takes a product of operands as scores. */
SoftmaxTerm softmax_as_scores(SoftmaxSearch *self, const SoftmaxTerm *term);
/* Turns a negated mask into a plain one; false: the term is no negated mask. */
bool softmax_make_positive(SoftmaxTerm *sees);
/* Restricts a mask to the positions that another one has as well. */
void softmax_restrict_mask(SoftmaxMask *mask, const SoftmaxMask *by);

#endif
