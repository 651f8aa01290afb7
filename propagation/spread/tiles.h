/* Shardings as arrays of devices: the form in which a module carries them.
 *
 * A tiled sharding cuts dimension d into tiles[d] parts of ceil(size / tiles[d])
 * elements; the last part may be shorter or empty. `devices` lists the device
 * of every tile, row-major over the dimensions, then over the manual subgroup,
 * then over the copies of one tile, which are in ascending order. Equal shardings of one pool have equal
 * addresses. {devices=[2,1,2]<=[4] last_tile_dim_replicate} is tiles 2, 1, copies 2, devices 0, 1, 2, 3.
 */
#ifndef PROPAGATION_SPREAD_TILES_H
#define PROPAGATION_SPREAD_TILES_H

#include "ir/hlo.pb-c.h"
#include "ir/module.h"

#define TILES_MAX_DEVICES 65536 /* devices of a sharding, and the bound of their numbers */

typedef enum TilesKind { TILES_REPLICATED, TILES_MAXIMAL, TILES_MANUAL, TILES_TILED } TilesKind;

typedef struct Tiles {
    TilesKind kind;
    int32_t device; /* maximal: the only device */
    int32_t rank;   /* tiled: of the array */
    int32_t tiles[IR_MAX_RANK];
    int32_t manual, copies; /* sizes of the subgroups, >= 1 */
    int32_t device_count;
    const int32_t *devices; /* [device_count] */
    const struct Tiles *next;
} Tiles;

/* Shardings, each once. Memory comes from the arena; without memory the arena is
 * marked failed and functions return `replicated`. */
typedef struct TilesPool {
    Arena *arena;
    const Tiles **slots;
    int32_t *scratch; /* [4][TILES_MAX_DEVICES] */
    const Tiles *replicated, *manual;
} TilesPool;

/* Makes a pool with the replicated and the manual sharding. */
AmStatus tiles_pool_create(TilesPool *pool, Arena *arena, AmError *error);
/* Returns the pool's sharding with these fields and devices (count at `devices`, which is changed). */
const Tiles *tiles_keep(TilesPool *pool, Tiles *tiles, int32_t *devices);

/* Reads the sharding of one array. Unreduced parts are read as copies, an unknown sharding as
 * replicated. AM_ERROR_INPUT for an invalid array of devices. */
AmStatus tiles_read(const Tiles **tiles, TilesPool *pool, const Hlo__OpSharding *message, AmError *error);
/* Returns the sharding as a message in the arena of the pool, as iota where it is one; NULL without
 * memory. */
Hlo__OpSharding *tiles_message(TilesPool *pool, const Tiles *tiles);

/* Returns the number of parts of an array; 1 unless it is tiled. */
int64_t tiles_count(const Tiles *tiles);
/* Returns whether all of the array is on one device or on each: no dimension is split, nothing is manual. */
bool tiles_is_maximal(const Tiles *tiles);

/* Returns the sharding of an array of `rank` whose dimension to[d] is dimension d of the array of `from`;
 * -1: the dimension has no counterpart, and its parts become copies. */
const Tiles *tiles_map(TilesPool *pool, const Tiles *from, const int32_t *to, int32_t rank);
/* Returns `from` with the dimensions where `is_dropped` made copies. */
const Tiles *tiles_replicate(TilesPool *pool, const Tiles *from, const bool *is_dropped);
/* Returns `from` with the parts of the dimensions where `is_reversed` in reverse order. */
const Tiles *tiles_reverse(TilesPool *pool, const Tiles *from, const bool *is_reversed);
/* Returns the sharding after a reshape: as many dimensions of `from` as the reshape keeps apart. */
const Tiles *tiles_reshape(TilesPool *pool, const Tiles *from, const IrShape *source, const IrShape *target);

/* Returns the common refinement of two shardings with at least `least` parts, or NULL: `base` has no copies
 * that `added` could split, or they disagree about a device. */
const Tiles *tiles_merge(TilesPool *pool, const Tiles *added, const Tiles *base, int64_t least);
bool tiles_more_specific(const Tiles *a, const Tiles *b);
/* Returns whether every device holds under `fine` a part of its part under `coarse`. */
bool tiles_is_refinement(TilesPool *pool, const IrShape *shape, const Tiles *fine, const Tiles *coarse);
/* Returns the better of an array's sharding `old` (NULL: none) and a sharding that reaches it, or NULL: `old`
 * stays. `may_combine` allows a refinement of both, `may_reshard` parts that are not within those of `old`.
 */
const Tiles *tiles_improve(TilesPool *pool, const IrShape *shape, const Tiles *old, const Tiles *from,
                           bool may_combine, bool may_reshard);

#endif
