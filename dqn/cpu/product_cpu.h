/* Matrix products of the dense layers, on one thread.
 *
 *   out[r, c] = start[c] + sum_k a[r, k] b[k, c]
 *
 * At the sizes of a planner (hundreds of kiloflops) general libraries spend as much time on
 * preparing a product as on computing it. Here data is copied only if a vector cannot read it in
 * place. Every result is one chain of fused multiply-adds in the order of k, for any number of
 * rows, width of the vectors and position in a tile. A row of a batch therefore has the same bits
 * as alone, and all processors with such an instruction give the same.
 */
#ifndef DQN_CPU_PRODUCT_CPU_H
#define DQN_CPU_PRODUCT_CPU_H

#include "dqn/network.h"

typedef struct DqnProduct {
    int32_t rows, columns, depth; /* positive */
    const Real *a;                /* [rows, depth]: element (r, k) is a[r a_row + k a_depth] */
    int64_t a_row, a_depth;
    const Real *b; /* [depth, columns]: element (k, c) is b[k b_depth + c b_column] */
    int64_t b_depth, b_column;
    const Real *start; /* [columns], NULL: 0 */
    Real *out;         /* [rows, columns], overwritten */
} DqnProduct;

void dqn_product(const DqnProduct *product);

static inline void relu(Real *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) values[i] = values[i] > 0 ? values[i] : 0;
}

#endif
