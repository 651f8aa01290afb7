/* Shardings as arrays of devices: which of two is better, and the refinement of both.
 *
 * A refinement exists where the copies of one sharding are those parts into
 * which the other splits: on every dimension both have as many parts, or one
 * has a single part, and each merged part is held by equally many devices.
 */
#include "propagation/spread/tiles.h"

#include <string.h>

/* Fills place[device] with the place in the list; returns the highest device number. */
static int32_t find_places(int32_t *place, const Tiles *tiles) {
    int32_t highest = 0;
    for (int32_t k = 0; k < tiles->device_count; k++) {
        place[tiles->devices[k]] = k;
        if (tiles->devices[k] > highest) highest = tiles->devices[k];
    }
    return highest;
}

static bool has_device(const Tiles *tiles, const int32_t *place, int32_t highest, int32_t device) {
    if (device > highest) return false;
    int32_t k = place[device];
    return k >= 0 && k < tiles->device_count && tiles->devices[k] == device;
}

/* Finds the part of each dimension, and of the manual subgroup, at place k. */
static void find_parts(int32_t parts[IR_MAX_RANK + 1], const Tiles *tiles, int32_t k) {
    int32_t rest = k / tiles->copies;
    parts[tiles->rank] = rest % tiles->manual;
    rest /= tiles->manual;
    for (int32_t d = tiles->rank - 1; d >= 0; d--) {
        parts[d] = rest % tiles->tiles[d];
        rest /= tiles->tiles[d];
    }
}

/* Puts every device into its merged part; false where the shardings disagree about one. */
static bool place_devices(TilesPool *pool, const Tiles *added, const Tiles *base, const Tiles *merged) {
    int32_t *devices = pool->scratch, *place = pool->scratch + TILES_MAX_DEVICES;
    int32_t *filled = pool->scratch + 2 * (size_t)TILES_MAX_DEVICES;
    int32_t highest = find_places(place, added);
    memset(filled, 0, sizeof *filled * (size_t)(base->device_count / merged->copies));
    for (int32_t k = 0; k < base->device_count; k++) {
        int32_t device = base->devices[k], other[IR_MAX_RANK + 1], own[IR_MAX_RANK + 1], tile = 0;
        if (!has_device(added, place, highest, device)) return false;
        find_parts(other, added, place[device]);
        find_parts(own, base, k);
        if (own[base->rank] != other[base->rank]) return false;
        for (int32_t d = 0; d < base->rank; d++) {
            int32_t part = added->tiles[d] > base->tiles[d] ? other[d] : own[d];
            if (part / (merged->tiles[d] / base->tiles[d]) != own[d]) return false;
            if (part / (merged->tiles[d] / added->tiles[d]) != other[d]) return false;
            tile = tile * merged->tiles[d] + part;
        }
        tile = tile * merged->manual + own[base->rank];
        if (filled[tile] == merged->copies) return false;
        devices[tile * merged->copies + filled[tile]++] = device;
    }
    return true;
}

const Tiles *tiles_merge(TilesPool *pool, const Tiles *added, const Tiles *base, int64_t least) {
    if (added->kind != TILES_TILED) return NULL;
    if (tiles_is_maximal(base)) return added;
    if (base->kind != TILES_TILED || base->copies == 1 || base->rank != added->rank ||
        base->device_count != added->device_count || base->manual != added->manual)
        return NULL;
    Tiles merged = *base;
    for (int32_t d = 0; d < base->rank; d++) {
        int32_t more = base->tiles[d] > added->tiles[d] ? base->tiles[d] : added->tiles[d];
        int32_t less = base->tiles[d] + added->tiles[d] - more;
        if (more != less && less != 1) return NULL;
        merged.tiles[d] = more;
    }
    int64_t count = tiles_count(&merged);
    int32_t copies = base->device_count / base->manual;
    if (count < least || copies % count != 0) return NULL;
    merged.copies = (int32_t)(copies / count);
    if (!place_devices(pool, added, base, &merged)) return NULL;
    return tiles_keep(pool, &merged, pool->scratch);
}

bool tiles_more_specific(const Tiles *a, const Tiles *b) {
    if (a->kind == TILES_MANUAL) return tiles_is_maximal(b);
    if (b->kind == TILES_MANUAL || b->kind == TILES_MAXIMAL) return false;
    if (b->kind == TILES_TILED) return tiles_count(a) > tiles_count(b);
    return a->kind == TILES_TILED;
}

bool tiles_is_refinement(TilesPool *pool, const IrShape *shape, const Tiles *fine, const Tiles *coarse) {
    if (tiles_is_maximal(coarse)) return true;
    if (fine->kind != TILES_TILED || coarse->kind != TILES_TILED || fine->rank != coarse->rank ||
        fine->device_count != coarse->device_count)
        return false;
    int64_t small[IR_MAX_RANK], large[IR_MAX_RANK];
    for (int32_t d = 0; d < fine->rank; d++) {
        small[d] = (shape->dimensions[d] + fine->tiles[d] - 1) / fine->tiles[d];
        large[d] = (shape->dimensions[d] + coarse->tiles[d] - 1) / coarse->tiles[d];
        if (small[d] > large[d]) return false;
    }
    int32_t *place = pool->scratch + TILES_MAX_DEVICES, highest = find_places(place, coarse);
    for (int32_t k = 0; k < fine->device_count; k++) {
        int32_t inner[IR_MAX_RANK + 1], outer[IR_MAX_RANK + 1];
        if (!has_device(coarse, place, highest, fine->devices[k])) return false;
        find_parts(inner, fine, k);
        find_parts(outer, coarse, place[fine->devices[k]]);
        for (int32_t d = 0; d < fine->rank; d++) {
            int64_t size = shape->dimensions[d], start = inner[d] * small[d], limit = start + small[d];
            int64_t first = outer[d] * large[d];
            if (limit > size) limit = size;
            if (start < limit && (start < first || limit > first + large[d])) return false;
        }
    }
    return true;
}

const Tiles *tiles_improve(TilesPool *pool, const IrShape *shape, const Tiles *old, const Tiles *from,
                           bool may_combine, bool may_reshard) {
    if (from->kind == TILES_MAXIMAL || from == old) return NULL;
    if (from->kind == TILES_TILED && (shape->type == DTYPE_TUPLE || from->rank != shape->rank)) return NULL;
    if (!old) return from;
    if (from->kind == TILES_MANUAL) return NULL;
    const Tiles *result = from, *merged = NULL;
    bool can_merge = may_combine && old->kind == TILES_TILED && from->kind == TILES_TILED &&
                     old->copies > 1 && from->copies > 1;
    if (can_merge) merged = tiles_merge(pool, old, from, tiles_count(from) + 1);
    if (merged) result = merged;
    else if (!tiles_more_specific(from, old)) return NULL;
    if (!may_reshard && old->kind == TILES_TILED && tiles_count(result) == tiles_count(from) &&
        !tiles_is_refinement(pool, shape, result, old))
        return NULL;
    return result == old ? NULL : result;
}
