/* A causal mask of a region: the keys after the last row of a block, which the block may leave out.
 *
 * For row 1 of 3 with a causal mask, the scores 1 2 3 become 1 2 -1e9. So a block that ends at row 1
 * computes the keys 0 and 1 alone.
 */
#ifndef EXECUTOR_ATTENTION_CAUSAL_KEYS_H
#define EXECUTOR_ATTENTION_CAUSAL_KEYS_H

#include "executor/attention/region_blocks.h"

enum { MOST_POSITIONS = 8 };

/* A causal mask: a block needs only the keys up to its last row. `rows` and `keys` are the parameters that
 * the mask compares; it is causal if their elements are consecutive numbers. */
typedef struct CausalMask {
    int32_t key; /* label, or -1: there is no such mask */
    int32_t row_count, key_count, rows[MOST_POSITIONS], keys[MOST_POSITIONS];
} CausalMask;

/* Finds the mask by the region alone. */
AmStatus region_blocks_find_causal(CausalMask *mask, Arena *arena, const RegionBlocks *blocks,
                                   AmError *error);

#endif
