/* reduce: over any dimensions, by one operator or by a whole computation.
 *
 * With a single operator (add, max, ...) runs of elements are folded wide, that
 * is floating sums in double: along the reduced dimension where that is the
 * innermost one, else for WIDE_RUN neighbouring results at a time. Any other
 * computation, e.g. the pair (value, index) of an argmax, runs as an element
 * program over ELEMENT_TILE results at a time. The initial value is applied
 * once.
 */
#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

enum { MOST_ELEMENT_BYTES = 16 };

typedef struct ReduceKernel {
    SbpReduction reduction;
    Dtype type;
    WideKind kind;
    int32_t kept_rank, reduced_rank;
    int64_t kept[IR_MAX_RANK], kept_strides[IR_MAX_RANK];
    int64_t reduced[IR_MAX_RANK], reduced_strides[IR_MAX_RANK];
    int64_t results, reduced_count;
    ElementProgram *program; /* for a computation */
    int64_t program_at;
} ReduceKernel;

static int64_t offset_of(const int64_t *index, const int64_t *strides, int32_t rank) {
    int64_t at = 0;
    for (int32_t d = 0; d < rank; d++) at += index[d] * strides[d];
    return at;
}

/* One result: folds its runs of the innermost reduced dimension lane by lane, then the lanes. */
static void reduce_runs(const ReduceKernel *kernel, const char *in, Wide *result) {
    Wide lanes[WIDE_RUN], run[WIDE_RUN];
    int64_t index[IR_MAX_RANK] = {0}, bytes = dtype_bytes(kernel->type), used = 0;
    int32_t inner = kernel->reduced_rank - 1;
    int64_t length = kernel->reduced[inner], stride = kernel->reduced_strides[inner];
    do {
        const char *row = in + offset_of(index, kernel->reduced_strides, inner) * bytes;
        for (int64_t at = 0; at < length; at += WIDE_RUN) {
            int64_t n = length - at < WIDE_RUN ? length - at : WIDE_RUN;
            const char *from = row + at * stride * bytes;
            if (used == 0) {
                wide_load(lanes, from, kernel->type, n, stride);
                used = n;
            } else {
                wide_load(run, from, kernel->type, n, stride);
                wide_fold(lanes, run, kernel->kind, kernel->reduction, n < used ? n : used);
                if (n > used) {
                    memcpy(lanes + used, run + used, sizeof(Wide) * (size_t)(n - used));
                    used = n;
                }
            }
        }
    } while (strided_next(index, kernel->reduced, inner));
    for (int64_t half = used / 2; used > 1; used -= half, half = used / 2)
        wide_fold(lanes, lanes + used - half, kernel->kind, kernel->reduction, half);
    wide_fold(result, lanes, kernel->kind, kernel->reduction, 1);
}

