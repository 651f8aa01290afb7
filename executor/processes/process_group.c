/* The processes of a run, each connected to process 0: joining, and collective operations on small data.
 *
 * A message on a data connection is a header (magic, kind, number of the
 * operation, length) and its bytes. Process 0 receives from and sends to the
 * others in their order, which keeps results and failures independent of timing.
 * A header that is not the expected one means that the processes are not at the
 * same operation, which is a failure like any other.
 */
#include "executor/processes/process_group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/clock.h"
#include "base/text.h"
#include "executor/processes/handshake.h"
#include "executor/processes/heartbeat.h"
#include "executor/processes/socket.h"

#define MESSAGE_MAGIC 0x776d6131u
enum { MESSAGE_READY = 1, MESSAGE_BROADCAST, MESSAGE_GATHER };
enum { MOST_FACT_BYTES = 1 << 16, MOST_VERDICT = 512 };

static const double default_join_seconds = 60, default_silence_seconds = 30;
/* The time for which a broken data connection waits for a reason on the control connection. */
static const double reason_seconds = 2;
/* The time for which a failed collective waits for a reason: enough for messages of other processes, short
 * for a user. */
static const double explanation_seconds = 0.5;

typedef struct Message {
    uint32_t magic, kind;
    uint64_t operation;
    int64_t bytes;
} Message;

typedef struct ProcessLinks {
    Heartbeat heartbeat;
    HeartbeatPeer *peers; /* process 0: the others in order; elsewhere process 0 alone */
    int32_t peer_count;
    uint64_t operation;      /* how many there have been */
    HandshakeJoined *joined; /* while they come together */
    bool is_started;         /* heartbeat is */
} ProcessLinks;

/* ---- coming together ---- */

static void add_joined(void *user, int32_t process) {
    ProcessLinks *links = user;
    HandshakeJoined *joined = &links->joined[process];
    heartbeat_add(&links->heartbeat, &links->peers[process - 1], joined->connections[HANDSHAKE_CONTROL],
                  joined->connections[HANDSHAKE_DATA], joined->host);
}

static AmStatus check_links(void *user, AmError *error) {
    ProcessLinks *links = user;
    return heartbeat_check(&links->heartbeat, error);
}

/* Waits in process 0 until all other processes have joined. */
static AmStatus serve(ProcessLinks *links, const ProcessPlace *place, int listener, double seconds,
                      AmError *error) {
    HandshakeServer server = {.place = place,
                              .listener = listener,
                              .deadline = clock_seconds() + seconds,
                              .seconds = seconds,
                              .on_joined = add_joined,
                              .check = check_links,
                              .user = links};
    links->joined = calloc((size_t)place->count, sizeof *links->joined);
    if (!links->joined) return am_fail_memory(error, (int64_t)sizeof *links->joined * place->count);
    for (int32_t p = 0; p < place->count; p++)
        for (int c = 0; c < HANDSHAKE_CHANNELS; c++) links->joined[p].connections[c] = -1;
    server.joined = links->joined;
    AmStatus status = handshake_serve(&server, error);
    for (int32_t p = 1; p < place->count; p++)
        for (int c = 0; c < HANDSHAKE_CHANNELS; c++)
            if (links->joined[p].connections[c] >= 0 && links->peers[p - 1].control < 0)
                close(links->joined[p].connections[c]);
    free(links->joined);
    links->joined = NULL;
    return status;
}

/* Connects to process 0, for control and for data. */
static AmStatus join_group(ProcessLinks *links, const ProcessPlace *place, double seconds, AmError *error) {
    int connections[HANDSHAKE_CHANNELS] = {-1, -1};
    double deadline = clock_seconds() + seconds;
    for (int c = 0; c < HANDSHAKE_CHANNELS; c++) {
        AmStatus status = handshake_join(&connections[c], place, (HandshakeChannel)c, deadline, error);
        if (status == AM_OK) continue;
        if (c > 0) close(connections[0]);
        return status;
    }
    heartbeat_add(&links->heartbeat, &links->peers[0], connections[HANDSHAKE_CONTROL],
                  connections[HANDSHAKE_DATA], place->host);
    return AM_OK;
}

/* ---- messages ---- */

/* Fails with the reason why a message could not pass: the failure that is known by now, or the end of the
 * connection. */
