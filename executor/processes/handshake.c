/* The handshake of a run's processes: process 0 listens and answers each connection with a challenge, the
 * others join. */
#include "executor/processes/handshake.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/system/clock.h"
#include "base/text.h"
#include "executor/processes/socket.h"

enum { VERSION = 1, NONCE = 32, PROOF = 64, REFUSAL = 256, MOST_PENDING = 128 };

/* Timeouts: of a handshake at process 0, and of process 0's answer at the other processes. */
static const double handshake_seconds = 5, answer_seconds = 15;
/* The time for which a failed process 0 still accepts connections, to report the reason. */
static const double reason_seconds = 1;
static const char magic[8] = "automap";

typedef struct Challenge {
    char magic[8];
    uint32_t version, unused;
    unsigned char nonce[NONCE];
} Challenge;

typedef struct Hello {
    char magic[8];
    uint32_t version, channel;
    int32_t process, count;
    unsigned char nonce[NONCE];
    char host[HEARTBEAT_HOST];
    char proof[PROOF];
} Hello;

typedef struct Welcome {
    char magic[8];
    uint32_t is_refused, unused;
    char proof[PROOF];
    char refusal[REFUSAL]; /* why */
} Welcome;

/* Computes the proof of a process that has the secret and both random numbers; `side` distinguishes
 * the two directions. */
static void prove(char proof[PROOF], const char *side, const ProcessPlace *place, const Challenge *challenge,
                  const Hello *hello) {
    char hex[PROOF + 1];
    Sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, place->secret, sizeof place->secret);
    sha256_add(&hash, side, strlen(side) + 1);
    sha256_add(&hash, challenge, sizeof *challenge);
    sha256_add(&hash, hello, offsetof(Hello, proof));
    sha256_end(&hash, hex);
    memcpy(proof, hex, PROOF);
}

static AmStatus draw_nonce(unsigned char nonce[NONCE], AmError *error) {
    if (getentropy(nonce, NONCE) == 0) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "no random numbers: %s", strerror(errno));
}

static bool is_ours(const char bytes[8]) {
    return memcmp(bytes, magic, sizeof magic) == 0;
}

/* ---- other processes ---- */

/* Runs one handshake on a new connection. AM_OK with *again: the connection ended before an answer. */
static AmStatus try_handshake(int connection, const ProcessPlace *place, HandshakeChannel channel,
                              double deadline, bool *again, AmError *error) {
    Challenge challenge;
    Hello hello = {.version = VERSION, .channel = channel, .process = place->process, .count = place->count};
    Welcome welcome;
    char proof[PROOF], refusal[REFUSAL];
    *again = true;
    if (!socket_receive(connection, &challenge, sizeof challenge, deadline)) return AM_OK;
    if (!is_ours(challenge.magic))
        return am_fail(
            error, AM_ERROR_RUNTIME, "",
            "the listener on %s port %u is no process of automap: does another program use the port?",
            place->host, (unsigned)place->port);
    if (challenge.version != VERSION)
        return am_fail(
            error, AM_ERROR_RUNTIME, "",
            "process 0 has version %u of the protocol between processes, process %d has version %d "
            "(expected the same automap everywhere)",
            (unsigned)challenge.version, (int)place->process, VERSION);
    memcpy(hello.magic, magic, sizeof magic);
    if (gethostname(hello.host, sizeof hello.host - 1) != 0) hello.host[0] = '\0';
    TRY(draw_nonce(hello.nonce, error));
    prove(hello.proof, "join", place, &challenge, &hello);
    if (!socket_send(connection, &hello, sizeof hello, deadline)) return AM_OK;
    if (!socket_receive(connection, &welcome, sizeof welcome, deadline)) return AM_OK;
    *again = false;
    heartbeat_copy_text(refusal, sizeof refusal, welcome.refusal, sizeof welcome.refusal);
    if (!is_ours(welcome.magic) || welcome.is_refused)
        return am_fail(error, AM_ERROR_RUNTIME, "", "process 0 on %s port %u refused process %d: %s",
                       place->host, (unsigned)place->port, (int)place->process,
                       is_ours(welcome.magic) ? refusal : "an invalid answer");
    prove(proof, "welcome", place, &challenge, &hello);
    if (memcmp(proof, welcome.proof, PROOF) != 0)
        return am_fail(error, AM_ERROR_RUNTIME, "", "the listener on %s port %u is process 0 of another run",
                       place->host, (unsigned)place->port);
    return AM_OK;
}

