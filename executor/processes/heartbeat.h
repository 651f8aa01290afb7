/* Heartbeat: the control connections between the processes of one run.
 *
 * Process 0 has one to every other process. A thread in every process watches them. They carry
 * notices of one size: a heartbeat several times per allowed silence, "failed" with the process and
 * the reason, and "bye" before an orderly end. A connection that ends without "bye", or that stays
 * silent for too long, is a failed process. Process 0 forwards every failure to all; all report the
 * first one. A failure ends the data connections, so that no process keeps waiting on them.
 */
#ifndef EXECUTOR_PROCESSES_HEARTBEAT_H
#define EXECUTOR_PROCESSES_HEARTBEAT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HEARTBEAT_HOST = 64, HEARTBEAT_TEXT = 496 };

/* One notice as it travels. */
typedef struct HeartbeatNotice {
    uint32_t magic, kind;
    int32_t process; /* the one that failed */
    uint32_t unused;
    char text[HEARTBEAT_TEXT];
} HeartbeatNotice;

/* The other end of a control connection. */
typedef struct HeartbeatPeer {
    int32_t process;
    int control, data; /* sockets; -1 until the process has joined */
    char host[HEARTBEAT_HOST];
    HeartbeatNotice inbox;
    size_t inbox_bytes; /* of a notice that is on its way */
    double silent;      /* seconds of our time since the last notice */
    bool said_bye, heard_bye, ended;
} HeartbeatPeer;

typedef struct Heartbeat {
    int32_t process;
    HeartbeatPeer *peers; /* [peer_count], the owner's */
    int32_t peer_count;
    double silence_seconds; /* allowed */

    pthread_mutex_t mutex; /* guards all that follows, and the peers */
    pthread_cond_t changed;
    bool complete; /* all have joined: silence counts from now on */
    bool failed, has_reported, is_reporting, closing;
    char failure[HEARTBEAT_TEXT + 128]; /* the line that names the process */
    int32_t ranks_each;                 /* of a process, to be named with it; 0: not known */
    void (*on_failure)(void *user);
    void *user;
    double close_deadline;

    pthread_t thread;
    bool has_thread;
} Heartbeat;

/* Starts the heartbeat. Peers' sockets may still be -1. heartbeat_stop() also after a failure of this. */
AmStatus heartbeat_start(Heartbeat *self, int32_t process, HeartbeatPeer *peers, int32_t peer_count,
                         double silence_seconds, AmError *error);
/* Watches a process that has joined; takes both sockets. */
void heartbeat_add(Heartbeat *self, HeartbeatPeer *peer, int control, int data, const char *host);
/* Notes that all have joined. */
void heartbeat_complete(Heartbeat *self);
/* Reports a failure of this process with the reason `text` to the others. */
void heartbeat_abort(Heartbeat *self, const char *text);
/* Returns whether a process has failed; fills `error` with AM_ERROR_RUNTIME and the line. */
AmStatus heartbeat_check(Heartbeat *self, AmError *error);
/* Returns whether a process has failed, as heartbeat_check(), but waits for notices at most `seconds`, or
 * until `peer` (NULL: any) has sent "bye": for a caller that detects a failure without its reason. AM_OK:
 * no process has failed. */
AmStatus heartbeat_explain(Heartbeat *self, const HeartbeatPeer *peer, double seconds, AmError *error);
/* Has `on_failure` called once by the watching thread when a process has failed;
 * NULL: cancels that, and waits for a call in progress. `on_failure` must not call this. */
void heartbeat_on_failure(Heartbeat *self, void (*on_failure)(void *user), void *user);
/* Says goodbye, waits a little for the others' answer, closes all sockets. */
void heartbeat_stop(Heartbeat *self);

/* Copies text that came from elsewhere: bounded, one line, printable. */
void heartbeat_copy_text(char *to, size_t capacity, const char *from, size_t length);

#endif
