/* The processes that run one plan together, and their messages.
 *
 * A star: process 0 has a connection to every other process. Operations are collective: every
 * process calls the same ones in the same order, one thread of it at a time. They are meant for
 * small or rare data - an address, a decision, the shards of a saved state - while tensors travel
 * by the back ends of executor/comm/comm.h. A failing process notifies the others, and a dead one is
 * detected (executor/processes/heartbeat.h): every operation then returns AM_ERROR_RUNTIME with a line that
 * names that process, and no process waits indefinitely.
 */
#ifndef EXECUTOR_PROCESSES_WORLD_H
#define EXECUTOR_PROCESSES_WORLD_H

#include "executor/processes/bootstrap.h"

typedef struct World {
    int32_t process, count;             /* 0 <= process < count */
    int32_t local_process, local_count; /* among those of this machine */
    const char *launcher;               /* who started them; "none": one process alone */
    bool is_open;                       /* others on the network can join: bootstrap_is_open() */
    struct WorldLinks *links;           /* NULL: one process alone */
} World;

typedef struct WorldOptions {
    const WorldPlace *place; /* NULL: from the environment, by bootstrap_read() */
    double join_seconds;     /* for all to come together; 0: 60 */
    double silence_seconds;  /* of a process that is not yet taken for dead; 0: 30 */
} WorldOptions;

/* Comes together with the other processes. `options` may be NULL. AM_ERROR_USAGE:
 * the environment contradicts itself; AM_ERROR_RUNTIME: somebody did not come or
 * is not of this run. Release with world_close(). */
AmStatus world_open(World **world, const WorldOptions *options, AmError *error);
/* Takes leave; NULL is allowed. Others that still wait for this process fail. */
void world_close(World *world);

/* `count` bytes of process 0 to all; the same count everywhere. */
AmStatus world_broadcast(World *world, void *bytes, int64_t count, AmError *error);

/* The data that process 0 received from each process, itself included. */
typedef struct WorldPart {
    void *bytes; /* C heap; NULL where count is 0 */
    int64_t count;
} WorldPart;

/* `count` bytes of every process, at most `most` each, to process 0: fills
 * parts[world->count] there, to be released by world_release_parts(); elsewhere
 * `parts` is not used. */
AmStatus world_gather(World *world, const void *bytes, int64_t count, int64_t most, WorldPart *parts,
                      AmError *error);
void world_release_parts(const World *world, WorldPart *parts);

/* Returns when all processes have come here. */
AmStatus world_barrier(World *world, AmError *error);

/* Something that all processes must have in common, such as the plan's hash. */
typedef struct WorldFact {
    const char *name, *value;
} WorldFact;

/* AM_ERROR_INPUT in every process where a value differs: names fact, process and both values. */
AmStatus world_agree(World *world, const WorldFact *facts, int32_t count, AmError *error);

/* From now on failures name a process's ranks, too: process p has p * each .. p * each + each - 1. */
void world_name_ranks(World *world, int32_t each);

/* Reports a failure of this process: the operations of the others end, and name it and `text`. Any thread,
 * any number of times. */
void world_abort(World *world, const char *text);
void world_abort_for(World *world, const AmError *error); /* `text` with its file and line */

/* AM_ERROR_RUNTIME once a process has failed, with the line that names it. Any thread. */
AmStatus world_check(World *world, AmError *error);

/* Returns the failure of a process, as world_check(), after a failure that may be a consequence of it,
 * such as a broken collective: waits a moment for the news. */
AmStatus world_explain(World *world, AmError *error);

/* Has on_failure(user) called once, by a thread of the world's own, when a process
 * has failed, so that threads that wait elsewhere can be released; NULL: no longer
 * (waits for a call that is in work; not to be used by on_failure itself). */
void world_on_failure(World *world, void (*on_failure)(void *user), void *user);

#endif
