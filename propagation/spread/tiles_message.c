/* Shardings as arrays of devices: from and to messages of a module.
 *
 * A message lists devices, or gives them as iota reshaped and transposed, or
 * names axes of a mesh. Subgroups may come in any order; here the manual one
 * is before the copies. A list is written as iota if it is one: from the fastest place on, each
 * longest run of equal steps is one block of the iota.
 */
#include "propagation/spread/tiles.h"

#include <string.h>

#include "base/integers.h"
#include "propagation/sharding/mesh_parts.h"

#define MAX_DIMENSIONS (2 * IR_MAX_RANK)

static AmStatus fail(AmError *error, const char *what) {
    return am_fail(error, AM_ERROR_INPUT, "", "sharding: %s", what);
}

/* The array of devices as a message gives it: dimensions of the array, then of the subgroups. */
typedef struct DeviceArray {
    int32_t rank, count; /* of the array; of all dimensions */
    int64_t sizes[MAX_DIMENSIONS];
    bool is_manual[MAX_DIMENSIONS]; /* of subgroups */
    int32_t device_count;
} DeviceArray;

/* Lists iota over `sizes` transposed by `order`. */
static AmStatus list_iota(int32_t *list, int32_t count, const int64_t *sizes, const int32_t *order,
                          size_t dimensions, AmError *error) {
    int64_t stride[MAX_DIMENSIONS], step = 1;
    bool seen[MAX_DIMENSIONS] = {false};
    if (dimensions > MAX_DIMENSIONS || bounded_product(sizes, dimensions, TILES_MAX_DEVICES) != count)
        return fail(error, "the sizes of <=[...] differ from the number of devices");
    for (size_t k = 0; k < dimensions; k++) {
        if (order[k] < 0 || (size_t)order[k] >= dimensions || seen[order[k]])
            return fail(error, "T(...) is not a permutation of the dimensions before it");
        seen[order[k]] = true;
    }
    for (size_t k = dimensions; k-- > 0; step *= sizes[k]) stride[k] = step;
    for (int32_t p = 0; p < count; p++) {
        int64_t rest = p, device = 0;
        for (size_t k = dimensions; k-- > 0; rest /= sizes[order[k]])
            device += rest % sizes[order[k]] * stride[order[k]];
        list[p] = (int32_t)device;
    }
    return AM_OK;
}

static AmStatus list_devices(TilesPool *pool, const int64_t *devices, size_t count, int32_t expected,
                             AmError *error) {
    int32_t *list = pool->scratch, *seen = pool->scratch + TILES_MAX_DEVICES;
    if (count != (size_t)expected)
        return am_fail(error, AM_ERROR_INPUT, "",
                       "sharding: unexpected number of devices (expected %d, got %zu)", expected, count);
    for (int32_t p = 0; p < expected; p++) {
        if (devices[p] < 0 || devices[p] >= TILES_MAX_DEVICES)
            return am_fail(error, AM_ERROR_INPUT, "",
                           "sharding: device out of range (expected 0 to %d, got %lld)",
                           TILES_MAX_DEVICES - 1, (long long)devices[p]);
        seen[devices[p]] = 0;
    }
    for (int32_t p = 0; p < expected; p++) {
        if (seen[devices[p]]) return fail(error, "a device is listed twice");
        seen[devices[p]] = 1;
        list[p] = (int32_t)devices[p];
    }
    return AM_OK;
}

