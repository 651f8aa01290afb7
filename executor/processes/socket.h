/* TCP connections with time limits, for the processes of one run (executor/processes/process_group.h).
 *
 * Every call ends: by success, by failure, at its deadline (a time of
 * clock_seconds(); INFINITY: when the peer or shutdown() ends the connection).
 * Sockets are non-blocking, closed on exec, and never raise SIGPIPE.
 */
#ifndef EXECUTOR_PROCESSES_SOCKET_H
#define EXECUTOR_PROCESSES_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Listens on `host` ("": every interface; also where the name is not one of this
 * machine's) and *port, which becomes the one that was taken where it is 0.
 * AM_ERROR_RUNTIME names host, port and reason. The caller closes *listener. */
AmStatus socket_listen(int *listener, const char *host, uint16_t *port, AmError *error);

/* Returns the next connection that waits, or -1. */
int socket_accept(int listener);

/* Connects, retrying until the deadline without a listener. AM_ERROR_RUNTIME: the last reason. The
 * caller closes *connection. */
AmStatus socket_connect(int *connection, const char *host, uint16_t port, double deadline, AmError *error);

/* Sends all `count` bytes, or returns false: the connection ended, broke, or the deadline passed. */
bool socket_send(int connection, const void *bytes, size_t count, double deadline);
bool socket_receive(int connection, void *bytes, size_t count, double deadline);

/* Milliseconds for poll(): until the deadline, at least 0, at most `most`; -1 for ever. */
int socket_poll_milliseconds(double deadline, int most);

#endif
