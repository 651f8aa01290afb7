/* The kernel of a blocked region: its programs for one block, and the arrays that blocks read and write.
 *
 * blocked_region.c prepares the kernel, region_run.c runs it. The keys of a causal mask are divided into
 * prefixes, each with a program of its own:
 *
 *     block of rows           0  1  2  3
 *     prefixes of the keys    1  2  3  4
 */
#ifndef EXECUTOR_CPU_ATTENTION_REGION_KERNEL_H
#define EXECUTOR_CPU_ATTENTION_REGION_KERNEL_H

#include "executor/attention/causal_keys.h"
#include "executor/cpu/attention/region_part.h"
#include "executor/cpu/cpu.h"

enum { REGION_MOST_PREFIXES = 16 };
enum { FULL_BLOCK, LAST_BLOCK, SIZES }; /* sizes of a block: row_block rows, or the remaining ones */

/* The elements of an array that one block reads or writes, and their packed copy in the scratch memory. */
typedef struct BlockArray {
    RegionLink link;
    bool in_place;         /* the elements are contiguous in the array, and are not copied */
    bool differs_by_block; /* blocks of a unit have different elements */
    int64_t element_bytes;
    int64_t bytes, packed_at; /* of the copy; its scratch offset */
    const void *indices;
    int32_t rank;
    int64_t *dimensions;                     /* [rank] */
    int64_t *array_strides, *packed_strides; /* [rank]: in elements */
    int64_t *label_strides; /* [rank]: elements of the array from one index of the label to the next */
    const int32_t *labels;  /* [rank] */
} BlockArray;

typedef struct PartProgram {
    RegionPart part;
    KernelCall **calls; /* [step of the program] */
    BlockArray *inputs, *outputs;
    bool is_empty; /* it has no results */
    const struct PartProgram
        *owner; /* the program whose packed copies it shares: itself, or that of all keys */
} PartProgram;

typedef struct RegionKernel {
    RegionBlocks blocks;
    int64_t row_block, row_blocks, rows; /* rows of a block, number of blocks of a unit, rows of a unit */
    int32_t unit_count, summed_count;
    int32_t units[REGION_MOST_LABELS];  /* labels, such as batch and head, whose indices number the units */
    int32_t summed[REGION_MOST_LABELS]; /* labels that accumulators sum over, one index after the other */
    int64_t work_items;                 /* in any order: units, or their blocks if no sum is over the rows */
    int32_t worker_count;
    CausalMask mask;
    /* Under a causal mask a block computes a prefix of the keys: k * prefix_keys of them, with k from 1 to
     * prefix_count. Each k has its own program. Without a mask there is one prefix, of all keys. */
    int32_t prefix_count;
    int64_t prefix_keys;
    PartProgram before, after[SIZES]; /* programs that run once for a unit, before and after its blocks */
    /* Programs of full blocks by their prefix, then that of the last block. */
    PartProgram block[REGION_MOST_PREFIXES + 1];
    int64_t *array_at; /* [value of the region]: scratch offset of it, or of its accumulator */
    int64_t *array_bytes;
    int64_t values_at, kernels_at, addresses_at, worker_bytes;
    int32_t most_values;
} RegionKernel;

/* Runs a call whose `compiled` is a RegionKernel. */
void region_kernel_run(const KernelCall *call);

#endif
