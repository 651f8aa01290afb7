/* Shardings as messages of HLO.
 *
 * HLO assigns tiles to devices by an array of devices: one dimension per tensor dimension, then one for the
 * devices with the same tile. That array is the mesh, an iota over [axis sizes], with its axes permuted to
 * (axes of dimension 0, axes of dimension 1, ..., partial axes, replicated axes) and reshaped. Adjacent axes
 * that stay together are written as one, so that the natural order is simply <=[devices].
 *
 * The named spelling gives each dimension the mesh axes that split it, major first, and closes it, so that a
 * propagation adds none. Shardy's own is text in frontend attributes, in the form in which XLA carries it
 * through HLO: the module holds the mesh (xla.sdy.meshes), every annotated instruction refers to it
 * (xla.sdy.sharding).
 */
#include "propagation/propagate/sharding_message.h"

#include <string.h>

/* ---- tiles ---- */

/* Devices as an array: its dimensions `tiles` are those of the tensor, then one
 * for partial and one for replicated axes, each left out where it is 1; its elements
 * are iota over `reshape`, transposed by `order`. */
typedef struct TiledSharding {
    bool is_replicated; /* nothing below matters then */
    int32_t tiles[IR_MAX_RANK + 2];
    int32_t tile_rank;
    int32_t reshape[MESH_MAX_AXES], order[MESH_MAX_AXES];
    int32_t block_count; /* of reshape and order */
    bool has_partial, has_replicated;
} TiledSharding;

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

/* Returns the tiles of an array of that rank in a state on the mesh. */
static TiledSharding sharding_of_state(const Mesh *mesh, SbpState state, int32_t rank) {
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
    /* Fills reshape and order: neighbouring axes as one block. */
    int32_t starts[MESH_MAX_AXES], sizes[MESH_MAX_AXES], count = 0; /* in permuted order */
    for (int32_t k = 0; k < order.count; k++) {
        int32_t axis = order.axes[k];
        if (k > 0 && next_axis(mesh, order.axes[k - 1]) == axis) {
            sizes[count - 1] *= mesh->axes[axis].size;
        } else {
            starts[count] = axis;
            sizes[count++] = mesh->axes[axis].size;
        }
    }
    sharding.block_count = count;
    for (int32_t k = 0; k < count; k++) {
        int32_t place = 0; /* in the order of the mesh */
        for (int32_t other = 0; other < count; other++) place += starts[other] < starts[k];
        sharding.order[k] = place;
        sharding.reshape[place] = sizes[k];
    }
    return sharding;
}

/* ---- messages ---- */

int64_t *sharding_copy_int64(Arena *arena, const int32_t *values, int32_t count) {
    int64_t *copy = ARENA_ARRAY(arena, int64_t, count);
    for (int32_t k = 0; copy && k < count; k++) copy[k] = values[k];
    return copy;
}

static Hlo__OpSharding *tiled_message(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank) {
    Hlo__OpSharding *message = ARENA_ARRAY(arena, Hlo__OpSharding, 1);
    if (!message) return NULL;
    hlo__op_sharding__init(message);
    TiledSharding sharding = sharding_of_state(mesh, state, rank);
    if (sharding.is_replicated) return message; /* type REPLICATED */
    message->type = HLO__OP_SHARDING__TYPE__OTHER;
    message->n_tile_assignment_dimensions = (size_t)sharding.tile_rank;
    message->tile_assignment_dimensions = sharding_copy_int64(arena, sharding.tiles, sharding.tile_rank);
    message->n_iota_reshape_dims = message->n_iota_transpose_perm = (size_t)sharding.block_count;
    message->iota_reshape_dims = sharding_copy_int64(arena, sharding.reshape, sharding.block_count);
    message->iota_transpose_perm = ARENA_ARRAY(arena, int32_t, sharding.block_count);
    message->last_tile_dims = ARENA_ARRAY(arena, Hlo__OpSharding__Type, 2);
    if (arena->failed) return NULL;
    for (int32_t k = 0; k < sharding.block_count; k++) message->iota_transpose_perm[k] = sharding.order[k];
    message->replicate_on_last_tile_dim = sharding.has_replicated && !sharding.has_partial;
    if (!sharding.has_partial) return message;
    message->last_tile_dims[message->n_last_tile_dims++] = HLO__OP_SHARDING__TYPE__UNREDUCED;
    if (sharding.has_replicated)
        message->last_tile_dims[message->n_last_tile_dims++] = HLO__OP_SHARDING__TYPE__REPLICATED;
    return message;
}

static Hlo__MeshProto *mesh_message(Arena *arena, const Mesh *mesh) {
    Hlo__MeshProto *message = ARENA_ARRAY(arena, Hlo__MeshProto, 1);
    Hlo__MeshProto__MeshAxis *axes = ARENA_ARRAY(arena, Hlo__MeshProto__MeshAxis, mesh->axis_count);
    if (arena->failed) return NULL;
    hlo__mesh_proto__init(message);
    message->axes = ARENA_ARRAY(arena, Hlo__MeshProto__MeshAxis *, mesh->axis_count);
    if (!message->axes) return NULL;
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        hlo__mesh_proto__mesh_axis__init(&axes[k]);
        axes[k].name = arena_copy_string(arena, mesh->axes[k].name);
        axes[k].size = mesh->axes[k].size;
        message->axes[message->n_axes++] = &axes[k];
    }
    return arena->failed ? NULL : message;
}

