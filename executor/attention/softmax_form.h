/* Recognises a region as plain attention, which libraries have as one kernel:
 *
 *     s = scale q k^T + bias, masked by positions;  p = softmax(s);  o = p v
 *     backward: dq, dk and dv from do and the statistics of the rows
 *
 * The form is found by algebra, not by the order of operators. After the exponential e = exp(s - max), every
 * value is a polynomial in e, the sum l of e, the products g = do v^T and the sum r of g e. The weights are e
 * / l, and the gradient of the scores is g e / l - r e / l^2, however a program writes them. Roundings
 * between operators are ignored.
 */
#ifndef EXECUTOR_ATTENTION_SOFTMAX_FORM_H
#define EXECUTOR_ATTENTION_SOFTMAX_FORM_H

#include "executor/attention/region_blocks.h"

typedef enum SoftmaxRole {
    SOFTMAX_OUTPUT,
    SOFTMAX_MAXIMUM,
    SOFTMAX_SUM,
    SOFTMAX_LOG_SUM,
    SOFTMAX_QUERY_GRADIENT,
    SOFTMAX_KEY_GRADIENT,
    SOFTMAX_VALUE_GRADIENT
} SoftmaxRole;

/* A row at position i sees keys at positions i - first to i + last. */
typedef struct SoftmaxMask {
    bool has_last, has_first;
    int64_t last, first;
} SoftmaxMask;

typedef struct SoftmaxForm {
    bool is_backward;
    RegionBlocks blocks;
    int32_t row, key;                                     /* labels */
    int32_t queries, keys, values, output_gradient, bias; /* parameters; -1: none */
    int32_t maximum, sum; /* parameters of a backward region: saved statistics. sum -1: `maximum` is the
                             log-sum-exp; both -1: the region computes them again */
    double scale;
    SoftmaxMask mask;
    SoftmaxRole *roles; /* [output] */
} SoftmaxForm;

/* Finds the form, in the arena. AM_ERROR_INPUT: the region has another one; the text is the reason. */
AmStatus softmax_form_find(SoftmaxForm *form, Arena *arena, const Program *region, AmError *error);

/* Returns the label of a parameter that is no label of the scores, or -1: the width of queries, keys, values
 * and their gradients. */
int32_t softmax_form_width(const SoftmaxForm *form, int32_t value);

#endif
