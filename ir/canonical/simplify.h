/* Simplification of one computation of the canonical module. It is exact and removes instructions
 * that are irrelevant to a planner.
 *
 * An instruction that returns its operand unchanged is replaced by it. An element taken from a
 * tuple is replaced by the tuple's operand. An instruction is dropped if no result, side effect or
 * control dependency needs it. Parameters, barriers and sharding annotations are kept.
 */
#ifndef IR_CANONICAL_SIMPLIFY_H
#define IR_CANONICAL_SIMPLIFY_H

#include "ir/module.h"

/* Instructions that follow their operands and control predecessors, which are
 * indices into this list; the arrays of both are rewritten. */
typedef struct IrInstructionList {
    IrInstruction *instructions;
    int64_t *positions; /* in the file; follow their instructions */
    int32_t count;
    int32_t root;
    bool is_entry; /* elements of a root tuple are the module's outputs */
} IrInstructionList;

/* Simplifies. `has_effect` is [computation], for those that instructions call: whether ir_has_effect() holds
 * inside. Linear; `scratch` is for the time of the call. */
AmStatus ir_simplify(IrInstructionList *list, const bool *has_effect, Arena *scratch, AmError *error);

/* Returns whether the instruction has an effect beside its result: it communicates, changes a state of the
 * device, or is a custom call with side effects. Called computations are not examined. */
bool ir_has_effect(const IrInstruction *instruction);

#endif
