/* The CUDA back end beside the CPU's on small modules; graphs, failures, shared
 * units and the two streams. Skipped (77) in a build without CUDA and where there
 * is neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <pthread.h>

#include "base/files/file.h"
#include "base/random.h"
#include "tests/support/cuda_case.h"
#include "tests/support/gpu_present.h"

/* x + 1, squared, and its sum: two kernels at least. */
static const char small[] = "HloModule m\n"
                            "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
                            "ENTRY e {\n"
                            "  x = f32[64] parameter(0)\n"
                            "  one = f32[] constant(1)\n"
                            "  ones = f32[64] broadcast(one), dimensions={}\n"
                            "  y = f32[64] add(x, ones)\n"
                            "  z = f32[64] multiply(y, y)\n"
                            "  zero = f32[] constant(0)\n"
                            "  s = f32[] reduce(z, zero), dimensions={0}, to_apply=add\n"
                            "  ROOT r = (f32[64], f32[]) tuple(z, s)\n"
                            "}\n";

/* 1 - 0.999^t, as Adam has it, of t >= 1: a unit in the last place of the power is 6e-5 of the difference. */
static const char power[] = "HloModule m\n"
                            "ENTRY e {\n"
                            "  x = f32[64] parameter(0)\n"
                            "  size = f32[64] abs(x)\n"
                            "  one = f32[] constant(1)\n"
                            "  ones = f32[64] broadcast(one), dimensions={}\n"
                            "  t = f32[64] add(size, ones)\n"
                            "  base = f32[] constant(0.999)\n"
                            "  bases = f32[64] broadcast(base), dimensions={}\n"
                            "  p = f32[64] power(bases, t)\n"
                            "  ROOT d = f32[64] subtract(ones, p)\n"
                            "}\n";

/* Constants too long to stand in a kernel's text, a branch and a call. */
static const char branches[] =
    "HloModule m\n"
    "double { a = s32[8] parameter(0) ROOT s = s32[8] add(a, a) }\n"
    "negative { a = s32[8] parameter(0) ROOT s = s32[8] negate(a) }\n"
    "ENTRY e {\n"
    "  x = s32[8] parameter(0)\n"
    "  which = s32[] parameter(1)\n"
    "  primes = s32[8] constant({2, 3, 5, 7, 11, 13, 17, 19})\n"
    "  c = s32[8] call(x), to_apply=double\n"
    "  d = s32[8] conditional(which, c, x), branch_computations={double, negative}\n"
    "  ROOT r = s32[8] add(d, primes)\n"
    "}\n";

static void fill(CudaCase *gpu, CudaCase *cpu, int32_t seed) {
    Random random;
    random_seed(&random, (uint64_t)seed);
    for (int32_t k = 0; k < cpu->program->roles->parameter_count; k++) {
        const IrShape *shape = &cpu->program->values[cpu->program->parameters[k]].shape;
        int64_t count = ir_shape_elements(shape);
        int32_t *data = calloc((size_t)count + 2, 8);
        for (int64_t i = 0; i < count; i++)
            if (shape->type == DTYPE_F32) ((float *)data)[i] = (float)random_normal(&random);
            else data[i] = (int32_t)random_below(&random, 3);
        cuda_case_set(gpu, k, data);
        cuda_case_set(cpu, k, data);
        free(data);
    }
}

/* All outputs, floating ones to 1e-5 of their size: functions of a card err by a unit or two in the last
 * place. */
static void compare(CudaCase *gpu, CudaCase *cpu) {
    for (int32_t k = 0; k < cpu->program->roles->output_count; k++) {
        const IrShape *shape = &cpu->program->values[cpu->program->outputs[k]].shape;
        int64_t bytes = ir_shape_bytes(shape);
        float *a = calloc((size_t)bytes + 8, 1), *b = calloc((size_t)bytes + 8, 1);
        cuda_case_get(gpu, k, a);
        cuda_case_get(cpu, k, b);
        if (shape->type != DTYPE_F32) assert_memory_equal(a, b, (size_t)bytes);
        for (int64_t i = 0; shape->type == DTYPE_F32 && i < bytes / 4; i++) {
            float difference = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i], size = b[i] > 0 ? b[i] : -b[i];
            if (!(difference <= 1e-5f * size))
                fail_msg("output %d, element %d: %.9g, on the CPU %.9g", k, (int)i, a[i], b[i]);
        }
        free(a);
        free(b);
    }
}

