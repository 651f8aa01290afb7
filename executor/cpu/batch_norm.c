/* Batch normalization: training, inference and gradient.
 *
 * Over all dimensions but the feature's, N elements per feature, in double:
 *   training:  mean m and variance v = mean((x - m)^2); y = scale (x - m) r + offset
 *   inference: the same with the m and v that are given
 *   gradient:  with x' = (x - m) r and the output's gradient g,
 *              d offset = sum g, d scale = sum g x',
 *              d x = scale r (g - d offset / N - x' d scale / N)
 * where r = 1 / sqrt(v + epsilon) (Ioffe and Szegedy, "Batch Normalization", ICML 2015).
 * Operands: (x, scale, offset), (x, scale, offset, m, v), (x, scale, m, v, g).
 * Results: (y, m, v), y, (d x, d scale, d offset).
 */
#include <math.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

/* x as [outer, features, inner]. */
typedef struct BatchNormKernel {
    int64_t outer, features, inner;
    Dtype type;
    double epsilon;
} BatchNormKernel;

static double read(const void *data, Dtype type, int64_t at) {
    Wide value;
    wide_load(&value, (const char *)data + at * dtype_bytes(type), type, 1, 1);
    return value.floating;
}

static void write(void *data, Dtype type, int64_t at, double number) {
    Wide value = {.floating = number};
    wide_store((char *)data + at * dtype_bytes(type), type, &value, WIDE_FLOATING, 1, 1);
}

static int64_t row_start(const BatchNormKernel *kernel, int64_t outer, int64_t feature) {
    return (outer * kernel->features + feature) * kernel->inner;
}

/* y = x * factor + term for one feature. */
static void scale_feature(const BatchNormKernel *kernel, const KernelCall *call, int64_t feature,
                          double factor, double term) {
    Wide run[WIDE_RUN];
    int64_t bytes = dtype_bytes(kernel->type);
    for (int64_t o = 0; o < kernel->outer; o++)
        for (int64_t i = 0; i < kernel->inner; i += WIDE_RUN) {
            int64_t n = kernel->inner - i < WIDE_RUN ? kernel->inner - i : WIDE_RUN;
            int64_t at = (row_start(kernel, o, feature) + i) * bytes;
            wide_load(run, (const char *)call->operands[0] + at, kernel->type, n, 1);
            for (int64_t k = 0; k < n; k++) run[k].floating = run[k].floating * factor + term;
            wide_store((char *)call->results[0] + at, kernel->type, run, WIDE_FLOATING, n, 1);
        }
}

/* Sum over one feature of (x - mean)^power times g, where there is a g. */
static double sum_feature(const BatchNormKernel *kernel, const void *x, const void *g, int64_t feature,
                          double mean, int32_t power) {
    Wide run[WIDE_RUN], gradient[WIDE_RUN];
    int64_t bytes = dtype_bytes(kernel->type);
    double sum = 0;
    for (int64_t o = 0; o < kernel->outer; o++)
        for (int64_t i = 0; i < kernel->inner; i += WIDE_RUN) {
            int64_t n = kernel->inner - i < WIDE_RUN ? kernel->inner - i : WIDE_RUN;
            int64_t at = (row_start(kernel, o, feature) + i) * bytes;
            wide_load(run, (const char *)x + at, kernel->type, n, 1);
            if (g) wide_load(gradient, (const char *)g + at, kernel->type, n, 1);
            for (int64_t k = 0; k < n; k++) {
                double centred = run[k].floating - mean, term = g ? gradient[k].floating : 1;
                for (int32_t p = 0; p < power; p++) term *= centred;
                sum += term;
            }
        }
    return sum;
}

static double count_of(const BatchNormKernel *kernel) {
    return (double)(kernel->outer * kernel->inner);
}

static void run_training(const KernelCall *call) {
    const BatchNormKernel *kernel = call->compiled;
    for (int64_t f = 0; f < kernel->features; f++) {
        double mean = sum_feature(kernel, call->operands[0], NULL, f, 0, 1) / count_of(kernel);
        double variance = sum_feature(kernel, call->operands[0], NULL, f, mean, 2) / count_of(kernel);
        double factor = read(call->operands[1], kernel->type, f) / sqrt(variance + kernel->epsilon);
        scale_feature(kernel, call, f, factor, read(call->operands[2], kernel->type, f) - mean * factor);
        write(call->results[1], kernel->type, f, mean);
        write(call->results[2], kernel->type, f, variance);
    }
}

