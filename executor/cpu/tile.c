/* The kinds of tiles: one inclusion of the loop and one row of the table each.
 * This file is compiled with products fused into additions (-ffp-contract=fast).
 */
#include "executor/cpu/tile.h"

#include <stddef.h>

#include "base/cpu_features.h"

#if defined __x86_64__
#define NAME(word) word##_avx512
#define WIDTH      16
#define TARGET     __attribute__((target("avx512f,fma")))
#define TILES      TILE(8, 1) TILE(8, 2) TILE(8, 3) TILE(6, 4)
#include "executor/cpu/tile_loop.h"

#define NAME(word) word##_avx2
#define WIDTH      8
#define TARGET     __attribute__((target("avx2,fma")))
#define TILES      TILE(8, 1) TILE(6, 2)
#include "executor/cpu/tile_loop.h"
#endif

#define NAME(word) word##_any
#define WIDTH      4
#define TARGET
#define TILES TILE(8, 1) TILE(6, 2)
#include "executor/cpu/tile_loop.h"

const TileKind tile_kinds[] = {
#if defined __x86_64__
    {"avx512",
     cpu_has_avx512,
     16,
     4,
     {0, 8, 8, 8, 6},
     {NULL, tile_8_1_avx512, tile_8_2_avx512, tile_8_3_avx512, tile_6_4_avx512},
     transpose_avx512},
    {"avx2", cpu_has_avx2, 8, 2, {0, 8, 6}, {NULL, tile_8_1_avx2, tile_6_2_avx2}, transpose_avx2},
#endif
    {"any", cpu_has_any, 4, 2, {0, 8, 6}, {NULL, tile_8_1_any, tile_6_2_any}, transpose_any},
};
const int32_t tile_kind_count = sizeof tile_kinds / sizeof *tile_kinds;

const TileKind *tile_kind(void) {
    const TileKind *kind = tile_kinds;
    while (!kind->is_here()) kind++;
    return kind;
}
