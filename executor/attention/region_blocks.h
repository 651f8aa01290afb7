/* The division of a region into blocks: a few rows of one batch index at a time.
 *
 * The largest result of a dot on which another dot depends has the scores' dimensions. A label of it is
 * divided if no value that depends on a sum over the label has the label itself: batch dimensions and rows,
 * but not keys, over which a softmax sums. The block has `row_block` rows and one index of every other
 * divided label. Heads and examples stay together where their scores are small. Labels that only the
 * gradients of keys and values sum over (rows, query groups) are summed: their blocks follow one another in a
 * fixed order, and add to accumulators. All others are free, and give independent units.
 *
 * Three programs compute a unit:
 *
 *   before   once: values without rows (scaled keys)
 *   block    for every block: scores, sums over keys, outputs of rows, terms of accumulators
 *   after    once: what depends on accumulators (their conversions, scaled gradients)
 */
#ifndef EXECUTOR_ATTENTION_REGION_BLOCKS_H
#define EXECUTOR_ATTENTION_REGION_BLOCKS_H

#include "executor/attention/region_labels.h"

typedef enum RegionStage { REGION_UNUSED, REGION_BEFORE, REGION_BLOCK, REGION_AFTER } RegionStage;

typedef struct RegionBlocks {
    const Program *region;
    RegionLabels labels;
    const ProgramInstruction *scores; /* the largest dot on which another one depends */
    int32_t row;                      /* label */
    bool has_whole_rows;  /* a block has all queries of several examples or heads, and `row` is their label */
    bool *is_divided;     /* [label] */
    bool *is_summed;      /* [label]: divided, and summed over by an accumulator */
    int32_t *producer;    /* [value]: instruction, or -1 */
    uint8_t *stage;       /* [instruction]: RegionStage */
    bool *is_free;        /* [instruction]: depends on no parameter; every stage makes its own */
    bool *is_accumulated; /* [value]: a sum over a summed label; made in the block, complete after */
} RegionBlocks;

enum { REGION_MOST_LABELS = 64 };        /* of a region that is computed by blocks */
enum { REGION_JOINED_BYTES = 64 << 10 }; /* of f32 scores in a block of several heads or examples */

/* Fills `blocks`, in the arena. `joins`: blocks of small scores have several heads or examples.
 * AM_ERROR_INPUT: the region is not computed by blocks. */
AmStatus region_blocks_find(RegionBlocks *blocks, Arena *arena, const Program *region, bool joins,
                            AmError *error);

/* Fails with AM_ERROR_INPUT: a region has another form. Returns that status. */
AmStatus region_refuse(const char *reason, AmError *error);

#endif
