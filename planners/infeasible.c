/* Reports changes under which a plan fits: more memory, more devices, more micro-batches, ZeRO.
 *
 * Each change is tried by a short search, whose evaluations mostly go to baselines. A plan that fits shows
 * that the change helps; a search without one shows nothing. Pipelines are searched only if they are
 * requested, since few evaluations of other searches are pipelines.
 */
#include "planners/infeasible.h"

#include <math.h>
#include <string.h>

#include "cost/simulate/simulate.h"

#define MOST_STEPS   4    /* of devices and micro-batches, each twice the one before */
#define REFINEMENTS  4    /* bisections between an infeasible and a feasible value */
#define REFINED_WORK 4000 /* the largest number of a module's instructions for which they are made */

typedef struct RemedySearch {
    Arena *arena;
    PlanContext *primary;
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    const SearchResult *failed;
    json_t *found;
    Text *line;
} RemedySearch;

static bool is_interrupted(const RemedySearch *self) {
    return stop_flag_is_set(self->request->callbacks.interrupted);
}

/* A change of the search, under which a plan may fit. */
typedef struct Change {
    const Cluster *cluster;
    PlanSpace kind;
    int32_t micro_batches;
    double memory_fraction;
    const Plan *initial; /* to start from, or NULL */
} Change;

static Change no_change(const RemedySearch *self) {
    const SearchRequest *request = self->request;
    return (Change){.cluster = self->cluster,
                    .kind = self->scope->kind,
                    .micro_batches = self->scope->micro_batches,
                    .memory_fraction = request->constraints.memory_fraction,
                    .initial = request->space.initial};
}

/* Searches briefly with a change; *seconds is NAN if no plan fits. */
static AmStatus try_search(const RemedySearch *self, const Change *change, double *seconds, AmError *error) {
    SearchRequest request;
    SearchScope few = search_with_request(self->scope, &request);
    SearchResult result;
    AmError refusal = {0};
    *seconds = NAN;
    if (is_interrupted(self)) return AM_OK;
    request.constraints.memory_fraction = change->memory_fraction;
    request.space.initial = change->initial;
    request.callbacks.on_episode = NULL;
    few.kind = change->kind;
    few.purpose = PURPOSE_TRIAL;
    few.skip_bound = true;
    bool is_more = few.limits.evaluations == 0 || few.limits.evaluations > SEARCH_TRIAL_EVALUATIONS;
    if (!search_spans_stages(&few) && is_more) few.limits.evaluations = SEARCH_TRIAL_EVALUATIONS;
    bool is_slow = few.searcher == SEARCHER_EXACT || few.searcher == SEARCHER_EXHAUSTIVE;
    if (is_slow || few.searcher == SEARCHER_DQN || few.searcher == SEARCHER_AUTO)
        few.searcher = SEARCHER_ANNEAL;
    few.micro_batches = change->micro_batches;
    AmStatus status = plan_search(&result, self->arena, self->primary, change->cluster, &few, &refusal);
    if (status == AM_OK && !result.interrupted) *seconds = result.plan->predicted_step_seconds;
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) return AM_OK;
    return am_pass_error(status, &refusal, error);
}

static void add_remedy(RemedySearch *self, const char *kind, const char *change, double seconds) {
    text_append(self->line, "%s%s (a step of ",
                json_array_size(self->found) ? ", or " : "; would fit: ", change);
    text_append_seconds(self->line, seconds);
    text_append_string(self->line, ")");
    json_array_append_new(
        self->found, json_pack("{s:s, s:s, s:f}", "kind", kind, "change", change, "step_seconds", seconds));
}

/* Returns the cluster of a changed description, whose reference it takes; NULL: the description is not
 * valid. */
static Cluster *changed_cluster(const RemedySearch *self, json_t *description) {
    Cluster *cluster = NULL;
    AmError refusal = {0};
    if (description) cluster_from_json(&cluster, self->arena, description, "", &refusal);
    json_decref(description);
    return refusal.code == AM_OK ? cluster : NULL;
}

static json_t *copy_description(const RemedySearch *self) {
    json_t *shared = cluster_to_json(self->cluster), *copy = json_deep_copy(shared);
    json_decref(shared);
    return copy;
}

/* Returns the number of bisections of a change; a search over any number of stages takes long. */
static int32_t refinements(const RemedySearch *self) {
    bool is_small = plan_context_count(self->primary) <= REFINED_WORK;
    if (!is_small || is_interrupted(self)) return 0;
    return search_spans_stages(self->scope) ? REFINEMENTS / 2 : REFINEMENTS;
}

/* Searches with a fraction of three digits. `initial`: the only plan to start from, or NULL. */
static AmStatus try_fraction(const RemedySearch *self, double fraction, const Plan *initial, double *seconds,
                             AmError *error) {
    Change change = no_change(self);
    change.memory_fraction = fraction;
    change.initial = initial;
    return try_search(self, &change, seconds, error);
}

