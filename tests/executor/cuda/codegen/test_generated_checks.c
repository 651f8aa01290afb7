/* The checks of kernels on the host find planted faults: a missing barrier and a
 * race between blocks (tests/cuda/host_races.h); in a program that is linked with
 * the address sanitizer, a misaligned access, and accesses outside of a local
 * array and of a buffer. Skipped (77) in a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <sys/wait.h>

#include "tests/support/generated_module.h"

/* The results of each without the change are those of the CPU's kernel. */
static const char *const modules[] = {
    "f { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
    "ENTRY e { x = f32[70,600] parameter(0) v = f32[] parameter(1)\n"
    "  ROOT r = f32[70] reduce(x, v), dimensions={1}, to_apply=f }\n",
    "f { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
    "ENTRY e { x = f32[600,70] parameter(0) v = f32[] parameter(1)\n"
    "  ROOT r = f32[70] reduce(x, v), dimensions={0}, to_apply=f }\n",
    "ENTRY e { x = f32[100,70] parameter(0) ROOT r = f32[70,100] transpose(x), dimensions={1,0} }\n",
    "ENTRY e { a = f32[2,24,24] parameter(0) ROOT r = f32[2,24,24] cholesky(a), lower=true }\n",
};

extern void __asan_init(void) __attribute__((weak));

static int symbol_of(const Generated *self, const char *name) {
    int *number = dlsym(self->library, name);
    assert_non_null(number);
    return *number;
}

/* Runs all kernels of a text and returns the number of races; they do not end the process. */
static int count_races(Generated *self) {
    KernelCall *call = self->calls[0];
    void *addresses[8];
    Random random;
    random_seed(&random, 3);
    generated_compile(self);
    int *counted = dlsym(self->library, "host_races_are_counted");
    assert_non_null(counted);
    *counted = 1;
    for (int32_t k = 0; k < call->operand_count + call->result_count; k++) {
        const IrShape *shape =
            k < call->operand_count ? call->operand_shapes[k] : call->result_shapes[k - call->operand_count];
        addresses[k] = calloc((size_t)ir_shape_bytes(shape), 1);
        for (int64_t i = 0; k < call->operand_count && i < ir_shape_elements(shape); i++)
            ((float *)addresses[k])[i] = (float)random_normal(&random) + 9;
    }
    generated_run(self, 0, addresses);
    int races = symbol_of(self, "host_race_count");
    if (races > 0) print_message("%s\n", (const char *)dlsym(self->library, "host_race_text"));
    for (int32_t k = 0; k < call->operand_count + call->result_count; k++) free(addresses[k]);
    dlclose(self->library);
    self->library = NULL;
    return races;
}

/* Blanks the n-th barrier of a text; false: there are fewer. */
static bool blank_barrier(char *text, int32_t n) {
    static const char barrier[] = "__syncthreads();";
    char *at = text;
    for (int32_t k = 0; (at = strstr(at, barrier)) != NULL; k++, at++)
        if (k == n) {
            memset(at, ' ', strlen(barrier));
            return true;
        }
    return false;
}

static void test_every_missing_barrier_is_a_race(void **state) {
    (void)state;
    if (__asan_init) skip(); /* the other program has it */
    setenv("AUTOMAP_HOST_KERNELS", "races", 1);
    for (size_t m = 0; m < sizeof modules / sizeof *modules; m++) {
        GeneratedModules *self = calloc(1, sizeof *self);
        generated_add_text(self, modules[m]);
        assert_int_equal(count_races(&self->generated), 0);
        CudaLaunch *launch = &self->generated.sources[0].launches[0];
        const char *whole = launch->text;
        int32_t barriers = 0;
        for (;; barriers++) {
            char *text = strdup(whole);
            bool blanked = blank_barrier(text, barriers);
            launch->text = text;
            if (blanked && count_races(&self->generated) == 0)
                fail_msg("barrier %d is not missed in\n%s", barriers, whole);
            launch->text = whole;
            free(text);
            if (!blanked) break;
        }
        assert_true(barriers > 0);
        module_close(&self->modules[0]);
        generated_free(&self->generated);
        free(self);
    }
}

/* A launch of a hand-written kernel of one buffer: 4 blocks of 8 threads. */
static void make(Generated *self, CudaSource *source, CudaLaunch *launch, const char *text) {
    *self = (Generated){.sources = source, .count = 1};
    *launch = (CudaLaunch){.name = "planted", .text = text, .blocks = 4, .threads = 8};
    *source = (CudaSource){.parameters = 1, .launches = launch, .launch_count = 1};
    generated_compile(self);
}

