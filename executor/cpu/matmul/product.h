/* Matrix products of f32 by tiles (tile.h), whose operands are packed while they are read.
 *
 * out[i][j] = sum over k of left[i][k] * right[k][j]; f16 and bf16 become f32 while they are
 * packed. A sum follows the depth in order, by stretches that depend on the depth alone: neither
 * the division of a product into blocks of rows and columns nor the thread that computes them
 * changes a bit. Small products, as of attention's heads, occur by the hundred: they take no lock,
 * unlike OpenBLAS for its buffer, so that ranks do not wait for each other.
 */
#ifndef EXECUTOR_CPU_MATMUL_PRODUCT_H
#define EXECUTOR_CPU_MATMUL_PRODUCT_H

#include "base/dtype.h"
#include "executor/cpu/element.h"
#include "executor/cpu/matmul/tile.h"

/* An operand in place: the distance in elements from one row (of the right: column), and from one
 * depth, to the next; one of the two is 1. */
typedef struct ProductSide {
    Dtype type;
    int64_t stride, depth_stride;
} ProductSide;

/* The form of a product: its operands, its greatest sizes, and the elements from one row of the result to the
 * next. */
typedef struct ProductForm {
    ProductSide left, right;
    int64_t rows, columns, depth, out_stride;
} ProductForm;

/* One product of a planned form. */
typedef struct Product {
    float *out;
    const float *addend; /* added to the product, in the layout of the result, or the result; NULL: none */
    const void *left, *right;
    int64_t rows, columns;
} Product;

typedef struct ProductPlan {
    ProductSide left, right;
    int64_t depth, out_stride; /* elements from one row of the result to the next */
    const TileKind *tile;
    int32_t vectors;                              /* of a panel of columns */
    int64_t row_block, column_block, depth_block; /* packed at a time */
    int64_t columns_at, line_at;                  /* scratch offsets after the packed rows */
    int64_t partial_at, partial_rows;             /* sums that are not whole yet; product_plan_addend() */
    int64_t scratch_bytes;
    ElementLoop *widen[2]; /* of left and right to f32; NULL: they are */
    bool is_small;         /* computed in place, strip by strip of columns; the fields above are unused */
} ProductPlan;

/* Plans products of a form by this kind of tile. False: another way is better, as the processor's vectors are
 * short, a product of few rows or columns is large, or the types are others. */
bool product_plan(ProductPlan *plan, const TileKind *tile, const ProductForm *form);

/* Plans that products of at most so many rows are added to an array: more scratch. Not of a small plan. */
void product_plan_addend(ProductPlan *plan, int64_t rows);

/* Runs one product; `scratch` has plan->scratch_bytes. The sum with an addend is rounded as by two steps, and
 * needs product_plan_addend() before. */
void product_run(const ProductPlan *plan, const Product *product, void *scratch);

#endif
