/* am_search(): options, module and cluster in, a plan with its record out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/measure.h"
#include "api/search_settings.h"
#include "api/work.h"
#include "base/system/clock.h"
#include "planners/devices/device_search.h"
#include "planners/export/export_check.h"
#include "planners/infeasible.h"
#include "planners/plan_search.h"
#include "planners/problem/attention_choice.h"
#include "planners/sample_search.h"
#include "planners/single_stage/single_stage.h"

typedef struct SearchJob SearchJob;

/* A form of the module, by exact rewritings, that a search takes. */
typedef struct ModuleForm {
    PlanContext *module;
    PlanContext *other; /* the form with the other choice of attention, if that is made; or NULL */
    bool is_open;       /* attention is to be chosen when the form is searched */
    /* Returns whether it is searched after forms with the plan job->plan (NULL: nothing fits). */
    bool (*is_wanted)(const SearchJob *job, const Plan *found);
} ModuleForm;
enum { MODULE_FORMS = 3 };

struct SearchJob {
    AmPlan *plan;
    const Cluster *cluster;
    SearchSettings settings;
    SearchSettings unrestricted;    /* the same without a target */
    ModuleForm forms[MODULE_FORMS]; /* [form_count] in the order in which they are searched */
    int32_t form_count;
    bool takes_kept_first; /* the form with the source's recomputation comes first */
    const AmCallbacks *callbacks;
    double seconds;      /* limit of search and measurements together; 0: none */
    double start;        /* of the first search */
    int64_t evaluations; /* of all searches so far */
    int32_t later;       /* searches after those of the forms */
};

/* Returns whether the limits of evaluations and of time, if there are such, allow a further search. */
static bool has_budget(const SearchJob *job) {
    return search_has_budget(&job->settings.options, job->evaluations, job->start);
}

/* Options with a part 1/searches of the remaining limits. */
static SearchOptions share_budget(const SearchJob *job, int32_t searches) {
    SearchOptions part = job->settings.options;
    int64_t left = search_evaluations_left(&part, job->evaluations);
    if (left != INT64_MAX) part.evaluations = left > searches ? left / searches : 1;
    if (part.seconds > 0) part.seconds = fmax((job->start + part.seconds - clock_seconds()) / searches, 1e-3);
    return part;
}

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

/* Returns whether bound and memory are computed once, after the searches of all forms of the module. */
static bool finishes_later(const SearchJob *job) {
    const SearchOptions *options = &job->settings.options;
    return options->seconds == 0 && job->cluster->type_count == 1 && options->quota_count == 0 &&
           !options->explores_prices;
}

static AmStatus search_whole(SearchJob *job, PlanContext *whole, int32_t searches, AmError *error) {
    AmPlan *plan = job->plan;
    SearchOptions options = share_budget(job, searches);
    plan->result = (SearchResult){0};
    options.nested.finishes_later = finishes_later(job);
    AmStatus status = device_search(&plan->result, &plan->arena, whole, job->cluster, &options,
                                    &job->settings.micro_batching, error);
    job->evaluations += plan->result.evaluations;
    return status;
}

/* Searches a form of the module, which becomes plan->whole, with a part 1/searches of the limits; where
 * nothing fits, its form with the other choice of attention, too. */
static AmStatus search_form(SearchJob *job, const ModuleForm *form, int32_t searches, AmError *error) {
    AmPlan *plan = job->plan;
    PlanContext *other = form->other;
    AmError refusal = {0};
    plan->whole = form->module;
    if (form->is_open && job->settings.chooses_attention)
        TRY(attention_choose(&plan->whole, &other, job->cluster, error));
    else if (form->is_open && job->forms[0].module->unfused)
        TRY(plan_context_fuse(&plan->whole, plan->whole, error));
    AmStatus status = search_whole(job, plan->whole, searches, error);
    /* A large module with a plan of another form is refused where that is faster by far. */
    bool is_refused = job->settings.options.nested.form_seconds > 0 && sample_is_wanted(form->module);
    if (status != AM_ERROR_INFEASIBLE || !other || !has_budget(job) || is_refused) return status;
    const SearchResult result = plan->result;
    status = search_whole(job, other, searches, &refusal);
    if (status == AM_ERROR_INFEASIBLE) plan->result = result;
    else plan->whole = other;
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE && error) *error = refusal;
    return status;
}

