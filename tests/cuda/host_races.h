/* A race detector for kernels on the host, part of host.h. The unit is compiled with
 * -DHOST_RACES -fsanitize=thread and linked without the thread sanitizer.
 *
 * The compiler calls __tsan_read4() and similar functions before every access to memory; the
 * functions are here. Two accesses to a byte by different threads, one of them a
 * write, are ordered only by a barrier of their block: they race if the threads are
 * of different blocks, or of one block without a barrier in between. Two atomic
 * accesses do not race, nor do two writes of the same value. The order in which host.h runs the threads plays
 * no part, so every race of a launch is found. A race ends the process with one line, or is counted where a
 * test sets host_races_are_counted.
 */
#ifndef TESTS_CUDA_HOST_RACES_H
#define TESTS_CUDA_HOST_RACES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define HOST_UNCHECKED __attribute__((no_sanitize("thread"), no_sanitize_coverage))
#define HOST_STATE     __attribute__((section("host_state")))

extern "C" char __start_host_state[] __attribute__((visibility("hidden")));
extern "C" char __stop_host_state[] __attribute__((visibility("hidden")));
extern "C" __attribute__((visibility("default"))) int host_races_are_counted, host_race_count;
int host_races_are_counted, host_race_count;
extern "C" __attribute__((visibility("default"))) char host_race_text[320];
char host_race_text[320];

namespace races {

/* The accesses to a byte since its last reset: the last writer, and all readers since the last barrier
 * of their block. A thread's number in the grid counts from 1. */
enum Flag : uint32_t {
    ATOMIC = 1u << 31,
    THREADS = 1u << 30, /* more threads of the same block since the same barrier */
    BLOCKS = 1u << 29,  /* threads of other blocks */
    BARRIERS = BLOCKS - 1
};
struct Accesses {
    uint32_t thread, when; /* 0: none; barriers before the access, flags */
};
struct Cell {
    Accesses writes, reads;
};
enum { PAGE = 4096 };
struct Page {
    uintptr_t number;
    uint64_t launch; /* of which its cells are; 0: of none */
    Cell *cells;
};

static Page *pages; /* by hash; cells NULL: free */
static size_t page_capacity, page_count;
static uint64_t launch;
static bool runs; /* a kernel's own code */
static uint32_t thread, barriers, block_threads;
static const char *kernel;
static void **arguments; /* addresses of the arguments */
static int argument_count;
static const char *skipped_begin, *skipped_end; /* the stacks of the threads */

HOST_UNCHECKED static Page *slot(uintptr_t number) {
    size_t at = (size_t)(number * 0x9E3779B97F4A7C15ull >> 20) & (page_capacity - 1);
    while (pages[at].cells && pages[at].number != number) at = (at + 1) & (page_capacity - 1);
    return &pages[at];
}

HOST_UNCHECKED static void grow() {
    Page *old = pages;
    size_t capacity = page_capacity;
    page_capacity = capacity ? 2 * capacity : 256;
    pages = (Page *)calloc(page_capacity, sizeof *pages);
    if (!pages) abort();
    for (size_t k = 0; k < capacity; k++)
        if (old[k].cells) *slot(old[k].number) = old[k];
    free(old);
}

HOST_UNCHECKED static Cell *cell_of(const char *address) {
    static Page *last;
    uintptr_t number = (uintptr_t)address / PAGE;
    Page *page = last;
    if (!page || page->number != number) {
        if (2 * page_count >= page_capacity) grow();
        page = slot(number);
        if (!page->cells) {
            *page = Page{number, 0, (Cell *)malloc(PAGE * sizeof(Cell))};
            if (!page->cells) abort();
            page_count++;
        }
        last = page;
    }
    if (page->launch != launch) {
        __builtin_memset(page->cells, 0, PAGE * sizeof(Cell));
        page->launch = launch;
    }
    return &page->cells[(uintptr_t)address % PAGE];
}

/* Shared memory is the next block's. */
HOST_UNCHECKED static void begin_block() {
    uintptr_t first = (uintptr_t)__start_host_shared / PAGE, last = (uintptr_t)__stop_host_shared / PAGE;
    for (uintptr_t number = first; page_capacity > 0 && number <= last; number++) slot(number)->launch = 0;
}

HOST_UNCHECKED static bool is_other_block(uint32_t other) {
    return (other - 1) / block_threads != (thread - 1) / block_threads;
}

/* Returns whether an access of this thread races with these. */
HOST_UNCHECKED static bool conflicts(const Accesses *earlier, bool atomic) {
    if (earlier->thread == 0 || (atomic && earlier->when & ATOMIC)) return false;
    if (earlier->when & BLOCKS || is_other_block(earlier->thread)) return true;
    if ((earlier->when & BARRIERS) < barriers) return false;
    return earlier->when & THREADS || earlier->thread != thread;
}

HOST_UNCHECKED static void note(Accesses *all, bool atomic) {
    uint32_t flags = all->when & BLOCKS;
    if (all->thread != 0 && is_other_block(all->thread)) flags |= BLOCKS;
    else if (all->thread != 0 && (all->when & BARRIERS) == barriers)
        flags |= all->when & THREADS || all->thread != thread ? THREADS : 0u;
    *all = Accesses{thread, barriers | flags | (atomic ? ATOMIC : 0u)};
}

HOST_UNCHECKED static void write_place(char *text, size_t bytes, const char *address) {
    const char *nearest = nullptr;
    int argument = 0;
    if (address >= __start_host_shared && address < __stop_host_shared) {
        snprintf(text, bytes, "shared memory");
        return;
    }
    for (int k = 0; k < argument_count; k++) {
        const char *base = *(const char **)arguments[k];
        if (base <= address && (!nearest || base > nearest)) nearest = base, argument = k;
    }
    if (!nearest) snprintf(text, bytes, "address %p", (const void *)address);
    else snprintf(text, bytes, "byte %td of argument %d", address - nearest, argument);
}

/* A write that races with an earlier one, until the value is there. */
static struct {
    const char *address; /* NULL: there is none */
    size_t bytes;
    Accesses earlier;
    char values[16]; /* of the earlier write */
} pending;

HOST_UNCHECKED static void report(const char *address, const Accesses *earlier, const char *was,
                                  const char *is) {
    char place[64], who[48];
    uint32_t other = earlier->thread - 1, self = thread - 1;
    if (host_race_count++ > 0) return;
    write_place(place, sizeof place, address);
    if (earlier->when & BLOCKS) snprintf(who, sizeof who, "several blocks:");
    else if (earlier->when & THREADS)
        snprintf(who, sizeof who, "several threads of block %u:", other / block_threads);
    else snprintf(who, sizeof who, "block %u thread %u", other / block_threads, other % block_threads);
    snprintf(host_race_text, sizeof host_race_text,
             "race in kernel %s: %s: %s %s, block %u thread %u %s, without a barrier in between", kernel,
             place, who, was, self / block_threads, self % block_threads, is);
    if (host_races_are_counted) return;
    fprintf(stderr, "%s\n", host_race_text);
    abort();
}

/* Before the next access of the thread, and when its code ends. */
HOST_UNCHECKED static void look_at_pending() {
    const char *address = pending.address;
    pending.address = nullptr;
    if (address && __builtin_memcmp(address, pending.values, pending.bytes) != 0)
        report(address, &pending.earlier, "writes", "writes");
}

HOST_UNCHECKED static void access(const void *memory, size_t bytes, bool writes, bool atomic) {
    const char *address = (const char *)memory;
    if (!runs || (address >= skipped_begin && address < skipped_end) ||
        (address >= __start_host_state && address < __stop_host_state))
        return;
    look_at_pending();
    for (size_t k = 0; k < bytes; k++) {
        Cell *cell = cell_of(address + k);
        if (conflicts(&cell->writes, atomic)) {
            if (!writes || atomic || bytes > sizeof pending.values)
                return report(address + k, &cell->writes, "writes", writes ? "writes" : "reads");
            if (!pending.address) {
                pending = {address + k, bytes - k, cell->writes, {}};
                __builtin_memcpy(pending.values, address + k, bytes - k);
            }
        }
        if (writes && conflicts(&cell->reads, atomic))
            return report(address + k, &cell->reads, "reads", "writes");
        note(writes ? &cell->writes : &cell->reads, atomic);
    }
}

/* A launch begins: earlier ones are ordered before it. */
HOST_UNCHECKED static void begin(const char *name, void **addresses, int count, unsigned threads,
                                 const void *stacks, size_t stack_bytes) {
    launch++;
    kernel = name;
    arguments = addresses;
    argument_count = count;
    block_threads = threads;
    skipped_begin = (const char *)stacks;
    skipped_end = skipped_begin + stack_bytes;
}

} // namespace races

