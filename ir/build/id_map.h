/* Ids to indices: a hash table with open addressing, for the builder. Sized
 * once for the most keys it will hold; slots come from an arena. */
#ifndef IR_BUILD_ID_MAP_H
#define IR_BUILD_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

typedef struct IdMap {
    int64_t *keys;
    int32_t *values; /* index + 1, or 0 where empty */
    uint32_t mask, most;
} IdMap;

/* Makes room for up to `most` keys at a time; false if memory ran out. */
bool id_map_create(IdMap *map, Arena *arena, int64_t most);
/* Empties the map for up to `count` keys, count <= most. */
void id_map_clear(IdMap *map, int64_t count);
/* Adds a key; false if the key is there already. */
bool id_map_add(IdMap *map, int64_t key, int32_t value);
/* Returns the key's value, or -1. */
int32_t id_map_find(const IdMap *map, int64_t key);

#endif
