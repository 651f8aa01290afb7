/* Hill climbing: a pass makes batches of moves and prices them, until a batch has a better plan, or until all
 * moves were tried. With CLIMB_STEEPEST a pass prices all moves. The climb ends after a pass without a better
 * plan.
 */
#include "planners/local_search/climb.h"

/* Makes a batch of the next moves, as far as the pass has any. */
static AmStatus fill_batch(const Climb *climb, ClimbPlace *place, int32_t moves, int32_t *size,
                           AmError *error) {
    *size = 0;
    while (place->in_vain < moves && *size < climb->batch) {
        ClimbMove made = CLIMB_SKIPPED;
        TRY(climb->make(climb->user, place->move % moves, &made, error));
        if (made == CLIMB_FULL) return AM_OK;
        *size += made == CLIMB_ADDED;
        place->in_vain++;
        place->move = (place->move + 1) % moves;
    }
    return AM_OK;
}

/* Prices moves of the present plan until one is taken, and all of them in the order CLIMB_STEEPEST. */
static AmStatus run_pass(const Climb *climb, ClimbPlace *place, int32_t moves, AmError *error) {
    bool is_better = false;
    while (place->in_vain < moves && !(is_better && climb->order != CLIMB_STEEPEST) &&
           !climb->is_over(climb->user)) {
        bool is_batch_better = false;
        int32_t size;
        TRY(fill_batch(climb, place, moves, &size, error));
        if (size > 0) TRY(climb->price(climb->user, &is_batch_better, error));
        is_better |= is_batch_better;
    }
    place->is_end = !is_better && place->in_vain >= moves;
    if (!is_better) return AM_OK;
    place->in_vain = 0;
    if (climb->order != CLIMB_ONWARD) place->move = 0;
    return climb->take(climb->user, error);
}

AmStatus climb_run(const Climb *climb, ClimbPlace *place, AmError *error) {
    while (!place->is_end && !climb->is_over(climb->user)) {
        int32_t moves = 0;
        TRY(climb->list(climb->user, &moves, error));
        TRY(run_pass(climb, place, moves, error));
    }
    return AM_OK;
}
