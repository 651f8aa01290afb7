/* Rules of operators that contract.
 *
 *   dot:         batch, then the free dimensions of the left, then of the right
 *   ragged-dot:  the left's ragged dimension is one of three kinds. Free: the
 *                right has a group dimension, which the result lacks;
 *                contracted: the result has a group dimension in front; batch:
 *                as a dot. The third operand has the groups' sizes.
 *   scaled-dot:  a dot, with scales of the ranks of its operands
 *   convolution: batch / batch groups, output features, window positions
 *
 * Element types are the kernels' matter: results may be wider or narrower.
 */
#include "ir/verify/verify_parts.h"

static void append_sizes(int64_t *list, int32_t at, const int64_t *more, int32_t count) {
    for (int32_t i = 0; i < count; i++) list[at + i] = more[i];
}

/* The dimensions that a dot pairs, batch first, of either side. */
typedef struct Pairs {
    int32_t count, batch_count;
    int64_t left[2 * IR_MAX_RANK], right[2 * IR_MAX_RANK];
} Pairs;

static AmStatus read_pairs(const Verifier *verifier, const IrInstruction *instruction, Pairs *pairs,
                           const Hlo__DotDimensionNumbers *numbers) {
    const IrShape *lhs = verify_operand(verifier, instruction, 0),
                  *rhs = verify_operand(verifier, instruction, 1);
    if (numbers == NULL) return verify_refuse(verifier, instruction, "it has no dot dimension numbers");
    size_t batch = numbers->n_lhs_batch_dimensions, contracting = numbers->n_lhs_contracting_dimensions;
    if (batch != numbers->n_rhs_batch_dimensions || contracting != numbers->n_rhs_contracting_dimensions) {
        return verify_refuse(verifier, instruction, "it pairs different numbers of dimensions");
    }
    if (batch + contracting > (size_t)lhs->rank || batch + contracting > (size_t)rhs->rank) {
        return verify_refuse(verifier, instruction, "it pairs %zu dimensions, its operands have %d and %d",
                             batch + contracting, lhs->rank, rhs->rank);
    }
    pairs->batch_count = (int32_t)batch;
    pairs->count = (int32_t)(batch + contracting);
    append_sizes(pairs->left, 0, numbers->lhs_batch_dimensions, pairs->batch_count);
    append_sizes(pairs->left, pairs->batch_count, numbers->lhs_contracting_dimensions, (int32_t)contracting);
    append_sizes(pairs->right, 0, numbers->rhs_batch_dimensions, pairs->batch_count);
    append_sizes(pairs->right, pairs->batch_count, numbers->rhs_contracting_dimensions, (int32_t)contracting);
    TRY(verify_dimensions(verifier, instruction, pairs->left, pairs->count, lhs->rank, "the left side"));
    TRY(verify_dimensions(verifier, instruction, pairs->right, pairs->count, rhs->rank, "the right side"));
    for (int32_t i = 0; i < pairs->count; i++) {
        int64_t a = lhs->dimensions[pairs->left[i]], b = rhs->dimensions[pairs->right[i]];
        if (a == b) continue;
        return verify_refuse(
            verifier, instruction,
            "it pairs dimension %lld of size %lld on the left with %lld of size %lld on the right",
            (long long)pairs->left[i], (long long)a, (long long)pairs->right[i], (long long)b);
    }
    return AM_OK;
}

/* Appends the sizes of a dot's result to sizes[rank..]; dimension `group` of the
 * right side (-1: none) is left out. Returns the rank. */
static int32_t append_result(const Pairs *pairs, const IrShape *lhs, const IrShape *rhs, int64_t group,
                             int64_t *sizes, int32_t rank) {
    for (int32_t i = 0; i < pairs->batch_count; i++) sizes[rank++] = lhs->dimensions[pairs->left[i]];
    for (int32_t d = 0; d < lhs->rank; d++) {
        if (!int_list_contains(pairs->left, pairs->count, d)) sizes[rank++] = lhs->dimensions[d];
    }
    for (int32_t d = 0; d < rhs->rank; d++) {
        if (d != group && !int_list_contains(pairs->right, pairs->count, d))
            sizes[rank++] = rhs->dimensions[d];
    }
    return rank;
}

