/* Lower bounds on the seconds of resharding, by states alone.
 *
 * Without latency, and at the best rate of a link, a collective takes time in proportion to its
 * bytes. The time to reshard a tensor is therefore its size times a factor that depends only on the
 * two states: the shortest path over all single steps (reshard_path.h), with one or two axes per step.
 * The order in which dimensions may be split is ignored, so that the factors never exceed the cost
 * in a lowered program. Costs of the other two kinds are no bounds: lowering/spmd/reshard_path.h has the
 * sequence that is lowered, by shares of the tensor, and propagation/assign/reshard_bytes.h has one axis.
 */
#ifndef COST_RELAXATION_RESHARD_COSTS_H
#define COST_RELAXATION_RESHARD_COSTS_H

#include "cost/collective/collective.h"
#include "propagation/sharding/sbp.h"

enum {
    RESHARD_AXES = 2,                            /* that split anything */
    RESHARD_DIMENSIONS = 6,                      /* dimensions of a tensor that are distinguished */
    RESHARD_AXIS_STATES = 2 + RESHARD_DIMENSIONS /* B, P, S(0), ... */
};
#define RESHARD_STATES (RESHARD_AXIS_STATES * RESHARD_AXIS_STATES)
/* Represents any state; its cost is zero. */
#define RESHARD_ANY RESHARD_STATES

/* One number for the states of the axes that split. */
typedef uint8_t ReshardState;

typedef struct ReshardCosts {
    int32_t axis_count;         /* mesh axes of more than one device */
    int32_t axes[RESHARD_AXES]; /* which they are */
    int32_t sizes[RESHARD_AXES];
    /* Seconds per byte of the global tensor; INFINITY: unreachable. [1]: sums are moved in elements
     * of twice the size, as for 16-bit products. Row and column RESHARD_ANY are 0. */
    float seconds[2][RESHARD_STATES + 1][RESHARD_STATES + 1];
} ReshardCosts;

/* A mesh on devices of a cluster. */
typedef struct PlacedMesh {
    const Mesh *mesh;
    const Cluster *cluster;
    const int32_t *devices; /* [mesh device] */
} PlacedMesh;

/* Returns whether of two axes that split one dimension the earlier one stays major on the way, as in lowered
 * programs, or any order will do, which never takes longer. With shards of any sizes in any order, groups
 * count with the least rate of all, and the seconds are a mean over the devices (bound_mixed.h). */
typedef enum ReshardOrder { RESHARD_ANY_ORDER, RESHARD_AXIS_ORDER, RESHARD_ANY_SHARES } ReshardOrder;

/* Creates the costs, in the arena. `*costs` NULL: more than RESHARD_AXES axes of the mesh split.
 * AM_ERROR_INTERNAL: no memory. */
AmStatus reshard_costs_create(ReshardCosts **costs, Arena *arena, const PlacedMesh *on, ReshardOrder order,
                              AmError *error);

/* Returns the number of a sharding state; axes that split nothing are omitted. */
ReshardState reshard_state_of(const ReshardCosts *costs, SbpState state);
/* Returns the state with all axes B but for axis `k` (a place in `axes`), which has `sbp`; added up over
 * axes. */
ReshardState reshard_state_part(int32_t k, Sbp sbp);
static inline int32_t reshard_axis_state(ReshardState state, int32_t k) {
    return k == 0 ? state / RESHARD_AXIS_STATES : state % RESHARD_AXIS_STATES;
}
/* Returns the state on axis k as an SBP, partial sums as P(add). */
Sbp reshard_axis_sbp(ReshardState state, int32_t k);

#endif
