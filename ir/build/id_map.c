/* Ids to indices: linear probing at most half full, with Fibonacci hashing,
 * which spreads the consecutive ids that modules have.
 */
#include "ir/build/id_map.h"

#include <string.h>

static uint32_t slots_for(int64_t count) {
    uint32_t slots = 8;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

static uint32_t first_slot(const IdMap *map, int64_t key) {
    return (uint32_t)(((uint64_t)key * 0x9E3779B97F4A7C15u) >> 32) & map->mask;
}

bool id_map_create(IdMap *map, Arena *arena, int64_t most) {
    map->most = slots_for(most);
    map->keys = ARENA_ARRAY(arena, int64_t, map->most);
    map->values = ARENA_ARRAY(arena, int32_t, map->most);
    map->mask = map->most - 1;
    return map->keys != NULL && map->values != NULL;
}

void id_map_clear(IdMap *map, int64_t count) {
    uint32_t slots = slots_for(count);
    map->mask = slots - 1;
    memset(map->values, 0, slots * sizeof *map->values);
}

bool id_map_add(IdMap *map, int64_t key, int32_t value) {
    uint32_t slot = first_slot(map, key);
    for (; map->values[slot] != 0; slot = (slot + 1) & map->mask) {
        if (map->keys[slot] == key) return false;
    }
    map->keys[slot] = key;
    map->values[slot] = value + 1;
    return true;
}

int32_t id_map_find(const IdMap *map, int64_t key) {
    uint32_t slot = first_slot(map, key);
    for (; map->values[slot] != 0; slot = (slot + 1) & map->mask) {
        if (map->keys[slot] == key) return map->values[slot] - 1;
    }
    return -1;
}
