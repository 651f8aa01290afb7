/* The two streams of a device, of computation and communication, in time. Collectives between two joins are
 * kept in a list, to separate overlapped from exposed communication. */
#include "cost/step/lane.h"

AmStatus lane_open(Lane *lane, Arena *arena, int32_t most, bool overlaps, AmError *error) {
    *lane = (Lane){.compute = MOMENT_BEGIN,
                   .network = MOMENT_BEGIN,
                   .overlaps = overlaps,
                   .capacity = most,
                   .under_way = ARENA_ARRAY(arena, LaneCollective, most + 1)};
    return lane->under_way ? AM_OK : am_fail_memory(error, most);
}

void lane_join(Lane *lane) {
    lane->compute = lane->network = moment_later(lane->compute, lane->network);
    lane->count = lane->passed = 0;
}

void lane_wait(Lane *lane, Moment until) {
    lane_join(lane);
    lane->compute = lane->network = moment_later(lane->compute, until);
}

Moment lane_ready(const Lane *lane, int32_t wait) {
    for (int32_t k = lane->count - 1; k >= lane->passed && wait >= 0; k--)
        if (lane->under_way[k].step == wait) return moment_later(lane->compute, lane->under_way[k].end);
    return lane->compute;
}

void lane_compute(Lane *lane, Moment start, Ticks ticks, int32_t event) {
    Ticks end = start.at + ticks;
    lane->totals.computed += ticks;
    lane->compute = (Moment){end, event};
    if (!lane->overlaps) lane->network = lane->compute;
    while (lane->passed < lane->count && lane->under_way[lane->passed].end.at <= start.at) lane->passed++;
    for (int32_t k = lane->passed; k < lane->count; k++) {
        const LaneCollective *beside = &lane->under_way[k];
        Ticks first = beside->start > start.at ? beside->start : start.at;
        Ticks last = beside->end.at < end ? beside->end.at : end;
        if (last <= first) break;
        lane->totals.hidden += last - first;
    }
}

void lane_communicate(Lane *lane, int32_t step, Moment start, Ticks ticks, int32_t event) {
    lane->totals.communicated += ticks;
    lane->network = moment_after(start, ticks, event);
    if (!lane->overlaps) {
        lane->compute = lane->network;
        return;
    }
    if (lane->passed == lane->count) lane->passed = lane->count = 0;
    lane->under_way[lane->count++] = (LaneCollective){.step = step, .start = start.at, .end = lane->network};
}
