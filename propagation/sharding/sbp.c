/* SBP states: names, text and the shards that they define (OneFlow section 3.1).
 *
 * s granules over n equal shards give the first s mod n shards one granule more than the others:
 * shard k starts at k * (s / n) + min(k, s mod n). With shares f_0..f_{n-1}, shard k starts at
 * round(s * (f_0 + ... + f_{k-1})). Axes that split one dimension jointly split successively, the
 * earlier axis first: each splits the part left by the axes before it, between its own granules.
 */
#include "propagation/sharding/sbp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One row per reduction: its name and the operator of to_apply. */
static const struct {
    const char *name;
    IrOpcode opcode;
} reductions[SBP_REDUCTION_COUNT] = {
    [SBP_ADD] = {"add", IR_ADD},     [SBP_MAX] = {"max", IR_MAXIMUM},
    [SBP_MIN] = {"min", IR_MINIMUM}, [SBP_MULTIPLY] = {"multiply", IR_MULTIPLY},
    [SBP_AND] = {"and", IR_AND},     [SBP_OR] = {"or", IR_OR},
};

bool sbp_has_split(SbpState state) {
    for (int32_t k = 0; k < MESH_MAX_AXES; k++) {
        if (sbp_is_split(state.axis[k])) return true;
    }
    return false;
}

bool sbp_has_partial(SbpState state) {
    for (int32_t k = 0; k < MESH_MAX_AXES; k++) {
        if (sbp_is_partial(state.axis[k])) return true;
    }
    return false;
}

const char *sbp_reduction_name(SbpReduction reduction) {
    return reductions[reduction].name;
}

SbpReduction sbp_reduction_of(IrOpcode opcode) {
    int32_t reduction = 0;
    while (reduction < SBP_REDUCTION_COUNT && reductions[reduction].opcode != opcode) reduction++;
    return (SbpReduction)reduction;
}

IrOpcode sbp_reduction_opcode(SbpReduction reduction) {
    return reductions[reduction].opcode;
}

void sbp_print_axis(Text *text, Sbp sbp) {
    if (sbp_is_split(sbp)) text_append(text, "S(%d)", sbp_dimension(sbp));
    else if (sbp_is_partial(sbp)) text_append(text, "P(%s)", sbp_reduction_name(sbp_reduction(sbp)));
    else text_append_string(text, "B");
}

void sbp_print(Text *text, const Mesh *mesh, SbpState state) {
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        text_append(text, "%s%s=", k ? " " : "", mesh->axes[k].name);
        sbp_print_axis(text, state.axis[k]);
        if (!sbp_is_split(state.axis[k]) || state.cut[k].count == 0) continue;
        if (state.cut[k].outer > 1) text_append(text, "/%dx%d", state.cut[k].outer, state.cut[k].count);
        else text_append(text, "/%d", state.cut[k].count);
    }
}

AmStatus sbp_parse_axis(Sbp *sbp, const char *text, AmError *error) {
    if (strcmp(text, "B") == 0) {
        *sbp = SBP_B;
        return AM_OK;
    }
    size_t length = strlen(text);
    if (length >= 4 && text[1] == '(' && text[length - 1] == ')') {
        const char *inside = text + 2;
        size_t inside_length = length - 3;
        if (text[0] == 'S') {
            char *end;
            long dimension = strtol(inside, &end, 10);
            if (inside[0] >= '0' && inside[0] <= '9' && end == inside + inside_length &&
                dimension < IR_MAX_RANK) {
                *sbp = sbp_split((int32_t)dimension);
                return AM_OK;
            }
        }
        for (int32_t r = 0; text[0] == 'P' && r < SBP_REDUCTION_COUNT; r++) {
            if (strlen(reductions[r].name) == inside_length &&
                strncmp(reductions[r].name, inside, inside_length) == 0) {
                *sbp = sbp_partial((SbpReduction)r);
                return AM_OK;
            }
        }
    }
    return am_fail(error, AM_ERROR_INPUT, "",
                   "state \"%.40s\": expected \"B\", \"S(dimension)\" or \"P(add)\"", text);
}

int32_t sbp_ways(const Mesh *mesh, SbpState state, int32_t dimension) {
    int32_t ways = 1;
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (state.axis[k] == sbp_split(dimension)) ways *= mesh->axes[k].size;
    }
    return ways;
}

/* Returns the start of shard k of `size` elements on this axis; k = axis->size gives the end. */
static int64_t part_start(const MeshAxis *axis, int64_t size, int32_t k) {
    if (k == axis->size) return size;
    if (!axis->shares) {
        int64_t remainder = size % axis->size;
        return k * (size / axis->size) + (k < remainder ? k : remainder);
    }
    double before = 0;
    for (int32_t part = 0; part < k; part++) before += axis->shares[part];
    int64_t start = llround((double)size * before);
    return start < 0 ? 0 : start > size ? size : start;
}

/* Elements of a granule of the axis in a dimension of `size`. */
static int64_t granule_of(SbpCut cut, int64_t size) {
    int64_t granule = cut.count == 0 ? 1 : size / ((int64_t)cut.outer * cut.count);
    return granule > 0 ? granule : 1;
}

/* Narrows a piece, from *start of every block and *extent elements of all blocks
 * together, of a dimension of `size` to the axis's part of it. */
