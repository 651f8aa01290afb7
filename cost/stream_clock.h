/* The times of a transfer with slots, turn by turn (ProgramTransfer.slots): when each
 * value was sent, arrives and is taken. A value needs a slot, given back when the value
 * that had it was taken, and the link, which carries one after the other. */
#ifndef COST_STREAM_CLOCK_H
#define COST_STREAM_CLOCK_H

#include "base/arena.h"
#include "propagation/program.h"

typedef struct StreamClock {
    const IrShape *shape; /* with the two stages it says which transfer */
    int32_t giver, taker; /* their first ranks */
    int32_t slots;
    int64_t sent, taken;
    double *arrival, *given_back; /* [slots]: seconds; of value m in m mod slots */
    double link_free;
} StreamClock;

typedef struct StreamClocks {
    StreamClock **clocks;
    int32_t count, capacity;
} StreamClocks;

/* The clock of a transfer, made when first met, in the arena. */
AmStatus stream_clock_find(StreamClock **clock, StreamClocks *clocks, Arena *arena,
                           const ProgramTransfer *transfer, AmError *error);

static inline bool stream_clock_may_send(const StreamClock *clock) {
    return clock->sent - clock->taken < clock->slots;
}
/* When the slot of the next value is free. */
static inline double stream_clock_slot(const StreamClock *clock) {
    return clock->given_back[clock->sent % clock->slots];
}
static inline bool stream_clock_may_take(const StreamClock *clock) {
    return clock->taken < clock->sent;
}
static inline double stream_clock_arrival(const StreamClock *clock) {
    return clock->arrival[clock->taken % clock->slots];
}
void stream_clock_send(StreamClock *clock, double at, double seconds);
void stream_clock_take(StreamClock *clock, double at);

#endif
