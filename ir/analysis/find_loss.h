/* Finds the output of a training step that is the loss. */
#ifndef IR_ANALYSIS_FIND_LOSS_H
#define IR_ANALYSIS_FIND_LOSS_H

#include "ir/analysis/pairing.h"

/* Finds the loss: `*loss` becomes the index of the output, or -1 where no floating scalar is without a pair;
 * `*possible` the number of outputs between which only their order decides. Scratch memory comes from
 * `scratch`. */
AmStatus ir_find_loss(int32_t *loss, int32_t *possible, Arena *scratch, const IrFlowGraph *graph,
                      const IrPairing *pairing, AmError *error);

#endif
