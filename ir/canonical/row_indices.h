/* Indices of a gather or scatter that count its rows, as in logits[arange(rows), labels].
 *
 * The component that counts is dropped from the index, and the dimension into which it points becomes a
 * batching dimension: each row is then known to meet its own index alone, so that the rows can be split.
 */
#ifndef IR_CANONICAL_ROW_INDICES_H
#define IR_CANONICAL_ROW_INDICES_H

#include "ir/canonical/simplify.h"

/* Changes the gathers and scatters whose indices join counted components and one other part, which is used
 * instead. `arena` has the new attributes. */
AmStatus ir_batch_row_indices(IrInstructionList *list, Arena *arena, AmError *error);

#endif
