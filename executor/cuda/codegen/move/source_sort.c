/* sort and topk: lines of an array, put in order by stable merge sort.
 *
 * The kernels sort the places of a line's elements, in the scratch memory.
 * First every thread sorts CHUNK places by insertion. Then passes merge runs of
 * twice the length each: a thread writes CHUNK places of a pair of merged runs
 * and finds where they begin in both by bisection (Green, McColl and Bader, "GPU
 * Merge Path", ICS 2012). A last kernel moves the elements. Equal elements keep
 * their order, so the result of any strict order is that of executor/cpu/move/sort.c.
 * Another comparator may lose elements; memory accesses stay inside the arrays.
 */
#include <stdio.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_text.h"

enum { CHUNK = 8 };

/* Lines along a dimension: line l starts at element l / inner * length * inner + l % inner. */
typedef struct Sort {
    int64_t length, inner, lines, chunks; /* chunks of a line */
    const char *item;                     /* C type of a place */
} Sort;

static Sort describe(const IrShape *shape, int64_t dimension) {
    Sort sort = {
        .length = shape->dimensions[dimension],
        .inner = strided_elements(shape->dimensions + dimension + 1, shape->rank - (int32_t)dimension - 1)};
    sort.lines = sort.length > 0 ? ir_shape_elements(shape) / sort.length : 0;
    sort.chunks = sort.length / CHUNK + (sort.length % CHUNK > 0);
    sort.item = sort.length <= INT32_MAX ? "s32" : "s64";
    return sort;
}

/* Thread i has chunk `chunk` of `line`, whose places are at `items` in the first half of the scratch
 * memory and at `spare` in the second. */
static void append_chunk(Text *out, const Sort *sort, const char *items, const char *spare) {
    text_append(out, "    const s64 line = (s64)i / %lldll, chunk = (s64)i %% %lldll;\n",
                (long long)sort->chunks, (long long)sort->chunks);
    /* "start" is the place of the line's first element in the operands. */
    text_append(out, "    const s64 start = line / %lldll * %lldll + line %% %lldll;\n",
                (long long)sort->inner, (long long)(sort->length * sort->inner), (long long)sort->inner);
    text_append(out, "    %s *%s = scratch + line * %lldll;\n", sort->item, items, (long long)sort->length);
    if (spare)
        text_append(out, "    %s *%s = %s + %lldll;\n", sort->item, spare, items,
                    (long long)(sort->lines * sort->length));
}

/* Appends "precedes(a, b)": whether the element at place a of the line comes before that at b. */
static void append_comparison(Text *out, const KernelCall *call, const Sort *sort) {
    text_append(out,
                "    const auto precedes = [&](const s64 a, const s64 b) -> bool {\n"
                "        const s64 left = start + a * %lldll, right = start + b * %lldll;\n"
                "        return compare(",
                (long long)sort->inner, (long long)sort->inner);
    for (int32_t k = 0; k < call->operand_count; k++) {
        char array[32];
        Dtype type = call->operand_shapes[k]->type;
        snprintf(array, sizeof array, "in%d", k);
        text_append_string(out, k > 0 ? ", " : "");
        cuda_append_element(out, type, array, "left");
        text_append_string(out, ", ");
        cuda_append_element(out, type, array, "right");
    }
    text_append_string(out, ") != 0;\n    };\n");
}

/* Appends "compare": on the pairs of elements of all operands, left and right. */
typedef AmStatus CompareWriter(Text *out, Arena *arena, const KernelCall *call, AmError *error);

static AmStatus launch_insertion(CudaSource *source, const KernelCall *call, const Sort *sort,
                                 CompareWriter *write, AmError *error) {
    Text body = {0};
    cuda_append_signature(&body, call, source, sort->item, false);
    cuda_append_guard(&body, sort->lines * sort->chunks);
    append_chunk(&body, sort, "items", NULL);
    AmStatus status = write(&body, source->arena, call, error);
    if (status != AM_OK) {
        text_free(&body);
        return status;
    }
    append_comparison(&body, call, sort);
    text_append(&body,
                "    const s64 first = chunk * %d, end = least_of(first + %d, %lldll);\n"
                "    for (s64 k = first; k < end; k++) {\n"
                "        s64 at = k;\n"
                "        for (; at > first && precedes(k, items[at - 1]); at--) items[at] = items[at - 1];\n"
                "        items[at] = (%s)k;\n"
                "    }\n"
                "}\n",
                CHUNK, CHUNK, (long long)sort->length, sort->item);
    return cuda_source_launch(source, "sort_chunks", &body, cuda_blocks(sort->lines * sort->chunks),
                              CUDA_THREADS, error);
}

