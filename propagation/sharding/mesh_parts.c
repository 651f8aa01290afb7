/* Cuts the axes of a named mesh at the begin and the end of each part that a sharding names.
 *
 * mesh_parts_cut() collects the cuts of each axis, sorted, and checks that they divide one another.
 * mesh_parts_take() appends the parts of one named axis to an order.
 */
#include "propagation/sharding/mesh_parts.h"

/* The begins and ends of the parts of one axis, as products of the sizes before them: rising, from 1. */
typedef struct Cuts {
    int64_t at[MESH_PARTS_MAX + 1];
    int32_t count;
} Cuts;

static AmStatus fail(AmError *error, const char *what) {
    return am_fail(error, AM_ERROR_INPUT, "", "sharding: %s", what);
}

/* Inserts a cut in its place; false if there are too many. */
static bool add_cut(Cuts *cuts, int64_t at) {
    int32_t place = cuts->count;
    while (place > 0 && cuts->at[place - 1] > at) place--;
    if (place > 0 && cuts->at[place - 1] == at) return true;
    if (cuts->count > MESH_PARTS_MAX) return false;
    for (int32_t k = cuts->count++; k > place; k--) cuts->at[k] = cuts->at[k - 1];
    cuts->at[place] = at;
    return true;
}

static AmStatus add_cuts(Cuts *cuts, int64_t size, int64_t axis, Hlo__AxisRefProto *const *axes, size_t count,
                         AmError *error) {
    for (size_t k = 0; k < count; k++) {
        const Hlo__AxisRefProto__SubAxis *part = axes[k]->sub_axis_info;
        if (axes[k]->mesh_axis_index != axis || !part) continue;
        if (part->pre_size < 1 || part->size < 1 || size % part->pre_size != 0 ||
            size / part->pre_size % part->size != 0)
            return fail(error, "a part of an axis does not divide the axis");
        if (!add_cut(cuts, part->pre_size) || !add_cut(cuts, part->pre_size * part->size))
            return fail(error, "too many parts of an axis");
    }
    return AM_OK;
}

AmStatus mesh_parts_cut(MeshParts *parts, const Hlo__NamedShardingProto *sharding, AmError *error) {
    const Hlo__MeshProto *mesh = sharding->mesh;
    *parts = (MeshParts){.mesh = mesh};
    for (size_t axis = 0; axis < mesh->n_axes; axis++) {
        int64_t size = mesh->axes[axis]->size;
        Cuts cuts = {.at = {1}, .count = 1};
        if (size < 1) return fail(error, "unexpected size of a mesh");
        add_cut(&cuts, size);
        for (size_t d = 0; d < sharding->n_dim_shardings; d++)
            TRY(add_cuts(&cuts, size, (int64_t)axis, sharding->dim_shardings[d]->axes,
                         sharding->dim_shardings[d]->n_axes, error));
        TRY(add_cuts(&cuts, size, (int64_t)axis, sharding->manual_axes, sharding->n_manual_axes, error));
        int32_t count = cuts.count > 1 ? cuts.count - 1 : 1; /* an axis of size 1 is one part */
        if (parts->count + count > MESH_PARTS_MAX) return fail(error, "unexpected number of axes");
        parts->has_cut_axis |= count > 1;
        for (int32_t k = 0; k < count; k++) {
            if (cuts.count > 1 && cuts.at[k + 1] % cuts.at[k] != 0)
                return fail(error, "parts of an axis overlap");
            parts->axis[parts->count] = (int32_t)axis;
            parts->size[parts->count++] = cuts.count > 1 ? cuts.at[k + 1] / cuts.at[k] : 1;
        }
    }
    return AM_OK;
}

AmStatus mesh_parts_take(MeshParts *parts, const Hlo__AxisRefProto *axis, int32_t *order, size_t *count,
                         int64_t *ways, AmError *error) {
    const Hlo__AxisRefProto__SubAxis *part = axis->sub_axis_info;
    int64_t index = axis->mesh_axis_index, before = 1;
    if (index < 0 || index >= (int64_t)parts->mesh->n_axes) return fail(error, "unexpected axis of a mesh");
    int64_t begin = part ? part->pre_size : 1;
    int64_t end = part ? begin * part->size : parts->mesh->axes[index]->size;
    for (int32_t k = 0; k < parts->count; k++) {
        if (parts->axis[k] != index) continue;
        bool is_named = before >= begin && before * parts->size[k] <= end;
        before *= parts->size[k];
        if (!is_named) continue;
        if (parts->is_taken[k]) return fail(error, "an axis that is split already");
        parts->is_taken[k] = true;
        order[(*count)++] = k;
        *ways *= parts->size[k];
    }
    return AM_OK;
}
