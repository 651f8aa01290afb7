/* SBP states in the form that HLO writes them (internal to `propagate`). */
#ifndef PROPAGATION_PROPAGATE_HLO_SHARDING_H
#define PROPAGATION_PROPAGATE_HLO_SHARDING_H

#include "propagation/sharding/mesh.h"
#include "propagation/sharding/sbp.h"

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

/* Returns the tiles of an array of that rank in a state on the mesh. */
TiledSharding sharding_of_state(const Mesh *mesh, SbpState state, int32_t rank);

#endif