static Hlo__AxisRefProto **axes_with(Arena *arena, const Mesh *mesh, SbpState state, Sbp wanted,
                                     size_t *count) {
    Hlo__AxisRefProto **references = ARENA_ARRAY(arena, Hlo__AxisRefProto *, mesh->axis_count);
    *count = 0;
    for (int32_t axis = 0; references && axis < mesh->axis_count; axis++) {
        if (state.axis[axis] != wanted) continue;
        Hlo__AxisRefProto *reference = ARENA_ARRAY(arena, Hlo__AxisRefProto, 1);
        if (!reference) return NULL;
        hlo__axis_ref_proto__init(reference);
        reference->mesh_axis_index = axis;
        references[(*count)++] = reference;
    }
    return references;
}

static Hlo__OpSharding *named_message(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank) {
    typedef Hlo__NamedShardingProto__DimensionSharding Dimension;
    Hlo__OpSharding *message = ARENA_ARRAY(arena, Hlo__OpSharding, 1);
    Hlo__NamedShardingProto *named = ARENA_ARRAY(arena, Hlo__NamedShardingProto, 1);
    Dimension *dimensions = ARENA_ARRAY(arena, Dimension, rank);
    if (arena->failed) return NULL;
    hlo__op_sharding__init(message);
    hlo__named_sharding_proto__init(named);
    message->named_sharding = named;
    named->mesh = mesh_message(arena, mesh);
    named->dim_shardings = ARENA_ARRAY(arena, Dimension *, rank);
    if (arena->failed) return NULL;
    for (int32_t d = 0; d < rank; d++) {
        hlo__named_sharding_proto__dimension_sharding__init(&dimensions[d]);
        dimensions[d].is_closed = true;
        dimensions[d].axes = axes_with(arena, mesh, state, sbp_split(d), &dimensions[d].n_axes);
        named->dim_shardings[named->n_dim_shardings++] = &dimensions[d];
    }
    named->unreduced_axes = axes_with(arena, mesh, state, sbp_partial(SBP_ADD), &named->n_unreduced_axes);
    return arena->failed ? NULL : message;
}

Hlo__OpSharding *sharding_message(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank,
                                  ShardingSpelling spelling) {
    return spelling == SHARDING_NAMED ? named_message(arena, mesh, state, rank)
                                      : tiled_message(arena, mesh, state, rank);
}

Hlo__FrontendAttributes *sharding_frontend(Arena *arena, const Hlo__FrontendAttributes *from, const char *key,
                                           const char *value) {
    typedef Hlo__FrontendAttributes__MapEntry Entry;
    size_t count = from ? from->n_map : 0;
    Hlo__FrontendAttributes *attributes = ARENA_ARRAY(arena, Hlo__FrontendAttributes, 1);
    if (!attributes) return NULL;
    hlo__frontend_attributes__init(attributes);
    attributes->map = ARENA_ARRAY(arena, Entry *, count + 1);
    for (size_t k = 0; attributes->map && k < count; k++)
        if (strncmp(from->map[k]->key, "xla.sdy.", 8) != 0)
            attributes->map[attributes->n_map++] = from->map[k];
    if (key && attributes->map) {
        Entry *entry = ARENA_ARRAY(arena, Entry, 1);
        if (!entry || !value) return NULL;
        hlo__frontend_attributes__map_entry__init(entry);
        entry->key = arena_copy_string(arena, key);
        entry->value = arena_copy_string(arena, value);
        attributes->map[attributes->n_map++] = entry;
    }
    return attributes->n_map > 0 ? attributes : NULL;
}

const char *sharding_shardy_meshes(Arena *arena, const Mesh *mesh) {
    Text text = {0};
    text_append_string(&text, "{mesh = #sdy.mesh<[");
    for (int32_t k = 0; k < mesh->axis_count; k++)
        text_append(&text, "%s\"%s\"=%d", k ? ", " : "", mesh->axes[k].name, mesh->axes[k].size);
    text_append_string(&text, "]>}");
    const char *copy = text.data ? arena_copy_string(arena, text.data) : NULL;
    text_free(&text);
    return copy;
}

const char *sharding_shardy(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank, bool is_result,
                            bool is_open) {
    Text text = {0};
    text_append_string(&text, is_result ? "#sdy.sharding_per_value<[<@mesh, [" : "#sdy.sharding<@mesh, [");
    for (int32_t d = 0; d < rank; d++) {
        int32_t count = 0;
        text_append_string(&text, d ? ", {" : "{");
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            if (state.axis[axis] != sbp_split(d)) continue;
            text_append(&text, "%s\"%s\"", count++ ? ", " : "", mesh->axes[axis].name);
        }
        if (is_open) text_append(&text, "%s?}p%d", count > 0 ? ", " : "", count > 0 ? 0 : 1);
        else text_append_string(&text, "}");
    }
    text_append_string(&text, is_result ? "]>]>" : "]>");
    const char *copy = text.data ? arena_copy_string(arena, text.data) : NULL;
    text_free(&text);
    return copy;
}