static void check_module(const char *text, int32_t runs) {
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu, cpu;
    cuda_case_check(cuda_case_open(&gpu, device, text), &gpu.error);
    cuda_case_check(cuda_case_open(&cpu, &kernel_device_cpu, text), &cpu.error);
    for (int32_t seed = 0; seed < runs; seed++) {
        fill(&gpu, &cpu, seed);
        cuda_case_run(&gpu);
        cuda_case_run(&cpu);
        cuda_case_synchronize(&gpu);
        compare(&gpu, &cpu);
    }
    cuda_case_close(&gpu);
    cuda_case_close(&cpu);
    device->back_end->close(device);
}

static void test_modules(void **state) {
    (void)state;
    static const char *const files[] = {"while_carried", "fori_nested", "fori_traced"};
    check_module(small, 1);
    check_module(power, 4);
    check_module(branches, 4);
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        char path[512];
        FileBytes bytes;
        snprintf(path, sizeof path, SOURCE_DIR "/tests/data/text/%s.hlo.txt", files[k]);
        assert_int_equal(file_read(&bytes, path, NULL), AM_OK);
        check_module(bytes.data, 2);
        file_release(&bytes);
    }
}

/* The array that is changed is a temporary whose memory the result takes over: there is nothing to copy. The
 * other array is a parameter, which is unchanged. */
static const char updates[] = "HloModule m\n"
                              "ENTRY e {\n"
                              "  x = s32[600] parameter(0)\n"
                              "  u = s32[7] parameter(1)\n"
                              "  i = s32[] parameter(2)\n"
                              "  n = s32[600] negate(x)\n"
                              "  a = s32[600] dynamic-update-slice(n, u, i)\n"
                              "  b = s32[600] dynamic-update-slice(x, u, i)\n"
                              "  ROOT r = (s32[600], s32[600]) tuple(a, b)\n"
                              "}\n";

static const char scatters[] =
    "HloModule m\n"
    "add { a = s32[] parameter(0) b = s32[] parameter(1) ROOT s = s32[] add(a, b) }\n"
    "ENTRY e {\n"
    "  x = s32[600] parameter(0)\n"
    "  u = s32[7] parameter(1)\n"
    "  i = s32[7] parameter(2)\n"
    "  n = s32[600] negate(x)\n"
    "  a = s32[600] scatter(n, i, u), update_window_dims={}, inserted_window_dims={0},\n"
    "    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add\n"
    "  b = s32[600] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0},\n"
    "    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add\n"
    "  ROOT r = (s32[600], s32[600]) tuple(a, b)\n"
    "}\n";

static void check_launches(const char *text, int64_t expected) {
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu;
    cuda_case_check(cuda_case_open(&gpu, device, text), &gpu.error);
    int64_t launches = cuda_case_count("cuLaunchKernel");
    cuda_case_run(&gpu);
    cuda_case_synchronize(&gpu);
    ASSERT_COUNT("cuLaunchKernel", launches + expected);
    cuda_case_close(&gpu);
    device->back_end->close(device);
    check_module(text, 2);
}

static void test_an_update_in_place_copies_nothing(void **state) {
    (void)state;
    check_launches(updates, 4);  /* negate, update, copy, update */
    check_launches(scatters, 6); /* negate, sort, combine, copy, sort, combine */
}

/* x doubled, five times; the number of turns is a constant or a parameter. */
#define LOOP(limit)                                                                                 \
    "HloModule m\n"                                                                                 \
    "body { t = (s32[], s32[4], s32[]) parameter(0) i = s32[] get-tuple-element(t), index=0\n"      \
    "  x = s32[4] get-tuple-element(t), index=1 n = s32[] get-tuple-element(t), index=2\n"          \
    "  one = s32[] constant(1) j = s32[] add(i, one) y = s32[4] add(x, x)\n"                        \
    "  ROOT r = (s32[], s32[4], s32[]) tuple(j, y, n) }\n"                                          \
    "condition { t = (s32[], s32[4], s32[]) parameter(0) i = s32[] get-tuple-element(t), index=0\n" \
    "  n = s32[] get-tuple-element(t), index=2 ROOT r = pred[] compare(i, n), direction=LT }\n"     \
    "ENTRY e { x = s32[4] parameter(0) p = s32[] parameter(1) zero = s32[] constant(0)\n"           \
    "  five = s32[] constant(5) t = (s32[], s32[4], s32[]) tuple(zero, x, " limit ")\n"             \
    "  l = (s32[], s32[4], s32[]) while(t), condition=condition, body=body\n"                       \
    "  ROOT r = s32[4] get-tuple-element(l), index=1 }\n"

