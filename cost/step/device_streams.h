/* The streams of one device: its computation, and the collectives in which it takes part.
 *
 * Steps are computed one after the other, and collectives take place one after the other. A
 * collective begins when all steps before it are done; later steps continue, and a step that needs
 * the collective waits for it (lowering/program/waits.h). On a device type without overlap the two
 * alternate. At the borders of loops and conditionals and at transfers, the device waits for all
 * collectives.
 */
#ifndef COST_STEP_DEVICE_STREAMS_H
#define COST_STEP_DEVICE_STREAMS_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "cost/step/moment.h"

typedef struct StreamTotals {
    Ticks computed, communicated;
    Ticks hidden; /* of both: it did both at once */
} StreamTotals;

/* A collective that may not have been waited for. */
typedef struct StreamCollective {
    int32_t step;
    Ticks start;
    Moment end, ready; /* `ready`: steps that need it may begin */
} StreamCollective;

/* The collectives of several layers that one of a sample represents, if they run beside operators. Those of
 * gradients begin as the layers are computed: all but the last may run before. Gathers of weights end as the
 * layers need them: the first layer needs one of them. One of them runs beside the layer before, the others
 * run beside the layers that they serve:
 *
 *     compute   layer 0            | layers 1 to 15
 *     network   gather for layer 1 | gathers for layers 2 to 16
 */
typedef struct StreamLayers {
    int32_t count;  /* layers that it represents; 1: it does not run beside operators */
    bool is_gather; /* of weights; false: a sum of gradients, or another collective */
} StreamLayers;

typedef struct DeviceStreams {
    Moment compute, network; /* until when each stream is busy */
    StreamTotals totals;
    Ticks deferred;    /* gathers of a sample that run beside later layers */
    Ticks idle;        /* time without collectives since gathers were deferred, which they take */
    int32_t of_layers; /* layers that the present computation represents */
    bool overlaps;
    StreamCollective *under_way; /* in order; those before `passed` ended before the current computation */
    int32_t count, capacity, passed;
} DeviceStreams;

/* Makes room for `most` collectives between two joins. */
AmStatus streams_open(DeviceStreams *streams, Arena *arena, int32_t most, bool overlaps, AmError *error);

/* Waits for all that is under way. */
void streams_join(DeviceStreams *streams);
/* Returns the time at which a step could begin that waits for the collective of step `wait` (-1: none). */
Moment streams_ready(const DeviceStreams *streams, int32_t wait);
/* Returns the time at which a collective of this device could begin. */
static inline Moment streams_ready_for_collective(const DeviceStreams *streams) {
    return moment_later(streams->compute, streams->network);
}
/* Returns when a collective could begin that represents those of several layers. */
static inline Moment streams_ready_for_layers(const DeviceStreams *streams, Ticks ticks,
                                              StreamLayers layers) {
    Moment ready = streams_ready_for_collective(streams);
    if (layers.is_gather || layers.count <= 1 || !streams->overlaps) return ready;
    Ticks early = rint(ready.at - ticks * (layers.count - 1) / layers.count);
    if (early < streams->network.at) early = streams->network.at;
    return (Moment){early, ready.event};
}
/* Computes from `start`, which is streams_ready() or later. */
void streams_compute(DeviceStreams *streams, Moment start, Ticks ticks, int32_t event);
/* Computes for `ticks` from streams->compute on; no collective is under way. */
static inline void streams_compute_alone(DeviceStreams *streams, Ticks ticks, int32_t event) {
    streams->totals.computed += ticks;
    streams->compute = moment_after(streams->compute, ticks, event);
    if (!streams->overlaps) streams->network = streams->compute;
}
/* Takes part in the collective of a step from `start`, which is streams_ready_for_layers() or later. */
void streams_communicate(DeviceStreams *streams, int32_t step, Moment start, Ticks ticks, StreamLayers layers,
                         int32_t event);
/* Lets both streams wait until a moment. */
void streams_wait(DeviceStreams *streams, Moment until);

#endif
