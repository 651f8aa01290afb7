/* Clocks of transfers with slots: see stream_clock.h. */
#include "cost/stream_clock.h"

#include "propagation/transfer.h"

AmStatus stream_clock_find(StreamClock **result, StreamClocks *clocks, Arena *arena,
                           const ProgramTransfer *transfer, AmError *error) {
    const TransferRoute *route = transfer->route;
    for (int32_t k = 0; k < clocks->count; k++) {
        *result = clocks->clocks[k];
        if ((*result)->shape == transfer->shape && (*result)->giver == route->source.first_rank &&
            (*result)->taker == route->target.first_rank)
            return AM_OK;
    }
    StreamClock *clock = *result = ARENA_ARRAY(arena, StreamClock, 1);
    ARENA_RESERVE(arena, clocks->clocks, clocks->count, clocks->capacity);
    double *times = ARENA_ARRAY(arena, double, 2 * transfer->slots);
    if (arena->failed) return am_fail_memory(error, transfer->slots * 16);
    *clock = (StreamClock){.shape = transfer->shape,
                           .giver = route->source.first_rank,
                           .taker = route->target.first_rank,
                           .slots = transfer->slots,
                           .arrival = times,
                           .given_back = times + transfer->slots};
    clocks->clocks[clocks->count++] = clock;
    return AM_OK;
}

void stream_clock_send(StreamClock *clock, double at, double seconds) {
    double start = at > clock->link_free ? at : clock->link_free;
    clock->link_free = start + seconds;
    clock->arrival[clock->sent++ % clock->slots] = clock->link_free;
}

void stream_clock_take(StreamClock *clock, double at) {
    clock->given_back[clock->taken++ % clock->slots] = at;
}