/* Sum of a dense run of f32, in double; eight sums side by side. */
static double sum_run(const float *run, int64_t count) {
    double sums[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int64_t k = 0; k < 8; k++) sums[k] += run[i + k];
    for (; i < count; i++) sums[i % 8] += run[i];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* The common case, sums of dense f32 rows: as reduce_runs(), without the detour. */
static void sum_runs(const ReduceKernel *kernel, const char *in, Wide *result) {
    int64_t index[IR_MAX_RANK] = {0};
    int32_t inner = kernel->reduced_rank - 1;
    do {
        int64_t at = offset_of(index, kernel->reduced_strides, inner);
        result->floating += sum_run((const float *)in + at, kernel->reduced[inner]);
    } while (strided_next(index, kernel->reduced, inner));
}

static void run_by_rows(const KernelCall *call) {
    const ReduceKernel *kernel = call->compiled;
    int64_t index[IR_MAX_RANK] = {0}, bytes = dtype_bytes(kernel->type);
    Wide initial;
    bool sums = kernel->type == DTYPE_F32 && kernel->reduction == SBP_ADD &&
                kernel->reduced_strides[kernel->reduced_rank - 1] == 1;
    wide_load(&initial, call->operands[1], kernel->type, 1, 1);
    char *out = call->results[0];
    for (int64_t i = 0; i < kernel->results; i++) {
        const char *in = (const char *)call->operands[0] +
                         offset_of(index, kernel->kept_strides, kernel->kept_rank) * bytes;
        Wide result = initial;
        if (kernel->reduced_count > 0) (sums ? sum_runs : reduce_runs)(kernel, in, &result);
        wide_store(out + i * bytes, kernel->type, &result, kernel->kind, 1, 1);
        strided_next(index, kernel->kept, kernel->kept_rank);
    }
}

/* The innermost kept dimension is dense: neighbouring results are folded together. */
static void run_by_columns(const KernelCall *call) {
    const ReduceKernel *kernel = call->compiled;
    int64_t outer[IR_MAX_RANK] = {0}, bytes = dtype_bytes(kernel->type);
    int32_t inner = kernel->kept_rank - 1;
    int64_t width = kernel->kept[inner];
    Wide initial, sums[WIDE_RUN], run[WIDE_RUN];
    wide_load(&initial, call->operands[1], kernel->type, 1, 1);
    char *out = call->results[0];
    for (int64_t done = 0; done < kernel->results; done += width) {
        const char *base =
            (const char *)call->operands[0] + offset_of(outer, kernel->kept_strides, inner) * bytes;
        for (int64_t at = 0; at < width; at += WIDE_RUN) {
            int64_t n = width - at < WIDE_RUN ? width - at : WIDE_RUN, index[IR_MAX_RANK] = {0};
            for (int64_t i = 0; i < n; i++) sums[i] = initial;
            if (kernel->reduced_count > 0) do {
                    int64_t offset = offset_of(index, kernel->reduced_strides, kernel->reduced_rank) + at;
                    wide_load(run, base + offset * bytes, kernel->type, n, 1);
                    wide_fold(sums, run, kernel->kind, kernel->reduction, n);
                } while (strided_next(index, kernel->reduced, kernel->reduced_rank));
            wide_store(out + (done + at) * bytes, kernel->type, sums, kernel->kind, n, 1);
        }
        strided_next(outer, kernel->kept, inner);
    }
}

/* Any computation: inputs (accumulators, elements), outputs the new accumulators. */
static void run_by_computation(const KernelCall *call) {
    const ReduceKernel *kernel = call->compiled;
    int32_t inputs = call->result_count;
    char *scratch = call->scratch, *work = scratch + kernel->program_at;
    const void **tiles = (const void **)scratch;
    void **outputs = (void **)(tiles + 2 * inputs);
    char *elements = scratch + kernel_align((int64_t)sizeof(void *) * 3 * inputs);
    element_program_begin(kernel->program, ELEMENT_TILE, work);
    for (int64_t first = 0; first < kernel->results; first += ELEMENT_TILE) {
        int64_t n = kernel->results - first < ELEMENT_TILE ? kernel->results - first : ELEMENT_TILE;
        int64_t index[IR_MAX_RANK] = {0};
        for (int32_t k = 0; k < inputs; k++) {
            int64_t bytes = dtype_bytes(call->result_shapes[k]->type);
            outputs[k] = (char *)call->results[k] + first * bytes;
            tiles[k] = outputs[k];
            tiles[inputs + k] = elements + (int64_t)k * ELEMENT_TILE * MOST_ELEMENT_BYTES;
            strided_fill(outputs[k], call->operands[inputs + k], n, bytes);
        }
        if (kernel->reduced_count == 0) continue;
        do {
            int64_t at = offset_of(index, kernel->reduced_strides, kernel->reduced_rank);
            for (int32_t k = 0; k < inputs; k++) {
                int64_t bytes = dtype_bytes(call->operand_shapes[k]->type);
                strided_load((void *)tiles[inputs + k], (const char *)call->operands[k] + at * bytes,
                             kernel->kept_strides, kernel->kept, kernel->kept_rank, first, n, bytes);
            }
            element_program_run(kernel->program, tiles, outputs, n, NULL, work);
        } while (strided_next(index, kernel->reduced, kernel->reduced_rank));
    }
}

static AmStatus prepare_computation(KernelCall *call, ReduceKernel *kernel, Arena *arena, AmError *error) {
    int32_t inputs = call->result_count;
    TRY(element_program_from_computation(&kernel->program, arena, call->program->module,
                                         call->instruction->called, error));
    if (element_program_inputs(kernel->program) != 2 * inputs ||
        element_program_outputs(kernel->program) != inputs)
        return kernel_call_refuse(call, "its computation has other operands", error);
    for (int32_t k = 0; k < inputs; k++)
        if (element_program_output_type(kernel->program, k) != call->result_shapes[k]->type ||
            element_program_input_type(kernel->program, k) != call->result_shapes[k]->type ||
            element_program_input_type(kernel->program, inputs + k) != call->operand_shapes[k]->type)
            return kernel_call_refuse(call, "its computation has other types", error);
    kernel->program_at = kernel_align((int64_t)sizeof(void *) * 3 * inputs) +
                         (int64_t)inputs * ELEMENT_TILE * MOST_ELEMENT_BYTES;
    call->scratch_bytes = kernel->program_at + element_program_scratch(kernel->program);
    call->run = run_by_computation;
    return AM_OK;
}

AmStatus cpu_prepare_reduce(KernelCall *call, Arena *arena, AmError *error) {
    const IrAttributes *attributes = call->instruction->attributes;
    const IrShape *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK];
    bool is_reduced[IR_MAX_RANK] = {false};
    ReduceKernel *kernel = ARENA_ARRAY(arena, ReduceKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t k = 0; k < attributes->dimension_count; k++) is_reduced[attributes->dimensions[k]] = true;
    for (int32_t d = 0; d < operand->rank; d++) {
        int32_t *rank = is_reduced[d] ? &kernel->reduced_rank : &kernel->kept_rank;
        (is_reduced[d] ? kernel->reduced : kernel->kept)[*rank] = operand->dimensions[d];
        (is_reduced[d] ? kernel->reduced_strides : kernel->kept_strides)[(*rank)++] = strides[d];
    }
    kernel->results = strided_elements(kernel->kept, kernel->kept_rank);
    kernel->reduced_count = strided_elements(kernel->reduced, kernel->reduced_rank);
    kernel->kept_rank = strided_coalesce(kernel->kept, kernel->kept_strides, NULL, kernel->kept_rank);
    kernel->reduced_rank =
        strided_coalesce(kernel->reduced, kernel->reduced_strides, NULL, kernel->reduced_rank);
    call->compiled = kernel;
    kernel->type = operand->type;
    kernel->reduction =
        call->operand_count == 2
            ? sbp_reduction_of(ir_computation_operator(call->program->module, call->instruction->called))
            : SBP_REDUCTION_COUNT;
    if (kernel->reduction == SBP_REDUCTION_COUNT || !wide_supports(kernel->type))
        return prepare_computation(call, kernel, arena, error);
    kernel->kind = wide_kind(kernel->type);
    bool columns = kernel->kept_rank > 0 && kernel->kept_strides[kernel->kept_rank - 1] == 1 &&
                   kernel->kept[kernel->kept_rank - 1] > 1;
    if (kernel->reduced_rank == 0) { /* all reduced dimensions have size 1 */
        kernel->reduced_rank = 1;
        kernel->reduced[0] = kernel->reduced_count;
        kernel->reduced_strides[0] = 1;
    }
    call->run = columns ? run_by_columns : run_by_rows;
    return AM_OK;
}
