/* Rules of operators that address by indices.
 *
 *   gather:  the batch dimensions are those of the indices without the index vector,
 *            in order; the offset dimensions are those of the slice without the collapsed
 *            and batching ones; offset_dimensions gives their positions in the result
 *   scatter: its updates have the shape that a gather of the same form returns
 *
 * The index vector must not address a batching dimension. XLA accepts that, but no kernel could
 * clamp the sum.
 */
#include "ir/verify/verify_parts.h"

static void append_sizes(int64_t *list, int32_t at, const int64_t *more, int32_t count) {
    for (int32_t i = 0; i < count; i++) list[at + i] = more[i];
}

/* Checks start indices: scalars, one per dimension, or one vector. XLA requires one type for all of them;
 * kernels accept a type per scalar. */
static AmStatus verify_start_indices(const Verifier *verifier, const IrInstruction *instruction,
                                     int32_t first, int32_t rank) {
    int32_t count = instruction->operand_count - first;
    for (int32_t k = first; k < instruction->operand_count; k++) {
        const IrShape *index = verify_operand(verifier, instruction, k);
        if (!dtype_is_integer(index->type))
            return verify_refuse(verifier, instruction, "its start indices are no integers");
        bool is_vector = count == 1 && index->rank == 1 && index->dimensions[0] == rank;
        if (is_vector) return AM_OK;
        if (index->rank != 0)
            return verify_refuse(verifier, instruction, "start index %d is not a scalar", k - first);
    }
    if (count == rank) return AM_OK;
    return verify_refuse(verifier, instruction, "it has %d start indices, expected %d", count, rank);
}

AmStatus verify_dynamic_slice(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    IrShape expected = {
        .type = operand->type, .rank = operand->rank, .dimensions = instruction->attributes->slice_sizes};
    if (instruction->shape.rank != operand->rank)
        return verify_refuse(verifier, instruction, "it changes the rank");
    TRY(verify_shape(verifier, instruction, &instruction->shape, &expected));
    for (int32_t i = 0; i < operand->rank; i++) {
        if (expected.dimensions[i] > operand->dimensions[i]) {
            return verify_refuse(verifier, instruction,
                                 "its slice is larger than its operand in dimension %d", i);
        }
    }
    return verify_start_indices(verifier, instruction, 1, operand->rank);
}

AmStatus verify_dynamic_update_slice(const Verifier *verifier, const IrInstruction *instruction) {
    Verifier strict = {verifier->module, verifier->error, false};
    TRY(verify_shape(&strict, instruction, &instruction->shape, verify_operand(verifier, instruction, 0)));
    const IrShape *update = verify_operand(verifier, instruction, 1), *result = &instruction->shape;
    if (update->rank != result->rank)
        return verify_refuse(verifier, instruction, "its update has another rank");
    TRY(verify_type(verifier, instruction, update->type, result->type));
    for (int32_t i = 0; i < result->rank; i++) {
        if (update->dimensions[i] > result->dimensions[i]) {
            return verify_refuse(verifier, instruction,
                                 "its update is larger than its operand in dimension %d", i);
        }
    }
    return verify_start_indices(verifier, instruction, 2, result->rank);
}

static AmStatus verify_ascending(const Verifier *verifier, const IrInstruction *instruction,
                                 const int64_t *dimensions, int32_t count, const char *what) {
    for (int32_t i = 1; i < count; i++) {
        if (dimensions[i - 1] < dimensions[i]) continue;
        return verify_refuse(verifier, instruction,
                             "%s names dimension %lld after %lld, expected ascending ones", what,
                             (long long)dimensions[i], (long long)dimensions[i - 1]);
    }
    return AM_OK;
}

