/* The two streams of a device, of computation and communication, in time. Collectives between two joins are
 * kept in a list, to separate overlapped from exposed communication. */
#include "cost/step/device_streams.h"

AmStatus streams_open(DeviceStreams *streams, Arena *arena, int32_t most, bool overlaps, AmError *error) {
    *streams = (DeviceStreams){.compute = MOMENT_BEGIN,
                               .network = MOMENT_BEGIN,
                               .of_layers = 1,
                               .overlaps = overlaps,
                               .capacity = most,
                               .under_way = ARENA_ARRAY(arena, StreamCollective, most + 1)};
    return streams->under_way ? AM_OK : am_fail_memory(error, most);
}

void streams_join(DeviceStreams *streams) {
    Ticks left = streams->deferred - streams->idle;
    if (left > 0) streams->network.at += left;
    streams->deferred = streams->idle = 0;
    streams->compute = streams->network = moment_later(streams->compute, streams->network);
    streams->count = streams->passed = 0;
}

void streams_wait(DeviceStreams *streams, Moment until) {
    streams_join(streams);
    streams->compute = streams->network = moment_later(streams->compute, until);
}

Moment streams_ready(const DeviceStreams *streams, int32_t wait) {
    for (int32_t k = streams->count - 1; k >= streams->passed && wait >= 0; k--)
        if (streams->under_way[k].step == wait)
            return moment_later(streams->compute, streams->under_way[k].ready);
    return streams->compute;
}

void streams_compute(DeviceStreams *streams, Moment start, Ticks ticks, int32_t event) {
    Ticks end = start.at + ticks;
    streams->totals.computed += ticks;
    streams->compute = (Moment){end, event};
    if (!streams->overlaps) streams->network = streams->compute;
    while (streams->passed < streams->count && streams->under_way[streams->passed].end.at <= start.at)
        streams->passed++;
    for (int32_t k = streams->passed; k < streams->count; k++) {
        const StreamCollective *beside = &streams->under_way[k];
        Ticks first = beside->start > start.at ? beside->start : start.at;
        Ticks last = beside->end.at < end ? beside->end.at : end;
        if (last <= first) break;
        streams->totals.hidden += last - first;
    }
}

/* Returns the time that a gather takes beside the present layers: the gather of one layer for each of them.
 * It defers the rest of `ticks`, the gathers of all its layers, or takes deferred ones in addition. */
static Ticks gather_now(DeviceStreams *streams, Ticks ticks, int32_t layers) {
    Ticks now = rint(ticks / layers * streams->of_layers);
    if (now > ticks + streams->deferred) now = ticks + streams->deferred;
    streams->deferred += ticks - now;
    return now;
}

void streams_communicate(DeviceStreams *streams, int32_t step, Moment start, Ticks ticks, StreamLayers layers,
                         int32_t event) {
    streams->totals.communicated += ticks;
    if (!streams->overlaps) {
        streams->compute = streams->network = moment_after(start, ticks, event);
        return;
    }
    if (streams->deferred > 0 && start.at > streams->network.at)
        streams->idle += start.at - streams->network.at;
    Ticks now = layers.is_gather ? gather_now(streams, ticks, layers.count) : ticks;
    streams->network = moment_after(start, now, event);
    if (streams->passed == streams->count) streams->passed = streams->count = 0;
    Moment ready = streams->network;
    if (layers.is_gather) ready = moment_after(start, rint(ticks / layers.count), event);
    streams->under_way[streams->count++] =
        (StreamCollective){.step = step, .start = start.at, .end = streams->network, .ready = ready};
}
