/* Channels by MPI: the slots of both ends are what MPI sends from and receives into.
 *
 * A receiver asks for the messages of its first `quota` iterations before the first step and
 * for the one of iteration t + quota when iteration t has been read; the sender's slot is free
 * when its message has gone. MPI moves long messages only inside its own functions,
 * which a rank that computes does not call: a thread of the process does, so that
 * transfers go on beside the iterations.
 */
#include <stdlib.h>
#include <time.h>

#include "base/system/parallel.h"
#include "executor/comm/comm_mpi.h"

enum { PART_BYTES = 1 << 30 };

static const double progress_seconds = 200e-6;

typedef struct MpiChannel {
    int32_t process, tag, part_count;
    bool sends;
    MpiRequest *requests; /* [quota][part_count] */
} MpiChannel;

static CommShared *shared_of(const ChannelSet *set) {
    return set->user;
}

/* Begins to carry the message in a slot, in parts that MPI can count. */
static AmStatus begin_message(Channel *channel, int64_t iteration, AmError *error) {
    const MpiChannel *self = channel->state;
    int64_t slot = iteration % channel->quota;
    char *place = channel->slots + slot * channel->slot_bytes;
    for (int32_t part = 0; part < self->part_count; part++) {
        MpiRequest *request = &self->requests[slot * self->part_count + part];
        int64_t at = part * (int64_t)PART_BYTES;
        int64_t bytes = channel->bytes - at < PART_BYTES ? channel->bytes - at : PART_BYTES;
        if (self->sends) TRY(mpi_wire_send(request, place + at, bytes, self->process, self->tag, error));
        else TRY(mpi_wire_receive(request, place + at, bytes, self->process, self->tag, error));
    }
    return AM_OK;
}

static AmStatus slot_ready(void *user, int64_t iteration, bool *is_ready, AmError *error) {
    const Channel *channel = user;
    const MpiChannel *self = channel->state;
    int64_t slot = iteration % channel->quota;
    if (comm_mpi_has_failed(shared_of(channel->set)))
        return comm_mpi_fail_released(self->sends ? channel->sender : channel->receiver, error);
    *is_ready = true;
    for (int32_t part = 0; part < self->part_count && *is_ready; part++)
        TRY(mpi_wire_test(&self->requests[slot * self->part_count + part], is_ready, error));
    return AM_OK;
}

static AmStatus put_end(Channel *channel, int64_t iteration, AmError *error) {
    return begin_message(channel, iteration, error);
}

static AmStatus get_end(Channel *channel, int64_t iteration, AmError *error) {
    return begin_message(channel, iteration + channel->quota, error);
}

static void sleep_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(progress_seconds * 1e9)}, NULL);
}

static void *make_progress(void *argument) {
    CommShared *shared = argument;
    while (!atomic_load(&shared->thread_ends) && !comm_mpi_has_failed(shared)) {
        mpi_wire_progress();
        sleep_briefly();
    }
    return NULL;
}

static AmStatus open_channel(Channel *channel, AmError *error) {
    ChannelSet *set = channel->set;
    CommShared *shared = shared_of(set);
    MpiChannel *self = ARENA_ARRAY(&set->arena, MpiChannel, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->sends = channel->sender >= shared->first && channel->sender < shared->first + shared->count;
    self->process = (self->sends ? channel->receiver : channel->sender) / shared->count;
    self->part_count = channel->bytes > 0 ? (int32_t)((channel->bytes + PART_BYTES - 1) / PART_BYTES) : 1;
    self->requests = ARENA_ARRAY(&set->arena, MpiRequest, channel->quota * self->part_count);
    if (!self->requests) return am_fail_memory(error, channel->quota * 16);
    int64_t pairs = (int64_t)shared->count * shared->count;
    int64_t tag = comm_mpi_barrier_tag(shared) + 1 + channel->number * pairs +
                  comm_mpi_pair(shared, channel->sender, channel->receiver);
    if (tag > mpi_wire_most_tag())
        return am_fail(error, AM_ERROR_RUNTIME, "",
                       "%d channels between two ranks are more than %s can tell apart", channel->number + 1,
                       mpi_wire_name());
    self->tag = (int32_t)tag;
    channel->state = self;
    for (int32_t iteration = 0; iteration < channel->quota && !self->sends; iteration++)
        TRY(begin_message(channel, iteration, error));
    return AM_OK;
}

static AmStatus start_channels(ChannelSet *set, AmError *error) {
    CommShared *shared = shared_of(set);
    int32_t remote_count = 0;
    for (int32_t k = 0; k < set->count; k++) {
        if (!channel_is_remote(set->channels[k])) continue;
        remote_count++;
        TRY(open_channel(set->channels[k], error));
    }
    if (remote_count == 0) return AM_OK;
    atomic_store(&shared->thread_ends, false);
    TRY(parallel_start_thread(&shared->thread, make_progress, shared, error));
    shared->has_thread = true;
    return AM_OK;
}

/* Waits for sent messages to arrive; receives requested beyond the last iteration are cancelled. */
static void close_channel(Channel *channel) {
    const MpiChannel *self = channel->state;
    CommShared *shared = shared_of(channel->set);
    for (int32_t k = 0; k < channel->quota * self->part_count; k++) {
        bool done = false;
        if (!self->sends) mpi_wire_cancel(&self->requests[k]);
        while (!comm_mpi_has_failed(shared) && mpi_wire_test(&self->requests[k], &done, NULL) == AM_OK &&
               !done)
            sleep_briefly();
    }
}

static void close_all(ChannelSet *set) {
    CommShared *shared = shared_of(set);
    atomic_store(&shared->thread_ends, true);
    if (shared->has_thread) pthread_join(shared->thread, NULL);
    shared->has_thread = false;
    if (comm_mpi_has_failed(shared)) return;
    for (int32_t k = 0; k < set->count; k++)
        if (set->channels[k]->state) close_channel(set->channels[k]);
    /* A process that continues may reuse these tags once no process waits for messages of this set. */
    comm_mpi_barrier(shared, shared->first, NULL);
}

const ChannelBackEnd channel_mpi = {
    .name = "mpi",
    .start = start_channels,
    .close = close_all,
    .put_ready = slot_ready,
    .put_end = put_end,
    .get_ready = slot_ready,
    .get_end = get_end,
};
