/* The layers of an unrolled model, and the longest run of equal ones.
 *
 * Layers are found from the weights: those with the most elements of one shape, in the order of their use,
 * divide the forward pass. They begin at the operator over which the fewest bytes cross, where a pipeline is
 * cut:
 *
 *     weights    w0      w1      w2      w3     of one shape, by their first use
 *     layers     0 ..... 1 ..... 2 ..... 3      begin at the border of their weight
 *     equal      no      1 = 2 = 3              the run: low 1, high 3
 *
 * Two layers are equal if their instructions, in order, have the same operators, shapes and operands, up to
 * the shift between the layers.
 */
#ifndef IR_LAYERS_LAYER_RUN_H
#define IR_LAYERS_LAYER_RUN_H

#include "ir/analysis/roles.h"

/* Operands of equal layers are at most LAYER_REACH layers away. A run has at least LAYER_RUN_LEAST layers. */
enum { LAYER_NONE = -1, LAYER_REACH = 2, LAYER_RUN_LEAST = 14 };

typedef struct LayerRun {
    const IrModule *from;
    const IrRoles *roles;
    int32_t count;            /* entry instructions */
    int32_t *layer;           /* [entry instruction]; LAYER_NONE: it belongs to no layer */
    int32_t layers;           /* their number */
    int32_t *first, *members; /* [layer + 1]; members[first[l] .. first[l + 1]) are the layer's, in order */
    int32_t *place;           /* [entry instruction]: its place in its layer */
    int32_t *borders; /* [border_count] the first instructions of the layers but for that of layer 0 */
    int32_t border_count;
    int32_t low, high; /* the layers of the run, both included */
} LayerRun;

/* Finds the layers and the run. `*is_found` is false where no run is long enough. The arena owns the
 * arrays. */
AmStatus layer_run_find(LayerRun *run, bool *is_found, Arena *arena, const IrModule *module,
                        const IrRoles *roles, AmError *error);

#endif
