/* The processes of a run, each connected to process 0: joining, and collective operations on small data.
 *
 * A message on a data connection is a header (magic, kind, number of the
 * operation, length) and its bytes. Process 0 receives from and sends to the
 * others in their order, which keeps results and failures independent of timing.
 * A header that is not the expected one means that the processes are not at the
 * same operation, which is a failure like any other.
 */
#include "executor/processes/world.h"

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

typedef struct WorldLinks {
    Heartbeat heartbeat;
    HeartbeatPeer *peers; /* process 0: the others in order; elsewhere process 0 alone */
    int32_t peer_count;
    uint64_t operation;      /* how many there have been */
    HandshakeJoined *joined; /* while they come together */
    bool is_started;         /* heartbeat is */
} WorldLinks;

/* ---- coming together ---- */

static void add_joined(void *user, int32_t process) {
    WorldLinks *links = user;
    HandshakeJoined *joined = &links->joined[process];
    heartbeat_add(&links->heartbeat, &links->peers[process - 1], joined->connections[HANDSHAKE_CONTROL],
                  joined->connections[HANDSHAKE_DATA], joined->host);
}

static AmStatus check_links(void *user, AmError *error) {
    WorldLinks *links = user;
    return heartbeat_check(&links->heartbeat, error);
}

static AmStatus serve(WorldLinks *links, const WorldPlace *place, int listener, double seconds,
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

static AmStatus join(WorldLinks *links, const WorldPlace *place, double seconds, AmError *error) {
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

/* Why a message could not pass: the failure that is known by now, or that the connection ended. */
static AmStatus fail_message(World *world, const HeartbeatPeer *peer, AmError *error) {
    char text[64];
    TRY(heartbeat_explain(&world->links->heartbeat, peer, reason_seconds, error));
    snprintf(text, sizeof text, "process %d has left the run", (int)peer->process);
    world_abort(world, text);
    return am_fail(error, AM_ERROR_RUNTIME, "", "%s", text);
}

static AmStatus send_message(World *world, const HeartbeatPeer *peer, uint32_t kind, const void *bytes,
                             int64_t count, AmError *error) {
    Message message = {
        .magic = MESSAGE_MAGIC, .kind = kind, .operation = world->links->operation, .bytes = count};
    if (!socket_send(peer->data, &message, sizeof message, INFINITY) ||
        !socket_send(peer->data, bytes, (size_t)count, INFINITY))
        return fail_message(world, peer, error);
    return AM_OK;
}

/* The header of a message of `kind` with at most `most` bytes, which are to be read next. */
static AmStatus receive_header(World *world, const HeartbeatPeer *peer, uint32_t kind, int64_t most,
                               double deadline, int64_t *bytes, AmError *error) {
    Message message;
    char text[160];
    if (!socket_receive(peer->data, &message, sizeof message, deadline))
        return fail_message(world, peer, error);
    *bytes = message.bytes;
    if (message.magic == MESSAGE_MAGIC && message.kind == kind &&
        message.operation == world->links->operation && message.bytes >= 0 && message.bytes <= most)
        return AM_OK;
    snprintf(text, sizeof text, "process %d is at another operation (%llu) than process %d (%llu)",
             (int)peer->process, (unsigned long long)message.operation, (int)world->process,
             (unsigned long long)world->links->operation);
    world_abort(world, text);
    return am_fail(error, AM_ERROR_RUNTIME, "", "%s", text);
}

static AmStatus receive_bytes(World *world, const HeartbeatPeer *peer, void *bytes, int64_t count,
                              AmError *error) {
    if (socket_receive(peer->data, bytes, (size_t)count, INFINITY)) return AM_OK;
    return fail_message(world, peer, error);
}

/* Process 0 notifies the others that all have joined; from then on silence is failure. */
static AmStatus begin(World *world, double seconds, AmError *error) {
    WorldLinks *links = world->links;
    int64_t none;
    if (world->process == 0) {
        for (int32_t k = 0; k < links->peer_count; k++)
            TRY(send_message(world, &links->peers[k], MESSAGE_READY, NULL, 0, error));
    } else {
        TRY(receive_header(world, &links->peers[0], MESSAGE_READY, 0, clock_seconds() + seconds, &none,
                           error));
    }
    heartbeat_complete(&links->heartbeat);
    return AM_OK;
}

static AmStatus connect_all(World *world, WorldPlace *place, const WorldOptions *options, AmError *error) {
    double seconds = options && options->join_seconds > 0 ? options->join_seconds : default_join_seconds;
    double silence =
        options && options->silence_seconds > 0 ? options->silence_seconds : default_silence_seconds;
    WorldLinks *links = world->links;
    int listener = -1;
    bool shared = place->share != NULL;
    AmStatus status = AM_OK;
    if (world->process == 0) status = socket_listen(&listener, place->host, &place->port, error);
    if (status != AM_OK) place->port = 0;
    if (shared) {
        AmStatus shared_status = place->share(place, error);
        if (status == AM_OK) status = shared_status;
    }
    if (status == AM_OK && place->port == 0)
        status = am_fail(error, AM_ERROR_RUNTIME, "", "process 0 could not begin to listen");
    if (status == AM_OK)
        status = heartbeat_start(&links->heartbeat, world->process, links->peers, links->peer_count, silence,
                                 error);
    links->is_started = status == AM_OK;
    if (status == AM_OK)
        status = world->process == 0 ? serve(links, place, listener, seconds, error)
                                     : join(links, place, seconds, error);
    if (listener >= 0) close(listener);
    /* Process 0 began without a joining process before: it may wait as long again. */
    return status == AM_OK ? begin(world, seconds + reason_seconds, error) : status;
}

static AmStatus make_links(World *world, AmError *error) {
    WorldLinks *links = calloc(1, sizeof *links);
    world->links = links;
    if (!links) return am_fail_memory(error, (int64_t)sizeof *links);
    links->peer_count = world->process == 0 ? world->count - 1 : 1;
    links->peers = calloc((size_t)links->peer_count, sizeof *links->peers);
    if (!links->peers) return am_fail_memory(error, (int64_t)sizeof *links->peers * links->peer_count);
    for (int32_t k = 0; k < links->peer_count; k++)
        links->peers[k] =
            (HeartbeatPeer){.process = world->process == 0 ? k + 1 : 0, .control = -1, .data = -1};
    return AM_OK;
}

AmStatus world_open(World **world, const WorldOptions *options, AmError *error) {
    WorldPlace place;
    AmError own = {0};
    *world = NULL;
    if (options && options->place) place = *options->place;
    else TRY(bootstrap_read(&place, error));
    World *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (World){.process = place.process,
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
        *world = self;
        return AM_OK;
    }
    world_abort(self, own.text);
    world_close(self);
    return am_fail(error, status, "", "%s", own.text);
}

void world_close(World *world) {
    if (!world) return;
    if (world->links) {
        if (world->links->is_started) heartbeat_stop(&world->links->heartbeat);
        free(world->links->peers);
        free(world->links);
    }
    free(world);
}

/* ---- operations ---- */

AmStatus world_broadcast(World *world, void *bytes, int64_t count, AmError *error) {
    WorldLinks *links = world->links;
    int64_t got;
    if (!links) return AM_OK;
    links->operation++;
    if (world->process == 0) {
        for (int32_t k = 0; k < links->peer_count; k++)
            TRY(send_message(world, &links->peers[k], MESSAGE_BROADCAST, bytes, count, error));
        return AM_OK;
    }
    TRY(receive_header(world, &links->peers[0], MESSAGE_BROADCAST, count, INFINITY, &got, error));
    if (got == count) return receive_bytes(world, &links->peers[0], bytes, count, error);
    world_abort(world, "a broadcast of two sizes");
    return am_fail(error, AM_ERROR_INTERNAL, "", "process 0 broadcasts %lld bytes, process %d expects %lld",
                   (long long)got, (int)world->process, (long long)count);
}

static AmStatus receive_part(World *world, const HeartbeatPeer *peer, int64_t most, WorldPart *part,
                             AmError *error) {
    TRY(receive_header(world, peer, MESSAGE_GATHER, most, INFINITY, &part->count, error));
    if (part->count == 0) return AM_OK;
    part->bytes = malloc((size_t)part->count);
    if (part->bytes) return receive_bytes(world, peer, part->bytes, part->count, error);
    world_abort(world, "out of memory");
    return am_fail_memory(error, part->count);
}

void world_release_parts(const World *world, WorldPart *parts) {
    for (int32_t p = 0; p < world->count; p++) {
        free(parts[p].bytes);
        parts[p] = (WorldPart){NULL, 0};
    }
}

AmStatus world_gather(World *world, const void *bytes, int64_t count, int64_t most, WorldPart *parts,
                      AmError *error) {
    WorldLinks *links = world->links;
    if (links) links->operation++;
    if (world->process != 0)
        return send_message(world, &links->peers[0], MESSAGE_GATHER, bytes, count, error);
    memset(parts, 0, sizeof *parts * (size_t)world->count);
    AmStatus status = AM_OK;
    if (count > 0) {
        parts[0] = (WorldPart){malloc((size_t)count), count};
        if (parts[0].bytes) memcpy(parts[0].bytes, bytes, (size_t)count);
        else status = am_fail_memory(error, count);
    }
    for (int32_t k = 0; links && k < links->peer_count && status == AM_OK; k++)
        status = receive_part(world, &links->peers[k], most, &parts[k + 1], error);
    if (status != AM_OK) world_release_parts(world, parts);
    return status;
}

AmStatus world_barrier(World *world, AmError *error) {
    WorldPart *parts = NULL;
    if (!world->links) return AM_OK;
    if (world->process == 0) {
        parts = calloc((size_t)world->count, sizeof *parts);
        if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * world->count);
    }
    AmStatus status = world_gather(world, NULL, 0, 0, parts, error);
    free(parts);
    return status == AM_OK ? world_broadcast(world, NULL, 0, error) : status;
}

/* All values of this process, one after the other, each ended by a zero byte. */
static AmStatus list_facts(Text *text, const WorldFact *facts, int32_t count, AmError *error) {
    for (int32_t k = 0; k < count; k++) text_append_bytes(text, facts[k].value, strlen(facts[k].value) + 1);
    if (text->failed || text->length > MOST_FACT_BYTES) return am_fail_memory(error, (int64_t)text->length);
    return AM_OK;
}

/* Compares a process's values with those of process 0: a line about a difference, else an empty
 * one. */
static void compare_facts(char verdict[MOST_VERDICT], const WorldPart *part, int32_t process,
                          const WorldFact *facts, int32_t count) {
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

AmStatus world_agree(World *world, const WorldFact *facts, int32_t count, AmError *error) {
    char verdict[MOST_VERDICT] = "";
    Text text = {0};
    if (!world->links) return AM_OK;
    WorldPart *parts = calloc((size_t)world->count, sizeof *parts);
    AmStatus status = parts ? list_facts(&text, facts, count, error) : am_fail_memory(error, world->count);
    if (status == AM_OK)
        status = world_gather(world, text.data, (int64_t)text.length, MOST_FACT_BYTES, parts, error);
    if (status == AM_OK && world->process == 0) {
        for (int32_t p = 1; p < world->count; p++) compare_facts(verdict, &parts[p], p, facts, count);
        world_release_parts(world, parts);
    }
    free(parts);
    text_free(&text);
    TRY(status);
    TRY(world_broadcast(world, verdict, sizeof verdict, error));
    verdict[MOST_VERDICT - 1] = '\0';
    if (!*verdict) return AM_OK;
    /* A process that leaves first must not disconnect the others before they have the reason. */
    world_barrier(world, NULL);
    return am_fail(error, AM_ERROR_INPUT, "", "%s", verdict);
}

void world_name_ranks(World *world, int32_t each) {
    if (!world->links) return;
    pthread_mutex_lock(&world->links->heartbeat.mutex);
    world->links->heartbeat.ranks_each = each;
    pthread_mutex_unlock(&world->links->heartbeat.mutex);
}

void world_abort(World *world, const char *text) {
    if (world->links && world->links->is_started) heartbeat_abort(&world->links->heartbeat, text);
}

void world_abort_for(World *world, const AmError *error) {
    Text text = {0};
    if (error->source[0]) text_append(&text, "%s:", error->source);
    if (error->line > 0) text_append(&text, "%lld:%lld:", (long long)error->line, (long long)error->column);
    text_append(&text, "%s%s", error->source[0] ? " " : "", error->text);
    world_abort(world, text.data ? text.data : error->text);
    text_free(&text);
}

AmStatus world_check(World *world, AmError *error) {
    return world->links ? heartbeat_check(&world->links->heartbeat, error) : AM_OK;
}

AmStatus world_explain(World *world, AmError *error) {
    if (!world->links) return AM_OK;
    return heartbeat_explain(&world->links->heartbeat, NULL, explanation_seconds, error);
}

void world_on_failure(World *world, void (*on_failure)(void *user), void *user) {
    if (world->links) heartbeat_on_failure(&world->links->heartbeat, on_failure, user);
}
