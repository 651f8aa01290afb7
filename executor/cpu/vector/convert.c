/* Loops of convert for the types that programs hold, and of rounding to the half
 * types. As HLO says: floating to integer truncates, saturates and takes NaN to 0,
 * integers wrap, pred is "not 0". Other pairs go through wide values.
 */
#include "executor/cpu/vector/functions.h"
#include "executor/cpu/vector/vector.h"

#define DEFINE(FROM, FROM_TYPE, TO, TO_TYPE, EXPRESSION)         \
    static void FROM##_to_##TO(LOOP_ARGUMENTS) {                 \
        UNUSED_ARGUMENTS;                                        \
        TO_TYPE *target = out;                                   \
        const FROM_TYPE *first = a;                              \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) { \
            FROM_TYPE x = first[i];                              \
            target[i] = (TO_TYPE)(EXPRESSION);                   \
        }                                                        \
    }

/* Values in range are converted; others are selected at the end, so that no conversion is
 * undefined. */
static inline int32_t saturate(float x) {
    float inside = x > -0x1p31f && x < 0x1p31f ? x : 0.0f;
    int32_t value = (int32_t)inside;
    value = x >= 0x1p31f ? INT32_MAX : value;
    return x <= -0x1p31f ? INT32_MIN : value;
}

#define FROM_INTEGER(FROM, TYPE)         \
    DEFINE(FROM, TYPE, S32, int32_t, x)  \
    DEFINE(FROM, TYPE, U32, uint32_t, x) \
    DEFINE(FROM, TYPE, S64, int64_t, x)  \
    DEFINE(FROM, TYPE, U64, uint64_t, x) \
    DEFINE(FROM, TYPE, F32, float, x)    \
    DEFINE(FROM, TYPE, F64, double, x)   \
    DEFINE(FROM, TYPE, PRED, uint8_t, x != 0)
FROM_INTEGER(S32, int32_t)
FROM_INTEGER(U32, uint32_t)
FROM_INTEGER(S64, int64_t)
FROM_INTEGER(U64, uint64_t)
FROM_INTEGER(PRED, uint8_t)
DEFINE(F32, float, F32, float, x)
DEFINE(F32, float, F64, double, x)
DEFINE(F32, float, PRED, uint8_t, x != 0)
DEFINE(F32, float, S32, int32_t, saturate(x))
DEFINE(F64, double, F32, float, x)
DEFINE(F64, double, F64, double, x)
DEFINE(F32, float, BF16, uint16_t, bf16_bits_of(x))
DEFINE(BF16, uint16_t, F32, float, float_of_bits((uint32_t)x << 16))
DEFINE(F32, float, F16, uint16_t, dtype_float_to_f16(x))
DEFINE(F16, uint16_t, F32, float, dtype_f16_to_float(x))

static const struct {
    Dtype from, to;
    ElementLoop *loop;
} rows[] = {
#define ROW(FROM, TO) {DTYPE_##FROM, DTYPE_##TO, FROM##_to_##TO},
#define ROWS(FROM) \
    ROW(FROM, S32) ROW(FROM, U32) ROW(FROM, S64) ROW(FROM, U64) ROW(FROM, F32) ROW(FROM, F64) ROW(FROM, PRED)
    ROWS(S32) ROWS(U32) ROWS(S64) ROWS(U64) ROWS(PRED) ROW(F32, F32) ROW(F32, F64) ROW(F32, PRED)
        ROW(F32, S32) ROW(F64, F32) ROW(F64, F64) ROW(F32, BF16) ROW(BF16, F32) ROW(F32, F16) ROW(F16, F32)};

ElementLoop *VECTOR_NAME(vector_convert)(Dtype from, Dtype to) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].from == from && rows[k].to == to) return rows[k].loop;
    return NULL;
}

void VECTOR_NAME(vector_round_bf16)(LOOP_ARGUMENTS) {
    UNUSED_ARGUMENTS;
    float *target = out;
    const float *first = a;
    VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) target[i] =
        float_of_bits(bf16_bits_of(first[i]) << 16);
}

void VECTOR_NAME(vector_round_f16)(LOOP_ARGUMENTS) {
    UNUSED_ARGUMENTS;
    float *target = out;
    const float *first = a;
    for (int64_t i = 0; i < count; i++) target[i] = dtype_f16_to_float(dtype_float_to_f16(first[i]));
}
