/* One order of a rank's turns, for stages whose devices are in several processes.
 *
 * Devices of a stage meet in collectives, so they must take their turns in one order. In
 * one process those that follow take the leader's (actors_follow); between
 * processes there is nobody to follow, and each rank works the order out by itself,
 * from what all of them know: the actors of a rank, the registers between them and their
 * priorities. On paper what comes from other stages is always there and the forward
 * pass goes first, so it fills its registers before the first turn of the backward
 * pass: that is 1F1B as it is usually drawn, S - s forward turns at stage s and then one of each
 * kind in turn (and ZB-H1, whose gradients of weights come when nothing else may go on), which no schedule of
 * the other stages can block (stage s - 1 has one forward turn more before its first backward turn).
 */
#ifndef EXECUTOR_TURN_ORDER_H
#define EXECUTOR_TURN_ORDER_H

#include "base/arena.h"
#include "base/status.h"

typedef struct TurnActor {
    int32_t turns;    /* in a step */
    int32_t priority; /* the greatest goes first on paper */
} TurnActor;

/* As in actors_connect(). */
typedef struct TurnEdge {
    int32_t producer, consumer, quota, initial;
} TurnEdge;

typedef struct TurnOrder {
    int32_t *actors; /* [count]: of one step */
    int32_t count;
    int32_t next; /* moved on by who runs the turns */
} TurnOrder;

/* In the arena. Where a step cannot go on for want of free registers some are added, as
 * actors_ready() does; AM_ERROR_USAGE: it cannot go on otherwise. */
AmStatus turn_order_find(TurnOrder *order, Arena *arena, const TurnActor *actors, int32_t actor_count,
                         const TurnEdge *edges, int32_t edge_count, AmError *error);

#endif
