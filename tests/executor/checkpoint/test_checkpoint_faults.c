/* Failing writes: at every call of a save, once and from there on, with every cause. The previous
 * checkpoint always loads afterwards, and the run reports the failure.
 */
/* labels: threads */
/* cost: 13 seconds */
#include <errno.h>
#include <fcntl.h>

#include "tests/support/checkpoint_case.h"
#include "tests/support/sample.h"

/* One way of failing. */
typedef struct Fault {
    const char *name;
    int cause;
    bool is_short; /* a write takes half of it, the next one nothing */
    bool goes_on;  /* every later call of this kind fails too */
} Fault;

static const Fault FAULTS[] = {{"disk full", ENOSPC, false, false},
                               {"disk stays full", ENOSPC, false, true},
                               {"input/output error", EIO, false, false},
                               {"short write, then full", ENOSPC, true, true},
                               {"short write", 0, true, false}};
enum { FAULT_COUNT = sizeof FAULTS / sizeof *FAULTS };

/* The behaviour of the calls; of the worker's thread and the run's, one at a time. */
static struct {
    const Fault *fault;
    int at, calls; /* the call that fails, counted from 0; calls so far */
    int failures;
} now;

static bool is_at_fault(void) {
    int call = now.calls++;
    if (!now.fault || call < now.at) return false;
    return call == now.at || now.fault->goes_on;
}

/* A call other than a write: short writes do not affect it. */
static bool fails(void) {
    if (!is_at_fault() || now.fault->is_short) return false;
    now.failures++;
    errno = now.fault->cause;
    return true;
}

static int open_or_fail(const char *path, int flags, int mode) {
    bool writes = (flags & O_CREAT) != 0;
    return writes && fails() ? -1 : disk_calls.open(path, flags, mode);
}

static int64_t write_or_fail(int file, const void *bytes, size_t count) {
    if (!is_at_fault()) return disk_calls.write(file, bytes, count);
    if (now.fault->is_short && now.calls - 1 == now.at) return disk_calls.write(file, bytes, count / 2);
    now.failures++;
    errno = now.fault->cause;
    return -1;
}

/* The disk itself is not waited for: nothing pulls its plug here. */
static int sync_or_fail(int file) {
    (void)file;
    return fails() ? -1 : 0;
}

/* The file is closed nevertheless, as by the system. */
static int close_or_fail(int file) {
    bool is_fault = fails();
    int cause = errno, closed = disk_calls.close(file);
    errno = cause;
    return is_fault ? -1 : closed;
}

static int rename_or_fail(const char *from, const char *to) {
    return fails() ? -1 : disk_calls.rename(from, to);
}

static int make_directory_or_fail(const char *path, int mode) {
    return fails() ? -1 : disk_calls.make_directory(path, mode);
}

static int remove_or_fail(int folder, const char *name, bool is_directory) {
    return fails() ? -1 : disk_calls.remove(folder, name, is_directory);
}

static const DiskCalls failing = {open_or_fail,   write_or_fail,          sync_or_fail,  close_or_fail,
                                  rename_or_fail, make_directory_or_fail, remove_or_fail};

static int setup(void **state) {
    CheckpointCase *self = calloc(1, sizeof *self);
    checkpoint_case_open(self, "exact_linear");
    *state = self;
    return 0;
}

static int teardown(void **state) {
    checkpoint_case_close(*state);
    free(*state);
    return 0;
}

/* A run of 2 steps that all goes well, then one to step 6 with the fault; returns its status. */
static AmStatus run_with_fault(CheckpointCase *self, const Plan *plan, const Fault *fault, int at) {
    RunOptions options = {.plan = plan,
                          .checkpoints.path = self->folder,
                          .checkpoints.every = 2,
                          .checkpoints.keep = 1,
                          .checkpoints.disk = &failing};
    remove_folder(self->folder);
    assert_int_equal(checkpoint_case_run(self, options, 2), AM_OK);
    now.fault = fault;
    now.at = at;
    now.calls = now.failures = 0;
    options.checkpoints.resumes = true;
    AmStatus status = checkpoint_case_run(self, options, 6);
    now.fault = NULL;
    return status;
}

