/* Lower bounds on the seconds of resharding, by states alone.
 *
 * Without latency, and at the best rate of a link, a collective takes time in proportion to its
 * bytes. The time to reshard a tensor is therefore its size times a factor that depends only on the
 * two states: the shortest path over all single steps (box_path.h), with one or two axes per step.
 * The order in which dimensions may be split is ignored, so that the factors never exceed the cost
 * in a lowered program.
 */
#ifndef COST_BOX_COSTS_H
#define COST_BOX_COSTS_H

#include "cost/collective.h"
#include "propagation/sbp.h"

enum {
    BOX_AXES = 2,                        /* that split anything */
    BOX_DIMENSIONS = 6,                  /* dimensions of a tensor that are distinguished */
    BOX_AXIS_STATES = 2 + BOX_DIMENSIONS /* B, P, S(0), ... */
};
#define BOX_STATES (BOX_AXIS_STATES * BOX_AXIS_STATES)
/* Represents any state; its cost is zero. */
#define BOX_ANY BOX_STATES

/* One number for the states of the axes that split. */
typedef uint8_t BoxState;

typedef struct BoxCosts {
    int32_t axis_count;     /* mesh axes of more than one device */
    int32_t axes[BOX_AXES]; /* which they are */
    int32_t sizes[BOX_AXES];
    /* Seconds per byte of the whole tensor; INFINITY: unreachable. [1]: sums are moved in elements
     * of twice the size, as for 16-bit products. Row and column BOX_ANY are 0. */
    float seconds[2][BOX_STATES + 1][BOX_STATES + 1];
} BoxCosts;

/* Returns whether of two axes that split one dimension the earlier one stays major on the way, as in lowered
 * programs, or any order will do, which never takes longer. */
typedef enum BoxOrder { BOX_ANY_ORDER, BOX_AXIS_ORDER } BoxOrder;

/* In the arena. `*costs` NULL: more than BOX_AXES axes of the mesh split. AM_ERROR_INTERNAL: no memory. */
AmStatus box_costs_create(BoxCosts **costs, Arena *arena, const Mesh *mesh, const Cluster *cluster,
                          const int32_t *devices, BoxOrder order, AmError *error);

/* The box state of a sharding state; axes that split nothing are omitted. */
BoxState box_state_of(const BoxCosts *costs, SbpState state);
/* The state with all axes B but for axis `k` (a place in `axes`), which has `sbp`; added up over axes. */
BoxState box_state_part(int32_t k, Sbp sbp);
static inline int32_t box_axis_state(BoxState state, int32_t k) {
    return k == 0 ? state / BOX_AXIS_STATES : state % BOX_AXIS_STATES;
}
/* The same as an SBP, partial sums as P(add). */
Sbp box_axis_sbp(BoxState state, int32_t k);

#endif
