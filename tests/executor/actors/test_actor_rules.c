/* Errors and ends of actors: cycles that are named, quotas that are raised, stalls that are named,
 * failures that end all, the last step, gates, own threads, the order of one worker. */
/* labels: threads */
#include "tests/support/actor_case.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static AmStatus count_iterations(void *user, int64_t iteration, AmError *error) {
    (void)iteration, (void)error;
    if (user) atomic_fetch_add((atomic_llong *)user, 1);
    return AM_OK;
}

static void check_usage(AmStatus status, const AmError *error, const char *text) {
    assert_int_equal(status, AM_ERROR_USAGE);
    if (!strstr(error->text, text)) print_error("%s\n", error->text);
    assert_non_null(strstr(error->text, text));
}

static void test_cycle_is_named(void **state) {
    (void)state;
    AmError error = {0};
    ActorGraph *graph = case_open(1, 1);
    int32_t first = case_add(graph, "first", 0, 1, count_iterations, NULL);
    int32_t b = case_add(graph, "b", 0, 1, count_iterations, NULL),
            c = case_add(graph, "c", 0, 4, count_iterations, NULL);
    int32_t last = case_add(graph, "last", 0, 1, count_iterations, NULL);
    case_connect(graph, first, b, 1, 0);
    case_connect(graph, b, c, 1, 0);
    case_connect(graph, c, b, 4, 3); /* a step needs 4 */
    case_connect(graph, c, last, 1, 0);
    AmStatus status = actors_ready(graph, &error);
    check_usage(status, &error, "without initial registers");
    assert_non_null(strstr(error.text, "'b' waits for 'c'"));
    assert_null(strstr(error.text, "first"));
    actors_close(graph);
}

static void test_quotas_are_raised(void **state) {
    (void)state;
    AmError error = {0};
    ActorGraph *graph = case_open(1, 1);
    int32_t one = case_add(graph, "one", 0, 1, count_iterations, NULL),
            many = case_add(graph, "many", 0, 6, count_iterations, NULL);
    int32_t end = case_add(graph, "end", 0, 1, count_iterations, NULL);
    int32_t spread = case_connect(graph, one, many, 1, 0), gather = case_connect(graph, many, end, 2, 0);
    int32_t back = case_connect(graph, end, one, 1, 1), beside = case_connect(graph, one, end, 3, 0);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    assert_int_equal(actors_quota(graph, spread), 1);
    assert_int_equal(actors_quota(graph, gather), 6);
    assert_int_equal(actors_quota(graph, back), 1);
    assert_int_equal(actors_quota(graph, beside), 3);
    actors_close(graph);
}

static void test_misuse_is_refused(void **state) {
    (void)state;
    AmError error = {0};
    int32_t index;
    ActorGraph *graph = case_open(2, 1);
    int32_t two = case_add(graph, "two", 0, 2, count_iterations, NULL),
            three = case_add(graph, "three", 1, 3, count_iterations, NULL);
    check_usage(actors_connect(graph, two, three, 1, 0, NULL, &error), &error, "divide");
    error = (AmError){0};
    check_usage(actors_connect(graph, two, 9, 1, 0, NULL, &error), &error, "no actor 9");
    error = (AmError){0};
    check_usage(actors_connect(graph, two, two, 0, 0, NULL, &error), &error, "0 registers");
    error = (AmError){0};
    check_usage(actors_follow(graph, three, two, &error), &error, "iterations");
    error = (AmError){0};
    Actor wrong = {.name = "wrong", .worker = 2, .iterations_per_step = 1, .act = count_iterations};
    check_usage(actors_add(graph, &wrong, &index, &error), &error, "worker 2");
    error = (AmError){0};
    wrong = (Actor){.name = "wrong", .worker = 0, .iterations_per_step = 0, .act = count_iterations};
    check_usage(actors_add(graph, &wrong, &index, &error), &error, "0 iterations");
    error = (AmError){0};
    int32_t a = case_add(graph, "a", 0, 1, count_iterations, NULL),
            b = case_add(graph, "b", 1, 1, count_iterations, NULL);
    int32_t c = case_add(graph, "c", 0, 1, count_iterations, NULL),
            d = case_add(graph, "d", 1, 1, count_iterations, NULL);
    assert_int_equal(actors_follow(graph, b, a, &error), AM_OK);
    assert_int_equal(actors_follow(graph, c, d, &error), AM_OK);
    check_usage(actors_ready(graph, &error), &error, "follows");
    actors_close(graph);
}

