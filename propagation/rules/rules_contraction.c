/* Rules of operators that combine elements: dot, convolution, reduce, windows.
 *
 * Dot: batch, lhs-free and rhs-free dimensions are parallel; a contracted pair is a reduction.
 * Convolution is a dot over features; its roles come from the dimension numbers alone, so that the
 * weight gradient (f01b_i01o->01bf) contracts the batch by the same function. Spatial dimensions
 * are split with halos. In a convolution in groups, of features or of the batch, the groups are a
 * factor: the major part of the dimension that they divide. A reduce splits over a reduced
 * dimension if its initial value is one that every part may apply.
 */
#include "ir/hlo.pb-c.h"
#include "propagation/rules/rules_builder.h"

/* How far a kernel is followed to a parameter. */
enum { KERNEL_STEPS = 8 };

/* Adds the free dimensions of one side of a dot, in order, from result dimension *next. */
static void dot_free(RuleBuilder *builder, int32_t side, const int64_t *batch, int32_t batch_count,
                     const int64_t *contracting, int32_t contracting_count, int32_t *next) {
    for (int32_t d = 0; d < rule_rank(builder, side); d++) {
        if (int_list_contains(batch, batch_count, d) || int_list_contains(contracting, contracting_count, d))
            continue;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, side, d);
        rule_put(builder, rule_result(builder), (*next)++);
    }
}

void rule_dot(RuleBuilder *builder) {
    const IrDot *dot = builder->instruction->attributes->dot;
    if (!rule_expect(builder, builder->operand_count == 2 && builder->result_count == 1 && dot)) return;
    int32_t next = 0;
    for (int32_t k = 0; k < dot->batch_count; k++) {
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 0, dot->lhs_batch[k]);
        rule_put(builder, 1, dot->rhs_batch[k]);
        rule_put(builder, rule_result(builder), next++);
    }
    dot_free(builder, 0, dot->lhs_batch, dot->batch_count, dot->lhs_contracting, dot->contracting_count,
             &next);
    dot_free(builder, 1, dot->rhs_batch, dot->batch_count, dot->rhs_contracting, dot->contracting_count,
             &next);
    for (int32_t k = 0; k < dot->contracting_count; k++) {
        rule_reduction(builder, SBP_ADD, false);
        rule_put(builder, 0, dot->lhs_contracting[k]);
        rule_put(builder, 1, dot->rhs_contracting[k]);
    }
}

/* Adds the factors of a ragged dot, which has groups of rows of different sizes: the dimension in which they
 * lie, the group dimension and the sizes are whole. All else is as in a dot; the result may begin with the
 * groups. Sums of parts are allowed where they are as exact as the operator's own. */
