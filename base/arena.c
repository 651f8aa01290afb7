/* Arena: blocks, newest first, each twice the size of the previous one up to 4 MiB; a larger request gets a
 * block of its own size. Where a request does not fit into the newest block, but leaves less of another one,
 * that one is put beside, and the rest of the newest is not lost.
 *
 * Blocks come zeroed from calloc or mmap, so that fresh memory costs nothing until it is touched. Released
 * memory is kept and zeroed again on allocation, just before it is written, so that every
 * allocation is zero. The largest blocks are mapped with huge pages: the first touch of a module's
 * memory page by page takes a third of the time of reading the module. A cache keeps released blocks for all
 * arenas: the system takes about as long to clear a block as a search to fill it. Blocks are mapped and not
 * from the heap, which would keep those that the cache gives up.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#include "base/arena.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/out_of_memory.h"

enum { ALIGNMENT = 16 };
#ifndef ARENA_FIRST_BLOCK /* tests: 0 gives every request a block of its own */
#define ARENA_FIRST_BLOCK 4096
#endif
static const size_t FIRST_BLOCK = ARENA_FIRST_BLOCK;
static const size_t LARGEST_BLOCK = ((size_t)4 << 20) - 64; /* with its head two huge pages */
static const size_t LARGEST_REQUEST = (size_t)1 << 46;

typedef struct ArenaBlock {
    struct ArenaBlock *older;
    struct ArenaBlock *beside; /* newest first: of one request each, taken while this one was the newest */
    size_t capacity, used;
    size_t touched; /* memory after it was never allocated and is zero */
    size_t before;  /* bytes that the arena had handed out when it took the block */
    _Alignas(16) unsigned char data[];
} ArenaBlock;

/* Leak checkers do not search mapped memory for pointers. */
#if defined(__SANITIZE_ADDRESS__)
#define MAPS_BLOCKS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MAPS_BLOCKS 0
#endif
#endif
#ifndef MAPS_BLOCKS
#define MAPS_BLOCKS 1
#endif

/* ---- the block cache: released blocks, for all arenas ---- */

/* Class k has blocks of LEAST_CACHED << k bytes, the last but one those of LARGEST_BLOCK, and the last one
 * larger blocks. Smaller blocks are left to the heap. */
enum { CACHE_CLASSES = 8, CLASS_LARGEST = CACHE_CLASSES - 2, CLASS_LARGER = CACHE_CLASSES - 1 };
static const size_t LEAST_CACHED = 64 << 10;
static const size_t MOST_CACHED = 8 << 20; /* bytes in all, where the arenas are near their peak */

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static ArenaBlock *free_lists[CACHE_CLASSES]; /* newest first */
static size_t cached_bytes, peak_bytes;       /* of mapped blocks: in the cache; the most in arenas so far */
static atomic_size_t used_bytes;              /* of mapped blocks in arenas now */

static bool is_mapped(size_t capacity) {
    return MAPS_BLOCKS && capacity >= LEAST_CACHED;
}

/* Returns the class of the smallest blocks with so much room; `*capacity` becomes their size. Blocks must be
 * mapped. */
static int32_t class_of(size_t *capacity) {
    int32_t class = 0;
    if (*capacity > LARGEST_BLOCK) return CLASS_LARGER;
    while (class < CLASS_LARGEST && LEAST_CACHED << class < *capacity) class ++;
    *capacity = class == CLASS_LARGEST ? LARGEST_BLOCK : LEAST_CACHED << class;
    return class;
}

/* Returns whether this thread now holds the lock of the cache. Another thread may have it for ever, in the
 * process that this one was forked from. */
static bool lock_cache(void) {
    enum { ATTEMPTS = 64 };
    for (int32_t k = 0; k < ATTEMPTS; k++) {
        if (pthread_mutex_trylock(&cache_lock) == 0) return true;
        sched_yield();
    }
    return false;
}

static void block_free(ArenaBlock *block) {
    if (is_mapped(block->capacity)) munmap(block, sizeof(ArenaBlock) + block->capacity);
    else free(block);
}

/* Takes the block at a place of a list out of the cache. NULL: the list ends there. */
static ArenaBlock *unlist(ArenaBlock **place) {
    ArenaBlock *block = *place;
    if (!block) return NULL;
    *place = block->older;
    cached_bytes -= block->capacity;
    return block;
}

/* Returns whether the cache has room for so many bytes more: cache and arenas stay below the peak of the
 * arenas, or the cache below MOST_CACHED. */
static bool has_room(size_t capacity) {
    size_t used = atomic_load(&used_bytes), cached = cached_bytes + capacity;
    return cached <= MOST_CACHED || used + cached <= peak_bytes;
}

/* Takes a block with so much room, and at most twice as much, from the cache. NULL: it has none; then blocks
 * leave the cache, the largest first, until it would have room for the one that the caller maps anew. */