/* Checks the parts that gather and scatter share: numbers within range, and the number of operand dimensions
 * that the index vector addresses. */
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
    append_sizes(absent, 0, gather->collapsed_dimensions, gather->collapsed_count);
    append_sizes(absent, gather->collapsed_count, gather->operand_batching, gather->batching_count);
    TRY(verify_dimensions(verifier, instruction, absent, absent_count, operand->rank,
                          "collapsed and batching"));
    TRY(verify_dimensions(verifier, instruction, gather->start_index_map, gather->index_map_count,
                          operand->rank, "the index map"));
    TRY(verify_dimensions(verifier, instruction, gather->offset_dimensions, gather->offset_count,
                          batched->rank, "the window"));
    TRY(verify_dimensions(verifier, instruction, gather->indices_batching, gather->batching_count,
                          indices->rank, "the indices' batching"));
    TRY(verify_ascending(verifier, instruction, gather->collapsed_dimensions, gather->collapsed_count,
                         "collapsed"));
    TRY(verify_ascending(verifier, instruction, gather->operand_batching, gather->batching_count,
                         "batching"));
    TRY(verify_ascending(verifier, instruction, gather->offset_dimensions, gather->offset_count,
                         "the window"));
    for (int32_t i = 0; i < gather->batching_count; i++) {
        bool is_addressed =
            int_list_contains(gather->start_index_map, gather->index_map_count, gather->operand_batching[i]);
        if (is_addressed && !verifier->is_lax) {
            return verify_refuse(verifier, instruction,
                                 "dimension %lld is a batching one and addressed by the indices",
                                 (long long)gather->operand_batching[i]);
        }
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
static int32_t combine_sizes(const IrGather *gather, const IrShape *indices, const int64_t *window,
                             int64_t *sizes) {
    int32_t index_rank = indices->rank - (gather->index_vector_dimension < indices->rank);
    int32_t rank = gather->offset_count + index_rank;
    int32_t next_window = 0, next_index = 0;
    for (int32_t d = 0; d < rank; d++) {
        if (next_index == gather->index_vector_dimension) next_index++;
        bool is_window = int_list_contains(gather->offset_dimensions, gather->offset_count, d);
        sizes[d] = is_window                    ? window[next_window++]
                   : next_index < indices->rank ? indices->dimensions[next_index]
                                                : 1;
        if (!is_window) next_index++;
    }
    return rank;
}

AmStatus verify_gather(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *operand = verify_operand(verifier, instruction, 0),
                  *indices = verify_operand(verifier, instruction, 1);
    const IrGather *gather = instruction->attributes->gather;
    TRY(verify_indexing(verifier, instruction, operand, indices, &instruction->shape));
    int64_t window[IR_MAX_RANK], sizes[3 * IR_MAX_RANK];
    int32_t windows = 0;
    for (int32_t d = 0; d < operand->rank; d++) {
        int64_t size = gather->slice_sizes[d];
        bool absent = int_list_contains(gather->collapsed_dimensions, gather->collapsed_count, d) ||
                      int_list_contains(gather->operand_batching, gather->batching_count, d);
        if (size < 0 || size > operand->dimensions[d] || (absent && size > 1)) {
            return verify_refuse(verifier, instruction,
                                 "its slice has size %lld in dimension %d of size %lld", (long long)size, d,
                                 (long long)operand->dimensions[d]);
        }
        if (!absent) window[windows++] = size;
    }
    IrShape expected = {.type = operand->type, .dimensions = sizes};
    expected.rank = combine_sizes(gather, indices, window, sizes);
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}

/* Operands are inputs, one array of indices, then an update for each input. */
AmStatus verify_scatter(const Verifier *verifier, const IrInstruction *instruction) {
    int32_t inputs = instruction->operand_count / 2;
    if (instruction->operand_count % 2 != 1) {
        return verify_refuse(verifier, instruction,
                             "it has %d operands, expected inputs, indices and updates",
                             instruction->operand_count);
    }
    TRY(verify_calls(verifier, instruction, 1, 2 * inputs));
    TRY(verify_combiner(verifier, instruction, verify_called(verifier, instruction, 0), inputs));
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
            if (int_list_contains(scatter->offset_dimensions, scatter->offset_count, d))
                window[windows++] = updates->dimensions[d];
        }
        int32_t next = 0;
        for (int32_t d = 0; d < input->rank; d++) {
            bool absent = int_list_contains(scatter->collapsed_dimensions, scatter->collapsed_count, d) ||
                          int_list_contains(scatter->operand_batching, scatter->batching_count, d);
            if (absent || window[next++] <= input->dimensions[d]) continue;
            return verify_refuse(verifier, instruction,
                                 "its window is larger than its operand in dimension %d", d);
        }
        IrShape expected = {.type = input->type, .dimensions = sizes};
        expected.rank = combine_sizes(scatter, indices, window, sizes);
        TRY(verify_shape(verifier, instruction, updates, &expected));
        TRY(verify_shape(verifier, instruction, inputs == 1 ? result : &result->elements[k], input));
    }
    return AM_OK;
}