static void run_inference(const KernelCall *call) {
    const BatchNormKernel *kernel = call->compiled;
    for (int64_t f = 0; f < kernel->features; f++) {
        double mean = read(call->operands[3], kernel->type, f);
        double variance = read(call->operands[4], kernel->type, f);
        double factor = read(call->operands[1], kernel->type, f) / sqrt(variance + kernel->epsilon);
        scale_feature(kernel, call, f, factor, read(call->operands[2], kernel->type, f) - mean * factor);
    }
}

static void run_gradient(const KernelCall *call) {
    const BatchNormKernel *kernel = call->compiled;
    const void *x = call->operands[0], *g = call->operands[4];
    for (int64_t f = 0; f < kernel->features; f++) {
        double mean = read(call->operands[2], kernel->type, f), count = count_of(kernel);
        double r = 1 / sqrt(read(call->operands[3], kernel->type, f) + kernel->epsilon);
        double to_offset = sum_feature(kernel, x, g, f, mean, 0);
        double to_scale = sum_feature(kernel, x, g, f, mean, 1) * r;
        double factor = read(call->operands[1], kernel->type, f) * r;
        for (int64_t o = 0; o < kernel->outer; o++)
            for (int64_t i = 0; i < kernel->inner; i++) {
                int64_t at = row_start(kernel, o, f) + i;
                double normal = (read(x, kernel->type, at) - mean) * r;
                write(call->results[0], kernel->type, at,
                      factor * (read(g, kernel->type, at) - to_offset / count - normal * to_scale / count));
            }
        write(call->results[1], kernel->type, f, to_scale);
        write(call->results[2], kernel->type, f, to_offset);
    }
}

/* Operands of `whole` are shaped like x, the others are one number per feature. */
static AmStatus prepare(KernelCall *call, Arena *arena, int32_t operands, uint32_t whole, int32_t results,
                        AmError *error) {
    BatchNormKernel *kernel = ARENA_ARRAY(arena, BatchNormKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    const IrShape *x = call->operand_shapes[0];
    const IrOptions *options = call->instruction->attributes->options;
    int64_t d = options->feature_index;
    if (!dtype_is_floating(x->type) || !wide_supports(x->type))
        return kernel_call_refuse(call, "not on this type", error);
    if (call->operand_count != operands || call->result_count != results || d < 0 || d >= x->rank)
        return kernel_call_refuse(call, "not with these operands", error);
    const IrShape vector = {.type = x->type, .rank = 1, .dimensions = x->dimensions + d};
    for (int32_t k = 0; k < operands; k++)
        if (!ir_shape_equal(call->operand_shapes[k], whole >> k & 1 ? x : &vector))
            return kernel_call_refuse(call, "its operands do not fit together", error);
    for (int32_t k = 0; k < results; k++)
        if (!ir_shape_equal(call->result_shapes[k], k == 0 ? x : &vector))
            return kernel_call_refuse(call, "its results have other shapes", error);
    *kernel = (BatchNormKernel){.outer = strided_elements(x->dimensions, (int32_t)d),
                                .features = x->dimensions[d],
                                .inner = strided_elements(x->dimensions + d + 1, x->rank - (int32_t)d - 1),
                                .type = x->type,
                                .epsilon = options->epsilon};
    call->compiled = kernel;
    return AM_OK;
}

AmStatus cpu_prepare_batch_norm_training(KernelCall *call, Arena *arena, AmError *error) {
    call->run = run_training;
    return prepare(call, arena, 3, 1, 3, error);
}

AmStatus cpu_prepare_batch_norm_inference(KernelCall *call, Arena *arena, AmError *error) {
    call->run = run_inference;
    return prepare(call, arena, 5, 1, 1, error);
}

AmStatus cpu_prepare_batch_norm_gradient(KernelCall *call, Arena *arena, AmError *error) {
    call->run = run_gradient;
    return prepare(call, arena, 5, 1 | 1 << 4, 3, error);
}