static AmStatus verify_dot_of(const Verifier *verifier, const IrInstruction *instruction,
                              const Hlo__DotDimensionNumbers *numbers) {
    Pairs pairs;
    int64_t sizes[2 * IR_MAX_RANK];
    TRY(read_pairs(verifier, instruction, &pairs, numbers));
    IrShape expected = {.type = instruction->shape.type, .dimensions = sizes};
    expected.rank = append_result(&pairs, verify_operand(verifier, instruction, 0),
                                  verify_operand(verifier, instruction, 1), -1, sizes, 0);
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

AmStatus verify_dot(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_dot_of(verifier, instruction, instruction->message->dot_dimension_numbers);
}

/* Checks one scale per block of its operand: in each dimension their number divides the size. */
AmStatus verify_scaled_dot(const Verifier *verifier, const IrInstruction *instruction) {
    for (int32_t k = 0; k < 2; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k),
                      *scale = verify_operand(verifier, instruction, 2 + k);
        if (scale->rank != operand->rank) {
            return verify_refuse(verifier, instruction, "the scales of operand %d have rank %d, expected %d",
                                 k, scale->rank, operand->rank);
        }
        for (int32_t d = 0; d < operand->rank; d++) {
            int64_t size = operand->dimensions[d], scales = scale->dimensions[d];
            if (scales == size || (scales > 0 && size % scales == 0)) continue;
            return verify_refuse(
                verifier, instruction,
                "operand %d has size %lld in dimension %d, which its %lld scales do not divide", k,
                (long long)size, d, (long long)scales);
        }
    }
    return verify_dot_of(verifier, instruction, instruction->message->dot_dimension_numbers);
}

