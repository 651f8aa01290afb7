/* The handshake of a run's processes: process 0 listens, the others join.
 *
 * Process 0 answers every connection with a challenge (magic, version, a random number). A joining
 * process sends its number, the number of processes and a random number of its own, and proves by
 * SHA-256 over all of this that it has the run's secret; process 0 proves the same in its welcome.
 * Each process joins twice, with a control and a data connection. All messages have fixed sizes,
 * unknown connections have a short time limit and a bounded number, so that traffic on the port
 * neither uses memory nor delays the others. Only the joining is authenticated; later messages are
 * neither encrypted nor authenticated.
 */
#ifndef EXECUTOR_PROCESSES_HANDSHAKE_H
#define EXECUTOR_PROCESSES_HANDSHAKE_H

#include "executor/processes/bootstrap.h"
#include "executor/processes/heartbeat.h"

typedef enum HandshakeChannel { HANDSHAKE_CONTROL, HANDSHAKE_DATA, HANDSHAKE_CHANNELS } HandshakeChannel;

/* A process that has joined, for process 0: sockets, -1 where it has not. */
typedef struct HandshakeJoined {
    int connections[HANDSHAKE_CHANNELS];
    char host[HEARTBEAT_HOST];
} HandshakeJoined;

/* Joins as a process other than process 0: connects to place->host and place->port until the deadline (a
 * time of clock_seconds()). AM_ERROR_RUNTIME: no listener, no automap process, or another run; the text
 * names both sides. The caller closes *connection. */
AmStatus handshake_join(int *connection, const ProcessPlace *place, HandshakeChannel channel, double deadline,
                        AmError *error);

/* Process 0: serves `listener` until joined[1..count) are complete; `on_joined` is
 * called for each process that is. `seconds` is how long there is until the deadline,
 * for messages. AM_ERROR_RUNTIME: the deadline passed (names the missing processes), a process
 * of this run was started with other settings, or `check` failed. Sockets in joined[] are the
 * caller's in any case. */
typedef struct HandshakeServer {
    const ProcessPlace *place;
    int listener;
    double deadline, seconds;
    HandshakeJoined *joined; /* [count] */
    void (*on_joined)(void *user, int32_t process);
    AmStatus (*check)(void *user, AmError *error); /* often */
    void *user;
    /* set by handshake_serve() */
    const char *ended;     /* the reason for the end of the run; NULL: it has not ended */
    int32_t refused;       /* processes of this run that were refused */
    int32_t wrong_secrets; /* connections with a proof of another secret */
} HandshakeServer;

/* Accepts the other processes until all have joined. AM_ERROR_RUNTIME: some are missing at the deadline,
 * or the run ends. */
AmStatus handshake_serve(HandshakeServer *server, AmError *error);

#endif
