/* Folds of packed elements: rows to one value each, rows onto one another.
 *
 * A row is folded in 32 lanes (element i in lane i mod 32), the lanes in a tree, the rest one by
 * one: the same order on every processor. Rows are folded onto accumulators four at a time.
 */
#include <string.h>

#include "executor/cpu/vector/vector.h"

enum { ROWS = 4 };

typedef float Four __attribute__((vector_size(4 * sizeof(float))));
typedef double Sum __attribute__((vector_size(4 * sizeof(double))));
typedef double SumPair __attribute__((vector_size(2 * sizeof(double))));
typedef float Eight __attribute__((vector_size(8 * sizeof(float))));
typedef int32_t Mask __attribute__((vector_size(8 * sizeof(int32_t))));
typedef int32_t FourMask __attribute__((vector_size(4 * sizeof(int32_t))));

#define ADD_SCALAR(a, b)     ((a) + (b))
#define MAXIMUM_SCALAR(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MINIMUM_SCALAR(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

/* Loads four elements as double; written out, which compilers turn into one conversion. */
static inline Sum load_four(const float *in) {
    Four value;
    memcpy(&value, in, sizeof value);
    return (Sum){value[0], value[1], value[2], value[3]};
}

/* Sums a row in explicit vectors, since the compiler would keep arrays of lanes in memory. */
static double sum_row(const float *in, int64_t length, double total) {
    int64_t i = 0;
    if (length >= 8) {
        Sum a = load_four(in), b = load_four(in + 4);
        i = 8;
        if (length >= 32) {
            Sum c = load_four(in + 8), d = load_four(in + 12), e = load_four(in + 16);
            Sum f = load_four(in + 20), g = load_four(in + 24), h = load_four(in + 28);
            for (i = 32; i + 32 <= length; i += 32) {
                a += load_four(in + i);
                b += load_four(in + i + 4);
                c += load_four(in + i + 8);
                d += load_four(in + i + 12);
                e += load_four(in + i + 16);
                f += load_four(in + i + 20);
                g += load_four(in + i + 24);
                h += load_four(in + i + 28);
            }
            a = (a + e) + (c + g);
            b = (b + f) + (d + h);
        }
        for (; i + 8 <= length; i += 8) {
            a += load_four(in + i);
            b += load_four(in + i + 4);
        }
        a += b;
        SumPair pair = __builtin_shufflevector(a, a, 0, 1) + __builtin_shufflevector(a, a, 2, 3);
        total += pair[0] + pair[1];
    }
    for (; i < length; i++) total += in[i];
    return total;
}

static void F32_ADD_rows(void *accumulators, const void *in, int64_t stride, int64_t rows, int64_t length) {
    double *totals = accumulators;
    for (int64_t r = 0; r < rows; r++) totals[r] = sum_row((const float *)in + r * stride, length, totals[r]);
}

static inline Eight load_eight(const float *in) {
    Eight value;
    memcpy(&value, in, sizeof value);
    return value;
}

static inline Eight choose_lanes(Mask first, Eight a, Eight b) {
    return (Eight)(((Mask)a & first) | ((Mask)b & ~first));
}

/* Rows of maxima or minima, which propagate NaN. The code has no branches on the comparison, which
 * processors cannot predict. */
