/* Attention: groups of instructions whose intermediate values have the shape of the scores.
 *
 *     scores = dot(q, k)          larger than q and k
 *     p = exp(scores - max) / sum element-wise, with reductions over rows that are broadcast again
 *     output = dot(p, v)
 *
 * Recognition is by structure, without names. The forward operator ends with the first dot that
 * consumes such values in the phase of the scores. All other instructions of the group, with the
 * dots and sums that consume their values, are the backward operator. It computes the forward
 * values that it needs again, from the operands and the saved row statistics. No value with the
 * size of the scores therefore leaves an operator.
 */
#ifndef IR_ATTENTION_ATTENTION_H
#define IR_ATTENTION_ATTENTION_H

#include "ir/analysis/roles.h"

/* One operator, or a near miss: a group that is no operator, with its reason. Instructions are those of the
 * module that was searched; all lists ascend. */
typedef struct IrAttention {
    int32_t computation;
    int32_t scores;     /* the dot that makes the scores */
    bool is_backward;   /* makes gradients */
    const char *reason; /* NULL: an operator */
    int32_t *members;   /* [member_count] the instructions that it computes */
    int32_t member_count;
    int32_t *operands; /* [operand_count] values of others that they read */
    int32_t operand_count;
    int32_t *positions; /* [position_count] vectors of indices outside of the loop: the operator computes loop
                           constants from them, such as masks. The fusion has them as operands, too. */
    int32_t position_count;
    int32_t *repeats; /* [repeat_count] members that read an operand of others by a parameter of their own:
                         one vector of positions or segments is that of the rows and of the keys. The fusion
                         has these operands once more, after the positions. */
    int32_t repeat_count;
    int32_t *results; /* [result_count] members that others read */
    int32_t result_count;
} IrAttention;

typedef struct IrAttentions {
    IrAttention *rows; /* by computation, forward before backward */
    int32_t count;
    int32_t *owner; /* [instruction]: the row that replaces it, or -1; a member may have another owner, whose
                       value it computes again */
    int32_t *same;  /* [instruction]: of a loop's body, the value outside that it is in every iteration, if
                       that depends on no parameter; else -1 */
} IrAttentions;

/* Finds the operators of the entry and of all loops and branches. Linear in the size of the module for
 * modules whose groups are disjoint. All arrays are in `arena`. */
AmStatus ir_find_attention(IrAttentions **found, Arena *arena, const IrModule *canonical,
                           const IrPhase *phases, AmError *error);

/* Returns the number of operators, without the near misses. */
int32_t ir_count_attention(const IrAttentions *found);

/* Creates a new canonical module in which each operator is one fusion, whose computation has the members. Its
 * operands, positions, repeats and results are in the order of the lists; several results are a tuple.
 * Parameters and outputs keep their order. `*origins` [instruction], in the module's arena: the instruction
 * of `canonical` which it is; for a fusion the last one that it replaces. `canonical` must outlive it;
 * ir_module_free() releases it. */
AmStatus ir_fuse_attention(IrModule **module, int32_t **origins, const IrModule *canonical,
                           const IrAttentions *found, AmError *error);

#endif
