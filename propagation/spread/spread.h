/* Propagation of the shardings that a module carries, on the module as it was read.
 *
 * Shardings flow from operands and from users to a fixed point, at four levels: first through
 * element-wise operators and views, then through products, reductions and similar operators, then
 * backward through broadcasts, then forward. A sharding is replaced by one with more parts that
 * refines it, or from level 1 on by the refinement of both. These are the levels and the order of
 * XLA's sharding propagation, so that the result is the same.
 */
#ifndef PROPAGATION_SPREAD_SPREAD_H
#define PROPAGATION_SPREAD_SPREAD_H

#include "base/text.h"
#include "propagation/spread/tiles.h"

typedef struct Spread Spread;

/* Prepares the propagation over a module; `*spread` and all that it gives are in the arena. With
 * `is_kept` the shardings that the module carries are given. */
AmStatus spread_create(Spread **spread, Arena *arena, const IrModule *module, bool is_kept, AmError *error);
TilesPool *spread_pool(Spread *spread);
/* Returns the number of arrays (leaves) in a shape. */
int32_t spread_shape_leaves(const IrShape *shape);
/* Returns the sharding of a leaf (0 for an array) of the instruction; NULL before one reaches it. */
const Tiles *spread_sharding(const Spread *spread, int32_t instruction, int32_t leaf);
/* Gives an instruction a sharding that stays, in place of one that the module carries. AM_ERROR_INPUT names
 * the instruction if the sharding is not one of its shape. */
AmStatus spread_give(Spread *spread, int32_t instruction, const Hlo__OpSharding *message, AmError *error);
AmStatus spread_run(Spread *spread, AmError *error);
/* Appends the module with a sharding on every instruction. Given shardings keep their spelling. */
AmStatus spread_text(Text *text, Spread *spread, AmError *error);

#endif