AmStatus handshake_join(int *connection, const ProcessPlace *place, HandshakeChannel channel, double deadline,
                        AmError *error) {
    for (;;) {
        bool again;
        TRY(socket_connect(connection, place->host, place->port, deadline, error));
        double answer = fmin(deadline, clock_seconds() + answer_seconds);
        AmStatus status = try_handshake(*connection, place, channel, answer, &again, error);
        if (status == AM_OK && !again) return AM_OK;
        close(*connection);
        *connection = -1;
        TRY(status);
        if (clock_seconds() >= deadline)
            return am_fail(error, AM_ERROR_RUNTIME, "",
                           "the listener on %s port %u did not answer as process 0 does", place->host,
                           (unsigned)place->port);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

/* ---- process 0 ---- */

/* A connection whose handshake is not complete. */
typedef struct PendingHandshake {
    int connection;
    double deadline;
    Challenge challenge;
    Hello hello;
    size_t received; /* bytes of hello */
} PendingHandshake;

typedef struct PendingHandshakes {
    PendingHandshake list[MOST_PENDING]; /* oldest first */
    int32_t count;
} PendingHandshakes;

static void remove_pending(PendingHandshakes *pending, int32_t k, bool closes) {
    if (closes) close(pending->list[k].connection);
    pending->count--;
    memmove(&pending->list[k], &pending->list[k + 1],
            sizeof(PendingHandshake) * (size_t)(pending->count - k));
}

/* Accepts the waiting connections. Beyond MOST_PENDING, closes the oldest pending one. */
static AmStatus accept_connections(PendingHandshakes *pending, int listener, AmError *error) {
    int connection;
    while ((connection = socket_accept(listener)) >= 0) {
        if (pending->count == MOST_PENDING) remove_pending(pending, 0, true);
        PendingHandshake *handshake = &pending->list[pending->count++];
        *handshake = (PendingHandshake){.connection = connection,
                                        .deadline = clock_seconds() + handshake_seconds,
                                        .challenge = {.version = VERSION}};
        memcpy(handshake->challenge.magic, magic, sizeof magic);
        TRY(draw_nonce(handshake->challenge.nonce, error));
        socket_send(connection, &handshake->challenge, sizeof handshake->challenge, 0);
    }
    return AM_OK;
}

__attribute__((format(printf, 3, 4))) static void
answer_handshake(const PendingHandshake *handshake, const ProcessPlace *place, const char *refusal, ...) {
    Welcome welcome = {.is_refused = refusal != NULL};
    memcpy(welcome.magic, magic, sizeof magic);
    if (refusal) {
        va_list arguments;
        va_start(arguments, refusal);
        vsnprintf(welcome.refusal, sizeof welcome.refusal, refusal, arguments);
        va_end(arguments);
    } else {
        prove(welcome.proof, "welcome", place, &handshake->challenge, &handshake->hello);
    }
    socket_send(handshake->connection, &welcome, sizeof welcome, 0);
}

/* Checks a complete hello and answers it. *stays: the connection is that of a process that has joined. An
 * error ends the run: a process with the secret was started with other settings than process 0. */
static AmStatus check_peer(HandshakeServer *server, const PendingHandshake *handshake, bool *stays,
                           AmError *error) {
    const ProcessPlace *place = server->place;
    const Hello *hello = &handshake->hello;
    char proof[PROOF], host[HEARTBEAT_HOST];
    *stays = false;
    if (!is_ours(hello->magic)) return AM_OK;
    if (hello->version != VERSION) {
        answer_handshake(handshake, place, "it has version %u of the protocol, process 0 has version %d",
                         (unsigned)hello->version, VERSION);
        return AM_OK;
    }
    prove(proof, "join", place, &handshake->challenge, hello);
    if (memcmp(proof, hello->proof, PROOF) != 0) {
        server->wrong_secrets++;
        answer_handshake(handshake, place, "it is of another run (another job or another AUTOMAP_SECRET)");
        return AM_OK;
    }
    if (server->ended) {
        server->refused++;
        answer_handshake(handshake, place, "process 0 has failed: %s", server->ended);
        return AM_OK;
    }
    heartbeat_copy_text(host, sizeof host, hello->host, sizeof hello->host);
    server->refused++; /* unless it passes */
    if (hello->count != place->count) {
        answer_handshake(handshake, place, "it was started as one of %d processes, process 0 as one of %d",
                         (int)hello->count, (int)place->count);
        return am_fail(error, AM_ERROR_RUNTIME, "",
                       "process %d on %s was started as one of %d processes, process 0 as one of %d",
                       (int)hello->process, host, (int)hello->count, (int)place->count);
    }
    if (hello->process < 1 || hello->process >= place->count || hello->channel >= HANDSHAKE_CHANNELS) {
        answer_handshake(handshake, place, "there is no process %d of %d", (int)hello->process,
                         (int)place->count);
        return am_fail(error, AM_ERROR_RUNTIME, "", "%s says that it is process %d of %d", host,
                       (int)hello->process, (int)place->count);
    }
    HandshakeJoined *joined = &server->joined[hello->process];
    if (joined->connections[hello->channel] >= 0) {
        answer_handshake(handshake, place, "there is a process %d already", (int)hello->process);
        return am_fail(error, AM_ERROR_RUNTIME, "",
                       "two processes, on %s and %s, say that they are process %d", joined->host, host,
                       (int)hello->process);
    }
    server->refused--;
    answer_handshake(handshake, place, NULL);
    memcpy(joined->host, host, sizeof joined->host);
    joined->connections[hello->channel] = handshake->connection;
    *stays = true;
    return AM_OK;
}

static bool has_joined(const HandshakeJoined *joined) {
    return joined->connections[HANDSHAKE_CONTROL] >= 0 && joined->connections[HANDSHAKE_DATA] >= 0;
}

/* Reads the hellos of pending handshakes. Closes connections that have ended or whose timeout has passed. */
static AmStatus read_hellos(HandshakeServer *server, PendingHandshakes *pending, AmError *error) {
    for (int32_t k = 0; k < pending->count;) {
        PendingHandshake *handshake = &pending->list[k];
        ssize_t got = recv(handshake->connection, (char *)&handshake->hello + handshake->received,
                           sizeof handshake->hello - handshake->received, MSG_DONTWAIT);
        bool waits = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (got > 0) handshake->received += (size_t)got;
        if (got > 0 && handshake->received == sizeof handshake->hello) {
            bool stays;
            int32_t process = handshake->hello.process;
            TRY(check_peer(server, handshake, &stays, error));
            remove_pending(pending, k, !stays);
            if (stays && has_joined(&server->joined[process])) server->on_joined(server->user, process);
        } else if ((got <= 0 && !waits) || clock_seconds() >= handshake->deadline) {
            remove_pending(pending, k, true);
        } else {
            k++;
        }
    }
    return AM_OK;
}

static int32_t count_missing(const HandshakeServer *server) {
    int32_t missing = 0;
    for (int32_t p = 1; p < server->place->count; p++) missing += !has_joined(&server->joined[p]);
    return missing;
}

static AmStatus fail_missing(const HandshakeServer *server, AmError *error) {
    enum { MOST_NAMES = 8 };
    Text names = {0}, wrong_secrets = {0};
    int32_t missing = count_missing(server), named = 0;
    for (int32_t p = 1; p < server->place->count && named < MOST_NAMES; p++)
        if (!has_joined(&server->joined[p])) text_append(&names, named++ ? ", %d" : "%d", (int)p);
    if (missing > named) text_append(&names, " and %d more", (int)(missing - named));
    if (server->wrong_secrets > 0)
        text_append(&wrong_secrets, "; connections refused for another job or another AUTOMAP_SECRET: %d",
                    (int)server->wrong_secrets);
    AmStatus status =
        am_fail(error, AM_ERROR_RUNTIME, "", "process%s %s of %d did not join on port %u within %.3g s%s",
                missing > 1 ? "es" : "", names.data ? names.data : "", (int)server->place->count,
                (unsigned)server->place->port, server->seconds, wrong_secrets.data ? wrong_secrets.data : "");
    text_free(&names);
    text_free(&wrong_secrets);
    return status;
}

static void wait_for_input(const HandshakeServer *server, const PendingHandshakes *pending) {
    enum { MOST_MILLISECONDS = 100 }; /* between checks */
    struct pollfd polled[MOST_PENDING + 1] = {{.fd = server->listener, .events = POLLIN}};
    for (int32_t k = 0; k < pending->count; k++)
        polled[k + 1] = (struct pollfd){.fd = pending->list[k].connection, .events = POLLIN};
    poll(polled, (nfds_t)pending->count + 1, socket_poll_milliseconds(server->deadline, MOST_MILLISECONDS));
}

/* Sends the reason for the end of the run to pending connections and to new ones, for reason_seconds or
 * until all missing processes have it. */
static void send_reason(HandshakeServer *server, PendingHandshakes *pending, const char *reason) {
    server->ended = reason;
    server->deadline = clock_seconds() + reason_seconds;
    for (int32_t missing = count_missing(server);
         server->refused < missing && clock_seconds() < server->deadline;) {
        wait_for_input(server, pending);
        if (accept_connections(pending, server->listener, NULL) != AM_OK) return;
        read_hellos(server, pending, NULL);
    }
}

AmStatus handshake_serve(HandshakeServer *server, AmError *error) {
    PendingHandshakes pending = {.count = 0};
    AmError own = {0};
    AmStatus status = AM_OK;
    while (status == AM_OK && count_missing(server) > 0) {
        wait_for_input(server, &pending);
        status = accept_connections(&pending, server->listener, &own);
        if (status == AM_OK) status = read_hellos(server, &pending, &own);
        if (status == AM_OK) status = server->check(server->user, &own);
        if (status == AM_OK && clock_seconds() >= server->deadline && count_missing(server) > 0)
            status = fail_missing(server, &own);
    }
    if (status != AM_OK && clock_seconds() < server->deadline) send_reason(server, &pending, own.text);
    for (int32_t k = 0; k < pending.count; k++) close(pending.list[k].connection);
    return status == AM_OK ? AM_OK : am_fail(error, status, "", "%s", own.text);
}
