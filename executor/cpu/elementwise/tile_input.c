/* Inputs of fusions. A packed tile is copied by blocks of whole rows along the two innermost
 * dimensions, with a loop for each kind of row: one repeated element (a broadcast along inner
 * dimensions) or a dense run.
 */
#include "executor/cpu/elementwise/tile_input.h"

#include "executor/array/strided.h"

enum { SLACK = 64 }; /* spread rows are written in whole vectors */

void tile_input_prepare(TileInput *input, Dtype type, const int64_t *strides, const int64_t *dimensions,
                        int32_t rank, int64_t tile, int64_t unit) {
    for (int32_t d = 0; d < rank; d++) {
        input->dimensions[d] = dimensions[d];
        input->strides[d] = strides[d];
    }
    input->element_bytes = dtype_bytes(type);
    input->rank = strided_coalesce(input->dimensions, input->strides, NULL, rank);
    bool repeats = input->rank == 0, in_place = input->rank == 1 && input->strides[0] == 1;
    input->access = in_place ? TILE_PACKED : repeats ? TILE_REPEATED : TILE_STRIDED;
    if (repeats || input->strides[0] != 0) return;
    input->period = strided_elements(input->dimensions + 1, input->rank - 1);
    if (input->period <= 0 || (unit % tile != 0 && unit % input->period != 0)) return;
    if (tile % input->period == 0) input->access = TILE_REPEATED;
    else if (input->rank == 2 && input->strides[1] == 1 && input->period % tile == 0)
        input->access = TILE_PERIODIC;
}

int64_t tile_staging_bytes(const TileInput *input) {
    return ELEMENT_TILE * input->element_bytes + SLACK;
}

void tile_input_begin(const TileInput *input, const void *memory, int64_t most, void *staging) {
    if (input->access == TILE_REPEATED && most > 0)
        strided_load(staging, memory, input->strides, input->dimensions, input->rank, 0, most,
                     input->element_bytes);
}

/* The position of an input's elements. */
typedef struct Place {
    int64_t index[IR_MAX_RANK], offset;
} Place;

/* Moves on by `rows` of the last dimension but one, not beyond its end; the last index becomes 0. */
static void move_on(Place *place, const TileInput *input, int64_t rows) {
    int32_t d = input->rank - 1;
    place->offset -= place->index[d] * input->strides[d];
    place->index[d--] = 0;
    if (d < 0) return;
    place->index[d] += rows;
    place->offset += rows * input->strides[d];
    for (; d > 0 && place->index[d] == input->dimensions[d]; d--) {
        place->offset += input->strides[d - 1] - place->index[d] * input->strides[d];
        place->index[d] = 0;
        place->index[d - 1]++;
    }
}

/* Loads the tile of an input whose rows are dense or repeat one element. */
static void load_rows(const TileInput *input, const char *memory, int64_t first, int64_t count, char *out,
                      const VectorLoops *loops) {
    int32_t inner = input->rank - 1;
    int64_t length = input->dimensions[inner], stride = inner > 0 ? input->strides[inner - 1] : 0;
    VectorRows *load = input->strides[inner] == 0 ? loops->spread_rows : loops->copy_rows;
    Place place;
    int64_t rest = first; /* elements, in dimensions up to d */
    place.offset = 0;
    for (int32_t d = input->rank - 1; d >= 0; d--) {
        int64_t above = rest / input->dimensions[d];
        place.index[d] = rest - above * input->dimensions[d];
        place.offset += place.index[d] * input->strides[d];
        rest = above;
    }
    while (count > 0) {
        int64_t left = length - place.index[inner], rows = 1;
        if (left > count) left = count;
        if (left == length && inner > 0) {
            rows = input->dimensions[inner - 1] - place.index[inner - 1];
            if (rows > count / length) rows = count / length;
        }
        load(out, memory + place.offset * input->element_bytes, input->element_bytes, stride, rows, left);
        out += rows * left * input->element_bytes;
        count -= rows * left;
        move_on(&place, input, rows);
    }
}

const void *tile_input_at(const TileInput *input, const void *memory, int64_t first, int64_t count,
                          void *staging, const VectorLoops *loops) {
    switch (input->access) {
    case TILE_PACKED: return (const char *)memory + first * input->element_bytes;
    case TILE_PERIODIC: return (const char *)memory + first % input->period * input->element_bytes;
    case TILE_REPEATED: return staging;
    case TILE_STRIDED: break;
    }
    int64_t step = input->strides[input->rank - 1];
    if (input->element_bytes <= 8 && (step == 0 || step == 1))
        load_rows(input, memory, first, count, staging, loops);
    else
        strided_load(staging, memory, input->strides, input->dimensions, input->rank, first, count,
                     input->element_bytes);
    return staging;
}
