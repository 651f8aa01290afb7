/* The weights that a loop reads: one row of stacked weights in each trip, as loops over layers do, or the
 * same ones in every trip, as loops over time do.
 */
#ifndef IR_LAYERS_LOOP_WEIGHTS_H
#define IR_LAYERS_LOOP_WEIGHTS_H

#include "ir/analysis/roles.h"

typedef struct IrLoopWeights {
    int32_t row_count;  /* weights; each trip reads a row of each */
    int32_t same_count; /* weights that every trip reads as a whole */
    int32_t first_same; /* number of the first parameter of these; -1: none */
} IrLoopWeights;

/* Finds the weights. `loop` is a while in the entry of a canonical module. Weights that the entry converts
 * are found, too. */
AmStatus ir_loop_weights(IrLoopWeights *weights, Arena *arena, const IrModule *module, const IrRoles *roles,
                         int32_t loop, AmError *error);

#endif
