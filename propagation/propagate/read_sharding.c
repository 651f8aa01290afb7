/* Reads HLO sharding attributes as SBP states; sharding_message.c has the reverse direction.
 *
 * A sharding is an array of devices: a list, an iota that is reshaped and transposed, or named axes of a
 * mesh. The latter are an iota over the axes, transposed to the order in which the dimensions name them. The
 * inverse gives for each device its part of each dimension.
 *
 * A mesh numbers devices row-major, so that a state follows from one step along each axis from
 * device 0, and is then checked on every device. A mesh is inferred from the fastest axis to the
 * slowest: devices 0, s, 2 s, ... hold parts 0, e, 2 e, ... of one dimension as long as they are on
 * one axis, or on several axes that split jointly. The shortest such run among all shardings is an
 * axis.
 */
#include "propagation/propagate/read_sharding.h"

#include "base/integers.h"
#include "propagation/sharding/mesh_parts.h"

static AmStatus fail(AmError *error, const char *what) {
    return am_fail(error, AM_ERROR_INPUT, "", "sharding: %s", what);
}

/* Fills place[] with the iota over `sizes` (count of them), transposed by `order`. */
static AmStatus place_iota(int32_t *place, int32_t devices, const int64_t *sizes, const int32_t *order,
                           size_t count, AmError *error) {
    int64_t stride[2 * IR_MAX_RANK];
    bool seen[2 * IR_MAX_RANK] = {false};
    if (count > 2 * IR_MAX_RANK || bounded_product(sizes, count, MESH_MAX_DEVICES) != devices)
        return fail(error, "the sizes of <=[...] do not come to the number of devices");
    for (size_t k = 0; k < count; k++) {
        if (order[k] < 0 || (size_t)order[k] >= count || seen[order[k]])
            return fail(error, "T(...) is not a permutation of the dimensions before it");
        seen[order[k]] = true;
    }
    int64_t step = 1;
    for (size_t k = count; k-- > 0; step *= sizes[k]) stride[k] = step;
    for (int32_t p = 0; p < devices; p++) {
        int64_t rest = p, device = 0;
        for (size_t k = count; k-- > 0; rest /= sizes[order[k]])
            device += rest % sizes[order[k]] * stride[order[k]];
        place[device] = p;
    }
    return AM_OK;
}

static void set_strides(DeviceTiles *tiles) {
    int32_t stride = tiles->device_count; /* dimensions of whole copies come last */
    for (int32_t d = 0; d < tiles->rank; d++) {
        stride /= tiles->tiles[d];
        tiles->stride[d] = stride;
    }
}

static AmStatus read_tiled(DeviceTiles *tiles, Arena *arena, const Hlo__OpSharding *message, AmError *error) {
    size_t count = message->n_tile_assignment_dimensions, copies = message->n_last_tile_dims;
    if (copies == 0 && message->replicate_on_last_tile_dim) copies = 1;
    for (size_t k = 0; k < message->n_last_tile_dims; k++)
        if (message->last_tile_dims[k] != HLO__OP_SHARDING__TYPE__REPLICATED)
            return fail(error, "manual and unreduced dimensions are not supported");
    if (count < copies || count - copies > IR_MAX_RANK) return fail(error, "unexpected number of dimensions");
    tiles->rank = (int32_t)(count - copies);
    tiles->device_count =
        (int32_t)bounded_product(message->tile_assignment_dimensions, count, MESH_MAX_DEVICES);
    if (tiles->device_count == 0)
        return am_fail(error, AM_ERROR_INPUT, "", "sharding: 1 to %d devices were expected",
                       MESH_MAX_DEVICES);
    for (int32_t d = 0; d < tiles->rank; d++)
        tiles->tiles[d] = (int32_t)message->tile_assignment_dimensions[d];
    set_strides(tiles);
    int32_t *place = ARENA_ARRAY(arena, int32_t, tiles->device_count);
    if (!place) return am_fail_memory(error, tiles->device_count);
    tiles->place = place;
    if (message->n_iota_reshape_dims == 0) {
        if (message->n_tile_assignment_devices != (size_t)tiles->device_count)
            return fail(error, "as many devices as tiles were expected");
        for (int32_t d = 0; d < tiles->device_count; d++) place[d] = -1;
        for (int32_t p = 0; p < tiles->device_count; p++) {
            if (message->tile_assignment_devices[p] < 0 ||
                message->tile_assignment_devices[p] >= tiles->device_count ||
                place[message->tile_assignment_devices[p]] >= 0)
                return fail(error, "each device was expected once");
            place[message->tile_assignment_devices[p]] = p;
        }
        return AM_OK;
    }
    if (message->n_iota_transpose_perm != message->n_iota_reshape_dims)
        return fail(error, "T(...) is not a permutation of the dimensions before it");
    return place_iota(place, tiles->device_count, message->iota_reshape_dims, message->iota_transpose_perm,
                      message->n_iota_reshape_dims, error);
}