/* The launch's number is the length of the runs, plus 1 if they are in the second half. */
static AmStatus launch_merge(CudaSource *source, const KernelCall *call, const Sort *sort,
                             CompareWriter *write, AmError *error) {
    Text body = {0};
    cuda_append_signature(&body, call, source, sort->item, true);
    cuda_append_guard(&body, sort->lines * sort->chunks);
    append_chunk(&body, sort, "even", "odd");
    AmStatus status = write(&body, source->arena, call, error);
    if (status != AM_OK) {
        text_free(&body);
        return status;
    }
    append_comparison(&body, call, sort);
    text_append(&body,
                "    const s64 run = number & ~1ll, at = chunk * %d, end = least_of(at + %d, %lldll);\n"
                "    const %s *items = number & 1 ? odd : even;\n"
                "    %s *sorted = number & 1 ? even : odd;\n"
                "    const s64 first = at / (2 * run) * 2 * run, middle = least_of(first + run, %lldll);\n"
                "    const s64 last = least_of(middle + run, %lldll), before = at - first;\n",
                CHUNK, CHUNK, (long long)sort->length, sort->item, sort->item, (long long)sort->length,
                (long long)sort->length);
    text_append_string(
        &body, "    s64 low = greatest_of(before - (last - middle), 0ll);\n"
               "    s64 high = least_of(before, middle - first);\n"
               "    while (low < high) {\n"
               "        const s64 half = (low + high) / 2;\n"
               "        if (precedes(items[middle + before - 1 - half], items[first + half])) high = half;\n"
               "        else low = half + 1;\n"
               "    }\n"
               "    s64 left = first + low, right = middle + before - low;\n"
               "    for (s64 k = at; k < end; k++) {\n"
               "        const bool takes_right =\n"
               "            left == middle || (right < last && precedes(items[right], items[left]));\n"
               "        sorted[k] = items[takes_right ? right++ : left++];\n"
               "    }\n"
               "}\n");
    TRY(cuda_source_launch(source, "sort_merge", &body, cuda_blocks(sort->lines * sort->chunks), CUDA_THREADS,
                           error));
    CudaLaunch *first = &source->launches[source->launch_count - 1];
    first->numbered = true;
    first->number = CHUNK;
    int64_t half = 1;
    for (int64_t run = 2 * CHUNK; run < sort->length; run *= 2, half = 1 - half) {
        CudaLaunch next = source->launches[source->launch_count - 1];
        next.number = run + half;
        TRY(cuda_source_add(source, &next, error));
    }
    return AM_OK;
}

/* Sorts the places of all lines; *half: where they are in the end. */
static AmStatus launch_passes(CudaSource *source, const KernelCall *call, const Sort *sort,
                              CompareWriter *write, int32_t *half, AmError *error) {
    *half = 0;
    source->scratch_bytes = 2 * sort->lines * sort->length * (sort->length <= INT32_MAX ? 4 : 8);
    TRY(launch_insertion(source, call, sort, write, error));
    for (int64_t run = CHUNK; run < sort->length; run *= 2) *half = 1 - *half;
    return sort->length > CHUNK ? launch_merge(source, call, sort, write, error) : AM_OK;
}

static AmStatus write_comparator(Text *out, Arena *arena, const KernelCall *call, AmError *error) {
    ElementComputation comparator;
    Dtype *types = ARENA_ARRAY(arena, Dtype, 2 * call->operand_count + 1);
    if (!types) return am_fail_memory(error, call->operand_count * 8);
    for (int32_t k = 0; k < 2 * call->operand_count; k++) types[k] = call->operand_shapes[k / 2]->type;
    TRY(cuda_computation_read(&comparator, arena, call, call->instruction->compute.called, types,
                              2 * call->operand_count, DTYPE_PRED, error));
    return cuda_append_computation(out, arena, call, "compare", &comparator, error);
}

