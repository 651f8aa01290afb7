/* Shapes of the operators that contract, slide or index: what the result must
 * be, computed from the operands and attributes.
 *
 *   window:  n' = (n - 1) base_dilation + 1 (0 where n = 0), plus low and high
 *            padding; w' = (w - 1) window_dilation + 1;
 *            result (n' - w') / stride + 1, or 0 where w' > n'
 *   dot:     batch, then the free dimensions of the left, then of the right
 *   gather:  batch dimensions are those of the indices without the index vector,
 *            in order; offset dimensions are the slice without the collapsed and
 *            batching ones; offset_dimensions says where in the result those are
 */
#include "ir/verify_parts.h"

static bool holds(const int64_t *dimensions, int32_t count, int64_t dimension) {
    for (int32_t i = 0; i < count; i++) {
        if (dimensions[i] == dimension) return true;
    }
    return false;
}

static void append(int64_t *list, int32_t at, const int64_t *more, int32_t count) {
    for (int32_t i = 0; i < count; i++) list[at + i] = more[i];
}

AmStatus verify_dot(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *lhs = verify_operand(verifier, instruction, 0),
                  *rhs = verify_operand(verifier, instruction, 1);
    const IrDot *dot = instruction->attributes->dot;
    int32_t pairs = dot->batch_count + dot->contracting_count;
    if (pairs > lhs->rank || pairs > rhs->rank) {
        return verify_refuse(verifier, instruction, "it pairs %d dimensions, its operands have %d and %d",
                             pairs, lhs->rank, rhs->rank);
    }
    int64_t left[2 * IR_MAX_RANK], right[2 * IR_MAX_RANK], sizes[2 * IR_MAX_RANK];
    for (int32_t i = 0; i < pairs; i++) {
        int32_t c = i - dot->batch_count;
        left[i] = c < 0 ? dot->lhs_batch[i] : dot->lhs_contracting[c];
        right[i] = c < 0 ? dot->rhs_batch[i] : dot->rhs_contracting[c];
    }
    TRY(verify_dimensions(verifier, instruction, left, pairs, lhs->rank, "the left side"));
    TRY(verify_dimensions(verifier, instruction, right, pairs, rhs->rank, "the right side"));
    for (int32_t i = 0; i < pairs; i++) {
        int64_t a = lhs->dimensions[left[i]], b = rhs->dimensions[right[i]];
        if (a == b) continue;
        return verify_refuse(
            verifier, instruction,
            "it pairs dimension %lld of size %lld on the left with %lld of size %lld on the right",
            (long long)left[i], (long long)a, (long long)right[i], (long long)b);
    }
    IrShape expected = {.type = instruction->shape.type, .dimensions = sizes};
    for (int32_t i = 0; i < dot->batch_count; i++) sizes[expected.rank++] = lhs->dimensions[left[i]];
    for (int32_t d = 0; d < lhs->rank; d++) {
        if (!holds(left, pairs, d)) sizes[expected.rank++] = lhs->dimensions[d];
    }
    for (int32_t d = 0; d < rhs->rank; d++) {
        if (!holds(right, pairs, d)) sizes[expected.rank++] = rhs->dimensions[d];
    }
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* The number of window positions along one dimension; -1 if it has no meaning. */
static int64_t positions(int64_t size, const IrWindowDimension *window) {
    int64_t base = 0, reach, padded;
    bool overflow = size > 0 && (__builtin_mul_overflow(size - 1, window->base_dilation, &base) ||
                                 __builtin_add_overflow(base, 1, &base));
    overflow = overflow || __builtin_mul_overflow(window->size - 1, window->window_dilation, &reach) ||
               __builtin_add_overflow(base, window->padding_low, &padded) ||
               __builtin_add_overflow(padded, window->padding_high, &padded) ||
               __builtin_add_overflow(reach, 1, &reach);
    if (overflow || window->size < 1) return -1;
    return padded < reach ? 0 : (padded - reach) / window->stride + 1;
}

/* Dimension numbers of one side: two special ones and the spatial ones. */
static AmStatus verify_roles(const Verifier *verifier, const IrInstruction *instruction, const char *what,
                             int32_t rank, int64_t first, int64_t second, const int64_t *spatial,
                             int32_t spatial_count) {
    int64_t roles[IR_MAX_RANK + 2] = {first, second};
    if (rank != spatial_count + 2) {
        return verify_refuse(verifier, instruction, "the %s has rank %d, expected %d", what, rank,
                             spatial_count + 2);
    }
    append(roles, 2, spatial, spatial_count);
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
    int64_t batch = input->dimensions[convolution->input_batch];
    if (outputs % feature_groups != 0 || outputs % batch_groups != 0 || batch % batch_groups != 0) {
        return verify_refuse(verifier, instruction,
                             "its groups do not divide its batch or its output features");
    }
    return AM_OK;
}

AmStatus verify_convolution(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
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
        int64_t size = positions(input->dimensions[convolution->input_spatial[i]], window);
        if (size < 0)
            return verify_refuse(verifier, instruction, "its window has no valid size in dimension %d", i);
        sizes[convolution->output_spatial[i]] = size;
    }
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* Operands are inputs of one shape, then as many scalars of their types. Each
 * input gives `dimensions` (rank of them); several inputs give a tuple. */
static AmStatus verify_reduced(const Verifier *verifier, const IrInstruction *instruction, int32_t rank,
                               const int64_t *dimensions) {
    int32_t inputs = instruction->operand_count / 2;
    if (instruction->operand_count % 2 != 0) {
        return verify_refuse(verifier, instruction,
                             "it has %d operands, expected inputs and as many initial values",
                             instruction->operand_count);
    }
    const IrShape *result = &instruction->shape, *first = verify_operand(verifier, instruction, 0);
    bool is_tuple = result->type == DTYPE_TUPLE;
    if (is_tuple ? result->rank != inputs : inputs != 1) {
        return verify_refuse(verifier, instruction, "its shape is no tuple of %d elements", inputs);
    }
    TRY(verify_calls(verifier, instruction, 1, instruction->operand_count));
    for (int32_t k = 0; k < inputs; k++) {
        const IrShape *input = verify_operand(verifier, instruction, k);
        IrShape same = *first, scalar = {.type = input->type};
        same.type = input->type;
        TRY(verify_shape(verifier, instruction, input, &same));
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, inputs + k), &scalar));
        const IrShape *found = is_tuple ? &result->elements[k] : result;
        IrShape expected = {.type = input->type, .rank = rank, .dimensions = dimensions};
        TRY(verify_shape(verifier, instruction, found, &expected));
    }
    return AM_OK;
}

