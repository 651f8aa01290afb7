/* Lookups in one table, one after another.
 *
 * A model that looks up two sequences in one table, as T5 does for its encoder and its decoder, has the
 * second lookup before the layers of the encoder where these are a loop, and mostly behind them where they
 * are written out:
 *
 *     x = table[tokens]                      x = table[tokens]
 *     y = table[targets]           or        x = layer(x, ..)       once for each layer
 *     x = while(x, ..)                       y = table[targets]
 *
 * Stages and gathers of weights follow the order of the module. So each further lookup follows the first one
 * of its table: the table is then gathered once, and belongs to one stage.
 */
#ifndef IR_CANONICAL_LOOKUPS_H
#define IR_CANONICAL_LOOKUPS_H

#include "ir/canonical/simplify.h"

/* Gives lookups, and the operators of their indices, the position of the first lookup of their table. Those
 * stay whose indices depend on more than a few operators of integers behind that position. Linear; `scratch`
 * is for the time of the call. */
AmStatus ir_join_lookups(IrInstructionList *list, Arena *scratch, AmError *error);

#endif
