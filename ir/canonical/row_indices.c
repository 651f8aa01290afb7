/* Batching dimensions in place of components of indices that count rows. */
#include "ir/canonical/row_indices.h"

#include <string.h>

#include "base/int_list.h"
#include "ir/hlo.pb-c.h"

#define MAX_VIEWS 16 /* between an iota and its use as an index */

/* Returns where dimension d is after a reshape that only adds or removes dimensions of one element; -1: it is
 * another reshape. */
static int32_t dimension_after(const IrShape *to, const IrShape *from, int32_t d) {
    int32_t a = 0, b = 0, found = -1;
    while (true) {
        while (a < from->rank && from->dimensions[a] == 1) a++;
        while (b < to->rank && to->dimensions[b] == 1) b++;
        if (a == from->rank || b == to->rank) break;
        if (from->dimensions[a] != to->dimensions[b]) return -1;
        if (a++ == d) found = b;
        b++;
    }
    return a == from->rank && b == to->rank ? found : -1;
}

/* Returns whether a type holds every index. */
static bool holds_indices(Dtype type) {
    return dtype_is_integer(type) && dtype_bits(type) >= 32;
}

static bool is_zero(const IrInstruction *instructions, int32_t i) {
    const IrInstruction *value = &instructions[i];
    while (value->opcode == IR_BROADCAST) value = &instructions[value->operands[0]];
    const char *data = value->opcode == IR_CONSTANT && value->literal ? value->literal->data : NULL;
    for (int64_t k = 0; data && k < value->literal->bytes; k++)
        if (data[k] != 0) return false;
    return data != NULL;
}

/* Returns the operand that a selection hands on because an index of rows is not negative, as in
 * select(row < 0, row + rows, row); -1: it is another one. */
static int32_t not_negative(const IrInstruction *instructions, const IrInstruction *selection) {
    const IrInstruction *test = &instructions[selection->operands[0]];
    bool is_test = test->opcode == IR_COMPARE && test->operands[0] == selection->operands[2] &&
                   test->attributes->comparison && strcmp(test->attributes->comparison, "LT") == 0;
    return is_test && is_zero(instructions, test->operands[1]) ? selection->operands[2] : -1;
}

/* Returns the dimension along which a value counts 0, 1, 2, ..., equal along all others; -1: it does not. */
static int32_t counted_dimension(const IrInstruction *instructions, int32_t i, int32_t views) {
    const IrInstruction *value = &instructions[i];
    if (views == 0 || !holds_indices(value->shape.type)) return -1;
    if (value->opcode == IR_IOTA) {
        int32_t d = (int32_t)value->attributes->dimensions[0];
        return value->shape.dimensions[d] > 1 && value->shape.dimensions[d] <= INT32_MAX ? d : -1;
    }
    bool is_view = value->opcode == IR_COPY || value->opcode == IR_CONVERT || value->opcode == IR_BROADCAST ||
                   value->opcode == IR_RESHAPE;
    int32_t operand = is_view                      ? value->operands[0]
                      : value->opcode == IR_SELECT ? not_negative(instructions, value)
                                                   : -1;
    if (operand < 0) return -1;
    int32_t d = counted_dimension(instructions, operand, views - 1);
    if (d < 0) return -1;
    if (value->opcode == IR_BROADCAST) return (int32_t)value->attributes->dimensions[d];
    return value->opcode == IR_RESHAPE ? dimension_after(&value->shape, &instructions[operand].shape, d) : d;
}

/* Dimensions that become batching ones. */
typedef struct CountedRows {
    int32_t count;
    int64_t operand[IR_MAX_RANK], indices[IR_MAX_RANK];
} CountedRows;

/* Adds the dimension into which a component points that counts along dimension d of the indices. Returns
 * whether each row meets its own index. */
static bool add_rows(CountedRows *rows, const IrGather *gather, const IrShape *operand,
                     const IrShape *indices, int64_t component, int32_t d) {
    if (d < 0 || d == gather->index_vector_dimension || component >= gather->index_map_count) return false;
    int64_t at = gather->start_index_map[component];
    bool is_free = rows->count < IR_MAX_RANK && !int_list_contains(rows->indices, rows->count, d) &&
                   !int_list_contains(gather->indices_batching, gather->batching_count, d);
    if (!is_free || !int_list_contains(gather->collapsed_dimensions, gather->collapsed_count, at))
        return false;
    if (operand->dimensions[at] != indices->dimensions[d]) return false;
    rows->operand[rows->count] = at;
    rows->indices[rows->count++] = d;
    return true;
}

/* Returns a copy of a list without the dimensions of the rows. *count, its number, is changed. */
static const int64_t *without(Arena *arena, const int64_t *list, int32_t *count, const CountedRows *rows) {
    int64_t *kept = ARENA_ARRAY(arena, int64_t, *count + 1);
    int32_t kept_count = 0;
    for (int32_t k = 0; kept && k < *count; k++)
        if (!int_list_contains(rows->operand, rows->count, list[k])) kept[kept_count++] = list[k];
    *count = kept_count;
    return kept;
}

