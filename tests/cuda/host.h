/* Runs generated kernels on the host, so that they can be tested without a GPU:
 * what CUDA C adds to C++, a grid that runs block after block, and threads of a
 * block as fibers that take turns at __syncthreads(). Included before a unit.
 */
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <ucontext.h>

#include <utility>

#define __global__
#define __device__ static inline
#define __shared__ static
#define __launch_bounds__(threads)

struct Index {
    unsigned x;
};
static Index blockIdx, threadIdx;

static inline int __clzll(unsigned long long value) {
    return value ? __builtin_clzll(value) : 64;
}
static inline int __popcll(unsigned long long value) {
    return __builtin_popcountll(value);
}

enum { MOST_THREADS = 256, STACK_BYTES = 32768 };
static char stacks[MOST_THREADS][STACK_BYTES];
static ucontext_t fibers[MOST_THREADS], scheduler;
static jmp_buf waiting[MOST_THREADS], turn;
static bool started[MOST_THREADS], ended[MOST_THREADS];
static void (*fiber_body)(void *);
static void *fiber_argument;

static void __syncthreads() {
    unsigned thread = threadIdx.x;
    if (_setjmp(waiting[thread]) == 0) _longjmp(turn, 1);
    threadIdx.x = thread;
}

static void start_fiber() {
    fiber_body(fiber_argument);
    ended[threadIdx.x] = true;
    _longjmp(turn, 1);
}

/* One turn of every thread after the other, until all have ended. */
static void run_fibers(unsigned threads) {
    static volatile unsigned thread, left;
    for (unsigned k = 0; k < threads; k++) started[k] = ended[k] = false;
    do {
        left = 0;
        for (thread = 0; thread < threads; thread++) {
            if (ended[thread]) continue;
            threadIdx.x = thread;
            if (_setjmp(turn) == 0) {
                if (started[thread]) _longjmp(waiting[thread], 1);
                started[thread] = true;
                getcontext(&fibers[thread]);
                fibers[thread].uc_stack.ss_sp = stacks[thread];
                fibers[thread].uc_stack.ss_size = STACK_BYTES;
                fibers[thread].uc_link = &scheduler;
                makecontext(&fibers[thread], start_fiber, 0);
                setcontext(&fibers[thread]);
            }
            left += !ended[thread];
        }
    } while (left > 0);
}

template <typename... Arguments> struct Launch {
    void (*kernel)(Arguments...);
    void **addresses;
    template <size_t... Place> void call(std::index_sequence<Place...>) {
        kernel((Arguments)addresses[Place]...);
    }
    static void body(void *self) {
        ((Launch *)self)->call(std::index_sequence_for<Arguments...>());
    }
};

/* `waits`: the kernel calls __syncthreads(), or might. */
template <typename... Arguments>
static void launch(void (*kernel)(Arguments...), void **addresses, unsigned blocks, unsigned threads,
                   bool waits) {
    Launch<Arguments...> call = {kernel, addresses};
    fiber_body = call.body;
    fiber_argument = &call;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        if (waits) run_fibers(threads);
        else
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) call.body(&call);
    }
}

#define LAUNCHER(kernel)                                                                            \
    extern "C" void run_##kernel(void **addresses, unsigned blocks, unsigned threads, bool waits) { \
        launch(kernel, addresses, blocks, threads, waits);                                          \
    }
