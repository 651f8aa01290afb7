/* am_search(): options, module and cluster in, a plan with the record of its search out.
 *
 * search_settings_read() translates the options, read_named_files() reads the files that they name and
 * chooses the form of the module, and target_search() of planners/forms searches. If no plan fits,
 * explain_infeasible() finds changes with which one would fit. With "measure" the best plans are run on
 * this machine, and the fastest one is taken.
 */
#include <math.h>

#include "api/measure.h"
#include "api/search_settings.h"
#include "api/work.h"
#include "base/system/clock.h"
#include "lowering/plan_file/plan_names.h"
#include "planners/infeasible.h"

typedef struct SearchJob {
    AmPlan *plan;
    SearchSettings settings, unrestricted; /* `unrestricted`: without the option "for" */
    FormSearch search;                     /* its result is that of the plan */
    double seconds;                        /* limit of search and measurements together; 0: none */
    double deadline;                       /* of both: clock_seconds(), or 0 */
    const AmCallbacks *callbacks;
} SearchJob;

/* Replaces the search's error by the reason why nothing fits, with changes that would suffice. */
static AmStatus explain_infeasible(SearchJob *job, AmError *error) {
    Text json = {0};
    InfeasibleReport report = {0};
    AmError explained = {0};
    AmPlan *plan = job->plan;
    AmStatus status = infeasible_report(&report, &plan->arena, plan->primary, job->search.cluster,
                                        &job->search.scope, &plan->result, &explained);
    if (report.details && job->callbacks->on_infeasible) {
        json_write(&json, report.details, JSON_STYLE_COMPACT);
        if (!json.failed) job->callbacks->on_infeasible(job->callbacks->user, json.data);
        text_free(&json);
    }
    json_decref(report.details);
    if (status == AM_OK && !report.line.failed && error) {
        *error = (AmError){0};
        am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", report.line.data);
    }
    text_free(&report.line);
    return AM_ERROR_INFEASIBLE;
}

/* Returns whether a measured plan may become the plan of the search. */
static bool may_measure(void *user, const PlanCandidate *candidate) {
    return target_may_take(user, candidate);
}

/* Runs plans of the search, and takes the fastest one. */
static AmStatus measure(SearchJob *job, AmError *error) {
    AmPlan *plan = job->plan;
    const SearchScope *scope = &job->search.scope;
    PlanMeasurements *measurements;
    const MeasureCall call = {.arena = &plan->arena,
                              .module = plan->module,
                              .pool = &plan->result.pool,
                              .allows = may_measure,
                              .user = &job->search,
                              .runs = scope->request->measures,
                              .deadline = job->deadline,
                              .seed = scope->seed,
                              .watch = scope->request->callbacks.watch,
                              .interrupted = scope->request->callbacks.interrupted};
    TRY(measure_plans(&measurements, &call, error));
    plan->measurements = measurements;
    plan->result.interrupted |= measurements->interrupted;
    if (measurements->chosen >= 0)
        target_take(&plan->result, &measurements->runs[measurements->chosen].candidate);
    return AM_OK;
}

/* Sets who receives the progress of both requests, and the flag that interrupts them. */
static void set_observers(SearchJob *job, SearchWatch *watch, const volatile sig_atomic_t *interrupted) {
    SearchCallbacks *callbacks[] = {&job->settings.request.callbacks, &job->unrestricted.request.callbacks};
    for (int32_t k = 0; k < 2; k++) {
        callbacks[k]->watch = watch;
        callbacks[k]->interrupted = interrupted;
    }
}

static AmStatus run_search(ApiWork *work, AmError *error) {
    SearchJob *job = work->user;
    AmPlan *plan = job->plan;
    const SearchScope *scope = &job->search.scope;
    set_observers(job, work->watch, api_work_flag(work));
    job->deadline = job->seconds > 0 ? clock_seconds() + job->seconds : 0;
    AmStatus status = target_search(&job->search, &plan->targets, &job->unrestricted.scope, error);
    plan->primary = job->search.primary;
    if (status == AM_ERROR_INFEASIBLE && plan->result.nearest) status = explain_infeasible(job, error);
    /* An interrupt may come where no phase notices it: between two of them, or in the last one. */
    plan->result.interrupted |= stop_flag_is_set(scope->request->callbacks.interrupted);
    if (status == AM_OK && scope->request->measures > 0 && !plan->result.interrupted)
        status = measure(job, error);
    set_observers(job, NULL, api_work_flag(work));
    return status;
}

/* Makes a cluster with measured operators; the caller's cluster does not change. */
static AmStatus attach_profile(SearchJob *job, const char *path, AmError *error) {
    AmPlan *plan = job->plan;
    TRY(profile_open(&plan->profile, error));
    TRY(profile_read(plan->profile, path, error));
    const Cluster *given = job->search.cluster;
    TRY(cluster_from_json(&plan->cluster, &plan->arena, given->description, given->name, error));
    job->search.cluster = plan->cluster;
    return profile_attach(plan->profile, plan->cluster, path, error);
}

