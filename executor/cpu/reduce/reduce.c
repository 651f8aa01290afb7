/* reduce: over any dimensions, by one operator or by a whole computation.
 *
 * With a single operator (add, max, ...) floating sums are kept in double. The
 * common types have vectorized folds (vector/fold.c): of dense rows to a result
 * each, or of rows onto COLUMNS neighbouring results; elements of other types
 * are folded as 64-bit scalars, by runs. Any other computation, e.g. the pair (value, index)
 * of an argmax, runs as an element program over ELEMENT_TILE results at a time.
 * The initial value is applied once. The team's members divide the results.
 */
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/element.h"
#include "executor/cpu/team.h"
#include "executor/cpu/vector/vector.h"

enum { MOST_ELEMENT_BYTES = 16, COLUMNS = 256 /* results that are folded side by side */ };

typedef struct ReduceKernel {
    SbpReduction reduction;
    Dtype type;
    Scalar64Kind kind;
    int32_t kept_rank, reduced_rank;
    int64_t kept[IR_MAX_RANK], kept_strides[IR_MAX_RANK];
    int64_t reduced[IR_MAX_RANK], reduced_strides[IR_MAX_RANK];
    int64_t results, reduced_count;
    const VectorFold *fold; /* NULL: folded as Scalar64 */
    ElementLoop *widen;     /* bf16 and f16 to f32 before they are folded; or NULL */
    bool by_columns;        /* the innermost kept dimension is dense and has more than one element */
    int32_t parts;
    ElementProgram *program; /* for a computation */
    int64_t program_at;
} ReduceKernel;

static int64_t offset_of(const int64_t *index, const int64_t *strides, int32_t rank) {
    int64_t at = 0;
    for (int32_t d = 0; d < rank; d++) at += index[d] * strides[d];
    return at;
}

/* Computes one result: folds its runs of the innermost reduced dimension lane by lane, then the lanes. */
static void reduce_runs(const ReduceKernel *kernel, const char *in, Scalar64 *result) {
    Scalar64 lanes[SCALAR64_RUN], run[SCALAR64_RUN];
    int64_t index[IR_MAX_RANK] = {0}, bytes = dtype_bytes(kernel->type), used = 0;
    int32_t inner = kernel->reduced_rank - 1;
    int64_t length = kernel->reduced[inner], stride = kernel->reduced_strides[inner];
    do {
        const char *row = in + offset_of(index, kernel->reduced_strides, inner) * bytes;
        for (int64_t at = 0; at < length; at += SCALAR64_RUN) {
            int64_t n = length - at < SCALAR64_RUN ? length - at : SCALAR64_RUN;
            const char *from = row + at * stride * bytes;
            if (used == 0) {
                scalar64_load(lanes, from, kernel->type, n, stride);
                used = n;
            } else {
                scalar64_load(run, from, kernel->type, n, stride);
                scalar64_fold(lanes, run, kernel->kind, kernel->reduction, n < used ? n : used);
                if (n > used) {
                    memcpy(lanes + used, run + used, sizeof(Scalar64) * (size_t)(n - used));
                    used = n;
                }
            }
        }
    } while (strided_next(index, kernel->reduced, inner));
    for (int64_t half = used / 2; used > 1; used -= half, half = used / 2)
        scalar64_fold(lanes, lanes + used - half, kernel->kind, kernel->reduction, half);
    scalar64_fold(result, lanes, kernel->kind, kernel->reduction, 1);
}

static void run_scalar_rows(const KernelCall *call) {
    const ReduceKernel *kernel = call->compiled;
    int64_t index[IR_MAX_RANK] = {0}, bytes = dtype_bytes(kernel->type);
    Scalar64 initial;
    scalar64_load(&initial, call->operands[1], kernel->type, 1, 1);
    char *out = call->results[0];
    for (int64_t i = 0; i < kernel->results; i++) {
        const char *in = (const char *)call->operands[0] +
                         offset_of(index, kernel->kept_strides, kernel->kept_rank) * bytes;
        Scalar64 result = initial;
        if (kernel->reduced_count > 0) reduce_runs(kernel, in, &result);
        scalar64_store(out + i * bytes, kernel->type, &result, kernel->kind, 1, 1);
        strided_next(index, kernel->kept, kernel->kept_rank);
    }
}