static void check_waits(const char *text, int64_t expected) {
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu;
    int32_t values[4] = {1, 2, 3, 4}, turns = 5;
    cuda_case_check(cuda_case_open(&gpu, device, text), &gpu.error);
    for (int step = 0; step < 3; step++) {
        cuda_case_set(&gpu, 0, values);
        cuda_case_set(&gpu, 1, &turns);
        int64_t copies = cuda_case_count("cuMemcpyDtoHAsync"), waits = cuda_case_count("cuStreamSynchronize");
        cuda_case_replay(&gpu);
        ASSERT_COUNT("cuMemcpyDtoHAsync", copies + expected);
        ASSERT_COUNT("cuStreamSynchronize", waits + expected);
        int32_t result[4];
        cuda_case_get(&gpu, 0, result);
        for (int k = 0; k < 4; k++) assert_int_equal(result[k], 32 * values[k]);
    }
    cuda_case_close(&gpu);
    device->back_end->close(device);
}

/* A loop of known length waits for nothing; of another one the condition is read before every turn and after
 * the last. */
static void test_a_loop_of_known_length_is_not_waited_for(void **state) {
    (void)state;
    check_waits(LOOP("five"), 0);
    check_waits(LOOP("p"), 6);
}

static bool run_capture_region(CudaCase *self, void **record) {
    if (self->device->back_end->begin(self->device, record)) return true;
    cuda_case_run(self);
    return self->device->back_end->end(self->device, record);
}

/* Plainly, recorded, and from then on one launch; right every time. */
static void test_a_region_becomes_a_graph(void **state) {
    (void)state;
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu, cpu;
    void *record = NULL;
    cuda_case_check(cuda_case_open(&gpu, device, small), &gpu.error);
    cuda_case_check(cuda_case_open(&cpu, &kernel_device_cpu, small), &cpu.error);
    for (int32_t step = 0; step < 4; step++) {
        fill(&gpu, &cpu, step);
        int64_t launches = cuda_case_count("cuLaunchKernel"), graphs = cuda_case_count("cuGraphLaunch");
        assert_true(run_capture_region(&gpu, &record));
        ASSERT_COUNT("cuGraphLaunch", graphs + (step > 0));
        if (step > 1) ASSERT_COUNT("cuLaunchKernel", launches);
        cuda_case_run(&cpu);
        cuda_case_synchronize(&gpu);
        compare(&gpu, &cpu);
    }
    cuda_case_close(&gpu);
    cuda_case_close(&cpu);
    device->back_end->close(device);
}

/* Work that cannot be recorded is issued again, and later without recording. */
static void test_a_region_that_cannot_be_recorded(void **state) {
    (void)state;
    if (!stand_in()) skip();
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu, cpu;
    void *record = NULL;
    cuda_case_check(cuda_case_open(&gpu, device, small), &gpu.error);
    cuda_case_check(cuda_case_open(&cpu, &kernel_device_cpu, small), &cpu.error);
    cuda_case_fail("cuGraphInstantiate=999");
    for (int32_t step = 0; step < 4; step++) {
        fill(&gpu, &cpu, step);
        bool done = run_capture_region(&gpu, &record);
        assert_int_equal(done, step != 1);
        if (!done) assert_true(run_capture_region(&gpu, &record));
        cuda_case_run(&cpu);
        cuda_case_synchronize(&gpu);
        compare(&gpu, &cpu);
    }
    cuda_case_fail("");
    cuda_case_close(&gpu);
    cuda_case_close(&cpu);
    device->back_end->close(device);
}

