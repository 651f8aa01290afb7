/* sort and topk: lines of an array, each put in order by a stable merge sort.
 *
 * sort packs the line of every operand and sorts the numbers of its elements. The comparator is an element
 * program over the pairs (left, right) of all operands. Every operand's line is then written in that order.
 * topk sorts by value and keeps the first k. Floating types have the total order of their bits
 * (-NaN < -Inf < ... < NaN). Among equal values the lower index comes first.
 */
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"

/* Returns whether element a stands before element b whatever their places were. */
typedef bool Precedes(void *context, int64_t a, int64_t b);

/* Sorts `count` items with the help of as many spare ones; returns which of the
 * two arrays holds the result. */
static int64_t *merge_sort(int64_t *items, int64_t *spare, int64_t count, Precedes *precedes, void *context) {
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t first = 0; first < count; first += 2 * width) {
            int64_t middle = first + width < count ? first + width : count;
            int64_t end = middle + width < count ? middle + width : count;
            int64_t left = first, right = middle;
            for (int64_t at = first; at < end; at++) {
                bool takes_right =
                    left == middle || (right < end && precedes(context, items[right], items[left]));
                spare[at] = items[takes_right ? right++ : left++];
            }
        }
        int64_t *sorted = spare;
        spare = items;
        items = sorted;
    }
    return items;
}

/* Lines along a dimension: line l starts at element l / inner * length * inner + l % inner. */
typedef struct Lines {
    int64_t length, inner, count;
} Lines;

static Lines lines_along(const IrShape *shape, int64_t dimension) {
    Lines lines = {
        .length = shape->dimensions[dimension],
        .inner = strided_elements(shape->dimensions + dimension + 1, shape->rank - (int32_t)dimension - 1)};
    lines.count = lines.length > 0 ? ir_shape_elements(shape) / lines.length : 0;
    return lines;
}

typedef struct SortKernel {
    Lines lines;
    int32_t count;          /* operands */
    int64_t *element_bytes; /* [operand] */
    int64_t *packed_at;     /* [operand]: its packed line in the scratch memory */
    int64_t items_at, program_at;
    ElementProgram *comparator;
} SortKernel;

/* The comparator at work. */
typedef struct Comparison {
    const SortKernel *kernel;
    char *scratch;
    const void **pairs; /* [2 * operand]: left, right */
} Comparison;

static bool comparator_precedes(void *context, int64_t a, int64_t b) {
    const Comparison *self = context;
    const SortKernel *kernel = self->kernel;
    uint8_t precedes = 0;
    void *output = &precedes;
    for (int32_t k = 0; k < kernel->count; k++) {
        const char *line = self->scratch + kernel->packed_at[k];
        self->pairs[2 * k] = line + a * kernel->element_bytes[k];
        self->pairs[2 * k + 1] = line + b * kernel->element_bytes[k];
    }
    element_program_run(kernel->comparator, self->pairs, &output, 1, NULL,
                        self->scratch + kernel->program_at);
    return precedes != 0;
}

static void run_sort(const KernelCall *call) {
    const SortKernel *kernel = call->compiled;
    const Lines *lines = &kernel->lines;
    char *scratch = call->scratch;
    Comparison comparison = {.kernel = kernel, .scratch = scratch, .pairs = call->scratch};
    int64_t *items = (int64_t *)(void *)(scratch + kernel->items_at);
    element_program_begin(kernel->comparator, 1, scratch + kernel->program_at);
    for (int64_t line = 0; line < lines->count; line++) {
        int64_t start = line / lines->inner * lines->length * lines->inner + line % lines->inner;
        for (int64_t i = 0; i < lines->length; i++) items[i] = i;
        for (int32_t k = 0; k < kernel->count; k++) {
            int64_t bytes = kernel->element_bytes[k];
            strided_load(scratch + kernel->packed_at[k], (const char *)call->operands[k] + start * bytes,
                         &lines->inner, &lines->length, 1, 0, lines->length, bytes);
        }
        const int64_t *sorted =
            merge_sort(items, items + lines->length, lines->length, comparator_precedes, &comparison);
        for (int32_t k = 0; k < kernel->count; k++) {
            int64_t bytes = kernel->element_bytes[k];
            const char *packed = scratch + kernel->packed_at[k];
            char *out = (char *)call->results[k] + start * bytes;
            for (int64_t i = 0; i < lines->length; i++)
                memcpy(out + i * lines->inner * bytes, packed + sorted[i] * bytes, (size_t)bytes);
        }
    }
}

