/* Which element-wise operators can be in one fusion with what they read, in no plan.
 *
 * A fusion is one step. So an operator cannot be in one with its operand if what it reads otherwise has to
 * wait for a step that is no fusion's and itself waits for that operand: exp(x - max(x)) reads x after the
 * reduction has. Then x passes the memory, whatever the plan is.
 *
 * program_fuse() puts two operators into one fusion only where element-wise operators of the same fusion lead
 * from the one to the other. So what such operands connect that may be in one fusion is a group, whatever a
 * fusion has of its own is of one group, and each group launches a fusion at least. What a fusion makes again
 * may be of other groups; these have launched fusions before, for what separates them.
 */
#ifndef COST_SEPARATION_H
#define COST_SEPARATION_H

#include "propagation/plan.h"

/* May be computed inside a fusion. */
bool separation_is_element_wise(const IrModule *module, int32_t instruction);
/* A reduction that sums up nothing: over dimensions of size 1. */
bool separation_reduces_ones(const IrModule *module, int32_t instruction);

/* Some plan may take the sum into a product that makes one of its terms (program_accumulate_products()), in
 * whose time it then is. Sums of 16 bits are, where they are of parts in f32 (lower_is_half_product()). */
bool separation_may_be_taken(const PlanContext *context, int32_t instruction);
/* Some plan may not run it at all: such a sum, or the conversion of parts that are in f32 already. */
bool separation_may_vanish(const PlanContext *context, int32_t instruction);

/* By place in context->choices->operands, where the reader is element-wise and the operand is not made on
 * demand. */
typedef struct Separation {
    bool *is_from_memory; /* the reader takes the operand from memory: no fusion has both */
    bool *is_paid;        /* and no other reader for which that is said reads it in the same step */
    /* The reader may make the operand again itself (program_may_redo()): then it is not in memory for it, and
     * what is paid for, of the operand's bytes this share, is what it would be made of. */
    bool *is_redone;
    float *share;
    /* By instruction: of an element-wise one the first of its group, else -1; and the fusions that a group
     * launches at least, at one of its operators that runs in every plan. */
    int32_t *group, *launches;
    /* By instruction: an element-wise operator of its group reads its result that runs in every plan, or, of
     * a conversion that may vanish, does so with what that makes. */
    bool *is_read_on;
} Separation;

/* In the arena. AM_ERROR_INTERNAL: no memory. */
AmStatus separation_find(Separation *separation, Arena *arena, const PlanContext *context, AmError *error);

#endif