/* Rounds a fraction below 1 up to the three digits of reports. */
static double round_fraction(double fraction) {
    double scale = 1;
    while (fraction * scale < 100 && scale < 1e15) scale *= 10;
    return ceil(fraction * scale) / scale;
}

/* Reports the fraction that the nearest plan needs, or a larger one if no search finds a plan with it.
 * Bisection then looks for a smaller fraction. */
static AmStatus relax_fraction(RemedySearch *self, AmError *error) {
    bool is_hybrid = search_spans_stages(self->scope);
    double least = self->request->constraints.memory_fraction, seconds = NAN, trial;
    double fraction = memory_enough_fraction(&self->failed->nearest_fit, self->cluster);
    for (int32_t k = 0; k <= MOST_STEPS; k++) {
        const Plan *initial = is_hybrid ? NULL : self->failed->nearest;
        TRY(try_fraction(self, fraction, initial, &seconds, error));
        if (!isnan(seconds) || fraction >= 1) break;
        least = fraction;
        fraction = fmin(1, round_fraction(fraction * (k < 2 ? 1.25 : 2)));
    }
    if (isnan(seconds)) return AM_OK;
    for (int32_t k = 0; k < refinements(self); k++) {
        double between = round_fraction((least + fraction) / 2);
        if (between >= fraction) break;
        TRY(try_fraction(self, between, NULL, &trial, error));
        if (isnan(trial)) {
            least = between;
        } else {
            fraction = between;
            seconds = trial;
        }
    }
    add_remedy(self, "memory", arena_format(self->arena, "--memory-fraction %.3g", fraction), seconds);
    return AM_OK;
}

/* Reports a larger fraction of the memory, or if that is not enough, devices with more memory. */
static AmStatus relax_memory(RemedySearch *self, AmError *error) {
    const MemoryFit *fit = &self->failed->nearest_fit;
    Change change = no_change(self);
    double seconds;
    if (memory_enough_fraction(fit, self->cluster) <= 1) return relax_fraction(self, error);
    if (!search_spans_stages(self->scope)) change.initial = self->failed->nearest;
    json_t *description = copy_description(self), *type;
    const char *name;
    double needed = (double)fit->needed_bytes / change.memory_fraction, digit = 1;
    while (needed / digit >= 1000) digit *= 10; /* the three digits of reports, rounded up */
    double bytes = ceil(needed / digit) * digit;
    json_object_foreach(json_object_get(description, "device_types"), name, type) {
        if (json_number_value(json_object_get(type, "memory_bytes")) < bytes)
            json_object_set_new(type, "memory_bytes", json_integer((json_int_t)bytes));
    }
    Cluster *cluster = changed_cluster(self, description);
    if (!cluster) return AM_OK;
    change.cluster = cluster;
    AmStatus status = try_search(self, &change, &seconds, error);
    cluster_free(cluster);
    if (status != AM_OK || isnan(seconds)) return status;
    Text text = {0};
    text_append_string(&text, "devices of ");
    text_append_bytes_size(&text, bytes);
    add_remedy(self, "memory", text.data ? text.data : "devices with more memory", seconds);
    text_free(&text);
    return AM_OK;
}

/* Describes the cluster with `times` as many servers of each kind, or a single server with `times` as many
 * devices; rounded up. NULL: its topology does not allow more. */
static json_t *more_devices(const RemedySearch *self, double times) {
    json_t *description = copy_description(self), *row;
    bool many = json_object_get(description, "between_servers") != NULL;
    const char *key = many ? "count" : "devices";
    size_t k;
    if (json_object_get(description, "topology")) {
        json_decref(description);
        return NULL;
    }
    json_array_foreach(json_object_get(description, "servers"), k, row) {
        const json_t *count = json_object_get(row, key);
        double before = count ? json_number_value(count) : 1;
        json_object_set_new(row, key, json_integer((json_int_t)ceil(before * times)));
    }
    return description;
}

/* Searches with `times` as many devices, unless these are the *devices of before. *devices becomes their
 * number; 0: there is no such cluster. */
static AmStatus try_devices(const RemedySearch *self, double times, int32_t *devices, double *seconds,
                            AmError *error) {
    Change change = no_change(self);
    Cluster *cluster = changed_cluster(self, more_devices(self, times));
    int32_t before = *devices;
    *devices = cluster ? cluster->device_count : 0;
    *seconds = NAN;
    change.cluster = cluster;
    change.initial = NULL;
    AmStatus status = AM_OK;
    if (cluster && cluster->device_count != before) status = try_search(self, &change, seconds, error);
    cluster_free(cluster);
    return status;
}

static AmStatus relax_devices(RemedySearch *self, AmError *error) {
    double few = 1, times = 1, seconds = NAN, trial;
    int32_t found = 0;
    if (self->request->space.mesh) return AM_OK;
    for (int32_t k = 0; k < MOST_STEPS && isnan(seconds); k++) {
        few = times;
        times *= 2;
        TRY(try_devices(self, times, &found, &seconds, error));
        if (found == 0) return AM_OK;
    }
    if (isnan(seconds)) return AM_OK;
    for (int32_t k = 0; k < refinements(self); k++) {
        double between = (few + times) / 2;
        int32_t devices = found;
        TRY(try_devices(self, between, &devices, &trial, error));
        if (isnan(trial)) {
            few = between;
        } else {
            times = between;
            found = devices;
            seconds = trial;
        }
    }
    add_remedy(self, "devices", arena_format(self->arena, "%d devices", found), seconds);
    return AM_OK;
}