void rule_ragged_dot(RuleBuilder *builder) {
    const Hlo__HloInstructionProto *message = builder->instruction->message;
    const Hlo__RaggedDotDimensionNumbers *numbers = message ? message->ragged_dot_dimension_numbers : NULL;
    if (!rule_expect(builder, builder->operand_count == 3 && builder->result_count == 1 && numbers &&
                                  numbers->dot_dimension_numbers && numbers->n_lhs_ragged_dimensions == 1))
        return;
    const Hlo__DotDimensionNumbers *dot = numbers->dot_dimension_numbers;
    int64_t ragged = numbers->lhs_ragged_dimensions[0];
    int64_t group = numbers->n_rhs_group_dimensions > 0 ? numbers->rhs_group_dimensions[0] : -1;
    int32_t batches = (int32_t)dot->n_lhs_batch_dimensions, result = rule_result(builder);
    int32_t contracted = (int32_t)dot->n_lhs_contracting_dimensions;
    if (!rule_expect(builder, (int32_t)dot->n_rhs_batch_dimensions == batches &&
                                  (int32_t)dot->n_rhs_contracting_dimensions == contracted))
        return;
    bool contracts = int_list_contains(dot->lhs_contracting_dimensions, contracted, ragged);
    int32_t next = contracts ? 1 : 0;
    for (int32_t k = 0; k < batches; k++, next++) {
        if (dot->lhs_batch_dimensions[k] == ragged) continue;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 0, dot->lhs_batch_dimensions[k]);
        rule_put(builder, 1, dot->rhs_batch_dimensions[k]);
        rule_put(builder, result, next);
    }
    for (int32_t side = 0; side < 2; side++) {
        const int64_t *batch = side == 0 ? dot->lhs_batch_dimensions : dot->rhs_batch_dimensions;
        const int64_t *summed = side == 0 ? dot->lhs_contracting_dimensions : dot->rhs_contracting_dimensions;
        for (int32_t d = 0; d < rule_rank(builder, side); d++) {
            if (int_list_contains(batch, batches, d) || int_list_contains(summed, contracted, d)) continue;
            if (side == 1 && d == group) continue;
            next++;
            if (side == 0 && d == ragged) continue;
            rule_factor(builder, FACTOR_PARALLEL);
            rule_put(builder, side, d);
            rule_put(builder, result, next - 1);
        }
    }
    Dtype type = builder->shapes[result]->type;
    if (dtype_is_floating(type) && dtype_bits(type) < 32) return;
    for (int32_t k = 0; k < contracted; k++) {
        if (dot->lhs_contracting_dimensions[k] == ragged) continue;
        rule_reduction(builder, SBP_ADD, false);
        rule_put(builder, 0, dot->lhs_contracting_dimensions[k]);
        rule_put(builder, 1, dot->rhs_contracting_dimensions[k]);
    }
}

static bool is_splittable(const IrWindowDimension *window) {
    return rule_is_near(window->padding_low) && rule_is_near(window->padding_high) &&
           rule_is_near(window->stride) && rule_is_near(window->base_dilation) &&
           rule_is_near(window->window_dilation);
}

/* Windows side by side, or those of their gradient, whose base is dilated. */
static FactorHalo window_halo(const IrWindowDimension *window) {
    bool is_patch = window->padding_low == 0 && window->window_dilation == 1 &&
                    (window->base_dilation == 1 ? window->size <= window->stride
                                                : window->size == 1 && window->stride == 1);
    return is_patch ? HALO_PATCH : HALO_OVERLAP;
}

/* Adds spatial dimension k of a convolution: the result's positions are split, and each shard reads the
 * elements that its windows reach. In a kernel's gradient, whose window is the larger, the positions in the
 * window are split, and each shard sums its own, if sums of parts are as exact as the operator's own. A
 * convolution that may be such a gradient, of a small image, ties nothing: the kernel's positions are not
 * the image's. */
static void convolution_spatial(RuleBuilder *builder, const IrConvolution *convolution,
                                const IrWindowDimension *window, int32_t k) {
    int64_t places = rule_size(builder, rule_result(builder), convolution->output_spatial[k]);
    int64_t cells = rule_size(builder, 1, convolution->kernel_spatial[k]);
    if (!is_splittable(window)) return;
    /* The kernel is a weight if it is a parameter, converted or transposed at most. */
    const IrInstruction *value = &builder->module->instructions[builder->instruction->operands[1]];
    for (int32_t steps = 0; steps < KERNEL_STEPS && value->operand_count == 1; steps++)
        value = &builder->module->instructions[value->operands[0]];
    bool has_weight = value->opcode == IR_PARAMETER;
    if (cells > places && !has_weight) {
        /* Partial sums of a 16-bit type would be rounded before they are added. */
        Dtype type = builder->shapes[rule_result(builder)]->type;
        if (dtype_is_floating(type) && dtype_bits(type) < 32) return;
        rule_halo(builder, FACTOR_REDUCTION, HALO_FAR, cells);
        rule_put(builder, 1, convolution->kernel_spatial[k]);
    } else {
        bool is_forward = has_weight || places > 2 * cells;
        rule_halo(builder, FACTOR_PERMUTATION, is_forward ? window_halo(window) : HALO_FAR, places);
        rule_put(builder, rule_result(builder), convolution->output_spatial[k]);
    }
    rule_put(builder, 0, convolution->input_spatial[k]);
}

