/* Reductions: a block folds the elements of one result, or of 32 neighbours.
 *
 * With a single operator (add, max, ...) a block of threads is a table of
 * `columns` results by `lanes`: every lane folds its part of the reduced
 * elements, then the lanes are folded in shared memory, halving each time, and
 * the initial value is applied once. Where the innermost dimension is kept
 * there are 32 columns, so that neighbouring threads read neighbouring
 * elements; else there is one. Folding is in f64 or 64-bit integers as on the
 * CPU, in an order that depends on the shapes alone. Any other computation, as
 * that of an argmax, is folded by one thread per result in the CPU's order.
 */
#include <stdio.h>
#include <string.h>

#include "executor/cpu/element.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"
#include "executor/cuda/source_text.h"

enum { COLUMNS = 32, LEAST_THREADS = 32 };

/* Kept and reduced dimensions of the operand, neighbours joined. */
typedef struct Reduction {
    int32_t kept_rank, reduced_rank;
    int64_t kept[IR_MAX_RANK], kept_strides[IR_MAX_RANK], results;
    int64_t reduced[IR_MAX_RANK], reduced_strides[IR_MAX_RANK], reduced_count;
    const char *index, *suffix; /* C type of indices and suffix of its literals */
} Reduction;

static void describe(Reduction *self, const KernelCall *call) {
    const IrAttributes *attributes = call->instruction->attributes;
    const IrShape *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK];
    bool is_reduced[IR_MAX_RANK] = {false};
    memset(self, 0, sizeof *self);
    strided_row_major(strides, operand->dimensions, operand->rank);
    for (int32_t k = 0; k < attributes->dimension_count; k++) is_reduced[attributes->dimensions[k]] = true;
    for (int32_t d = 0; d < operand->rank; d++) {
        int32_t *rank = is_reduced[d] ? &self->reduced_rank : &self->kept_rank;
        (is_reduced[d] ? self->reduced : self->kept)[*rank] = operand->dimensions[d];
        (is_reduced[d] ? self->reduced_strides : self->kept_strides)[(*rank)++] = strides[d];
    }
    self->results = strided_elements(self->kept, self->kept_rank);
    self->reduced_count = strided_elements(self->reduced, self->reduced_rank);
    self->kept_rank = strided_coalesce(self->kept, self->kept_strides, NULL, self->kept_rank);
    self->reduced_rank = strided_coalesce(self->reduced, self->reduced_strides, NULL, self->reduced_rank);
    int64_t most = ir_shape_elements(operand) > self->results ? ir_shape_elements(operand) : self->results;
    bool narrow = most < INT32_MAX - CUDA_THREADS * (int64_t)COLUMNS;
    self->index = narrow ? "u32" : "s64";
    self->suffix = narrow ? "u" : "ll";
}

/* The offset of element number `number` of a box: its indices times the strides. */
static void append_offset(Text *out, const Reduction *self, const char *number, const int64_t *dimensions,
                          const int64_t *strides, int32_t rank) {
    int64_t inner = strided_elements(dimensions, rank);
    if (rank == 0) text_append_string(out, "0");
    for (int32_t d = 0; d < rank; d++) {
        inner /= dimensions[d] > 0 ? dimensions[d] : 1; /* 0: the text is never run */
        text_append(out, "%s%s", d > 0 ? " + " : "", number);
        if (inner != 1) text_append(out, " / %lld%s", (long long)inner, self->suffix);
        if (d > 0) text_append(out, " %% %lld%s", (long long)dimensions[d], self->suffix);
        if (strides[d] != 1) text_append(out, " * %lld%s", (long long)strides[d], self->suffix);
    }
}

static void append_base(Text *out, const Reduction *self, const char *result) {
    text_append(out, "const %s base = ", self->index);
    append_offset(out, self, result, self->kept, self->kept_strides, self->kept_rank);
    text_append_string(out, ";\n");
}

/* Operand `k` at element `number` of the reduced dimensions, as it is in registers. */
static void append_element(Text *out, const Reduction *self, Dtype type, int32_t k, const char *number) {
    Text place = {0};
    text_append(&place, "in%d[base + ", k);
    append_offset(&place, self, number, self->reduced, self->reduced_strides, self->reduced_rank);
    text_append_string(&place, "]");
    cuda_append_load(out, type, place.failed ? "" : place.data);
    out->failed = out->failed || place.failed;
    text_free(&place);
}

