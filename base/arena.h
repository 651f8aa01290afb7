/* Arena: all memory of a module, a plan or a search, released at once.
 *
 * Blocks double in size up to 4 MiB. Memory is zeroed (but for arena_alloc_raw), aligned to 16 bytes and
 * stays where it is until the arena is released or freed. A failed allocation sets `failed` and returns NULL.
 * Callers that allocate in proportion to their input check `failed` once at the end of a pass, or each
 * pointer before its first use. An arena is used by one thread at a time.
 *
 * A cache keeps released blocks for all arenas of the process: 8 MiB, or more while arenas and cache together
 * stay below the most that arenas had before.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Arena {
    struct ArenaBlock *blocks; /* newest first */
    struct ArenaBlock *spare;  /* released small ones, for reuse */
    size_t used;               /* bytes handed out since the last reset */
    size_t limit;              /* 0, or the most bytes that may be handed out */
    bool failed;
} Arena;

typedef struct ArenaMark {
    struct ArenaBlock *block;
    size_t block_used, used;
} ArenaMark;

void *arena_alloc(Arena *arena, size_t bytes);
/* Returns memory with undefined contents, for values that are written before they are read; NULL as
 * arena_alloc(). */
void *arena_alloc_raw(Arena *arena, size_t bytes);
/* Grows memory that arena_alloc returned; old content is copied. */
void *arena_grow(Arena *arena, const void *old, size_t old_bytes, size_t new_bytes);
char *arena_copy_string(Arena *arena, const char *text);
char *arena_copy_bytes(Arena *arena, const void *bytes, size_t count); /* NUL-terminated */
char *arena_format(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *arena_vformat(Arena *arena, const char *format, va_list arguments);
ArenaMark arena_mark(const Arena *arena);
void arena_release(Arena *arena, ArenaMark mark); /* frees all allocations since the mark */
void arena_free(Arena *arena);
/* Moves all memory of another arena, which is empty then, to the arena. Marks of the arena stay valid; the
 * memory is freed with the arena alone. */
void arena_join(Arena *arena, Arena *other);
/* Frees the blocks in the cache, which count as allocated until then. */
void arena_free_cache(void);

#define ARENA_ARRAY(arena, type, count)     ((type *)arena_alloc((arena), sizeof(type) * (size_t)(count)))
#define ARENA_ARRAY_RAW(arena, type, count) ((type *)arena_alloc_raw((arena), sizeof(type) * (size_t)(count)))

/* Makes room for one more element of an arena array (pointer, count, capacity). Without memory the array
 * becomes NULL and empty, so that a loop over it ends; the arena stays failed. */
#define ARENA_RESERVE(arena, array, count, capacity)                                      \
    do {                                                                                  \
        if ((count) == (capacity)) {                                                      \
            size_t reserve_new_ = (capacity) ? (size_t)(capacity)*2 : 8;                  \
            (array) = arena_grow((arena), (array), sizeof(*(array)) * (size_t)(capacity), \
                                 sizeof(*(array)) * reserve_new_);                        \
            (capacity) = (array) ? (int32_t)reserve_new_ : 0;                             \
            if (!(array)) (count) = 0;                                                    \
        }                                                                                 \
    } while (0)

#endif
