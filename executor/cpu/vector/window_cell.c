/* One cell of a window at many places of a line at once: pooling and its gradient.
 *
 * Place p has `channels` neighbouring floats at p*step in the image and at
 * p*channels elsewhere. Maxima keep a NaN, as the element-wise operator does.
 */
#include "executor/cpu/vector/vector.h"

#define DEFINE_FOLD(NAME, EXPRESSION)                                                             \
    static void NAME(float *restrict out, const float *restrict in, const VectorPlaces *places) { \
        const int64_t channels = places->channels;                                                \
        for (int64_t p = 0; p < places->count; p++, out += channels, in += places->step)          \
            for (int64_t c = 0; c < channels; c++) {                                              \
                const float x = out[c], y = in[c];                                                \
                out[c] = EXPRESSION;                                                              \
            }                                                                                     \
    }
DEFINE_FOLD(fold_maximum, x > y || x != x ? x : y)
DEFINE_FOLD(fold_minimum, x < y || x != x ? x : y)
DEFINE_FOLD(fold_sum, x + y)

#define DEFINE_CHOOSE(NAME, KEEPS)                                                                           \
    static void NAME(float *restrict best, int32_t *restrict chosen, const float *restrict in, int32_t cell, \
                     const VectorPlaces *places) {                                                           \
        const int64_t channels = places->channels;                                                           \
        for (int64_t p = 0; p < places->count;                                                               \
             p++, best += channels, chosen += channels, in += places->step)                                  \
            for (int64_t c = 0; c < channels; c++) {                                                         \
                const float x = best[c], y = in[c];                                                          \
                const int32_t now = chosen[c];                                                               \
                const int32_t keeps = (now >= 0) & (KEEPS);                                                  \
                best[c] = keeps ? x : y;                                                                     \
                chosen[c] = keeps ? now : cell;                                                              \
            }                                                                                                \
    }
DEFINE_CHOOSE(choose_at_least, x >= y)
DEFINE_CHOOSE(choose_above, x > y)

static void add_chosen(float *restrict out, const int32_t *restrict chosen, const float *restrict source,
                       int32_t cell, const VectorPlaces *places) {
    const int64_t channels = places->channels;
    for (int64_t p = 0; p < places->count; p++, out += places->step, chosen += channels, source += channels)
        for (int64_t c = 0; c < channels; c++) {
            const float before = out[c], after = before + source[c];
            out[c] = chosen[c] == cell ? after : before;
        }
}

const VectorPool VECTOR_NAME(vector_pool) = {
    .maximum = fold_maximum,
    .minimum = fold_minimum,
    .sum = fold_sum,
    .choose_at_least = choose_at_least,
    .choose_above = choose_above,
    .add_chosen = add_chosen,
};