/* The failure is reported once, in one line that names the device; later reads give zeros. */
static void test_a_failure_comes_out_of_synchronize(void **state) {
    (void)state;
    if (!stand_in()) skip();
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu;
    float values[64] = {5}, sum = 7;
    cuda_case_check(cuda_case_open(&gpu, device, small), &gpu.error);
    cuda_case_set(&gpu, 0, values);
    cuda_case_fail("cuLaunchKernel=700");
    cuda_case_run(&gpu);
    cuda_case_fail("");
    cuda_case_get(&gpu, 1, &sum);
    assert_true(sum == 0);
    assert_int_equal(device->back_end->synchronize(device, &gpu.error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(gpu.error.text, "GPU 0"));
    assert_non_null(strstr(gpu.error.text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_null(strchr(gpu.error.text, '\n'));
    gpu.error = (AmError){0};
    cuda_case_run(&gpu);
    cuda_case_synchronize(&gpu);
    cuda_case_get(&gpu, 1, &sum);
    assert_true(sum == 36 + 63);
    cuda_case_close(&gpu);
    device->back_end->close(device);
}

static void test_too_much_memory_is_refused(void **state) {
    (void)state;
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    AmError error = {0};
    void *memory = NULL;
    assert_int_equal(device->back_end->allocate(device, &memory, INT64_C(1) << 50, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "out of memory on GPU 0"));
    assert_null(strchr(error.text, '\n'));
    device->back_end->close(device);
}

/* Two ranks on one card, alike: one unit, loaded once; all memory comes back. */
static void test_ranks_share_units(void **state) {
    (void)state;
    KernelDevice *devices[2];
    CudaCase cases[2];
    for (int r = 0; r < 2; r++) {
        devices[r] = cuda_case_device(&kernels_cuda);
        int64_t loads = cuda_case_count("cuModuleLoadDataEx");
        cuda_case_check(cuda_case_open(&cases[r], devices[r], small), &cases[r].error);
        ASSERT_COUNT("cuModuleLoadDataEx", loads + (r == 0));
    }
    for (int r = 0; r < 2; r++) {
        float values[64] = {(float)r}, sum;
        cuda_case_set(&cases[r], 0, values);
        cuda_case_run(&cases[r]);
        cuda_case_get(&cases[r], 1, &sum);
        cuda_case_synchronize(&cases[r]);
        assert_true(sum == (r == 0 ? 64 : 67));
        cuda_case_close(&cases[r]);
        devices[r]->back_end->close(devices[r]);
    }
    StandInMemory memory = {0};
    if (stand_in()) stand_in()->memory(&memory);
    assert_int_equal(memory.allocations, 0);
}

/* `count` arrays of different sizes, each negated: as many kernels. */
static void write_many(char *text, size_t bytes, int count) {
    size_t at = (size_t)snprintf(text, bytes, "HloModule m\nENTRY e {\n");
    for (int k = 0; k < count; k++)
        at += (size_t)snprintf(text + at, bytes - at,
                               "  x%d = f32[%d] parameter(%d)\n  y%d = f32[%d] negate(x%d)\n", k, k + 1, k, k,
                               k + 1, k);
    at += (size_t)snprintf(text + at, bytes - at, "  ROOT r = (");
    for (int k = 0; k < count; k++)
        at += (size_t)snprintf(text + at, bytes - at, "%sf32[%d]", k > 0 ? ", " : "", k + 1);
    at += (size_t)snprintf(text + at, bytes - at, ") tuple(");
    for (int k = 0; k < count; k++)
        at += (size_t)snprintf(text + at, bytes - at, "%sy%d", k > 0 ? ", " : "", k);
    at += (size_t)snprintf(text + at, bytes - at, ")\n}\n");
    assert_true(at < bytes);
}

/* Many kernels are several units, which are compiled at once, and which another rank on the card shares. */
static void test_many_kernels_are_several_units(void **state) {
    (void)state;
    enum { COUNT = 30 };
    char text[8192], *cache = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
    KernelDevice *devices[2];
    CudaCase cases[2];
    int64_t loads = cuda_case_count("cuModuleLoadDataEx");
    write_many(text, sizeof text, COUNT);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    setenv("AUTOMAP_THREADS", "2", 1);
    setenv("STAND_IN_NVRTC_MEET", "2", 1);
    for (int r = 0; r < 2; r++) {
        devices[r] = cuda_case_device(&kernels_cuda);
        cuda_case_check(cuda_case_open(&cases[r], devices[r], text), &cases[r].error);
        ASSERT_COUNT("cuModuleLoadDataEx", loads + 2);
    }
    unsetenv("STAND_IN_NVRTC_MEET");
    unsetenv("AUTOMAP_THREADS");
    if (cache) setenv("XDG_CACHE_HOME", cache, 1);
    else unsetenv("XDG_CACHE_HOME");
    free(cache);
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < COUNT; k++) {
            float values[COUNT] = {[0] = (float)k, [29] = 1}, negated[COUNT];
            cuda_case_set(&cases[r], k, values);
            cuda_case_run(&cases[r]);
            cuda_case_get(&cases[r], k, negated);
            assert_true(negated[0] == -values[0] && (k < COUNT - 1 || negated[k] == -1));
        }
        cuda_case_close(&cases[r]);
        devices[r]->back_end->close(devices[r]);
    }
}

typedef struct RankOfCard {
    pthread_t thread;
    pthread_barrier_t *all;
    float number, sum;
} RankOfCard;

static void *train(void *argument) {
    RankOfCard *self = argument;
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    CudaCase gpu;
    float values[64] = {self->number};
    pthread_barrier_wait(self->all);
    cuda_case_check(cuda_case_open(&gpu, device, small), &gpu.error);
    for (int step = 0; step < 20; step++) {
        cuda_case_set(&gpu, 0, values);
        cuda_case_replay(&gpu);
        cuda_case_synchronize(&gpu);
    }
    cuda_case_get(&gpu, 1, &self->sum);
    pthread_barrier_wait(self->all);
    cuda_case_close(&gpu);
    device->back_end->close(device);
    return NULL;
}

/* Ranks are threads: they load one unit at the same time, and record beside one another. */
static void test_ranks_in_threads(void **state) {
    (void)state;
    enum { RANKS = 4 };
    RankOfCard ranks[RANKS];
    pthread_barrier_t all;
    int64_t loads = cuda_case_count("cuModuleLoadDataEx");
    assert_int_equal(pthread_barrier_init(&all, NULL, RANKS), 0);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (RankOfCard){.all = &all, .number = (float)r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, train, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        assert_true(ranks[r].sum == 63 + (ranks[r].number + 1) * (ranks[r].number + 1));
    }
    pthread_barrier_destroy(&all);
    ASSERT_COUNT("cuModuleLoadDataEx", loads + 1);
}

/* Three arrays: a copy beside the computation reads the values at the fork, and the computation continues
 * after the mark. */
typedef struct Streams {
    KernelDevice *device;
    char *memory;
    CudaMark mark;
} Streams;

enum { PART = 4096 };

static void issue(Streams *self) {
    CudaKernelDevice *device = cuda_device_of(self->device);
    CUdeviceptr memory = (CUdeviceptr)(uintptr_t)self->memory;
    self->device->back_end->copy_within(self->device, self->memory + PART, self->memory, PART);
    cuda_fork(device);
    cuda_note(device, cuda.cuMemcpyDtoDAsync(memory + 2 * PART, memory + PART, PART, device->communication),
              "copying");
    cuda_mark_set(device, &self->mark);
    cuda_mark_wait(device, &self->mark);
    self->device->back_end->copy_within(self->device, self->memory + 3 * PART, self->memory + 2 * PART, PART);
}

static void test_streams_are_ordered(void **state) {
    (void)state;
    Streams self = {.device = cuda_case_device(&kernels_cuda)};
    const KernelBackEnd *back_end = self.device->back_end;
    AmError error = {0};
    void *record = NULL;
    cuda_case_check(back_end->allocate(self.device, (void **)&self.memory, 4 * PART, &error), &error);
    cuda_case_check(cuda_mark_open(&self.mark, &error), &error);
    for (char step = 1; step < 6; step++) {
        char given[PART], taken[PART];
        memset(given, step, sizeof given);
        back_end->copy_in(self.device, self.memory, given, PART);
        if (!back_end->begin(self.device, &record)) {
            issue(&self);
            assert_true(back_end->end(self.device, &record));
        }
        cuda_case_check(back_end->synchronize(self.device, &error), &error);
        back_end->copy_out(self.device, taken, self.memory + 3 * PART, PART);
        assert_memory_equal(taken, given, PART);
    }
    cuda_mark_close(&self.mark);
    back_end->release(self.device, self.memory);
    back_end->close(self.device);
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_an_update_in_place_copies_nothing),
        cmocka_unit_test(test_a_loop_of_known_length_is_not_waited_for),
        cmocka_unit_test(test_a_region_becomes_a_graph),
        cmocka_unit_test(test_a_region_that_cannot_be_recorded),
        cmocka_unit_test(test_a_failure_comes_out_of_synchronize),
        cmocka_unit_test(test_too_much_memory_is_refused),
        cmocka_unit_test(test_ranks_share_units),
        cmocka_unit_test(test_many_kernels_are_several_units),
        cmocka_unit_test(test_ranks_in_threads),
        cmocka_unit_test(test_streams_are_ordered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
