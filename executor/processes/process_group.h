/* The processes that run one plan together, and their messages.
 *
 * A star: process 0 has a connection to every other process. Operations are collective: every
 * process calls the same ones in the same order, one thread of it at a time. They are meant for
 * small or rare data - an address, a decision, the shards of a saved state - while tensors travel
 * by the back ends of executor/comm/comm.h. A failing process notifies the others, and a dead one is
 * detected (executor/processes/heartbeat.h): every operation then returns AM_ERROR_RUNTIME with a line that
 * names that process, and no process waits indefinitely.
 */
#ifndef EXECUTOR_PROCESSES_PROCESS_GROUP_H
#define EXECUTOR_PROCESSES_PROCESS_GROUP_H

#include "executor/processes/bootstrap.h"

typedef struct ProcessGroup {
    int32_t process, count;             /* 0 <= process < count */
    int32_t local_process, local_count; /* among those of this machine */
    const char *launcher;               /* who started them; "none": one process alone */
    bool is_open;                       /* others on the network can join: bootstrap_is_open() */
    struct ProcessLinks *links;         /* NULL: one process alone */
} ProcessGroup;

typedef struct ProcessGroupOptions {
    const ProcessPlace *place; /* NULL: from the environment, by bootstrap_read() */
    double join_seconds;       /* for all to come together; 0: 60 */
    double silence_seconds;    /* of a process that is not yet taken for dead; 0: 30 */
} ProcessGroupOptions;

/* Comes together with the other processes. `options` may be NULL. AM_ERROR_USAGE:
 * the environment contradicts itself; AM_ERROR_RUNTIME: somebody did not come or
 * is not of this run. Release with process_group_close(). */
AmStatus process_group_open(ProcessGroup **group, const ProcessGroupOptions *options, AmError *error);
/* Takes leave; NULL is allowed. Others that still wait for this process fail. */
void process_group_close(ProcessGroup *self);

/* Sends `count` bytes of process 0 to all; the same count everywhere. */
AmStatus process_group_broadcast(ProcessGroup *self, void *bytes, int64_t count, AmError *error);

/* The data that process 0 received from each process, itself included. */
typedef struct ProcessPart {
    void *bytes; /* C heap; NULL where count is 0 */
    int64_t count;
} ProcessPart;

/* Gathers `count` bytes of every process, at most `most` each, to process 0: fills parts[self->count] there,
 * to be released by process_group_release_parts(); elsewhere `parts` is not used. */
AmStatus process_group_gather(ProcessGroup *self, const void *bytes, int64_t count, int64_t most,
                              ProcessPart *parts, AmError *error);
void process_group_release_parts(const ProcessGroup *self, ProcessPart *parts);

/* Returns when all processes have come here. */
AmStatus process_group_barrier(ProcessGroup *self, AmError *error);

/* Something that all processes must have in common, such as the plan's hash. */
typedef struct ProcessFact {
    const char *name, *value;
} ProcessFact;

/* Fails with AM_ERROR_INPUT in every process where a value differs: names fact, process and both values. */
AmStatus process_group_agree(ProcessGroup *self, const ProcessFact *facts, int32_t count, AmError *error);

/* Lets failures from now on name a process's ranks, too: process p has p * each .. p * each + each - 1. */
void process_group_name_ranks(ProcessGroup *self, int32_t each);

/* Reports a failure of this process: the operations of the others end, and name it and `text`. Any thread,
 * any number of times. */
void process_group_abort(ProcessGroup *self, const char *text);
void process_group_abort_for(ProcessGroup *self, const AmError *error); /* `text` with its file and line */

/* Fails with AM_ERROR_RUNTIME once a process has failed, with the line that names it. Any thread. */
AmStatus process_group_check(ProcessGroup *self, AmError *error);

/* Returns the failure of a process, as process_group_check(), after a failure that may be a consequence of
 * it, such as a broken collective: waits a moment for the news. */
AmStatus process_group_explain(ProcessGroup *self, AmError *error);

/* Has on_failure(user) called once, by a thread of the process group's own, when a process
 * has failed, so that threads that wait elsewhere can be released; NULL: no longer
 * (waits for a call that is in work; not to be used by on_failure itself). */
void process_group_on_failure(ProcessGroup *self, void (*on_failure)(void *user), void *user);

#endif