/* Returns whether a pipeline is about as fast as the plan. */
static bool has_pipelines(const SearchResult *result) {
    const double near = 1.25;
    for (int32_t k = 0; k < POOL_SHAPES; k++) {
        const Plan *plan = result->pool.shapes[k].plan;
        bool is_pipeline = plan && plan->stage_count > 1;
        if (is_pipeline && result->pool.shapes[k].seconds <= near * result->plan->predicted_step_seconds)
            return true;
    }
    return false;
}

/* Searches one more form and keeps the better plan, at a tie that of the new form. `*status` and `*refusal`
 * are those of the forms before it, then of all. */
static void add_form(SearchJob *job, const ModuleForm *form, int32_t searches, AmStatus *status,
                     AmError *refusal) {
    AmPlan *plan = job->plan;
    PlanContext *whole = plan->whole;
    const SearchResult before = plan->result;
    SearchResult *result = &plan->result;
    AmError own = {0};
    if (*status == AM_OK) job->settings.options.nested.form_seconds = before.plan->predicted_step_seconds;
    if (*status == AM_OK) job->settings.options.nested.form_has_pipelines = has_pipelines(&before);
    AmStatus found = search_form(job, form, searches, &own);
    job->settings.options.nested.form_seconds = 0;
    bool is_interrupted = result->interrupted;
    int64_t evaluations = before.evaluations + result->evaluations;
    double seconds = before.search_seconds + result->search_seconds;
    if (*status == AM_OK && (found != AM_OK || candidate_is_better(&before.pool.best, &result->pool.best))) {
        *result = before;
        plan->whole = whole;
    } else {
        *status = found;
        *refusal = own;
    }
    if (*status != AM_OK) return;
    result->interrupted |= is_interrupted;
    result->evaluations = result->plan->evaluations = evaluations;
    result->search_seconds = seconds;
}

/* Searches the forms of the module one after another. A form may use half of the remaining limits, the
 * last one all of them. One more share is reserved for each later search. */
static AmStatus search_module(SearchJob *job, AmError *error) {
    const SearchResult *result = &job->plan->result;
    AmStatus status = AM_ERROR_INFEASIBLE;
    AmError refusal = {0};
    for (int32_t k = 0; k < job->form_count; k++) {
        int32_t number = job->takes_kept_first && k < 2 ? 1 - k : k;
        const ModuleForm *form = &job->forms[number];
        const Plan *found = status == AM_OK ? result->plan : NULL;
        bool is_wanted = k == 0 || !form->is_wanted || form->is_wanted(job, found);
        if (k > 0 && (!has_budget(job) || !is_wanted)) continue;
        add_form(job, form, (k + 1 < job->form_count ? 2 : 1) + job->later, &status, &refusal);
        if (status == AM_INTERRUPTED || result->interrupted) break;
    }
    if (status != AM_OK && error) *error = refusal;
    TRY(status);
    if (!finishes_later(job)) return AM_OK;
    AmPlan *plan = job->plan;
    return plan_search_finish(&plan->result, &plan->arena, plan->whole, job->cluster, &job->settings.options,
                              &job->settings.micro_batching, error);
}

/* The fastest candidate of a pool that a target can run; NULL: none. `*why`: the first refusal. */
static PlanCandidate *runs_on(Target target, CandidatePool *pool, const PlanContext *whole, AmError *why) {
    for (int32_t k = 0; k < POOL_OF_TARGET && pool->on[target][k].plan; k++)
        if (export_check(target, whole, pool->on[target][k].plan, why) == AM_OK) return &pool->on[target][k];
    return NULL;
}

