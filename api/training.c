/* am_run() and am_processes_run(): training steps under a plan in the ranks of this process, with a callback
 * per step. Process 0 reports and writes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "api/options.h"
#include "api/run_profile.h"
#include "base/system/stop.h"
#include "executor/data/feed.h"
#include "executor/processes/mpi_wire.h"
#include "executor/run/run.h"

struct AmProcesses {
    ProcessGroup *group;
};

/* Sets the members of *settings that options exist for; their texts must outlive it. */
static AmStatus read_settings(RunOptions *settings, const AmOptions *options, AmError *error) {
    int32_t on_nan = RUN_STOP_ON_NAN;
    int64_t seed = 0, threads = 0, keep = 0, prefetch = 0;
    settings->steps = 1;
    settings->trace.steps = 3;
    option_integer(options, "steps", &settings->steps);
    option_integer(options, "seed", &seed);
    option_integer(options, "every", &settings->checkpoints.every);
    option_integer(options, "keep", &keep);
    option_integer(options, "threads", &threads);
    option_integer(options, "trace-steps", &settings->trace.steps);
    option_integer(options, "prefetch", &prefetch);
    option_choice(options, "on-nan", &on_nan);
    settings->device = option_text(options, "device");
    settings->comm = option_text(options, "comm");
    settings->tf32 = option_has(options, "tf32");
    settings->threads = (int32_t)threads;
    settings->state_path = option_text(options, "state");
    settings->data_count = option_texts(options, "data", &settings->data_paths);
    settings->shuffle = option_has(options, "shuffle");
    settings->prefetch = (int32_t)prefetch;
    settings->seed = (uint64_t)seed;
    settings->outputs_path = option_text(options, "outputs");
    settings->save_path = option_text(options, "save");
    settings->trace.path = option_text(options, "trace");
    settings->checkpoints.path = option_text(options, "checkpoint");
    settings->checkpoints.keep = (int32_t)keep;
    settings->checkpoints.resumes = option_has(options, "resume");
    settings->on_nan = (RunOnNan)on_nan;
    if (option_has(options, "trace-steps") && !settings->trace.path)
        return am_fail(error, AM_ERROR_USAGE, "", "--trace-steps needs --trace");
    return AM_OK;
}

typedef struct RunJob {
    const AmCallbacks *callbacks;
    ProcessGroup *processes; /* NULL: this process alone */
    bool reports;            /* process 0 */
    volatile sig_atomic_t stopped;
    Arena arena, warnings_arena;
    AmWarnings warnings;
    AmModule *validation; /* of the option "eval", or NULL */
    RunProfile profile;
    AmOutput *outputs; /* of a step: watched, then validated */
    RunReport report;
    AmRunResult result;
} RunJob;

/* ---- options ---- */

/* Reads "eval" and its options; the module of a validation may train nothing. */
static AmStatus read_validation(RunValidation *validation, RunJob *job, const AmOptions *options,
                                AmError *error) {
    static const char *const others[] = {"eval-data", "eval-every", "eval-roles"};
    const char *path = option_text(options, "eval");
    for (size_t k = 0; k < sizeof others / sizeof *others && !path; k++)
        if (option_has(options, others[k]))
            return am_fail(error, AM_ERROR_USAGE, "",
                           "%s%s: no module to validate with (expected %seval MODEL)", options->dashes,
                           others[k], options->dashes);
    if (!path) return AM_OK;
    validation->data_count = option_texts(options, "eval-data", &validation->data_paths);
    if (validation->data_count == 0)
        return am_fail(error, AM_ERROR_USAGE, "", "%seval: no held-out data (expected %seval-data FILE)",
                       options->dashes, options->dashes);
    option_integer(options, "eval-every", &validation->every);
    TRY(am_module_read(&job->validation, path, option_text(options, "eval-roles"), error));
    TRY(api_check_module(job->validation, error));
    validation->context = job->validation->context;
    const AmWarnings *warnings = &validation->context->canonical->warnings;
    for (int32_t k = 0; k < warnings->count && job->reports; k++)
        api_message(job->callbacks, AM_WARNING, "%s", warnings->texts[k]);
    return AM_OK;
}

/* Opens the options of a run that need the module or files. */
static AmStatus open_job(RunJob *job, RunOptions *settings, const AmModule *module, const AmOptions *options,
                         AmError *error) {
    TRY(read_settings(settings, options, error));
    TRY(read_validation(&settings->validation, job, options, error));
    /* An entry of "watch": output[2]. */
    const char *const *values;
    int32_t count = option_texts(options, "watch", &values);
    int32_t *watch = ARENA_ARRAY(&job->arena, int32_t, count + 1);
    if (!watch) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) {
        char *end = NULL;
        long output = strncmp(values[k], "output[", 7) == 0 ? strtol(values[k] + 7, &end, 10) : -1;
        if (!end || end == values[k] + 7 || strcmp(end, "]") != 0 || output < 0 ||
            output >= module->context->roles->output_count)
            return am_fail(error, AM_ERROR_USAGE, "", "%swatch %.60s: expected output[0] to output[%d]",
                           options->dashes, values[k], module->context->roles->output_count - 1);
        watch[k] = (int32_t)output;
    }
    settings->watch = watch;
    settings->watch_count = count;
    int32_t validated = job->validation ? job->validation->context->roles->output_count + 1 : 0;
    job->outputs = ARENA_ARRAY(&job->arena, AmOutput, settings->watch_count + validated + 1);
    if (!job->outputs) return am_fail_memory(error, settings->watch_count + validated);
    if (!job->reports) return AM_OK;
    return run_profile_open(&job->profile, &job->arena, option_text(options, "profile"), settings, error);
}

