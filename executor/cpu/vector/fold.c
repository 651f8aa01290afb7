/* Folds of packed elements: rows to one value each, rows onto one another.
 *
 * A row is folded in 32 lanes (element i in lane i mod 32), the lanes in a tree,
 * what is left over one by one: the same order on every processor. Rows are
 * folded onto accumulators four at a time.
 */
#include <string.h>

#include "executor/cpu/vector/vector.h"

enum { LANES = 8, ROWS = 4 };

/* Sums, in double. */
typedef float Single __attribute__((vector_size(LANES * sizeof(float))));
typedef double Twice __attribute__((vector_size(LANES * sizeof(double))));
typedef int32_t Mask __attribute__((vector_size(LANES * sizeof(int32_t))));

static inline Single load(const float *in) {
    Single value;
    memcpy(&value, in, sizeof value);
    return value;
}

static inline Single choose(Mask first, Single a, Single b) {
    return (Single)(((Mask)a & first) | ((Mask)b & ~first));
}

#define KEEPS_SINGLE(value)  (value)
#define WIDENS(value)        __builtin_convertvector(value, Twice)
#define ADD_SCALAR(a, b)     ((a) + (b))
#define MAXIMUM_SCALAR(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MINIMUM_SCALAR(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define ADD_VECTOR(a, b)     ((a) + (b))
#define MAXIMUM_VECTOR(a, b) choose(((a) > (b)) | ((a) != (a)), a, b)
#define MINIMUM_VECTOR(a, b) choose(((a) < (b)) | ((a) != (a)), a, b)

/* Rows of f32 in explicit vectors of accumulators: the compiler would keep lanes in memory. */
#define DEFINE_SINGLE_ROWS(NAME, TYPE, VECTOR, WIDEN, SCALAR, LANEWISE)                              \
    static TYPE NAME##_row(const float *in, int64_t length, TYPE total) {                            \
        int64_t i = 0;                                                                               \
        if (length >= LANES) {                                                                       \
            VECTOR lanes = WIDEN(load(in));                                                          \
            i = LANES;                                                                               \
            if (length >= 4 * LANES) {                                                               \
                VECTOR second = WIDEN(load(in + LANES)), third = WIDEN(load(in + 2 * LANES));        \
                VECTOR fourth = WIDEN(load(in + 3 * LANES));                                         \
                for (i = 4 * LANES; i + 4 * LANES <= length; i += 4 * LANES) {                       \
                    VECTOR a = WIDEN(load(in + i)), b = WIDEN(load(in + i + LANES));                 \
                    VECTOR c = WIDEN(load(in + i + 2 * LANES)), d = WIDEN(load(in + i + 3 * LANES)); \
                    lanes = LANEWISE(lanes, a);                                                      \
                    second = LANEWISE(second, b);                                                    \
                    third = LANEWISE(third, c);                                                      \
                    fourth = LANEWISE(fourth, d);                                                    \
                }                                                                                    \
                lanes = LANEWISE(lanes, third);                                                      \
                second = LANEWISE(second, fourth);                                                   \
                lanes = LANEWISE(lanes, second);                                                     \
            }                                                                                        \
            for (; i + LANES <= length; i += LANES) {                                                \
                VECTOR a = WIDEN(load(in + i));                                                      \
                lanes = LANEWISE(lanes, a);                                                          \
            }                                                                                        \
            TYPE half[4], pair[2];                                                                   \
            for (int32_t k = 0; k < 4; k++) half[k] = SCALAR(lanes[k], lanes[k + 4]);                \
            for (int32_t k = 0; k < 2; k++) pair[k] = SCALAR(half[k], half[k + 2]);                  \
            TYPE one = SCALAR(pair[0], pair[1]);                                                     \
            total = SCALAR(total, one);                                                              \
        }                                                                                            \
        for (; i < length; i++) total = SCALAR(total, (TYPE)in[i]);                                  \
        return total;                                                                                \
    }                                                                                                \
    static void NAME##_rows(void *accumulators, const void *in, int64_t stride, int64_t rows,        \
                            int64_t length) {                                                        \
        TYPE *totals = accumulators;                                                                 \
        for (int64_t r = 0; r < rows; r++)                                                           \
            totals[r] = NAME##_row((const float *)in + r * stride, length, totals[r]);               \
    }
DEFINE_SINGLE_ROWS(F32_ADD, double, Twice, WIDENS, ADD_SCALAR, ADD_VECTOR)
DEFINE_SINGLE_ROWS(F32_MAX, float, Single, KEEPS_SINGLE, MAXIMUM_SCALAR, MAXIMUM_VECTOR)
DEFINE_SINGLE_ROWS(F32_MIN, float, Single, KEEPS_SINGLE, MINIMUM_SCALAR, MINIMUM_VECTOR)

/* Other types and operators. */
#define DEFINE_ROWS(NAME, TYPE, SUM, SCALAR)                                                  \
    static void NAME##_rows(void *accumulators, const void *in, int64_t stride, int64_t rows, \
                            int64_t length) {                                                 \
        SUM *totals = accumulators;                                                           \
        for (int64_t r = 0; r < rows; r++) {                                                  \
            const TYPE *row = (const TYPE *)in + r * stride;                                  \
            SUM total = totals[r];                                                            \
            for (int64_t i = 0; i < length; i++) {                                            \
                SUM x = (SUM)row[i];                                                          \
                total = SCALAR(total, x);                                                     \
            }                                                                                 \
            totals[r] = total;                                                                \
        }                                                                                     \
    }

