/* Loads, stores and folds of 64-bit scalars (scalar64.h): elements of any type as double, int64_t or
 * uint64_t.
 *
 * NUMBER_TYPES lists the types of whole bytes, and macros make one loop for each. bf16 and f16 are converted
 * by base/dtype.h, narrower types by base/float_format.h or by shifts.
 */
#include "executor/array/scalar64.h"

#include <math.h>

#include "base/float_format.h"

#define NUMBER_TYPES(X)                     \
    X(PRED, uint8_t, as_unsigned, UNSIGNED) \
    X(S8, int8_t, as_signed, SIGNED)        \
    X(S16, int16_t, as_signed, SIGNED)      \
    X(S32, int32_t, as_signed, SIGNED)      \
    X(S64, int64_t, as_signed, SIGNED)      \
    X(U8, uint8_t, as_unsigned, UNSIGNED)   \
    X(U16, uint16_t, as_unsigned, UNSIGNED) \
    X(U32, uint32_t, as_unsigned, UNSIGNED) \
    X(U64, uint64_t, as_unsigned, UNSIGNED) \
    X(F32, float, floating, FLOATING)       \
    X(F64, double, floating, FLOATING)

bool scalar64_supports(Dtype type) {
    return type == DTYPE_PRED || dtype_is_integer(type) || dtype_is_floating(type);
}

Scalar64Kind scalar64_kind(Dtype type) {
    switch (type) {
#define KIND_OF(NAME, TYPE, FIELD, KIND) \
    case DTYPE_##NAME: return SCALAR64_##KIND;
        NUMBER_TYPES(KIND_OF)
    default:
        return !dtype_is_integer(type) ? SCALAR64_FLOATING
               : dtype_is_signed(type) ? SCALAR64_SIGNED
                                       : SCALAR64_UNSIGNED;
    }
}

/* Types of less than a byte have one to themselves; only its low bits count. */
static void load_narrow(Scalar64 *out, const uint8_t *in, Dtype type, int64_t count, int64_t stride) {
    int32_t unused = 64 - dtype_bits(type);
    bool is_integer = dtype_is_integer(type), is_signed = dtype_is_signed(type);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = in[i * stride];
        if (!is_integer) out[i].floating = float_format_decode(type, bits);
        else if (is_signed) out[i].as_signed = (int64_t)(bits << unused) >> unused;
        else out[i].as_unsigned = bits << unused >> unused;
    }
}

void scalar64_load(Scalar64 *out, const void *data, Dtype type, int64_t count, int64_t stride) {
    switch (type) {
#define LOAD(NAME, TYPE, FIELD, KIND)                                      \
    case DTYPE_##NAME: {                                                   \
        const TYPE *in = data;                                             \
        for (int64_t i = 0; i < count; i++) out[i].FIELD = in[i * stride]; \
        break;                                                             \
    }
        NUMBER_TYPES(LOAD)
    case DTYPE_BF16: {
        const uint16_t *in = data;
        for (int64_t i = 0; i < count; i++) out[i].floating = dtype_bf16_to_float(in[i * stride]);
        break;
    }
    case DTYPE_F16: {
        const uint16_t *in = data;
        for (int64_t i = 0; i < count; i++) out[i].floating = dtype_f16_to_float(in[i * stride]);
        break;
    }
    default: load_narrow(out, data, type, count, stride);
    }
}

/* Truncates towards zero into [least, most]; NaN gives 0. */
static int64_t saturate_signed(double value, int64_t least, int64_t most) {
    if (isnan(value)) return 0;
    if (value <= (double)least) return least;
    if (value >= (double)most) return most;
    return (int64_t)value;
}

static uint64_t saturate_unsigned(double value, uint64_t most) {
    if (isnan(value) || value <= 0) return 0;
    if (value >= (double)most) return most;
    return (uint64_t)value;
}

#define STORE_LOOP(TYPE, EXPRESSION)                                                 \
    do {                                                                             \
        TYPE *target = out;                                                          \
        for (int64_t i = 0; i < count; i++) target[i * stride] = (TYPE)(EXPRESSION); \
    } while (0)

