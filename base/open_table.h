/* A hash table by 64-bit keys: open addressing with linear steps, at most half full, doubled when it is
 * fuller.
 *
 * The user's entries begin with an OpenEntry:
 *     typedef struct Known { OpenEntry entry; double seconds; } Known;
 */
#ifndef BASE_OPEN_TABLE_H
#define BASE_OPEN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

typedef struct OpenEntry {
    uint64_t key;
    bool is_used;
} OpenEntry;

typedef struct OpenTable {
    Arena *arena;
    void *entries; /* [capacity], a power of two */
    int32_t count, capacity;
} OpenTable;

/* Returns the entry of a key in a table of entries of `bytes` each; NULL: not there. */
void *open_table_find(const OpenTable *table, size_t bytes, uint64_t key);

/* Adds a copy of an entry with its key. A key that is there already keeps its entry. Returns false without
 * memory. */
bool open_table_add(OpenTable *table, size_t bytes, const OpenEntry *entry);

#endif
