/* The public C API: runs with watched outputs, evaluations and results of devices, in a group of processes,
 * and sweeps over strategies. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "automap.h"

#define MODELS SOURCE_DIR "/datasets/models/"

typedef struct Case {
    AmModule *module;
    AmCluster *cluster;
    AmOptions *options;
    AmPlan *plan;
} Case;

static void set(AmOptions *options, const char *key, const char *value) {
    AmError error;
    if (am_options_set(options, key, value, &error) != AM_OK) fail_msg("%s", error.text);
}

static int set_up(void **state) {
    static Case self;
    AmError error;
    AmOptions *search;
    assert_int_equal(am_module_read(&self.module, MODELS "mlp_tiny/model.hlo.pb", NULL, &error), AM_OK);
    assert_int_equal(am_cluster_read(&self.cluster, "nominal:2", &error), AM_OK);
    assert_int_equal(am_options_new(&search, AM_COMMAND_SEARCH, &error), AM_OK);
    set(search, "expert", "data_parallel"); /* an earlier key of "baseline" */
    assert_string_equal(am_options_get(search, "baseline"), "data_parallel");
    if (am_search(&self.plan, self.module, self.cluster, search, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_string_equal(am_plan_searcher(self.plan), "baseline");
    am_options_free(search);
    assert_int_equal(am_options_new(&self.options, AM_COMMAND_RUN, &error), AM_OK);
    set(self.options, "steps", "3");
    set(self.options, "state", "random");
    set(self.options, "data", MODELS "mlp_tiny/data.npz");
    *state = &self;
    return 0;
}

static int tear_down(void **state) {
    Case *self = *state;
    am_options_free(self->options);
    am_plan_free(self->plan);
    am_cluster_free(self->cluster);
    am_module_free(self->module);
    return 0;
}

typedef struct Seen {
    int steps, results;
    double validated, last_loss, step_seconds;
} Seen;

static int see_step(void *user, const AmStep *step) {
    Seen *seen = user;
    assert_true(step->planned_bytes > 0);
    assert_int_equal(step->watched_count, 1);
    assert_int_equal(step->watched[0].number, 0);
    assert_true(step->watched[0].count > 0 && isfinite(step->watched[0].values[0]));
    assert_int_equal(step->validated_count > 0, step->step % 2 == 1 || step->step == 2);
    for (int32_t k = 0; k < step->validated_count; k++)
        if (step->validated[k].is_loss) seen->validated = step->validated[k].values[0];
    if (step->validated_count > 0) assert_true(step->validated_batches > 0 && step->validated_seconds > 0);
    seen->last_loss = step->loss;
    return ++seen->steps == 0;
}

static void see_result(void *user, const AmRunResult *result) {
    Seen *seen = user;
    seen->results++;
    seen->step_seconds = result->predicted_seconds;
    assert_int_equal(result->device_count, 2);
    for (int32_t d = 0; d < 2; d++) {
        assert_int_equal(result->device_peak_bytes[d], result->device_predicted_bytes[d]);
        assert_true(result->device_scratch_bytes[d] >= 0);
    }
    assert_true(result->resident_bytes > 0 && result->peak_resident_bytes >= result->resident_bytes);
    assert_true(result->last_loss == seen->last_loss);
}

/* The group is this process alone, which is the first of one. */
static void test_run_with_validation(void **state) {
    Case *self = *state;
    AmError error;
    AmProcesses *processes;
    Seen seen = {0};
    AmRunResult result = {.size = sizeof result};
    const AmCallbacks callbacks = {
        .size = sizeof callbacks, .user = &seen, .on_step = see_step, .on_result = see_result};
    set(self->options, "watch", "output[0]");
    set(self->options, "eval", MODELS "mlp_tiny/model.hlo.pb");
    assert_int_equal(am_run(self->module, self->plan, self->options, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_string_equal(error.text, "eval: no held-out data (expected eval-data FILE)");
    set(self->options, "eval-data", MODELS "mlp_tiny/data.npz");
    set(self->options, "eval-every", "2");
    assert_int_equal(am_processes_join(&processes, -1, &error), AM_ERROR_USAGE);
    assert_null(processes);
    assert_int_equal(am_processes_join(&processes, 5, &error), AM_OK);
    assert_int_equal(am_processes_index(processes), 0);
    assert_int_equal(am_processes_count(processes), 1);
    AmStatus status =
        am_processes_run(processes, self->module, self->plan, self->options, &callbacks, &result, &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    am_processes_leave(processes, NULL);
    am_processes_leave(NULL, &error);
    assert_int_equal(am_processes_end(1, 1, NULL), 1); /* MPI was not started */
    assert_int_equal(seen.steps, 3);
    assert_int_equal(seen.results, 1);
    assert_true(seen.validated > 0);
    assert_true(seen.step_seconds == am_plan_step_seconds(self->plan));
    assert_int_equal(result.device_count, 2);
    assert_null(result.device_peak_bytes);
    set(self->options, "eval", NULL);
    assert_int_equal(am_run(self->module, self->plan, self->options, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "eval-data: no module to validate with"));
    set(self->options, "eval-data", NULL);
    set(self->options, "eval-every", NULL);
    set(self->options, "watch", "output[999]");
    assert_int_equal(am_run(self->module, self->plan, self->options, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "watch output[999]: expected output[0] to output["));
}

/* Strategies are in order; the plan of one has its step; texts and errors. */
static void test_sweep(void **state) {
    Case *self = *state;
    AmError error;
    AmOptions *options;
    AmSweep *sweep;
    AmPlan *plan;
    AmStrategy first = {.size = sizeof first}, row = {.size = sizeof row};
    char *text;
    assert_int_equal(am_options_new(&options, AM_COMMAND_SWEEP, &error), AM_OK);
    set(options, "micro-batches", "2");
    if (am_sweep(&sweep, self->module, self->cluster, options, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    int32_t count = am_sweep_count(sweep);
    assert_true(count >= 3);
    assert_int_equal(am_sweep_strategy(sweep, 0, &first, &error), AM_OK);
    for (int32_t k = 0; k < count; k++) {
        assert_int_equal(am_sweep_strategy(sweep, k, &row, &error), AM_OK);
        assert_int_equal(row.data * row.tensor * row.stages, 2);
        assert_int_equal(row.micro_batches, 2);
        if (!row.reason && row.fits) assert_true(row.step_seconds >= first.step_seconds);
    }
    assert_int_equal(am_sweep_strategy(sweep, count, &row, &error), AM_ERROR_USAGE);
    assert_int_equal(am_sweep_plan(&plan, sweep, 0, &error), AM_OK);
    assert_true(fabs(am_plan_step_seconds(plan) / first.step_seconds - 1) < 1e-9);
    am_plan_free(plan);
    assert_int_equal(am_sweep_print(sweep, AM_FORMAT_TEXT, &text, NULL, &error), AM_OK);
    assert_non_null(strstr(text, "strategies simulated"));
    am_free(text);
    assert_int_equal(am_sweep_print(sweep, AM_FORMAT_JSON, &text, NULL, &error), AM_OK);
    assert_int_equal(text[0], '{');
    am_free(text);
    assert_int_equal(am_sweep_print(sweep, AM_FORMAT_HTML, &text, NULL, &error), AM_ERROR_USAGE);
    am_sweep_free(sweep);
    const volatile sig_atomic_t cancel = 1;
    const AmCallbacks callbacks = {.size = sizeof callbacks, .cancel = &cancel};
    assert_int_equal(am_sweep(&sweep, self->module, self->cluster, options, &callbacks, &error),
                     AM_INTERRUPTED);
    assert_null(sweep);
    assert_int_equal(am_sweep(&sweep, NULL, self->cluster, options, NULL, &error), AM_ERROR_USAGE);
    am_options_free(options);
}

static void see_warning(void *user, AmMessage kind, const char *text) {
    int *warnings = user;
    *warnings += kind == AM_WARNING && strstr(text, "AUTOMAP_SECRET");
}

/* Joins two processes as torchrun does, on an address of the network, and runs; returns the warnings. */
static int count_warnings(Case *self, const char *process) {
    AmError error;
    AmProcesses *processes;
    int warnings = 0;
    const AmCallbacks callbacks = {.size = sizeof callbacks, .user = &warnings, .on_message = see_warning};
    setenv("RANK", process, 1);
    setenv("LOCAL_RANK", process, 1);
    if (am_processes_join(&processes, 30, &error) != AM_OK) return -1;
    am_processes_run(processes, self->module, self->plan, NULL, &callbacks, NULL, &error);
    am_processes_leave(processes, NULL);
    return warnings;
}

/* Process 0 warns of a run that strangers can join. On the CPU the run itself needs MPI and is refused. */
static void test_open_run_warns(void **state) {
    static const char *const names[] = {"RANK",        "LOCAL_RANK",  "WORLD_SIZE",    "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR", "MASTER_PORT", "AUTOMAP_SECRET"};
    char port[16];
    int child;
    snprintf(port, sizeof port, "%d", 20000 + (int)getpid() % 12000);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "0.0.0.0", 1);
    setenv("MASTER_PORT", port, 1);
    unsetenv("AUTOMAP_SECRET");
    pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0) _exit(count_warnings(*state, "1") == 0 ? 0 : 1);
    int warnings = count_warnings(*state, "0");
    assert_int_equal(waitpid(other, &child, 0), other);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) unsetenv(names[k]);
    assert_int_equal(warnings, 1);
    assert_true(WIFEXITED(child) && WEXITSTATUS(child) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_open_run_warns),
                                       cmocka_unit_test(test_run_with_validation),
                                       cmocka_unit_test(test_sweep)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