static AmStatus fail_message(ProcessGroup *self, const HeartbeatPeer *peer, AmError *error) {
    char text[64];
    TRY(heartbeat_explain(&self->links->heartbeat, peer, reason_seconds, error));
    snprintf(text, sizeof text, "process %d has left the run", (int)peer->process);
    process_group_abort(self, text);
    return am_fail(error, AM_ERROR_RUNTIME, "", "%s", text);
}

static AmStatus send_message(ProcessGroup *self, const HeartbeatPeer *peer, uint32_t kind, const void *bytes,
                             int64_t count, AmError *error) {
    Message message = {
        .magic = MESSAGE_MAGIC, .kind = kind, .operation = self->links->operation, .bytes = count};
    if (!socket_send(peer->data, &message, sizeof message, INFINITY) ||
        !socket_send(peer->data, bytes, (size_t)count, INFINITY))
        return fail_message(self, peer, error);
    return AM_OK;
}

/* Receives the header of a message of `kind` with at most `most` bytes, which follow. */
static AmStatus receive_header(ProcessGroup *self, const HeartbeatPeer *peer, uint32_t kind, int64_t most,
                               double deadline, int64_t *bytes, AmError *error) {
    Message message;
    char text[160];
    if (!socket_receive(peer->data, &message, sizeof message, deadline))
        return fail_message(self, peer, error);
    *bytes = message.bytes;
    if (message.magic == MESSAGE_MAGIC && message.kind == kind &&
        message.operation == self->links->operation && message.bytes >= 0 && message.bytes <= most)
        return AM_OK;
    snprintf(text, sizeof text, "process %d is at another operation (%llu) than process %d (%llu)",
             (int)peer->process, (unsigned long long)message.operation, (int)self->process,
             (unsigned long long)self->links->operation);
    process_group_abort(self, text);
    return am_fail(error, AM_ERROR_RUNTIME, "", "%s", text);
}

static AmStatus receive_bytes(ProcessGroup *self, const HeartbeatPeer *peer, void *bytes, int64_t count,
                              AmError *error) {
    if (socket_receive(peer->data, bytes, (size_t)count, INFINITY)) return AM_OK;
    return fail_message(self, peer, error);
}

/* Process 0 notifies the others that all have joined; from then on silence is failure. */
static AmStatus begin_group(ProcessGroup *self, double seconds, AmError *error) {
    ProcessLinks *links = self->links;
    int64_t none;
    if (self->process == 0) {
        for (int32_t k = 0; k < links->peer_count; k++)
            TRY(send_message(self, &links->peers[k], MESSAGE_READY, NULL, 0, error));
    } else {
        TRY(receive_header(self, &links->peers[0], MESSAGE_READY, 0, clock_seconds() + seconds, &none,
                           error));
    }
    heartbeat_complete(&links->heartbeat);
    return AM_OK;
}

static AmStatus connect_all(ProcessGroup *self, ProcessPlace *place, const ProcessGroupOptions *options,
                            AmError *error) {
    double seconds = options && options->join_seconds > 0 ? options->join_seconds : default_join_seconds;
    double silence =
        options && options->silence_seconds > 0 ? options->silence_seconds : default_silence_seconds;
    ProcessLinks *links = self->links;
    int listener = -1;
    bool shared = place->share != NULL;
    AmStatus status = AM_OK;
    if (self->process == 0) status = socket_listen(&listener, place->host, &place->port, error);
    if (status != AM_OK) place->port = 0;
    if (shared) {
        AmStatus shared_status = place->share(place, error);
        if (status == AM_OK) status = shared_status;
    }
    if (status == AM_OK && place->port == 0)
        status = am_fail(error, AM_ERROR_RUNTIME, "", "process 0 could not begin to listen");
    if (status == AM_OK)
        status = heartbeat_start(&links->heartbeat, self->process, links->peers, links->peer_count, silence,
                                 error);
    links->is_started = status == AM_OK;
    if (status == AM_OK)
        status = self->process == 0 ? serve(links, place, listener, seconds, error)
                                    : join_group(links, place, seconds, error);
    if (listener >= 0) close(listener);
    /* Process 0 began without a joining process before: it may wait as long again. */
    return status == AM_OK ? begin_group(self, seconds + reason_seconds, error) : status;
}

