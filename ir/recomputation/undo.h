/* Recomputation that the source prescribes is undone: an exact rewriting of a canonical module.
 *
 * A training step traced with jax.checkpoint has forward operators twice: once in the forward pass, and once
 * more before the backward operators that read their values. ir_undo_recomputation() makes the module in
 * which the backward pass reads the first values. A plan then decides which values are kept and which are
 * recomputed. Instructions of the entry are examined; those in loops stay (ir_split_layers() unrolls loops
 * over layers).
 */
#ifndef IR_RECOMPUTATION_UNDO_H
#define IR_RECOMPUTATION_UNDO_H

#include "ir/analysis/roles.h"

/* Makes the rewritten module. `phases` [instruction] are those of `canonical`. `*module` is NULL where no
 * recomputed instruction of the entry has the operator and the operands of a forward one, or an instruction
 * has a side effect or a control dependency. Parameters and outputs keep their order. `*origins`
 * [instruction], in the module's arena: the instruction of `canonical` that it is. `canonical` must outlive
 * the module; ir_module_free() releases it. */
AmStatus ir_undo_recomputation(IrModule **module, int32_t **origins, const IrModule *canonical,
                               const IrPhase *phases, AmError *error);

#endif
