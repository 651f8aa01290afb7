/* Which layers of a run of equal ones a sample keeps, and the layers that each of them stands for.
 *
 * The first LAYERS_KEPT - LAYER_REACH layers and the last LAYER_REACH are kept. The layers of the run are
 * dealt to the kept ones in order, so that 20 layers of a run from 0 to 19 are
 *
 *     kept     0  1  2  3  4  5  18  19
 *     count    2  3  2  3  2  3   2   3
 *
 * The number of all layers may be a multiple of LAYERS_KEPT. The first and the last kept layer then have
 * fewer, by the number of layers outside of the run, so that each eighth of the model has equally many.
 */
#ifndef IR_LAYERS_KEPT_LAYERS_H
#define IR_LAYERS_KEPT_LAYERS_H

#include "ir/layers/layer_run.h"

/* With eight, 2, 4 and 8 stages can have equally many layers. */
enum { LAYERS_KEPT = 8 };

/* Returns whether the sample leaves a layer out. */
bool kept_layers_omit(const LayerRun *self, int32_t layer);
/* Returns the number of layers that a kept layer stands for. */
int32_t kept_layers_count(const LayerRun *self, int32_t layer);
/* Returns the kept layer that stands for a layer; layers outside of the run stand for themselves. */
int32_t kept_layers_standing(const LayerRun *self, int32_t layer);
/* Returns the number of a kept layer among those of the sample. */
int32_t kept_layers_number(const LayerRun *self, int32_t layer);

/* Returns the instruction at the place of `i`, which is in the run, in another layer of it. */
int32_t kept_layers_move(const LayerRun *self, int32_t i, int32_t layer);
/* Returns the operand that a user in `layer` (LAYER_NONE: in none) has in the sample. An operand of an
 * omitted layer is replaced by that of the layer which is as far away among the kept ones. */
int32_t kept_layers_operand(const LayerRun *self, int32_t operand, int32_t layer);

#endif
