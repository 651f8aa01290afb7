/* Runs device code on the host, so that it can be tested without a GPU: what CUDA
 * C adds to C++, a grid that runs block after block, and threads of a block as
 * fibers that take turns at __syncthreads(). Included before a unit; after it
 * stands one LAUNCHER or DRIVER_LAUNCHER for each kernel.
 *
 * A thread that never waits costs no fiber of its own: the next one runs on the
 * same stack. Every other block runs its threads backwards, and shared memory
 * holds 0xA5 when a block begins, so that a missing barrier and a missing
 * initialization show. Atomics are plain: one thread runs at a time. A unit that is
 * compiled with -fsanitize=address switches its stack by the sanitizer's functions;
 * with HOST_RACES races are found (host_races.h).
 */
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

#define __global__
#define __host__
#define __device__   __attribute__((unused))
#define __constant__ __attribute__((unused))
#define __forceinline__
#define __shared__ static __attribute__((section("host_shared")))
#define __launch_bounds__(...)

/* The shared variables of the unit are adjacent, between these. */
static char host_shared_anchor __attribute__((section("host_shared"), used));
extern "C" char __start_host_shared[] __attribute__((visibility("hidden")));
extern "C" char __stop_host_shared[] __attribute__((visibility("hidden")));

#ifdef HOST_RACES
#include "tests/cuda/host_races.h"
#define HOST_ATOMIC_ACCESS(address) races::access(address, sizeof *(address), true, true)
#else
#define HOST_UNCHECKED
#define HOST_STATE
#define HOST_ATOMIC_ACCESS(address) (void)(address)
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace host {
struct Index {
    unsigned x, y, z;
};
} // namespace host
HOST_STATE static host::Index blockIdx, threadIdx, blockDim, gridDim;

/* Functions that CUDA has built in. */
template <typename To, typename From> static inline To host_bits(From value) {
    To result;
    static_assert(sizeof result == sizeof value, "as many bits");
    memcpy(&result, &value, sizeof result);
    return result;
}
static inline int __float_as_int(float value) {
    return host_bits<int>(value);
}
static inline unsigned __float_as_uint(float value) {
    return host_bits<unsigned>(value);
}
static inline float __int_as_float(int value) {
    return host_bits<float>(value);
}
static inline float __uint_as_float(unsigned value) {
    return host_bits<float>(value);
}
static inline long long __double_as_longlong(double value) {
    return host_bits<long long>(value);
}
static inline double __longlong_as_double(long long value) {
    return host_bits<double>(value);
}
static inline int __clz(int value) {
    return value ? __builtin_clz((unsigned)value) : 32;
}
static inline int __clzll(unsigned long long value) {
    return value ? __builtin_clzll(value) : 64;
}
static inline int __popc(unsigned value) {
    return __builtin_popcount(value);
}
static inline int __popcll(unsigned long long value) {
    return __builtin_popcountll(value);
}
static inline int __ffs(int value) {
    return __builtin_ffs(value);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline float rsqrtf(float value) {
    return 1 / sqrtf(value);
}
static inline double rsqrt(double value) {
    return 1 / sqrt(value);
}

#ifdef HOST_PERTURB
/* Functions as another library of mathematics rounds them: up to two units in the last place away. Results of
 * few bits stay, as exp(0) does. */
static inline float host_moved(float value) {
    unsigned bits = __float_as_uint(value), mixed = (bits ^ HOST_PERTURB * 0x9e3779b9u) * 0x85ebca6bu;
    if (!isfinite(value) || (bits & 0xff) == 0) return value;
    return __uint_as_float(bits + (mixed >> 16) % 5 - 2);
}
#define expf(x)      host_moved(expf(x))
#define expm1f(x)    host_moved(expm1f(x))
#define logf(x)      host_moved(logf(x))
#define log1pf(x)    host_moved(log1pf(x))
#define tanhf(x)     host_moved(tanhf(x))
#define sinf(x)      host_moved(sinf(x))
#define cosf(x)      host_moved(cosf(x))
#define erff(x)      host_moved(erff(x))
#define rsqrtf(x)    host_moved(rsqrtf(x))
#define powf(x, y)   host_moved(powf(x, y))
#define atan2f(y, x) host_moved(atan2f(y, x))
#endif
template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b) {
    return a < b ? b : a;
}

/* Atomics: of the types that CUDA has them for on sm_80 and later; they return the old value. */
template <typename Value> HOST_UNCHECKED static inline Value host_exchange(Value *address, Value value) {
    HOST_ATOMIC_ACCESS(address);
    Value old = *address;
    *address = value;
    return old;
}
#define HOST_ATOMIC(name, Value, result)                                   \
    HOST_UNCHECKED static inline Value name(Value *address, Value value) { \
        Value old = *address;                                              \
        return host_exchange<Value>(address, (Value)(result));             \
    }
