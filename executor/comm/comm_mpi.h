/* Shared data of the collectives (comm_mpi.c) and the channels (channel_mpi.c) of one process.
 *
 * Tags distinguish messages between two processes: with r ranks in each process, from * r + to is a
 * pair of ranks; pairs of collectives come first, twice, then the barrier, then channels.
 */
#ifndef EXECUTOR_COMM_COMM_MPI_H
#define EXECUTOR_COMM_COMM_MPI_H

#include <pthread.h>
#include <stdatomic.h>

#include "executor/comm/channel.h"
#include "executor/comm/comm.h"
#include "executor/processes/mpi_wire.h"

typedef struct CommShared {
    Rendezvous *rendezvous; /* of this process's ranks */
    ProcessGroup *processes;
    int32_t first, count; /* they are first .. first + count - 1; every process has so many */
    atomic_bool failed;
    struct MpiRank *ranks; /* [count] */
    /* While there are channels: a thread that has MPI go on. */
    pthread_t thread;
    atomic_bool thread_ends;
    bool has_thread;
} CommShared;

/* Returns the number of a pair of ranks, which separates its messages from those of other
 * pairs. */
static inline int32_t comm_mpi_pair(const CommShared *shared, int32_t from, int32_t to) {
    return from % shared->count * shared->count + to % shared->count;
}

static inline int32_t comm_mpi_barrier_tag(const CommShared *shared) {
    return 2 * shared->count * shared->count;
}

/* Fails: "rank 3 was stopped because another rank failed" */
AmStatus comm_mpi_fail_released(int32_t rank, AmError *error);

/* Returns whether a rank here or a process has failed, so that messages may not come. */
bool comm_mpi_has_failed(CommShared *shared);
/* Returns when one thread of every process has come here; `rank` is the caller. */
AmStatus comm_mpi_barrier(CommShared *shared, int32_t rank, AmError *error);

/* Channels between processes; ChannelSet.user is Comm.shared of comm_mpi. Messages
 * go from the sender's slots to the receiver's, which are ready for as many as there are. All
 * processes start and close such a set together, also those in which no channel ends. */
extern const ChannelBackEnd channel_mpi;

#endif