/* An edge whose ready actor is lost: a gate that stays shut. */
static AmStatus never(void *user, int64_t iteration, bool *is_ready, AmError *error) {
    (void)iteration, (void)error;
    if (user) atomic_fetch_add((atomic_llong *)user, 1);
    *is_ready = false;
    return AM_OK;
}

static void test_stall_is_named(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[3];
    ActorGraph *graph;
    atomic_llong asked = 0;
    ActorGraphOptions options = {
        .worker_count = 3, .steps = 5, .stall_seconds = 0.1, .outside_seconds = 0.15};
    assert_int_equal(actors_open(&graph, &options, &error), AM_OK);
    int32_t load = case_add(graph, "load", 0, 1, count_iterations, NULL),
            b = case_add(graph, "b", 1, 1, count_iterations, NULL);
    int32_t c = case_add(graph, "c", 2, 1, count_iterations, NULL);
    case_connect(graph, load, b, 2, 1);
    case_connect(graph, b, c, 1, 0);
    assert_int_equal(actors_gate(graph, load, never, &asked, &error), AM_OK);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    double begin = clock_seconds();
    assert_int_equal(case_run(graph, workers, 3, &error), AM_ERROR_RUNTIME);
    assert_true(clock_seconds() - begin >= 0.15);
    assert_true(asked > 1);
    assert_non_null(strstr(error.text, "stalled"));
    assert_non_null(strstr(error.text, "'load' cannot begin iteration 0 waiting for what is outside"));
    assert_non_null(strstr(error.text, "'b' cannot begin iteration 1 waiting for iteration 0 of 'load'"));
    assert_non_null(strstr(error.text, "'c' cannot begin iteration 1 waiting for iteration 1 of 'b'"));
    for (int w = 0; w < 3; w++) assert_string_equal(workers[w].error.text, error.text);
    actors_close(graph);
}

typedef struct Failing {
    int64_t at;
    atomic_bool waits;       /* somebody is inside an act */
    atomic_bool is_released; /* by on_failure */
} Failing;

static AmStatus fail_at(void *user, int64_t iteration, AmError *error) {
    Failing *failing = user;
    while (iteration == failing->at && !failing->waits) sched_yield();
    return iteration < failing->at ? AM_OK : am_fail(error, AM_ERROR_INPUT, "", "the file ends");
}

/* As a collective that waits for somebody who has failed. */
static AmStatus wait_for_release(void *user, int64_t iteration, AmError *error) {
    Failing *failing = user;
    if (iteration < failing->at) return AM_OK;
    failing->waits = true;
    while (!failing->is_released) sched_yield();
    return am_fail(error, AM_ERROR_RUNTIME, "", "released");
}

static void release(void *user) {
    ((Failing *)user)->is_released = true;
}

static void test_failure_ends_all(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[3];
    ActorGraph *graph;
    Failing failing = {.at = 3};
    int32_t io;
    ActorGraphOptions options = {.worker_count = 3, .on_failure = release, .user = &failing};
    assert_int_equal(actors_open(&graph, &options, &error), AM_OK);
    assert_int_equal(actors_add_worker(graph, "io", &io, &error), AM_OK);
    case_add(graph, "waits", 0, 1, wait_for_release, &failing);
    int32_t load = case_add(graph, "load", io, 1, fail_at, &failing),
            b = case_add(graph, "b", 1, 1, count_iterations, NULL);
    case_connect(graph, load, b, 1, 0);
    case_add(graph, "busy", 2, 1, count_iterations, NULL);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    double begin = clock_seconds();
    assert_int_equal(case_run(graph, workers, 3, &error), AM_ERROR_INPUT);
    assert_true(clock_seconds() - begin < 5);
    assert_string_equal(error.text, "the file ends");
    assert_string_equal(workers[0].error.text, "released");
    assert_non_null(strstr(workers[1].error.text, "stopped because another actor failed: 'load'"));
    assert_int_equal(workers[2].status, AM_ERROR_RUNTIME);
    actors_close(graph);
}

typedef struct Stopper {
    ActorGraph *graph;
    int64_t at, last;
} Stopper;

static AmStatus stop_at(void *user, int64_t iteration, AmError *error) {
    (void)error;
    Stopper *stopper = user;
    if (iteration == stopper->at) stopper->last = actors_stop_after(stopper->graph, iteration);
    return AM_OK;
}

/* A loader that is ahead, a stage that may be a step ahead, one that is late: all end after the same
 * step. */