#define HOST_ACCESSES(bytes)                                                \
    extern "C" HOST_UNCHECKED void __tsan_read##bytes(void *address) {      \
        races::access(address, bytes, false, false);                        \
    }                                                                       \
    extern "C" HOST_UNCHECKED void __tsan_write##bytes(void *address) {     \
        races::access(address, bytes, true, false);                         \
    }                                                                       \
    extern "C" HOST_UNCHECKED void __tsan_unaligned_read##bytes(void *a) {  \
        races::access(a, bytes, false, false);                              \
    }                                                                       \
    extern "C" HOST_UNCHECKED void __tsan_unaligned_write##bytes(void *a) { \
        races::access(a, bytes, true, false);                               \
    }
HOST_ACCESSES(1)
HOST_ACCESSES(2)
HOST_ACCESSES(4)
HOST_ACCESSES(8)
HOST_ACCESSES(16)
extern "C" HOST_UNCHECKED void __tsan_read_range(void *address, size_t bytes) {
    races::access(address, bytes, false, false);
}
extern "C" HOST_UNCHECKED void __tsan_write_range(void *address, size_t bytes) {
    races::access(address, bytes, true, false);
}
extern "C" HOST_UNCHECKED void __tsan_init() {}
extern "C" HOST_UNCHECKED void __tsan_func_entry(void *) {}
extern "C" HOST_UNCHECKED void __tsan_func_exit() {}

#endif