/* Reads named axes: the array has the axes of dimension 0, of dimension 1, ..., then all others. */
static AmStatus read_named(DeviceTiles *tiles, Arena *arena, const Hlo__NamedShardingProto *message,
                           AmError *error) {
    const Hlo__MeshProto *mesh = message->mesh;
    MeshParts parts;
    int32_t order[MESH_PARTS_MAX];
    size_t count = 0;
    if (message->n_manual_axes + message->n_unreduced_axes > 0)
        return fail(error, "manual and unreduced axes are not supported");
    if (mesh->n_axes > IR_MAX_RANK || message->n_dim_shardings > IR_MAX_RANK)
        return fail(error, "unexpected number of dimensions or axes");
    TRY(mesh_parts_cut(&parts, message, error));
    for (size_t k = 0; k < mesh->n_device_ids; k++)
        if (mesh->device_ids[k] != (int64_t)k)
            return fail(error, "a mesh whose devices are not in order is not supported");
    if (mesh->iota_transform && mesh->iota_transform->n_transpose_perm > 1)
        return fail(error, "a mesh whose devices are not in order is not supported");
    tiles->mesh = parts.has_cut_axis ? NULL : mesh;
    tiles->rank = (int32_t)message->n_dim_shardings;
    tiles->device_count = (int32_t)bounded_product(parts.size, (size_t)parts.count, MESH_MAX_DEVICES);
    if (tiles->device_count == 0) return fail(error, "unexpected size of a mesh");
    for (int32_t d = 0; d < tiles->rank; d++) {
        const Hlo__NamedShardingProto__DimensionSharding *dimension = message->dim_shardings[d];
        int64_t ways = 1;
        for (size_t k = 0; k < dimension->n_axes; k++)
            TRY(mesh_parts_take(&parts, dimension->axes[k], order, &count, &ways, error));
        tiles->tiles[d] = (int32_t)ways;
    }
    for (int32_t k = 0; k < parts.count; k++)
        if (!parts.is_taken[k]) order[count++] = k;
    set_strides(tiles);
    int32_t *place = ARENA_ARRAY(arena, int32_t, tiles->device_count);
    if (!place) return am_fail_memory(error, tiles->device_count);
    tiles->place = place;
    return place_iota(place, tiles->device_count, parts.size, order, count, error);
}

AmStatus sharding_read(DeviceTiles *tiles, Arena *arena, const Hlo__OpSharding *message, AmError *error) {
    *tiles = (DeviceTiles){.message = message};
    if (message->named_sharding && message->named_sharding->mesh)
        return read_named(tiles, arena, message->named_sharding, error);
    switch (message->type) {
    case HLO__OP_SHARDING__TYPE__REPLICATED: return AM_OK;
    case HLO__OP_SHARDING__TYPE__OTHER: return read_tiled(tiles, arena, message, error);
    case HLO__OP_SHARDING__TYPE__MAXIMAL:
        return fail(error, "maximal (all of a value on one device) is not supported");
    default: return fail(error, "manual, unreduced and tuple-shaped values are not supported");
    }
}

static int32_t part_of(const DeviceTiles *tiles, int32_t device, int32_t dimension) {
    return tiles->place[device] / tiles->stride[dimension] % tiles->tiles[dimension];
}

/* Returns the dimension in which the part of `device` differs from that of device 0: -1 none, -2 several. */
static int32_t moved_dimension(const DeviceTiles *tiles, int32_t device) {
    int32_t moved = -1;
    for (int32_t d = 0; d < tiles->rank; d++) {
        if (part_of(tiles, device, d) == part_of(tiles, 0, d)) continue;
        if (moved >= 0) return -2;
        moved = d;
    }
    return moved;
}

