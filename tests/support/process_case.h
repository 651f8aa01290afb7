/* Processes for a test: forked, each with its place in a process group, and how they ended. */
#ifndef TESTS_SUPPORT_PROCESS_CASE_H
#define TESTS_SUPPORT_PROCESS_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/clock.h"
#include "executor/processes/process_group.h"
#include "executor/processes/socket.h"

enum { MOST = 6, TEXT = 1024 };

#ifdef __SANITIZE_THREAD__
/* A race in a child must show in how it ends. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "halt_on_error=1";
}
#endif

/* One process of a test: its number, its function, and its end. */
typedef struct Child {
    ProcessPlace place;
    double delay, join_seconds, silence_seconds;
    AmStatus (*work)(ProcessGroup *processes, AmError *error);
    pid_t pid;
    int output; /* the line it ended with */
    int status; /* of exit(); -1: killed */
    double seconds;
    char text[TEXT];
} Child;

static inline uint16_t free_port(void) {
    uint16_t port = 0;
    int listener;
    assert_int_equal(socket_listen(&listener, "127.0.0.1", &port, NULL), AM_OK);
    close(listener);
    return port;
}

static inline void make_children(Child *children, int count, AmStatus (*work)(ProcessGroup *, AmError *)) {
    uint16_t port = free_port();
    memset(children, 0, sizeof *children * (size_t)count);
    for (int p = 0; p < count; p++) {
        children[p] = (Child){.place = {.launcher = "test",
                                        .process = p,
                                        .count = count,
                                        .local_process = p,
                                        .local_count = count,
                                        .host = "127.0.0.1",
                                        .port = port,
                                        .secret = "secret of the test"},
                              .join_seconds = 10,
                              .silence_seconds = 10,
                              .work = work};
    }
}

/* In the child: everything, up to its end. */
static inline void live(const Child *child, int output) {
    ProcessGroupOptions options = {.place = &child->place,
                                   .join_seconds = child->join_seconds,
                                   .silence_seconds = child->silence_seconds};
    ProcessGroup *processes;
    AmError error = {0};
    const int crashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
    for (size_t k = 0; k < sizeof crashes / sizeof *crashes; k++)
        signal(crashes[k], SIG_DFL); /* not cmocka's */
    usleep((useconds_t)(child->delay * 1e6));
    AmStatus status = process_group_open(&processes, &options, &error);
    if (status == AM_OK) {
        status = child->work(processes, &error);
        if (status != AM_OK) process_group_abort(processes, error.text);
        process_group_close(processes);
    }
    if (write(output, error.text, strlen(error.text)) < 0) _exit(99);
    _exit(status);
}

static inline void start(Child *children, int count) {
    for (int p = 0; p < count; p++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        children[p].pid = fork();
        assert_true(children[p].pid >= 0);
        if (children[p].pid == 0) live(&children[p], ends[1]);
        close(ends[1]);
        children[p].output = ends[0];
    }
}

static inline void finish(Child *children, int count) {
    double begin = clock_seconds();
    for (int p = 0; p < count; p++) {
        Child *child = &children[p];
        int status;
        size_t length = 0;
        ssize_t got;
        while ((got = read(child->output, child->text + length, TEXT - 1 - length)) > 0)
            length += (size_t)got;
        close(child->output);
        assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
        child->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        child->seconds = clock_seconds() - begin;
    }
}

static inline void expect(const Child *child, int status, const char *text) {
    if (child->status != status || !strstr(child->text, text))
        fail_msg("process %d ended with %d '%s', expected %d '%s'", child->place.process, child->status,
                 child->text, status, text);
}

#endif