#define DEFINE_EXTREMES(NAME, SIGN)                                                                  \
    static inline Eight NAME##_of(Eight a, Eight b) {                                                \
        return choose_lanes(((a)SIGN(b)) | ((a) != (a)), a, b);                                      \
    }                                                                                                \
    static inline float NAME##_one(float a, float b) {                                               \
        Four x = {a}, y = {b};                                                                       \
        FourMask first = (x SIGN y) | (x != x);                                                      \
        Four chosen = (Four)(((FourMask)x & first) | ((FourMask)y & ~first));                        \
        return chosen[0];                                                                            \
    }                                                                                                \
    static float NAME##_row(const float *in, int64_t length, float total) {                          \
        int64_t i = 0;                                                                               \
        if (length >= 8) {                                                                           \
            Eight lanes = load_eight(in);                                                            \
            i = 8;                                                                                   \
            if (length >= 32) {                                                                      \
                Eight second = load_eight(in + 8), third = load_eight(in + 16),                      \
                      fourth = load_eight(in + 24);                                                  \
                for (i = 32; i + 32 <= length; i += 32) {                                            \
                    lanes = NAME##_of(lanes, load_eight(in + i));                                    \
                    second = NAME##_of(second, load_eight(in + i + 8));                              \
                    third = NAME##_of(third, load_eight(in + i + 16));                               \
                    fourth = NAME##_of(fourth, load_eight(in + i + 24));                             \
                }                                                                                    \
                lanes = NAME##_of(NAME##_of(lanes, third), NAME##_of(second, fourth));               \
            }                                                                                        \
            for (; i + 8 <= length; i += 8) lanes = NAME##_of(lanes, load_eight(in + i));            \
            lanes = NAME##_of(lanes, __builtin_shufflevector(lanes, lanes, 4, 5, 6, 7, 0, 1, 2, 3)); \
            lanes = NAME##_of(lanes, __builtin_shufflevector(lanes, lanes, 2, 3, 0, 1, 6, 7, 4, 5)); \
            total = NAME##_one(total, NAME##_one(lanes[0], lanes[1]));                               \
        }                                                                                            \
        for (; i < length; i++) total = NAME##_one(total, in[i]);                                    \
        return total;                                                                                \
    }                                                                                                \
    static void NAME##_rows(void *accumulators, const void *in, int64_t stride, int64_t rows,        \
                            int64_t length) {                                                        \
        float *totals = accumulators;                                                                \
        for (int64_t r = 0; r < rows; r++)                                                           \
            totals[r] = NAME##_row((const float *)in + r * stride, length, totals[r]);               \
    }
DEFINE_EXTREMES(F32_MAX, >)
DEFINE_EXTREMES(F32_MIN, <)

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

#define DEFINE_COLUMNS(NAME, TYPE, SUM, FIELD, SCALAR)                                                \
    static void NAME##_begin(void *accumulators, const Scalar64 *value, int64_t count) {              \
        SUM *totals = accumulators;                                                                   \
        for (int64_t i = 0; i < count; i++) totals[i] = (SUM)value->FIELD;                            \
    }                                                                                                 \
    static void NAME##_columns(void *accumulators, const void *in, int64_t stride, int64_t rows,      \
                               int64_t width) {                                                       \
        SUM *totals = accumulators;                                                                   \
        const TYPE *row = in;                                                                         \
        int64_t r = 0;                                                                                \
        for (; r + ROWS <= rows; r += ROWS, row += ROWS * stride) {                                   \
            const TYPE *first = row, *second = row + stride;                                          \
            const TYPE *third = row + 2 * stride, *fourth = row + 3 * stride;                         \
            VECTOR_INDEPENDENT for (int64_t j = 0; j < width; j++) {                                  \
                SUM a = (SUM)first[j], b = (SUM)second[j];                                            \
                SUM c = (SUM)third[j], d = (SUM)fourth[j];                                            \
                SUM upper = SCALAR(a, b), lower = SCALAR(c, d), all = SCALAR(upper, lower);           \
                SUM total = totals[j];                                                                \
                totals[j] = SCALAR(total, all);                                                       \
            }                                                                                         \
        }                                                                                             \
        for (; r < rows; r++, row += stride) VECTOR_INDEPENDENT for (int64_t j = 0; j < width; j++) { \
                SUM total = totals[j], x = (SUM)row[j];                                               \
                totals[j] = SCALAR(total, x);                                                         \
            }                                                                                         \
    }                                                                                                 \
    static void NAME##_finish(Scalar64 *out, const void *accumulators, int64_t count) {               \
        const SUM *totals = accumulators;                                                             \
        for (int64_t i = 0; i < count; i++) out[i].FIELD = totals[i];                                 \
    }

#define MULTIPLY_SCALAR(a, b) ((a) * (b))
#define AND_SCALAR(a, b)      ((a) & (b))
#define OR_SCALAR(a, b)       ((a) | (b))

/* Name, element, accumulator, field of Scalar64, operator. */
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
    X(S32, ADD, int32_t, uint64_t, as_unsigned, ADD_SCALAR)      \
    X(S32, MAX, int32_t, int32_t, as_signed, MAXIMUM_SCALAR)     \
    X(S32, MIN, int32_t, int32_t, as_signed, MINIMUM_SCALAR)     \
    X(U32, ADD, uint32_t, uint64_t, as_unsigned, ADD_SCALAR)     \
    X(U32, MAX, uint32_t, uint32_t, as_unsigned, MAXIMUM_SCALAR) \
    X(U32, MIN, uint32_t, uint32_t, as_unsigned, MINIMUM_SCALAR) \
    X(PRED, AND, uint8_t, uint8_t, as_unsigned, AND_SCALAR)      \
    X(PRED, OR, uint8_t, uint8_t, as_unsigned, OR_SCALAR)
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