static void test_last_step(void **state) {
    (void)state;
    for (int k = 0; k < 20; k++) {
        AmError error = {0};
        CaseWorker workers[3];
        atomic_llong iterations[3] = {0};
        ActorGraph *graph = case_open(3, 0);
        int32_t index;
        Stopper stopper = {.graph = graph, .at = 7 + k};
        Actor load = {.name = "load",
                      .iterations_per_step = 1,
                      .runs_ahead = true,
                      .act = count_iterations,
                      .user = &iterations[0]};
        assert_int_equal(actors_add(graph, &load, &index, &error), AM_OK);
        int32_t b = case_add(graph, "b", 1, 4, count_iterations, &iterations[1]),
                c = case_add(graph, "c", 2, 1, count_iterations, &iterations[2]);
        int32_t report = case_add(graph, "report", 2, 1, stop_at, &stopper);
        case_connect(graph, index, b, 3, 0);
        case_connect(graph, b, c, 4 + k % 5, 0);
        case_connect(graph, c, report, 1, 0);
        assert_int_equal(actors_ready(graph, &error), AM_OK);
        assert_int_equal(case_run(graph, workers, 3, &error), AM_OK);
        assert_true(stopper.last >= stopper.at && stopper.last <= stopper.at + 4);
        assert_int_equal(iterations[1], 4 * (stopper.last + 1));
        assert_int_equal(iterations[2], stopper.last + 1);
        assert_true(iterations[0] >= stopper.last + 1);
        actors_close(graph);
    }
}

typedef struct Slow {
    atomic_int open;
    atomic_llong iterations;
} Slow;

/* Opens for one firing at a time. */
static AmStatus now_and_then(void *user, int64_t iteration, bool *is_ready, AmError *error) {
    (void)error;
    Slow *slow = user;
    *is_ready = atomic_fetch_add(&slow->open, 1) % 5 == 4;
    if (*is_ready) assert_int_equal(iteration, slow->iterations);
    return AM_OK;
}

static void test_gates(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[2];
    Slow slow = {0};
    ActorGraph *graph = case_open(2, 50);
    int32_t a = case_add(graph, "a", 0, 1, count_iterations, &slow.iterations),
            b = case_add(graph, "b", 1, 1, count_iterations, NULL);
    case_connect(graph, a, b, 1, 0);
    case_connect(graph, b, a, 1, 1);
    assert_int_equal(actors_gate(graph, a, now_and_then, &slow, &error), AM_OK);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    assert_int_equal(case_run(graph, workers, 2, &error), AM_OK);
    assert_int_equal(slow.iterations, 50);
    actors_close(graph);
}

/* Equal priorities: the earlier step first, then the order of adding. */
static AmStatus note(void *user, int64_t iteration, AmError *error) {
    (void)error;
    char *log = user;
    snprintf(log + strlen(log), 64 - strlen(log), "%c%d ", log[0], (int)iteration);
    return AM_OK;
}

static AmStatus note_second(void *user, int64_t iteration, AmError *error) {
    (void)error;
    char *log = user;
    snprintf(log + strlen(log), 64 - strlen(log), "b%d ", (int)iteration);
    return AM_OK;
}

static void test_order_of_one_worker(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[1];
    char log[64] = "a ";
    ActorGraph *graph = case_open(1, 3);
    case_add(graph, "a", 0, 1, note, log);
    case_add(graph, "b", 0, 2, note_second, log);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    assert_int_equal(case_run(graph, workers, 1, &error), AM_OK);
    assert_string_equal(log, "a a0 b0 b1 a1 b2 b3 a2 b4 b5 ");
    actors_close(graph);
}

/* The description of a graph before its start, in buffers of any size. */
static void test_description(void **state) {
    (void)state;
    char text[400];
    AmError error = {0};
    ActorGraph *graph = case_open(1, 2);
    int32_t a = case_add(graph, "a", 0, 1, count_iterations, NULL);
    for (int k = 0; k < 6; k++)
        case_connect(graph, a, case_add(graph, "next", 0, 1, count_iterations, NULL), 1, 0);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    actors_describe(graph, text, sizeof text);
    assert_non_null(strstr(text, "'next' cannot begin iteration 0 waiting for iteration 0 of 'a'; "));
    assert_non_null(strstr(text, "; and 2 more"));
    for (int32_t size = 1; size < (int32_t)sizeof text; size++) {
        actors_describe(graph, text, size);
        assert_true((int32_t)strlen(text) < size);
    }
    actors_close(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cycle_is_named),
        cmocka_unit_test(test_quotas_are_raised),
        cmocka_unit_test(test_misuse_is_refused),
        cmocka_unit_test(test_stall_is_named),
        cmocka_unit_test(test_failure_ends_all),
        cmocka_unit_test(test_last_step),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_order_of_one_worker),
        cmocka_unit_test(test_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
