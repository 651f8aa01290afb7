/* Rows of 4-byte elements packed one behind the other, as a broadcast reads them:
 * spread_rows repeats one element along each row (whole vectors are written, the
 * end of a row over by the next one), copy_rows copies them.
 */
#include <string.h>

#include "executor/cpu/vector/vector.h"

enum { LANES = 16 };

typedef uint32_t Lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));

void VECTOR_NAME(vector_spread_rows)(void *out, const void *in, int64_t stride, int64_t rows,
                                     int64_t length) {
    uint32_t *target = out;
    const uint32_t *source = in;
    for (int64_t r = 0; r < rows; r++, source += stride, target += length) {
        Lanes value = (Lanes){0} + *source;
        for (int64_t i = 0; i < length; i += LANES) memcpy(target + i, &value, sizeof value);
    }
}

void VECTOR_NAME(vector_copy_rows)(void *out, const void *in, int64_t stride, int64_t rows, int64_t length) {
    uint32_t *target = out;
    const uint32_t *source = in;
    for (int64_t r = 0; r < rows; r++, source += stride, target += length) {
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) memcpy(target + i, source + i, sizeof(Lanes));
        for (; i < length; i++) target[i] = source[i];
    }
}