bool sharding_to_state(SbpState *state, const DeviceTiles *tiles, const Mesh *mesh) {
    *state = (SbpState){.axis = {SBP_B}};
    if (tiles->device_count == 0) return true;
    if (tiles->device_count != mesh->device_count) return false;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        if (mesh->axes[axis].size == 1) continue;
        int32_t dimension = moved_dimension(tiles, mesh_axis_stride(mesh, axis));
        if (dimension < -1) return false;
        if (dimension >= 0) state->axis[axis] = sbp_split(dimension);
    }
    for (int32_t d = 0; d < tiles->rank; d++) {
        if (sbp_ways(mesh, *state, d) != tiles->tiles[d]) return false;
        for (int32_t device = 0; device < mesh->device_count; device++) {
            int32_t part = 0;
            for (int32_t axis = 0; axis < mesh->axis_count; axis++)
                if (state->axis[axis] == sbp_split(d))
                    part = part * mesh->axes[axis].size + mesh_coordinate(mesh, device, axis);
            if (part != part_of(tiles, device, d)) return false;
        }
    }
    return true;
}

/* Returns how many of device 0, stride, 2 stride, ... hold part 0, e, 2 e, ... of one dimension. */
static int32_t run_length(const DeviceTiles *tiles, int32_t stride) {
    int32_t count = tiles->device_count / stride, length = 1;
    if (count == 1) return 1;
    int32_t dimension = moved_dimension(tiles, stride);
    if (dimension == -2) return 1;
    int32_t step = dimension < 0 ? 0 : part_of(tiles, stride, dimension);
    for (; length < count; length++) {
        int32_t moved = moved_dimension(tiles, length * stride);
        if (moved != dimension) break;
        if (dimension >= 0 && part_of(tiles, length * stride, dimension) != length * step) break;
    }
    return length;
}

AmStatus sharding_infer_mesh(Mesh *mesh, Arena *arena, const DeviceTiles *const *tiles, int32_t count,
                             AmError *error) {
    int32_t devices = 0;
    const Hlo__MeshProto *named = NULL;
    for (int32_t k = 0; k < count; k++) {
        if (tiles[k]->device_count == 0) continue;
        if (devices > 0 && tiles[k]->device_count != devices)
            return am_fail(error, AM_ERROR_INPUT, "", "sharding: some are over %d devices, others over %d",
                           devices, tiles[k]->device_count);
        devices = tiles[k]->device_count;
        if (tiles[k]->mesh) named = tiles[k]->mesh;
    }
    if (devices == 0) return fail(error, "no value is split, so the mesh is not known: give --mesh");
    if (named) {
        *mesh = (Mesh){.axis_count = (int32_t)named->n_axes, .device_count = devices};
        if (named->n_axes > MESH_MAX_AXES)
            return am_fail(error, AM_ERROR_INPUT, "", "sharding: a mesh of more than %d axes", MESH_MAX_AXES);
        for (int32_t k = 0; k < mesh->axis_count; k++)
            mesh->axes[k] = (MeshAxis){.name = arena_copy_string(arena, named->axes[k]->name),
                                       .size = (int32_t)named->axes[k]->size};
        return arena->failed ? am_fail_memory(error, 0) : AM_OK;
    }
    int32_t sizes[MESH_MAX_AXES], axes = 0;
    for (int32_t stride = 1; stride < devices; stride *= sizes[axes++]) {
        int32_t run = devices / stride;
        for (int32_t k = 0; k < count; k++) {
            int32_t length = tiles[k]->device_count > 0 ? run_length(tiles[k], stride) : run;
            if (length < run) run = length;
        }
        if (run == 1 || devices / stride % run != 0 || axes == MESH_MAX_AXES)
            return am_fail(error, AM_ERROR_INPUT, "",
                           "sharding: no mesh of at most %d axes explains all shardings of the module",
                           MESH_MAX_AXES);
        sizes[axes] = run;
    }
    if (axes == 0) sizes[axes++] = 1; /* one device */
    *mesh = (Mesh){.axis_count = axes, .device_count = devices};
    for (int32_t k = 0; k < axes; k++)
        mesh->axes[k] = (MeshAxis){.name = arena_format(arena, "x%d", k), .size = sizes[axes - 1 - k]};
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}