static AmStatus relax_micro_batches(RemedySearch *self, AmError *error) {
    int64_t batch = micro_batches_limit(self->primary), count = self->scope->micro_batches;
    for (int32_t k = 0; k < MOST_STEPS && count > 0; k++) {
        Change change = no_change(self);
        double seconds;
        count *= 2;
        if (count > batch || batch % count != 0) return AM_OK;
        change.micro_batches = (int32_t)count;
        TRY(try_search(self, &change, &seconds, error));
        if (isnan(seconds)) continue;
        add_remedy(self, "micro_batches", arena_format(self->arena, "--micro-batches %lld", (long long)count),
                   seconds);
        return AM_OK;
    }
    return AM_OK;
}

static AmStatus relax_storage(RemedySearch *self, AmError *error) {
    Change change = no_change(self);
    double seconds;
    if (change.kind != SPACE_OPERATOR) return AM_OK;
    change.kind = SPACE_SINGLE_STAGE;
    TRY(try_search(self, &change, &seconds, error));
    if (!isnan(seconds))
        add_remedy(self, "zero", "--space single_stage, which has the batch and ZeRO", seconds);
    return AM_OK;
}

/* Describes the fullest device of the nearest plan, and the operator at its peak. */
static AmStatus describe_binding(json_t **binding, const RemedySearch *self, AmError *error) {
    const SearchScope *scope = self->scope;
    const SimulationOptions details = {.memory_fraction = scope->request->constraints.memory_fraction,
                                       .with_details = true};
    const MemoryFit *fit = &self->failed->nearest_fit;
    Arena scratch = {0};
    Simulation *simulation;
    AmError cut = {0};
    AmStatus status = simulate_plan(&simulation, &scratch, self->primary, self->failed->nearest,
                                    self->cluster, &details, error);
    json_t *root = status == AM_OK ? simulation_to_json(simulation) : NULL;
    arena_free(&scratch);
    if (status != AM_OK) return status;
    json_t *peak = json_object_get(root, "memory_peak");
    const char *operator= json_string_value(json_object_get(peak, "operator"));
    const char *op_name = json_string_value(json_object_get(peak, "op_name"));
    memory_fail(fit, self->cluster, scope->request->constraints.memory_fraction, &cut);
    const char *need = strstr(cut.text, "fits: ");
    need = need ? need + strlen("fits: ") : cut.text;
    bool is_device = fit->needed_bytes > fit->limit_bytes; /* else the host is too small */
    if (self->failed->evaluations > 0)
        text_append(self->line, "no plan of %lld fits: ", (long long)self->failed->evaluations);
    else text_append_string(self->line, "no baseline fits, and the limit allows no further plan: ");
    text_append(self->line, "%.*s", (int)strcspn(need, ";"), need);
    if (operator&& is_device) text_append(self->line, " at %.60s", operator);
    if (op_name && op_name[0] && is_device) text_append(self->line, " (%.160s)", op_name);
    *binding = json_pack("{s:i, s:s, s:I, s:I, s:O}", "device", (int)fit->device, "name",
                         cluster_device_name(self->cluster, self->arena, fit->device), "needed_bytes",
                         (json_int_t)fit->needed_bytes, "limit_bytes", (json_int_t)fit->limit_bytes,
                         "memory_peak", peak);
    json_decref(root);
    return *binding ? AM_OK : am_fail_memory(error, 0);
}

AmStatus infeasible_report(InfeasibleReport *report, Arena *arena, PlanContext *primary,
                           const Cluster *cluster, const SearchScope *scope, const SearchResult *failed,
                           AmError *error) {
    static AmStatus (*const relaxations[])(RemedySearch * self, AmError * error) = {
        relax_memory, relax_devices, relax_micro_batches, relax_storage};
    SearchScope narrowed = *scope;
    search_narrow(&narrowed);
    RemedySearch self = {.arena = arena,
                         .primary = primary,
                         .cluster = cluster,
                         .scope = &narrowed,
                         .request = narrowed.request,
                         .failed = failed,
                         .found = json_array(),
                         .line = &report->line};
    json_t *binding = NULL;
    AmStatus status = describe_binding(&binding, &self, error);
    for (size_t k = 0; k < sizeof relaxations / sizeof *relaxations && status == AM_OK; k++)
        status = relaxations[k](&self, error);
    report->details = json_pack("{s:I, s:o, s:o}", "evaluations", (json_int_t)failed->evaluations, "binding",
                                binding ? binding : json_null(), "relaxations", self.found);
    if (status == AM_OK && !report->details) status = am_fail_memory(error, 0);
    return status;
}