/* `a` op `b` in the wide type. Sums and products of integers wrap. */
static void append_fold(Text *out, SbpReduction reduction, WideKind kind, const char *a, const char *b) {
    static const struct {
        SbpReduction reduction;
        const char *floating, *integer;
    } rows[] = {
        {SBP_ADD, "%s + %s", "(Wide)((u64)%s + (u64)%s)"},
        {SBP_MULTIPLY, "%s * %s", "(Wide)((u64)%s * (u64)%s)"},
        {SBP_MAX, "greatest_of(%s, %s)", "greatest_of(%s, %s)"},
        {SBP_MIN, "least_of(%s, %s)", "least_of(%s, %s)"},
        {SBP_AND, "(Wide)(%s != 0 && %s != 0)", "%s & %s"},
        {SBP_OR, "(Wide)(%s != 0 || %s != 0)", "%s | %s"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (rows[k].reduction != reduction) continue;
        const char *c = kind == WIDE_FLOATING ? rows[k].floating : rows[k].integer;
        for (bool first = true; *c; c++) {
            if (c[0] != '%') {
                text_append_bytes(out, c, 1);
                continue;
            }
            text_append_string(out, first ? a : b);
            first = false;
            c++;
        }
    }
}

static void append_result(Text *out, Dtype type, WideKind kind, const char *value) {
    static const Dtype wide_types[] = {DTYPE_F64, DTYPE_S64, DTYPE_U64};
    Text converted = {0};
    cuda_append_convert(&converted, wide_types[kind], type, value);
    cuda_append_store(out, type, converted.failed ? "" : converted.data);
    out->failed = out->failed || converted.failed;
    text_free(&converted);
}

/* The lanes of a block, folded into out0: what both shapes of block share. */
static void append_folds(Text *out, const Reduction *self, SbpReduction reduction, Dtype type, int32_t lanes,
                         int32_t columns) {
    WideKind kind = wide_kind(type);
    const char *suffix = self->suffix;
    long long count = (long long)self->reduced_count;
    int32_t active = count < lanes ? (int32_t)count : lanes;
    text_append(out, "    Wide value = 0;\n    if (result < %lld%s && lane < %d) {\n        ",
                (long long)self->results, suffix, active);
    append_base(out, self, "result");
    text_append_string(out, "        value = (Wide)");
    append_element(out, self, type, 0, "lane");
    text_append_string(out, ";\n");
    if (count > lanes) {
        text_append(out, "        for (%s k = lane + %d; k < %lld%s; k += %d) {\n", self->index, lanes, count,
                    suffix, lanes);
        text_append_string(out, "            const Wide next = (Wide)");
        append_element(out, self, type, 0, "k");
        text_append_string(out, ";\n            value = ");
        append_fold(out, reduction, kind, "value", "next");
        text_append_string(out, ";\n        }\n");
    }
    text_append_string(out, "    }\n    partial[t] = value;\n    __syncthreads();\n");
    text_append(out, "    for (u32 half = %d; half > 0; half /= 2) {\n", lanes / 2);
    text_append(out, "        if (lane < half && lane + half < %d) partial[t] = ", active);
    append_fold(out, reduction, kind, "partial[t]",
                columns == 1 ? "partial[t + half]" : "partial[t + half * 32]");
    text_append_string(out, ";\n        __syncthreads();\n    }\n");
    text_append(out, "    if (lane > 0 || result >= %lld%s) return;\n    const Wide initial = (Wide)",
                (long long)self->results, suffix);
    cuda_append_load(out, type, "in1[0]");
    text_append_string(out, ", sum = ");
    append_fold(out, reduction, kind, "initial", "partial[t]");
    text_append_string(out, ";\n    out0[result] = ");
    append_result(out, type, kind, "sum");
    text_append_string(out, ";\n}\n");
}

static AmStatus write_by_operator(CudaSource *source, Arena *arena, const Reduction *self,
                                  const KernelCall *call, SbpReduction reduction, Dtype type,
                                  AmError *error) {
    static const char *const wide_names[] = {"f64", "s64", "u64"};
    bool by_columns = self->kept_rank > 0 && self->kept_strides[self->kept_rank - 1] == 1;
    int32_t columns = by_columns ? COLUMNS : 1, lanes = by_columns ? CUDA_THREADS / COLUMNS : LEAST_THREADS;
    while (!by_columns && lanes < CUDA_THREADS && lanes < self->reduced_count) lanes *= 2;
    Text body = {0};
    int64_t blocks = self->results / columns + (self->results % columns > 0);
    int32_t threads = lanes * columns;
    cuda_append_signature(&body, call, source, NULL, false);
    text_append(&body, "    typedef %s Wide;\n    __shared__ Wide partial[%d];\n",
                wide_names[wide_kind(type)], threads);
    if (by_columns)
        text_append(&body,
                    "    const u32 t = threadIdx.x, lane = t / %d;\n"
                    "    const %s result = (%s)blockIdx.x * %d + t %% %d;\n",
                    COLUMNS, self->index, self->index, COLUMNS, COLUMNS);
    else
        text_append(&body, "    const u32 t = threadIdx.x, lane = t;\n    const %s result = blockIdx.x;\n",
                    self->index);
    append_folds(&body, self, reduction, type, lanes, columns);
    return cuda_source_launch(source, arena, "reduce", &body, blocks, threads, error);
}

/* The loop over the reduced elements: values v0.. are the accumulators, then the elements. */
static bool append_loop(Text *out, const Reduction *self, const ElementComputation *body, Dtype *types) {
    int32_t count = body->output_count;
    text_append(out, "    for (%s k = 0; k < %lld%s; k++) {\n", self->index, (long long)self->reduced_count,
                self->suffix);
    for (int32_t slot = 0; slot < 2 * count; slot++) {
        types[slot] = body->input_types[slot];
        text_append(out, "        const %s v%d = ", cuda_value_type(types[slot]), slot);
        if (slot < count) text_append(out, "sum%d", slot);
        else append_element(out, self, types[slot], slot - count, "k");
        text_append_string(out, ";\n");
    }
    for (int32_t k = 0; k < body->op_count; k++) {
        text_append_string(out, "        ");
        if (!cuda_append_operator(out, &body->ops[k], 2 * count + k, types, NULL)) return false;
    }
    for (int32_t k = 0; k < count; k++) text_append(out, "        sum%d = v%d;\n", k, body->output_slots[k]);
    text_append_string(out, "    }\n");
    return true;
}

static bool fits(const ElementComputation *body, const KernelCall *call) {
    int32_t count = call->result_count;
    if (body->input_count != 2 * count || body->output_count != count || call->operand_count != 2 * count)
        return false;
    for (int32_t k = 0; k < count; k++) {
        Dtype type = call->result_shapes[k]->type;
        if (!cuda_has_arithmetic(type) || body->input_types[k] != type ||
            body->input_types[count + k] != call->operand_shapes[k]->type ||
            call->operand_shapes[count + k]->type != type)
            return false;
    }
    return true;
}

static AmStatus write_by_computation(CudaSource *source, Arena *arena, const Reduction *self,
                                     const KernelCall *call, AmError *error) {
    ElementComputation computation;
    Text body = {0};
    TRY(element_computation_read(&computation, arena, call->program->module, call->instruction->called,
                                 error));
    if (!fits(&computation, call))
        return cuda_source_refuse(call, "its computation has other operands", error);
    int32_t count = call->result_count;
    Dtype *types = ARENA_ARRAY(arena, Dtype, computation.input_count + computation.op_count + 1);
    if (!types) return am_fail_memory(error, computation.op_count * 4);
    cuda_append_signature(&body, call, source, NULL, false);
    text_append(&body, "    const %s result = (%s)blockIdx.x * %d + threadIdx.x;\n", self->index, self->index,
                CUDA_THREADS);
    text_append(&body, "    if (result >= %lld%s) return;\n    ", (long long)self->results, self->suffix);
    append_base(&body, self, "result");
    for (int32_t k = 0; k < count; k++) {
        char initial[32];
        snprintf(initial, sizeof initial, "in%d[0]", count + k);
        text_append(&body, "    %s sum%d = ", cuda_value_type(computation.input_types[k]), k);
        cuda_append_load(&body, computation.input_types[k], initial);
        text_append_string(&body, ";\n");
    }
    if (!append_loop(&body, self, &computation, types)) {
        text_free(&body);
        return cuda_source_refuse(call, "its computation has an operator without a kernel", error);
    }
    for (int32_t k = 0; k < count; k++) {
        char value[32];
        snprintf(value, sizeof value, "sum%d", k);
        text_append(&body, "    out%d[result] = ", k);
        cuda_append_store(&body, computation.input_types[k], value);
        text_append_string(&body, ";\n");
    }
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, arena, "fold", &body, cuda_blocks(self->results), CUDA_THREADS, error);
}

AmStatus cuda_source_reduce(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error) {
    Reduction self;
    describe(&self, call);
    Dtype type = call->operand_shapes[0]->type;
    SbpReduction reduction =
        call->operand_count == 2
            ? sbp_reduction_of(ir_computation_operator(call->program->module, call->instruction->called))
            : SBP_REDUCTION_COUNT;
    /* Nothing to reduce: a fold over no elements gives the initial value. */
    bool by_operator = reduction != SBP_REDUCTION_COUNT && wide_supports(type) && self.reduced_count > 0;
    return by_operator ? write_by_operator(source, arena, &self, call, reduction, type, error)
                       : write_by_computation(source, arena, &self, call, error);
}
