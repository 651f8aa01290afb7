/* SBP states as HLO sharding attributes: device arrays, and their text.
 *
 * HLO assigns tiles to devices by an array of devices: one dimension per tensor dimension, then one
 * for the devices with the same tile. That array is the mesh, an iota over [axis sizes], with its
 * axes permuted to (axes of dimension 0, axes of dimension 1, ..., partial axes, replicated axes)
 * and reshaped. Adjacent axes that stay together are written as one, so that the natural order is
 * simply <=[devices].
 */
#include "propagation/propagate/hlo_sharding.h"

#include "propagation/propagate/propagate.h"

typedef struct AxisOrder {
    int32_t axes[MESH_MAX_AXES];
    int32_t count;
} AxisOrder;

/* Appends the axes of more than one device in a state; returns how many devices they have together. */
static int32_t append_axes(AxisOrder *order, const Mesh *mesh, SbpState state, Sbp wanted) {
    int32_t devices = 1;
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        bool is_partial = sbp_is_partial(wanted) && sbp_is_partial(state.axis[k]);
        if (mesh->axes[k].size == 1 || (state.axis[k] != wanted && !is_partial)) continue;
        order->axes[order->count++] = k;
        devices *= mesh->axes[k].size;
    }
    return devices;
}

/* Returns the mesh axis of more than one device that comes next after `axis`; -1: none. */
static int32_t next_axis(const Mesh *mesh, int32_t axis) {
    for (int32_t k = axis + 1; k < mesh->axis_count; k++) {
        if (mesh->axes[k].size > 1) return k;
    }
    return -1;
}

/* Fills reshape and order: neighbouring axes as one block. */
static void set_blocks(TiledSharding *sharding, const Mesh *mesh, const AxisOrder *order) {
    int32_t starts[MESH_MAX_AXES], sizes[MESH_MAX_AXES], count = 0; /* in permuted order */
    for (int32_t k = 0; k < order->count; k++) {
        int32_t axis = order->axes[k];
        if (k > 0 && next_axis(mesh, order->axes[k - 1]) == axis) {
            sizes[count - 1] *= mesh->axes[axis].size;
        } else {
            starts[count] = axis;
            sizes[count++] = mesh->axes[axis].size;
        }
    }
    sharding->block_count = count;
    for (int32_t k = 0; k < count; k++) {
        int32_t place = 0; /* in the order of the mesh */
        for (int32_t other = 0; other < count; other++) place += starts[other] < starts[k];
        sharding->order[k] = place;
        sharding->reshape[place] = sizes[k];
    }
}

TiledSharding sharding_of_state(const Mesh *mesh, SbpState state, int32_t rank) {
    TiledSharding sharding = {.tile_rank = rank};
    AxisOrder order = {.count = 0};
    for (int32_t d = 0; d < rank; d++) sharding.tiles[d] = append_axes(&order, mesh, state, sbp_split(d));
    int32_t partial = append_axes(&order, mesh, state, sbp_partial(SBP_ADD));
    sharding.is_replicated = order.count == 0;
    int32_t replicated = append_axes(&order, mesh, state, SBP_B);
    sharding.has_partial = partial > 1;
    sharding.has_replicated = replicated > 1;
    if (sharding.has_partial) sharding.tiles[sharding.tile_rank++] = partial;
    if (sharding.has_replicated) sharding.tiles[sharding.tile_rank++] = replicated;
    set_blocks(&sharding, mesh, &order);
    return sharding;
}