AmStatus verify_reduce(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *input = verify_operand(verifier, instruction, 0);
    const IrAttributes *attributes = instruction->attributes;
    TRY(verify_dimensions(verifier, instruction, attributes->dimensions, attributes->dimension_count,
                          input->rank, "dimensions"));
    int64_t kept[IR_MAX_RANK];
    int32_t rank = 0;
    for (int32_t d = 0; d < input->rank; d++) {
        if (!holds(attributes->dimensions, attributes->dimension_count, d))
            kept[rank++] = input->dimensions[d];
    }
    return verify_reduced(verifier, instruction, rank, kept);
}

/* The window slides over `input`; sizes gets its positions per dimension. */
static AmStatus slide(const Verifier *verifier, const IrInstruction *instruction, const IrShape *input,
                      int64_t *sizes) {
    const IrAttributes *attributes = instruction->attributes;
    if (attributes->window_count != input->rank) {
        return verify_refuse(verifier, instruction, "its window has %d dimensions, its operand has %d",
                             attributes->window_count, input->rank);
    }
    for (int32_t i = 0; i < input->rank; i++) {
        sizes[i] = positions(input->dimensions[i], &attributes->window[i]);
        if (sizes[i] < 0)
            return verify_refuse(verifier, instruction, "its window has no valid size in dimension %d", i);
    }
    return AM_OK;
}

