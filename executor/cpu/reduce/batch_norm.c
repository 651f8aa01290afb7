/* Batch normalization: training, inference and gradient.
 *
 * Over all dimensions but the feature's, N elements per feature, in double:
 *   training:  mean m and variance v = mean((x - m)^2); y = scale (x - m) r + offset
 *   inference: the same with given m and v
 *   gradient:  with x' = (x - m) r and the output's gradient g,
 *              d offset = sum g, d scale = sum g x',
 *              d x = scale r (g - d offset / N - x' d scale / N)
 * Here r = 1 / sqrt(v + epsilon) (Ioffe and Szegedy, "Batch Normalization", ICML 2015). Each step
 * is y = of_x x + of_g g + term with numbers of the feature, after one or two summing passes. The
 * team divides the features; blocks of them are read in rows in memory order, so that each sum has
 * the order of the elements. Operands: (x, scale, offset), (x, scale, offset, m, v), (x, scale, m,
 * v, g). Results: (y, m, v), y, (d x, d scale, d offset).
 */
#include <math.h>
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/batch_norm_form.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/team.h"

enum { BLOCK = 64, GRAIN = 16 }; /* features in a block; fewest features of a member */

/* A block of features and their numbers. */
typedef struct Block {
    const KernelCall *call;
    const BatchNormForm *kernel;
    int64_t first, count;
    double mean[BLOCK], sum[BLOCK], moment[BLOCK]; /* of add_up() */
    double of_x[BLOCK], of_g[BLOCK], term[BLOCK];  /* of scale() */
} Block;

static void load_numbers(double *to, const void *from, Dtype type, int64_t at, int64_t count) {
    Scalar64 run[SCALAR64_RUN];
    if (type == DTYPE_F32) {
        for (int64_t k = 0; k < count; k++) to[k] = ((const float *)from)[at + k];
        return;
    }
    scalar64_load(run, (const char *)from + at * dtype_bytes(type), type, count, 1);
    for (int64_t k = 0; k < count; k++) to[k] = run[k].floating;
}

static void store_numbers(void *to, Dtype type, int64_t at, const double *from, int64_t count) {
    Scalar64 run[SCALAR64_RUN];
    if (type == DTYPE_F32) {
        for (int64_t k = 0; k < count; k++) ((float *)to)[at + k] = (float)from[k];
        return;
    }
    for (int64_t k = 0; k < count; k++) run[k].floating = from[k];
    scalar64_store((char *)to + at * dtype_bytes(type), type, run, SCALAR64_FLOATING, count, 1);
}

/* `count` neighbours from element `at` on: features of the block from `feature` on (step 1), or places of
 * that one (step 0). */
typedef struct ChannelRun {
    int64_t at, count, feature, step;
} ChannelRun;

static void for_runs(Block *block, void (*work)(Block *block, const ChannelRun *run)) {
    const BatchNormForm *kernel = block->kernel;
    for (int64_t o = 0; o < kernel->outer; o++) {
        int64_t row = (o * kernel->features + block->first) * kernel->inner;
        if (kernel->inner == 1) {
            work(block, &(ChannelRun){row, block->count, 0, 1});
            continue;
        }
        for (int64_t f = 0; f < block->count; f++)
            for (int64_t i = 0; i < kernel->inner; i += SCALAR64_RUN) {
                int64_t left = kernel->inner - i;
                work(block, &(ChannelRun){row + f * kernel->inner + i,
                                          left < SCALAR64_RUN ? left : SCALAR64_RUN, f, 0});
            }
    }
}

/* Computes sum += t, moment += t (x - mean), where t is g, or without one x - mean. */
static void add_up(Block *block, const ChannelRun *run) {
    const BatchNormForm *kernel = block->kernel;
    double x[SCALAR64_RUN], g[SCALAR64_RUN];
    load_numbers(x, block->call->operands[0], kernel->type, run->at, run->count);
    if (kernel->has_gradient) load_numbers(g, block->call->operands[4], kernel->type, run->at, run->count);
    for (int64_t k = 0; k < run->count; k++) {
        int64_t f = run->feature + k * run->step;
        double centred = x[k] - block->mean[f], t = kernel->has_gradient ? g[k] : centred;
        block->sum[f] += t;
        block->moment[f] += t * centred;
    }
}

/* Computes y = of_x x + of_g g + term. */
static void scale(Block *block, const ChannelRun *run) {
    const BatchNormForm *kernel = block->kernel;
    double x[SCALAR64_RUN], g[SCALAR64_RUN];
    load_numbers(x, block->call->operands[0], kernel->type, run->at, run->count);
    if (kernel->has_gradient) load_numbers(g, block->call->operands[4], kernel->type, run->at, run->count);
    for (int64_t k = 0; k < run->count; k++) {
        int64_t f = run->feature + k * run->step;
        x[k] = block->of_x[f] * x[k] + block->term[f];
        if (kernel->has_gradient) x[k] += block->of_g[f] * g[k];
    }
    store_numbers(block->call->results[0], kernel->type, run->at, x, run->count);
}