/* The remaining files resume, at the step of the last successful save or later. */
static void check_resumes(CheckpointCase *self, const Plan *plan, const char *what, AmStatus before) {
    RunOptions options = {.plan = plan,
                          .checkpoints.path = self->folder,
                          .checkpoints.resumes = true,
                          .checkpoints.disk = &failing};
    if (checkpoint_case_run(self, options, CHECKPOINT_STEPS) != AM_OK)
        fail_msg("%s: %s: %s", what, self->error.source, self->error.text);
    int64_t first = 0;
    while (isnan(self->losses[first])) first++;
    if (first < 2 || (before == AM_OK && first != 6)) fail_msg("%s: resumed at step %d", what, (int)first);
    check_losses(self, first, what);
}

static void check_fault(CheckpointCase *self, const Plan *plan, const Fault *fault, int at) {
    char what[128];
    snprintf(what, sizeof what, "%s at call %d", fault->name, at);
    AmStatus status = run_with_fault(self, plan, fault, at);
    for (int k = 2; k < 6; k++)
        if (self->losses[k] != self->expected[k]) fail_msg("%s: the run did not go on at step %d", what, k);
    if (status != AM_OK && status != AM_ERROR_RUNTIME) fail_msg("%s: %s", what, self->error.text);
    bool is_told = strstr(self->notes, self->folder) && strstr(self->notes, strerror(fault->cause));
    bool is_quiet = !fault->cause || now.failures == 0;
    if (!is_quiet && !is_told) fail_msg("%s: nothing was said: %s", what, self->notes);
    if (is_quiet && status != AM_OK) fail_msg("%s: %s", what, self->error.text);
    if (status != AM_OK && !strstr(self->error.text, strerror(fault->cause)))
        fail_msg("%s: %s", what, self->error.text);
    check_resumes(self, plan, what, status);
}

/* The number of calls of a run without faults; more than that are never made up to the fault. */
static void test_every_call(void **state) {
    CheckpointCase *self = *state;
    const Plan *plan = checkpoint_case_plan(self, "x=2", 0);
    checkpoint_case_expect(self, plan);
    assert_int_equal(run_with_fault(self, plan, NULL, 0), AM_OK);
    int calls = now.calls;
    assert_true(calls > 40);
    int stride = sample_of(1, 3); /* of all pairs; a number that has no divisor in common with the ways */
    for (int pair = FAULT_COUNT; pair < calls * FAULT_COUNT;
         pair += stride) /* the folder of call 0 is there */
        check_fault(self, plan, &FAULTS[pair % FAULT_COUNT], pair / FAULT_COUNT);
    print_message("%d calls, %d ways to fail\n", calls, FAULT_COUNT);
}

/* One save fails and the next one does not: the run ends well. */
static void test_failed_save_is_tried_again(void **state) {
    CheckpointCase *self = *state;
    checkpoint_case_expect(self, NULL);
    const Fault *full = &FAULTS[0];
    AmStatus status = run_with_fault(self, NULL, full, 2);
    assert_int_equal(now.failures, 1);
    assert_int_equal(status, AM_OK);
    assert_non_null(strstr(self->notes, "the checkpoint of step 4 could not be written"));
    assert_true(holds(self, "step-00000006"));
    assert_false(holds(self, "step-00000004.part"));
}

/* The last save fails: the run does, after everything else, and the one before is there. */
static void test_failed_last_save_is_an_error(void **state) {
    CheckpointCase *self = *state;
    checkpoint_case_expect(self, NULL);
    assert_int_equal(run_with_fault(self, NULL, &FAULTS[1], 2), AM_ERROR_RUNTIME);
    assert_non_null(strstr(self->error.text, "of step 6, could not be written"));
    assert_non_null(strstr(self->error.text, "No space left on device"));
    assert_non_null(strstr(self->error.source, "step-00000006.part"));
    assert_true(holds(self, "step-00000002"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_save_is_tried_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_last_save_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