static ArenaBlock *take_cached(int32_t class, size_t capacity) {
    if (!lock_cache()) return NULL;
    ArenaBlock **place = &free_lists[class], *released = NULL;
    while (*place && ((*place)->capacity < capacity || (*place)->capacity / 2 > capacity))
        place = &(*place)->older;
    ArenaBlock *block = unlist(place);
    /* a larger block, rather than return one to the system and map another */
    for (int32_t from = class + 1; !block && from <= CLASS_LARGEST; from++) block = unlist(&free_lists[from]);
    for (int32_t from = CLASS_LARGER; !block && from >= 0 && !has_room(capacity);) {
        ArenaBlock *cached = unlist(&free_lists[from]);
        if (!cached) {
            from--;
            continue;
        }
        cached->older = released;
        released = cached;
    }
    size_t used = atomic_load(&used_bytes) + (block ? block->capacity : capacity);
    if (used > peak_bytes) peak_bytes = used;
    pthread_mutex_unlock(&cache_lock);
    for (ArenaBlock *older; released; released = older) {
        older = released->older;
        block_free(released);
    }
    return block;
}

/* Puts a block into the cache, or returns it to the system where the cache has no room. */
static void block_release(ArenaBlock *block) {
    size_t capacity = block->capacity;
    bool is_block_mapped = is_mapped(capacity);
    if (is_block_mapped) atomic_fetch_sub(&used_bytes, capacity);
    if (!is_block_mapped || !lock_cache()) {
        block_free(block);
        return;
    }
    int32_t class = class_of(&capacity);
    bool is_kept = has_room(capacity);
    if (is_kept) {
        block->used = 0;
        block->older = free_lists[class];
        free_lists[class] = block;
        cached_bytes += capacity;
    }
    pthread_mutex_unlock(&cache_lock);
    if (!is_kept) block_free(block);
}

/* ---- allocation ---- */

/* Returns a block of at least so much room. NULL: no memory. */
static ArenaBlock *block_new(size_t capacity) {
    ArenaBlock *block;
    if (is_mapped(capacity)) {
        int32_t class = class_of(&capacity);
        block = take_cached(class, capacity);
        if (block) {
            atomic_fetch_add(&used_bytes, block->capacity);
            return block;
        }
        size_t bytes = sizeof(ArenaBlock) + capacity;
        void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return NULL;
        atomic_fetch_add(&used_bytes, capacity);
        if (class >= CLASS_LARGEST) madvise(mapped, bytes, MADV_HUGEPAGE);
        block = mapped;
    } else {
        block = calloc(1, sizeof(ArenaBlock) + capacity);
        if (!block) return NULL;
    }
    block->capacity = capacity;
    return block;
}

void arena_free_cache(void) {
    for (int32_t class = 0; class < CACHE_CLASSES && lock_cache(); class ++) {
        ArenaBlock *block = free_lists[class];
        free_lists[class] = NULL;
        for (ArenaBlock *older; block; block = older) {
            older = block->older;
            cached_bytes -= block->capacity;
            block_free(block);
        }
        pthread_mutex_unlock(&cache_lock);
    }
}

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

static void *fail(Arena *arena) {
    arena->failed = true;
    return NULL;
}

/* Returns the next bytes of a block, zeroed on request. */
static void *hand_out(ArenaBlock *block, size_t bytes, bool zeroed) {
    unsigned char *memory = block->data + block->used;
    size_t end = block->used + bytes;
    if (zeroed && block->touched > block->used)
        memset(memory, 0, (block->touched < end ? block->touched : end) - block->used);
    if (end > block->touched) block->touched = end;
    block->used = end;
    return memory;
}

/* Returns the smallest spare block with so much room, or NULL. */
static ArenaBlock *take_spare(Arena *arena, size_t bytes) {
    ArenaBlock **best = NULL;
    for (ArenaBlock **place = &arena->spare; *place; place = &(*place)->older)
        if ((*place)->capacity >= bytes && (!best || (*place)->capacity < (*best)->capacity)) best = place;
    ArenaBlock *block = best ? *best : NULL;
    if (block) *best = block->older;
    return block;
}

/* Allocates at least one byte, so that pointers stay distinct. */
static void *allocate(Arena *arena, size_t bytes, bool zeroed) {
    if (bytes > LARGEST_REQUEST) return fail(arena);
    size_t rounded = round_up(bytes ? bytes : 1);
    if (arena->limit && (rounded > arena->limit || arena->used > arena->limit - rounded)) return fail(arena);
    ArenaBlock *block = arena->blocks;
    size_t room = block ? block->capacity - block->used : 0;
    if (!block || room < rounded) {
        size_t capacity = block && FIRST_BLOCK ? block->capacity * 2 : FIRST_BLOCK;
        if (capacity > LARGEST_BLOCK) capacity = LARGEST_BLOCK;
        if (capacity < rounded) capacity = rounded;
        block = take_spare(arena, rounded);
        if (!block) {
            block = block_new(capacity);
            if (!block) {
                out_of_memory((int64_t)capacity);
                return fail(arena);
            }
        }
        /* the block with more room serves the next requests */
        ArenaBlock **list = block->capacity - rounded < room ? &arena->blocks->beside : &arena->blocks;
        block->before = arena->used;
        block->older = *list;
        *list = block;
    }
    arena->used += rounded;
    return hand_out(block, rounded, zeroed);
}

