/* How a fusion reads one of its inputs, tile by tile. */
#ifndef EXECUTOR_CPU_ELEMENTWISE_TILE_INPUT_H
#define EXECUTOR_CPU_ELEMENTWISE_TILE_INPUT_H

#include "executor/cpu/vector/vector.h"
#include "ir/module.h"

typedef enum TileAccess {
    TILE_PACKED,   /* in the order of the index space: where it lies */
    TILE_PERIODIC, /* repeats, and a tile is a part of one period: where it lies */
    TILE_REPEATED, /* the same in every tile (a scalar, a bias): packed once */
    TILE_STRIDED   /* packed tile by tile from its strides */
} TileAccess;

typedef struct TileInput {
    TileAccess access;
    int64_t element_bytes, period;
    int32_t rank; /* of the strides, after joining dimensions */
    int64_t dimensions[IR_MAX_RANK], strides[IR_MAX_RANK];
} TileInput;

/* Prepares an input. `tile`: elements of all tiles of a series but the last; series begin at multiples of
 * `unit` elements. */
void tile_input_prepare(TileInput *input, Dtype type, const int64_t *strides, const int64_t *dimensions,
                        int32_t rank, int64_t tile, int64_t unit);
/* Returns whether it needs a staging area, of tile_staging_bytes(). */
static inline bool tile_is_staged(const TileInput *input) {
    return input->access == TILE_REPEATED || input->access == TILE_STRIDED;
}
int64_t tile_staging_bytes(const TileInput *input);
/* Prepares the input for a series of tiles of at most `most` elements. */
void tile_input_begin(const TileInput *input, const void *memory, int64_t most, void *staging);
/* Returns the tile of `count` elements from `first` on: in memory or in the staging area. */
const void *tile_input_at(const TileInput *input, const void *memory, int64_t first, int64_t count,
                          void *staging, const VectorLoops *loops);

#endif