/* Moves the manual subgroups before the copies and returns the pool's sharding of the listed devices. */
static const Tiles *from_array(TilesPool *pool, const DeviceArray *array) {
    Tiles result = {.kind = TILES_TILED,
                    .rank = array->rank,
                    .manual = 1,
                    .copies = 1,
                    .device_count = array->device_count};
    int32_t *list = pool->scratch, *moved = pool->scratch + TILES_MAX_DEVICES;
    int64_t step[MAX_DIMENSIONS], stride = 1;
    for (int32_t d = 0; d < array->rank; d++) result.tiles[d] = (int32_t)array->sizes[d];
    for (int32_t manual = 0; manual < 2; manual++)
        for (int32_t k = array->count - 1; k >= array->rank; k--) {
            if (array->is_manual[k] != (manual == 1)) continue;
            step[k] = stride;
            stride *= array->sizes[k];
            *(manual ? &result.manual : &result.copies) *= (int32_t)array->sizes[k];
        }
    for (int32_t d = array->rank - 1; d >= 0; d--) {
        step[d] = stride;
        stride *= array->sizes[d];
    }
    for (int32_t p = 0; p < array->device_count; p++) {
        int64_t rest = p, place = 0;
        for (int32_t k = array->count - 1; k >= 0; k--) {
            place += rest % array->sizes[k] * step[k];
            rest /= array->sizes[k];
        }
        moved[place] = list[p];
    }
    return tiles_keep(pool, &result, moved);
}

static AmStatus read_tiled(const Tiles **tiles, TilesPool *pool, const Hlo__OpSharding *message,
                           AmError *error) {
    size_t count = message->n_tile_assignment_dimensions, groups = message->n_last_tile_dims;
    if (groups == 0 && message->replicate_on_last_tile_dim) groups = 1;
    if (count < groups || count - groups > IR_MAX_RANK || count > MAX_DIMENSIONS)
        return fail(error, "unexpected number of dimensions");
    DeviceArray array = {.count = (int32_t)count, .rank = (int32_t)(count - groups)};
    array.device_count =
        (int32_t)bounded_product(message->tile_assignment_dimensions, count, TILES_MAX_DEVICES);
    if (array.device_count == 0)
        return am_fail(error, AM_ERROR_INPUT, "", "sharding: unexpected number of devices (expected 1 to %d)",
                       TILES_MAX_DEVICES);
    for (size_t k = 0; k < count; k++) array.sizes[k] = message->tile_assignment_dimensions[k];
    for (size_t k = 0; k < message->n_last_tile_dims; k++) {
        Hlo__OpSharding__Type type = message->last_tile_dims[k];
        if (type != HLO__OP_SHARDING__TYPE__REPLICATED && type != HLO__OP_SHARDING__TYPE__MANUAL &&
            type != HLO__OP_SHARDING__TYPE__UNREDUCED)
            return fail(error, "unexpected kind of a subgroup (expected replicated, manual or unreduced)");
        array.is_manual[(size_t)array.rank + k] = type == HLO__OP_SHARDING__TYPE__MANUAL;
    }
    if (message->n_iota_reshape_dims == 0) {
        TRY(list_devices(pool, message->tile_assignment_devices, message->n_tile_assignment_devices,
                         array.device_count, error));
    } else {
        if (message->n_iota_transpose_perm != message->n_iota_reshape_dims)
            return fail(error, "T(...) is not a permutation of the dimensions before it");
        TRY(list_iota(pool->scratch, array.device_count, message->iota_reshape_dims,
                      message->iota_transpose_perm, message->n_iota_reshape_dims, error));
    }
    *tiles = from_array(pool, &array);
    return AM_OK;
}

