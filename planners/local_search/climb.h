/* Hill climbing over the moves of any kind of plan.
 *
 * A climb has a present plan. Moves are single changes of it. They are made and priced in batches, and the
 * best one of the first batch that has a better plan is taken. Then the moves of the new plan follow, until a
 * pass over all moves finds nothing better:
 *
 *     list -> make, ..., make -> price -> take -> list -> ...
 *
 * Plans, moves and prices are those of a generator, the five functions of `Climb`. Batches have a fixed size.
 * So the order of evaluations depends neither on the number of threads nor on the budget: a climb with a
 * smaller budget is a prefix of one with a larger budget.
 */
#ifndef PLANNERS_LOCAL_SEARCH_CLIMB_H
#define PLANNERS_LOCAL_SEARCH_CLIMB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum ClimbOrder {
    CLIMB_FROM_FIRST, /* the moves of a new plan are tried from the first on */
    CLIMB_ONWARD,     /* they are tried in a circle from the place after the move that was taken */
    CLIMB_STEEPEST    /* as CLIMB_FROM_FIRST; a pass prices all moves and takes the best */
} ClimbOrder;

/* The outcome of a move. */
typedef enum ClimbMove {
    CLIMB_SKIPPED, /* its plan need not be priced */
    CLIMB_ADDED,   /* its plan is in the batch */
    CLIMB_FULL     /* the budget may not suffice for another plan before the batch is priced; if the batch is
                      empty, is_over() returns true */
} ClimbMove;

typedef struct Climb {
    ClimbOrder order;
    int32_t batch; /* plans that are priced together */
    void *user;    /* the first argument of all functions */
    bool (*is_over)(void *user);
    /* Lists the moves of the present plan. */
    AmStatus (*list)(void *user, int32_t *count, AmError *error);
    /* Adds the plan after a move to the batch. */
    AmStatus (*make)(void *user, int32_t move, ClimbMove *made, AmError *error);
    /* Prices the batch and empties it. `*is_better`: its best plan is better than the present one. */
    AmStatus (*price)(void *user, bool *is_better, AmError *error);
    /* Makes the best plan of the batches since list() the present one. */
    AmStatus (*take)(void *user, AmError *error);
} Climb;

/* A place in a climb, which begins as {0}. */
typedef struct ClimbPlace {
    int32_t move;    /* the next one */
    int32_t in_vain; /* moves since the last one that was taken */
    bool is_end;     /* no move is better */
} ClimbPlace;

/* Climbs from `*place` to the end, or until is_over(). A further call continues the climb. */
AmStatus climb_run(const Climb *climb, ClimbPlace *place, AmError *error);

#endif
