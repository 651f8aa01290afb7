/* Simplification of one computation of the canonical module: exact, and of what
 * a planner would otherwise look at in vain.
 *
 * An instruction that hands on its operand unchanged stands for it; an element
 * taken out of a tuple that is made there stands for what was put in; what no
 * result, no side effect and no control dependency needs is dropped. Parameters,
 * barriers and whatever says how it is sharded stay.
 */
#ifndef IR_SIMPLIFY_H
#define IR_SIMPLIFY_H

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

/* `has_effect` is [computation], for those that instructions call: whether
 * ir_has_effect() holds inside. Linear; `scratch` is for the time of the call. */
AmStatus ir_simplify(IrInstructionList *list, const bool *has_effect, Arena *scratch, AmError *error);

/* Whether running it does more than to give its result: it communicates, changes
 * a state of the device, or is a custom call that says so. Not what it calls. */
bool ir_has_effect(const IrInstruction *instruction);

#endif
