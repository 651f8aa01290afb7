/* Hill climbing: a pass makes batches of moves and prices them, until a batch has a better plan, or until all
 * moves were tried. With CLIMB_STEEPEST a pass prices all moves. The climb ends after a pass without a better
 * plan.
 */
#include "planners/local_search/climb.h"

AmStatus climb_run(const Climb *climb, ClimbPlace *place, AmError *error) {
    while (!place->is_end && !climb->is_over(climb->user)) {
        int32_t moves = 0;
        bool is_better = false;
        TRY(climb->list(climb->user, &moves, error));
        while (place->in_vain < moves && !(is_better && climb->order != CLIMB_STEEPEST) &&
               !climb->is_over(climb->user)) {
            /* A batch of the next moves, as far as the pass has any. */
            int32_t size = 0;
            while (place->in_vain < moves && size < climb->batch) {
                ClimbMove made = CLIMB_SKIPPED;
                TRY(climb->make(climb->user, place->move % moves, &made, error));
                if (made == CLIMB_FULL) break;
                size += made == CLIMB_ADDED;
                place->in_vain++;
                place->move = (place->move + 1) % moves;
            }
            bool is_batch_better = false;
            if (size > 0) TRY(climb->price(climb->user, &is_batch_better, error));
            is_better |= is_batch_better;
        }
        place->is_end = !is_better && place->in_vain >= moves;
        if (!is_better) continue;
        place->in_vain = 0;
        if (climb->order != CLIMB_ONWARD) place->move = 0;
        TRY(climb->take(climb->user, error));
    }
    return AM_OK;
}
