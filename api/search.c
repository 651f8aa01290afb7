/* am_search(): options, module and cluster in, a plan with its record out. */
#include <stdlib.h>

#include "api/search_settings.h"
#include "api/work.h"
#include "planners/infeasible.h"

typedef struct SearchJob {
    AmPlan *plan;
    const Cluster *cluster;
    SearchSettings settings;
    const AmCallbacks *callbacks;
} SearchJob;

/* The reason why nothing fits and sufficient changes, in place of the search's own error. */
static AmStatus explain_infeasible(SearchJob *job, AmError *error) {
    Text line = {0}, json = {0};
    json_t *details = NULL;
    AmError explained = {0};
    AmPlan *plan = job->plan;
    AmStatus status =
        infeasible_report(&details, &line, &plan->arena, plan->whole, job->cluster, &job->settings.options,
                          &job->settings.micro_batching, &plan->result, &explained);
    if (details && job->callbacks->on_infeasible) {
        json_write(&json, details, JSON_STYLE_COMPACT);
        if (!json.failed) job->callbacks->on_infeasible(job->callbacks->user, json.data);
        text_free(&json);
    }
    json_decref(details);
    if (status == AM_OK && !line.failed && error) {
        *error = (AmError){0};
        am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", line.data);
    }
    text_free(&line);
    return AM_ERROR_INFEASIBLE;
}

static AmStatus run_search(ApiWork *work, AmError *error) {
    SearchJob *job = work->user;
    AmPlan *plan = job->plan;
    SearchOptions *options = &job->settings.options;
    options->watch = work->watch;
    options->interrupted = api_work_flag(work);
    AmError refusal = {0};
    AmStatus status = plan_search(&plan->result, &plan->arena, plan->whole, job->cluster, options,
                                  &job->settings.micro_batching, &refusal);
    bool is_pipeline = status == AM_OK && (plan->result.plan->stage_count > 1 || plan->result.interrupted);
    bool may_loop = job->settings.layers == LAYERS_AUTO && plan->whole->layer_map;
    if (may_loop && !is_pipeline && status != AM_INTERRUPTED) {
        const PlanRewriting rewriting = {.fuses_attention = plan->whole->rewriting.fuses_attention};
        PlanContext *loop;
        TRY(plan_context_rewrite(&loop, plan->module, rewriting, error));
        SearchResult split = plan->result;
        AmError of_loop = {0};
        plan->result = (SearchResult){0};
        AmStatus looped = plan_search(&plan->result, &plan->arena, loop, job->cluster, options,
                                      &job->settings.micro_batching, &of_loop);
        if (looped != AM_OK && status == AM_OK) {
            plan->result = split;
        } else {
            plan->whole = loop;
            status = looped;
            refusal = of_loop;
        }
    }
    if (status != AM_OK && error) *error = refusal;
    if (status == AM_ERROR_INFEASIBLE && plan->result.nearest) status = explain_infeasible(job, error);
    options->watch = NULL;
    return status;
}

/* The cluster with measured operators; the caller's cluster stays as it is. */
static AmStatus attach_profile(SearchJob *job, const char *path, AmError *error) {
    AmPlan *plan = job->plan;
    TRY(profile_open(&plan->profile, error));
    TRY(profile_read(plan->profile, path, error));
    TRY(cluster_from_json(&plan->cluster, &plan->arena, job->cluster->description, job->cluster->name,
                          error));
    job->cluster = plan->cluster;
    return profile_attach(plan->profile, plan->cluster, path, error);
}

/* Finds the module that is searched: as read, or with one parameter for each layer. */
static AmStatus choose_layers(SearchJob *job, const char *initial, AmError *error) {
    AmPlan *plan = job->plan;
    SearchSettings *settings = &job->settings;
    AmError refusal = {0};
    if (settings->layers == LAYERS_AUTO && (initial || job->cluster->device_count < 2))
        settings->layers = LAYERS_LOOP;
    if (settings->layers == LAYERS_LOOP) return AM_OK;
    AmStatus status =
        plan_context_rewrite(&plan->whole, plan->module, (PlanRewriting){.splits_layers = true}, &refusal);
    if (status == AM_ERROR_INFEASIBLE && settings->layers == LAYERS_AUTO) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    return status;
}

/* Reads everything that the options name. */
static AmStatus prepare(SearchJob *job, const AmOptions *options, AmError *error) {
    Plan *initial = NULL;
    AmPlan *plan = job->plan;
    SearchOptions *search = &job->settings.options;
    const char *profile = option_text(options, "profile"), *path = option_text(options, "init-plan");
    if (profile) TRY(attach_profile(job, profile, error));
    TRY(choose_layers(job, path, error));
    if (path && search->searcher == SEARCHER_BASELINE)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: --expert %s starts from no plan",
                       search->called);
    if (path && search->searcher == SEARCHER_RANDOM)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: --searcher random starts from no plan");
    if (path) TRY(plan_read(&initial, &plan->root, &plan->arena, plan->module, path, error));
    TRY(search_settings_fuse(&plan->whole, &job->settings, initial, options, error));
    TRY(search_settings_complete(&job->settings, &plan->arena, options, plan->whole, error));
    const PlanContext *given = initial ? plan_context_whole(initial->context) : plan->whole;
    if (given != plan->whole)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: its layers are %s (expected --layers %s)",
                       given->layer_map ? "split" : "not split", given->layer_map ? "split" : "loop");
    search->initial = initial;
    search->on_episode = job->callbacks->on_episode;
    search->user = job->callbacks->user;
    return AM_OK;
}

static AmStatus finish(SearchJob *job, const AmOptions *options, AmError *error) {
    AmPlan *self = job->plan;
    self->plan = self->result.plan;
    self->settings = search_settings_to_json(&job->settings, options);
    if (self->settings && self->result.exact_space)
        json_object_set_new(self->settings, "exact_space", json_string(self->result.exact_space));
    if (!self->settings) return am_fail_memory(error, 0);
    self->plan->settings = self->settings;
    self->is_searched = true;
    return AM_OK;
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
    if (!option_has(options, "inference")) TRY(api_check_trains(module, error));
    SearchJob job = {.cluster = cluster->cluster, .callbacks = &own, .plan = api_new_plan(module, error)};
    if (!job.plan) return AM_ERROR_INTERNAL;
    API_IN_C_LOCALE(status, search_settings_read(&job.settings, &job.plan->arena, options, error), error);
    if (status != AM_OK) goto fail;
    if (job.settings.narrowed_by && !(options && options->has_noted))
        api_message(&own, AM_NOTE, "%s applies to one-stage plans: pipelines are not searched",
                    job.settings.narrowed_by);
    API_IN_C_LOCALE(status, prepare(&job, options, error), error);
    if (status != AM_OK) goto fail;
    ApiWork work = {.callbacks = &own, .run = run_search, .user = &job};
    TRY_OR_FAIL(api_work_run(&work, job.settings.options.evaluations, error));
    TRY_OR_FAIL(finish(&job, options, error));
    if (job.plan->result.interrupted)
        status = am_fail(error, AM_INTERRUPTED, "", "interrupted: the plan is the best so far");
    *plan = job.plan;
    return status;
fail:
    am_plan_free(job.plan);
    return status;
}