static AmStatus make_links(ProcessGroup *self, AmError *error) {
    ProcessLinks *links = calloc(1, sizeof *links);
    self->links = links;
    if (!links) return am_fail_memory(error, (int64_t)sizeof *links);
    links->peer_count = self->process == 0 ? self->count - 1 : 1;
    links->peers = calloc((size_t)links->peer_count, sizeof *links->peers);
    if (!links->peers) return am_fail_memory(error, (int64_t)sizeof *links->peers * links->peer_count);
    for (int32_t k = 0; k < links->peer_count; k++)
        links->peers[k] =
            (HeartbeatPeer){.process = self->process == 0 ? k + 1 : 0, .control = -1, .data = -1};
    return AM_OK;
}

AmStatus process_group_open(ProcessGroup **group, const ProcessGroupOptions *options, AmError *error) {
    ProcessPlace place;
    AmError own = {0};
    *group = NULL;
    if (options && options->place) place = *options->place;
    else TRY(bootstrap_read(&place, error));
    ProcessGroup *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (ProcessGroup){.process = place.process,
                           .count = place.count,
                           .local_process = place.local_process,
                           .local_count = place.local_count,
                           .launcher = place.launcher,
                           .is_open = bootstrap_is_open(&place)};
    AmStatus status = AM_OK;
    if (place.count > 1) {
        status = make_links(self, &own);
        if (status == AM_OK) status = connect_all(self, &place, options, &own);
    }
    if (status == AM_OK) {
        *group = self;
        return AM_OK;
    }
    process_group_abort(self, own.text);
    process_group_close(self);
    return am_fail(error, status, "", "%s", own.text);
}

void process_group_close(ProcessGroup *self) {
    if (!self) return;
    if (self->links) {
        if (self->links->is_started) heartbeat_stop(&self->links->heartbeat);
        free(self->links->peers);
        free(self->links);
    }
    free(self);
}

/* ---- operations ---- */

AmStatus process_group_broadcast(ProcessGroup *self, void *bytes, int64_t count, AmError *error) {
    ProcessLinks *links = self->links;
    int64_t got;
    if (!links) return AM_OK;
    links->operation++;
    if (self->process == 0) {
        for (int32_t k = 0; k < links->peer_count; k++)
            TRY(send_message(self, &links->peers[k], MESSAGE_BROADCAST, bytes, count, error));
        return AM_OK;
    }
    TRY(receive_header(self, &links->peers[0], MESSAGE_BROADCAST, count, INFINITY, &got, error));
    if (got == count) return receive_bytes(self, &links->peers[0], bytes, count, error);
    process_group_abort(self, "a broadcast of two sizes");
    return am_fail(error, AM_ERROR_INTERNAL, "", "process 0 broadcasts %lld bytes, process %d expects %lld",
                   (long long)got, (int)self->process, (long long)count);
}

static AmStatus receive_part(ProcessGroup *self, const HeartbeatPeer *peer, int64_t most, ProcessPart *part,
                             AmError *error) {
    TRY(receive_header(self, peer, MESSAGE_GATHER, most, INFINITY, &part->count, error));
    if (part->count == 0) return AM_OK;
    part->bytes = malloc((size_t)part->count);
    if (part->bytes) return receive_bytes(self, peer, part->bytes, part->count, error);
    process_group_abort(self, "out of memory");
    return am_fail_memory(error, part->count);
}

void process_group_release_parts(const ProcessGroup *self, ProcessPart *parts) {
    for (int32_t p = 0; p < self->count; p++) {
        free(parts[p].bytes);
        parts[p] = (ProcessPart){NULL, 0};
    }
}

AmStatus process_group_gather(ProcessGroup *self, const void *bytes, int64_t count, int64_t most,
                              ProcessPart *parts, AmError *error) {
    ProcessLinks *links = self->links;
    if (links) links->operation++;
    if (self->process != 0) return send_message(self, &links->peers[0], MESSAGE_GATHER, bytes, count, error);
    memset(parts, 0, sizeof *parts * (size_t)self->count);
    AmStatus status = AM_OK;
    if (count > 0) {
        parts[0] = (ProcessPart){malloc((size_t)count), count};
        if (parts[0].bytes) memcpy(parts[0].bytes, bytes, (size_t)count);
        else status = am_fail_memory(error, count);
    }
    for (int32_t k = 0; links && k < links->peer_count && status == AM_OK; k++)
        status = receive_part(self, &links->peers[k], most, &parts[k + 1], error);
    if (status != AM_OK) process_group_release_parts(self, parts);
    return status;
}