/* Searches without the target, where limits allow it: further candidates and the price of the restriction. */
static AmStatus search_unrestricted(SearchJob *job, SearchResult *found, AmError *error) {
    AmPlan *plan = job->plan;
    Target target = job->settings.options.target;
    SearchOptions options = job->unrestricted.options;
    AmError refusal = {0};
    *found = (SearchResult){0};
    options.watch = job->settings.options.watch;
    options.interrupted = job->settings.options.interrupted;
    options.skip_bound = true;
    if (!search_method_explores(options.searcher) || !has_budget(job)) return AM_OK;
    if (stop_flag_is_set(options.interrupted)) return AM_OK;
    const SearchOptions rest = share_budget(job, 1);
    options.seconds = rest.seconds;
    options.evaluations = rest.evaluations;
    AmStatus status = device_search(found, &plan->arena, plan->whole, job->cluster, &options,
                                    &job->unrestricted.micro_batching, &refusal);
    job->evaluations += found->evaluations;
    found->interrupted |= status == AM_INTERRUPTED;
    if (status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    TRY(status);
    AmError lack = {0};
    plan->free_seconds = found->plan->predicted_step_seconds;
    if (export_check(target, plan->whole, found->plan, &lack) == AM_OK) return AM_OK;
    char *remedy = strstr(lack.text, "; search --for"); /* this is the search that it names */
    if (remedy) *remedy = '\0';
    plan->lack = arena_copy_string(&plan->arena, lack.text);
    return AM_OK;
}

/* Searches the plans of a target, then all, and takes the best one that the target can run. An interrupt of
 * the first search leaves its plan. */
static AmStatus search_target(SearchJob *job, AmError *error) {
    AmPlan *plan = job->plan;
    Target target = job->settings.options.target;
    SearchResult unrestricted, *result = &plan->result;
    AmError refusal = {0}, why = {0};
    TRY(target_check_module(target, plan->whole, error));
    job->later = 1;
    AmStatus status = search_module(job, &refusal);
    TRY(search_unrestricted(job, &unrestricted, error));
    PlanCandidate *own = runs_on(target, &result->pool, plan->whole, &why);
    PlanCandidate *other = runs_on(target, &unrestricted.pool, plan->whole, NULL);
    const PlanCandidate *best = own;
    if (other && (!own || candidate_is_better(other, own))) best = other;
    if (!best) {
        if (error) *error = status == AM_OK ? why : refusal;
        return status == AM_OK ? why.code : status;
    }
    const Plan *before = result->plan;
    if (best->plan != before) {
        best->plan->bound = before ? before->bound : NULL;
        best->plan->bound_seconds =
            before ? fmin(before->bound_seconds, best->plan->predicted_step_seconds) : NAN;
        result->model_gap = NAN;
    }
    result->evaluations += unrestricted.evaluations;
    result->search_seconds += unrestricted.search_seconds;
    result->interrupted |= unrestricted.interrupted;
    result->pool.best = *best;
    search_result_choose(result);
    pool_record(&result->pool);
    return AM_OK;
}

/* ---- measurements ---- */

/* Returns whether the target of the search can run a candidate. */
static bool may_measure(void *user, const PlanCandidate *candidate) {
    const SearchJob *job = user;
    Target target = job->settings.options.target;
    if (search_check_plan(&job->settings.options, candidate->plan, NULL) != AM_OK) return false;
    return target == TARGET_AUTOMAP || export_check(target, job->plan->whole, candidate->plan, NULL) == AM_OK;
}

/* Makes a candidate the plan of the search. */
static void take_candidate(AmPlan *plan, const PlanCandidate *candidate) {
    SearchResult *result = &plan->result;
    const Plan *before = result->plan;
    if (candidate->plan == before) return;
    candidate->plan->bound = before->bound;
    candidate->plan->bound_seconds = before->bound_seconds;
    candidate->plan->evaluations = before->evaluations;
    candidate->plan->space = before->space;
    result->model_gap = NAN;
    result->pool.best = *candidate;
    search_result_choose(result);
    pool_record(&result->pool);
}

/* Runs plans of the search, and takes the fastest one. */
static AmStatus measure(SearchJob *job, AmError *error) {
    AmPlan *plan = job->plan;
    const SearchOptions *options = &job->settings.options;
    PlanMeasurements *measurements;
    const MeasureCall call = {.arena = &plan->arena,
                              .module = plan->module,
                              .pool = &plan->result.pool,
                              .allows = may_measure,
                              .user = job,
                              .runs = options->measures,
                              .deadline = job->seconds > 0 ? job->start + job->seconds : 0,
                              .seed = options->seed,
                              .watch = options->watch,
                              .interrupted = options->interrupted};
    TRY(measure_plans(&measurements, &call, error));
    plan->measurements = measurements;
    plan->result.interrupted |= measurements->interrupted;
    if (measurements->chosen >= 0) take_candidate(plan, &measurements->runs[measurements->chosen].candidate);
    return AM_OK;
}

/* Finds the best plan of each target, until an interrupt: the plan of the search is there. */
static void list_targets(SearchJob *job) {
    AmPlan *plan = job->plan;
    for (int32_t target = 0; target < TARGET_COUNT; target++) {
        bool is_apart = plan->whole->unfused && target_is_xla((Target)target); /* has no fused attention */
        if (is_apart) continue;
        if (stop_flag_is_set(job->settings.options.interrupted)) return;
        const PlanCandidate *best = runs_on((Target)target, &plan->result.pool, plan->whole, NULL);
        if (best) plan->on[target] = best->plan;
    }
}

static AmStatus run_search(ApiWork *work, AmError *error) {
    SearchJob *job = work->user;
    AmPlan *plan = job->plan;
    SearchOptions *options = &job->settings.options;
    options->watch = work->watch;
    options->interrupted = api_work_flag(work);
    job->start = clock_seconds();
    bool is_free = options->target == TARGET_AUTOMAP;
    AmStatus status = is_free ? search_module(job, error) : search_target(job, error);
    if (status == AM_ERROR_INFEASIBLE && plan->result.nearest) status = explain_infeasible(job, error);
    if (status == AM_OK && is_free) list_targets(job);
    /* An interrupt may come where no phase notices it: between two of them, or in the last one. */
    plan->result.interrupted |= stop_flag_is_set(options->interrupted);
    if (status == AM_OK && options->measures > 0 && !plan->result.interrupted) status = measure(job, error);
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

/* Finds the module that is searched: as read, or with one parameter for each layer. A large module
 * is split only if a sample of it is searched. */
static AmStatus choose_layers(SearchJob *job, const char *initial, bool has_evaluations, AmError *error) {
    enum { MOST_DEVICES = 4096 }; /* simulations of the split module take longer on more */
    AmPlan *plan = job->plan;
    SearchSettings *settings = &job->settings;
    SearchOptions search = settings->options;
    AmError refusal = {0};
    search.is_default_limit = !has_evaluations;
    if (settings->layers == LAYERS_AUTO && (initial || job->cluster->device_count < 2))
        settings->layers = LAYERS_LOOP;
    if (settings->layers == LAYERS_LOOP) return AM_OK;
    AmStatus status =
        plan_context_rewrite(&plan->whole, plan->module, (PlanRewriting){.splits_layers = true}, &refusal);
    if (status == AM_ERROR_INFEASIBLE && settings->layers == LAYERS_AUTO) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    TRY(status);
    if (!sample_is_wanted(plan->whole) || settings->layers != LAYERS_AUTO) return AM_OK;
    bool is_sampled = sample_is_allowed(&search) && job->cluster->device_count <= MOST_DEVICES;
    if (is_sampled) TRY(sample_is_possible(&is_sampled, plan->whole, error));
    if (!is_sampled) plan->whole = plan->module;
    return AM_OK;
}

/* Takes the form of the module in which the source recomputes nothing, so that the plan decides; `*kept` is
 * then the form before. */
static AmStatus undo_recomputation(PlanContext **kept, SearchJob *job, const char *initial,
                                   const AmOptions *options, AmError *error) {
    AmPlan *plan = job->plan;
    const SearchOptions *search = &job->settings.options;
    AmError refusal = {0};
    if (initial || search->target != TARGET_AUTOMAP || search->objective == OBJECTIVE_PAPER ||
        !search_method_explores(search->searcher) || option_has(options, "keep-remat") ||
        option_has(options, "keep-shardings"))
        return AM_OK;
    PlanContext *undone;
    PlanRewriting rewriting = plan->whole->rewriting;
    rewriting.undoes_recomputation = true;
    AmStatus status = plan_context_rewrite(&undone, plan->module, rewriting, &refusal);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    TRY(status);
    *kept = plan->whole;
    plan->whole = undone;
    return AM_OK;
}

/* A plan needs little memory if its fullest device uses less than this part of the usable memory. */
#define LITTLE_MEMORY 0.5

static bool needs_much_memory(const SearchJob *job, const Plan *found) {
    double part = LITTLE_MEMORY * job->settings.options.memory_fraction;
    int32_t next = 0;
    for (int32_t s = 0; found && s < found->stage_count; s++)
        for (int32_t k = 0; k < found->stages[s].mesh.device_count; k++, next++) {
            const ClusterDeviceType *type = cluster_device_type(job->cluster, found->stages[s].devices[k]);
            if ((double)found->predicted[next].peak_bytes > part * (double)type->memory_bytes) return true;
        }
    return !found;
}

static bool has_one_stage(const SearchJob *job, const Plan *found) {
    (void)job;
    return !found || found->stage_count == 1;
}

/* Lists the forms of the module: as it was chosen, whose other form of attention is `other`; `kept`, with the
 * recomputation of the source, where memory is scarce; and with the layers in loops where these may be
 * better. Memory is scarce for modules that are searched on a sample: their form with recomputation is the
 * first one.
 */
static void list_forms(SearchJob *job, PlanContext *kept, PlanContext *other) {
    const AmPlan *plan = job->plan;
    bool is_free = job->settings.options.target == TARGET_AUTOMAP;
    bool may_loop = job->settings.layers == LAYERS_AUTO && plan->whole->layer_map;
    ModuleForm *form = job->forms;
    *form++ = (ModuleForm){.module = plan->whole, .other = is_free ? other : NULL};
    if (kept) *form++ = (ModuleForm){.module = kept, .is_open = true, .is_wanted = needs_much_memory};
    if (may_loop) *form++ = (ModuleForm){.module = plan->module, .is_open = true, .is_wanted = has_one_stage};
    job->form_count = (int32_t)(form - job->forms);
    job->takes_kept_first = kept && sample_is_wanted(kept);
}

/* The part of a time limit for the search, if measurements follow it. */
#define SEARCH_SHARE 0.5

/* Reads everything that the options name. */
static AmStatus prepare(SearchJob *job, const AmOptions *options, AmError *error) {
    Plan *initial = NULL;
    AmPlan *plan = job->plan;
    PlanContext *kept = NULL, *other = NULL;
    SearchOptions *search = &job->settings.options;
    const char *profile = option_text(options, "profile"), *path = option_text(options, "init-plan");
    if (profile) TRY(attach_profile(job, profile, error));
    TRY(choose_layers(job, path, option_has(options, "evaluations"), error));
    TRY(undo_recomputation(&kept, job, path, options, error));
    if (path && search->searcher == SEARCHER_BASELINE)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: --baseline %s starts from no plan",
                       search->called);
    if (path && search->searcher == SEARCHER_RANDOM)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: --searcher random starts from no plan");
    if (path) TRY(plan_read(&initial, &plan->root, &plan->arena, plan->module, path, error));
    TRY(search_settings_fuse(&plan->whole, &other, &job->settings, initial, job->cluster, options, error));
    list_forms(job, kept, other);
    TRY(search_settings_complete(&job->settings, &plan->arena, options, plan->whole, error));
    TRY(search_settings_complete(&job->unrestricted, &plan->arena, options, plan->whole, error));
    const PlanContext *given = initial ? plan_context_whole(initial->context) : plan->whole;
    if (given != plan->whole)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: its layers are %s (expected --layers %s)",
                       given->layer_map ? "split" : "not split", given->layer_map ? "split" : "loop");
    search->initial = job->unrestricted.options.initial = initial;
    job->seconds = search->seconds;
    if (search->measures > 0) search->seconds *= SEARCH_SHARE;
    job->unrestricted.options.seconds = search->seconds;
    search->on_episode = job->callbacks->on_episode;
    search->user = job->callbacks->user;
    return AM_OK;
}