AmStatus verify_reduce_window(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *input = verify_operand(verifier, instruction, 0);
    int64_t sizes[IR_MAX_RANK];
    TRY(slide(verifier, instruction, input, sizes));
    return verify_reduced(verifier, instruction, input->rank, sizes);
}

AmStatus verify_select_and_scatter(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    int64_t sizes[IR_MAX_RANK];
    TRY(slide(verifier, instruction, operand, sizes));
    TRY(verify_calls(verifier, instruction, 2, 2));
    IrShape source = {.type = operand->type, .rank = operand->rank, .dimensions = sizes};
    IrShape scalar = {.type = operand->type};
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 1), &source));
    TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, 2), &scalar));
    return verify_shape(verifier, instruction, &instruction->shape, operand);
}

/* The parts that gather and scatter share: numbers within range, and how many
 * operand dimensions the index vector addresses. */
static AmStatus verify_indexing(const Verifier *verifier, const IrInstruction *instruction,
                                const IrShape *operand, const IrShape *indices, const IrShape *batched) {
    const IrGather *gather = instruction->attributes->gather;
    int64_t absent[2 * IR_MAX_RANK]; /* operand dimensions that the slice's result does not have */
    int32_t absent_count = gather->collapsed_count + gather->batching_count;
    if (!dtype_is_integer(indices->type))
        return verify_refuse(verifier, instruction, "its indices are no integers");
    if (gather->index_vector_dimension < 0 || gather->index_vector_dimension > indices->rank) {
        return verify_refuse(verifier, instruction, "its index vector is in dimension %lld of rank %d",
                             (long long)gather->index_vector_dimension, indices->rank);
    }
    bool implicit = gather->index_vector_dimension == indices->rank;
    int64_t vector = implicit ? 1 : indices->dimensions[gather->index_vector_dimension];
    if (vector != gather->index_map_count) {
        return verify_refuse(verifier, instruction, "its index vectors have %lld elements, expected %d",
                             (long long)vector, gather->index_map_count);
    }
    if (gather->offset_count + absent_count != operand->rank) {
        return verify_refuse(verifier, instruction, "it names %d dimensions of its operand, expected %d",
                             gather->offset_count + absent_count, operand->rank);
    }
    append(absent, 0, gather->collapsed_dimensions, gather->collapsed_count);
    append(absent, gather->collapsed_count, gather->operand_batching, gather->batching_count);
    TRY(verify_dimensions(verifier, instruction, absent, absent_count, operand->rank,
                          "collapsed and batching"));
    TRY(verify_dimensions(verifier, instruction, gather->start_index_map, gather->index_map_count,
                          operand->rank, "the index map"));
    TRY(verify_dimensions(verifier, instruction, gather->offset_dimensions, gather->offset_count,
                          batched->rank, "the window"));
    TRY(verify_dimensions(verifier, instruction, gather->indices_batching, gather->batching_count,
                          indices->rank, "the indices' batching"));
    for (int32_t i = 0; i < gather->batching_count; i++) {
        int64_t a = operand->dimensions[gather->operand_batching[i]];
        int64_t b = indices->dimensions[gather->indices_batching[i]];
        if (gather->indices_batching[i] == gather->index_vector_dimension || a != b) {
            return verify_refuse(verifier, instruction, "its batching dimensions have sizes %lld and %lld",
                                 (long long)a, (long long)b);
        }
    }
    return AM_OK;
}

/* Puts together the gather's result (scatter's updates): window sizes where
 * offset_dimensions says, sizes of the indices everywhere else. */
