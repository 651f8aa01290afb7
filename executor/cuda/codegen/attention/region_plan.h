/* The phases of a fused attention region on a GPU.
 *
 * Labels (region_labels.h) are of four kinds: the rows of the scores, their keys, units (all others of the
 * scores, such as batch and heads) and widths (those of single queries, keys and values). Values that have
 * rows and keys are computed tile by tile and never stored:
 *
 *   score product   dot over widths: s[r,k] = sum q[r,d] k[k,d]
 *
 * All dots and reductions else are sums, which are stored:
 *
 *   SUM_PRODUCT   dot of a tile with a value that has widths: out[r,d] = sum p[r,k] v[k,d]
 *   SUM_ELEMENTS  of a tile's elements, or of products of two such values: max[r], delta[r]
 *   SUM_FLAT      of values that are no tiles
 *
 * A sum that depends on another one is in a later phase. Sums with equal loops share a phase, and in it the
 * tiles. Everything else is computed where it is needed.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_ATTENTION_REGION_PLAN_H
#define EXECUTOR_CUDA_CODEGEN_ATTENTION_REGION_PLAN_H

#include "executor/attention/causal_keys.h"
#include "executor/cuda/codegen/source_text.h"

typedef enum RegionSumKind { SUM_PRODUCT, SUM_ELEMENTS, SUM_FLAT } RegionSumKind;

typedef struct RegionSum {
    RegionSumKind kind;
    int32_t instruction, value;
    int32_t tile;    /* SUM_PRODUCT: the operand that is a tile, 0 or 1 */
    int32_t phase;   /* from 1; sums of a phase with other loops are other kernels */
    bool *is_looped; /* [label]: summed over */
    bool is_stored;  /* a later kernel reads it */
    int32_t output;  /* where it is stored: output number, or -1: in the scratch memory */
    int64_t at;      /* there: its first byte */
} RegionSum;

typedef struct RegionPlan {
    RegionBlocks blocks;
    CausalMask mask;
    bool has_mask;
    int32_t row, key; /* labels */
    bool *is_unit;    /* [label] */
    int32_t sum_count;
    RegionSum *sums;       /* in the order of instructions */
    int32_t *sum_of;       /* [value]: its sum, or -1 */
    bool *is_score;        /* [instruction]: a score product */
    int32_t *parameter_of; /* [value]: parameter number, or -1 */
    int32_t *attached;     /* [output]: the sum whose kernel writes it, or -1 */
    Dtype product;         /* of all dots: f32 or f64 */
    int64_t scratch_bytes;
} RegionPlan;

/* Plans a region, in the arena. AM_ERROR_INPUT: it has no such kernels; the text is the reason. */
AmStatus region_plan_find(RegionPlan *plan, Arena *arena, const Program *region, AmError *error);

static inline const ProgramInstruction *region_plan_producer(const RegionPlan *plan, int32_t value) {
    int32_t producer = plan->blocks.producer[value];
    return producer < 0 ? NULL : &plan->blocks.region->instructions[producer];
}

static inline bool region_plan_has(const RegionPlan *plan, int32_t value, int32_t label) {
    return region_labels_has(&plan->blocks.labels, value, label);
}

/* Returns whether the value has rows and keys. */
static inline bool region_plan_is_tile(const RegionPlan *plan, int32_t value) {
    return region_plan_has(plan, value, plan->row) && region_plan_has(plan, value, plan->key);
}

static inline bool region_plan_is_width(const RegionPlan *plan, int32_t label) {
    return label != plan->row && label != plan->key && !plan->is_unit[label];
}

/* Marks the values in `needed` [value] that a kernel of these `values` computes or reads, up to sums. The sum
 * `self` (-1: none) is at hand. */
void region_plan_mark(const RegionPlan *plan, bool *needed, const int32_t *values, int32_t count,
                      int32_t self);

/* Returns whether two sums have the same loops and results of the same rows or keys: one kernel. */
bool region_plan_alike(const RegionPlan *plan, const RegionSum *a, const RegionSum *b);

#endif
