/* The thread that watches the control connections.
 *
 * Silence is counted in this process's own rounds, so that a run that was stopped
 * as a whole and goes on does not take its processes for dead. Notices are sent
 * without waiting: they are few and small, and a peer whose buffer is full of
 * them has not read for long; its connection is given up.
 */
#include "executor/processes/heartbeat.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/system/clock.h"
#include "base/system/parallel.h"

#define NOTICE_MAGIC 0x6e6d6131u
enum { NOTICE_HERE = 1, NOTICE_FAILED, NOTICE_BYE };

static const double goodbye_seconds = 5, most_round_seconds = 0.25;

void heartbeat_copy_text(char *to, size_t capacity, const char *from, size_t length) {
    size_t k = 0;
    for (; k + 1 < capacity && k < length && from[k]; k++)
        to[k] = (unsigned char)from[k] < ' ' || from[k] == 127 ? ' ' : from[k];
    to[k] = '\0';
}

static bool is_connected(const HeartbeatPeer *peer) {
    return peer->control >= 0 && !peer->ended;
}

/* The mutex is held. */
static void send_notice(HeartbeatPeer *peer, uint32_t kind, int32_t process, const char *text) {
    HeartbeatNotice notice = {.magic = NOTICE_MAGIC, .kind = kind, .process = process};
    if (!is_connected(peer) || peer->said_bye) return;
    heartbeat_copy_text(notice.text, sizeof notice.text, text, strlen(text));
    ssize_t sent = send(peer->control, &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != (ssize_t)sizeof notice) shutdown(peer->control, SHUT_RDWR);
}

/* Sends only "bye". The mutex is held. */
static void say_bye(Heartbeat *self, HeartbeatPeer *peer) {
    if (!is_connected(peer) || peer->said_bye) return;
    send_notice(peer, NOTICE_BYE, self->process, "");
    peer->said_bye = true;
    shutdown(peer->control, SHUT_WR);
}

/* Records the first failure and sends the line to all, only the reason for our own. The mutex is
 * held. */
static void fail(Heartbeat *self, int32_t process, const char *line) {
    if (self->failed) return;
    self->failed = true;
    snprintf(self->failure, sizeof self->failure, "%.*s", (int)sizeof self->failure - 1, line);
    for (int32_t k = 0; k < self->peer_count; k++) {
        HeartbeatPeer *peer = &self->peers[k];
        send_notice(peer, NOTICE_FAILED, process, line);
        if (peer->data >= 0) shutdown(peer->data, SHUT_RDWR);
    }
    pthread_cond_broadcast(&self->changed);
}

__attribute__((format(printf, 3, 4))) static void fail_peer(Heartbeat *self, const HeartbeatPeer *peer,
                                                            const char *format, ...) {
    char what[HEARTBEAT_TEXT], line[HEARTBEAT_TEXT + 192], ranks[64] = "";
    int32_t first = self->ranks_each * peer->process;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (self->ranks_each == 1) snprintf(ranks, sizeof ranks, " (rank %d)", (int)first);
    else if (self->ranks_each > 1)
        snprintf(ranks, sizeof ranks, " (ranks %d to %d)", (int)first, (int)first + self->ranks_each - 1);
    snprintf(line, sizeof line, "process %d%s%s%s %s", (int)peer->process, ranks, peer->host[0] ? " on " : "",
             peer->host, what);
    fail(self, peer->process, line);
}

static void take_notice(Heartbeat *self, HeartbeatPeer *peer) {
    const HeartbeatNotice *notice = &peer->inbox;
    char text[HEARTBEAT_TEXT];
    if (notice->magic != NOTICE_MAGIC) {
        fail_peer(self, peer, "sent an invalid notice");
        shutdown(peer->control, SHUT_RDWR);
        return;
    }
    peer->silent = 0;
    if (notice->kind == NOTICE_BYE) {
        peer->heard_bye = true;
        say_bye(self, peer);
        pthread_cond_broadcast(&self->changed);
    } else if (notice->kind == NOTICE_FAILED) {
        heartbeat_copy_text(text, sizeof text, notice->text, sizeof notice->text);
        if (self->process == 0 || notice->process == peer->process) fail_peer(self, peer, "failed: %s", text);
        else fail(self, notice->process, text); /* process 0 has put the line together */
    }
}

/* Reads arrived notices. The mutex is held. */
static void read_notices(Heartbeat *self, HeartbeatPeer *peer) {
    for (;;) {
        ssize_t got = recv(peer->control, (char *)&peer->inbox + peer->inbox_bytes,
                           sizeof peer->inbox - peer->inbox_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) break;
        peer->inbox_bytes += (size_t)got;
        if (peer->inbox_bytes < sizeof peer->inbox) continue;
        peer->inbox_bytes = 0;
        take_notice(self, peer);
    }
    peer->ended = true;
    if (!peer->heard_bye && !self->closing) fail_peer(self, peer, "ended unexpectedly");
    pthread_cond_broadcast(&self->changed);
}

/* Returns whether the thread is to go on. The mutex is held. */
static bool has_work(const Heartbeat *self) {
    if (!self->closing) return true;
    if (clock_seconds() >= self->close_deadline) return false;
    for (int32_t k = 0; k < self->peer_count; k++)
        if (is_connected(&self->peers[k])) return true;
    return false;
}

/* Notifies the owner once, without the mutex, since the callback may query failures. */
static void report_failure(Heartbeat *self) {
    if (!self->failed || self->has_reported || !self->on_failure) return;
    void (*on_failure)(void *) = self->on_failure;
    void *user = self->user;
    self->has_reported = self->is_reporting = true;
    pthread_mutex_unlock(&self->mutex);
    on_failure(user);
    pthread_mutex_lock(&self->mutex);
    self->is_reporting = false;
    pthread_cond_broadcast(&self->changed);
}