#define HOST_INTEGER_ATOMICS(Value)                          \
    HOST_ATOMIC(atomicMax, Value, old < value ? value : old) \
    HOST_ATOMIC(atomicMin, Value, value < old ? value : old) \
    HOST_ATOMIC(atomicAnd, Value, old &value)                \
    HOST_ATOMIC(atomicOr, Value, old | value)                \
    HOST_ATOMIC(atomicXor, Value, old ^ value)
#define HOST_COMPARE_AND_SWAP(Value)                                                            \
    HOST_UNCHECKED static inline Value atomicCAS(Value *address, Value expected, Value value) { \
        HOST_ATOMIC_ACCESS(address);                                                            \
        Value old = *address;                                                                   \
        if (old == expected) *address = value;                                                  \
        return old;                                                                             \
    }
HOST_ATOMIC(atomicAdd, int, (unsigned)old + (unsigned)value)
HOST_ATOMIC(atomicAdd, unsigned, old + value)
HOST_ATOMIC(atomicAdd, unsigned long long, old + value)
HOST_ATOMIC(atomicAdd, float, old + value)
HOST_ATOMIC(atomicAdd, double, old + value)
HOST_ATOMIC(atomicSub, int, (unsigned)old - (unsigned)value)
HOST_ATOMIC(atomicSub, unsigned, old - value)
HOST_ATOMIC(atomicExch, int, value)
HOST_ATOMIC(atomicExch, unsigned, value)
HOST_ATOMIC(atomicExch, unsigned long long, value)
HOST_ATOMIC(atomicExch, float, value)
HOST_INTEGER_ATOMICS(int)
HOST_INTEGER_ATOMICS(unsigned)
HOST_INTEGER_ATOMICS(long long)
HOST_INTEGER_ATOMICS(unsigned long long)
HOST_COMPARE_AND_SWAP(int)
HOST_COMPARE_AND_SWAP(unsigned)
HOST_COMPARE_AND_SWAP(unsigned short)
HOST_COMPARE_AND_SWAP(unsigned long long)
static inline void __threadfence() {}
static inline void __threadfence_block() {}

namespace host {

enum { MOST_THREADS = 1024, STACK_BYTES = 65536 };
static char stacks[MOST_THREADS][STACK_BYTES];
static ucontext_t context;
static jmp_buf first[MOST_THREADS], waiting[MOST_THREADS], turn;
static bool exists[MOST_THREADS], waits[MOST_THREADS];
static volatile unsigned fiber; /* the one that runs */
static unsigned threads, next_thread;
static bool backwards;
static void (*body)(void *);
static void *argument;

/* Announce a switch to the stack of a thread or back, and the arrival there, to the address sanitizer. */
#ifdef __SANITIZE_ADDRESS__
static const void *main_stack;
static size_t main_bytes;
static void leave_for_fiber(unsigned which) {
    __sanitizer_start_switch_fiber(nullptr, stacks[which], STACK_BYTES);
}
static void leave_for_main() {
    __sanitizer_start_switch_fiber(nullptr, main_stack, main_bytes);
}
static void arrive_in_fiber() {
    __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_bytes);
}
static void arrive_in_main() {
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}
#else
static void leave_for_fiber(unsigned) {}
static void leave_for_main() {}
static void arrive_in_fiber() {}
static void arrive_in_main() {}
#endif

/* A kernel's own code begins, as a thread of this block, or ends. */
#ifdef HOST_RACES
HOST_UNCHECKED static void begin_code(Index at) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    races::thread = 1 + block * threads + (at.z * blockDim.y + at.y) * blockDim.x + at.x;
    races::runs = true;
}
HOST_UNCHECKED static void end_code() {
    races::look_at_pending();
    races::runs = false;
}
HOST_UNCHECKED static void set_barriers(unsigned count) {
    races::barriers = count;
    if (count == 0) races::begin_block();
}
#else
static void begin_code(Index) {}
static void end_code() {}
static void set_barriers(unsigned) {}
#endif

/* Runs threads that have not begun, one after the other, on this fiber. */
static void run_threads() {
    arrive_in_fiber();
    while (next_thread < threads) {
        unsigned thread = backwards ? threads - 1 - next_thread : next_thread;
        next_thread++;
        threadIdx.x = thread % blockDim.x;
        threadIdx.y = thread / blockDim.x % blockDim.y;
        threadIdx.z = thread / blockDim.x / blockDim.y;
        begin_code(threadIdx);
        body(argument);
        end_code();
    }
    waits[fiber] = false;
    leave_for_main();
    _longjmp(turn, 1);
}

/* A fiber: each block begins it anew, which takes no call of the system. */
static void run_fiber() {
    exists[fiber] = true;
    _setjmp(first[fiber]);
    run_threads();
}

