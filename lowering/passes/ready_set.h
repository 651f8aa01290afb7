/* A set of small numbers with fast extraction of the smallest.
 *
 * The numbers are bits of words. A smaller set of words summarises them, 64 bits per bit, so that
 * the smallest is found in one step per level.
 */
#ifndef LOWERING_PASSES_READY_SET_H
#define LOWERING_PASSES_READY_SET_H

#include <stdint.h>

#include "base/arena.h"

enum { READY_MOST_LEVELS = 6 }; /* 64^6 exceeds every int32_t */

typedef struct ReadySet {
    int32_t level_count;
    uint64_t
        *words[READY_MOST_LEVELS]; /* bit k of words[n + 1]: words[n][k] is not 0; the last is one word */
} ReadySet;

/* Creates a set of items less than `count`, empty. */
static inline void executable_make(ReadySet *set, Arena *arena, int32_t count) {
    set->level_count = 0;
    do {
        count = (count + 63) / 64;
        set->words[set->level_count++] = ARENA_ARRAY(arena, uint64_t, count);
    } while (count > 1);
}

static inline void ready_add(ReadySet *set, int32_t item) {
    uint32_t at = (uint32_t)item;
    for (int32_t level = 0; level < set->level_count; level++, at /= 64) {
        uint64_t *word = &set->words[level][at / 64], before = *word;
        *word |= (uint64_t)1 << at % 64;
        if (before) return;
    }
}

/* Takes the smallest item out; -1 if the set is empty. */
static inline int32_t ready_take(ReadySet *set) {
    uint32_t item = 0;
    if (set->words[set->level_count - 1][0] == 0) return -1;
    for (int32_t level = set->level_count - 1; level >= 0; level--)
        item = item * 64 + (uint32_t)__builtin_ctzll(set->words[level][item]);
    uint32_t at = item;
    for (int32_t level = 0; level < set->level_count; level++, at /= 64) {
        uint64_t *word = &set->words[level][at / 64];
        *word &= ~((uint64_t)1 << at % 64);
        if (*word) break;
    }
    return (int32_t)item;
}

#endif
