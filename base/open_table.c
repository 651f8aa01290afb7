/* The places of a table are those of its keys modulo the capacity, each moved to the next free one. */
#include "base/open_table.h"

#include <string.h>

#define FIRST_CAPACITY 256

/* Returns the entry of a key, or the empty entry where it belongs. */
static OpenEntry *place_of(const OpenTable *table, size_t bytes, uint64_t key) {
    for (uint64_t at = key;; at++) {
        size_t place = (size_t)(at & (uint64_t)(table->capacity - 1));
        OpenEntry *entry = (void *)((char *)table->entries + bytes * place);
        if (!entry->is_used || entry->key == key) return entry;
    }
}

void *open_table_find(const OpenTable *table, size_t bytes, uint64_t key) {
    if (table->capacity == 0) return NULL;
    OpenEntry *entry = place_of(table, bytes, key);
    return entry->is_used ? entry : NULL;
}

bool open_table_add(OpenTable *table, size_t bytes, const OpenEntry *entry) {
    if (2 * table->count >= table->capacity) {
        OpenTable larger = *table;
        larger.capacity = table->capacity ? 2 * table->capacity : FIRST_CAPACITY;
        larger.entries = arena_alloc(table->arena, bytes * (size_t)larger.capacity);
        if (!larger.entries) return false;
        for (int32_t k = 0; k < table->capacity; k++) {
            const OpenEntry *old = (void *)((char *)table->entries + bytes * (size_t)k);
            if (old->is_used) memcpy(place_of(&larger, bytes, old->key), old, bytes);
        }
        *table = larger;
    }
    OpenEntry *place = place_of(table, bytes, entry->key);
    if (place->is_used) return true;
    memcpy(place, entry, bytes);
    place->is_used = true;
    table->count++;
    return true;
}
