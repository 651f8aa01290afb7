/* Matrix products of the learner on the CPU. The columns are divided into strips, k into pieces. The part of
 * b that a strip needs within a piece is read in place. If its columns are not contiguous or do not fill a
 * vector, it is read from a copy on the stack. Sums stay in `out` between pieces, which changes no bit.
 *
 * This file is compiled with products fused into additions (-ffp-contract=fast).
 */
#include "dqn/cpu/product_cpu.h"

#include <string.h>

#include "base/system/cpu_features.h"

/* rows x (one or two vectors) of `out`, += a b over `depth` steps of k. */
typedef struct Strip {
    int32_t rows, depth;
    const Real *a, *b;
    Real *out;
    int64_t a_row, a_depth, b_depth, out_row;
} Strip;

typedef struct StripKind {
    bool (*is_here)(void);
    int32_t lanes;                 /* numbers in a vector */
    void (*run[3])(const Strip *); /* by vectors */
} StripKind;

#if defined __x86_64__
#define NAME(word) word##_avx512
#define BYTES      64
#define TARGET     __attribute__((target("avx512f,fma")))
#define MOST_ROWS  8
#include "dqn/cpu/product_strip.h"

#define NAME(word) word##_avx2
#define BYTES      32
#define TARGET     __attribute__((target("avx2,fma")))
#define MOST_ROWS  4
#include "dqn/cpu/product_strip.h"
#endif

#define NAME(word) word##_any
#define BYTES      16
#define TARGET
#define MOST_ROWS 4
#include "dqn/cpu/product_strip.h"

static const StripKind KINDS[] = {
#if defined __x86_64__
    {cpu_has_avx512, 64 / sizeof(Real), {NULL, strip_1_avx512, strip_2_avx512}},
    {cpu_has_avx2, 32 / sizeof(Real), {NULL, strip_1_avx2, strip_2_avx2}},
#endif
    {cpu_has_any, 16 / sizeof(Real), {NULL, strip_1_any, strip_2_any}},
};

enum { PIECE = 128, MOST_LANES = 16, ROWS_ASIDE = 32 };

/* Copies [depth, width] of b's columns, 0 from `columns` on. */
static void copy_columns(const Real *b, int64_t b_depth, int64_t b_column, int32_t depth, int32_t columns,
                         int32_t width, Real *copy) {
    if (columns < width) memset(copy, 0, sizeof(Real) * (size_t)depth * (size_t)width);
    if (b_column == 1) {
        for (int32_t k = 0; k < depth; k++)
            for (int32_t c = 0; c < columns; c++) copy[k * width + c] = b[k * b_depth + c];
    } else {
        for (int32_t c = 0; c < columns; c++)
            for (int32_t k = 0; k < depth; k++) copy[k * width + c] = b[k * b_depth + c * b_column];
    }
}

static void copy_rows(const Real *from, int64_t from_row, Real *to, int64_t to_row, int32_t rows,
                      int32_t columns) {
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < columns; c++) to[r * to_row + c] = from[r * from_row + c];
}

/* Multiplies a strip of fewer columns than its vectors have lanes: its sums are kept aside, in whole
 * vectors, while they are added to. */
static void run_narrow(const StripKind *kind, const Strip *strip, int32_t columns, int32_t vectors) {
    Real aside[ROWS_ASIDE * 2 * MOST_LANES] = {0};
    int64_t width = (int64_t)vectors * kind->lanes;
    for (int32_t row = 0; row < strip->rows; row += ROWS_ASIDE) {
        Strip part = *strip;
        part.rows = strip->rows - row < ROWS_ASIDE ? strip->rows - row : ROWS_ASIDE;
        part.a += row * strip->a_row;
        part.out = aside;
        part.out_row = width;
        Real *out = strip->out + row * strip->out_row;
        copy_rows(out, strip->out_row, aside, width, part.rows, columns);
        kind->run[vectors](&part);
        copy_rows(aside, width, out, strip->out_row, part.rows, columns);
    }
}

/* Multiplies the strip of `columns` columns from `column` on; `vectors` of lanes hold them. */
static void run_strip(const StripKind *kind, const DqnProduct *product, int32_t column, int32_t columns,
                      int32_t vectors) {
    Real copy[PIECE * 2 * MOST_LANES];
    int32_t width = vectors * kind->lanes;
    bool in_place = product->b_column == 1 && columns == width;
    for (int32_t k = 0; k < product->depth; k += PIECE) {
        const Real *b = product->b + k * product->b_depth + column * product->b_column;
        Strip strip = {.rows = product->rows,
                       .depth = product->depth - k < PIECE ? product->depth - k : PIECE,
                       .a = product->a + k * product->a_depth,
                       .b = in_place ? b : copy,
                       .out = product->out + column,
                       .a_row = product->a_row,
                       .a_depth = product->a_depth,
                       .b_depth = in_place ? product->b_depth : width,
                       .out_row = product->columns};
        if (!in_place)
            copy_columns(b, product->b_depth, product->b_column, strip.depth, columns, width, copy);
        if (columns == width) kind->run[vectors](&strip);
        else run_narrow(kind, &strip, columns, vectors);
    }
}

static void run_product(const StripKind *kind, const DqnProduct *product) {
    size_t row_bytes = sizeof(Real) * (size_t)product->columns;
    for (int32_t r = 0; r < product->rows; r++) {
        Real *row = product->out + (int64_t)r * product->columns;
        if (product->start) memcpy(row, product->start, row_bytes);
        else memset(row, 0, row_bytes);
    }
    for (int32_t column = 0; column < product->columns;) {
        int32_t left = product->columns - column;
        int32_t vectors = left > kind->lanes ? 2 : 1;
        int32_t columns = left < vectors * kind->lanes ? left : vectors * kind->lanes;
        run_strip(kind, product, column, columns, vectors);
        column += columns;
    }
}

void dqn_product(const DqnProduct *product) {
    const StripKind *kind = KINDS;
    while (!kind->is_here()) kind++;
    run_product(kind, product);
}
