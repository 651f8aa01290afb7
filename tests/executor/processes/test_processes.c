/* Several processes that train under one plan: the same losses and final state as
 * one, and how all end when one of them fails, dies, is interrupted or differs. */
/* labels: threads */
/* cost: 7 seconds */
#include "tests/support/comm_processes.h"
#include "tests/support/training_case.h"

static void prepare_job(const char *model, const char *mesh, Choose *choose, uint64_t seed) {
    training_prepare(model, mesh, choose, seed);
    training.collectives = &comm_processes;
}

static void check_training(const char *model, const char *mesh, Choose *choose, uint64_t seed,
                           int processes) {
    prepare_job(model, mesh, choose, seed);
    training_check(processes);
}

static void test_training(void **state) {
    (void)state;
    check_training("mlp_tiny", "data=4", choose_batch, 0, 2);
    check_training("mlp_tiny", "data=3", choose_batch, 0, 3);
    check_training("mlp_tiny", "data=2,model=2", choose_some, 2, 2);
    check_training("exact_linear", "model=3", choose_some, 1, 3);
    check_training("exact_gather", "data=2,model=4", choose_some, 3, 4);
    check_training("lstm_tiny", "data=2,model=2", choose_some, 1, 2);
}

static AmStatus die(CommShared *processes, AmError *error) {
    (void)error;
    if (processes->processes->process == 1 && processes->run_count == 10) raise(SIGKILL);
    return AM_OK;
}

static AmStatus fail_run(CommShared *processes, AmError *error) {
    if (processes->processes->process != 1 || processes->run_count < 10) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "planted failure");
}

/* A collective breaks because process 1 is about to be gone. */
static AmStatus break_and_die(CommShared *processes, AmError *error) {
    if (processes->run_count < 10) return AM_OK;
    if (processes->processes->process == 0) return am_fail(error, AM_ERROR_RUNTIME, "", "broken collective");
    usleep(100000);
    raise(SIGKILL);
    return AM_OK;
}

static AmStatus interrupt(CommShared *processes, AmError *error) {
    (void)error;
    if (processes->processes->process == 1 && processes->run_count == 10) training_interrupted = 1;
    return AM_OK;
}

static void run_job(Child *children, int processes) {
    make_children(children, processes, training_run);
    start(children, processes);
    finish(children, processes);
}

static void test_failures(void **state) {
    (void)state;
    Child children[MOST];
    prepare_job("mlp_tiny", "data=4", choose_batch, 0);
    comm_processes_hook = die;
    run_job(children, 4);
    for (int p = 0; p < 4; p++) {
        assert_true(children[p].seconds < 5);
        expect(&children[p], p == 1 ? -1 : AM_ERROR_RUNTIME, "");
        if (p != 1) expect(&children[p], AM_ERROR_RUNTIME, "process 1");
        if (p != 1) expect(&children[p], AM_ERROR_RUNTIME, "ended unexpectedly");
    }
    comm_processes_hook = fail_run;
    run_job(children, 2);
    expect(&children[0], AM_ERROR_RUNTIME, "process 1");
    expect(&children[0], AM_ERROR_RUNTIME, "failed: rank 2: planted failure");
    expect(&children[1], AM_ERROR_RUNTIME, "rank 2: planted failure");
    prepare_job("lstm_tiny", "data=4", choose_batch, 0); /* in the middle of a loop */
    run_job(children, 2);
    expect(&children[0], AM_ERROR_RUNTIME, "failed: rank 2: planted failure");
    expect(&children[1], AM_ERROR_RUNTIME, "rank 2: planted failure");
    prepare_job("mlp_tiny", "data=4", choose_batch, 0);
    comm_processes_hook = break_and_die;
    run_job(children, 2);
    expect(&children[0], AM_ERROR_RUNTIME, "ended unexpectedly");
    comm_processes_hook = interrupt;
    run_job(children, 2);
    comm_processes_hook = NULL;
    for (int p = 0; p < 2; p++) expect(&children[p], AM_INTERRUPTED, "interrupted after ");
    assert_string_equal(children[0].text, children[1].text);
    assert_int_equal(unlink(training.saved), 0);
}

/* Process 1 runs fewer steps. */
static AmStatus train_less(ProcessGroup *processes, AmError *error) {
    training.steps -= processes->process;
    return training_run(processes, error);
}

static void test_refusals(void **state) {
    (void)state;
    Child children[MOST];
    prepare_job("mlp_tiny", "data=3", choose_batch, 0);
    run_job(children, 2);
    for (int p = 0; p < 2; p++)
        expect(&children[p], AM_ERROR_USAGE, "has 3 devices, which 2 processes cannot share");
    prepare_job("mlp_tiny", "data=2", choose_batch, 0);
    training.collectives = NULL;
    run_job(children, 2);
    for (int p = 0; p < 2; p++)
        expect(&children[p], AM_ERROR_USAGE, "2 processes on device 'cpu' need collectives 'mpi'");
    make_children(children, 2, train_less);
    start(children, 2);
    finish(children, 2);
    for (int p = 0; p < 2; p++)
        expect(&children[p], AM_ERROR_INPUT, "process 0 has the number of steps 20 and process 1 19");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
