/* A minimal interface to MPI: non-blocking messages between processes.
 *
 * Messages and their assignment are polled, so that a waiting process can check for failures in
 * between; the processes monitor each other elsewhere (process_group.h). Any thread may call: calls are
 * serialised. Messages from one process to another with the same tag arrive in the order in which
 * they were sent. mpi_wire.c is the only file that includes mpi.h; a build without MPI has these
 * functions too, and refuses to start.
 */
#ifndef EXECUTOR_PROCESSES_MPI_WIRE_H
#define EXECUTOR_PROCESSES_MPI_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* A message in flight; {0}: none. */
typedef struct MpiRequest {
    uintptr_t handle;
    bool active;
} MpiRequest;

/* Returns "Open MPI 4.1.4", "MPICH 4.0.2"; NULL in a build without MPI. */
const char *mpi_wire_name(void);

/* Starts MPI where it is not yet. AM_ERROR_USAGE: this build has none, or MPI does not see this process as
 * number `process` of `count`, as when no launcher of this MPI started it. */
AmStatus mpi_wire_start(int32_t process, int32_t count, AmError *error);
bool mpi_wire_is_started(void);

/* Sends `count` bytes of process 0 to all, within so many seconds; before there is anything else to watch
 * failures. */
AmStatus mpi_wire_broadcast(void *bytes, int32_t count, double seconds, AmError *error);

/* Returns the largest tag: 0 <= tag <= mpi_wire_most_tag(). The bytes belong to the message until it is done:
 * at most INT32_MAX. */
int32_t mpi_wire_most_tag(void);
AmStatus mpi_wire_send(MpiRequest *request, const void *bytes, int64_t count, int32_t process, int32_t tag,
                       AmError *error);
AmStatus mpi_wire_receive(MpiRequest *request, void *bytes, int64_t count, int32_t process, int32_t tag,
                          AmError *error);
/* Tests whether the message is done; {0} is done. */
AmStatus mpi_wire_test(MpiRequest *request, bool *done, AmError *error);
/* Gives up a message that is to be received, so that it is done, sooner or later, without having come. */
void mpi_wire_cancel(MpiRequest *request);
/* Lets MPI progress pending operations, which it does only inside its functions. */
void mpi_wire_progress(void);

/* Ends MPI if it was started, once and as the last action of a process: true when MPI has ended.
 * `orderly`: every process calls this; otherwise, after a failure, MPI is not ended, because its
 * end waits for all processes, and the process should end by _exit(). An orderly end that takes
 * longer than `seconds`, as when a process died meanwhile, calls give_up(), which must not return. */
bool mpi_wire_end(bool orderly, double seconds, void (*give_up)(void));

#endif
