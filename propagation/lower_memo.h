/* What one lowering has found out about shapes and ways between states, and will ask again. */
#ifndef PROPAGATION_LOWER_MEMO_H
#define PROPAGATION_LOWER_MEMO_H

#include "propagation/box_path.h"

/* The shard of an array. */
typedef struct LocalShape {
    const int64_t *global; /* [rank] whole sizes; NULL: the place is free */
    const int64_t *local;  /* [rank] this device's */
    int32_t rank;
    SbpState state;
    bool is_uneven; /* shards differ in size from device to device */
} LocalShape;

typedef struct KnownPath {
    const int64_t *global; /* [rank]; NULL: the place is free */
    int32_t rank;
    SbpState from, to;
    const BoxPath *path; /* NULL: there is no way */
} KnownPath;

enum { LOWER_MEMO_SHAPES = 256, LOWER_MEMO_PATHS = 128 };

/* All for one device of one mesh. Zeroed it is empty. */
typedef struct LowerMemo {
    LocalShape shapes[LOWER_MEMO_SHAPES];
    KnownPath paths[LOWER_MEMO_PATHS];
} LowerMemo;

/* The shard of `device` of an array that is not a tuple; it lasts until another is asked for. NULL: no
 * memory. */
const LocalShape *lower_memo_shape(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device,
                                   const IrShape *global, SbpState state);

/* The cheapest way between two states of an array; NULL: there is none, or no memory. */
const BoxPath *lower_memo_path(LowerMemo *memo, Arena *arena, const Mesh *mesh, const IrShape *global,
                               SbpState from, SbpState to);

#endif
