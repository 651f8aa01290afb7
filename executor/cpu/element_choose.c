/* Loops that compare, choose, convert or make values: compare, select, clamp,
 * convert, bitcast-convert, iota, constant.
 *
 * compare on floating types is unordered (with a NaN only NE holds) unless a
 * total order is asked for: -NaN < -Inf < ... < -0 < +0 < ... < NaN, which is
 * the order of the bits read as sign and magnitude.
 */
#include <math.h>
#include <string.h>

#include "executor/cpu/element.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

#define LOOP_ARGUMENTS                                                     \
    void *out, const void *a, const void *b, const void *c, int64_t count, \
        const ElementParameter *parameter, const ElementTile *tile

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

#define DEFINE_COMPARE(NAME, TYPE, DIRECTION, OPERATOR)                                                   \
    static void NAME##_##DIRECTION(LOOP_ARGUMENTS) {                                                      \
        (void)c, (void)parameter, (void)tile;                                                             \
        uint8_t *target = out;                                                                            \
        const TYPE *first = a, *second = b;                                                               \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) target[i] = first[i] OPERATOR second[i]; \
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

ElementLoop *element_compare_loop(const char *direction, bool total_order, Dtype type) {
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

#define DEFINE_SELECT(TYPE)                                        \
    static void select_##TYPE(LOOP_ARGUMENTS) {                    \
        (void)parameter, (void)tile;                               \
        TYPE *target = out;                                        \
        const uint8_t *which = a;                                  \
        const TYPE *first = b, *second = c;                        \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) { \
            TYPE x = first[i], y = second[i];                      \
            target[i] = which[i] ? x : y;                          \
        }                                                          \
    }
DEFINE_SELECT(uint8_t)
DEFINE_SELECT(uint16_t)
DEFINE_SELECT(uint32_t)
DEFINE_SELECT(uint64_t)
DEFINE_SELECT(Sixteen)

ElementLoop *element_select_loop(Dtype type) {
    switch (dtype_bytes(type)) {
    case 1: return select_uint8_t;
    case 2: return select_uint16_t;
    case 4: return select_uint32_t;
    case 8: return select_uint64_t;
    case 16: return select_Sixteen;
    default: return NULL;
    }
}

/* clamp(least, x, most) = min(max(least, x), most), each of which propagates NaN. */
#define DEFINE_CLAMP(NAME, TYPE)                                     \
    static void clamp_##NAME(LOOP_ARGUMENTS) {                       \
        (void)parameter, (void)tile;                                 \
        TYPE *target = out;                                          \
        const TYPE *least = a, *value = b, *most = c;                \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) {   \
            TYPE x = value[i], l = least[i], m = most[i];            \
            TYPE raised = x > l || x != x ? x : l;                   \
            target[i] = raised < m || raised != raised ? raised : m; \
        }                                                            \
    }
NUMBER_TYPES(DEFINE_CLAMP)

ElementLoop *element_clamp_loop(Dtype type) {
    switch (type) {
#define CLAMP_CASE(NAME, TYPE) \
    case DTYPE_##NAME: return clamp_##NAME;
        NUMBER_TYPES(CLAMP_CASE)
    default: return NULL;
    }
}

void element_convert(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    Wide run[WIDE_RUN];
    int64_t from = dtype_bytes(parameter->from), to = dtype_bytes(parameter->to);
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        wide_load(run, (const char *)a + at * from, parameter->from, n, 1);
        wide_store((char *)out + at * to, parameter->to, run, wide_kind(parameter->from), n, 1);
    }
}

/* Rounds towards zero, or away from it with the probability of what was cut off. */
void element_stochastic_convert(LOOP_ARGUMENTS) {
    (void)c, (void)tile;
    Wide run[WIDE_RUN], random[WIDE_RUN];
    int64_t from = dtype_bytes(parameter->from), to = dtype_bytes(parameter->to);
    int64_t random_bytes = dtype_bytes(parameter->random);
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        wide_load(run, (const char *)a + at * from, parameter->from, n, 1);
        wide_load(random, (const char *)b + at * random_bytes, parameter->random, n, 1);
        for (int64_t i = 0; i < n; i++) {
            double whole = trunc(run[i].floating), rest = fabs(run[i].floating - whole);
            bool away = (double)random[i].is_unsigned < ldexp(rest, dtype_bits(parameter->random));
            run[i].floating = away ? whole + copysign(1, run[i].floating) : whole;
        }
        wide_store((char *)out + at * to, parameter->to, run, WIDE_FLOATING, n, 1);
    }
}

void element_round(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    Wide run[WIDE_RUN];
    uint8_t narrow[WIDE_RUN];
    int64_t bytes = dtype_bytes(parameter->from);
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        wide_load(run, (const char *)a + at * bytes, parameter->from, n, 1);
        wide_store(narrow, parameter->to, run, wide_kind(parameter->from), n, 1);
        wide_load(run, narrow, parameter->to, n, 1);
        wide_store((char *)out + at * bytes, parameter->from, run, wide_kind(parameter->to), n, 1);
    }
}

/* Types as in memory: bf16 and f16 are converted around this by the program. */
void element_bitcast(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    if (out != a) memcpy(out, a, (size_t)(count * dtype_bytes(parameter->to)));
}

static Dtype held_as(Dtype type) {
    return dtype_is_floating(type) ? DTYPE_F32 : dtype_is_signed(type) ? DTYPE_S8 : DTYPE_U8;
}

/* Down to the bits as they are in memory, and up again as the other type. */
void element_bitcast_narrow(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    uint16_t bits[WIDE_RUN];
    Dtype from = held_as(parameter->from), to = held_as(parameter->to);
    const ElementParameter down = {.from = from, .to = parameter->from},
                           up = {.from = parameter->to, .to = to};
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        element_convert(bits, (const char *)a + at * dtype_bytes(from), NULL, NULL, n, &down, NULL);
        element_convert((char *)out + at * dtype_bytes(to), bits, NULL, NULL, n, &up, NULL);
    }
}

void element_iota(LOOP_ARGUMENTS) {
    (void)a, (void)b, (void)c;
    Wide run[WIDE_RUN];
    Dtype part = dtype_real_part(parameter->to);
    int64_t inner = 1, bytes = dtype_bytes(parameter->to);
    for (int32_t d = parameter->iota_dimension + 1; d < tile->rank; d++) inner *= tile->dimensions[d];
    int64_t size = tile->dimensions[parameter->iota_dimension];
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        for (int64_t i = 0; i < n; i++)
            run[i].is_signed = parameter->iota_start + (tile->first + at + i) / inner % size;
        int64_t parts = bytes / dtype_bytes(part);
        if (parts > 1) memset((char *)out + at * bytes, 0, (size_t)(n * bytes));
        wide_store((char *)out + at * bytes, part, run, WIDE_SIGNED, n, parts);
    }
}

void element_constant(LOOP_ARGUMENTS) {
    (void)a, (void)b, (void)c, (void)tile;
    strided_fill(out, parameter->constant, count, dtype_bytes(parameter->to));
}
