/* The clock of 1F1B by equations, without a queue of events.
 *
 * All stages are visited in rounds. A stage advances until the input of its next iteration has not been
 * computed; every iteration is computed once. An iteration starts at max(end of the one before, arrival of
 * its input). */
#include "cost/simulate/clock_1f1b.h"

#include <math.h>

#include "base/arena.h"
#include "propagation/plan/pipeline_schedule.h"

/* A stage's progress in one pass, and the results that it sent. */
typedef struct PassClock {
    double *arrived; /* [done] at the stage that needs the result */
    double link;     /* end of the last transfer */
    int32_t done;
} PassClock;

bool clock_1f1b(ClockStage *stages, int32_t stage_count, int32_t micro_batches, bool is_serial) {
    Arena arena = {0};
    double *times = ARENA_ARRAY(&arena, double, (int64_t)2 * stage_count * micro_batches);
    PassClock *clocks = ARENA_ARRAY(&arena, PassClock, (int64_t)2 * stage_count); /* forward, backward */
    int64_t left = arena.failed ? 0 : (int64_t)2 * stage_count * micro_batches;
    for (int32_t s = 0; s < stage_count; s++) stages[s].end = 0;
    for (int64_t k = 0; k < 2 * stage_count && left > 0; k++)
        clocks[k] = (PassClock){.arrived = times + k * micro_batches};
    while (left > 0)
        for (int32_t s = 0; s < stage_count; s++) {
            PassClock *forward = &clocks[2 * s], *backward = &clocks[2 * s + 1];
            int32_t kept = schedule_kept_for_backward(stage_count, s, micro_batches);
            ClockStage *stage = &stages[s];
            while (backward->done < micro_batches) {
                bool is_forward = forward->done < micro_batches && forward->done - backward->done < kept;
                PassClock *pass = is_forward ? forward : backward;
                bool has_input = is_forward ? s > 0 : s < stage_count - 1;
                const PassClock *input = is_forward ? pass - 2 : pass + 2;
                if (has_input && input->done <= pass->done) break;
                double start = has_input ? fmax(stage->end, input->arrived[pass->done]) : stage->end;
                stage->end = start + (is_forward ? stage->forward : stage->backward);
                pass->link = (is_serial ? fmax(pass->link, stage->end) : stage->end) +
                             (is_forward ? stage->to_next : stage->to_previous);
                pass->arrived[pass->done++] = pass->link;
                if (!is_forward) stage->end += stage->weights;
                left--;
            }
        }
    bool is_complete = !arena.failed;
    arena_free(&arena);
    return is_complete;
}
