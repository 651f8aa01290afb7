/* The stand-in driver's memory, copies and fills.
 *
 * Device memory is one range of addresses that is closed to the process except
 * while queued work runs. Each allocation has 256 bytes of a pattern before and after it, which every kernel
 * checks at its end, and begins as 0xA5. Copies with host memory follow the driver: asynchronous only from
 * and to pinned memory; pageable memory is read at the call, or written before it returns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/cuda/stand_in/cuda_parts.h"

enum { GUARD = 256, GUARD_BYTE = 0x5A, POISON = 0xA5, PAGE = 4096, HUGE_PAGE = 2 << 20 };

typedef struct Block {
    char *begin;  /* the address of the caller; the guard is before it */
    size_t bytes; /* the requested bytes */
    size_t whole; /* with both guards */
    Device *device;
    struct Block *next;
} Block;

typedef struct Pinned {
    char *begin;
    size_t bytes;
    struct Pinned *next;
} Pinned;

static char *range;
static size_t range_bytes, range_used;
static Block *blocks; /* by address */
static Pinned *pinned;
static int opened;
static char complaint[160];

static void protect(int protection) {
    if (range_used > 0) mprotect(range, range_used, protection);
}

void memory_open(void) {
    if (opened++ == 0) protect(PROT_READ | PROT_WRITE);
}

void memory_close(void) {
    if (--opened == 0) protect(PROT_NONE);
}

/* Sets the pages in use, up to the end of the last block. Those after them are closed and given back. */
static void set_used(size_t bytes) {
    size_t used = (bytes + PAGE - 1) / PAGE * PAGE;
    if (used < range_used) {
        mprotect(range + used, range_used - used, PROT_NONE);
        madvise(range + used, range_used - used, MADV_DONTNEED);
    }
    range_used = used;
}

/* Reserves addresses that begin at a huge page: opening and closing large blocks takes as long as they have
 * pages. */
static bool reserve_range(void) {
    for (size_t bytes = (size_t)1 << 37; !range && bytes >= (size_t)1 << 28; bytes /= 2) {
        void *memory =
            mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) continue;
        range = (char *)memory + (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE);
        range_bytes = bytes;
        madvise(range, bytes, MADV_HUGEPAGE);
    }
    return range;
}

static Block *block_with(const void *pointer, size_t bytes) {
    const char *at = pointer;
    for (Block *block = blocks; block; block = block->next)
        if (at >= block->begin && at <= block->begin + block->bytes)
            return bytes <= (size_t)(block->begin + block->bytes - at) ? block : NULL;
    return NULL;
}

bool memory_is_device(const void *pointer, size_t bytes) {
    return block_with(pointer, bytes);
}

static bool is_pinned(const void *pointer, size_t bytes) {
    const char *at = pointer;
    for (Pinned *one = pinned; one; one = one->next)
        if (at >= one->begin && at + bytes <= one->begin + one->bytes) return true;
    return false;
}

bool memory_is_reachable(const void *pointer) {
    const char *at = pointer;
    return !at || (at >= range && at < range + range_used) || is_pinned(pointer, 0);
}

void memory_count(StandInMemory *memory) {
    *memory = (StandInMemory){0};
    for (Block *block = blocks; block; block = block->next) {
        memory->allocations++;
        memory->bytes += (int64_t)block->bytes;
    }
}

static bool is_guard(const char *bytes, size_t count) {
    for (size_t k = 0; k < count; k++)
        if ((unsigned char)bytes[k] != GUARD_BYTE) return false;
    return true;
}

const char *memory_overrun(void) {
    const char *words = NULL;
    memory_open();
    for (Block *block = blocks; block && !words; block = block->next) {
        bool before = is_guard(block->begin - GUARD, GUARD);
        bool behind = is_guard(block->begin + block->bytes, block->whole - block->bytes - GUARD);
        if (before && behind) continue;
        snprintf(complaint, sizeof complaint, "bytes %s an allocation of %zu bytes were overwritten",
                 before ? "behind" : "before", block->bytes);
        words = complaint;
    }
    memory_close();
    return words;
}

