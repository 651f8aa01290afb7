/* Sorts the weights of a module by shape and first use, and the shapes by their elements.
 *
 * layer_weights_group() returns the groups with the most elements, each of at least `least` weights of one
 * shape. The layers of a model follow from one of them.
 */
#include "ir/layers/layer_weights.h"

#include <stdlib.h>

static int compare_shapes(const IrShape *a, const IrShape *b) {
    if (a->type != b->type) return a->type < b->type ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->dimensions[d] != b->dimensions[d]) return a->dimensions[d] < b->dimensions[d] ? -1 : 1;
    return 0;
}

static int compare_weights(const void *left, const void *right) {
    const LayerWeight *a = left, *b = right;
    int order = compare_shapes(a->shape, b->shape);
    if (order != 0) return order;
    return a->user != b->user ? (a->user < b->user ? -1 : 1) : a->instruction - b->instruction;
}

/* Lists the weights by their shapes, those of one shape in the order of their use. Returns their number. */
static int32_t list_weights(LayerWeight *weights, const IrModule *module, const IrRoles *roles,
                            const int32_t *first_user) {
    int32_t count = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t instruction = roles->parameters[p].instruction, user = first_user[instruction];
        const IrShape *shape = &module->instructions[instruction].shape;
        bool is_weight = roles->parameters[p].role == IR_ROLE_WEIGHT && shape->type != DTYPE_TUPLE;
        if (is_weight && user >= 0) weights[count++] = (LayerWeight){shape, instruction, user};
    }
    qsort(weights, (size_t)count, sizeof *weights, compare_weights);
    return count;
}

int32_t layer_weights_group(WeightGroup *groups, LayerWeight *weights, const IrModule *module,
                            const IrRoles *roles, const int32_t *first_user, int32_t least) {
    int32_t count = 0, weight_count = list_weights(weights, module, roles, first_user);
    for (int32_t low = 0, high = 0; low < weight_count; low = high) {
        while (high < weight_count && compare_shapes(weights[low].shape, weights[high].shape) == 0) high++;
        double elements = (double)(high - low) * (double)ir_shape_elements(weights[low].shape);
        int32_t at = count;
        while (at > 0 && groups[at - 1].elements < elements) at--;
        if (high - low < least || at == WEIGHT_GROUPS_MOST) continue;
        if (count < WEIGHT_GROUPS_MOST) count++;
        for (int32_t k = count - 1; k > at; k--) groups[k] = groups[k - 1];
        groups[at] = (WeightGroup){&weights[low], high - low, elements};
    }
    return count;
}
