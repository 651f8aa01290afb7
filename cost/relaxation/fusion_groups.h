/* Finds the element-wise operators that share a fusion with their operand in no plan.
 *
 * A fusion is one step. An operator therefore cannot share a fusion with its operand if another of
 * its operands depends on a step outside fusions that itself depends on the first operand: exp(x -
 * max(x)) reads x after the reduction. Then x passes through memory in every plan.
 *
 * program_fuse() puts two operators into one fusion only if element-wise operators of the fusion
 * connect them. A group is a set of operators connected by operands that may share a fusion. The
 * operators of a fusion that it does not recompute belong to one group, and each group launches at
 * least one fusion. Recomputed operators may belong to other groups, which have launched fusions
 * before, because of the separation.
 */
#ifndef COST_RELAXATION_FUSION_GROUPS_H
#define COST_RELAXATION_FUSION_GROUPS_H

#include "propagation/plan/plan.h"

/* Returns whether an instruction may be computed inside a fusion. */
bool fusion_groups_is_element_wise(const IrModule *module, int32_t instruction);
/* Returns a reduction that sums up nothing: over dimensions of size 1. */
bool fusion_groups_reduces_ones(const IrModule *module, int32_t instruction);

/* Returns whether some plan may take the sum into a product that makes one of its terms
 * (program_accumulate_products()), in whose time it then is. Sums of 16 bits are, where they are of parts in
 * f32 (linearity_is_16bit_product()). */
bool fusion_groups_may_be_taken(const PlanContext *context, int32_t instruction);
/* Returns whether some plan may not run it at all: such a sum, or the conversion of parts that are in f32
 * already. */
bool fusion_groups_may_vanish(const PlanContext *context, int32_t instruction);

/* By position in split_options->operands, for element-wise readers whose operand is not made on
 * demand. */
typedef struct FusionGroups {
    bool *is_from_memory; /* the reader takes the operand from memory: no fusion has both */
    bool *is_paid;        /* `is_from_memory`, and no other such reader is in the same step */
    /* The reader may recompute the operand (FACT_RECOMPUTABLE): it then does not read the operand
     * from memory, and pays this fraction of the operand's bytes for the sources. */
    bool *is_recomputed;
    float *share;
    /* By instruction: the first operator of the group of an element-wise operator, else -1; and the
     * least number of fusions that a group launches, at one of its operators that runs in every
     * plan. */
    int32_t *group, *launches;
    /* By instruction: an element-wise operator of its group that runs in every plan reads its
     * result; or, for a conversion that may vanish, the result of the conversion's operand. */
    bool *is_read_on;
} FusionGroups;

/* Finds the groups, in the arena. AM_ERROR_INTERNAL: no memory. */
AmStatus fusion_groups_find(FusionGroups *fusion_groups, Arena *arena, const PlanContext *context,
                            AmError *error);

#endif