AmStatus cuda_source_sort(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->operand_shapes[0];
    const IrAttributes *attributes = call->attributes;
    Text body = {0};
    int32_t half;
    if (call->operand_count != call->result_count || attributes->dimension_count != 1)
        return kernel_call_refuse(call, "not with these operands", error);
    Sort sort = describe(shape, attributes->dimensions[0]);
    int64_t elements = sort.lines * sort.length;
    if (elements == 0) {
        AmStatus status = write_comparator(&body, source->arena, call, error);
        text_free(&body);
        return status;
    }
    TRY(launch_passes(source, call, &sort, write_comparator, &half, error));
    cuda_append_signature(&body, call, source, sort.item, false);
    cuda_append_guard(&body, elements);
    cuda_append_coordinate(&body, "outer", 0, elements, sort.length * sort.inner,
                           elements / (sort.length * sort.inner));
    cuda_append_coordinate(&body, "d", 0, elements, sort.inner, sort.length);
    cuda_append_coordinate(&body, "inner", 0, elements, 1, sort.inner);
    text_append(
        &body,
        "    const s64 line = outer0 * %lldll + inner0;\n"
        "    const s64 place = outer0 * %lldll + inner0 + scratch[%lldll + line * %lldll + d0] * %lldll;\n",
        (long long)sort.inner, (long long)(sort.length * sort.inner), (long long)(half ? elements : 0),
        (long long)sort.length, (long long)sort.inner);
    for (int32_t k = 0; k < call->operand_count; k++)
        text_append(&body, "    out%d[i] = in%d[place];\n", k, k);
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, "sort_place", &body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* Writes the order by value; floating types have the total order of their bits. */
static AmStatus write_value_order(Text *out, Arena *arena, const KernelCall *call, AmError *error) {
    (void)arena;
    (void)error;
    Dtype type = call->operand_shapes[0]->type;
    bool is_custom_call = call->instruction->opcode == IR_CUSTOM_CALL; /* "TopK": always the largest */
    const char *name = cuda_value_type(type),
               *sign = is_custom_call || call->attributes->options->largest ? ">" : "<";
    bool ranks = dtype_is_floating(type);
    text_append(
        out,
        "    const auto compare = [](const %s a, const %s b) -> bool {\n        return %s %s %s;\n    };\n",
        name, name, ranks ? "total_order(a)" : "a", sign, ranks ? "total_order(b)" : "b");
    return AM_OK;
}

AmStatus cuda_source_topk(CudaSource *source, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->operand_shapes[0];
    Text body = {0};
    int32_t half;
    if (call->operand_count != 1 || call->result_count != 2 || shape->rank < 1 ||
        !cuda_has_arithmetic(shape->type) || !dtype_is_integer(call->result_shapes[1]->type) ||
        !cuda_has_arithmetic(call->result_shapes[1]->type))
        return kernel_call_refuse(call, "not with these operands", error);
    Sort sort = describe(shape, shape->rank - 1);
    const IrShape *values = call->result_shapes[0], *places = call->result_shapes[1];
    if (values->rank != shape->rank || places->rank != shape->rank || values->type != shape->type ||
        places->dimensions[shape->rank - 1] != values->dimensions[shape->rank - 1] ||
        ir_shape_elements(places) != ir_shape_elements(values))
        return kernel_call_refuse(call, "its results have other sizes", error);
    int64_t kept = values->dimensions[shape->rank - 1], elements = ir_shape_elements(values);
    if (kept > sort.length || elements != kept * sort.lines)
        return kernel_call_refuse(call, "its results have other sizes", error);
    if (elements == 0) return AM_OK;
    TRY(launch_passes(source, call, &sort, write_value_order, &half, error));
    cuda_append_signature(&body, call, source, sort.item, false);
    cuda_append_guard(&body, elements);
    cuda_append_coordinate(&body, "line", 0, elements, kept, sort.lines);
    cuda_append_coordinate(&body, "d", 0, elements, 1, kept);
    text_append(&body,
                "    const s64 place = scratch[%lldll + line0 * %lldll + d0];\n"
                "    out0[i] = in0[line0 * %lldll + place];\n"
                "    out1[i] = (%s)place;\n}\n",
                (long long)(half ? sort.lines * sort.length : 0), (long long)sort.length,
                (long long)sort.length, cuda_memory_type(places->type));
    return cuda_source_launch(source, "topk", &body, cuda_blocks(elements), CUDA_THREADS, error);
}