static int races_of(const char *text) {
    Generated self;
    CudaSource source;
    CudaLaunch launch;
    float buffer[64] = {0};
    make(&self, &source, &launch, text);
    *(int *)dlsym(self.library, "host_races_are_counted") = 1;
    generated_run(&self, 0, (void *[]){buffer});
    int races = symbol_of(&self, "host_race_count");
    if (races > 0) print_message("%s\n", (const char *)dlsym(self.library, "host_race_text"));
    generated_free(&self);
    return races;
}

static void test_races_between_blocks(void **state) {
    (void)state;
    if (__asan_init) skip();
    setenv("AUTOMAP_HOST_KERNELS", "races", 1);
    static const struct {
        const char *body;
        bool races;
    } rows[] = {
        {"x[blockIdx.x * 8 + threadIdx.x] = 1;", false},
        {"if (threadIdx.x == 0) x[7] = blockIdx.x;", true},
        {"if (threadIdx.x == 0) x[7] = 2;", false}, /* one value */
        {"x[threadIdx.x] = threadIdx.x; if (threadIdx.x == 5) x[blockIdx.x * 8] += x[6];", true},
        {"atomicAdd(x, 1.0f);", false},
        {"atomicAdd(x, 1.0f); if (threadIdx.x == 0) x[1 + blockIdx.x] = x[0];", true},
        {"((char *)x)[blockIdx.x * 8 + threadIdx.x] = 1;", false}, /* neighbours in a word */
        {"x[blockIdx.x * 8 + threadIdx.x] = 1; __syncthreads();\n"
         "if (threadIdx.x == 0) x[blockIdx.x * 8] = x[blockIdx.x * 8 + 7];",
         false},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char text[512];
        snprintf(text, sizeof text, "extern \"C\" __global__ void planted(float *x) {\n%s\n}\n",
                 rows[k].body);
        if ((races_of(text) > 0) != rows[k].races) fail_msg("%s", rows[k].body);
    }
}

/* Runs a kernel in a process of its own; returns whether it ended with a finding that has the words. */
static bool is_found(const char *text, const char *words) {
    Generated self;
    CudaSource source;
    CudaLaunch launch;
    int ends[2], status = 0;
    char output[8192] = "";
    size_t length = 0;
    make(&self, &source, &launch, text);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        float *buffer = calloc(32, sizeof *buffer);
        dup2(ends[1], STDERR_FILENO);
        generated_run(&self, 0, (void *[]){buffer});
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], output + length, sizeof output - 1 - length)) > 0;)
        length += (size_t)got;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    generated_free(&self);
    if (status == 0) return false;
    if (!strstr(output, words)) fail_msg("expected '%s' in\n%s", words, output);
    return true;
}

static void test_sanitizers(void **state) {
    (void)state;
    if (!__asan_init) skip();
    setenv("AUTOMAP_HOST_KERNELS", "sanitize", 1);
    static const struct {
        const char *body, *words;
    } rows[] = {
        {"((Pair *)(x + 2))[threadIdx.x] = Pair{{1, 2}};", NULL},
        {"((Pair *)(x + 1))[threadIdx.x] = Pair{{1, 2}};", "misaligned address"},
        {"Pair pair = ((const Pair *)(x + 1))[threadIdx.x]; x[0] = pair.at[0];", "misaligned address"},
        {"float at[4] = {1, 2, 3, 4}; x[threadIdx.x] = at[threadIdx.x];", "out of bounds"},
        {"float at[4] = {1, 2, 3, 4}; fill(at, threadIdx.x); x[0] = at[0];", "stack-buffer-overflow"},
        {"__shared__ float at[4]; at[threadIdx.x] = 1;", "out of bounds"},
        {"x[blockIdx.x * 8 + threadIdx.x + 1] = 1;", "heap-buffer-overflow"},
        {"if (x[(int)threadIdx.x - 1] > 0) x[0] = 1;", "heap-buffer-overflow"},
        {"int big = 2147483647; x[0] = big + (int)threadIdx.x;", "signed integer overflow"},
        {"x[0] = 1 << (31 + threadIdx.x);", "shift exponent"},
        {"x[0] = (int)(x[0] + 1e20f);", "outside the range"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "struct alignas(8) Pair { float at[2]; };\n"
                 "__device__ void fill(float *at, int k) { at[k] = 1; }\n"
                 "extern \"C\" __global__ void planted(float *x) {\n%s\n}\n",
                 rows[k].body);

        if (is_found(text, rows[k].words ? rows[k].words : "") != (rows[k].words != NULL))
            fail_msg("%s", rows[k].body);
    }
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_missing_barrier_is_a_race),
        cmocka_unit_test(test_races_between_blocks),
        cmocka_unit_test(test_sanitizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