static void read_block(const Block *block, int32_t operand, double *to) {
    load_numbers(to, block->call->operands[operand], block->kernel->type, block->first, block->count);
}

static void write_block(const Block *block, int32_t result, const double *from) {
    store_numbers(block->call->results[result], block->kernel->type, block->first, from, block->count);
}

static double count_of(const BatchNormForm *kernel) {
    return (double)(kernel->outer * kernel->inner);
}

/* Computes y = scale (x - mean) r + offset. */
static void normalize(Block *block, const double *variance) {
    double factor[BLOCK], offset[BLOCK];
    read_block(block, 1, factor);
    read_block(block, 2, offset);
    for (int64_t f = 0; f < block->count; f++) {
        block->of_x[f] = factor[f] / sqrt(variance[f] + block->kernel->epsilon);
        block->term[f] = offset[f] - block->mean[f] * block->of_x[f];
    }
    for_runs(block, scale);
}

static void train_block(Block *block) {
    double variance[BLOCK];
    for_runs(block, add_up);
    for (int64_t f = 0; f < block->count; f++) block->mean[f] = block->sum[f] / count_of(block->kernel);
    memset(block->moment, 0, sizeof block->moment);
    for_runs(block, add_up);
    for (int64_t f = 0; f < block->count; f++) variance[f] = block->moment[f] / count_of(block->kernel);
    normalize(block, variance);
    write_block(block, 1, block->mean);
    write_block(block, 2, variance);
}

static void infer_block(Block *block) {
    double variance[BLOCK];
    read_block(block, 3, block->mean);
    read_block(block, 4, variance);
    normalize(block, variance);
}

static void differentiate_block(Block *block) {
    double factor[BLOCK], variance[BLOCK], to_scale[BLOCK];
    read_block(block, 1, factor);
    read_block(block, 2, block->mean);
    read_block(block, 3, variance);
    for_runs(block, add_up);
    for (int64_t f = 0; f < block->count; f++) {
        double r = 1 / sqrt(variance[f] + block->kernel->epsilon), count = count_of(block->kernel);
        to_scale[f] = block->moment[f] * r;
        block->of_g[f] = factor[f] * r;
        block->of_x[f] = -factor[f] * r * r * to_scale[f] / count;
        block->term[f] = -factor[f] * r * block->sum[f] / count - block->mean[f] * block->of_x[f];
    }
    for_runs(block, scale);
    write_block(block, 1, to_scale);
    write_block(block, 2, block->sum);
}

/* One run of a call: the function for each block of features. */
typedef struct NormTask {
    const KernelCall *call;
    void (*work)(Block *block);
} NormTask;

static void run_part(void *user, int32_t part, int32_t parts) {
    const NormTask *task = user;
    const BatchNormForm *kernel = task->call->compiled;
    int64_t first, end;
    team_stretch(kernel->features, GRAIN, part, parts, &first, &end);
    for (; first < end; first += BLOCK) {
        Block block = {.call = task->call, .kernel = kernel, .first = first};
        block.count = end - first < BLOCK ? end - first : BLOCK;
        task->work(&block);
    }
}

static void run_blocks(const KernelCall *call, void (*work)(Block *block)) {
    const BatchNormForm *kernel = call->compiled;
    NormTask task = {call, work};
    double elements = count_of(kernel) * (double)kernel->features;
    team_run(call->device, run_part, &task, team_parts(call->device, 4 * elements));
}

static void run_training(const KernelCall *call) {
    run_blocks(call, train_block);
}

static void run_inference(const KernelCall *call) {
    run_blocks(call, infer_block);
}

static void run_gradient(const KernelCall *call) {
    run_blocks(call, differentiate_block);
}

static AmStatus prepare_form(KernelCall *call, Arena *arena, int32_t operands, uint32_t like_x,
                             int32_t results, AmError *error) {
    BatchNormForm *form = ARENA_ARRAY(arena, BatchNormForm, 1);
    if (!form) return am_fail_memory(error, (int64_t)sizeof *form);
    if (!scalar64_supports(call->operand_shapes[0]->type))
        return kernel_call_refuse(call, "not on this type", error);
    call->compiled = form;
    return batch_norm_form_read(form, call, operands, like_x, results, error);
}

AmStatus cpu_prepare_batch_norm_training(KernelCall *call, Arena *arena, AmError *error) {
    call->run = run_training;
    return prepare_form(call, arena, 3, 1, 3, error);
}

AmStatus cpu_prepare_batch_norm_inference(KernelCall *call, Arena *arena, AmError *error) {
    call->run = run_inference;
    return prepare_form(call, arena, 5, 1, 1, error);
}

AmStatus cpu_prepare_batch_norm_gradient(KernelCall *call, Arena *arena, AmError *error) {
    call->run = run_gradient;
    return prepare_form(call, arena, 5, 1 | 1 << 4, 3, error);
}