AmStatus verify_ragged_dot(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *lhs = verify_operand(verifier, instruction, 0),
                  *rhs = verify_operand(verifier, instruction, 1),
                  *groups = verify_operand(verifier, instruction, 2);
    const Hlo__RaggedDotDimensionNumbers *numbers = instruction->message->ragged_dot_dimension_numbers;
    Pairs pairs;
    int64_t sizes[2 * IR_MAX_RANK + 1], group = -1;
    if (numbers == NULL) return verify_refuse(verifier, instruction, "it has no dot dimension numbers");
    TRY(read_pairs(verifier, instruction, &pairs, numbers->dot_dimension_numbers));
    if (numbers->n_lhs_ragged_dimensions != 1) {
        return verify_refuse(verifier, instruction, "it has %zu ragged dimensions, expected 1",
                             numbers->n_lhs_ragged_dimensions);
    }
    int64_t ragged = numbers->lhs_ragged_dimensions[0];
    TRY(verify_dimensions(verifier, instruction, &ragged, 1, lhs->rank, "lhs_ragged_dims"));
    if (groups->rank < 1) return verify_refuse(verifier, instruction, "its group sizes are a scalar");
    bool is_batch = int_list_contains(pairs.left, pairs.batch_count, ragged);
    bool is_free = !int_list_contains(pairs.left, pairs.count, ragged);
    if (numbers->n_rhs_group_dimensions != (is_free ? 1 : 0)) {
        return verify_refuse(verifier, instruction, "it has %zu group dimensions, expected %d",
                             numbers->n_rhs_group_dimensions, is_free);
    }
    int64_t count = groups->dimensions[groups->rank - 1];
    IrShape expected = {.type = instruction->shape.type, .dimensions = sizes};
    if (is_free) {
        group = numbers->rhs_group_dimensions[0];
        TRY(verify_dimensions(verifier, instruction, &group, 1, rhs->rank, "rhs_group_dims"));
        if (int_list_contains(pairs.right, pairs.count, group))
            return verify_refuse(verifier, instruction,
                                 "its group dimension %lld is also a batch or contracting dimension",
                                 (long long)group);
        if (rhs->dimensions[group] != count)
            return verify_refuse(verifier, instruction,
                                 "its group dimension %lld has size %lld, expected %lld", (long long)group,
                                 (long long)rhs->dimensions[group], (long long)count);
    } else if (!is_batch) {
        sizes[expected.rank++] = count;
    }
    expected.rank = append_result(&pairs, lhs, rhs, group, sizes, expected.rank);
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* Checks dimension numbers of one side: two special ones and the spatial ones. */
static AmStatus verify_roles(const Verifier *verifier, const IrInstruction *instruction, const char *what,
                             int32_t rank, int64_t first, int64_t second, const int64_t *spatial,
                             int32_t spatial_count) {
    int64_t roles[IR_MAX_RANK + 2] = {first, second};
    if (rank != spatial_count + 2) {
        return verify_refuse(verifier, instruction, "the %s has rank %d, expected %d", what, rank,
                             spatial_count + 2);
    }
    append_sizes(roles, 2, spatial, spatial_count);
    return verify_dimensions(verifier, instruction, roles, rank, rank, what);
}

static AmStatus verify_groups(const Verifier *verifier, const IrInstruction *instruction) {
    const IrConvolution *convolution = instruction->attributes->convolution;
    const IrShape *input = verify_operand(verifier, instruction, 0),
                  *kernel = verify_operand(verifier, instruction, 1);
    int64_t features = input->dimensions[convolution->input_feature];
    int64_t kernel_features = kernel->dimensions[convolution->kernel_input_feature];
    int64_t outputs = kernel->dimensions[convolution->kernel_output_feature];
    int64_t feature_groups = convolution->feature_group_count, batch_groups = convolution->batch_group_count;
    if (features % feature_groups != 0 || features / feature_groups != kernel_features) {
        return verify_refuse(verifier, instruction,
                             "its input has %lld features in %lld groups, its kernel takes %lld",
                             (long long)features, (long long)feature_groups, (long long)kernel_features);
    }
    if (feature_groups > 1 && batch_groups > 1) {
        return verify_refuse(verifier, instruction, "it has groups of both its features and its batch");
    }
    int64_t batch = input->dimensions[convolution->input_batch];
    if (outputs % feature_groups != 0 || outputs % batch_groups != 0 || batch % batch_groups != 0) {
        return verify_refuse(verifier, instruction,
                             "its groups do not divide its batch or its output features");
    }
    return AM_OK;
}

AmStatus verify_convolution(const Verifier *verifier, const IrInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    const IrConvolution *convolution = attributes->convolution;
    const IrShape *input = verify_operand(verifier, instruction, 0),
                  *kernel = verify_operand(verifier, instruction, 1);
    int32_t spatial = convolution->spatial_count;
    TRY(verify_roles(verifier, instruction, "input", input->rank, convolution->input_batch,
                     convolution->input_feature, convolution->input_spatial, spatial));
    TRY(verify_roles(verifier, instruction, "kernel", kernel->rank, convolution->kernel_input_feature,
                     convolution->kernel_output_feature, convolution->kernel_spatial, spatial));
    TRY(verify_roles(verifier, instruction, "output", instruction->shape.rank, convolution->output_batch,
                     convolution->output_feature, convolution->output_spatial, spatial));
    TRY(verify_groups(verifier, instruction));
    int64_t sizes[IR_MAX_RANK];
    IrShape expected = {.type = instruction->shape.type, .rank = spatial + 2, .dimensions = sizes};
    sizes[convolution->output_batch] =
        input->dimensions[convolution->input_batch] / convolution->batch_group_count;
    sizes[convolution->output_feature] = kernel->dimensions[convolution->kernel_output_feature];
    for (int32_t i = 0; i < spatial; i++) {
        const IrWindowDimension *window = &attributes->window[i];
        if (window->size != kernel->dimensions[convolution->kernel_spatial[i]]) {
            return verify_refuse(
                verifier, instruction, "its window has size %lld in dimension %d, its kernel %lld",
                (long long)window->size, i, (long long)kernel->dimensions[convolution->kernel_spatial[i]]);
        }
        int64_t size = ir_window_positions(input->dimensions[convolution->input_spatial[i]], window);
        if (size < 0)
            return verify_refuse(verifier, instruction, "its window has no valid size in dimension %d", i);
        sizes[convolution->output_spatial[i]] = size;
    }
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}
