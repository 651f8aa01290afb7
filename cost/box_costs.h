/* Seconds that boxing takes at the least, by states alone.
 *
 * Without latency, and at the best rate that a link ever reaches, a collective takes a time in
 * proportion to its bytes. So what it takes to bring a tensor from one state into another is its size
 * times a figure that depends on the two states only: the cheapest way over all single steps (box_path.h),
 * one axis or both at once. Which dimension may be split in what order is left out, so that the figures are
 * never above those of a lowered program.
 */
#ifndef COST_BOX_COSTS_H
#define COST_BOX_COSTS_H

#include "cost/collective.h"
#include "propagation/sbp.h"

enum {
    BOX_AXES = 2,                        /* that split anything */
    BOX_DIMENSIONS = 6,                  /* of a tensor that are told apart */
    BOX_AXIS_STATES = 2 + BOX_DIMENSIONS /* B, P, S(0), ... */
};
#define BOX_STATES (BOX_AXIS_STATES * BOX_AXIS_STATES)
/* Stands for any state: what is said of it costs nothing. */
#define BOX_ANY BOX_STATES

/* One number for the states of the axes that split. */
typedef uint8_t BoxState;

typedef struct BoxCosts {
    int32_t axis_count;     /* mesh axes of more than one device */
    int32_t axes[BOX_AXES]; /* which they are */
    int32_t sizes[BOX_AXES];
    /* Seconds per byte of the whole tensor; INFINITY: there is no way. [1]: sums are moved in elements of
     * twice the size, as those of 16-bit products are. Row and column BOX_ANY are 0. */
    float seconds[2][BOX_STATES + 1][BOX_STATES + 1];
} BoxCosts;

/* Returns whether of two axes that split one dimension the earlier one stays major on the way, as in lowered
 * programs, or any order will do, which never takes longer. */
typedef enum BoxOrder { BOX_ANY_ORDER, BOX_AXIS_ORDER } BoxOrder;

/* In the arena. `*costs` NULL: more than BOX_AXES axes of the mesh split. AM_ERROR_INTERNAL: no memory. */
AmStatus box_costs_create(BoxCosts **costs, Arena *arena, const Mesh *mesh, const Cluster *cluster,
                          const int32_t *devices, BoxOrder order, AmError *error);

/* What an axis of the mesh does to a state; axes that split nothing are left out. */
BoxState box_state_of(const BoxCosts *costs, SbpState state);
/* The state with all axes B but for axis `k` (a place in `axes`), which has `sbp`; added up over axes. */
BoxState box_state_part(int32_t k, Sbp sbp);
static inline int32_t box_axis_state(BoxState state, int32_t k) {
    return k == 0 ? state / BOX_AXIS_STATES : state % BOX_AXIS_STATES;
}
/* The same as an SBP, partial sums as P(add). */
Sbp box_axis_sbp(BoxState state, int32_t k);

#endif
