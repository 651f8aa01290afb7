/* The layer of every entry instruction, by the weights of one shape or by given borders.
 *
 * The layer of a value is:
 *   - in the forward pass, the largest of its operands';
 *   - in the backward pass, the last one in which forward operators read the forward values that it reads, at
 *     most that of the gradients that it reads;
 *   - in an update, the largest of its operands' that are arrays;
 *   - without such operands, that of its first user if it depends on a weight, else that of its users.
 */
#ifndef IR_LAYERS_LAYER_FINDER_H
#define IR_LAYERS_LAYER_FINDER_H

#include "ir/layers/layer_run.h"

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
typedef struct LayerFinder {
    LayerRun run; /* border_count 0: layers follow from the weights, else from the borders */
    Arena *arena;
    int32_t *first_user; /* [entry instruction]: the first forward instruction that reads it, or LAYER_NONE */
    int32_t *last_layer; /* [entry instruction]: of a forward value, the last layer in which it is read */
    bool *has_weight;    /* [entry instruction]: it depends on a weight or an optimizer's state */
    bool *has_data;      /* [entry instruction]: it depends on another parameter */
    uint64_t *operators; /* [entry instruction]: hash of the operator and its shape */
    uint64_t *invariants; /* [entry instruction]: equal for values outside of layers that are alike */
    int32_t *work;        /* [entry instruction]: of one function */
} LayerFinder;

/* Finds first users, and the values that depend on weights and on data. */
void layer_finder_prepare(LayerFinder *self);

/* Finds self->run.layer and the members of self->run.layers layers. The weights of the group are dealt to
 * them in order, unless there are borders. */
void layer_finder_assign(LayerFinder *self, const WeightGroup *group);

/* Returns whether the instruction computes a value of the forward pass from weights and data. */
bool layer_is_activation(const LayerFinder *self, int32_t i);

#endif
