/* Properties of the stand-in driver that tests need: a missing wait gives a wrong number, captures are
 * refused the calls that the driver refuses, memory has bounds, and that a missing or unusable driver is one
 * clear line. Skipped (77) unless the stand-ins are loaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda/driver.h"
#include "base/cuda/unit.h"
#include "tests/cuda/stand_in/stand_in.h"

enum { COUNT = 64, BYTES = COUNT * sizeof(float) };

static const char text[] =
    "struct Pair { float scale, offset; };\n"
    "/* A comment with a bracket: 0 <= i < count) and a __global__ void word(. */\n"
    "extern \"C\" __global__ void __launch_bounds__(64) linear(float *x, Pair pair, int count) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < count) x[i] = x[i] * pair.scale + pair.offset;\n"
    "}\n"
    "#define KERNEL(name) extern \"C\" __global__ void name\n"
    "KERNEL(overrun)(float *x, int i) { x[i] = 1; }\n"
    "extern \"C\" __global__ void reverse(float *x, double *sum) {\n"
    "    __shared__ float row[64];\n"
    "    unsigned i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;\n"
    "    row[i] = x[i];\n"
    "    atomicAdd(sum, (double)x[i]);\n"
    "    __syncthreads();\n"
    "    x[i] = row[63 - i];\n"
    "}\n";

typedef struct Pair {
    float scale, offset;
} Pair;

static const StandIn *stand;
static CudaDevice device;
static CudaUnit unit;
static CUfunction linear, overrun, reverse;
static CUstream first, second;
static CUdeviceptr memory, other;
static float *host; /* pinned, COUNT */

static int open_all(void **state) {
    (void)state;
    AmError error = {0};
    if (cuda_device_open(&device, 0, &error) != AM_OK ||
        cuda_unit_load(&unit, &device, text, &error) != AM_OK ||
        cuda_unit_function(&linear, &unit, "linear", &error) != AM_OK ||
        cuda_unit_function(&overrun, &unit, "overrun", &error) != AM_OK ||
        cuda_unit_function(&reverse, &unit, "reverse", &error) != AM_OK ||
        cuda_memory_alloc(&memory, &device, BYTES, &error) != AM_OK ||
        cuda_memory_alloc(&other, &device, BYTES, &error) != AM_OK) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    cuda.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING);
    cuda.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
    return (int)cuda.cuMemAllocHost((void **)&host, BYTES);
}

static int close_all(void **state) {
    (void)state;
    cuda.cuMemFreeHost(host);
    cuda.cuStreamDestroy(first);
    cuda.cuStreamDestroy(second);
    cuda_memory_free(memory);
    cuda_memory_free(other);
    cuda_unit_unload(&unit);
    cuda_device_close(&device);
    return 0;
}

static void check(CUresult result) {
    assert_int_equal(result, CUDA_SUCCESS);
}

static void launch_linear(CUstream stream, CUdeviceptr x, float scale, float offset) {
    Pair pair = {scale, offset};
    int count = COUNT;
    void *arguments[] = {&x, &pair, &count};
    check(cuda.cuLaunchKernel(linear, 2, 1, 1, COUNT / 2, 1, 1, 0, stream, arguments, NULL));
    x = 0, pair = (Pair){0}, count = 0; /* the launch has its own copy */
}

static void test_kernel(void **state) {
    (void)state;
    CUdeviceptr sum;
    double total;
    check(cuda.cuMemAlloc(&sum, sizeof total));
    check(cuda.cuMemsetD8(sum, 0, sizeof total));
    for (int i = 0; i < COUNT; i++) host[i] = (float)i;
    check(cuda.cuMemcpyHtoDAsync(memory, host, BYTES, first));
    void *arguments[] = {&memory, &sum};
    check(cuda.cuLaunchKernel(reverse, 1, 1, 1, 4, 8, 2, 0, first, arguments, NULL));
    check(cuda.cuMemcpyDtoHAsync(host, memory, BYTES, first));
    assert_true(host[1] == 1);
    check(cuda.cuStreamSynchronize(first));
    for (int i = 0; i < COUNT; i++) assert_true(host[i] == (float)(COUNT - 1 - i));
    check(cuda.cuMemcpyDtoH(&total, sum, sizeof total));
    assert_true(total == COUNT * (COUNT - 1) / 2);
    check(cuda.cuMemFree(sum));
}

