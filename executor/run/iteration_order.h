/* A fixed order of a rank's iterations, for stages whose devices are in several processes.
 *
 * Devices of a stage run collectives together, so that they must have one order. In one process, followers
 * use the leader's order (actors_follow()). Between processes each rank computes the order itself, from
 * common knowledge: the actors of a rank, the registers between them and their priorities.
 *
 * The order is that of a simulation in which inputs from other stages are always available. The forward pass
 * has priority, so that it fills its registers before the first iteration of the backward pass. That is the
 * usual 1F1B: S - s forward iterations at stage s, and then one of each kind alternately. Under ZB-H1,
 * gradients of weights run when no other iteration can. No schedule of the other stages can block this order:
 * stage s - 1 has one forward iteration more before its first backward iteration.
 */
#ifndef EXECUTOR_RUN_ITERATION_ORDER_H
#define EXECUTOR_RUN_ITERATION_ORDER_H

#include "base/arena.h"
#include "base/status.h"

typedef struct IterationActor {
    int32_t iterations; /* in a step */
    int32_t priority;   /* the greatest goes first in the simulated step */
} IterationActor;

/* An edge between actors, with the arguments of actors_connect(). */
typedef struct IterationEdge {
    int32_t producer, consumer, quota, initial;
} IterationEdge;

typedef struct IterationOrder {
    int32_t *actors; /* [count]: of one step */
    int32_t count;
    int32_t next; /* place in `actors`; the caller that runs the iterations advances it */
} IterationOrder;

/* Computes the order, in the arena. If a step lacks free registers some are added, as in
 * actors_ready(); AM_ERROR_USAGE: it is blocked otherwise. */
AmStatus iteration_order_find(IterationOrder *order, Arena *arena, const IterationActor *actors,
                              int32_t actor_count, const IterationEdge *edges, int32_t edge_count,
                              AmError *error);

#endif