/* The first gap that is large enough. */
static Block *make_block(Device *device, size_t bytes) {
    size_t whole = GUARD + (bytes + GUARD - 1) / GUARD * GUARD + GUARD;
    char *at = range;
    Block **link = &blocks;
    for (; *link; link = &(*link)->next) {
        if ((size_t)((*link)->begin - GUARD - at) >= whole) break;
        at = (*link)->begin - GUARD + (*link)->whole;
    }
    if (whole > range_bytes || (size_t)(at - range) > range_bytes - whole) return NULL;
    Block *block = malloc(sizeof *block);
    if (!block) return NULL;
    *block = (Block){.begin = at + GUARD, .bytes = bytes, .whole = whole, .device = device, .next = *link};
    *link = block;
    size_t end = (size_t)(at - range) + whole;
    if (end > range_used) set_used(end);
    protect(PROT_READ | PROT_WRITE);
    opened++;
    memset(at, GUARD_BYTE, whole);
    memset(block->begin, POISON, bytes);
    memory_close();
    return block;
}

EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr *memory, size_t bytes) {
    DEVICE_API(cuMemAlloc);
    Device *device = device_current();
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (bytes == 0) return api_end(CUDA_ERROR_INVALID_VALUE);
    Block *block = NULL;
    if (reserve_range() && bytes <= (size_t)(device->memory_bytes - device->used_bytes))
        block = make_block(device, bytes);
    if (!block) return api_end(CUDA_ERROR_OUT_OF_MEMORY);
    StandInMemory now;
    device->used_bytes += (int64_t)bytes;
    memory_count(&now);
    record_peak(now.bytes);
    *memory = (CUdeviceptr)(uintptr_t)block->begin;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr memory) {
    DEVICE_API(cuMemFree);
    if (memory == 0) return api_end(CUDA_SUCCESS);
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    device_drain(device_current(), false);
    for (Block **link = &blocks; *link; link = &(*link)->next) {
        Block *block = *link;
        if ((CUdeviceptr)(uintptr_t)block->begin != memory) continue;
        memory_open();
        memset(block->begin - GUARD, POISON, block->whole);
        memory_close();
        block->device->used_bytes -= (int64_t)block->bytes;
        *link = block->next;
        if (!block->next) {
            const Block *last = link == &blocks ? NULL : (Block *)((char *)link - offsetof(Block, next));
            set_used(last ? (size_t)(last->begin - GUARD + last->whole - range) : 0);
        }
        free(block);
        return api_end(CUDA_SUCCESS);
    }
    return api_end(CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult CUDAAPI cuMemGetInfo(size_t *unused, size_t *total) {
    DEVICE_API(cuMemGetInfo);
    *total = (size_t)device_current()->memory_bytes;
    *unused = (size_t)(device_current()->memory_bytes - device_current()->used_bytes);
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuMemAllocHost(void **memory, size_t bytes) {
    DEVICE_API(cuMemAllocHost);
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    Pinned *one = malloc(sizeof *one);
    *memory = malloc(bytes ? bytes : 1);
    if (!one || !*memory) abort();
    memset(*memory, POISON, bytes);
    *one = (Pinned){.begin = *memory, .bytes = bytes, .next = pinned};
    pinned = one;
    return api_end(CUDA_SUCCESS);
}

EXPORT CUresult CUDAAPI cuMemFreeHost(void *memory) {
    DEVICE_API(cuMemFreeHost);
    if (capture_forbids()) return api_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    device_drain(device_current(), false);
    for (Pinned **link = &pinned; *link; link = &(*link)->next) {
        Pinned *one = *link;
        if (one->begin != memory) continue;
        *link = one->next;
        free(one->begin);
        free(one);
        return api_end(CUDA_SUCCESS);
    }
    return api_end(CUDA_ERROR_INVALID_VALUE);
}

typedef struct Copy {
    void *to;
    const void *from;
    size_t bytes;          /* of a fill: elements */
    unsigned value, width; /* of a fill; width 0: a copy */
} Copy;

static bool run_copy(void *argument) {
    const Copy *copy = argument;
    if (copy->width == 0) memmove(copy->to, copy->from, copy->bytes);
    for (size_t k = 0; copy->width > 0 && k < copy->bytes; k++)
        memcpy((char *)copy->to + k * copy->width, &copy->value, copy->width);
    return true;
}

/* `now`: from pageable memory, which is read at the call. */
static CUresult submit_copy(CUstream stream, const Copy *copy, bool now) {
    size_t bytes = now ? copy->bytes : 0;
    Copy *queued = calloc(1, sizeof *queued + bytes);
    if (!queued) return CUDA_ERROR_OUT_OF_MEMORY;
    *queued = *copy;
    if (now) {
        memcpy(queued + 1, copy->from, bytes);
        queued->from = queued + 1;
    }
    ++*(copy->width ? &stream->record.sets : &stream->record.copies);
    return stream_submit(stream, (Operation){.run = run_copy, .argument = queued});
}

static void *host_address(CUdeviceptr memory) {
    return (void *)(uintptr_t)memory;
}

/* A synchronous copy or fill: on the null stream, done at the end. */
static CUresult copy_now(Copy copy) {
    CUresult result = CUDA_SUCCESS;
    if (capture_forbids()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUstream stream = stream_find(NULL, &result);
    return stream ? submit_copy(stream, &copy, false) : result;
}

EXPORT CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    DEVICE_API(cuMemcpyHtoD);
    if (!memory_is_device(host_address(to), bytes)) return api_end(CUDA_ERROR_INVALID_VALUE);
    return api_end(copy_now((Copy){.to = host_address(to), .from = from, .bytes = bytes}));
}

EXPORT CUresult CUDAAPI cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    DEVICE_API(cuMemcpyDtoH);
    if (!memory_is_device(host_address(from), bytes)) return api_end(CUDA_ERROR_INVALID_VALUE);
    return api_end(copy_now((Copy){.to = to, .from = host_address(from), .bytes = bytes}));
}

EXPORT CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    DEVICE_API(cuMemcpyDtoD);
    if (!memory_is_device(host_address(to), bytes) || !memory_is_device(host_address(from), bytes))
        return api_end(CUDA_ERROR_INVALID_VALUE);
    return api_end(copy_now((Copy){.to = host_address(to), .from = host_address(from), .bytes = bytes}));
}

EXPORT CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes) {
    DEVICE_API(cuMemsetD8);
    if (!memory_is_device(host_address(to), bytes)) return api_end(CUDA_ERROR_INVALID_VALUE);
    return api_end(copy_now((Copy){.to = host_address(to), .bytes = bytes, .value = value, .width = 1}));
}

EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
    DEVICE_API(cuMemcpyHtoDAsync);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream || !memory_is_device(host_address(to), bytes))
        return api_end(stream ? CUDA_ERROR_INVALID_VALUE : result);
    bool now = !is_pinned(from, bytes) && !stream->capture;
    Copy copy = {.to = host_address(to), .from = from, .bytes = bytes};
    return api_end(submit_copy(stream, &copy, now));
}

EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
    DEVICE_API(cuMemcpyDtoHAsync);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream || !memory_is_device(host_address(from), bytes))
        return api_end(stream ? CUDA_ERROR_INVALID_VALUE : result);
    Copy copy = {.to = to, .from = host_address(from), .bytes = bytes};
    result = submit_copy(stream, &copy, false);
    if (result == CUDA_SUCCESS && !is_pinned(to, bytes) && !stream->capture) stream_drain(stream);
    return api_end(result);
}

EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
    DEVICE_API(cuMemcpyDtoDAsync);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return api_end(result);
    if (!memory_is_device(host_address(to), bytes) || !memory_is_device(host_address(from), bytes))
        return api_end(CUDA_ERROR_INVALID_VALUE);
    Copy copy = {.to = host_address(to), .from = host_address(from), .bytes = bytes};
    return api_end(submit_copy(stream, &copy, false));
}

EXPORT CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                          CUcontext from_context, size_t bytes, CUstream handle) {
    DEVICE_API(cuMemcpyPeerAsync);
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream || !to_context || !from_context) return api_end(stream ? CUDA_ERROR_INVALID_CONTEXT : result);
    if (!memory_is_device(host_address(to), bytes) || !memory_is_device(host_address(from), bytes))
        return api_end(CUDA_ERROR_INVALID_VALUE);
    Copy copy = {.to = host_address(to), .from = host_address(from), .bytes = bytes};
    return api_end(submit_copy(stream, &copy, false));
}

static CUresult set_async(CUdeviceptr to, unsigned value, unsigned width, size_t count, CUstream handle) {
    CUresult result = CUDA_SUCCESS;
    CUstream stream = stream_find(handle, &result);
    if (!stream) return result;
    if (count > SIZE_MAX / width || !memory_is_device(host_address(to), count * width) || to % width != 0)
        return CUDA_ERROR_INVALID_VALUE;
    Copy copy = {.to = host_address(to), .bytes = count, .value = value, .width = width};
    return submit_copy(stream, &copy, false);
}

EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    DEVICE_API(cuMemsetD8Async);
    return api_end(set_async(to, value, 1, count, stream));
}

EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    DEVICE_API(cuMemsetD32Async);
    return api_end(set_async(to, value, 4, count, stream));
}