/* The step of each baseline that fits. */
static json_t *baselines_to_json(const SearchResult *result) {
    json_t *object = json_object();
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        if (isfinite(result->baselines[e].seconds))
            json_object_set_new(object, baseline_name((Baseline)e), json_real(result->baselines[e].seconds));
    return object;
}

static AmStatus finish(SearchJob *job, const AmOptions *options, AmError *error) {
    AmPlan *self = job->plan;
    self->plan = self->result.plan;
    job->settings.options.seconds = job->seconds;
    self->settings = search_settings_to_json(&job->settings, options);
    if (self->settings && self->result.exact_space)
        json_object_set_new(self->settings, "exact_space", json_string(self->result.exact_space));
    if (!self->settings) return am_fail_memory(error, 0);
    if (self->measurements)
        json_object_set_new(self->settings, "measurements", measurements_to_json(self->measurements, false));
    json_object_set_new(self->settings, "baselines", baselines_to_json(&self->result));
    self->plan->settings = self->settings;
    self->is_searched = true;
    self->memory_fraction = job->settings.options.memory_fraction;
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
    if (option_has(options, "measure")) TRY(measure_check_cluster(cluster->cluster, error));
    SearchJob job = {.cluster = cluster->cluster, .callbacks = &own, .plan = api_new_plan(module, error)};
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