static int32_t combine(const IrGather *gather, const IrShape *indices, const int64_t *window,
                       int64_t *sizes) {
    int32_t index_rank = indices->rank - (gather->index_vector_dimension < indices->rank);
    int32_t rank = gather->offset_count + index_rank;
    int32_t next_window = 0, next_index = 0;
    for (int32_t d = 0; d < rank; d++) {
        if (next_index == gather->index_vector_dimension) next_index++;
        bool is_window = holds(gather->offset_dimensions, gather->offset_count, d);
        sizes[d] = is_window                    ? window[next_window++]
                   : next_index < indices->rank ? indices->dimensions[next_index]
                                                : 1;
        if (!is_window) next_index++;
    }
    return rank;
}

AmStatus verify_gather(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    const IrShape *operand = verify_operand(verifier, instruction, 0),
                  *indices = verify_operand(verifier, instruction, 1);
    const IrGather *gather = instruction->attributes->gather;
    TRY(verify_indexing(verifier, instruction, operand, indices, &instruction->shape));
    int64_t window[IR_MAX_RANK], sizes[3 * IR_MAX_RANK];
    int32_t windows = 0;
    for (int32_t d = 0; d < operand->rank; d++) {
        int64_t size = gather->slice_sizes[d];
        bool absent = holds(gather->collapsed_dimensions, gather->collapsed_count, d) ||
                      holds(gather->operand_batching, gather->batching_count, d);
        if (size < 0 || size > operand->dimensions[d] || (absent && size > 1)) {
            return verify_refuse(verifier, instruction,
                                 "its slice has size %lld in dimension %d of size %lld", (long long)size, d,
                                 (long long)operand->dimensions[d]);
        }
        if (!absent) window[windows++] = size;
    }
    IrShape expected = {.type = operand->type, .dimensions = sizes};
    expected.rank = combine(gather, indices, window, sizes);
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* Operands are inputs, one array of indices, then an update for each input. */
AmStatus verify_scatter(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_arrays(verifier, instruction));
    int32_t inputs = instruction->operand_count / 2;
    if (instruction->operand_count % 2 != 1) {
        return verify_refuse(verifier, instruction,
                             "it has %d operands, expected inputs, indices and updates",
                             instruction->operand_count);
    }
    TRY(verify_calls(verifier, instruction, 1, 2 * inputs));
    const IrGather *scatter = instruction->attributes->gather;
    const IrShape *indices = verify_operand(verifier, instruction, inputs), *result = &instruction->shape;
    if (inputs > 1 && (result->type != DTYPE_TUPLE || result->rank != inputs)) {
        return verify_refuse(verifier, instruction, "its shape is no tuple of %d elements", inputs);
    }
    for (int32_t k = 0; k < inputs; k++) {
        const IrShape *input = verify_operand(verifier, instruction, k);
        const IrShape *updates = verify_operand(verifier, instruction, inputs + 1 + k);
        TRY(verify_indexing(verifier, instruction, input, indices, updates));
        int64_t window[IR_MAX_RANK], sizes[3 * IR_MAX_RANK];
        int32_t windows = 0;
        for (int32_t d = 0; d < updates->rank; d++) {
            if (holds(scatter->offset_dimensions, scatter->offset_count, d))
                window[windows++] = updates->dimensions[d];
        }
        int32_t next = 0;
        for (int32_t d = 0; d < input->rank; d++) {
            bool absent = holds(scatter->collapsed_dimensions, scatter->collapsed_count, d) ||
                          holds(scatter->operand_batching, scatter->batching_count, d);
            if (absent || window[next++] <= input->dimensions[d]) continue;
            return verify_refuse(verifier, instruction,
                                 "its window is larger than its operand in dimension %d", d);
        }
        IrShape expected = {.type = input->type, .dimensions = sizes};
        expected.rank = combine(scatter, indices, window, sizes);
        TRY(verify_shape(verifier, instruction, updates, &expected));
        TRY(verify_shape(verifier, instruction, inputs == 1 ? result : &result->elements[k], input));
    }
    return AM_OK;
}
