/* Shardings as arrays of devices: the pool, and maps between arrays for the form.
 *
 * A map reorders the array of devices: the parts of dimensions without a
 * counterpart go after all others and join the copies. A reshape is a walk over both
 * lists of sizes that splits and joins dimensions, for the longest runs of
 * dimensions for which there is such a walk.
 */
#include "propagation/spread/tiles.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 4096

AmStatus tiles_pool_create(TilesPool *pool, Arena *arena, AmError *error) {
    *pool = (TilesPool){.arena = arena};
    pool->slots = ARENA_ARRAY(arena, const Tiles *, SLOTS);
    pool->scratch = ARENA_ARRAY_RAW(arena, int32_t, (size_t)4 * TILES_MAX_DEVICES);
    Tiles *constants = ARENA_ARRAY(arena, Tiles, 2);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(int32_t) * 4 * TILES_MAX_DEVICES);
    constants[0] = (Tiles){.kind = TILES_REPLICATED, .manual = 1, .copies = 1};
    constants[1] = (Tiles){.kind = TILES_MANUAL, .manual = 1, .copies = 1};
    pool->replicated = &constants[0];
    pool->manual = &constants[1];
    return AM_OK;
}

static bool same_tiles(const Tiles *a, const Tiles *b) {
    return a->kind == b->kind && a->device == b->device && a->rank == b->rank && a->manual == b->manual &&
           a->copies == b->copies && a->device_count == b->device_count &&
           memcmp(a->tiles, b->tiles, sizeof(int32_t) * (size_t)a->rank) == 0 &&
           (a->device_count == 0 ||
            memcmp(a->devices, b->devices, sizeof(int32_t) * (size_t)a->device_count) == 0);
}

