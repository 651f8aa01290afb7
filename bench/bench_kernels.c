/* Benchmark of single kernels against the limits of the device.
 *
 * Each case is a small HLO module, lowered, fused and prepared as in a training
 * step and run on random values, repeatedly, until the time is long enough to measure. Kernels that move
 * memory are given in GB/s (bytes that have to be read and written, each once) and as a share of the rate of
 * a plain copy on the device; matrix products and convolutions in TFLOP/s and as a share of the fastest
 * product of their type here. A row of a chain of operators is given in microseconds, and by that of one
 * operator at a time; a loop's iteration too, and as that time over the one of its only kernel alone.
 *
 *   bench_kernels [--device cpu|cuda] [--tf32] [--small] [--quick]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/system/clock.h"
#include "base/text.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

#define SECONDS 0.05 /* of one measurement, at least */
#define ROUNDS  3
#define CHUNK   (1 << 20) /* bytes of random values, repeated to fill a parameter */

enum { WORD = 4, HALF = 2, WIDTH = 1024, DEEP = 4096 };

/* ROWS in a module stands for as many rows as the device is given; the work is per row. */
typedef struct Case {
    const char *name;
    int64_t rows, few_rows;
    double bytes, flops; /* of a row; one of them is 0, or both where rows are iterations of a loop */
    Dtype type;          /* of the products whose rate is the limit */
    const char *module;
} Case;

