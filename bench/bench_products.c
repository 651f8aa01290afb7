/* Benchmark of matrix products of f32: tiles (executor/cpu/matmul/product.h) beside OpenBLAS, and limits of
 * models.
 *
 * Shapes are those of GPT-2's training step at 1,024 tokens, with 1,536 of its 50,257 words, and of smaller
 * models. Both take turns on one thread, timed by the processor's own time, and the least of the rounds
 * counts, as other programs slow both. Then, for every MODEL of datasets/models (default gpt2_batch1): the
 * operations of its products and convolutions at the best rate of OpenBLAS here, and the bytes that all
 * other steps read and write at the rate of a copy. The sum of both is a limit for one thread that overlaps
 * neither.
 *
 *   bench_products [--quick] [MODEL ...]
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cost/operator/operator.h"
#include "executor/cpu/matmul/product.h"
#include "lowering/spmd/lower.h"
#include "zoo.h"

enum { COPIED = 64 << 20, ROUNDS = 6 };

/* Left is [rows, depth], or [depth, rows] where it is turned; right [depth, columns], or turned. */
typedef struct Shape {
    int32_t rows, columns, depth;
    bool left_transposed, right_transposed;
} Shape;

static const Shape shapes[] = {
    {1024, 768, 768, false, false}, {1024, 3072, 768, false, false}, {1024, 768, 3072, false, false},
    {1024, 1536, 768, false, true}, {1024, 768, 768, false, true},   {768, 3072, 1024, true, false},
    {1536, 768, 1024, true, false}, {1024, 1024, 64, false, true},   {1024, 64, 1024, false, false},
    {32, 1024, 512, false, false},  {32, 512, 1024, false, true},    {512, 1024, 32, true, false},
    {128, 128, 32, false, true},    {512, 688, 256, false, false},
};

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64); /* as of the executor */
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(memory, 0, (size_t)bytes);
    return memory;
}

/* Rates of both in GFLOP/s, [0] OpenBLAS. */
static void measure(const Shape *shape, int rounds, double rates[2]) {
    int64_t rows = shape->rows, columns = shape->columns, depth = shape->depth;
    int left_step = (int)(shape->left_transposed ? rows : depth);
    int right_step = (int)(shape->right_transposed ? depth : columns);
    double flops = 2.0 * (double)rows * (double)columns * (double)depth, least[2] = {1e30, 1e30};
    float *left = allocate(4 * rows * depth), *right = allocate(4 * depth * columns);
    float *out = allocate(4 * rows * columns);
    ProductPlan plan;
    const ProductForm form = {
        .left = {DTYPE_F32, shape->left_transposed ? 1 : depth, shape->left_transposed ? rows : 1},
        .right = {DTYPE_F32, shape->right_transposed ? depth : 1, shape->right_transposed ? 1 : columns},
        .rows = rows,
        .columns = columns,
        .depth = depth,
        .out_stride = columns};
    const Product product = {.out = out, .left = left, .right = right, .rows = rows, .columns = columns};
    bool by_tiles = product_plan(&plan, tile_kind(), &form);
    void *scratch = allocate(by_tiles ? plan.scratch_bytes : 1);
    int64_t repeats = 1 + (int64_t)(1e8 / flops);
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < (by_tiles ? 2 : 1); k++) {
            double begin = processor_seconds();
            for (int64_t n = 0; n < repeats; n++)
                if (k == 1) product_run(&plan, &product, scratch);
                else
                    cblas_sgemm(CblasRowMajor, shape->left_transposed ? CblasTrans : CblasNoTrans,
                                shape->right_transposed ? CblasTrans : CblasNoTrans, shape->rows,
                                shape->columns, shape->depth, 1, left, left_step, right, right_step, 0, out,
                                shape->columns);
            double seconds = (processor_seconds() - begin) / (double)repeats;
            if (seconds < least[k]) least[k] = seconds;
        }
    for (int k = 0; k < 2; k++) rates[k] = least[k] < 1e30 ? 1e-9 * flops / least[k] : 0;
    free(left);
    free(right);
    free(out);
    free(scratch);
}

/* GB/s read plus written. */
static double copy_rate(int rounds) {
    char *from = allocate(COPIED), *to = allocate(COPIED);
    double least = 1e30;
    for (int r = 0; r < rounds; r++) {
        double begin = processor_seconds();
        memcpy(to, from, COPIED);
        double seconds = processor_seconds() - begin;
        if (seconds < least) least = seconds;
    }
    free(from);
    free(to);
    return 2e-9 * COPIED / least;
}

static bool show_limit(const char *model, double gigaflops, double gigabytes) {
    char binary[4096], roles[4096];
    AmError error = {0};
    PlanContext *context;
    Program *program;
    Arena arena = {0};
    double flops = 0, bytes = 0;
    if (!zoo_paths(model, binary, roles) || plan_context_read(&context, binary, roles, &error) != AM_OK ||
        plan_lower_one_device(&program, &arena, context, &error) != AM_OK) {
        fprintf(stderr, "%s: %s\n", model, error.text);
        return false;
    }
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        OperatorWork work;
        operator_work(&work, program, &program->execution.steps[s]);
        if (work.unit != OPERATOR_VECTOR) flops += work.flops;
        else if (work.is_run) bytes += work.bytes;
    }
    printf("%-20s %8.1f GFLOP %7.2f s %8.2f GB %7.2f s, together %7.2f s\n", model, 1e-9 * flops,
           1e-9 * flops / gigaflops, 1e-9 * bytes, 1e-9 * bytes / gigabytes,
           1e-9 * flops / gigaflops + 1e-9 * bytes / gigabytes);
    arena_free(&arena);
    plan_context_free(context);
    return true;
}

int main(int argc, char **argv) {
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0, passed = true;
    int rounds = quick ? 1 : ROUNDS, first = quick ? 2 : 1;
    double best = 0;
    openblas_set_num_threads(1);
    printf("%6s %8s %6s %-14s %9s %9s %6s\n", "rows", "columns", "depth", "turned", "OpenBLAS", "tiles",
           "ratio");
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const Shape *shape = &shapes[k];
        double rates[2];
        measure(shape, rounds, rates);
        if (rates[0] > best) best = rates[0];
        printf("%6d %8d %6d %-14s %9.1f %9.1f %6.2f\n", shape->rows, shape->columns, shape->depth,
               shape->left_transposed    ? "left"
               : shape->right_transposed ? "right"
                                         : "",
               rates[0], rates[1], rates[1] > 0 ? rates[0] / rates[1] : 0);
    }
    double copied = copy_rate(rounds);
    printf("GFLOP/s of one thread; ratio: of the times; copy %.1f GB/s read and written\n", copied);
    if (argc == first) passed = show_limit("gpt2_batch1", best, copied);
    for (int k = first; k < argc; k++) passed = show_limit(argv[k], best, copied) && passed;
    return passed ? 0 : 1;
}
