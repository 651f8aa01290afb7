/* Copies that bypass the caches: a large result is written without reading its memory first, and
 * without evicting useful data. Without such store instructions it is a plain copy.
 */
#include <string.h>

#include "executor/cpu/vector/vector.h"

#ifdef __SSE2__
#include <immintrin.h>

enum { LINE = 64 };

static void stream_line(char *out, const char *in) {
#if defined __AVX512F__
    _mm512_stream_si512((void *)out, _mm512_loadu_si512(in));
#elif defined __AVX__
    for (int32_t k = 0; k < LINE; k += 32)
        _mm256_stream_si256((__m256i *)(out + k), _mm256_loadu_si256((const __m256i *)(in + k)));
#else
    for (int32_t k = 0; k < LINE; k += 16)
        _mm_stream_si128((__m128i *)(out + k), _mm_loadu_si128((const __m128i *)(in + k)));
#endif
}

void VECTOR_NAME(vector_stream)(void *out, const void *in, int64_t bytes) {
    int64_t first = (int64_t)(-(uintptr_t)out % LINE);
    if (first > bytes) first = bytes;
    memcpy(out, in, (size_t)first);
    for (; first + LINE <= bytes; first += LINE) stream_line((char *)out + first, (const char *)in + first);
    memcpy((char *)out + first, (const char *)in + first, (size_t)(bytes - first));
}

void VECTOR_NAME(vector_stream_end)(void) {
    _mm_sfence();
}
#else
void VECTOR_NAME(vector_stream)(void *out, const void *in, int64_t bytes) {
    memcpy(out, in, (size_t)bytes);
}

void VECTOR_NAME(vector_stream_end)(void) {}
#endif