/* Folds `rows` dense rows, `stride` elements apart, onto an accumulator each; 16-bit floats by groups of
 * f32. */
static void fold_rows(const ReduceKernel *kernel, void *accumulators, const char *in, int64_t stride,
                      int64_t rows, int64_t length) {
    float singles[SCALAR64_RUN];
    int64_t bytes = dtype_bytes(kernel->type);
    if (!kernel->widen) {
        kernel->fold->rows(accumulators, in, stride, rows, length);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < length; at += SCALAR64_RUN) {
            int64_t n = length - at < SCALAR64_RUN ? length - at : SCALAR64_RUN;
            kernel->widen(singles, in + (r * stride + at) * bytes, NULL, NULL, n, NULL, NULL);
            kernel->fold->rows((char *)accumulators + r * kernel->fold->bytes, singles, 0, 1, n);
        }
}

/* Folds `rows` rows of `width` dense elements onto as many accumulators. */
static void fold_columns(const ReduceKernel *kernel, void *accumulators, const char *in, int64_t stride,
                         int64_t rows, int64_t width) {
    float singles[COLUMNS];
    if (!kernel->widen) {
        kernel->fold->columns(accumulators, in, stride, rows, width);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        kernel->widen(singles, in + r * stride * dtype_bytes(kernel->type), NULL, NULL, width, NULL, NULL);
        kernel->fold->columns(accumulators, singles, 0, 1, width);
    }
}

/* Results [first, end): COLUMNS at a time, a stretch of the innermost kept dimension. That is dense
 * (by_columns), or the innermost reduced one is. */
void cpu_reduce_run(const KernelCall *call, int64_t first, int64_t end) {
    const ReduceKernel *kernel = call->compiled;
    int64_t bytes = dtype_bytes(kernel->type), count, kept_index[IR_MAX_RANK] = {0};
    int32_t last = kernel->kept_rank - 1, inner = kernel->reduced_rank - 1;
    int64_t kept_stride = kernel->kept_strides[last], length = kernel->reduced[inner];
    Scalar64 initial, results[COLUMNS];
    double accumulators[COLUMNS];
    scalar64_load(&initial, call->operands[1], kernel->type, 1, 1);
    if (first == end) return;
    int64_t at = first;
    for (int32_t d = last; d >= 0; at /= kernel->kept[d], d--) kept_index[d] = at % kernel->kept[d];
    for (; first < end; first += count) {
        int64_t index[IR_MAX_RANK] = {0};
        count = kernel->kept[last] - kept_index[last];
        if (count > end - first) count = end - first;
        if (count > COLUMNS) count = COLUMNS;
        const char *in = (const char *)call->operands[0] +
                         offset_of(kept_index, kernel->kept_strides, kernel->kept_rank) * bytes;
        kernel->fold->begin(accumulators, &initial, count);
        if (kernel->reduced_count > 0) do {
                const char *from = in + offset_of(index, kernel->reduced_strides, inner) * bytes;
                if (kernel->by_columns)
                    fold_columns(kernel, accumulators, from, kernel->reduced_strides[inner], length, count);
                else fold_rows(kernel, accumulators, from, kept_stride, count, length);
            } while (strided_next(index, kernel->reduced, inner));
        kernel->fold->finish(results, accumulators, count);
        scalar64_store((char *)call->results[0] + first * bytes, kernel->type, results, kernel->kind, count,
                       1);
        kept_index[last] += count;
        if (kept_index[last] < kernel->kept[last]) continue;
        kept_index[last] = 0;
        strided_next(kept_index, kernel->kept, last);
    }
}

static void run_dense(void *user, int32_t part, int32_t parts) {
    const KernelCall *call = user;
    const ReduceKernel *kernel = call->compiled;
    int64_t first, end;
    team_stretch(kernel->results, kernel->by_columns ? 16 : 1, part, parts, &first, &end);
    cpu_reduce_run(call, first, end);
}

