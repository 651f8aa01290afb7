/* Sum tree: draws an index with probability proportional to its mass in
 * O(log n) (Schaul et al. 2016, appendix B.2.1).
 *
 * A complete binary tree in one array: the leaves hold the masses and every
 * inner node is left + right, in double. Inner nodes are always recomputed and
 * never adjusted by a difference, so that rounding does not pile up and equal
 * leaves give an equal tree whatever the order of the writes.
 */
#ifndef DQN_SUM_TREE_H
#define DQN_SUM_TREE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

typedef struct SumTree {
    int32_t capacity; /* requested leaves */
    int32_t width;    /* the next power of two: leaf i is nodes[width + i] */
    double *nodes;    /* nodes[1] is the root, nodes[0] is not used */
} SumTree;

/* Creates a tree of `capacity` leaves of mass 0 (1 <= capacity <= 2^29). */
AmStatus sum_tree_create(SumTree *tree, Arena *arena, int32_t capacity, AmError *error);

/* Sets the mass of a leaf, and the sums above it. */
void sum_tree_set(SumTree *tree, int32_t index, double mass);
double sum_tree_get(const SumTree *tree, int32_t index);
double sum_tree_total(const SumTree *tree);

/* Returns the leaf whose interval of the running sum holds `position` in [0, total). A subtree without mass
 * is never entered, so a position that rounding has put at or past the end still gives a leaf that has mass;
 * -1 if the total is 0. */
int32_t sum_tree_find(const SumTree *tree, double position);

#endif
