/* HLO sharding attributes as SBP states (internal to `propagate`).
 *
 * "{devices=[2,1,4]<=[8] last_tile_dim_replicate}" becomes S(0) on one axis of a mesh and B on the others.
 * read_shardy.h does the same for Shardy's spelling.
 */
#ifndef PROPAGATION_PROPAGATE_READ_SHARDING_H
#define PROPAGATION_PROPAGATE_READ_SHARDING_H

#include "propagation/sharding/mesh.h"
#include "propagation/sharding/sbp.h"

struct Hlo__OpSharding;

/* Which part of a tensor each device holds. */
typedef struct DeviceTiles {
    const struct Hlo__OpSharding *message;
    int32_t rank;                      /* of the tensor; 0 where it is replicated */
    int32_t device_count;              /* 0: replicated on any number of devices */
    int32_t tiles[IR_MAX_RANK];        /* parts of each dimension */
    int32_t stride[IR_MAX_RANK];       /* in `place`: (place / stride) % tiles is the part */
    const int32_t *place;              /* [device_count]: the device's place in the array of devices */
    const struct Hlo__MeshProto *mesh; /* of a sharding by named axes, else NULL */
} DeviceTiles;

/* Reads the sharding of an array. AM_ERROR_INPUT where it is not an arrangement
 * of all devices, or of a kind that no state is: maximal, manual, unreduced. */
AmStatus sharding_read(DeviceTiles *tiles, Arena *arena, const struct Hlo__OpSharding *message,
                       AmError *error);

/* Finds the mesh with the fewest axes on which all of `tiles` are states. Its axes have the names of a
 * sharding with names, else x0, x1, ... AM_ERROR_INPUT if no such mesh exists. */
AmStatus sharding_infer_mesh(Mesh *mesh, Arena *arena, const DeviceTiles *const *tiles, int32_t count,
                             AmError *error);

/* Returns the state on this mesh that gives each device the same part; false if there is no such state. */
bool sharding_to_state(SbpState *state, const DeviceTiles *tiles, const Mesh *mesh);

#endif
