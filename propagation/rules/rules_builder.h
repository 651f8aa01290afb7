/* The interface by which the functions of the rule classes write factors (internal to rules*.c).
 *
 * A function starts a factor with rule_factor() and sets its dimension in each slot with
 * rule_put(). Slots count the operands first, then the results. Dimensions without a factor must be
 * replicated; rule_finish() adds blocked factors for them. Dimensions of size 1 never matter. An
 * instruction whose attributes contradict its shapes is blocked as a whole.
 */
#ifndef PROPAGATION_RULES_RULES_BUILDER_H
#define PROPAGATION_RULES_RULES_BUILDER_H

#include "base/int_list.h"
#include "propagation/rules/rules.h"

enum { RULE_FEW_FACTORS = 8 };

typedef struct RuleBuilder {
    Arena *arena; /* of the finished rules */
    const IrModule *module;
    const IrInstruction *instruction;
    const IrShape **shapes; /* [operand_count + result_count] */
    int32_t operand_count, result_count;
    Factor *factors; /* `few`, or of the arena; NULL before the first */
    int32_t count, capacity;
    Factor few[RULE_FEW_FACTORS];
    const int8_t *inner; /* of a fusion (FactorRule) */
    bool is_major;       /* the latest factor is the major part of its dimensions */
    bool malformed;
    bool unknown; /* its semantics are unknown: blocked, with a warning */
} RuleBuilder;

/* Starts a factor; its size is that of the first dimension put into it, and
 * parallel and reduction factors take only dimensions of that size. */
void rule_factor(RuleBuilder *builder, FactorKind kind);
/* Starts a parallel factor that is only the major part of its dimensions: its size divides theirs. */
void rule_major_factor(RuleBuilder *builder, int64_t size);
/* Starts a permutation of this size, or the reduction over a convolution's window; their dimensions may have
 * any size. */
void rule_halo(RuleBuilder *builder, FactorKind kind, FactorHalo halo, int64_t size);
/* Starts a reduction factor. */
void rule_reduction(RuleBuilder *builder, SbpReduction reduction, bool indexed);
/* Makes the latest factor dimension `dimension` of slot `slot`. */
void rule_put(RuleBuilder *builder, int32_t slot, int64_t dimension);
/* Makes the latest factor the major part of each of the `blocks` blocks of a dimension. */
void rule_put_in_blocks(RuleBuilder *builder, int32_t slot, int64_t dimension, int64_t blocks);
/* Completes the rule: every dimension above 1 is then in some factor. */
void rule_finish(RuleBuilder *builder, FactorRule *rule);
/* Writes the rule of an instruction of any computation that makes one array and calls no planned
 * computation. */
void rule_of_instruction(FactorRule *rule, Arena *arena, const IrModule *module, int32_t instruction);

static inline int32_t rule_result(const RuleBuilder *builder) {
    return builder->operand_count;
}
static inline int32_t rule_rank(const RuleBuilder *builder, int32_t slot) {
    return builder->shapes[slot]->type == DTYPE_TUPLE ? 0 : builder->shapes[slot]->rank;
}
/* Returns the size of a dimension; 0 (and malformed) where the slot has no such dimension. */
int64_t rule_size(RuleBuilder *builder, int32_t slot, int64_t dimension);
/* Blocks the whole instruction unless the condition holds; returns it. */
bool rule_expect(RuleBuilder *builder, bool condition);

/* Paddings, strides and dilations beyond this might overflow in sums of places: not split. */
static inline bool rule_is_near(int64_t distance) {
    return distance > -((int64_t)1 << 40) && distance < (int64_t)1 << 40;
}

/* Returns whether value `instruction` holds the identity of a reduction in every
 * element: a constant, possibly broadcast, reshaped, copied or converted. */
bool rule_is_identity(const IrModule *module, int32_t instruction, SbpReduction reduction);

/* Returns whether every part of a reduction may begin with value `instruction`: its
 * identity, or anything where combining twice is combining once. */
bool rule_may_repeat(const IrModule *module, int32_t instruction, SbpReduction reduction);

/* Write rules: one function per rule class; BLOCKED and TUPLE need none. */
void rule_elementwise(RuleBuilder *builder);
void rule_each_dimension(RuleBuilder *builder); /* FREE, PARAMETER */
void rule_broadcast(RuleBuilder *builder);
void rule_reshape(RuleBuilder *builder);
void rule_transpose(RuleBuilder *builder);
void rule_slice(RuleBuilder *builder);
void rule_dynamic_slice(RuleBuilder *builder);
void rule_dynamic_update_slice(RuleBuilder *builder);
void rule_pad(RuleBuilder *builder);
void rule_concatenate(RuleBuilder *builder);
void rule_reverse(RuleBuilder *builder);
void rule_dot(RuleBuilder *builder);
void rule_convolution(RuleBuilder *builder);
void rule_reduce(RuleBuilder *builder);
void rule_window(RuleBuilder *builder);
void rule_gather(RuleBuilder *builder);
void rule_scatter(RuleBuilder *builder);
void rule_ragged_dot(RuleBuilder *builder);
void rule_sort(RuleBuilder *builder);
void rule_topk(RuleBuilder *builder);
void rule_fft(RuleBuilder *builder);
void rule_cholesky(RuleBuilder *builder);
void rule_triangular_solve(RuleBuilder *builder);
void rule_custom_call(RuleBuilder *builder);
void rule_batch_norm(RuleBuilder *builder);
void rule_random_bits(RuleBuilder *builder);
void rule_dimension_size(RuleBuilder *builder);
void rule_hand_on(RuleBuilder *builder);
void rule_fusion(RuleBuilder *builder);

#endif