static AmStatus read_named(const Tiles **tiles, TilesPool *pool, const Hlo__NamedShardingProto *message,
                           AmError *error) {
    const Hlo__MeshProto *mesh = message->mesh;
    DeviceArray array = {0};
    MeshParts parts;
    int32_t order[MESH_PARTS_MAX];
    size_t count = 0;
    if (mesh->n_axes > IR_MAX_RANK || message->n_dim_shardings > IR_MAX_RANK)
        return fail(error, "unexpected number of dimensions or axes");
    if (mesh->iota_transform && mesh->iota_transform->n_transpose_perm > 1)
        return fail(error, "a mesh whose devices are not in order is not supported");
    TRY(mesh_parts_cut(&parts, message, error));
    array.device_count = (int32_t)bounded_product(parts.size, (size_t)parts.count, TILES_MAX_DEVICES);
    if (array.device_count == 0) return fail(error, "unexpected size of a mesh");
    array.rank = (int32_t)message->n_dim_shardings;
    for (size_t d = 0; d < message->n_dim_shardings; d++) {
        const Hlo__NamedShardingProto__DimensionSharding *dimension = message->dim_shardings[d];
        array.sizes[d] = 1;
        for (size_t k = 0; k < dimension->n_axes; k++)
            TRY(mesh_parts_take(&parts, dimension->axes[k], order, &count, &array.sizes[d], error));
    }
    array.count = array.rank + 2;
    array.sizes[array.rank] = array.sizes[array.rank + 1] = 1;
    array.is_manual[array.rank] = true;
    for (size_t k = 0; k < message->n_manual_axes; k++)
        TRY(mesh_parts_take(&parts, message->manual_axes[k], order, &count, &array.sizes[array.rank], error));
    for (int32_t k = 0; k < parts.count; k++) {
        if (parts.is_taken[k]) continue;
        order[count++] = k;
        array.sizes[array.rank + 1] *= parts.size[k];
    }
    TRY(list_iota(pool->scratch, array.device_count, parts.size, order, (size_t)parts.count, error));
    if (mesh->n_device_ids > 0) {
        int32_t *places = pool->scratch + 2 * (size_t)TILES_MAX_DEVICES;
        memcpy(places, pool->scratch, sizeof *places * (size_t)array.device_count);
        TRY(list_devices(pool, mesh->device_ids, mesh->n_device_ids, array.device_count, error));
        for (int32_t p = 0; p < array.device_count; p++)
            pool->scratch[p] = (int32_t)mesh->device_ids[places[p]];
    }
    *tiles = from_array(pool, &array);
    return AM_OK;
}

AmStatus tiles_read(const Tiles **tiles, TilesPool *pool, const Hlo__OpSharding *message, AmError *error) {
    *tiles = pool->replicated;
    if (message->named_sharding && message->named_sharding->mesh)
        return read_named(tiles, pool, message->named_sharding, error);
    switch (message->type) {
    case HLO__OP_SHARDING__TYPE__OTHER: return read_tiled(tiles, pool, message, error);
    case HLO__OP_SHARDING__TYPE__MANUAL: *tiles = pool->manual; return AM_OK;
    case HLO__OP_SHARDING__TYPE__MAXIMAL: {
        Tiles maximal = {.kind = TILES_MAXIMAL, .manual = 1, .copies = 1};
        if (message->n_tile_assignment_devices != 1 || message->tile_assignment_devices[0] < 0 ||
            message->tile_assignment_devices[0] >= TILES_MAX_DEVICES)
            return fail(error, "maximal without a device, or one out of range");
        maximal.device = (int32_t)message->tile_assignment_devices[0];
        *tiles = tiles_keep(pool, &maximal, pool->scratch);
        return AM_OK;
    }
    case HLO__OP_SHARDING__TYPE__TUPLE: return fail(error, "a tuple of shardings on an array");
    default: return AM_OK;
    }
}

/* Blocks of an iota from the fastest place on: count devices, `step` apart. */
typedef struct Blocks {
    int64_t size[MAX_DIMENSIONS], step[MAX_DIMENSIONS];
    int32_t count;
} Blocks;

/* Splits a list into blocks of equal steps; false if it has none, or is not iota over 0..count-1. */
static bool find_blocks(Blocks *blocks, const int32_t *list, int32_t count) {
    blocks->count = 0;
    if (list[0] != 0) return false;
    for (int32_t stride = 1; stride < count;) {
        int64_t step = list[stride], size = 1;
        if (step <= 0 || blocks->count == MAX_DIMENSIONS) return false;
        while (size * stride < count && list[size * stride] == size * step) size++;
        if (size < 2 || count % (size * stride) != 0) return false;
        blocks->size[blocks->count] = size;
        blocks->step[blocks->count++] = step;
        stride *= (int32_t)size;
    }
    for (int32_t p = 0; p < count; p++) {
        int64_t rest = p, device = 0;
        for (int32_t k = 0; k < blocks->count; k++) {
            device += rest % blocks->size[k] * blocks->step[k];
            rest /= blocks->size[k];
        }
        if (device != list[p] || device >= count) return false;
    }
    return true;
}

