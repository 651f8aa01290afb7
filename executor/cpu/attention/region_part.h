/* The programs of a region's stages for blocks of one size, and the arrays that they read and write.
 *
 * The program of a stage has the region's instructions of that stage. A dimension with the label of the rows
 * has the extent of a block instead of all rows. The parameters and outputs of the program are linked to
 * those of the region, to results of the first program, to accumulators, or to vectors of indices.
 */
#ifndef EXECUTOR_CPU_ATTENTION_REGION_PART_H
#define EXECUTOR_CPU_ATTENTION_REGION_PART_H

#include "executor/attention/region_blocks.h"

/* Returns the type of an accumulator: f32 for narrower floating types. */
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

/* Builds, fuses and plans the program of a stage. Every label has its extent in `extents` [label]. */
AmStatus region_part_build(RegionPart *part, Arena *arena, const RegionBlocks *blocks, RegionStage stage,
                           const int64_t *extents, AmError *error);

#endif
