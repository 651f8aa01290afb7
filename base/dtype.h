/* Element types, shared by the IR, array files and kernels. One row per type: enum name, HLO name,
 * number in XLA's PrimitiveType, bits, numpy's name, safetensors' name ("" if it has none). */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#define DTYPE_LIST(X)                                   \
    X(INVALID, "invalid", 0, 0, "", "")                 \
    X(PRED, "pred", 1, 8, "|b1", "BOOL")                \
    X(S8, "s8", 2, 8, "|i1", "I8")                      \
    X(S16, "s16", 3, 16, "<i2", "I16")                  \
    X(S32, "s32", 4, 32, "<i4", "I32")                  \
    X(S64, "s64", 5, 64, "<i8", "I64")                  \
    X(U8, "u8", 6, 8, "|u1", "U8")                      \
    X(U16, "u16", 7, 16, "<u2", "U16")                  \
    X(U32, "u32", 8, 32, "<u4", "U32")                  \
    X(U64, "u64", 9, 64, "<u8", "U64")                  \
    X(F16, "f16", 10, 16, "<f2", "F16")                 \
    X(F32, "f32", 11, 32, "<f4", "F32")                 \
    X(F64, "f64", 12, 64, "<f8", "F64")                 \
    X(TUPLE, "tuple", 13, 0, "", "")                    \
    X(OPAQUE, "opaque", 14, 0, "", "")                  \
    X(C64, "c64", 15, 64, "<c8", "C64")                 \
    X(BF16, "bf16", 16, 16, "|V2", "BF16")              \
    X(TOKEN, "token", 17, 0, "", "")                    \
    X(C128, "c128", 18, 128, "<c16", "")                \
    X(F8E5M2, "f8e5m2", 19, 8, "|V1", "F8_E5M2")        \
    X(F8E4M3FN, "f8e4m3fn", 20, 8, "|V1", "F8_E4M3")    \
    X(S4, "s4", 21, 4, "|i1", "")                       \
    X(U4, "u4", 22, 4, "|u1", "")                       \
    X(F8E4M3B11FNUZ, "f8e4m3b11fnuz", 23, 8, "|V1", "") \
    X(F8E5M2FNUZ, "f8e5m2fnuz", 24, 8, "|V1", "")       \
    X(F8E4M3FNUZ, "f8e4m3fnuz", 25, 8, "|V1", "")       \
    X(S2, "s2", 26, 2, "|i1", "")                       \
    X(U2, "u2", 27, 2, "|u1", "")                       \
    X(F8E4M3, "f8e4m3", 28, 8, "|V1", "")               \
    X(F8E3M4, "f8e3m4", 29, 8, "|V1", "")               \
    X(S1, "s1", 30, 1, "|i1", "")                       \
    X(U1, "u1", 31, 1, "|u1", "")                       \
    X(F4E2M1FN, "f4e2m1fn", 32, 4, "|V1", "")           \
    X(F8E8M0FNU, "f8e8m0fnu", 33, 8, "|V1", "")         \
    X(BUFFER, "buffer", 34, 0, "", "")

typedef enum Dtype {
#define DTYPE_ENUM(name, text, number, bits, numpy, safetensors) DTYPE_##name = number,
    DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
        DTYPE_COUNT
} Dtype;

const char *dtype_name(Dtype type);
Dtype dtype_from_name(const char *name); /* DTYPE_INVALID if unknown */
int32_t dtype_bits(Dtype type);
/* Returns the bytes of one element in memory: sub-byte types take a byte each. */
int64_t dtype_bytes(Dtype type);
bool dtype_is_floating(Dtype type);
/* Returns whether the type is bf16 or f16. */
static inline bool dtype_is_16bit_float(Dtype type) {
    return type == DTYPE_BF16 || type == DTYPE_F16;
}
bool dtype_is_integer(Dtype type); /* pred excluded */
bool dtype_is_signed(Dtype type);
bool dtype_is_complex(Dtype type);
/* Returns the type of a complex number's parts; of any other type, itself. */
Dtype dtype_real_part(Dtype type);

/* Conversions of one value, round to nearest even; shared by readers and kernels. */
float dtype_bf16_to_float(uint16_t bits);
uint16_t dtype_float_to_bf16(float value);
float dtype_f16_to_float(uint16_t bits);
uint16_t dtype_float_to_f16(float value);

#endif