/* Runs the thread of the heartbeat: sends and reads notices, and fails peers that are silent for too
 * long. */
static void *watch(void *argument) {
    Heartbeat *self = argument;
    double round = fmin(most_round_seconds, self->silence_seconds / 8), spoke = 0;
    struct pollfd *polled = calloc((size_t)self->peer_count, sizeof *polled);
    pthread_mutex_lock(&self->mutex);
    while (polled && has_work(self)) {
        double start = clock_seconds();
        for (int32_t k = 0; k < self->peer_count; k++)
            polled[k] = (struct pollfd){.fd = is_connected(&self->peers[k]) ? self->peers[k].control : -1,
                                        .events = POLLIN};
        pthread_mutex_unlock(&self->mutex);
        poll(polled, (nfds_t)self->peer_count, (int)(round * 1e3) + 1);
        pthread_mutex_lock(&self->mutex);
        double now = clock_seconds(), passed = fmin(now - start, 2 * round);
        bool sends = now - spoke >= round;
        if (sends) spoke = now;
        for (int32_t k = 0; k < self->peer_count; k++) {
            HeartbeatPeer *peer = &self->peers[k];
            if (!is_connected(peer)) continue;
            if (polled[k].fd >= 0 && polled[k].revents) read_notices(self, peer);
            if (peer->ended) continue;
            bool is_watched = self->complete && !self->closing && !peer->heard_bye;
            if (is_watched) peer->silent += passed;
            if (is_watched && peer->silent > self->silence_seconds) {
                fail_peer(self, peer, "has not answered for %.0f s", self->silence_seconds);
                shutdown(peer->control, SHUT_RDWR);
            }
            if (sends) send_notice(peer, NOTICE_HERE, self->process, "");
        }
        report_failure(self);
    }
    if (!polled) fail(self, self->process, "out of memory");
    pthread_mutex_unlock(&self->mutex);
    free(polled);
    return NULL;
}

AmStatus heartbeat_start(Heartbeat *self, int32_t process, HeartbeatPeer *peers, int32_t peer_count,
                         double silence_seconds, AmError *error) {
    pthread_condattr_t monotonic;
    *self = (Heartbeat){
        .process = process, .peers = peers, .peer_count = peer_count, .silence_seconds = silence_seconds};
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TRY(parallel_start_thread(&self->thread, watch, self, error));
    self->has_thread = true;
    return AM_OK;
}

void heartbeat_add(Heartbeat *self, HeartbeatPeer *peer, int control, int data, const char *host) {
    pthread_mutex_lock(&self->mutex);
    peer->control = control;
    peer->data = data;
    heartbeat_copy_text(peer->host, sizeof peer->host, host, sizeof peer->host);
    pthread_mutex_unlock(&self->mutex);
}

void heartbeat_complete(Heartbeat *self) {
    pthread_mutex_lock(&self->mutex);
    self->complete = true;
    for (int32_t k = 0; k < self->peer_count; k++) self->peers[k].silent = 0;
    pthread_mutex_unlock(&self->mutex);
}

void heartbeat_abort(Heartbeat *self, const char *text) {
    char line[HEARTBEAT_TEXT];
    heartbeat_copy_text(line, sizeof line, text, strlen(text));
    pthread_mutex_lock(&self->mutex);
    fail(self, self->process, line);
    pthread_mutex_unlock(&self->mutex);
}

AmStatus heartbeat_explain(Heartbeat *self, const HeartbeatPeer *peer, double seconds, AmError *error) {
    double deadline = clock_seconds() + seconds;
    struct timespec until = {(time_t)deadline, (long)((deadline - floor(deadline)) * 1e9)};
    pthread_mutex_lock(&self->mutex);
    while (!self->failed && !(peer && peer->heard_bye) &&
           pthread_cond_timedwait(&self->changed, &self->mutex, &until) != ETIMEDOUT) {}
    pthread_mutex_unlock(&self->mutex);
    return heartbeat_check(self, error);
}

AmStatus heartbeat_check(Heartbeat *self, AmError *error) {
    pthread_mutex_lock(&self->mutex);
    bool failed = self->failed;
    if (failed) am_fail(error, AM_ERROR_RUNTIME, "", "%s", self->failure);
    pthread_mutex_unlock(&self->mutex);
    return failed ? AM_ERROR_RUNTIME : AM_OK;
}

void heartbeat_on_failure(Heartbeat *self, void (*on_failure)(void *user), void *user) {
    pthread_mutex_lock(&self->mutex);
    while (self->is_reporting) pthread_cond_wait(&self->changed, &self->mutex);
    self->on_failure = on_failure;
    self->user = user;
    pthread_mutex_unlock(&self->mutex);
}

void heartbeat_stop(Heartbeat *self) {
    pthread_mutex_lock(&self->mutex);
    for (int32_t k = 0; k < self->peer_count; k++) say_bye(self, &self->peers[k]);
    self->closing = true;
    self->close_deadline = clock_seconds() + goodbye_seconds;
    pthread_mutex_unlock(&self->mutex);
    if (self->has_thread) pthread_join(self->thread, NULL);
    for (int32_t k = 0; k < self->peer_count; k++) {
        if (self->peers[k].control >= 0) close(self->peers[k].control);
        if (self->peers[k].data >= 0) close(self->peers[k].data);
    }
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
}
