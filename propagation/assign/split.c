/* The states of operands and results that follow from the split factors of an operator.
 *
 * A slot's dimension is split between the factor's granules, in as many blocks as the factor has
 * there times the blocks of the factor itself. If a halo gives a slot a size of its own, its
 * elements are the granules.
 */
#include "propagation/assign/split.h"

Split split_of(const Assignment *assignment, int32_t i) {
    size_t first = (size_t)i * MESH_MAX_AXES;
    return (Split){&assignment->factor[first], &assignment->cut[first]};
}

SbpState split_state(const Rules *rules, const Mesh *mesh, int32_t i, Split split, int32_t place) {
    static const int8_t none[MESH_MAX_AXES] = {-1, -1, -1, -1};
    if (memcmp(split.factors, none, sizeof none) == 0) return (SbpState){.axis = {0}};
    const FactorRule *rule = &rules->rules[i];
    SbpState state = {.axis = {0}};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        if (split.factors[axis] < 0) continue;
        const Factor *factor = &rule->factors[split.factors[axis]];
        SbpCut cut = split.cuts[axis];
        int8_t d = factor->dimension[place];
        if (place >= rule->operand_count && factor_leaves_partial(factor, place)) {
            sbp_set(&state, axis, sbp_partial(factor->reduction));
            continue;
        }
        if (d < 0) continue;
        int64_t size = factor->extent[place];
        if (factor->halo && size != factor->size) cut = (SbpCut){1, (int32_t)size};
        int64_t blocks = (int64_t)factor_blocks(factor, place) * cut.outer;
        bool is_plain = blocks == 1 && cut.count == size;
        sbp_set_split(&state, axis, d,
                      is_plain ? (SbpCut){0, 0} : sbp_cut(mesh, state, axis, d, size, blocks, cut.count));
    }
    return state;
}

SbpState split_operand_state(const Assignment *assignment, const PlanContext *context, int32_t i, int32_t k) {
    const FactorRule *rule = &context->rules->rules[i];
    int32_t operand = plan_context_instruction(context, i)->operands[k];
    bool is_array = plan_context_instruction(context, operand)->shape.type != DTYPE_TUPLE;
    if (!is_array || k >= rule->operand_count) return (SbpState){.axis = {0}};
    return split_state(context->rules, &assignment->stage->mesh, i, split_of(assignment, i), k);
}