static void run_in_parts(const KernelCall *call) {
    const ReduceKernel *kernel = call->compiled;
    team_run(call->device, run_dense, (void *)call, kernel->parts);
}

bool cpu_reduce_has_ranges(const KernelCall *call) {
    return call->run == run_in_parts;
}

/* Folds neighbouring results together, as the innermost kept dimension is dense. */
static void run_scalar_columns(const KernelCall *call) {
    const ReduceKernel *kernel = call->compiled;
    int64_t outer[IR_MAX_RANK] = {0}, bytes = dtype_bytes(kernel->type);
    int32_t inner = kernel->kept_rank - 1;
    int64_t width = kernel->kept[inner];
    Scalar64 initial, sums[SCALAR64_RUN], run[SCALAR64_RUN];
    scalar64_load(&initial, call->operands[1], kernel->type, 1, 1);
    char *out = call->results[0];
    for (int64_t done = 0; done < kernel->results; done += width) {
        const char *base =
            (const char *)call->operands[0] + offset_of(outer, kernel->kept_strides, inner) * bytes;
        for (int64_t at = 0; at < width; at += SCALAR64_RUN) {
            int64_t n = width - at < SCALAR64_RUN ? width - at : SCALAR64_RUN, index[IR_MAX_RANK] = {0};
            for (int64_t i = 0; i < n; i++) sums[i] = initial;
            if (kernel->reduced_count > 0) do {
                    int64_t offset = offset_of(index, kernel->reduced_strides, kernel->reduced_rank) + at;
                    scalar64_load(run, base + offset * bytes, kernel->type, n, 1);
                    scalar64_fold(sums, run, kernel->kind, kernel->reduction, n);
                } while (strided_next(index, kernel->reduced, kernel->reduced_rank));
            scalar64_store(out + (done + at) * bytes, kernel->type, sums, kernel->kind, n, 1);
        }
        strided_next(outer, kernel->kept, inner);
    }
}

/* Folds by any computation: inputs (accumulators, elements), outputs the new accumulators. */
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
                                         call->instruction->compute.called, error));
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
    const IrAttributes *attributes = call->attributes;
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
    kernel->reduction = call->operand_count == 2
                            ? sbp_reduction_of(ir_computation_operator(call->program->module,
                                                                       call->instruction->compute.called))
                            : SBP_REDUCTION_COUNT;
    if (kernel->reduction == SBP_REDUCTION_COUNT || !scalar64_supports(kernel->type))
        return prepare_computation(call, kernel, arena, error);
    kernel->kind = scalar64_kind(kernel->type);
    kernel->by_columns = kernel->kept_rank > 0 && kernel->kept_strides[kernel->kept_rank - 1] == 1 &&
                         kernel->kept[kernel->kept_rank - 1] > 1;
    if (kernel->reduced_rank == 0) { /* all reduced dimensions have size 1 */
        kernel->reduced_rank = 1;
        kernel->reduced[0] = kernel->reduced_count;
        kernel->reduced_strides[0] = 1;
    }
    call->run = kernel->by_columns ? run_scalar_columns : run_scalar_rows;
    bool is_16bit = dtype_is_16bit_float(kernel->type);
    kernel->fold = vector_loops()->fold(kernel->reduction, is_16bit ? DTYPE_F32 : kernel->type);
    bool is_dense = kernel->by_columns || kernel->reduced_strides[kernel->reduced_rank - 1] == 1;
    if (!kernel->fold || !is_dense) return AM_OK;
    if (is_16bit) kernel->widen = vector_loops()->convert(kernel->type, DTYPE_F32);
    if (kernel->kept_rank == 0) kernel->kept[kernel->kept_rank++] = 1;
    kernel->parts = team_parts(call->device, 0.2 * (double)ir_shape_elements(operand));
    if (kernel->parts > kernel->results) kernel->parts = 1;
    call->run = run_in_parts;
    return AM_OK;
}
