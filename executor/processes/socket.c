/* TCP connections with time limits, for the processes of one run (executor/processes/process_group.h).
 * Sockets are non-blocking, and poll() waits. */
#define _GNU_SOURCE /* accept4 */
#include "executor/processes/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/system/clock.h"

enum { ATTEMPT_SECONDS = 3, FIRST_PAUSE_MILLISECONDS = 20, MOST_PAUSE_MILLISECONDS = 500 };

/* Makes the socket send small messages at once, since every operation waits for its answer. */
static void make_ready(int connection) {
    int yes = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* Returns the addresses of a host and port, to be freed by freeaddrinfo(), or NULL. */
static struct addrinfo *resolve_host(const char *host, uint16_t port, int flags, int *code) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    *code = getaddrinfo(host && *host ? host : NULL, service, &hints, &found);
    return *code == 0 ? found : NULL;
}

/* Returns a listener on one address, or -1 with errno. */
static int listen_at(const struct addrinfo *address) {
    int yes = 1, no = 0;
    int listener = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0) return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address->ai_family == AF_INET6) setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (bind(listener, address->ai_addr, address->ai_addrlen) == 0 && listen(listener, SOMAXCONN) == 0)
        return listener;
    int reason = errno;
    close(listener);
    errno = reason;
    return -1;
}

static uint16_t port_of(int listener) {
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    if (getsockname(listener, (struct sockaddr *)&address, &length) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

AmStatus socket_listen(int *listener, const char *host, uint16_t *port, AmError *error) {
    const char *const hosts[] = {host, ""};
    *listener = -1;
    for (int k = 0; k < 2 && *listener < 0; k++) {
        int code;
        struct addrinfo *addresses = resolve_host(hosts[k], *port, AI_PASSIVE, &code);
        if (!addresses) continue;
        *listener = -1;
        for (const struct addrinfo *a = addresses; a && *listener < 0; a = a->ai_next)
            *listener = listen_at(a);
        int reason = errno;
        freeaddrinfo(addresses);
        if (*listener < 0 && reason != EADDRNOTAVAIL)
            return am_fail(error, AM_ERROR_RUNTIME, "", "cannot listen on %.200s port %u: %s",
                           *host ? host : "every interface,", (unsigned)*port, strerror(reason));
    }
    if (*listener < 0)
        return am_fail(error, AM_ERROR_RUNTIME, "", "cannot listen on port %u: no network address",
                       (unsigned)*port);
    *port = port_of(*listener);
    return AM_OK;
}

int socket_accept(int listener) {
    int connection = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection >= 0) make_ready(connection);
    return connection;
}

int socket_poll_milliseconds(double deadline, int most) {
    double left = deadline - clock_seconds();
    if (most < 0 && isinf(left)) return -1;
    if (left <= 0) return 0;
    double milliseconds = left * 1e3 + 1;
    double limit = most < 0 ? 1e9 : most;
    return (int)(milliseconds < limit ? milliseconds : limit);
}

/* Waits for `events`; false at the deadline. */
static bool wait_for(int connection, short events, double deadline) {
    for (;;) {
        struct pollfd polled = {.fd = connection, .events = events};
        int ready = poll(&polled, 1, socket_poll_milliseconds(deadline, -1));
        if (ready > 0) return true;
        if (ready == 0 && clock_seconds() >= deadline) return false;
        if (ready < 0 && errno != EINTR) return false;
    }
}

/* Returns whether a connection is connected to itself, which can happen at a port of the ephemeral
 * range without a listener. */
static bool is_connected_to_itself(int connection) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_length = sizeof here, there_length = sizeof there;
    return getsockname(connection, (struct sockaddr *)&here, &here_length) == 0 &&
           getpeername(connection, (struct sockaddr *)&there, &there_length) == 0 &&
           here_length == there_length && memcmp(&here, &there, here_length) == 0;
}

/* Attempts one address once: returns the connection, or -1 with *reason. */
static int connect_to(const struct addrinfo *address, double deadline, int *reason) {
    int connection = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *reason = errno;
    if (connection < 0) return -1;
    *reason = 0;
    if (connect(connection, address->ai_addr, address->ai_addrlen) != 0) *reason = errno;
    if (*reason == EINPROGRESS) {
        socklen_t length = sizeof *reason;
        if (!wait_for(connection, POLLOUT, deadline)) *reason = ETIMEDOUT;
        else getsockopt(connection, SOL_SOCKET, SO_ERROR, reason, &length);
    }
    if (*reason == 0 && is_connected_to_itself(connection)) *reason = ECONNREFUSED;
    if (*reason == 0) {
        make_ready(connection);
        return connection;
    }
    close(connection);
    return -1;
}

AmStatus socket_connect(int *connection, const char *host, uint16_t port, double deadline, AmError *error) {
    const char *reason = "the time is up";
    int pause = FIRST_PAUSE_MILLISECONDS;
    *connection = -1;
    for (;;) {
        int code;
        double attempt = fmin(deadline, clock_seconds() + ATTEMPT_SECONDS);
        struct addrinfo *addresses = resolve_host(host, port, 0, &code);
        if (!addresses) reason = gai_strerror(code);
        for (const struct addrinfo *a = addresses; a && *connection < 0; a = a->ai_next) {
            *connection = connect_to(a, attempt, &code);
            if (*connection < 0) reason = strerror(code);
        }
        if (addresses) freeaddrinfo(addresses);
        if (*connection >= 0) return AM_OK;
        if (clock_seconds() >= deadline)
            return am_fail(error, AM_ERROR_RUNTIME, "", "cannot connect to %.200s port %u: %s", host,
                           (unsigned)port, reason);
        int limited = socket_poll_milliseconds(deadline, pause);
        struct timespec time = {limited / 1000, (long)(limited % 1000) * 1000000};
        nanosleep(&time, NULL);
        pause = pause * 2 < MOST_PAUSE_MILLISECONDS ? pause * 2 : MOST_PAUSE_MILLISECONDS;
    }
}

bool socket_send(int connection, const void *bytes, size_t count, double deadline) {
    const char *at = bytes;
    while (count > 0) {
        ssize_t sent = send(connection, at, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            count -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (!wait_for(connection, POLLOUT, deadline)) return false;
    }
    return true;
}

bool socket_receive(int connection, void *bytes, size_t count, double deadline) {
    char *at = bytes;
    while (count > 0) {
        ssize_t got = recv(connection, at, count, MSG_DONTWAIT);
        if (got == 0) return false;
        if (got > 0) {
            at += got;
            count -= (size_t)got;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (!wait_for(connection, POLLIN, deadline)) return false;
    }
    return true;
}
