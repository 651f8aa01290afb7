/* The streams of one device: its computation, and the collectives in which it takes part.
 *
 * Steps are computed one after the other, and collectives take place one after the other. A
 * collective begins when all steps before it are done; later steps continue, and a step that needs
 * the collective waits for it (lowering/program/waits.h). On a device type without overlap the two
 * alternate. At the borders of loops and conditionals and at transfers, the device waits for all
 * collectives.
 */
#ifndef COST_STEP_LANE_H
#define COST_STEP_LANE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "cost/step/moment.h"

typedef struct LaneTotals {
    Ticks computed, communicated;
    Ticks hidden; /* of both: it did both at once */
} LaneTotals;

/* A collective that may not have been waited for. */
typedef struct LaneCollective {
    int32_t step;
    Ticks start;
    Moment end;
} LaneCollective;

typedef struct Lane {
    Moment compute, network; /* until when each stream is busy */
    LaneTotals totals;
    bool overlaps;
    LaneCollective *under_way; /* in order; those before `passed` ended before the current computation */
    int32_t count, capacity, passed;
} Lane;

/* Room for `most` collectives between two joins. */
AmStatus lane_open(Lane *lane, Arena *arena, int32_t most, bool overlaps, AmError *error);

/* Waits for all that is under way. */
void lane_join(Lane *lane);
/* When a step could begin that waits for the collective of step `wait` (-1: none). */
Moment lane_ready(const Lane *lane, int32_t wait);
/* When a collective of this device could begin. */
static inline Moment lane_ready_to_meet(const Lane *lane) {
    return moment_later(lane->compute, lane->network);
}
/* Computes from `start`, which is lane_ready() or later. */
void lane_compute(Lane *lane, Moment start, Ticks ticks, int32_t event);
/* The same from lane->compute on where no collective is under way. */
static inline void lane_compute_alone(Lane *lane, Ticks ticks, int32_t event) {
    lane->totals.computed += ticks;
    lane->compute = moment_after(lane->compute, ticks, event);
    if (!lane->overlaps) lane->network = lane->compute;
}
/* Takes part in the collective of a step from `start`, which is lane_ready_to_meet() or later. */
void lane_communicate(Lane *lane, int32_t step, Moment start, Ticks ticks, int32_t event);
/* Both streams wait until then. */
void lane_wait(Lane *lane, Moment until);

#endif