#define DEFINE_COLUMNS(NAME, TYPE, SUM, FIELD, SCALAR)                                                  \
    static void NAME##_begin(void *accumulators, const Wide *value, int64_t count) {                    \
        SUM *totals = accumulators;                                                                     \
        for (int64_t i = 0; i < count; i++) totals[i] = (SUM)value->FIELD;                              \
    }                                                                                                   \
    static void NAME##_columns(void *accumulators, const void *in, int64_t stride, int64_t rows,        \
                               int64_t width) {                                                         \
        SUM *totals = accumulators;                                                                     \
        const TYPE *row = in;                                                                           \
        int64_t r = 0;                                                                                  \
        for (; r + ROWS <= rows; r += ROWS, row += ROWS * stride) {                                     \
            const TYPE *first = row, *second = row + stride;                                            \
            const TYPE *third = row + 2 * stride, *fourth = row + 3 * stride;                           \
            _Pragma("GCC ivdep") for (int64_t j = 0; j < width; j++) {                                  \
                SUM a = (SUM)first[j], b = (SUM)second[j];                                              \
                SUM c = (SUM)third[j], d = (SUM)fourth[j];                                              \
                SUM upper = SCALAR(a, b), lower = SCALAR(c, d), all = SCALAR(upper, lower);             \
                SUM total = totals[j];                                                                  \
                totals[j] = SCALAR(total, all);                                                         \
            }                                                                                           \
        }                                                                                               \
        for (; r < rows; r++, row += stride) _Pragma("GCC ivdep") for (int64_t j = 0; j < width; j++) { \
                SUM total = totals[j], x = (SUM)row[j];                                                 \
                totals[j] = SCALAR(total, x);                                                           \
            }                                                                                           \
    }                                                                                                   \
    static void NAME##_finish(Wide *out, const void *accumulators, int64_t count) {                     \
        const SUM *totals = accumulators;                                                               \
        for (int64_t i = 0; i < count; i++) out[i].FIELD = totals[i];                                   \
    }

#define MULTIPLY_SCALAR(a, b) ((a) * (b))
#define AND_SCALAR(a, b)      ((a) & (b))
#define OR_SCALAR(a, b)       ((a) | (b))

/* Name, element, accumulator, field of Wide, operator. */
#define ALL_FOLDS(X)                                    \
    X(F32, ADD, float, double, floating, ADD_SCALAR)    \
    X(F32, MAX, float, float, floating, MAXIMUM_SCALAR) \
    X(F32, MIN, float, float, floating, MINIMUM_SCALAR) \
    OTHER_FOLDS(X)
#define OTHER_FOLDS(X)                                           \
    X(F32, MULTIPLY, float, double, floating, MULTIPLY_SCALAR)   \
    X(F64, ADD, double, double, floating, ADD_SCALAR)            \
    X(F64, MULTIPLY, double, double, floating, MULTIPLY_SCALAR)  \
    X(F64, MAX, double, double, floating, MAXIMUM_SCALAR)        \
    X(F64, MIN, double, double, floating, MINIMUM_SCALAR)        \
    X(S32, ADD, int32_t, uint64_t, is_unsigned, ADD_SCALAR)      \
    X(S32, MAX, int32_t, int32_t, is_signed, MAXIMUM_SCALAR)     \
    X(S32, MIN, int32_t, int32_t, is_signed, MINIMUM_SCALAR)     \
    X(U32, ADD, uint32_t, uint64_t, is_unsigned, ADD_SCALAR)     \
    X(U32, MAX, uint32_t, uint32_t, is_unsigned, MAXIMUM_SCALAR) \
    X(U32, MIN, uint32_t, uint32_t, is_unsigned, MINIMUM_SCALAR) \
    X(PRED, AND, uint8_t, uint8_t, is_unsigned, AND_SCALAR)      \
    X(PRED, OR, uint8_t, uint8_t, is_unsigned, OR_SCALAR)
#define COLUMNS(NAME, OPERATOR, TYPE, SUM, FIELD, SCALAR) \
    DEFINE_COLUMNS(NAME##_##OPERATOR, TYPE, SUM, FIELD, SCALAR)
#define ALL_ROWS(NAME, OPERATOR, TYPE, SUM, FIELD, SCALAR) DEFINE_ROWS(NAME##_##OPERATOR, TYPE, SUM, SCALAR)
ALL_FOLDS(COLUMNS)
OTHER_FOLDS(ALL_ROWS)

static const VectorFold folds[] = {
#define ROW(NAME, OPERATOR, TYPE, SUM, FIELD, SCALAR) \
    {SBP_##OPERATOR,                                  \
     DTYPE_##NAME,                                    \
     sizeof(SUM),                                     \
     NAME##_##OPERATOR##_begin,                       \
     NAME##_##OPERATOR##_rows,                        \
     NAME##_##OPERATOR##_columns,                     \
     NAME##_##OPERATOR##_finish},
    ALL_FOLDS(ROW)};

const VectorFold *VECTOR_NAME(vector_fold)(SbpReduction reduction, Dtype type) {
    for (size_t k = 0; k < sizeof folds / sizeof *folds; k++)
        if (folds[k].reduction == reduction && folds[k].type == type) return &folds[k];
    return NULL;
}