/* One stream writes, the other reads, with and without a wait between them. */
static float written_then_read(bool waits) {
    CUevent written;
    check(cuda.cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
    check(cuda.cuMemsetD32Async(memory, 0, COUNT, first));
    check(cuda.cuStreamSynchronize(first));
    launch_linear(first, memory, 0, 3);
    check(cuda.cuEventRecord(written, first));
    launch_linear(first, memory, 0, 4);
    if (waits) check(cuda.cuStreamWaitEvent(second, written, 0));
    check(cuda.cuMemcpyDtoHAsync(host, memory, BYTES, second));
    check(cuda.cuStreamSynchronize(second));
    float value = host[COUNT - 1];
    check(cuda.cuStreamSynchronize(first));
    check(cuda.cuEventDestroy(written));
    return value;
}

static void test_missing_wait_shows(void **state) {
    (void)state;
    assert_true(written_then_read(true) == 3);
    assert_true(written_then_read(false) == 0);
}

/* first: x = 2x + 1; second, between two events: y = x; first: x = x + 10. */
static CUresult capture(CUgraph *graph, bool joined) {
    CUevent forked, back;
    check(cuda.cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    check(cuda.cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    check(cuda.cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_linear(first, memory, 2, 1);
    check(cuda.cuEventRecord(forked, first));
    check(cuda.cuStreamWaitEvent(second, forked, 0));
    check(cuda.cuMemcpyDtoDAsync(other, memory, BYTES, second));
    check(cuda.cuEventRecord(back, second));
    if (joined) check(cuda.cuStreamWaitEvent(first, back, 0));
    launch_linear(first, memory, 1, 10);
    CUresult result = cuda.cuStreamEndCapture(first, graph);
    assert_int_equal(cuda.cuEventSynchronize(back), CUDA_ERROR_CAPTURED_EVENT);
    return result;
}

static void test_graph(void **state) {
    (void)state;
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes;
    check(cuda.cuMemsetD32Async(memory, 0, COUNT, first));
    check(capture(&graph, true));
    check(cuda.cuGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 3);
    check(cuda.cuGraphInstantiate(&exec, graph, 0));
    check(cuda.cuGraphDestroy(graph));
    stand->reset();
    for (int k = 0; k < 3; k++) check(cuda.cuGraphLaunch(exec, first));
    assert_int_equal(stand->runs("linear"), 0);
    check(cuda.cuMemcpyDtoHAsync(host, other, BYTES, first));
    check(cuda.cuGraphExecDestroy(exec));
    check(cuda.cuStreamSynchronize(first));
    assert_true(host[0] == 2 * (2 * 11 + 1 + 10) + 1);
    assert_int_equal(stand->runs("linear"), 6);
    assert_int_equal(stand->count("cuGraphLaunch"), 3);
    assert_int_equal(stand->count("cuLaunchKernel"), 0);
    StandInStream record;
    stand->stream(first, &record);
    assert_int_equal(record.graph_launches, 3);
    assert_int_equal(record.launches, 0);
}

static void test_captures_refused(void **state) {
    (void)state;
    CUgraph graph;
    CUdeviceptr more;
    assert_int_equal(capture(&graph, false), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    check(cuda.cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    assert_int_equal(cuda.cuMemAlloc(&more, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuda.cuStreamEndCapture(first, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check(cuda.cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_int_equal(cuda.cuStreamSynchronize(first), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuda.cuStreamEndCapture(first, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check(cuda.cuStreamSynchronize(first));
}

static void test_bounds(void **state) {
    (void)state;
    float value = 0;
    assert_int_equal(cuda.cuMemcpyHtoD(memory + 4, host, BYTES), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuda.cuMemcpyDtoH(host, memory + BYTES, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuda.cuMemcpyDtoDAsync(memory, (CUdeviceptr)(uintptr_t)&value, 4, first),
                     CUDA_ERROR_INVALID_VALUE);
    check(cuda.cuMemcpyHtoD(memory + BYTES - 4, &value, 4));
}

static void test_memory_limit(void **state) {
    (void)state;
    CUdeviceptr more;
    AmError error = {0};
    StandInMemory now;
    assert_int_equal(cuda_memory_alloc(&more, &device, 1000000, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "out of memory on GPU 0 (stand-in GPU): 1 MB are wanted, "));
    (stand->fail)("cuMemAlloc=2@2");
    stand->reset();
    check(cuda.cuMemAlloc(&more, 8));
    check(cuda.cuMemFree(more));
    assert_int_equal(cuda.cuMemAlloc(&more, 8), CUDA_ERROR_OUT_OF_MEMORY);
    (stand->fail)("");
    stand->memory(&now);
    assert_int_equal(now.allocations, 2);
    assert_int_equal(now.bytes, 2 * BYTES);
}

/* A rendezvous of two streams, as a collective is: the last to come adds for both. */
typedef struct Rendezvous {
    float *places[2];
    bool here[2], done[2];
} Rendezvous;

typedef struct Part {
    Rendezvous *rendezvous;
    int member;
    float *place;
} Part;

static bool add_at_rendezvous(void *argument) {
    Part *part = argument;
    Rendezvous *rendezvous = part->rendezvous;
    int self = part->member, peer = 1 - self;
    if (rendezvous->done[self]) {
        rendezvous->done[self] = false;
        return true;
    }
    rendezvous->here[self] = true;
    rendezvous->places[self] = part->place;
    if (!rendezvous->here[peer]) return false;
    float sum = *rendezvous->places[0] + *rendezvous->places[1];
    *rendezvous->places[0] = *rendezvous->places[1] = sum;
    rendezvous->here[0] = rendezvous->here[1] = false;
    rendezvous->done[peer] = true;
    return true;
}

static void add_part(CUstream stream, Rendezvous *rendezvous, int member, CUdeviceptr place) {
    Part part = {rendezvous, member, (float *)(uintptr_t)place};
    check(stand->enqueue(stream, "add_at_rendezvous", add_at_rendezvous, &part, sizeof part, rendezvous));
}

static void test_rendezvous(void **state) {
    (void)state;
    Rendezvous rendezvous = {0};
    stand->reset();
    launch_linear(first, memory, 0, 5);
    add_part(first, &rendezvous, 0, memory);
    launch_linear(second, other, 0, 6);
    add_part(second, &rendezvous, 1, other);
    check(cuda.cuMemcpyDtoHAsync(host, memory, BYTES, first));
    check(cuda.cuStreamSynchronize(first));
    assert_true(host[0] == 11 && host[1] == 5);
    check(cuda.cuStreamSynchronize(second));
    assert_int_equal(stand->runs("add_at_rendezvous"), 2);
}

static void *late_rank(void *argument) {
    usleep(20000);
    cuda_device_use(&device, NULL);
    add_part(second, argument, 1, other);
    return (void *)(uintptr_t)cuda.cuStreamSynchronize(second);
}

static void test_rendezvous_of_threads(void **state) {
    (void)state;
    Rendezvous rendezvous = {0};
    pthread_t thread;
    void *result;
    launch_linear(first, memory, 0, 1);
    launch_linear(second, other, 0, 2);
    add_part(first, &rendezvous, 0, memory);
    assert_int_equal(pthread_create(&thread, NULL, late_rank, &rendezvous), 0);
    check(cuda.cuStreamSynchronize(first));
    pthread_join(thread, &result);
    assert_null(result);
    check(cuda.cuMemcpyDtoH(host, other, BYTES));
    assert_true(host[0] == 3);
}

/* Cases that need a separate process. */
static int in_child(int (*body)(void)) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(body());
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int read_device_memory(void) {
    return *(volatile char *)(uintptr_t)memory != 0 ? 0 : 1;
}

static int write_behind(void) {
    int place = COUNT + 2;
    void *arguments[] = {&memory, &place};
    freopen("/dev/null", "w", stderr);
    check(cuda.cuLaunchKernel(overrun, 1, 1, 1, 1, 1, 1, 0, first, arguments, NULL));
    return cuda.cuStreamSynchronize(first) == CUDA_ERROR_ILLEGAL_ADDRESS ? 42 : 0;
}

static int host_pointer(void) {
    float value = 0;
    float *pointer = &value;
    int place = 0;
    void *arguments[] = {&pointer, &place};
    freopen("/dev/null", "w", stderr);
    return cuda.cuLaunchKernel(overrun, 1, 1, 1, 1, 1, 1, 0, first, arguments, NULL) ==
                   CUDA_ERROR_ILLEGAL_ADDRESS
               ? 42
               : 0;
}

static void test_faults(void **state) {
    (void)state;
    assert_true(in_child(read_device_memory) != 0);
    assert_int_equal(in_child(write_behind), 42);
    assert_int_equal(in_child(host_pointer), 42);
}

static const char *expected;

static int open_fails(void) {
    AmError error = {0};
    AmStatus status = cuda_device_open(&device, 0, &error);
    if (status == AM_ERROR_RUNTIME && strstr(error.text, expected)) return 42;
    fprintf(stderr, "status %d: %s\n", status, error.text);
    return 1;
}

/* Before the driver is opened in this process. */
static void test_unusable_driver(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"STAND_IN_VERSION", "11040", "the NVIDIA driver is too old: it serves CUDA 11.4"},
        {"STAND_IN_VERSION", "11040", "install a newer driver, or build automap with CUDA 11"},
        {"STAND_IN_DEVICES", "0", "there is no GPU: the NVIDIA driver finds no device"},
        {"STAND_IN_FAIL", "cuInit=100", "there is no GPU"},
        {"STAND_IN_FAIL", "cuInit=3", "starting the NVIDIA driver: initialization error"},
        {"STAND_IN_FAIL", "cuDevicePrimaryCtxRetain=2", "making the device's context: out of memory"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        setenv(cases[k][0], cases[k][1], 1);
        expected = cases[k][2];
        assert_int_equal(in_child(open_fails), 42);
        unsetenv(cases[k][0]);
    }
}

int main(void) {
    dlopen("libcuda.so.1", RTLD_NOW);
    stand = stand_in();
    if (!stand) {
        puts("skipped: the stand-in libraries are not loaded");
        return SKIPPED;
    }
    setenv("STAND_IN_MEMORY", "500000", 1);
    const struct CMUnitTest before[] = {cmocka_unit_test(test_unusable_driver)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel),     cmocka_unit_test(test_missing_wait_shows),
        cmocka_unit_test(test_graph),      cmocka_unit_test(test_captures_refused),
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_rendezvous), cmocka_unit_test(test_rendezvous_of_threads),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(before, NULL, NULL) + cmocka_run_group_tests(tests, open_all, close_all);
}
#else
#include "tests/support/without_cuda.h"
#endif
