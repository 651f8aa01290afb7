/* Loops that compare and choose: compare, select, clamp.
 *
 * compare on floating types is unordered (with a NaN only NE holds) unless the instruction requests
 * a total order: -NaN < -Inf < ... < -0 < +0 < ... < NaN, which is the order of the bits read as
 * sign and magnitude.
 */
#include <string.h>

#include "executor/cpu/vector/vector.h"

#define NUMBER_TYPES(X) \
    X(PRED, uint8_t)    \
    X(S8, int8_t)       \
    X(S16, int16_t)     \
    X(S32, int32_t)     \
    X(S64, int64_t)     \
    X(U8, uint8_t)      \
    X(U16, uint16_t)    \
    X(U32, uint32_t)    \
    X(U64, uint64_t)    \
    X(F32, float)       \
    X(F64, double)

#define DEFINE_COMPARE(NAME, TYPE, DIRECTION, OPERATOR)                                                 \
    static void NAME##_##DIRECTION(LOOP_ARGUMENTS) {                                                    \
        (void)c, (void)parameter, (void)tile;                                                           \
        uint8_t *target = out;                                                                          \
        const TYPE *first = a, *second = b;                                                             \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) target[i] = first[i] OPERATOR second[i]; \
    }
#define DEFINE_COMPARES(NAME, TYPE)    \
    DEFINE_COMPARE(NAME, TYPE, EQ, ==) \
    DEFINE_COMPARE(NAME, TYPE, NE, !=) \
    DEFINE_COMPARE(NAME, TYPE, GE, >=) \
    DEFINE_COMPARE(NAME, TYPE, GT, >)  \
    DEFINE_COMPARE(NAME, TYPE, LE, <=) \
    DEFINE_COMPARE(NAME, TYPE, LT, <)
NUMBER_TYPES(DEFINE_COMPARES)

static inline int32_t rank_F32(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? -(bits & INT32_MAX) - 1 : bits;
}

static inline int64_t rank_F64(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? -(bits & INT64_MAX) - 1 : bits;
}

#define DEFINE_TOTAL(NAME, TYPE, DIRECTION, OPERATOR)                          \
    static void total_##NAME##_##DIRECTION(LOOP_ARGUMENTS) {                   \
        (void)c, (void)parameter, (void)tile;                                  \
        uint8_t *target = out;                                                 \
        const TYPE *first = a, *second = b;                                    \
        for (int64_t i = 0; i < count; i++)                                    \
            target[i] = rank_##NAME(first[i]) OPERATOR rank_##NAME(second[i]); \
    }
#define DEFINE_TOTALS(NAME, TYPE)    \
    DEFINE_TOTAL(NAME, TYPE, EQ, ==) \
    DEFINE_TOTAL(NAME, TYPE, NE, !=) \
    DEFINE_TOTAL(NAME, TYPE, GE, >=) \
    DEFINE_TOTAL(NAME, TYPE, GT, >)  \
    DEFINE_TOTAL(NAME, TYPE, LE, <=) \
    DEFINE_TOTAL(NAME, TYPE, LT, <)
DEFINE_TOTALS(F32, float)
DEFINE_TOTALS(F64, double)

static const char *const directions[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};

static const struct {
    Dtype type;
    ElementLoop *loops[6], *total[6];
} compare_rows[] = {
#define SIX(NAME) \
    { NAME##_EQ, NAME##_NE, NAME##_GE, NAME##_GT, NAME##_LE, NAME##_LT }
#define COMPARE_ROW(NAME, TYPE) {DTYPE_##NAME, SIX(NAME), SIX(NAME)},
    /* For integers the total order is the usual one; the last two rows are found first for floats. */
    NUMBER_TYPES(COMPARE_ROW){DTYPE_F32, SIX(F32), SIX(total_F32)},
    {DTYPE_F64, SIX(F64), SIX(total_F64)},
};

ElementLoop *VECTOR_NAME(vector_compare)(const char *direction, bool total_order, Dtype type) {
    if (!direction) return NULL;
    for (int32_t k = (int32_t)(sizeof compare_rows / sizeof *compare_rows) - 1; k >= 0; k--) {
        if (compare_rows[k].type != type) continue;
        for (int32_t d = 0; d < 6; d++)
            if (strcmp(directions[d], direction) == 0)
                return total_order ? compare_rows[k].total[d] : compare_rows[k].loops[d];
    }
    return NULL;
}

/* 16 bytes, a c128. */
typedef struct Sixteen {
    uint64_t halves[2];
} Sixteen;

#define DEFINE_SELECT(TYPE)                                      \
    static void select_##TYPE(LOOP_ARGUMENTS) {                  \
        (void)parameter, (void)tile;                             \
        TYPE *target = out;                                      \
        const uint8_t *which = a;                                \
        const TYPE *first = b, *second = c;                      \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) { \
            TYPE x = first[i], y = second[i];                    \
            target[i] = which[i] ? x : y;                        \
        }                                                        \
    }
DEFINE_SELECT(uint8_t)
DEFINE_SELECT(uint16_t)
DEFINE_SELECT(uint32_t)
DEFINE_SELECT(uint64_t)
DEFINE_SELECT(Sixteen)

ElementLoop *VECTOR_NAME(vector_select)(Dtype type) {
    switch (dtype_bytes(type)) {
    case 1: return select_uint8_t;
    case 2: return select_uint16_t;
    case 4: return select_uint32_t;
    case 8: return select_uint64_t;
    case 16: return select_Sixteen;
    default: return NULL;
    }
}

/* clamp(least, x, most) = min(max(least, x), most); both propagate NaN. */
#define DEFINE_CLAMP(NAME, TYPE)                                     \
    static void clamp_##NAME(LOOP_ARGUMENTS) {                       \
        (void)parameter, (void)tile;                                 \
        TYPE *target = out;                                          \
        const TYPE *least = a, *value = b, *most = c;                \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) {     \
            TYPE x = value[i], l = least[i], m = most[i];            \
            TYPE raised = x > l || x != x ? x : l;                   \
            target[i] = raised < m || raised != raised ? raised : m; \
        }                                                            \
    }
NUMBER_TYPES(DEFINE_CLAMP)

ElementLoop *VECTOR_NAME(vector_clamp)(Dtype type) {
    switch (type) {
#define CLAMP_CASE(NAME, TYPE) \
    case DTYPE_##NAME: return clamp_##NAME;
        NUMBER_TYPES(CLAMP_CASE)
    default: return NULL;
    }
}