static void store_narrow(uint8_t *out, Dtype type, const Scalar64 *values, Scalar64Kind kind, int64_t count,
                         int64_t stride) {
    int64_t most = ((int64_t)1 << (dtype_bits(type) - 1)) - 1;
    bool is_integer = dtype_is_integer(type), is_signed = dtype_is_signed(type);
    for (int64_t i = 0; i < count; i++) {
        double value = values[i].floating;
        uint64_t bits = values[i].as_unsigned;
        if (kind == SCALAR64_SIGNED) value = (double)values[i].as_signed;
        if (kind == SCALAR64_UNSIGNED) value = (double)values[i].as_unsigned;
        if (!is_integer) bits = float_format_convert(type, value);
        else if (kind == SCALAR64_FLOATING && is_signed)
            bits = (uint64_t)saturate_signed(value, -most - 1, most);
        else if (kind == SCALAR64_FLOATING) bits = saturate_unsigned(value, 2 * (uint64_t)most + 1);
        int32_t unused = 64 - dtype_bits(type);
        if (is_integer && is_signed) bits = (uint64_t)((int64_t)(bits << unused) >> unused);
        else if (is_integer) bits = bits << unused >> unused;
        out[i * stride] = (uint8_t)bits;
    }
}

static void store_floating(void *out, Dtype type, const Scalar64 *values, int64_t count, int64_t stride) {
    switch (type) {
    case DTYPE_PRED: STORE_LOOP(uint8_t, values[i].floating != 0); break;
    case DTYPE_S8: STORE_LOOP(int8_t, saturate_signed(values[i].floating, INT8_MIN, INT8_MAX)); break;
    case DTYPE_S16: STORE_LOOP(int16_t, saturate_signed(values[i].floating, INT16_MIN, INT16_MAX)); break;
    case DTYPE_S32: STORE_LOOP(int32_t, saturate_signed(values[i].floating, INT32_MIN, INT32_MAX)); break;
    case DTYPE_S64: STORE_LOOP(int64_t, saturate_signed(values[i].floating, INT64_MIN, INT64_MAX)); break;
    case DTYPE_U8: STORE_LOOP(uint8_t, saturate_unsigned(values[i].floating, UINT8_MAX)); break;
    case DTYPE_U16: STORE_LOOP(uint16_t, saturate_unsigned(values[i].floating, UINT16_MAX)); break;
    case DTYPE_U32: STORE_LOOP(uint32_t, saturate_unsigned(values[i].floating, UINT32_MAX)); break;
    case DTYPE_U64: STORE_LOOP(uint64_t, saturate_unsigned(values[i].floating, UINT64_MAX)); break;
    case DTYPE_F32: STORE_LOOP(float, values[i].floating); break;
    case DTYPE_F64: STORE_LOOP(double, values[i].floating); break;
    case DTYPE_BF16: STORE_LOOP(uint16_t, dtype_float_to_bf16((float)values[i].floating)); break;
    case DTYPE_F16: STORE_LOOP(uint16_t, dtype_float_to_f16((float)values[i].floating)); break;
    default: store_narrow(out, type, values, SCALAR64_FLOATING, count, stride);
    }
}

#define STORE_INTEGERS(FIELD)                                                                  \
    switch (type) {                                                                            \
    case DTYPE_PRED: STORE_LOOP(uint8_t, values[i].FIELD != 0); break;                         \
    case DTYPE_S8: STORE_LOOP(int8_t, values[i].FIELD); break;                                 \
    case DTYPE_S16: STORE_LOOP(int16_t, values[i].FIELD); break;                               \
    case DTYPE_S32: STORE_LOOP(int32_t, values[i].FIELD); break;                               \
    case DTYPE_S64: STORE_LOOP(int64_t, values[i].FIELD); break;                               \
    case DTYPE_U8: STORE_LOOP(uint8_t, values[i].FIELD); break;                                \
    case DTYPE_U16: STORE_LOOP(uint16_t, values[i].FIELD); break;                              \
    case DTYPE_U32: STORE_LOOP(uint32_t, values[i].FIELD); break;                              \
    case DTYPE_U64: STORE_LOOP(uint64_t, values[i].FIELD); break;                              \
    case DTYPE_F32: STORE_LOOP(float, values[i].FIELD); break;                                 \
    case DTYPE_F64: STORE_LOOP(double, values[i].FIELD); break;                                \
    case DTYPE_BF16: STORE_LOOP(uint16_t, dtype_float_to_bf16((float)values[i].FIELD)); break; \
    case DTYPE_F16: STORE_LOOP(uint16_t, dtype_float_to_f16((float)values[i].FIELD)); break;   \
    default: store_narrow(out, type, values, kind, count, stride);                             \
    }

