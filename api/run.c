/* am_run(): training steps under a plan in this process, with a callback per step. */
#include "api/handles.h"
#include "api/run_settings.h"
#include "base/system/stop.h"

AmStatus run_settings_read(AmRunOptions *settings, const AmOptions *options, AmError *error) {
    int32_t on_nan = AM_RUN_STOP_ON_NAN;
    int64_t seed = 0, threads = 0, keep = 0, prefetch = 0;
    settings->steps = 1;
    settings->trace_steps = 3;
    option_integer(options, "steps", &settings->steps);
    option_integer(options, "seed", &seed);
    option_integer(options, "every", &settings->checkpoint_every);
    option_integer(options, "keep", &keep);
    option_integer(options, "threads", &threads);
    option_integer(options, "trace-steps", &settings->trace_steps);
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
    settings->trace_path = option_text(options, "trace");
    settings->checkpoint_path = option_text(options, "checkpoint");
    settings->checkpoint_keep = (int32_t)keep;
    settings->resume = option_has(options, "resume");
    settings->on_nan = (AmRunOnNan)on_nan;
    if (option_has(options, "trace-steps") && !settings->trace_path)
        return am_fail(error, AM_ERROR_USAGE, "", "--trace-steps needs --trace");
    return AM_OK;
}

typedef struct RunJob {
    const AmCallbacks *callbacks;
    volatile sig_atomic_t stop;
} RunJob;

static void report_step(void *user, const AmRunStep *step) {
    RunJob *job = user;
    const AmCallbacks *callbacks = job->callbacks;
    const AmStep shown = {.size = sizeof shown,
                          .step = step->step,
                          .loss = step->loss,
                          .seconds = step->seconds,
                          .examples = step->examples,
                          .tokens = step->tokens};
    if (callbacks->on_step && callbacks->on_step(callbacks->user, &shown) != 0) stop_flag_set(&job->stop);
    if (stop_flag_is_set(callbacks->cancel)) stop_flag_set(&job->stop);
}

static void report_note(void *user, const char *text) {
    RunJob *job = user;
    api_message(job->callbacks, AM_NOTE, "%s", text);
}

static AmStatus run(AmModule *module, const AmPlan *plan, const AmOptions *options, RunJob *job, Arena *arena,
                    AmRunReport *report, AmError *error) {
    AmWarnings warnings = {.arena = arena};
    AmRunOptions settings = {.plan = plan ? plan->plan : NULL,
                             .interrupted = &job->stop,
                             .on_step = report_step,
                             .on_note = report_note,
                             .user = job,
                             .warnings = &warnings};
    TRY(run_settings_read(&settings, options, error));
    bool is_inference = plan && json_is_true(json_object_get(plan->plan->settings, "inference"));
    if (plan && !is_inference && !option_has(options, "inference")) TRY(api_check_trains(module, error));
    AmStatus status = run_module(module->context, &settings, arena, report, error);
    for (int32_t k = 0; k < warnings.count; k++)
        api_message(job->callbacks, AM_WARNING, "%s", warnings.texts[k]);
    return status;
}

AmStatus am_run(AmModule *module, const AmPlan *plan, const AmOptions *options, const AmCallbacks *callbacks,
                AmRunResult *result, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    Arena arena = {0};
    AmRunReport report = {0};
    AmRunResult all = {0};
    api_begin(error);
    TRY(api_require(module, "module", error));
    TRY(api_check_options(options, AM_COMMAND_RUN, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    if (result) TRY(api_copy_facts(result, result->size, &all, sizeof all, error));
    if (plan && plan_context_as_read(plan->whole) != module->context)
        return am_fail(error, AM_ERROR_USAGE, "", "plan: of another module handle");
    TRY(api_check_module(module, error));
    RunJob job = {.callbacks = &own, .stop = stop_flag_is_set(own.cancel)};
    API_IN_C_LOCALE(status, run(module, plan, options, &job, &arena, &report, error), error);
    if (status == AM_INTERRUPTED) am_fail(error, AM_INTERRUPTED, "", "interrupted after a step");
    if (status == AM_OK || status == AM_INTERRUPTED) {
        all.steps = report.steps;
        all.seconds_per_step = report.seconds_per_step;
        all.first_loss = report.first_loss;
        all.last_loss = report.last_loss;
        for (int32_t d = 0; d < report.device_count; d++) {
            int64_t bytes = report.peak_bytes[d] + report.scratch_bytes[d];
            if (bytes > all.peak_bytes) all.peak_bytes = bytes;
        }
        if (result) api_copy_facts(result, result->size, &all, sizeof all, NULL);
    }
    arena_free(&arena);
    return status;
}
