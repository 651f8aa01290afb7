/* Rows of elements packed one after the other, as a broadcast reads them:
 * spread_rows repeats one element along each row (whole vectors are written, the
 * end of a row over by the next one), copy_rows copies them.
 */
#include <string.h>

#include "executor/cpu/vector/vector.h"

enum { VECTOR_BYTES = 64 };

#define DEFINE_ROWS(TYPE)                                                                                \
    typedef TYPE TYPE##_vector __attribute__((vector_size(VECTOR_BYTES)));                               \
    static void spread_##TYPE(TYPE *out, const TYPE *in, int64_t stride, int64_t rows, int64_t length) { \
        enum { LANES = VECTOR_BYTES / sizeof(TYPE) };                                                    \
        for (int64_t r = 0; r < rows; r++, in += stride, out += length) {                                \
            TYPE##_vector value = (TYPE##_vector){0} + *in;                                              \
            for (int64_t i = 0; i < length; i += LANES) memcpy(out + i, &value, sizeof value);           \
        }                                                                                                \
    }                                                                                                    \
    static void copy_##TYPE(TYPE *out, const TYPE *in, int64_t stride, int64_t rows, int64_t length) {   \
        enum { LANES = VECTOR_BYTES / sizeof(TYPE), HALF = LANES / 2 };                                  \
        for (int64_t r = 0; r < rows; r++, in += stride, out += length) {                                \
            int64_t i = 0;                                                                               \
            for (; i + LANES <= length; i += LANES) memcpy(out + i, in + i, VECTOR_BYTES);               \
            if (i + HALF <= length) memcpy(out + i, in + i, VECTOR_BYTES / 2), i += HALF;                \
            for (; i < length; i++) out[i] = in[i];                                                      \
        }                                                                                                \
    }
DEFINE_ROWS(uint8_t)
DEFINE_ROWS(uint16_t)
DEFINE_ROWS(uint32_t)
DEFINE_ROWS(uint64_t)

#define BY_SIZE(ACTION)                                                    \
    switch (element_bytes) {                                               \
    case 1: ACTION##_uint8_t(out, in, stride, rows, length); return true;  \
    case 2: ACTION##_uint16_t(out, in, stride, rows, length); return true; \
    case 4: ACTION##_uint32_t(out, in, stride, rows, length); return true; \
    case 8: ACTION##_uint64_t(out, in, stride, rows, length); return true; \
    default: return false;                                                 \
    }

bool VECTOR_NAME(vector_spread_rows)(void *out, const void *in, int64_t element_bytes, int64_t stride,
                                     int64_t rows, int64_t length) {
    BY_SIZE(spread)
}

bool VECTOR_NAME(vector_copy_rows)(void *out, const void *in, int64_t element_bytes, int64_t stride,
                                   int64_t rows, int64_t length) {
    BY_SIZE(copy)
}