AmStatus cpu_prepare_sort(KernelCall *call, Arena *arena, AmError *error) {
    SortKernel *kernel = ARENA_ARRAY(arena, SortKernel, 1);
    int64_t *numbers = ARENA_ARRAY(arena, int64_t, 2 * call->operand_count + 1);
    if (arena->failed) return am_fail_memory(error, call->operand_count * 16);
    const IrShape *shape = call->operand_shapes[0];
    const IrAttributes *attributes = call->attributes;
    if (call->operand_count != call->result_count || attributes->dimension_count != 1)
        return kernel_call_refuse(call, "not with these operands", error);
    TRY(element_program_from_computation(&kernel->comparator, arena, call->program->module,
                                         call->instruction->compute.called, error));
    if (element_program_inputs(kernel->comparator) != 2 * call->operand_count ||
        element_program_outputs(kernel->comparator) != 1 ||
        element_program_output_type(kernel->comparator, 0) != DTYPE_PRED)
        return kernel_call_refuse(call, "its comparator has other operands", error);
    kernel->lines = lines_along(shape, attributes->dimensions[0]);
    kernel->count = call->operand_count;
    kernel->element_bytes = numbers;
    kernel->packed_at = numbers + call->operand_count;
    int64_t at = kernel_align((int64_t)sizeof(void *) * 2 * call->operand_count);
    for (int32_t k = 0; k < call->operand_count; k++) {
        if (element_program_input_type(kernel->comparator, 2 * k) != call->operand_shapes[k]->type ||
            element_program_input_type(kernel->comparator, 2 * k + 1) != call->operand_shapes[k]->type)
            return kernel_call_refuse(call, "its comparator has other types", error);
        kernel->element_bytes[k] = dtype_bytes(call->operand_shapes[k]->type);
        kernel->packed_at[k] = at;
        at += kernel_align(kernel->lines.length * kernel->element_bytes[k]);
    }
    kernel->items_at = at;
    kernel->program_at = at + kernel_align(2 * (int64_t)sizeof(int64_t) * kernel->lines.length);
    call->scratch_bytes = kernel->program_at + element_program_scratch(kernel->comparator);
    call->compiled = kernel;
    call->run = run_sort;
    return AM_OK;
}

typedef struct TopkKernel {
    Lines lines;
    int64_t kept;
    bool largest;
} TopkKernel;

/* Returns a number that orders elements of any type as unsigned 64-bit integers. */
static uint64_t order_key(const char *data, Dtype type, int64_t at) {
    int64_t bytes = dtype_bytes(type), width = dtype_is_floating(type) ? dtype_bits(type) : 8 * bytes;
    uint64_t bits = 0, sign = (uint64_t)1 << (width - 1);
    memcpy(&bits, data + at * bytes, (size_t)bytes);
    if (dtype_is_floating(type)) {
        if (!dtype_is_signed(type)) return bits;
        return bits & sign ? sign + (sign - 1) - bits : bits | sign;
    }
    return scalar64_kind(type) == SCALAR64_SIGNED ? bits ^ sign : bits;
}

static bool is_larger(void *context, int64_t a, int64_t b) {
    const uint64_t *keys = context;
    return keys[a] > keys[b];
}

static bool is_smaller(void *context, int64_t a, int64_t b) {
    const uint64_t *keys = context;
    return keys[a] < keys[b];
}

static void run_topk(const KernelCall *call) {
    const TopkKernel *kernel = call->compiled;
    int64_t length = kernel->lines.length, kept = kernel->kept;
    Dtype type = call->operand_shapes[0]->type, index_type = call->result_shapes[1]->type;
    int64_t bytes = dtype_bytes(type), index_bytes = dtype_bytes(index_type);
    uint64_t *keys = call->scratch;
    int64_t *items = (int64_t *)call->scratch + length;
    for (int64_t line = 0; line < kernel->lines.count; line++) {
        const char *in = (const char *)call->operands[0] + line * length * bytes;
        for (int64_t i = 0; i < length; i++) {
            keys[i] = order_key(in, type, i);
            items[i] = i;
        }
        const int64_t *sorted =
            merge_sort(items, items + length, length, kernel->largest ? is_larger : is_smaller, keys);
        for (int64_t i = 0; i < kept; i++) {
            int64_t to = line * kept + i;
            Scalar64 index = {.as_signed = sorted[i]};
            memcpy((char *)call->results[0] + to * bytes, in + sorted[i] * bytes, (size_t)bytes);
            scalar64_store((char *)call->results[1] + to * index_bytes, index_type, &index, SCALAR64_SIGNED,
                           1, 1);
        }
    }
}

AmStatus cpu_prepare_topk(KernelCall *call, Arena *arena, AmError *error) {
    TopkKernel *kernel = ARENA_ARRAY(arena, TopkKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    const IrShape *shape = call->operand_shapes[0];
    if (call->operand_count != 1 || call->result_count != 2 || shape->rank < 1 ||
        !scalar64_supports(shape->type) || !dtype_is_integer(call->result_shapes[1]->type))
        return kernel_call_refuse(call, "not with these operands", error);
    const IrOptions *options = call->attributes->options;
    bool is_custom_call = call->instruction->opcode == IR_CUSTOM_CALL; /* "TopK": always the largest */
    *kernel = (TopkKernel){.lines = lines_along(shape, shape->rank - 1),
                           .largest = is_custom_call || options->largest};
    for (int32_t r = 0; r < 2; r++) {
        const IrShape *result = call->result_shapes[r];
        if (result->rank != shape->rank)
            return kernel_call_refuse(call, "its results have another rank", error);
        kernel->kept = result->dimensions[shape->rank - 1];
        if (kernel->kept > kernel->lines.length || (r == 0 && result->type != shape->type) ||
            ir_shape_elements(result) != kernel->kept * kernel->lines.count ||
            kernel->kept != call->result_shapes[0]->dimensions[shape->rank - 1])
            return kernel_call_refuse(call, "its results have other sizes", error);
    }
    call->scratch_bytes = 3 * (int64_t)sizeof(int64_t) * kernel->lines.length;
    call->compiled = kernel;
    call->run = run_topk;
    return AM_OK;
}