void scalar64_store(void *out, Dtype type, const Scalar64 *values, Scalar64Kind kind, int64_t count,
                    int64_t stride) {
    if (kind == SCALAR64_FLOATING) {
        store_floating(out, type, values, count, stride);
    } else if (kind == SCALAR64_SIGNED) {
        STORE_INTEGERS(as_signed)
    } else {
        STORE_INTEGERS(as_unsigned)
    }
}

#define FOLD_LOOP(FIELD, EXPRESSION)         \
    for (int64_t i = 0; i < count; i++) {    \
        a = accumulator[i];                  \
        b = values[i];                       \
        accumulator[i].FIELD = (EXPRESSION); \
    }                                        \
    break

static void fold_floating(Scalar64 *accumulator, const Scalar64 *values, SbpReduction reduction,
                          int64_t count) {
    Scalar64 a, b;
    switch (reduction) {
    case SBP_ADD: FOLD_LOOP(floating, a.floating + b.floating);
    case SBP_MULTIPLY: FOLD_LOOP(floating, a.floating * b.floating);
    case SBP_MAX: FOLD_LOOP(floating, a.floating > b.floating || isnan(a.floating) ? a.floating : b.floating);
    case SBP_MIN: FOLD_LOOP(floating, a.floating < b.floating || isnan(a.floating) ? a.floating : b.floating);
    case SBP_AND: FOLD_LOOP(floating, a.floating != 0 && b.floating != 0);
    case SBP_OR: FOLD_LOOP(floating, a.floating != 0 || b.floating != 0);
    default: break;
    }
}

static void fold_integers(Scalar64 *accumulator, const Scalar64 *values, bool is_signed,
                          SbpReduction reduction, int64_t count) {
    Scalar64 a, b;
    switch (reduction) {
    case SBP_ADD: FOLD_LOOP(as_unsigned, a.as_unsigned + b.as_unsigned);
    case SBP_MULTIPLY: FOLD_LOOP(as_unsigned, a.as_unsigned * b.as_unsigned);
    case SBP_AND: FOLD_LOOP(as_unsigned, a.as_unsigned & b.as_unsigned);
    case SBP_OR: FOLD_LOOP(as_unsigned, a.as_unsigned | b.as_unsigned);
    case SBP_MAX:
        FOLD_LOOP(as_unsigned, (is_signed ? a.as_signed > b.as_signed : a.as_unsigned > b.as_unsigned)
                                   ? a.as_unsigned
                                   : b.as_unsigned);
    case SBP_MIN:
        FOLD_LOOP(as_unsigned, (is_signed ? a.as_signed < b.as_signed : a.as_unsigned < b.as_unsigned)
                                   ? a.as_unsigned
                                   : b.as_unsigned);
    default: break;
    }
}

void scalar64_fold(Scalar64 *accumulator, const Scalar64 *values, Scalar64Kind kind, SbpReduction reduction,
                   int64_t count) {
    if (kind == SCALAR64_FLOATING) fold_floating(accumulator, values, reduction, count);
    else fold_integers(accumulator, values, kind == SCALAR64_SIGNED, reduction, count);
}

int64_t scalar64_index(const void *data, Dtype type, int64_t at) {
    Scalar64 value;
    scalar64_load(&value, (const char *)data + at * dtype_bytes(type), type, 1, 1);
    if (scalar64_kind(type) == SCALAR64_UNSIGNED && value.as_unsigned > INT64_MAX) return INT64_MAX;
    return value.as_signed;
}
