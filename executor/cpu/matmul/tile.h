/* Tiles of products: the inner loop of the convolutions.
 *
 * A tile is a few rows by a few vectors of columns of a product out = A B that stay in registers
 * over the depth. The depth comes in segments: in segment s row r is read from rows[s][r] on,
 * `row_step` elements from one depth to the next, and B from columns[s] on, `column_step` elements
 * from one depth to the next. So neither operand has to be packed. The cells of a window are
 * segments: each has the features at a position of the image (Dukhan, 2019, "The Indirect
 * Convolution Algorithm"). For a gradient to the weights, the rows of images are segments.
 *
 * The width is chosen once, by the processor: 16 floats (AVX-512), 8 (AVX2 with fused multiply-add)
 * or 4. Products may be fused with their additions; every sum follows the depth in order, so that
 * it does not depend on the position of a tile.
 */
#ifndef EXECUTOR_CPU_MATMUL_TILE_H
#define EXECUTOR_CPU_MATMUL_TILE_H

#include <stdbool.h>
#include <stdint.h>

enum { TILE_MOST_ROWS = 8, TILE_MOST_VECTORS = 4, TILE_MOST_WIDTH = 16 };
enum { TILE_MOST_COLUMNS = TILE_MOST_VECTORS * TILE_MOST_WIDTH };
enum { TILE_PREFETCHED = 8 }; /* prefetch distance of B, in depths */

/* The start of a segment: for each row of the shape (an unneeded one may repeat another), and in B. */
typedef struct TileSegment {
    const float *rows[TILE_MOST_ROWS];
    const float *columns;
} TileSegment;

typedef struct TileWork {
    const TileSegment *segments;
    int64_t segment_count, depth;     /* depth of each segment */
    int64_t row_step, column_step;    /* elements, from one depth to the next */
    int64_t row_shift, column_shift;  /* elements, added to the addresses of all segments */
    float *out;                       /* row 0, column 0 */
    int64_t out_rows[TILE_MOST_ROWS]; /* elements from `out` to each needed row */
    int32_t first_row, end_row;       /* needed rows */
    int32_t columns;                  /* that are wanted; B is read in whole vectors */
    bool accumulate;                  /* adds to the existing values */
    /* out = addend + (earlier + product), or addend + product where `earlier` is NULL, in place of what
     * `accumulate` says; row 0, column 0 of both, the addend's rows as far from one another as those of out.
     * NULL: nothing is added. */
    const float *addend, *earlier;
    int64_t earlier_step; /* elements from one row to the next */
} TileWork;

/* A small product out = A B as its operands lie; steps are in elements. */
typedef struct TileProduct {
    const float *left, *right;
    int64_t left_row, left_depth;      /* from one row, one depth to the next */
    int64_t right_column, right_depth; /* from one column, one depth to the next */
    float *out;
    int64_t out_row;
    int64_t rows, columns, depth;
    float *scratch; /* [depth * TILE_STRIP * width of the kind] */
} TileProduct;

enum { TILE_STRIP = 2 }; /* vectors of columns that a small product computes at a time */

/* The best kind of tile for the processor. */
typedef struct TileKind {
    const char *name;
    bool (*is_here)(void);
    int32_t width, most_vectors;
    /* [vectors]: rows of the tile that is that wide, and what computes it. */
    int32_t rows[TILE_MOST_VECTORS + 1];
    void (*run[TILE_MOST_VECTORS + 1])(const TileWork *work);
    /* out[k * step + c] = lines[c][k] for c < width, k < depth */
    void (*transpose)(float *out, int64_t step, const float *const *lines, int64_t depth);
    /* All of a small product, of any number of columns. */
    void (*multiply)(const TileProduct *product);
} TileKind;

/* The best first; the last one runs anywhere. */
extern const TileKind tile_kinds[];
extern const int32_t tile_kind_count;

/* Returns the first kind that this processor has. */
const TileKind *tile_kind(void);

#endif