void *arena_alloc(Arena *arena, size_t bytes) {
    return allocate(arena, bytes, true);
}

void *arena_alloc_raw(Arena *arena, size_t bytes) {
    return allocate(arena, bytes, false);
}

void *arena_grow(Arena *arena, const void *old, size_t old_bytes, size_t new_bytes) {
    if (new_bytes > LARGEST_REQUEST) return fail(arena);
    ArenaBlock *block = arena->blocks;
    size_t old_rounded = round_up(old_bytes ? old_bytes : 1);
    if (old && new_bytes <= old_rounded) return (void *)(uintptr_t)old;

    /* The newest allocation is extended where it lies. */
    bool newest = old && block && block->used >= old_rounded &&
                  (const unsigned char *)old == block->data + block->used - old_rounded;
    if (newest) {
        size_t more = round_up(new_bytes) - old_rounded;
        bool within_limit = !arena->limit || more <= arena->limit - arena->used;
        if (block->capacity - block->used >= more && within_limit) {
            hand_out(block, more, true);
            arena->used += more;
            return (void *)(uintptr_t)old;
        }
    }
    void *grown = arena_alloc(arena, new_bytes);
    if (grown && old_bytes && old) memcpy(grown, old, old_bytes);
    return grown;
}

char *arena_copy_bytes(Arena *arena, const void *bytes, size_t count) {
    if (!bytes && count) return fail(arena);
    char *copy = arena_alloc(arena, count + 1);
    if (copy && count) memcpy(copy, bytes, count);
    return copy;
}

char *arena_copy_string(Arena *arena, const char *text) {
    return text ? arena_copy_bytes(arena, text, strlen(text)) : fail(arena);
}

char *arena_vformat(Arena *arena, const char *format, va_list arguments) {
    char short_text[256]; /* most texts are formatted once */
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(short_text, sizeof short_text, format, again);
    va_end(again);
    if (length < 0) return fail(arena);
    if ((size_t)length < sizeof short_text) return arena_copy_bytes(arena, short_text, (size_t)length);
    char *text = arena_alloc(arena, (size_t)length + 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, arguments);
    return text;
}

char *arena_format(Arena *arena, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = arena_vformat(arena, format, arguments);
    va_end(arguments);
    return text;
}

ArenaMark arena_mark(const Arena *arena) {
    return (ArenaMark){arena->blocks, arena->blocks ? arena->blocks->used : 0, arena->used};
}

/* Keeps a small block for the next round, as a search releases its scratch memory hundreds of times, and
 * releases others. */
static void keep_or_release(Arena *arena, ArenaBlock *block) {
    if (is_mapped(block->capacity)) {
        block_release(block);
        return;
    }
    block->used = 0;
    block->older = arena->spare;
    arena->spare = block;
}

/* Releases the blocks beside one that were taken after the arena had handed out so many bytes. */
static void release_beside(Arena *arena, ArenaBlock *block, size_t used) {
    while (block->beside && block->beside->before >= used) {
        ArenaBlock *newest = block->beside;
        block->beside = newest->older;
        keep_or_release(arena, newest);
    }
}

void arena_release(Arena *arena, ArenaMark mark) {
    while (arena->blocks != mark.block) {
        ArenaBlock *block = arena->blocks;
        arena->blocks = block->older;
        release_beside(arena, block, 0);
        keep_or_release(arena, block);
    }
    if (mark.block) release_beside(arena, mark.block, mark.used);
    if (mark.block) mark.block->used = mark.block_used;
    arena->used = mark.used;
}

static void free_list(ArenaBlock *block) {
    for (ArenaBlock *older; block; block = older) {
        older = block->older;
        for (ArenaBlock *beside; (beside = block->beside);) {
            block->beside = beside->older;
            block_release(beside);
        }
        block_release(block);
    }
}

void arena_free(Arena *arena) {
    free_list(arena->blocks);
    free_list(arena->spare);
    *arena = (Arena){.limit = arena->limit};
}

void arena_join(Arena *arena, Arena *other) {
    ArenaBlock **oldest = &arena->blocks, **last_spare = &arena->spare;
    while (*oldest) oldest = &(*oldest)->older;
    while (*last_spare) last_spare = &(*last_spare)->older;
    *oldest = other->blocks;
    *last_spare = other->spare;
    arena->used += other->used;
    arena->failed |= other->failed;
    *other = (Arena){.limit = other->limit};
}