/* ---- reports ---- */

static void report_step(void *user, const RunStep *step) {
    RunJob *job = user;
    const AmCallbacks *callbacks = job->callbacks;
    const RunValidated *validated = step->validated;
    AmOutput *outputs = job->outputs;
    AmStep shown = {.size = sizeof shown,
                    .step = step->step,
                    .loss = step->loss,
                    .seconds = step->seconds,
                    .examples = step->examples,
                    .tokens = step->tokens,
                    .planned_bytes = step->planned_bytes,
                    .watched_count = step->watched_count,
                    .watched = outputs,
                    .validated = outputs + step->watched_count};
    for (int32_t k = 0; k < step->watched_count; k++)
        outputs[k] = (AmOutput){.number = step->watched[k].output,
                                .count = step->watched[k].count,
                                .values = step->watched[k].values};
    if (validated) {
        shown.validated_count = validated->count;
        shown.validated_batches = validated->batches;
        shown.validated_seconds = validated->seconds;
    }
    for (int32_t k = 0; k < shown.validated_count; k++)
        outputs[step->watched_count + k] = (AmOutput){.number = validated->outputs[k].output,
                                                      .is_loss = validated->outputs[k].is_loss,
                                                      .is_integer = validated->outputs[k].is_integer,
                                                      .count = 1,
                                                      .values = &validated->outputs[k].value};
    if (callbacks->on_step(callbacks->user, &shown) != 0) stop_flag_set(&job->stopped);
}

static void report_note(void *user, const char *text) {
    const RunJob *job = user;
    if (job->reports) api_message(job->callbacks, AM_NOTE, "%s", text);
}

/* Predicts the plan. The prediction of a file that was edited by hand belongs to other decisions and is
 * computed again; the plan itself is unchanged, since processes compare it. */
static AmStatus predict(Plan *predicted, RunJob *job, PlanContext *context, const Plan *plan,
                        AmError *error) {
    const SimulationOptions options = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                       .with_details = true};
    Arena scratch = {0};
    Cluster *cluster = NULL;
    Simulation *simulation;
    *predicted = *plan;
    if (!plan->is_changed) return AM_OK;
    AmStatus status = cluster_from_json(&cluster, &scratch, plan->cluster_description, "the plan", error);
    if (status == AM_OK)
        status = simulate_plan(&simulation, &scratch, context, plan, cluster, &options, error);
    if (status == AM_OK) status = simulation_predict(predicted, &job->arena, simulation, error);
    cluster_free(cluster);
    arena_free(&scratch);
    return status;
}

/* Calls on_result with the figures of the run; job->result keeps those that are no arrays. */
static AmStatus report_result(RunJob *job, const Plan *predicted, AmError *error) {
    const RunReport *report = &job->report;
    const AmCallbacks *callbacks = job->callbacks;
    AmRunResult *result = &job->result;
    *result = (AmRunResult){.size = sizeof *result,
                            .steps = report->steps,
                            .seconds_per_step = report->seconds_per_step,
                            .first_loss = report->first_loss,
                            .last_loss = report->last_loss,
                            .predicted_seconds = predicted ? predicted->predicted_step_seconds : NAN,
                            .not_finite_steps = report->not_finite_steps,
                            .first_not_finite = report->first_not_finite,
                            .resident_bytes = report->resident_bytes,
                            .peak_resident_bytes = report->peak_resident_bytes,
                            .early_resident_bytes = report->resident_bytes_early,
                            .channel_bytes = report->channel_bytes,
                            .compile_seconds = report->compile_seconds,
                            .graphs = report->graphs,
                            .graph_nodes = report->graph_nodes,
                            .device_count = report->device_count};
    for (int32_t d = 0; d < report->device_count; d++) {
        int64_t bytes = report->peak_bytes[d] + report->scratch_bytes[d];
        if (bytes > result->peak_bytes) result->peak_bytes = bytes;
    }
    if (!callbacks->on_result || !job->reports) return AM_OK;
    AmRunResult shown = *result;
    shown.carried_module = predicted && predicted->carried_sha256 ? predicted->module_name : NULL;
    shown.carried_sha256 = predicted ? predicted->carried_sha256 : NULL;
    shown.device_peak_bytes = report->peak_bytes;
    shown.device_scratch_bytes = report->scratch_bytes;
    if (predicted) {
        int64_t *bytes = ARENA_ARRAY(&job->arena, int64_t, report->device_count + 1);
        if (!bytes) return am_fail_memory(error, report->device_count);
        for (int32_t d = 0; d < report->device_count && d < predicted->device_count; d++)
            bytes[d] = predicted->predicted[d].peak_bytes;
        shown.device_predicted_bytes = bytes;
    }
    callbacks->on_result(callbacks->user, &shown);
    return AM_OK;
}

