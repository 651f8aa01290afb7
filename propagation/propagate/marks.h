/* Marks: pins that a module carries in the names of its operators.
 *
 * automap_jax writes them as name scopes: "jit(step)/jvp(automap-stage-1)/dot" is in the scope of stage(1).
 * The words are automap-stage-N, automap-replicate, automap-replicate-K, automap-split-K, automap-split-AXIS
 * and automap-devices-A_B. All operators with one word are one scope.
 */
#ifndef PROPAGATION_PROPAGATE_MARKS_H
#define PROPAGATION_PROPAGATE_MARKS_H

#include "propagation/propagate/pins.h"

/* Finds the marks of a module, each once, in the order of the module; everything is in the arena.
 * AM_ERROR_INPUT names a word with the prefix that is no mark. */
AmStatus marks_read(PropagationPin **pins, int32_t *count, Arena *arena, const IrModule *module,
                    AmError *error);

#endif