/* The part of a time limit for the search, if measurements follow it. */
#define SEARCH_SHARE 0.5

/* Reads everything that the options name, and fills the request of the search. */
static AmStatus read_named_files(SearchJob *job, const AmOptions *options, AmError *error) {
    Plan *initial = NULL;
    AmPlan *plan = job->plan;
    FormSearch *search = &job->search;
    SearchSettings *settings = &job->settings, *unrestricted = &job->unrestricted;
    const char *profile = option_text(options, "profile"), *path = option_text(options, "init-plan");
    if (profile) TRY(attach_profile(job, profile, error));
    if (path) TRY(plan_read(&initial, &plan->root, &plan->arena, plan->module, path, error));
    settings->request.space.initial = unrestricted->request.space.initial = initial;
    TRY(module_forms_find(&search->forms, plan->module, search->cluster, &settings->scope, error));
    const PlanContext *primary = search->forms.chosen;
    TRY(search_settings_complete(settings, &plan->arena, options, primary, error));
    TRY(search_settings_complete(unrestricted, &plan->arena, options, primary, error));
    search->arena = &plan->arena;
    search->result = &plan->result;
    search->scope = settings->scope;
    job->seconds = settings->scope.limits.seconds;
    if (search->scope.request->measures > 0) search->scope.limits.seconds *= SEARCH_SHARE;
    unrestricted->scope.limits.seconds = search->scope.limits.seconds;
    settings->request.callbacks.on_episode = job->callbacks->on_episode;
    settings->request.callbacks.user = job->callbacks->user;
    return AM_OK;
}

static AmStatus finish(SearchJob *job, const AmOptions *options, AmError *error) {
    AmPlan *self = job->plan;
    self->plan = self->result.plan;
    self->settings = search_settings_to_json(&job->settings, options);
    if (self->settings && self->result.exact_space)
        json_object_set_new(self->settings, "exact_space", json_string(self->result.exact_space));
    if (!self->settings) return am_fail_memory(error, 0);
    if (self->measurements)
        json_object_set_new(self->settings, "measurements", measurements_to_json(self->measurements, false));
    /* The step of each baseline that fits. */
    json_t *baselines = json_object();
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (isfinite(self->result.baselines[e].seconds))
            json_object_set_new(baselines, baseline_name((Baseline)e),
                                json_real(self->result.baselines[e].seconds));
    json_object_set_new(self->settings, "baselines", baselines);
    self->plan->settings = self->settings;
    self->is_searched = true;
    self->memory_fraction = job->settings.scope.request->constraints.memory_fraction;
    return plan_names_prepare(self->module, self->primary->rewriting, error);
}

AmStatus am_search(AmPlan **plan, AmModule *module, const AmCluster *cluster, const AmOptions *options,
                   const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    *plan = NULL;
    TRY(api_require(module, "module", error));
    TRY(api_require(cluster, "cluster", error));
    TRY(api_check_options(options, AM_COMMAND_SEARCH, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    TRY(api_check_module(module, error));
    TRY(api_check_arrays(module, error));
    if (!option_has(options, "inference")) TRY(api_check_trains(module, error));
    if (option_has(options, "measure")) TRY(measure_check_cluster(cluster->cluster, error));
    SearchJob job = {
        .search.cluster = cluster->cluster, .callbacks = &own, .plan = api_new_plan(module, error)};
    if (!job.plan) return AM_ERROR_INTERNAL;
    API_IN_C_LOCALE(status,
                    search_settings_read(&job.settings, &job.plan->arena, job.plan->module, options, error),
                    error);
    if (status != AM_OK) goto fail;
    API_IN_C_LOCALE(
        status,
        search_settings_without_target(&job.unrestricted, &job.settings, &job.plan->arena, options, error),
        error);
    if (status != AM_OK) goto fail;
    if (job.settings.narrowed_by && !(options && options->has_noted))
        api_message(&own, AM_NOTE, "%s applies to one-stage plans: pipelines are not searched",
                    job.settings.narrowed_by);
    API_IN_C_LOCALE(status, read_named_files(&job, options, error), error);
    if (status != AM_OK) goto fail;
    ApiWork work = {.callbacks = &own, .run = run_search, .user = &job};
    TRY_OR_FAIL(api_work_run(&work, job.settings.scope.limits.evaluations, error));
    TRY_OR_FAIL(finish(&job, options, error));
    const Plan *found = job.plan->plan;
    const char *schedule = option_text(options, "schedule");
    if (schedule && found->stage_count > 1 && found->schedule && strcmp(schedule, found->schedule) != 0)
        api_message(&own, AM_WARNING, "the stages found cannot run by --schedule %s: the plan has %s",
                    schedule, found->schedule);
    if (job.plan->result.interrupted)
        status = am_fail(error, AM_INTERRUPTED, "", "interrupted: the plan is the best so far");
    *plan = job.plan;
    return status;
fail:
    am_plan_free(job.plan);
    return status;
}