static const Case cases[] = {
    {"add and multiply f32", 65536, 4096, 4 * WORD *WIDTH, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n b = f32[ROWS,1024] parameter(1)\n c = f32[ROWS,1024] parameter(2)\n"
     "product = f32[ROWS,1024] multiply(a, b)\n ROOT sum = f32[ROWS,1024] add(product, c)\n"},
    {"tanh of bf16", 65536, 1024, 2 * HALF *WIDTH, 0, DTYPE_BF16,
     "a = bf16[ROWS,1024] parameter(0)\n ROOT result = bf16[ROWS,1024] tanh(a)\n"},
    {"sum of each row", 65536, 4096, WORD *WIDTH, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n zero = f32[] constant(0)\n"
     "ROOT sums = f32[ROWS] reduce(a, zero), dimensions={1}, to_apply=add\n"},
    {"sum of each column", 65536, 4096, WORD *WIDTH, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n zero = f32[] constant(0)\n"
     "ROOT sums = f32[1024] reduce(a, zero), dimensions={0}, to_apply=add\n"},
    {"transpose f32", 65536, 4096, 2 * WORD *WIDTH, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n ROOT result = f32[1024,ROWS] transpose(a), dimensions={1,0}\n"},
    {"gather of rows", 65536, 4096, 2 * WORD *WIDTH, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n at = s32[ROWS,1] parameter(1)\n"
     "ROOT result = f32[ROWS,1024] gather(a, at), offset_dims={1}, collapsed_slice_dims={0}, "
     "start_index_map={0}, index_vector_dim=1, slice_sizes={1,1024}\n"},
    {"scatter-add of rows", 65536, 4096, 4 * WORD *WIDTH, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n at = s32[ROWS,1] parameter(1)\n b = f32[ROWS,1024] parameter(2)\n"
     "ROOT result = f32[ROWS,1024] scatter(a, at, b), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add\n"},
    {"product f32", 8192, 128, 0, 2.0 * DEEP *DEEP, DTYPE_F32,
     "a = f32[ROWS,4096] parameter(0)\n b = f32[4096,4096] parameter(1)\n"
     "ROOT result = f32[ROWS,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"},
    {"product f32, b transposed", 8192, 128, 0, 2.0 * DEEP *DEEP, DTYPE_F32,
     "a = f32[ROWS,4096] parameter(0)\n b = f32[4096,4096] parameter(1)\n"
     "ROOT result = f32[ROWS,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"},
    {"product bf16", 8192, 16, 0, 2.0 * DEEP *DEEP, DTYPE_BF16,
     "a = bf16[ROWS,4096] parameter(0)\n b = bf16[4096,4096] parameter(1)\n"
     "ROOT result = bf16[ROWS,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"},
    {"products of heads bf16", 96, 1, 0, 2.0 * 1024 * 1024 * 64, DTYPE_BF16,
     "a = bf16[ROWS,1024,64] parameter(0)\n b = bf16[ROWS,1024,64] parameter(1)\n"
     "ROOT result = bf16[ROWS,1024,1024] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, "
     "lhs_contracting_dims={2}, rhs_contracting_dims={2}\n"},
    {"convolution f32, 3x3", 128, 1, 0, 2.0 * 56 * 56 * 64 * 64 * 9, DTYPE_F32,
     "a = f32[ROWS,56,56,64] parameter(0)\n b = f32[3,3,64,64] parameter(1)\n"
     "ROOT result = f32[ROWS,56,56,64] convolution(a, b), window={size=3x3 pad=1_1x1_1}, "
     "dim_labels=b01f_01io->b01f\n"},
};
enum { CASES = sizeof cases / sizeof *cases };

/* The first is the work of an iteration alone. */
static const Case iterations[] = {
    {"reverse 4 KB, alone", 1, 1, 0, 0, DTYPE_F32,
     "a = f32[1024] parameter(0)\n ROOT b = f32[1024] reverse(a), dimensions={0}\n"},
    {"reverse 4 KB, in a loop", 1000, 1000, 0, 0, DTYPE_F32,
     "a = f32[1024] parameter(0)\n trips = s32[] constant(ROWS)\n t = (s32[], f32[1024]) tuple(trips, a)\n"
     "w = (s32[], f32[1024]) while(t), condition=more, body=iteration\n"
     "ROOT r = f32[1024] get-tuple-element(w), index=1\n"},
};
enum { ITERATIONS = sizeof iterations / sizeof *iterations };

/* The first is six operators, each in an index space of another rank than the one before: six steps. */
static const Case chains[] = {
    {"six operators, one by one", 65536, 4096, 0, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n b = f32[ROWS,1024] parameter(1)\n"
     "c = f32[ROWS,32,32] reshape(a)\n d = f32[ROWS,32,32] reshape(b)\n"
     "p = f32[ROWS,1024] multiply(a, b)\n p2 = f32[ROWS,32,32] reshape(p)\n"
     "q = f32[ROWS,32,32] add(p2, c)\n q2 = f32[ROWS,1024] reshape(q)\n"
     "r = f32[ROWS,1024] multiply(q2, b)\n r2 = f32[ROWS,32,32] reshape(r)\n"
     "s = f32[ROWS,32,32] subtract(r2, c)\n s2 = f32[ROWS,1024] reshape(s)\n"
     "t = f32[ROWS,1024] maximum(s2, b)\n t2 = f32[ROWS,32,32] reshape(t)\n"
     "ROOT u = f32[ROWS,32,32] multiply(t2, d)\n"},
    {"six operators, fused", 65536, 4096, 0, 0, DTYPE_F32,
     "a = f32[ROWS,1024] parameter(0)\n b = f32[ROWS,1024] parameter(1)\n"
     "p = f32[ROWS,1024] multiply(a, b)\n q = f32[ROWS,1024] add(p, a)\n"
     "r = f32[ROWS,1024] multiply(q, b)\n s = f32[ROWS,1024] subtract(r, a)\n"
     "t = f32[ROWS,1024] maximum(s, b)\n ROOT u = f32[ROWS,1024] multiply(t, b)\n"},
};
enum { CHAINS = sizeof chains / sizeof *chains };

/* The computations that the modules call. */
static const char computations[] =
    "add {\n x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT sum = f32[] add(x, y)\n}\n\n"
    "more {\n s = (s32[], f32[1024]) parameter(0)\n i = s32[] get-tuple-element(s), index=0\n"
    " zero = s32[] constant(0)\n ROOT c = pred[] compare(i, zero), direction=GT\n}\n\n"
    "iteration {\n s = (s32[], f32[1024]) parameter(0)\n i = s32[] get-tuple-element(s), index=0\n"
    " a = f32[1024] get-tuple-element(s), index=1\n one = s32[] constant(1)\n"
    " less = s32[] subtract(i, one)\n b = f32[1024] reverse(a), dimensions={0}\n"
    " ROOT r = (s32[], f32[1024]) tuple(less, b)\n}\n\n";

typedef struct Bench {
    KernelDevice *device;
    bool is_small;
    double seconds; /* of one measurement */
    char *chunk;    /* CHUNK bytes on the host */
    AmError error;
} Bench;

/* One case, ready to run. */
typedef struct Loaded {
    Arena arena;
    IrModule *module, *canonical;
    Program *program;
    Executable *entry;
    char *memory;
    int64_t rows;
} Loaded;

/* The module's text with ROWS replaced; the caller frees it. */
static Text module_text(const char *body, int64_t rows) {
    Text text = {0};
    text_append(&text, "HloModule bench\n\n%sENTRY main {\n ", computations);
    for (const char *at = body; *at;) {
        const char *next = strstr(at, "ROWS");
        if (!next) {
            text_append_string(&text, at);
            break;
        }
        text_append(&text, "%.*s%lld", (int)(next - at), at, (long long)rows);
        at = next + 4;
    }
    text_append_string(&text, "}\n");
    return text;
}

/* Uniform in [-1, 1), or indices below `rows`. */
static void fill_chunk(char *chunk, Dtype type, int64_t rows) {
    Random random;
    random_seed(&random, 1);
    for (int32_t k = 0; k < CHUNK / WORD; k++) {
        float value = (float)(2 * random_uniform(&random) - 1);
        int32_t index = (int32_t)random_below(&random, rows);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits = bits >> 16 | (bits & 0xffff0000u);
        const void *word = type == DTYPE_F32 ? (void *)&value : type == DTYPE_S32 ? (void *)&index : &bits;
        memcpy(chunk + (int64_t)k * WORD, word, WORD);
    }
}

static void fill_parameter(Bench *self, const Loaded *loaded, int32_t k) {
    const Program *program = loaded->program;
    const IrShape *shape = &program->values[program->parameters[k]].shape;
    int64_t bytes = ir_shape_bytes(shape);
    fill_chunk(self->chunk, shape->type, loaded->rows);
    for (int64_t at = 0; at < bytes; at += CHUNK)
        self->device->back_end->copy_in(self->device, (char *)executable_parameter(loaded->entry, k) + at,
                                        self->chunk, bytes - at < CHUNK ? bytes - at : CHUNK);
}

static void unload(const Bench *self, Loaded *loaded) {
    if (loaded->memory) self->device->back_end->release(self->device, loaded->memory);
    arena_free(&loaded->arena);
    ir_module_free(loaded->canonical);
    ir_module_free(loaded->module);
}

static AmStatus load(Bench *self, const Case *bench, Loaded *loaded) {
    const KernelBackEnd *back_end = self->device->back_end;
    *loaded = (Loaded){.rows = self->is_small ? bench->few_rows : bench->rows};
    Text text = module_text(bench->module, loaded->rows);
    AmStatus status = text.failed
                          ? am_fail_memory(&self->error, 0)
                          : ir_read_bytes(&loaded->module, bench->name, text.data, text.length, &self->error);
    text_free(&text);
    TRY(status);
    TRY(ir_canonicalize(&loaded->canonical, loaded->module, &self->error));
    TRY(program_from_computation(&loaded->program, &loaded->arena, loaded->canonical,
                                 loaded->canonical->entry, false, &self->error));
    TRY(executable_prepare(&loaded->entry, &loaded->arena, self->device, NULL, loaded->program, false,
                           &self->error));
    TRY(executable_allocate(loaded->entry, &loaded->memory, NULL, &self->error));
    if (back_end->finish) TRY(back_end->finish(self->device, &self->error));
    for (int32_t k = 0; k < loaded->program->roles->parameter_count; k++) fill_parameter(self, loaded, k);
    return back_end->synchronize(self->device, &self->error);
}

/* Seconds of one run: many are given to the device before it is waited for. */
static AmStatus measure(Bench *self, void (*run)(Bench *, void *), void *what, double *seconds) {
    int32_t count = 1;
    double once = 0;
    for (int32_t warm = 0; warm < 2; warm++) {
        double begin = clock_seconds();
        run(self, what);
        TRY(self->device->back_end->synchronize(self->device, &self->error));
        once = clock_seconds() - begin;
    }
    if (once < self->seconds)
        count = once > 0 && self->seconds / once < 1000 ? (int32_t)(self->seconds / once) + 1 : 1000;
    *seconds = 0;
    for (int32_t round = 0; round < ROUNDS; round++) {
        double begin = clock_seconds();
        for (int32_t k = 0; k < count; k++) run(self, what);
        TRY(self->device->back_end->synchronize(self->device, &self->error));
        double mean = (clock_seconds() - begin) / count;
        if (round == 0 || mean < *seconds) *seconds = mean;
    }
    return AM_OK;
}

static void run_case(Bench *self, void *what) {
    executable_issue(((const Loaded *)what)->entry, &self->error);
}

typedef struct Copy {
    char *memory;
    int64_t bytes; /* read; as many are written after them */
} Copy;

static void run_copy(Bench *self, void *what) {
    const Copy *copy = what;
    self->device->back_end->copy_within(self->device, copy->memory + copy->bytes, copy->memory, copy->bytes);
}

static AmStatus measure_copy(Bench *self, double *bytes_per_second) {
    Copy copy = {.bytes = (int64_t)(self->is_small ? 32 : 512) << 20};
    double seconds;
    TRY(self->device->back_end->allocate(self->device, (void **)&copy.memory, 2 * copy.bytes, &self->error));
    AmStatus status = measure(self, run_copy, &copy, &seconds);
    self->device->back_end->release(self->device, copy.memory);
    TRY(status);
    *bytes_per_second = 2 * (double)copy.bytes / seconds;
    return AM_OK;
}

static AmStatus measure_case(Bench *self, const Case *bench, double *per_second) {
    Loaded loaded;
    double seconds = 0;
    AmStatus status = load(self, bench, &loaded);
    if (status == AM_OK) status = measure(self, run_case, &loaded, &seconds);
    double row = bench->bytes + bench->flops > 0 ? bench->bytes + bench->flops : 1;
    double work = row * (double)loaded.rows;
    unload(self, &loaded);
    *per_second = status == AM_OK ? work / seconds : 0;
    return status;
}

static void print_rate(const char *name, double per_second, bool computes, double share) {
    bool is_tera = computes && per_second >= 1e12;
    const char *unit = is_tera ? "TFLOP/s" : computes ? "GFLOP/s" : "GB/s";
    printf("%-28s %8.1f %-7s %6.2f\n", name, per_second / (is_tera ? 1e12 : 1e9), unit, share);
}

/* Time per row, or per iteration of a loop, and by that of the first case; 1 where one failed. */
static int run_beside_first(Bench *self, const Case *list, int32_t count) {
    double first = 0;
    for (int32_t k = 0; k < count; k++) {
        double per_second = 0;
        self->error = (AmError){0};
        if (measure_case(self, &list[k], &per_second) != AM_OK) {
            printf("%-28s %s\n", list[k].name, self->error.text);
            return 1;
        }
        if (k == 0) first = per_second;
        printf("%-28s %8.2f %-7s %6.2f\n", list[k].name, 1e6 / per_second, "us", first / per_second);
    }
    return 0;
}

/* Returns 1 where a kernel is missing or failed; its line has the reason. */
static int run_cases(Bench *self, bool quick) {
    double rates[CASES] = {0}, copy = 0, products[2] = {0};
    int failed = 0;
    char reasons[CASES][160] = {{0}};
    if (measure_copy(self, &copy) != AM_OK) {
        fprintf(stderr, "bench_kernels: %s\n", self->error.text);
        return 1;
    }
    for (int32_t k = 0; k < CASES; k++) {
        self->error = (AmError){0};
        if (measure_case(self, &cases[k], &rates[k]) != AM_OK) {
            snprintf(reasons[k], sizeof reasons[k], "%.150s", self->error.text);
            failed = 1;
        }
        double *best = &products[cases[k].type == DTYPE_BF16];
        if (cases[k].flops > 0 && rates[k] > *best) *best = rates[k];
    }
    printf("%-28s %14s %8s\n", quick ? "kernel (quick)" : "kernel", "rate", "share");
    print_rate("copy, the limit of memory", copy, false, 1);
    for (int32_t k = 0; k < CASES; k++) {
        bool computes = cases[k].flops > 0;
        double limit = computes ? products[cases[k].type == DTYPE_BF16] : copy;
        if (reasons[k][0]) printf("%-28s %s\n", cases[k].name, reasons[k]);
        else print_rate(cases[k].name, rates[k], computes, rates[k] / limit);
    }
    return failed;
}

int main(int argc, char **argv) {
    const char *device = "cpu";
    KernelOptions options = {0};
    bool quick = false, small = false;
    for (int k = 1; k < argc; k++) {
        if (strcmp(argv[k], "--device") == 0 && k + 1 < argc) device = argv[++k];
        else if (strcmp(argv[k], "--tf32") == 0) options.tf32 = true;
        else if (strcmp(argv[k], "--small") == 0) small = true;
        else if (strcmp(argv[k], "--quick") == 0) quick = true;
        else {
            fprintf(stderr, "usage: bench_kernels [--device cpu|cuda] [--tf32] [--small] [--quick]\n");
            return AM_ERROR_USAGE;
        }
    }
    const KernelBackEnd *back_end;
    Bench self = {.is_small = small || strcmp(device, "cpu") == 0,
                  .seconds = quick ? 0 : SECONDS,
                  .chunk = malloc(CHUNK)};
    if (!self.chunk || kernel_back_end_find(&back_end, device, &self.error) != AM_OK ||
        back_end->open(&self.device, &options, &self.error) != AM_OK) {
        fprintf(stderr, "bench_kernels: %s\n", self.chunk ? self.error.text : "out of memory");
        free(self.chunk);
        return AM_ERROR_RUNTIME;
    }
    int result = run_cases(&self, quick);
    result |= run_beside_first(&self, chains, CHAINS);
    result |= run_beside_first(&self, iterations, ITERATIONS);
    back_end->close(self.device);
    free(self.chunk);
    return result;
}