/* Adds the rows to the batching dimensions, in the order of the operand's dimensions. */
static void add_batching(IrGather *gather, Arena *arena, const CountedRows *rows) {
    int32_t count = gather->batching_count + rows->count;
    int64_t *operand = ARENA_ARRAY(arena, int64_t, count), *indices = ARENA_ARRAY(arena, int64_t, count);
    if (arena->failed) return;
    for (int32_t n = 0; n < count; n++) {
        bool is_given = n < gather->batching_count;
        int32_t from = is_given ? n : n - gather->batching_count, at = n;
        int64_t dimension = is_given ? gather->operand_batching[from] : rows->operand[from];
        for (; at > 0 && operand[at - 1] > dimension; at--) {
            operand[at] = operand[at - 1];
            indices[at] = indices[at - 1];
        }
        operand[at] = dimension;
        indices[at] = is_given ? gather->indices_batching[from] : rows->indices[from];
    }
    gather->operand_batching = operand;
    gather->indices_batching = indices;
    gather->batching_count = count;
}

/* Sets a repeated field of a message. */
#define SET_LIST(numbers, field, list, count) \
    ((numbers)->n_##field = (size_t)(count), (numbers)->field = (int64_t *)(list))

/* Returns a copy of the message with the dimensions of `gather`, for the writers of modules. */
static const Hlo__HloInstructionProto *message_with(Arena *arena, const Hlo__HloInstructionProto *given,
                                                    const IrGather *gather) {
    Hlo__HloInstructionProto *message = ARENA_ARRAY(arena, Hlo__HloInstructionProto, 1);
    Hlo__GatherDimensionNumbers *of_gather = ARENA_ARRAY(arena, Hlo__GatherDimensionNumbers, 1);
    Hlo__ScatterDimensionNumbers *of_scatter = ARENA_ARRAY(arena, Hlo__ScatterDimensionNumbers, 1);
    if (arena->failed) return given;
    *message = *given;
    message->indices_are_sorted = false;
    if (given->gather_dimension_numbers) {
        *of_gather = *given->gather_dimension_numbers;
        SET_LIST(of_gather, collapsed_slice_dims, gather->collapsed_dimensions, gather->collapsed_count);
        SET_LIST(of_gather, start_index_map, gather->start_index_map, gather->index_map_count);
        SET_LIST(of_gather, operand_batching_dims, gather->operand_batching, gather->batching_count);
        SET_LIST(of_gather, start_indices_batching_dims, gather->indices_batching, gather->batching_count);
        message->gather_dimension_numbers = of_gather;
    }
    if (given->scatter_dimension_numbers) {
        *of_scatter = *given->scatter_dimension_numbers;
        SET_LIST(of_scatter, inserted_window_dims, gather->collapsed_dimensions, gather->collapsed_count);
        SET_LIST(of_scatter, scatter_dims_to_operand_dims, gather->start_index_map, gather->index_map_count);
        SET_LIST(of_scatter, input_batching_dims, gather->operand_batching, gather->batching_count);
        SET_LIST(of_scatter, scatter_indices_batching_dims, gather->indices_batching, gather->batching_count);
        message->scatter_dimension_numbers = of_scatter;
    }
    return message;
}

/* Makes the rows batching dimensions of a gather or scatter. */
static void set_batched(IrInstruction *user, Arena *arena, const CountedRows *rows) {
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    IrGather *gather = ARENA_ARRAY(arena, IrGather, 1);
    if (arena->failed) return;
    *attributes = *user->attributes;
    *gather = *user->attributes->gather;
    gather->start_index_map = without(arena, gather->start_index_map, &gather->index_map_count, rows);
    gather->collapsed_dimensions =
        without(arena, gather->collapsed_dimensions, &gather->collapsed_count, rows);
    add_batching(gather, arena, rows);
    attributes->gather = gather;
    attributes->indices_are_sorted = false; /* the rows were */
    user->attributes = attributes;
    if (user->message) user->message = message_with(arena, user->message, gather);
}

static void batch_rows(IrInstruction *instructions, IrInstruction *user, Arena *arena) {
    int32_t place = user->opcode == IR_GATHER ? 1 : user->operand_count / 2, other = -1, others = 0;
    const IrGather *gather = user->attributes->gather;
    const IrInstruction *joined = &instructions[user->operands[place]];
    CountedRows rows = {0};
    if (joined->opcode != IR_CONCATENATE ||
        joined->attributes->dimensions[0] != gather->index_vector_dimension)
        return;
    int64_t component = 0;
    for (int32_t k = 0; k < joined->operand_count; k++) {
        int32_t piece = joined->operands[k];
        int64_t width = instructions[piece].shape.dimensions[gather->index_vector_dimension];
        int32_t d = width == 1 ? counted_dimension(instructions, piece, MAX_VIEWS) : -1;
        if (!add_rows(&rows, gather, &instructions[user->operands[0]].shape, &joined->shape, component, d)) {
            other = piece;
            others++;
        }
        component += width;
    }
    if (rows.count == 0 || others != 1) return;
    ((int32_t *)user->operands)[place] = other; /* the list's own copy */
    set_batched(user, arena, &rows);
}

AmStatus ir_batch_row_indices(IrInstructionList *list, Arena *arena, AmError *error) {
    for (int32_t i = 0; i < list->count; i++) {
        IrOpcode opcode = list->instructions[i].opcode;
        if (opcode == IR_GATHER || opcode == IR_SCATTER)
            batch_rows(list->instructions, &list->instructions[i], arena);
    }
    return arena->failed ? am_fail_memory(error, list->count) : AM_OK;
}