void rule_convolution(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    const IrConvolution *convolution = attributes->convolution;
    if (!rule_expect(builder, builder->operand_count == 2 && builder->result_count == 1 && convolution))
        return;
    int32_t result = rule_result(builder);
    int64_t features = convolution->feature_group_count, batches = convolution->batch_group_count;
    if (batches == 1) {
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 0, convolution->input_batch);
        rule_put(builder, result, convolution->output_batch);
    }
    if (features == 1 && batches == 1) rule_factor(builder, FACTOR_PARALLEL);
    else rule_major_factor(builder, features * batches);
    if (features > 1) rule_put(builder, 0, convolution->input_feature);
    if (batches > 1) rule_put(builder, 0, convolution->input_batch);
    rule_put(builder, 1, convolution->kernel_output_feature);
    rule_put(builder, result, convolution->output_feature);
    if (features == 1) {
        rule_reduction(builder, SBP_ADD, false);
        rule_put(builder, 0, convolution->input_feature);
        rule_put(builder, 1, convolution->kernel_input_feature);
    }
    for (int32_t k = 0; k < convolution->spatial_count && k < attributes->window_count; k++)
        convolution_spatial(builder, convolution, &attributes->window[k], k);
}

void rule_reduce(RuleBuilder *builder) {
    const IrInstruction *instruction = builder->instruction;
    const IrAttributes *attributes = instruction->attributes;
    int32_t inputs = builder->operand_count / 2, result = rule_result(builder);
    if (!rule_expect(builder, inputs > 0 && builder->operand_count == 2 * inputs &&
                                  builder->result_count == inputs && instruction->called_count == 1))
        return;
    SbpReduction reduction =
        sbp_reduction_of(ir_computation_operator(builder->module, instruction->called[0]));
    bool splits = inputs == 1 && reduction != SBP_REDUCTION_COUNT &&
                  rule_may_repeat(builder->module, instruction->operands[1], reduction);
    int32_t kept = 0;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        bool reduced = int_list_contains(attributes->dimensions, attributes->dimension_count, d);
        if (reduced && !splits) continue;
        if (reduced) rule_reduction(builder, reduction, false);
        else rule_factor(builder, FACTOR_PARALLEL);
        for (int32_t k = 0; k < inputs; k++) {
            rule_put(builder, k, d);
            if (!reduced) rule_put(builder, result + k, kept);
        }
        if (!reduced) kept++;
    }
}

/* Returns whether a window that is not trivial may be split: one as long as the dimension (a cumulative one)
 * reads everything anyway, and a selection's base is never dilated. */
static bool is_local(const IrWindowDimension *window, int64_t size, bool is_scatter) {
    return is_splittable(window) && window->size < size && !(is_scatter && window->base_dilation > 1);
}

/* Adds the factors of reduce-window (inputs, inits -> results) and of select-and-scatter (operand, source,
 * init -> result, where the source has the windows' shape). */
void rule_window(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    bool is_scatter = builder->instruction->opcode == IR_SELECT_AND_SCATTER;
    int32_t inputs = is_scatter ? 2 : builder->operand_count / 2, result = rule_result(builder);
    if (!rule_expect(builder, inputs > 0 && builder->operand_count == (is_scatter ? 3 : 2 * inputs) &&
                                  attributes->window_count == rule_rank(builder, 0)))
        return;
    for (int32_t d = 0; d < attributes->window_count; d++) {
        const IrWindowDimension *window = &attributes->window[d];
        bool trivial = window->size == 1 && window->stride == 1 && window->padding_low == 0 &&
                       window->padding_high == 0 && window->window_dilation == 1 &&
                       window->base_dilation == 1;
        if (!trivial && !is_local(window, rule_size(builder, 0, d), is_scatter)) continue;
        if (trivial) rule_factor(builder, FACTOR_PARALLEL);
        else
            rule_halo(builder, FACTOR_PERMUTATION, window_halo(&attributes->window[d]),
                      rule_size(builder, result, d));
        for (int32_t k = 0; k < inputs; k++) rule_put(builder, k, d);
        for (int32_t k = 0; k < builder->result_count; k++) rule_put(builder, result + k, d);
    }
}
