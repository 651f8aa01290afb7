/* Timed collectives: for a back end with a known time, the result is that time; grids are complete;
 * a time limit omits whole sizes and counts; a failing rank ends all of them with its own error. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/process.h"
#include "cost/cluster/operator_curves.h"
#include "executor/calibrate/probe.h"
#include "executor/calibrate/probe_collectives.h"

static const int64_t sizes[] = {256, 4096, 65536, 0};
static int32_t failing_rank;

static AmStatus wait_longer(Comm *comm, const CommCall *call, AmError *error) {
    double begun = clock_seconds();
    while (clock_seconds() < begun + 200e-6) {}
    return comm_local.run(comm, call, error);
}

static AmStatus fail_once(Comm *comm, const CommCall *call, AmError *error) {
    if (comm->rank == failing_rank && ir_shape_bytes(call->operand_shapes[0]) > 4096)
        return am_fail(error, AM_ERROR_RUNTIME, "", "rank %d fell over", comm->rank);
    return comm_local.run(comm, call, error);
}

static CommBackEnd other; /* comm_local with another run() */

static AmStatus open_other(Comm *comms, int32_t first, int32_t count, int32_t size,
                           KernelDevice *const *devices, ProcessGroup *processes, AmError *error) {
    TRY(comm_local.open(comms, first, count, size, devices, processes, error));
    for (int32_t r = 0; r < count; r++) comms[r].back_end = &other;
    return AM_OK;
}

static const CommBackEnd *comm_with(AmStatus (*run)(Comm *comm, const CommCall *call, AmError *error)) {
    other = comm_local;
    other.open = open_other;
    other.run = run;
    return &other;
}

static ProbeRanks ranks_of(const CommBackEnd *comm, int32_t count) {
    return (ProbeRanks){.kernels = &kernels_cpu,
                        .comm = comm,
                        .count = count,
                        .sharing = 1,
                        .sizes = sizes,
                        .most_bytes = 1 << 20};
}

static void a_known_time_is_found(void **state) {
    (void)state;
    ProbeRanks ranks = ranks_of(comm_with(wait_longer), 2);
    ProbeCase cases[] = {{.kind = PROGRAM_ALL_REDUCE, .bytes = 256},
                         {.kind = PROGRAM_ALL_GATHER, .bytes = 256}};
    assert_int_equal(probe_time_cases(&ranks, 2, cases, 2, clock_seconds() + 10, NULL, NULL), AM_OK);
    for (int k = 0; k < 2; k++) assert_true(cases[k].seconds >= 190e-6 && cases[k].seconds < 600e-6);
}

typedef struct Heard {
    double done;
    int32_t collectives;
} Heard;

static void hear_progress(void *user, double done) {
    Heard *heard = user;
    assert_true(done > heard->done && done <= 1.0001);
    heard->done = done;
}

static AmStatus hear_collective(void *user, const char *type, ProgramCollectiveKind kind, int32_t ranks,
                                double bytes, double seconds, AmError *error) {
    (void)type, (void)kind, (void)error;
    Heard *heard = user;
    assert_true((ranks == 2 || ranks == 4) && bytes >= 256 && seconds > 0);
    heard->collectives++;
    return AM_OK;
}

static void grids_are_complete(void **state) {
    (void)state;
    Heard heard = {0};
    const ProbeListener listener = {
        .progress = hear_progress, .collective = hear_collective, .user = &heard, .type = "host", .part = 1};
    const OperatorCurves *curves;
    Arena arena = {0};
    json_t *collectives;
    AmError error = {0};
    ProbeRanks ranks = ranks_of(&comm_local, 4);
    ranks.sharing = 2;
    assert_int_equal(probe_collectives(&collectives, &ranks, clock_seconds() + 60, &listener, &error), AM_OK);
    if (operator_curves_read(&curves, &arena, collectives, true, "probe", "$", &error) != AM_OK)
        fail_msg("%s", error.text);
    for (int32_t k = OPERATOR_FIRST_OF_LINKS; k < OPERATOR_CLASS_COUNT; k++) {
        const OperatorCurve *curve = &curves->of[k];
        assert_true(curve->seconds && curve->counts[0] == 2 && curve->counts[1] == 3);
        assert_true(curve->sizes[0][0] == 2 && curve->sizes[0][1] == 4 && curve->sizes[1][2] == 65536);
        for (int32_t p = 0; p < 6; p++)
            if (p % 3 > 0) assert_true(curve->seconds[p] >= curve->seconds[p - 1]);
    }
    assert_int_equal(heard.collectives, 4 * 2 * 3);
    assert_true(heard.done > 0.999);
    json_decref(collectives);
    arena_free(&arena);
}

/* Cases that exceed memory or time are omitted. */
static void what_is_left_out(void **state) {
    (void)state;
    const ProbeListener nobody = {0};
    ProbeRanks ranks = ranks_of(&comm_local, 2);
    json_t *collectives;
    ranks.most_bytes = 3 * 4096;
    assert_int_equal(probe_collectives(&collectives, &ranks, clock_seconds() + 10, &nobody, NULL), AM_OK);
    json_t *curve = json_object_get(collectives, "all_to_all");
    assert_int_equal(json_array_size(json_array_get(json_object_get(curve, "sizes"), 1)), 2);
    json_decref(collectives);
    assert_int_equal(probe_collectives(&collectives, &ranks, clock_seconds() - 1, &nobody, NULL), AM_OK);
    assert_int_equal(json_object_size(collectives), 0);
    json_decref(collectives);
}

static void a_failure_is_told(void **state) {
    (void)state;
    const ProbeListener nobody = {0};
    for (failing_rank = 0; failing_rank < 2; failing_rank++) {
        ProbeRanks ranks = ranks_of(comm_with(fail_once), 2);
        AmError error = {0};
        json_t *collectives;
        AmStatus status = probe_collectives(&collectives, &ranks, clock_seconds() + 10, &nobody, &error);
        assert_int_equal(status, AM_ERROR_RUNTIME);
        assert_string_equal(error.text, failing_rank ? "rank 1 fell over" : "rank 0 fell over");
        json_decref(collectives);
    }
}

/* Two ranks to a processor: each meeting takes until the other pair has been given its turn, which is more
 * than nothing, however many turns go by without. */
static void ranks_that_share_take_longer(void **state) {
    (void)state;
    int32_t processors = process_processors();
    ProbeRanks ranks = ranks_of(&comm_local, 2 * processors);
    ProbeCase one = {.kind = PROGRAM_ALL_GATHER, .bytes = 4096};
    if (2 * processors > PROBE_MOST_RANKS) skip();
    ranks.sharing = 2;
    assert_int_equal(probe_time_cases(&ranks, 2, &one, 1, clock_seconds() + 10, NULL, NULL), AM_OK);
    assert_true(one.seconds > 0.3e-6);
}

/* Later measurements use all processors, too. */
static void probing_leaves_the_thread_where_it_was(void **state) {
    (void)state;
    const ProbeListener nobody = {0};
    cpu_set_t before, after;
    json_t *operators;
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(probe_operators(&operators, 2, 1, clock_seconds() - 8, &probe_full_pace, &nobody, NULL),
                     AM_OK);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
    json_decref(operators);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_time_is_found),
        cmocka_unit_test(grids_are_complete),
        cmocka_unit_test(what_is_left_out),
        cmocka_unit_test(a_failure_is_told),
        cmocka_unit_test(ranks_that_share_take_longer),
        cmocka_unit_test(probing_leaves_the_thread_where_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
