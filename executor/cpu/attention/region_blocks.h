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
#ifndef EXECUTOR_CPU_ATTENTION_REGION_BLOCKS_H
#define EXECUTOR_CPU_ATTENTION_REGION_BLOCKS_H

#include "executor/cpu/attention/region_labels.h"

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

enum { MOST_POSITIONS = 8 };

/* A causal mask: a block needs only the keys up to its last row. `rows` and `keys` are the parameters that
 * the mask compares; it is causal if their elements are consecutive numbers. */
typedef struct CausalMask {
    int32_t key; /* label, or -1: there is no such mask */
    int32_t row_count, key_count, rows[MOST_POSITIONS], keys[MOST_POSITIONS];
} CausalMask;

/* Finds the mask by the region alone (causal_keys.c). */
AmStatus region_blocks_find_causal(CausalMask *mask, Arena *arena, const RegionBlocks *blocks,
                                   AmError *error);

/* The type of an accumulator: f32 for narrower floating types. */
static inline Dtype region_sum_type(Dtype type) {
    return dtype_is_floating(type) && type != DTYPE_F64 ? DTYPE_F32 : type;
}

/* The place of the elements of a region's value, of an accumulator or of a vector of indices. */
typedef enum RegionPlace {
    REGION_PARAMETER,   /* of the region, number `index` */
    REGION_OUTPUT,      /* of the region, number `index` */
    REGION_MADE_BEFORE, /* a value of the first program */
    REGION_ACCUMULATOR,
    REGION_INDICES /* 0, 1, 2, ... along a dimension of an iota */
} RegionPlace;

typedef struct RegionLink {
    RegionPlace place;
    int32_t index;     /* parameter or output number; instruction of the iota; else unused */
    int32_t value;     /* of the region: its labels */
    int32_t dimension; /* of indices: of the iota; else -1 */
    int32_t own;       /* value of the program */
} RegionLink;

/* One of the three programs, for blocks of one size. */
typedef struct RegionPart {
    Program *program;
    const int64_t *extents; /* [label] */
    int32_t input_count, output_count;
    RegionLink *inputs;  /* [parameter of the program]; the program's updates are of accumulators */
    RegionLink *outputs; /* [output of the program] */
} RegionPart;

/* Builds, fuses and plans the program of a stage, every label of the extent in `extents` [label]. */
AmStatus region_part_build(RegionPart *part, Arena *arena, const RegionBlocks *blocks, RegionStage stage,
                           const int64_t *extents, AmError *error);

#endif
