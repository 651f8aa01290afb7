/* The decomposition of a dot into matrix products: the dimensions of a matrix, the dimensions of
 * the loops around it, and the operands packed before.
 *
 * The dimensions of a dot are batch, left free (rows), right free (columns) and contracted (depth),
 * each with a stride in the left operand, the right operand and the result. Dimensions of one kind
 * that step as one in all arrays are merged. A product takes one dimension of rows, one of columns
 * and the depth; all others are loops around it, so that operands and result are used in place in
 * any order of dimensions. If too little would remain for a product, or strides are not those of a
 * matrix, an operand is packed, or the product is computed separately and copied. The least
 * estimated time decides. Types do not matter here: a converted operand keeps its layout unless it
 * is packed as well.
 */
#ifndef EXECUTOR_CPU_MATMUL_DOT_PLAN_H
#define EXECUTOR_CPU_MATMUL_DOT_PLAN_H

#include "ir/module.h"

enum { DOT_LEFT, DOT_RIGHT, DOT_RESULT, DOT_ARRAYS, DOT_MOST_LOOPS = 3 * IR_MAX_RANK };

/* One dimension; a stride of 0: the array lacks it. */
typedef struct DotAxis {
    int64_t size, strides[DOT_ARRAYS];
} DotAxis;

/* A copy between an array and the memory that products use, dimension by dimension. */
typedef struct DotCopy {
    int32_t rank;
    int64_t sizes[IR_MAX_RANK], far[IR_MAX_RANK], near[IR_MAX_RANK]; /* strides in the array, and packed */
} DotCopy;

typedef struct DotPlan {
    bool swapped;            /* left and right have changed places: the result is made transposed */
    bool packed[DOT_ARRAYS]; /* an operand is copied before, the result after the products */
    DotCopy copies[DOT_ARRAYS];
    int32_t loop_rank;
    DotAxis loops[DOT_MOST_LOOPS];
    int64_t products;           /* of the loops' sizes */
    DotAxis row, column, depth; /* of one product; the result's column stride is 1 */
} DotPlan;

/* Plans a dot. `dimensions`: the order of the result's dimensions, as IrAttributes.dimensions of a lowered
 * dot; NULL: batch, rows, columns. False: a size is above 2^31. Everything has elements. */
bool dot_plan(DotPlan *plan, const IrDot *dot, const IrShape *left, const IrShape *right,
              const int64_t *dimensions);

#endif