static int compare_devices(const void *a, const void *b) {
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

const Tiles *tiles_keep(TilesPool *pool, Tiles *tiles, int32_t *devices) {
    if (tiles->kind == TILES_TILED && tiles_count(tiles) == 1 && tiles->manual == 1) return pool->replicated;
    for (int32_t k = 0; tiles->copies > 1 && k < tiles->device_count; k += tiles->copies)
        qsort(devices + k, (size_t)tiles->copies, sizeof *devices, compare_devices);
    tiles->devices = devices;
    uint32_t hash = 2166136261u ^ (uint32_t)tiles->device ^ (uint32_t)tiles->kind << 24;
    for (int32_t d = 0; d < tiles->rank; d++) hash = (hash ^ (uint32_t)tiles->tiles[d]) * 16777619u;
    for (int32_t n = 0; n < tiles->device_count; n++) hash = (hash ^ (uint32_t)tiles->devices[n]) * 16777619u;
    const Tiles **slot = &pool->slots[hash % SLOTS];
    for (const Tiles *known = *slot; known; known = known->next)
        if (same_tiles(known, tiles)) return known;
    Tiles *copy = ARENA_ARRAY(pool->arena, Tiles, 1);
    int32_t *list = ARENA_ARRAY(pool->arena, int32_t, tiles->device_count + 1);
    if (!copy || !list) return pool->replicated;
    if (tiles->device_count > 0) memcpy(list, devices, sizeof *list * (size_t)tiles->device_count);
    *copy = *tiles;
    copy->devices = list;
    copy->next = *slot;
    *slot = copy;
    return copy;
}

int64_t tiles_count(const Tiles *tiles) {
    int64_t count = 1;
    if (tiles->kind != TILES_TILED) return 1;
    for (int32_t d = 0; d < tiles->rank; d++) count *= tiles->tiles[d];
    return count;
}

bool tiles_is_maximal(const Tiles *tiles) {
    return tiles->kind == TILES_REPLICATED || tiles->kind == TILES_MAXIMAL;
}

const Tiles *tiles_map(TilesPool *pool, const Tiles *from, const int32_t *to, int32_t rank) {
    if (from->kind != TILES_TILED) return from;
    Tiles result = {.kind = TILES_TILED,
                    .rank = rank,
                    .manual = from->manual,
                    .copies = from->copies,
                    .device_count = from->device_count};
    int64_t step[IR_MAX_RANK], stride = 1; /* of a source dimension in the result's list */
    for (int32_t d = 0; d < rank; d++) result.tiles[d] = 1;
    for (int32_t d = 0; d < from->rank; d++) {
        if (to[d] >= 0) result.tiles[to[d]] = from->tiles[d];
        else result.copies *= from->tiles[d];
    }
    int64_t dropped = from->copies;
    for (int32_t d = from->rank - 1; d >= 0; d--) {
        if (to[d] >= 0) continue;
        step[d] = dropped;
        dropped *= from->tiles[d];
    }
    stride = (int64_t)result.copies * from->manual;
    for (int32_t t = rank - 1; t >= 0; t--) {
        for (int32_t d = 0; d < from->rank; d++)
            if (to[d] == t) step[d] = stride;
        stride *= result.tiles[t];
    }
    int32_t *devices = pool->scratch;
    int32_t inner = from->manual * from->copies;
    for (int32_t k = 0; k < from->device_count; k++) {
        int64_t place = k % from->copies + (int64_t)(k % inner / from->copies) * result.copies;
        int32_t rest = k / inner;
        for (int32_t d = from->rank - 1; d >= 0; d--) {
            place += step[d] * (rest % from->tiles[d]);
            rest /= from->tiles[d];
        }
        devices[place] = from->devices[k];
    }
    return tiles_keep(pool, &result, devices);
}

const Tiles *tiles_replicate(TilesPool *pool, const Tiles *from, const bool *is_dropped) {
    int32_t to[IR_MAX_RANK];
    bool is_same = true;
    for (int32_t d = 0; d < from->rank; d++) {
        to[d] = is_dropped[d] ? -1 : d;
        is_same &= !is_dropped[d] || from->tiles[d] == 1;
    }
    return is_same ? from : tiles_map(pool, from, to, from->rank);
}

const Tiles *tiles_reverse(TilesPool *pool, const Tiles *from, const bool *is_reversed) {
    if (from->kind != TILES_TILED) return from;
    Tiles result = *from;
    int32_t *devices = pool->scratch, inner = from->manual * from->copies;
    for (int32_t k = 0; k < from->device_count; k++) {
        int32_t rest = k / inner, place = k % inner, stride = inner;
        for (int32_t d = from->rank - 1; d >= 0; d--) {
            int32_t part = rest % from->tiles[d];
            place += stride * (is_reversed[d] ? from->tiles[d] - 1 - part : part);
            stride *= from->tiles[d];
            rest /= from->tiles[d];
        }
        devices[place] = from->devices[k];
    }
    return tiles_keep(pool, &result, devices);
}

/* Dimensions that a walk has yet to pass, the next one last. */
typedef struct Rest {
    int64_t size[2 * IR_MAX_RANK];
    int32_t tiles[2 * IR_MAX_RANK];
    int32_t count;
} Rest;

static bool is_unsplit(const Rest *rest) {
    for (int32_t k = 0; k < rest->count; k++)
        if (rest->tiles[k] != 1) return false;
    return true;
}

/* Finds the parts of each target dimension such that the tiles keep their order; false if
 * impossible. */
static bool split_in_order(int32_t *parts, const Tiles *from, const IrShape *source, const IrShape *target) {
    Rest rest = {.count = 0};
    for (int32_t d = source->rank - 1; d >= 0; d--) {
        rest.size[rest.count] = source->dimensions[d];
        rest.tiles[rest.count++] = from->tiles[d];
    }
    for (int32_t t = 0; t < target->rank; t++) parts[t] = 1;
    int64_t wanted = target->rank > 0 ? target->dimensions[0] : 1;
    for (int32_t t = 0; !is_unsplit(&rest);) {
        if (t >= target->rank) return false;
        int64_t size = rest.count > 0 ? rest.size[--rest.count] : 1;
        int32_t tiles = rest.tiles[rest.count];
        bool is_done = false;
        if (size == wanted) {
            parts[t] = tiles;
            is_done = true;
        } else if (wanted == 1) {
            rest.count++;
            is_done = true;
        } else if (size % tiles != 0) { /* uneven parts have no counterpart */
            return false;
        } else if (wanted == 0 || size == 0 || (size % wanted != 0 && wanted % size != 0)) {
            /* Both cut the same elements into as many equal ranges, if nothing else is split. */
            if (wanted % tiles != 0 || !is_unsplit(&rest)) return false;
            parts[t] = tiles;
            return true;
        } else if (size > wanted) { /* the target dimension is the major part of the source's */
            if (wanted % tiles != 0 && tiles % wanted != 0) return false;
            parts[t] = wanted % tiles == 0 ? tiles : (int32_t)wanted;
            rest.size[rest.count] = size / wanted;
            rest.tiles[rest.count++] = wanted % tiles == 0 ? 1 : (int32_t)(tiles / wanted);
            is_done = true;
        } else { /* it is joined from several */
            if (rest.count == 0) return false;
            if (rest.tiles[rest.count - 1] != 1 && size != tiles) return false;
            rest.size[rest.count - 1] *= size;
            rest.tiles[rest.count - 1] *= tiles;
        }
        if (is_done && ++t < target->rank) wanted = target->dimensions[t];
    }
    return true;
}

/* Returns `from` on an array of the target's rank, the tiles in their order; NULL if there is no such one. */
static const Tiles *reshape_all(TilesPool *pool, const Tiles *from, const IrShape *source,
                                const IrShape *target) {
    Tiles result = *from;
    result.rank = target->rank;
    if (!split_in_order(result.tiles, from, source, target)) return NULL;
    if (tiles_count(&result) != tiles_count(from)) return NULL;
    memcpy(pool->scratch, from->devices, sizeof(int32_t) * (size_t)from->device_count);
    return tiles_keep(pool, &result, pool->scratch);
}

/* Reshapes a sharding that splits dimension d alone, with as many of its parts as the reshape keeps apart. */
static const Tiles *reshape_one(TilesPool *pool, const Tiles *from, int32_t d, const IrShape *source,
                                const IrShape *target) {
    if (source->dimensions[d] % from->tiles[d] != 0) return NULL;
    for (int32_t parts = from->tiles[d] / 2; parts > 1; parts--) {
        if (from->tiles[d] % parts != 0) continue;
        int32_t to[2] = {d, -1};
        Tiles cut = *from;
        cut.rank = 2;
        cut.tiles[0] = parts;
        cut.tiles[1] = from->tiles[d] / parts;
        const Tiles *found = reshape_all(pool, tiles_map(pool, &cut, to, source->rank), source, target);
        if (found) return found;
    }
    return NULL;
}

const Tiles *tiles_reshape(TilesPool *pool, const Tiles *from, const IrShape *source, const IrShape *target) {
    if (from->kind != TILES_TILED || from->rank != source->rank) return from;
    const Tiles *result = pool->replicated;
    for (int32_t start = 0, end; start < source->rank; start = end) {
        for (end = source->rank; end > start; end--) {
            bool is_dropped[IR_MAX_RANK];
            for (int32_t d = 0; d < source->rank; d++) is_dropped[d] = d < start || d >= end;
            const Tiles *group = tiles_replicate(pool, from, is_dropped);
            if (group->kind != TILES_TILED) break;
            const Tiles *found = reshape_all(pool, group, source, target);
            if (!found && end == start + 1) found = reshape_one(pool, group, start, source, target);
            if (!found) continue;
            const Tiles *merged = result == pool->replicated
                                      ? found
                                      : tiles_merge(pool, found, result, tiles_count(result) + 1);
            if (merged) result = merged;
            break;
        }
        if (end == start) end = start + 1;
    }
    return result;
}