static void narrow(const Mesh *mesh, SbpState state, int32_t axis, int32_t device, int64_t size,
                   int64_t *start, int64_t *extent) {
    int64_t blocks = state.cut[axis].outer > 1 ? state.cut[axis].outer : 1;
    int64_t piece = *extent / blocks, granule = granule_of(state.cut[axis], size);
    int32_t part = mesh_coordinate(mesh, device, axis);
    int64_t from = part_start(&mesh->axes[axis], piece / granule, part) * granule;
    int64_t to = part + 1 == mesh->axes[axis].size
                     ? piece
                     : part_start(&mesh->axes[axis], piece / granule, part + 1) * granule;
    *start += from;
    *extent = blocks * (to - from);
}

int32_t sbp_blocks(SbpState state, int32_t dimension) {
    for (int32_t k = 0; k < MESH_MAX_AXES; k++)
        if (state.axis[k] == sbp_split(dimension) && state.cut[k].outer > 1) return state.cut[k].outer;
    return 1;
}

int32_t sbp_colliding_axis(SbpState state) {
    for (int32_t axis = MESH_MAX_AXES - 1; axis > 0; axis--)
        for (int32_t earlier = 0; earlier < axis; earlier++) {
            if (!sbp_is_split(state.axis[axis]) || state.axis[axis] != state.axis[earlier]) continue;
            int32_t blocks = state.cut[axis].outer, others = state.cut[earlier].outer;
            if ((blocks > 1 || others > 1) && blocks != others) return axis;
        }
    return -1;
}

void sbp_shard(const Mesh *mesh, SbpState state, int32_t device, int32_t dimension, int64_t size,
               int64_t *start, int64_t *extent) {
    *start = 0;
    *extent = size;
    for (int32_t k = 0; k < mesh->axis_count; k++)
        if (state.axis[k] == sbp_split(dimension)) narrow(mesh, state, k, device, size, start, extent);
}

bool sbp_is_even(const Mesh *mesh, SbpState state, int32_t dimension, int64_t size) {
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (state.axis[k] != sbp_split(dimension)) continue;
        bool equal_shares = !mesh->axes[k].shares;
        if (!equal_shares || size / granule_of(state.cut[k], size) % sbp_ways(mesh, state, dimension) != 0)
            return false;
    }
    return true;
}

bool sbp_splits_into(const Mesh *mesh, SbpState state, int32_t dimension, int64_t size, int64_t parts) {
    return sbp_blocks(state, dimension) == 1 && sbp_ways(mesh, state, dimension) == parts &&
           sbp_is_even(mesh, state, dimension, size);
}

SbpCut sbp_cut(const Mesh *mesh, SbpState state, int32_t axis, int32_t dimension, int64_t size, int64_t outer,
               int64_t count) {
    SbpCut plain = {0, 0};
    if (outer > 1 && sbp_splits_into(mesh, state, dimension, size, outer)) {
        count *= outer; /* one block is left, so that its pieces are pieces of the whole */
        outer = 1;
    }
    if (outer > 1) { /* even cuts are those between elements */
        SbpState in_block = state;
        for (int32_t k = 0; k < MESH_MAX_AXES; k++)
            if (state.axis[k] == sbp_split(dimension)) in_block.cut[k].outer = 1;
        int64_t block = size / outer;
        bool is_plain = sbp_cut(mesh, in_block, axis, dimension, block, 1, count).count == 0;
        return (SbpCut){(int32_t)outer, (int32_t)(is_plain ? block : count)};
    }
    SbpCut cut = {1, (int32_t)count};
    if (count == size) return plain;
    int64_t ways = (int64_t)sbp_ways(mesh, state, dimension) * mesh->axes[axis].size;
    bool is_even = !mesh->axes[axis].shares && count % ways == 0;
    return is_even && sbp_is_even(mesh, state, dimension, size) ? plain : cut;
}

bool sbp_cuts_between(const Mesh *mesh, SbpState state, int32_t dimension, int64_t size, int64_t granules) {
    if (granules <= 0 || size % granules != 0) return false;
    if (granules == size) return true;
    if (sbp_blocks(state, dimension) > 1) return false;
    int64_t unit = size / granules;
    int32_t ways = 1;
    bool is_even = true; /* so far */
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (state.axis[k] != sbp_split(dimension)) continue;
        ways *= mesh->axes[k].size;
        is_even &= !mesh->axes[k].shares && size / granule_of(state.cut[k], size) % ways == 0;
        bool falls = granule_of(state.cut[k], size) % unit == 0 || (is_even && granules % ways == 0);
        if (!falls) return false;
    }
    return true;
}

IrShape sbp_local_shape(Arena *arena, const Mesh *mesh, SbpState state, int32_t device,
                        const IrShape *shape) {
    IrShape local = *shape;
    if (shape->type == DTYPE_TUPLE || shape->rank == 0 || !sbp_has_split(state)) return local;
    int64_t *dimensions = ARENA_ARRAY(arena, int64_t, shape->rank);
    if (!dimensions) return local;
    memcpy(dimensions, shape->dimensions, sizeof(int64_t) * (size_t)shape->rank);
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (!sbp_is_split(state.axis[k]) || sbp_dimension(state.axis[k]) >= shape->rank) continue;
        int32_t d = sbp_dimension(state.axis[k]);
        int64_t start = 0;
        narrow(mesh, state, k, device, shape->dimensions[d], &start, &dimensions[d]);
    }
    local.dimensions = dimensions;
    return local;
}
