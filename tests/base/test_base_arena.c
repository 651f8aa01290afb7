/* Arenas: memory is zeroed, aligned, stays in place, and is bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/resource.h>

#include "base/arena.h"

static void memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    Arena arena = {0};
    for (size_t bytes = 0; bytes < 3000; bytes += 7) {
        unsigned char *memory = arena_alloc(&arena, bytes);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(memory[i], 0);
        memset(memory, 0xAB, bytes);
    }
    assert_ptr_not_equal(arena_alloc(&arena, 0), arena_alloc(&arena, 0));
    arena_free(&arena);
    assert_null(arena.blocks);
}

static void release_gives_back_zeroed_memory(void **state) {
    (void)state;
    Arena arena = {0};
    char *kept = arena_copy_string(&arena, "kept");
    ArenaMark mark = arena_mark(&arena);
    size_t used = arena.used;
    char *first = arena_alloc(&arena, 100);
    memset(first, 1, 100);
    memset(arena_alloc(&arena, 1 << 20), 1, 1 << 20);
    arena_release(&arena, mark);
    assert_int_equal(arena.used, used);
    char *again = arena_alloc(&arena, 100);
    assert_ptr_equal(again, first);
    for (int i = 0; i < 100; i++) assert_int_equal(again[i], 0);
    assert_string_equal(kept, "kept");
    arena_free(&arena);
}

static void freed_blocks_come_back_zeroed(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) {
        Arena arena = {0};
        for (size_t bytes = 1000; bytes < 6 << 20; bytes = bytes * 3 / 2) {
            unsigned char *memory = arena_alloc(&arena, bytes);
            for (size_t i = 0; i < bytes; i++) assert_int_equal(memory[i], 0);
            memset(memory, 0xAB, bytes);
        }
        arena_free(&arena);
    }
}

/* A block in which less is left than in the newest one is put beside. The newest one serves further requests,
 * and a release frees what was put beside since the mark. */
static void rests_of_blocks_are_used(void **state) {
    (void)state;
    enum { SMALL = 100, LARGE = 5 << 20 };
    Arena arena = {0};
    char *first = arena_alloc(&arena, SMALL), *kept = arena_alloc(&arena, LARGE);
    assert_ptr_equal(arena_alloc(&arena, SMALL), first + 112);
    memset(kept, 3, LARGE);
    for (int round = 0; round < 2; round++) {
        ArenaMark mark = arena_mark(&arena);
        size_t used = arena.used;
        char *again = arena_alloc(&arena, LARGE);
        for (int i = 0; i < LARGE; i++) assert_int_equal(again[i], 0);
        memset(again, 1, LARGE);
        assert_ptr_equal(arena_alloc(&arena, SMALL), first + 224);
        arena_release(&arena, mark);
        assert_int_equal(arena.used, used);
    }
    for (int i = 0; i < LARGE; i++) assert_int_equal(kept[i], 3);
    arena_free(&arena);
}

/* Blocks below the peak of the arenas stay mapped. They are released before a block of another size is
 * mapped, so that the cache adds little to the peak of the process. */
static void cache_stays_below_the_peak(void **state) {
    (void)state;
#ifndef AUTOMAP_SANITIZED /* address sanitizers do not map blocks */
    enum { BLOCKS = 20, BLOCK_BYTES = 4000000, ALL_BYTES = BLOCKS * BLOCK_BYTES };
    struct rusage filled, cached, last;
    Arena arena = {0};
    arena_free_cache();
    for (int round = 0; round < 2; round++) {
        getrusage(RUSAGE_SELF, &filled);
        for (int k = 0; k < BLOCKS >> round; k++)
            memset(arena_alloc_raw(&arena, BLOCK_BYTES), 1, BLOCK_BYTES);
        arena_free(&arena);
    }
    getrusage(RUSAGE_SELF, &cached);
    assert_true(cached.ru_minflt - filled.ru_minflt < 10);
    memset(arena_alloc_raw(&arena, ALL_BYTES), 1, ALL_BYTES);
    getrusage(RUSAGE_SELF, &last);
    arena_free(&arena);
    assert_true(last.ru_maxrss - cached.ru_maxrss < 20000);
#endif
}

static void arrays_grow(void **state) {
    (void)state;
    Arena arena = {0};
    int32_t *numbers = NULL, count = 0, capacity = 0;
    for (int32_t i = 0; i < 10000; i++) {
        ARENA_RESERVE(&arena, numbers, count, capacity);
        numbers[count++] = i;
        if (i % 1000 == 0) arena_alloc(&arena, 8); /* prevents growth in place */
    }
    for (int32_t i = 0; i < 10000; i++) assert_int_equal(numbers[i], i);
    arena_free(&arena);
}

/* Memory of a joined arena stays, also where marks of the other one are released. */
static void joined_memory_stays(void **state) {
    (void)state;
    Arena arena = {0}, other = {0}, none = {0};
    char *own = arena_copy_string(&arena, "own");
    ArenaMark mark = arena_mark(&arena);
    arena_alloc(&arena, 100000);
    char *moved = arena_copy_string(&other, "moved"), *large = arena_alloc(&other, 1 << 20);
    large[(1 << 20) - 1] = 1;
    size_t used = arena.used + other.used;
    arena_join(&arena, &other);
    arena_join(&arena, &none);
    assert_int_equal(arena.used, used);
    assert_null(other.blocks);
    arena_release(&arena, mark);
    memset(arena_alloc(&arena, 100000), 2, 100000);
    assert_string_equal(own, "own");
    assert_string_equal(moved, "moved");
    assert_int_equal(large[(1 << 20) - 1], 1);
    other.failed = true;
    arena_join(&arena, &other);
    assert_true(arena.failed);
    arena_free(&arena);
}

static void limit_and_absurd_requests_fail(void **state) {
    (void)state;
    Arena arena = {.limit = 1000};
    assert_non_null(arena_alloc(&arena, 900));
    assert_false(arena.failed);
    assert_null(arena_alloc(&arena, 200));
    assert_true(arena.failed);
    arena_free(&arena);
    Arena other = {0};
    assert_null(arena_alloc(&other, SIZE_MAX - 4));
    assert_null(ARENA_ARRAY(&other, int64_t, -1));
    arena_free(&other);
}

static void strings(void **state) {
    (void)state;
    Arena arena = {0};
    assert_string_equal(arena_format(&arena, "%s[%d]", "output", 3), "output[3]");
    for (int length = 250; length < 260; length++) {
        const char *text = arena_format(&arena, "%0*d", length, 7);
        assert_int_equal(strlen(text), length);
        assert_int_equal(text[length - 1], '7');
    }
    assert_memory_equal(arena_copy_bytes(&arena, "a\0b", 3), "a\0b", 4);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(release_gives_back_zeroed_memory),
        cmocka_unit_test(freed_blocks_come_back_zeroed),
        cmocka_unit_test(rests_of_blocks_are_used),
        cmocka_unit_test(cache_stays_below_the_peak),
        cmocka_unit_test(arrays_grow),
        cmocka_unit_test(joined_memory_stays),
        cmocka_unit_test(limit_and_absurd_requests_fail),
        cmocka_unit_test(strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