/* Writes the list as an iota; false if it is not an iota. */
static bool write_iota(Arena *arena, Hlo__OpSharding *message, const int32_t *list, int32_t count) {
    Blocks blocks;
    int32_t place[MAX_DIMENSIONS];
    if (!find_blocks(&blocks, list, count)) return false;
    int64_t expected = 1;
    for (int32_t k = 0; k < blocks.count; k++) { /* the blocks by their steps, the finest last */
        int32_t found = -1;
        for (int32_t b = 0; b < blocks.count; b++)
            if (blocks.step[b] == expected) found = b;
        if (found < 0) return false;
        place[found] = blocks.count - 1 - k;
        expected *= blocks.size[found];
    }
    int32_t n = blocks.count > 0 ? blocks.count : 1;
    message->iota_reshape_dims = ARENA_ARRAY(arena, int64_t, n);
    message->iota_transpose_perm = ARENA_ARRAY(arena, int32_t, n);
    if (arena->failed) return false;
    message->n_iota_reshape_dims = message->n_iota_transpose_perm = (size_t)n;
    if (blocks.count == 0) message->iota_reshape_dims[0] = 1;
    for (int32_t b = 0; b < blocks.count; b++) {
        message->iota_reshape_dims[place[b]] = blocks.size[b];
        message->iota_transpose_perm[blocks.count - 1 - b] = place[b];
    }
    return true;
}

static void write_subgroups(Arena *arena, Hlo__OpSharding *message, const Tiles *tiles) {
    message->replicate_on_last_tile_dim = tiles->manual == 1 && tiles->copies > 1;
    if (tiles->copies > 1 || tiles->manual > 1) {
        message->last_tile_dims = ARENA_ARRAY(arena, Hlo__OpSharding__Type, 2);
        if (!message->last_tile_dims) return;
    }
    int64_t *sizes = message->tile_assignment_dimensions;
    if (tiles->manual > 1) {
        sizes[message->n_tile_assignment_dimensions++] = tiles->manual;
        message->last_tile_dims[message->n_last_tile_dims++] = HLO__OP_SHARDING__TYPE__MANUAL;
    }
    if (tiles->copies == 1) return;
    sizes[message->n_tile_assignment_dimensions++] = tiles->copies;
    if (tiles->manual > 1)
        message->last_tile_dims[message->n_last_tile_dims++] = HLO__OP_SHARDING__TYPE__REPLICATED;
}

Hlo__OpSharding *tiles_message(TilesPool *pool, const Tiles *tiles) {
    Arena *arena = pool->arena;
    Hlo__OpSharding *message = ARENA_ARRAY(arena, Hlo__OpSharding, 1);
    if (!message) return NULL;
    hlo__op_sharding__init(message);
    if (tiles->kind == TILES_REPLICATED) return message;
    message->type =
        tiles->kind == TILES_MANUAL ? HLO__OP_SHARDING__TYPE__MANUAL : HLO__OP_SHARDING__TYPE__MAXIMAL;
    if (tiles->kind == TILES_MANUAL) return message;
    int32_t count = tiles->kind == TILES_MAXIMAL ? 1 : tiles->device_count;
    message->tile_assignment_dimensions = ARENA_ARRAY(arena, int64_t, tiles->rank + 2);
    if (!message->tile_assignment_dimensions) return NULL;
    if (tiles->kind == TILES_TILED) {
        message->type = HLO__OP_SHARDING__TYPE__OTHER;
        for (int32_t d = 0; d < tiles->rank; d++)
            message->tile_assignment_dimensions[message->n_tile_assignment_dimensions++] = tiles->tiles[d];
        write_subgroups(arena, message, tiles);
        if (write_iota(arena, message, tiles->devices, count)) return message;
    }
    message->tile_assignment_devices = ARENA_ARRAY(arena, int64_t, count);
    if (arena->failed) return NULL;
    message->n_tile_assignment_devices = (size_t)count;
    for (int32_t k = 0; k < count; k++)
        message->tile_assignment_devices[k] =
            tiles->kind == TILES_MAXIMAL ? tiles->device : tiles->devices[k];
    return message;
}
