/* Rows that repeat one element each, as a broadcast along inner dimensions reads
 * it: whole vectors are written, the end of a row over by the next one.
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
