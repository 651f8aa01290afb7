/* The weights of a module by their shapes, from which layers are counted.
 *
 * A layer of a transformer has one weight of each of a few shapes. Shapes with enough weights are listed,
 * those with the most elements in all first.
 */
#ifndef IR_LAYERS_LAYER_WEIGHTS_H
#define IR_LAYERS_LAYER_WEIGHTS_H

#include "ir/analysis/roles.h"

typedef struct LayerWeight {
    const IrShape *shape;
    int32_t instruction; /* the parameter */
    int32_t user;        /* the first forward instruction that reads it */
} LayerWeight;

/* Weights of one shape, in the order of their first use. */
typedef struct WeightGroup {
    const LayerWeight *weights;
    int32_t count;
    double elements; /* of all */
} WeightGroup;
enum { WEIGHT_GROUPS_MOST = 8 };

/* Lists the shapes of at least `least` weights. `first_user` [entry instruction] has the first forward
 * instruction that reads each value, or -1; `weights` [roles->parameter_count + 1] receives the weights.
 * Returns the number of groups. */
int32_t layer_weights_group(WeightGroup *groups, LayerWeight *weights, const IrModule *module,
                            const IrRoles *roles, const int32_t *first_user, int32_t least);

#endif
