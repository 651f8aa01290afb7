/* Processes of one run on this machine: forked, joined over loopback. Their messages, refusals, and
 * the end of all when one fails or dies. */
/* labels: threads */
/* cost: 8 seconds */
#include "tests/support/process_case.h"

#include <stdatomic.h>

static AmStatus talk(ProcessGroup *processes, AmError *error) {
    ProcessPart parts[MOST];
    char blob[128];
    for (int round = 0; round < 3; round++) {
        memset(blob, processes->process == 0 ? 'a' + round : '?', sizeof blob);
        TRY(process_group_broadcast(processes, blob, sizeof blob, error));
        for (size_t k = 0; k < sizeof blob; k++)
            if (blob[k] != 'a' + round) return am_fail(error, AM_ERROR_INTERNAL, "", "another blob");
        TRY(process_group_barrier(processes, error));
        /* Process p gives p megabytes of its number; process 0 nothing. */
        int64_t count = (int64_t)processes->process << 20;
        char *bytes = malloc((size_t)count + 1);
        memset(bytes, processes->process, (size_t)count);
        AmStatus status = process_group_gather(processes, bytes, count, MOST << 20, parts, error);
        free(bytes);
        TRY(status);
        for (int32_t p = 0; p < processes->count && processes->process == 0; p++) {
            const char *part = parts[p].bytes;
            if (parts[p].count != (int64_t)p << 20 ||
                (p > 0 && (part[0] != p || part[parts[p].count - 1] != p)))
                return am_fail(error, AM_ERROR_INTERNAL, "", "another part %d", (int)p);
        }
        if (processes->process == 0) process_group_release_parts(processes, parts);
    }
    ProcessFact facts[] = {{"plan", "abc"}, {"module", "def"}};
    return process_group_agree(processes, facts, 2, error);
}

static void test_operations(void **state) {
    (void)state;
    for (int count = 1; count <= 4; count += count) {
        Child children[MOST];
        make_children(children, count, talk);
        children[0].delay = 0.1; /* the others come before anybody listens */
        children[count - 1].delay = 0.2;
        start(children, count);
        finish(children, count);
        for (int p = 0; p < count; p++) expect(&children[p], AM_OK, "");
    }
}

static AmStatus leave_early(ProcessGroup *processes, AmError *error) {
    if (processes->process == 1) return AM_OK;
    return process_group_barrier(processes, error);
}

static AmStatus fail_third(ProcessGroup *processes, AmError *error) {
    TRY(process_group_barrier(processes, error));
    if (processes->process == 2) return am_fail(error, AM_ERROR_INPUT, "", "bad\nfile \x1b[31m");
    return process_group_barrier(processes, error);
}

static AmStatus die_third(ProcessGroup *processes, AmError *error) {
    TRY(process_group_barrier(processes, error));
    if (processes->process == 2) raise(SIGKILL);
    return process_group_barrier(processes, error);
}

static AmStatus die_first(ProcessGroup *processes, AmError *error) {
    TRY(process_group_barrier(processes, error));
    if (processes->process == 0) raise(SIGKILL);
    return process_group_barrier(processes, error);
}

static AmStatus stop_third(ProcessGroup *processes, AmError *error) {
    TRY(process_group_barrier(processes, error));
    if (processes->process == 2) raise(SIGSTOP);
    return process_group_barrier(processes, error);
}

static atomic_bool was_told;

static void note_failure(void *user) {
    (void)user;
    atomic_store(&was_told, true);
}

/* Waits outside of every operation, as for another library; the process group's own thread
 * notifies. */
static AmStatus wait_to_be_told(ProcessGroup *processes, AmError *error) {
    process_group_on_failure(processes, note_failure, NULL);
    TRY(process_group_barrier(processes, error));
    if (processes->process == 1) raise(SIGKILL);
    for (double until = clock_seconds() + 5; !was_told && clock_seconds() < until;) usleep(1000);
    process_group_on_failure(processes, NULL, NULL);
    if (!was_told) return am_fail(error, AM_ERROR_INTERNAL, "", "nobody told");
    return process_group_check(processes, error);
}

typedef struct Failure {
    AmStatus (*work)(ProcessGroup *processes, AmError *error);
    int process, status; /* the one that fails, and its end */
    const char *line;    /* of all others */
} Failure;

static void test_failures(void **state) {
    (void)state;
    static const Failure failures[] = {
        {fail_third, 2, AM_ERROR_INPUT, "failed: bad file  [31m"},
        {die_third, 2, -1, "ended unexpectedly"},
        {die_first, 0, -1, "process 0 on 127.0.0.1 ended unexpectedly"},
        {wait_to_be_told, 1, -1, "ended unexpectedly"},
        {leave_early, 1, AM_OK, "process 1 has left the run"},
    };
    for (size_t k = 0; k < sizeof failures / sizeof failures[0]; k++) {
        const Failure *failure = &failures[k];
        Child children[4];
        char name[32];
        make_children(children, 4, failure->work);
        start(children, 4);
        finish(children, 4);
        snprintf(name, sizeof name, "process %d", failure->process);
        for (int p = 0; p < 4; p++) {
            assert_true(children[p].seconds < 5);
            if (p == failure->process) {
                expect(&children[p], failure->status, "");
                continue;
            }
            expect(&children[p], AM_ERROR_RUNTIME, failure->line);
            expect(&children[p], AM_ERROR_RUNTIME, name);
        }
    }
}

static void test_silence(void **state) {
    (void)state;
    Child children[3];
    make_children(children, 3, stop_third);
    for (int p = 0; p < 3; p++) children[p].silence_seconds = 0.4;
    start(children, 3);
    finish(children, 2);
    for (int p = 0; p < 2; p++) {
        expect(&children[p], AM_ERROR_RUNTIME, "process 2");
        expect(&children[p], AM_ERROR_RUNTIME, "has not answered");
    }
    kill(children[2].pid, SIGKILL);
    finish(children + 2, 1);
}

