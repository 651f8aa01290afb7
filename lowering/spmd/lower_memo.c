/* The memo of a lowering: hash tables in which an entry has one slot, and a new entry replaces an
 * old one. Arrays of repeated layers have few sizes and states, so that nearly every query repeats.
 * Equal sizes then share memory, which makes later comparisons fast. Sizes are compared by value,
 * not by address.
 */
#include "lowering/spmd/lower_memo.h"

#include "base/hash.h"

static uint64_t hash_state(uint64_t hash, SbpState state) {
    uint32_t axes;
    memcpy(&axes, state.axis, sizeof axes);
    hash = hash_combine(hash, axes);
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_split(state.axis[axis]))
            hash =
                hash_combine(hash, (uint64_t)state.cut[axis].outer << 32 | (uint32_t)state.cut[axis].count);
    return hash;
}

static uint64_t hash_sizes(const IrShape *global) {
    uint64_t hash = (uint64_t)global->rank;
    for (int32_t d = 0; d < global->rank; d++) hash = hash_combine(hash, (uint64_t)global->dimensions[d]);
    return hash;
}

static bool has_sizes(const int64_t *sizes, int32_t rank, const IrShape *global) {
    if (!sizes || rank != global->rank) return false;
    return rank == 0 || sizes == global->dimensions ||
           memcmp(sizes, global->dimensions, sizeof *sizes * (size_t)rank) == 0;
}

static const int64_t *copy_sizes(Arena *arena, const IrShape *global) {
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, global->rank);
    if (sizes && global->rank > 0) memcpy(sizes, global->dimensions, sizeof *sizes * (size_t)global->rank);
    return sizes;
}

static bool is_uneven(const Mesh *mesh, const IrShape *global, SbpState state) {
    for (int32_t d = 0; d < global->rank; d++)
        if (!sbp_is_even(mesh, state, d, global->dimensions[d])) return true;
    return false;
}

const LocalShape *lower_memo_shape(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                   const IrShape *global, SbpState state) {
    LocalShape *entry = &memo->shapes[hash_state(hash_sizes(global), state) % LOWER_MEMO_SHAPES];
    if (has_sizes(entry->global, entry->rank, global) && sbp_equal(entry->state, state)) return entry;
    *entry = (LocalShape){.global = copy_sizes(arena, global),
                          .local = sbp_local_shape(arena, mesh, state, device, global).dimensions,
                          .rank = global->rank,
                          .state = state,
                          .is_uneven = is_uneven(mesh, global, state)};
    return arena->failed ? NULL : entry;
}

const ReshardPath *lower_memo_path(LowerMemo *memo, Arena *arena, const Mesh *mesh, const IrShape *global,
                                   SbpState from, SbpState to) {
    uint64_t hash = hash_state(hash_state(hash_sizes(global), from), to);
    KnownPath *entry = &memo->paths[hash % LOWER_MEMO_PATHS];
    if (has_sizes(entry->global, entry->rank, global) && sbp_equal(entry->from, from) &&
        sbp_equal(entry->to, to))
        return entry->path;
    ReshardPath *path = ARENA_ARRAY(arena, ReshardPath, 1);
    *entry = (KnownPath){copy_sizes(arena, global), global->rank, from, to, path};
    if (arena->failed) return entry->path = NULL;
    if (!reshard_find_path(path, mesh, global, from, to)) entry->path = NULL;
    return entry->path;
}

const KnownGroup *lower_memo_group(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                   uint32_t axes) {
    KnownGroup *entry = &memo->groups[axes];
    if (entry->devices) return entry;
    int32_t *devices = ARENA_ARRAY(arena, int32_t, mesh->device_count);
    if (!devices) return NULL;
    *entry = (KnownGroup){.count = mesh_group(mesh, device, axes, devices), .devices = devices};
    return entry;
}

const int64_t *lower_memo_parts(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                uint32_t axes, SbpState state, int32_t dimension, int64_t size) {
    uint64_t hash = hash_combine(hash_combine((uint64_t)size, (uint64_t)dimension), axes);
    KnownParts *entry = &memo->parts[hash_state(hash, state) % LOWER_MEMO_PARTS];
    if (entry->parts && entry->axes == axes && entry->dimension == dimension && entry->size == size &&
        sbp_equal(entry->state, state))
        return entry->parts;
    const KnownGroup *group = lower_memo_group(memo, arena, mesh, device, axes);
    int64_t *parts = group ? ARENA_ARRAY(arena, int64_t, group->count + 1) : NULL, start;
    for (int32_t k = 0; parts && k < group->count; k++)
        sbp_shard(mesh, state, group->devices[k], dimension, size, &start, &parts[k]);
    *entry = (KnownParts){parts, axes, dimension, size, state};
    return parts;
}
