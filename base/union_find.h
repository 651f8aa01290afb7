/* Union-find over the numbers 0 .. count - 1: disjoint sets, each with a number of it as its root.
 *
 * parents[k] leads from k towards the root of its set; the root is its own parent. With {0, 0, 1, 3} the sets
 * are {0, 1, 2} with the root 0, and {3}. A caller that chooses roots itself sets parents[root of b] to the
 * root of a.
 */
#ifndef BASE_UNION_FIND_H
#define BASE_UNION_FIND_H

#include <stdint.h>

/* Makes each number a set of its own. */
static inline void union_find_begin(int32_t *parents, int32_t count) {
    for (int32_t k = 0; k < count; k++) parents[k] = k;
}

/* Returns the root of the set of k, and halves the way to it. */
static inline int32_t union_find_root(int32_t *parents, int32_t k) {
    while (parents[k] != k) k = parents[k] = parents[parents[k]];
    return k;
}

/* Joins the sets of two numbers; the lesser root stays. */
static inline void union_find_join(int32_t *parents, int32_t a, int32_t b) {
    a = union_find_root(parents, a);
    b = union_find_root(parents, b);
    parents[a > b ? a : b] = a > b ? b : a;
}

#endif