static void test_absence(void **state) {
    (void)state;
    Child children[4];
    make_children(children, 4, talk);
    for (int p = 0; p < 4; p++) children[p].join_seconds = 0.4;
    start(children, 2); /* 2 and 3 never come */
    finish(children, 2);
    expect(&children[0], AM_ERROR_RUNTIME, "processes 2, 3 of 4 did not join");
    expect(&children[1], AM_ERROR_RUNTIME, "process 0 on 127.0.0.1 failed: processes 2, 3 of 4 did not join");
    start(children + 1, 1); /* nobody listens */
    finish(children + 1, 1);
    expect(&children[1], AM_ERROR_RUNTIME, "cannot connect to 127.0.0.1 port");
}

/* Another secret is a stranger, whom process 0 does not mind; the rest is of this run and ends it. */
static void test_refusals(void **state) {
    (void)state;
    Child children[3], stranger[2];
    make_children(children, 2, talk);
    make_children(stranger, 2, talk);
    stranger[1].place.port = children[0].place.port;
    strcpy(stranger[1].place.secret, "secret of another run");
    children[1].delay = 0.4;
    start(children, 2);
    start(stranger + 1, 1);
    finish(stranger + 1, 1);
    finish(children, 2);
    expect(&stranger[1], AM_ERROR_RUNTIME, "refused process 1: it is of another run");
    expect(&children[0], AM_OK, "");
    expect(&children[1], AM_OK, "");

    make_children(children, 3, talk);
    children[2].place.count = 5;
    start(children, 3);
    finish(children, 3);
    expect(&children[0], AM_ERROR_RUNTIME, "was started as one of 5 processes, process 0 as one of 3");
    expect(&children[2], AM_ERROR_RUNTIME, "it was started as one of 5 processes, process 0 as one of 3");
    assert_int_equal(children[1].status, AM_ERROR_RUNTIME);

    make_children(children, 3, talk);
    children[2].place.process = 1;
    start(children, 3);
    finish(children, 3);
    expect(&children[0], AM_ERROR_RUNTIME, "say that they are process 1");
    for (int p = 1; p < 3; p++) assert_int_equal(children[p].status, AM_ERROR_RUNTIME);
    assert_true(children[2].seconds < 5);
}

static AmStatus disagree(ProcessGroup *processes, AmError *error) {
    ProcessFact facts[] = {{"module", "def"}, {"plan", processes->process == 1 ? "xyz" : "abc"}};
    return process_group_agree(processes, facts, 2, error);
}

static AmStatus do_different_things(ProcessGroup *processes, AmError *error) {
    char byte = 0;
    if (processes->process == 1) return process_group_gather(processes, &byte, 1, 1, NULL, error);
    return process_group_barrier(processes, error);
}

static void test_disagreement(void **state) {
    (void)state;
    Child children[3];
    make_children(children, 3, disagree);
    start(children, 3);
    finish(children, 3);
    for (int p = 0; p < 3; p++)
        expect(&children[p], AM_ERROR_INPUT,
               "process 0 has the plan abc and process 1 xyz: expected the same");
    make_children(children, 2, do_different_things);
    start(children, 2);
    finish(children, 2);
    expect(&children[0], AM_ERROR_RUNTIME, "process 1 is at another operation (1) than process 0 (1)");
}

/* Arbitrary connections to the port: the run begins nevertheless. */
static void test_hostile_callers(void **state) {
    (void)state;
    enum { CALLERS = 200 };
    static char noise[4096];
    Child children[2];
    int callers[CALLERS];
    make_children(children, 2, talk);
    children[1].delay = 0.5;
    start(children, 2);
    for (size_t k = 0; k < sizeof noise; k++) noise[k] = (char)(k * 2654435761u >> 13);
    for (int k = 0; k < CALLERS; k++) {
        double deadline = clock_seconds() + 2;
        assert_int_equal(socket_connect(&callers[k], "127.0.0.1", children[0].place.port, deadline, NULL),
                         AM_OK);
        if (k % 3 == 1) memcpy(noise, "automap\0\1\0\0", 12); /* begins as it should */
        if (k % 3) socket_send(callers[k], noise, sizeof noise / (size_t)(k % 5 + 1), clock_seconds());
        if (k % 4 == 0) shutdown(callers[k], SHUT_WR);
    }
    finish(children, 2);
    for (int k = 0; k < CALLERS; k++) close(callers[k]);
    expect(&children[0], AM_OK, "");
    expect(&children[1], AM_OK, "");
}

/* The other way round: what listens where process 0 should be. */
static void test_hostile_listener(void **state) {
    (void)state;
    Child child[2];
    int listener;
    make_children(child, 2, talk);
    child[1].join_seconds = 3;
    uint16_t port = child[1].place.port;
    assert_int_equal(socket_listen(&listener, "127.0.0.1", &port, NULL), AM_OK);
    start(child + 1, 1);
    int connection = -1;
    while ((connection = socket_accept(listener)) < 0) usleep(1000);
    char noise[256];
    memset(noise, 'x', sizeof noise);
    socket_send(connection, noise, sizeof noise, clock_seconds() + 1);
    finish(child + 1, 1);
    close(connection);
    close(listener);
    expect(&child[1], AM_ERROR_RUNTIME, "is no process of automap");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),      cmocka_unit_test(test_failures),
        cmocka_unit_test(test_silence),         cmocka_unit_test(test_absence),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_hostile_callers), cmocka_unit_test(test_hostile_listener),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
