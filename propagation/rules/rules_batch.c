/* Rules of operators that need some dimensions replicated and process the others independently:
 * sort, top-k, Fourier transforms, factorisations, LAPACK custom calls, batch normalisation, random
 * numbers and size queries.
 *
 * Most have batch dimensions alone: leading dimensions that all operands and results share. A
 * triangular solve also processes the columns of its right side independently (the rows, if the
 * matrix is on the right). Batch normalisation is an independent problem for each feature. Random
 * bits follow from a counter, so that a device computes those of its shard as in the whole
 * (executor/cpu/other/random_bits.c); the state is replicated.
 */
#include <string.h>

#include "propagation/rules/rules_builder.h"

/* Adds one factor that is dimension d of every array that has as many dimensions. */
static void shared_dimension(RuleBuilder *builder, int32_t d) {
    rule_factor(builder, FACTOR_PARALLEL);
    for (int32_t slot = 0; slot < builder->operand_count + builder->result_count; slot++)
        if (d < rule_rank(builder, slot)) rule_put(builder, slot, d);
}

static void shared_dimensions(RuleBuilder *builder, int32_t count) {
    for (int32_t d = 0; d < count; d++) shared_dimension(builder, d);
}

void rule_sort(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    if (!rule_expect(builder,
                     attributes->dimension_count == 1 && builder->operand_count == builder->result_count))
        return;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++)
        if (d != attributes->dimensions[0]) shared_dimension(builder, d);
}

void rule_topk(RuleBuilder *builder) {
    if (rule_expect(builder, builder->operand_count == 1))
        shared_dimensions(builder, rule_rank(builder, 0) - 1);
}

void rule_fft(RuleBuilder *builder) {
    const IrOptions *options = builder->instruction->attributes->options;
    if (rule_expect(builder, builder->operand_count == 1 && builder->result_count == 1 && options))
        shared_dimensions(builder, rule_rank(builder, 0) - options->fft_rank);
}

void rule_cholesky(RuleBuilder *builder) {
    if (rule_expect(builder, builder->operand_count == 1))
        shared_dimensions(builder, rule_rank(builder, 0) - 2);
}

void rule_triangular_solve(RuleBuilder *builder) {
    const IrOptions *options = builder->instruction->attributes->options;
    if (!rule_expect(builder, builder->operand_count == 2 && builder->result_count == 1 && options)) return;
    int32_t rank = rule_rank(builder, 1);
    shared_dimensions(builder, rank - 2);
    int32_t free_dimension = options->left_side ? rank - 1 : rank - 2;
    rule_factor(builder, FACTOR_PARALLEL);
    rule_put(builder, 1, free_dimension);
    rule_put(builder, rule_result(builder), free_dimension);
}

/* x has a dimension of features, which is the only one of the operator's other arrays. Inference computes
 * every element by itself, so that the other dimensions of x are factors, too. */
void rule_batch_norm(RuleBuilder *builder) {
    bool also_elements = builder->instruction->opcode == IR_BATCH_NORM_INFERENCE;
    const IrOptions *options = builder->instruction->attributes->options;
    if (!rule_expect(builder, builder->operand_count > 0 && options)) return;
    int32_t rank = rule_rank(builder, 0), slots = builder->operand_count + builder->result_count;
    for (int32_t d = 0; d < rank; d++) {
        bool is_feature = d == options->feature_index;
        if (!is_feature && !also_elements) continue;
        rule_factor(builder, FACTOR_PARALLEL);
        for (int32_t slot = 0; slot < slots; slot++) {
            bool is_image = slot == 0 || slot == builder->operand_count ||
                            (builder->operand_count == 5 && slot == 4 && !also_elements);
            if (is_image) rule_put(builder, slot, d);
            else if (is_feature) rule_put(builder, slot, 0);
        }
    }
}

/* Splits the bits alone: (state) -> (state, bits). */
void rule_random_bits(RuleBuilder *builder) {
    if (!rule_expect(builder, builder->operand_count == 1 && builder->result_count == 2)) return;
    int32_t bits = rule_result(builder) + 1;
    for (int32_t d = 0; d < rule_rank(builder, bits); d++) {
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, bits, d);
    }
}

/* Splits all dimensions but the one of the size, which must be replicated; or operand 0 with a size equal to
 * the old one. */
void rule_dimension_size(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    int32_t result = rule_result(builder);
    if (!rule_expect(builder, builder->result_count == 1 && builder->operand_count > 0 &&
                                  attributes->dimension_count == 1))
        return;
    bool gives_array = rule_rank(builder, result) == rule_rank(builder, 0);
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        if (d == attributes->dimensions[0]) continue;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 0, d);
        if (gives_array) rule_put(builder, result, d);
    }
}

/* Splits operand 0 as the result: other operands only order or annotate. */
void rule_hand_on(RuleBuilder *builder) {
    int32_t result = rule_result(builder);
    if (!rule_expect(builder, builder->result_count == 1 && builder->operand_count > 0 &&
                                  rule_rank(builder, 0) == rule_rank(builder, result)))
        return;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 0, d);
        rule_put(builder, result, d);
    }
}

/* Splits result k as operand k. */
static void hand_on_all(RuleBuilder *builder) {
    if (!rule_expect(builder, builder->operand_count == builder->result_count)) return;
    for (int32_t k = 0; k < builder->operand_count; k++) {
        for (int32_t d = 0; d < rule_rank(builder, k); d++) {
            rule_factor(builder, FACTOR_PARALLEL);
            rule_put(builder, k, d);
            rule_put(builder, rule_result(builder) + k, d);
        }
    }
}

/* Adds the batch's dimensions, with which every array of a LAPACK call starts. The first one is a batch of
 * matrices, or for gtsv of a matrix's diagonals. */
static void lapack(RuleBuilder *builder) {
    const char *target = builder->instruction->attributes->custom_call_target;
    if (!rule_expect(builder, builder->operand_count > 0)) return;
    bool is_diagonal = strstr(target, "gtsv") != NULL;
    int32_t batch = rule_rank(builder, 0) - (is_diagonal ? 1 : 2);
    for (int32_t slot = 0; slot < builder->operand_count + builder->result_count; slot++)
        if (!rule_expect(builder, rule_rank(builder, slot) >= batch)) return;
    shared_dimensions(builder, batch);
}

/* Custom calls that are known, by how their target starts. Others are blocked. */
static const struct {
    const char *target;
    void (*function)(RuleBuilder *);
} known_calls[] = {
    {"lapack_", lapack},
    {"TopK", rule_topk},
    {"Sharding", hand_on_all},
    {"LayoutConstraint", hand_on_all},
    {"MoveToDevice", hand_on_all},
    {"MoveToHost", hand_on_all},
    {"annotate_device_placement", hand_on_all},
    {"xla.sdy.", hand_on_all},
};

void rule_custom_call(RuleBuilder *builder) {
    const char *target = builder->instruction->attributes->custom_call_target;
    for (size_t k = 0; target && k < sizeof known_calls / sizeof *known_calls; k++)
        if (strncmp(target, known_calls[k].target, strlen(known_calls[k].target)) == 0) {
            known_calls[k].function(builder);
            return;
        }
    builder->unknown = true;
}