static void barrier() {
    unsigned self = fiber;
    Index thread = threadIdx;
    end_code();
    waits[self] = true;
    if (_setjmp(waiting[self]) == 0) {
        leave_for_main();
        _longjmp(turn, 1);
    }
    arrive_in_fiber();
    fiber = self;
    threadIdx = thread;
    begin_code(thread);
}

/* Fibers begin until all threads have, then take turns from barrier to barrier. */
static void run_block() {
    static volatile unsigned begun, left, barriers;
    barriers = 0;
    set_barriers(0);
    memset(__start_host_shared, 0xA5, (size_t)(__stop_host_shared - __start_host_shared));
    next_thread = 0;
    for (begun = 0; next_thread < threads; begun++) {
        fiber = begun;
        if (_setjmp(turn) == 0) {
            if (!exists[fiber]) {
                getcontext(&context);
                context.uc_stack.ss_sp = stacks[fiber];
                context.uc_stack.ss_size = STACK_BYTES;
                context.uc_link = nullptr;
                makecontext(&context, run_fiber, 0);
            }
            leave_for_fiber(fiber);
            if (exists[fiber]) _longjmp(first[fiber], 1);
            setcontext(&context);
        }
        arrive_in_main();
    }
    do {
        left = 0;
        barriers = barriers + 1;
        set_barriers(barriers);
        for (fiber = 0; fiber < begun; fiber = fiber + 1) {
            if (!waits[fiber]) continue;
            if (_setjmp(turn) == 0) {
                leave_for_fiber(fiber);
                _longjmp(waiting[fiber], 1);
            }
            arrive_in_main();
            left = left + waits[fiber];
        }
    } while (left > 0);
}

/* A kernel and its arguments: the i-th is of its own type, at addresses[i]. */
template <typename... Arguments> struct Launch {
    void (*kernel)(Arguments...);
    void **addresses;
    template <size_t... Place> void call(std::index_sequence<Place...>) {
        kernel(*(typename std::remove_reference<Arguments>::type *)addresses[Place]...);
    }
    static void run(void *self) {
        ((Launch *)self)->call(std::index_sequence_for<Arguments...>());
    }
};

template <typename... Arguments>
static void launch(const char *name, void (*kernel)(Arguments...), void **addresses, const unsigned *grid,
                   const unsigned *block) {
    Launch<Arguments...> call = {kernel, addresses};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads = block[0] * block[1] * block[2];
#ifdef HOST_RACES
    void *pointers[sizeof...(Arguments) + 1];
    const bool is_pointer[] = {std::is_pointer<Arguments>::value..., false};
    int pointer_count = 0;
    for (size_t k = 0; k < sizeof...(Arguments); k++)
        if (is_pointer[k]) pointers[pointer_count++] = addresses[k];
    races::begin(name, pointers, pointer_count, threads, stacks, sizeof stacks);
#else
    (void)name;
#endif
    body = call.run;
    argument = &call;
    backwards = false;
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++) {
                run_block();
                backwards = !backwards;
            }
}

/* The sizes that a launch copies: the bytes of each argument, negative for a pointer. */
template <typename... Arguments> static int describe(void (*)(Arguments...), int *sizes, int most) {
    const int all[] = {
        (std::is_pointer<Arguments>::value ? -(int)sizeof(Arguments) : (int)sizeof(Arguments))..., 0};
    int count = sizeof...(Arguments);
    for (int k = 0; k < count && k < most; k++) sizes[k] = all[k];
    return count;
}

/* Kernels whose arguments are all pointers: `pointers` holds them. */
template <typename... Arguments>
static void launch_pointers(const char *name, void (*kernel)(Arguments...), void **pointers, unsigned blocks,
                            unsigned block_threads) {
    void *addresses[sizeof...(Arguments) + 1];
    const unsigned grid[] = {blocks, 1, 1}, block[] = {block_threads, 1, 1};
    for (size_t k = 0; k < sizeof...(Arguments); k++) addresses[k] = &pointers[k];
    launch(name, kernel, addresses, grid, block);
}

} // namespace host

static inline void __syncthreads() {
    host::barrier();
}

/* For a test that calls a kernel of pointers itself. */
#define LAUNCHER(kernel)                                                                     \
    extern "C" void run_##kernel(void **pointers, unsigned blocks, unsigned threads, bool) { \
        host::launch_pointers(#kernel, kernel, pointers, blocks, threads);                   \
    }
/* For the stand-in driver (tests/cuda/stand_in/cuda_module.c). */
#define DRIVER_LAUNCHER(kernel)                                                                   \
    extern "C" void run_##kernel(void **addresses, const unsigned *grid, const unsigned *block) { \
        host::launch(#kernel, kernel, addresses, grid, block);                                    \
    }                                                                                             \
    extern "C" int describe_##kernel(int *sizes, int most) {                                      \
        return host::describe(kernel, sizes, most);                                               \
    }
