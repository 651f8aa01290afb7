/* A cache of shapes and paths between states within one lowering.
 *
 * Repeated layers need the same local shapes and the same sequences of collectives: lowering and pricing ask
 * for each pair of states once.
 */
#ifndef LOWERING_SPMD_LOWER_MEMO_H
#define LOWERING_SPMD_LOWER_MEMO_H

#include "lowering/spmd/reshard_path.h"

/* The shard of an array. */
typedef struct LocalShape {
    const int64_t *global; /* [rank] global sizes; NULL: the place is free */
    const int64_t *local;  /* [rank] this device's */
    int32_t rank;
    SbpState state;
    bool is_uneven; /* shards differ in size from device to device */
} LocalShape;

typedef struct KnownPath {
    const int64_t *global; /* [rank]; NULL: the place is free */
    int32_t rank;
    SbpState from, to;
    const ReshardPath *path; /* NULL: no path */
} KnownPath;

/* The devices that a collective is among. */
typedef struct KnownGroup {
    const int32_t *devices; /* [count]; NULL: not used yet */
    int32_t count;
} KnownGroup;

/* The shard of a dimension on each member of a group. */
typedef struct KnownParts {
    const int64_t *parts; /* [members]; NULL: the place is free */
    uint32_t axes;        /* of the group */
    int32_t dimension;
    int64_t size; /* of the dimension */
    SbpState state;
} KnownParts;

enum { LOWER_MEMO_SHAPES = 256, LOWER_MEMO_PATHS = 128, LOWER_MEMO_PARTS = 128 };

/* All for one device of one mesh. Zeroed it is empty. */
typedef struct LowerMemo {
    LocalShape shapes[LOWER_MEMO_SHAPES];
    KnownPath paths[LOWER_MEMO_PATHS];
    KnownGroup groups[1 << MESH_MAX_AXES]; /* by axes (bits) */
    KnownParts parts[LOWER_MEMO_PARTS];
} LowerMemo;

/* Returns the shard of `device` of an array that is not a tuple; valid until the next call. NULL: memory is
 * exhausted. */
const LocalShape *lower_memo_shape(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                   const IrShape *global, SbpState state);

/* Returns the cheapest path between two states of an array; NULL: no path, or memory is exhausted. */
const ReshardPath *lower_memo_path(LowerMemo *memo, Arena *arena, const Mesh *mesh, const IrShape *global,
                                   SbpState from, SbpState to);

/* Returns the devices that differ from `device` on these axes (bits) only; NULL: no memory. */
const KnownGroup *lower_memo_group(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                   uint32_t axes);

/* Returns the elements of a dimension of `size` that each member of the group over `axes` has; NULL: no
 * memory. */
const int64_t *lower_memo_parts(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                uint32_t axes, SbpState state, int32_t dimension, int64_t size);

#endif