/* ---- calls ---- */

static AmStatus run_training(RunJob *job, AmModule *module, const AmPlan *given, const AmOptions *options,
                             AmError *error) {
    const Plan *plan = given ? given->plan : NULL;
    Plan predicted;
    RunOptions settings = {.plan = plan,
                           .processes = job->processes,
                           .steps = 1,
                           .interrupted = job->callbacks->cancel,
                           .stopped = &job->stopped,
                           .on_step = job->callbacks->on_step ? report_step : NULL,
                           .on_note = report_note,
                           .user = job,
                           .warnings = &job->warnings};
    bool is_inference = plan && json_is_true(json_object_get(plan->settings, "inference"));
    if (!is_inference && !option_has(options, "inference")) TRY(api_check_trains(module, error));
    TRY(open_job(job, &settings, module, options, error));
    if (plan && job->reports) TRY(predict(&predicted, job, module->context, plan, error));
    AmStatus status = run_module(module->context, &settings, &job->arena, &job->report, error);
    for (int32_t k = 0; k < job->warnings.count && job->reports; k++)
        api_message(job->callbacks, AM_WARNING, "%s", job->warnings.texts[k]);
    if (status != AM_OK && status != AM_INTERRUPTED) return status;
    if (job->reports) TRY(run_profile_end(&job->profile, error));
    TRY(report_result(job, plan && job->reports ? &predicted : NULL, error));
    return status;
}

static AmStatus run_in(ProcessGroup *processes, AmModule *module, const AmPlan *plan,
                       const AmOptions *options, const AmCallbacks *callbacks, AmRunResult *result,
                       AmError *error) {
    AmCallbacks own;
    AmStatus status;
    RunJob job = {
        .callbacks = &own, .processes = processes, .reports = !processes || processes->process == 0};
    job.warnings.arena = &job.warnings_arena;
    TRY(api_require(module, "module", error));
    TRY(api_check_options(options, AM_COMMAND_RUN, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    if (result) TRY(api_copy_facts(result, result->size, &job.result, sizeof job.result, error));
    if (plan && plan->module != module->context)
        return am_fail(error, AM_ERROR_USAGE, "", "plan: of another module handle");
    TRY(api_check_module(module, error));
    if (processes && processes->is_open && job.reports)
        api_message(&own, AM_WARNING,
                    "anyone who reaches this machine's port can join the run: set AUTOMAP_SECRET to the same "
                    "words for all processes");
    if (plan && job.reports) api_note_carried(&own, plan);
    API_IN_C_LOCALE(status, run_training(&job, module, plan, options, error), error);
    if (result && (status == AM_OK || status == AM_INTERRUPTED))
        api_copy_facts(result, result->size, &job.result, sizeof job.result, NULL);
    run_profile_close(&job.profile);
    am_module_free(job.validation);
    arena_free(&job.warnings_arena);
    arena_free(&job.arena);
    return status;
}

AmStatus am_run(AmModule *module, const AmPlan *plan, const AmOptions *options, const AmCallbacks *callbacks,
                AmRunResult *result, AmError *error) {
    api_begin(error);
    return run_in(NULL, module, plan, options, callbacks, result, error);
}

/* ---- processes ---- */

AmStatus am_processes_join(AmProcesses **processes, double join_seconds, AmError *error) {
    const ProcessGroupOptions options = {.join_seconds = join_seconds};
    api_begin(error);
    TRY(api_require(processes, "processes", error));
    *processes = NULL;
    if (!(join_seconds >= 0))
        return am_fail(error, AM_ERROR_USAGE, "", "join_seconds %g: expected a number of at least 0",
                       join_seconds);
    AmProcesses *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    AmStatus status;
    API_IN_C_LOCALE(status, process_group_open(&self->group, &options, error), error);
    if (status == AM_OK) *processes = self;
    else free(self);
    return status;
}

int32_t am_processes_index(const AmProcesses *processes) {
    return processes ? processes->group->process : 0;
}

int32_t am_processes_count(const AmProcesses *processes) {
    return processes ? processes->group->count : 0;
}

AmStatus am_processes_run(AmProcesses *processes, AmModule *module, const AmPlan *plan,
                          const AmOptions *options, const AmCallbacks *callbacks, AmRunResult *result,
                          AmError *error) {
    api_begin(error);
    TRY(api_require(processes, "processes", error));
    AmStatus status = run_in(processes->group, module, plan, options, callbacks, result, error);
    if (status != AM_OK && status != AM_INTERRUPTED && error)
        process_group_abort_for(processes->group, error);
    return status;
}

void am_processes_leave(AmProcesses *processes, const AmError *failure) {
    if (!processes) return;
    if (failure) process_group_abort_for(processes->group, failure);
    process_group_close(processes->group);
    free(processes);
}

int am_processes_end(int is_orderly, double seconds, void (*give_up)(void)) {
    return mpi_wire_end(is_orderly, seconds, give_up);
}