AmStatus process_group_barrier(ProcessGroup *self, AmError *error) {
    ProcessPart *parts = NULL;
    if (!self->links) return AM_OK;
    if (self->process == 0) {
        parts = calloc((size_t)self->count, sizeof *parts);
        if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * self->count);
    }
    AmStatus status = process_group_gather(self, NULL, 0, 0, parts, error);
    free(parts);
    return status == AM_OK ? process_group_broadcast(self, NULL, 0, error) : status;
}

/* Compares a process's values with those of process 0: a line about a difference, else an empty
 * one. */
static void compare_facts(char verdict[MOST_VERDICT], const ProcessPart *part, int32_t process,
                          const ProcessFact *facts, int32_t count) {
    const char *at = part->bytes, *end = at + part->count;
    for (int32_t k = 0; k < count && !*verdict; k++) {
        const char *stop = at < end ? memchr(at, '\0', (size_t)(end - at)) : NULL;
        char other[160] = "nothing";
        if (stop) heartbeat_copy_text(other, sizeof other, at, (size_t)(stop - at));
        if (!stop || strcmp(at, facts[k].value) != 0)
            snprintf(verdict, MOST_VERDICT,
                     "process 0 has the %s %.150s and process %d %s: expected the same", facts[k].name,
                     facts[k].value, (int)process, other);
        at = stop ? stop + 1 : end;
    }
}

AmStatus process_group_agree(ProcessGroup *self, const ProcessFact *facts, int32_t count, AmError *error) {
    char verdict[MOST_VERDICT] = "";
    Text text = {0};
    if (!self->links) return AM_OK;
    ProcessPart *parts = calloc((size_t)self->count, sizeof *parts);
    AmStatus status = parts ? AM_OK : am_fail_memory(error, self->count);
    /* All values of this process, one after the other, each ended by a zero byte. */
    for (int32_t k = 0; k < count; k++) text_append_bytes(&text, facts[k].value, strlen(facts[k].value) + 1);
    if (status == AM_OK && (text.failed || text.length > MOST_FACT_BYTES))
        status = am_fail_memory(error, (int64_t)text.length);
    if (status == AM_OK)
        status = process_group_gather(self, text.data, (int64_t)text.length, MOST_FACT_BYTES, parts, error);
    if (status == AM_OK && self->process == 0) {
        for (int32_t p = 1; p < self->count; p++) compare_facts(verdict, &parts[p], p, facts, count);
        process_group_release_parts(self, parts);
    }
    free(parts);
    text_free(&text);
    TRY(status);
    TRY(process_group_broadcast(self, verdict, sizeof verdict, error));
    verdict[MOST_VERDICT - 1] = '\0';
    if (!*verdict) return AM_OK;
    /* A process that leaves first must not disconnect the others before they have the reason. */
    process_group_barrier(self, NULL);
    return am_fail(error, AM_ERROR_INPUT, "", "%s", verdict);
}

void process_group_name_ranks(ProcessGroup *self, int32_t each) {
    if (!self->links) return;
    pthread_mutex_lock(&self->links->heartbeat.mutex);
    self->links->heartbeat.ranks_each = each;
    pthread_mutex_unlock(&self->links->heartbeat.mutex);
}

void process_group_abort(ProcessGroup *self, const char *text) {
    if (self->links && self->links->is_started) heartbeat_abort(&self->links->heartbeat, text);
}

void process_group_abort_for(ProcessGroup *self, const AmError *error) {
    Text text = {0};
    if (error->source[0]) text_append(&text, "%s:", error->source);
    if (error->line > 0) text_append(&text, "%lld:%lld:", (long long)error->line, (long long)error->column);
    text_append(&text, "%s%s", error->source[0] ? " " : "", error->text);
    process_group_abort(self, text.data ? text.data : error->text);
    text_free(&text);
}

AmStatus process_group_check(ProcessGroup *self, AmError *error) {
    return self->links ? heartbeat_check(&self->links->heartbeat, error) : AM_OK;
}

AmStatus process_group_explain(ProcessGroup *self, AmError *error) {
    if (!self->links) return AM_OK;
    return heartbeat_explain(&self->links->heartbeat, NULL, explanation_seconds, error);
}

void process_group_on_failure(ProcessGroup *self, void (*on_failure)(void *user), void *user) {
    if (self->links) heartbeat_on_failure(&self->links->heartbeat, on_failure, user);
}
