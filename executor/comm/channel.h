/* Channels: carry the payload of a transfer from rank to rank, once per iteration.
 *
 * A channel is an edge of the actor graph with memory: `quota` slots of a ring; iteration t uses
 * slot t modulo the quota. The sender packs its message into the slot and the receiver reads it
 * there. Between ranks of one process the slots are the receiver's memory, without a copy, and the
 * edge's req and ack are the whole protocol (comm_local). Between processes the edge has only one
 * end in each graph; a gate polls the back end instead of the other end (ChannelBackEnd.put_ready,
 * get_ready), as with MPI's requests.
 *
 * Use: channels_open(); channels_add() for every channel with an end here; channels_connect() while
 * the graph is built; actors_ready(); channels_start(), which allocates (quotas are known then);
 * inside act() channel_put() and channel_put_end(), or channel_get() and channel_get_end();
 * channels_close(). The messages between the workers order the memory of a slot: data packed before
 * put_end() is visible after get().
 */
#ifndef EXECUTOR_COMM_CHANNEL_H
#define EXECUTOR_COMM_CHANNEL_H

#include "base/arena.h"
#include "executor/actors/actors.h"

typedef struct ChannelSet ChannelSet;
typedef struct ChannelBackEnd ChannelBackEnd;

typedef struct Channel {
    int32_t sender, receiver; /* ranks; at least one of them is this process's */
    int64_t key;              /* of the transfer: distinguishes channels between the same ranks */
    int32_t number;           /* among these by key, once started: the same in both processes */
    int64_t bytes;            /* of one message */
    int32_t quota;            /* registers, what actors_ready() made of it once there is an edge */
    int32_t edge;             /* in the graph; -1 where one end is elsewhere */
    char *slots;              /* [quota] slots of slot_bytes, aligned to 64; NULL before channels_start() */
    int64_t slot_bytes;       /* `bytes` rounded up to 64 */
    void *state;              /* the back end's own */
    ChannelSet *set;
} Channel;

/* How messages travel. Functions of one end of a channel are called by one thread, in the order of its
 * iterations.
 */
struct ChannelBackEnd {
    const char *name; /* "local" */
    /* All channels that reach another process are known, their slots allocated (both ends have their own).
     * NULL: nothing to do. */
    AmStatus (*start)(ChannelSet *set, AmError *error);
    /* No thread uses the channels any more. NULL: nothing to do. */
    void (*close)(ChannelSet *set);
    /* Returns whether the slot of `iteration` is free, as its previous message has arrived. */
    ActorReady *put_ready; /* user: the Channel */
    /* The slot is filled: send it. */
    AmStatus (*put_end)(Channel *channel, int64_t iteration, AmError *error);
    /* Returns whether the message of `iteration` is in its slot. */
    ActorReady *get_ready; /* user: the Channel */
    /* The slot is read: it may receive the message of iteration + quota. */
    AmStatus (*get_end)(Channel *channel, int64_t iteration, AmError *error);
};

struct ChannelSet {
    const ChannelBackEnd *remote;   /* for channels with an end elsewhere; NULL: none */
    int32_t first_rank, rank_count; /* of this process */
    void *user;                     /* the remote back end's: communicator, tags, ... */
    Arena arena;
    Channel **channels; /* stay where they are */
    int32_t count, capacity;
    ActorGraph *graph;
    char *memory; /* all slots; C heap */
    int64_t memory_bytes;
    bool is_started;
};

/* Opens an empty set for the ranks first_rank .. first_rank + rank_count - 1. `user` is what `remote` knows
 * by it. */
AmStatus channels_open(ChannelSet **set, int32_t first_rank, int32_t rank_count, const ChannelBackEnd *remote,
                       void *user, AmError *error);
void channels_close(ChannelSet *set); /* NULL is fine */

/* Adds a channel for messages of `bytes`; the caller may set its key. */
AmStatus channels_add(ChannelSet *set, int32_t sender, int32_t receiver, int64_t bytes, int32_t quota,
                      Channel **channel, AmError *error);

/* Ties a channel to the actors that put and get, which have the same iterations_per_step and one message
 * an iteration. -1 for the one that is in another process. */
AmStatus channels_connect(Channel *channel, ActorGraph *graph, int32_t putter, int32_t getter,
                          AmError *error);

/* Returns whether one of its ends is in another process. */
bool channel_is_remote(const Channel *channel);

/* Allocates the slots and starts the back end, after actors_ready(). */
AmStatus channels_start(ChannelSet *set, AmError *error);

/* Returns the slot for the message of an iteration: to pack, and to read. Inside the actors' act() only. */
void *channel_put(Channel *channel, int64_t iteration);
AmStatus channel_put_end(Channel *channel, int64_t iteration, AmError *error);
const void *channel_get(Channel *channel, int64_t iteration);
AmStatus channel_get_end(Channel *channel, int64_t iteration, AmError *error);

#endif
