/* The kinds of tiles: one inclusion of the loop and one row of the table each. Products are fused
 * into additions if the processor supports that, explicitly: implicit fusion by a compiler differs
 * between loops, and results must not depend on the loop that computes a part.
 */
#include "executor/cpu/matmul/tile.h"

#include <stddef.h>

#include "base/system/cpu_features.h"

#if defined __x86_64__
#include <immintrin.h>
#endif

/* Four floats of a line, and the square of four lines turned. */
typedef float TilePart __attribute__((vector_size(16), aligned(4), may_alias));

static inline __attribute__((always_inline)) void tile_turn_square(float *out, int64_t step,
                                                                   const TilePart *lines) {
    for (int32_t k = 0; k < 4; k++)
        *(TilePart *)(out + k * step) = (TilePart){lines[0][k], lines[1][k], lines[2][k], lines[3][k]};
}

#if defined __x86_64__
#define NAME(word)             word##_avx512
#define WIDTH                  16
#define TARGET                 __attribute__((target("avx512f,fma")))
#define TILES                  TILE(8, 1) TILE(8, 2) TILE(8, 3) TILE(6, 4)
#define STRIP_ROWS             8
#define ADD_PRODUCT(sum, a, b) ((NAME(Vector))_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)(b), (__m512)(sum)))
#define LOAD_PART(from, count) ((NAME(Vector))_mm512_maskz_loadu_ps((__mmask16)((1u << (count)) - 1), (from)))
#define STORE_PART(to, vector, count) \
    _mm512_mask_storeu_ps((to), (__mmask16)((1u << (count)) - 1), (__m512)(vector))
#include "executor/cpu/matmul/tile_loop.h"

static inline __attribute__((always_inline, target("avx2,fma"))) __m256i first_lanes(int64_t count) {
    static const int32_t lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(lanes + 8 - count));
}

#define NAME(word)                    word##_avx2
#define WIDTH                         8
#define TARGET                        __attribute__((target("avx2,fma")))
#define TILES                         TILE(8, 1) TILE(6, 2)
#define STRIP_ROWS                    6
#define ADD_PRODUCT(sum, a, b)        ((NAME(Vector))_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)(b), (__m256)(sum)))
#define LOAD_PART(from, count)        ((NAME(Vector))_mm256_maskload_ps((from), first_lanes(count)))
#define STORE_PART(to, vector, count) _mm256_maskstore_ps((to), first_lanes(count), (__m256)(vector))
#include "executor/cpu/matmul/tile_loop.h"
#endif

#define NAME(word) word##_any
#define WIDTH      4
#define TARGET
#define TILES                  TILE(8, 1) TILE(6, 2)
#define STRIP_ROWS             6
#define ADD_PRODUCT(sum, a, b) ((sum) + (a) * (b))
#include "executor/cpu/matmul/tile_loop.h"

const TileKind tile_kinds[] = {
#if defined __x86_64__
    {"avx512",
     cpu_has_avx512,
     16,
     4,
     {0, 8, 8, 8, 6},
     {NULL, tile_8_1_avx512, tile_8_2_avx512, tile_8_3_avx512, tile_6_4_avx512},
     transpose_avx512,
     multiply_avx512},
    {"avx2",
     cpu_has_avx2,
     8,
     2,
     {0, 8, 6},
     {NULL, tile_8_1_avx2, tile_6_2_avx2},
     transpose_avx2,
     multiply_avx2},
#endif
    {"any", cpu_has_any, 4, 2, {0, 8, 6}, {NULL, tile_8_1_any, tile_6_2_any}, transpose_any, multiply_any},
};
const int32_t tile_kind_count = sizeof tile_kinds / sizeof *tile_kinds;

const TileKind *tile_kind(void) {
    const TileKind *kind = tile_kinds;
    while (!kind->is_here()) kind++;
    return kind;
}
