/* Channels: carry the payload of a transfer from rank to rank, once per iteration. This file has the slots,
 * and the channels between threads of one process. */
#include "executor/comm/channel.h"

#include <stdlib.h>

enum { SLOT_ALIGNMENT = 64 };

AmStatus channels_open(ChannelSet **result, int32_t first_rank, int32_t rank_count,
                       const ChannelBackEnd *remote, void *user, AmError *error) {
    ChannelSet *set = calloc(1, sizeof *set);
    if (!set) return am_fail_memory(error, (int64_t)sizeof *set);
    set->first_rank = first_rank;
    set->rank_count = rank_count;
    set->remote = remote;
    set->user = user;
    *result = set;
    return AM_OK;
}

void channels_close(ChannelSet *set) {
    if (!set) return;
    if (set->is_started && set->remote && set->remote->close) set->remote->close(set);
    free(set->memory);
    arena_free(&set->arena);
    free(set);
}

static bool is_here(const ChannelSet *set, int32_t rank) {
    return rank >= set->first_rank && rank < set->first_rank + set->rank_count;
}

bool channel_is_remote(const Channel *channel) {
    return !is_here(channel->set, channel->sender) || !is_here(channel->set, channel->receiver);
}

AmStatus channels_add(ChannelSet *set, int32_t sender, int32_t receiver, int64_t bytes, int32_t quota,
                      Channel **channel, AmError *error) {
    if (bytes < 0 || bytes > INT64_MAX / 2 || quota < 1 || sender < 0 || receiver < 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "a channel from rank %d to rank %d with %d slots of %lld bytes", sender, receiver,
                       quota, (long long)bytes);
    if (!is_here(set, sender) && !is_here(set, receiver))
        return am_fail(error, AM_ERROR_USAGE, "",
                       "channel from rank %d to rank %d: neither is in this process", sender, receiver);
    if (!set->remote && !(is_here(set, sender) && is_here(set, receiver)))
        return am_fail(error, AM_ERROR_USAGE, "", "a channel from rank %d to rank %d leaves this process",
                       sender, receiver);
    ARENA_RESERVE(&set->arena, set->channels, set->count, set->capacity);
    Channel *added = ARENA_ARRAY(&set->arena, Channel, 1);
    if (set->arena.failed) return am_fail_memory(error, (int64_t)sizeof *added);
    int32_t number = 0;
    for (int32_t k = 0; k < set->count; k++)
        number += set->channels[k]->sender == sender && set->channels[k]->receiver == receiver;
    *added = (Channel){.sender = sender,
                       .receiver = receiver,
                       .number = number,
                       .bytes = bytes,
                       .quota = quota,
                       .edge = -1,
                       .slot_bytes = (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT,
                       .set = set};
    set->channels[set->count++] = added;
    *channel = added;
    return AM_OK;
}

AmStatus channels_connect(Channel *channel, ActorGraph *graph, int32_t putter, int32_t getter,
                          AmError *error) {
    ChannelSet *set = channel->set;
    set->graph = graph;
    if (!channel_is_remote(channel))
        return actors_connect(graph, putter, getter, channel->quota, 0, &channel->edge, error);
    if (is_here(set, channel->sender))
        return actors_gate(graph, putter, set->remote->put_ready, channel, error);
    return actors_gate(graph, getter, set->remote->get_ready, channel, error);
}

AmStatus channels_start(ChannelSet *set, AmError *error) {
    int64_t bytes = 0;
    /* Channels from one rank to another are counted in the order of their keys, which both ends have. */
    for (int32_t k = 0; k < set->count; k++) {
        Channel *channel = set->channels[k];
        channel->number = 0;
        for (int32_t j = 0; j < set->count; j++) {
            const Channel *other = set->channels[j];
            if (other->sender != channel->sender || other->receiver != channel->receiver) continue;
            channel->number += other->key < channel->key || (other->key == channel->key && j < k);
        }
    }
    for (int32_t k = 0; k < set->count; k++) {
        Channel *channel = set->channels[k];
        if (channel->edge >= 0) channel->quota = actors_quota(set->graph, channel->edge);
        if (channel->slot_bytes > 0 && channel->quota > (INT64_MAX / 2 - bytes) / channel->slot_bytes)
            return am_fail_memory(error, INT64_MAX);
        bytes += channel->quota * channel->slot_bytes;
    }
    set->memory = aligned_alloc(SLOT_ALIGNMENT, (size_t)(bytes + SLOT_ALIGNMENT));
    if (!set->memory) return am_fail_memory(error, bytes);
    char *at = set->memory;
    for (int32_t k = 0; k < set->count; k++) {
        set->channels[k]->slots = at;
        at += set->channels[k]->quota * set->channels[k]->slot_bytes;
    }
    set->memory_bytes = bytes;
    set->is_started = true;
    return set->remote && set->remote->start ? set->remote->start(set, error) : AM_OK;
}

static char *slot_of(const Channel *channel, int64_t iteration) {
    return channel->slots + iteration % channel->quota * channel->slot_bytes;
}

void *channel_put(Channel *channel, int64_t iteration) {
    return slot_of(channel, iteration);
}

/* The receiver need not wait for what else the sender's iteration does. */
AmStatus channel_put_end(Channel *channel, int64_t iteration, AmError *error) {
    if (channel_is_remote(channel)) return channel->set->remote->put_end(channel, iteration, error);
    if (channel->edge >= 0) actors_fill(channel->set->graph, channel->edge);
    return AM_OK;
}

const void *channel_get(Channel *channel, int64_t iteration) {
    return slot_of(channel, iteration);
}

AmStatus channel_get_end(Channel *channel, int64_t iteration, AmError *error) {
    return channel_is_remote(channel) ? channel->set->remote->get_end(channel, iteration, error) : AM_OK;
}
