/* Reads plan files ("automap-plan-1") and checks them against the module.
 *
 * The file is not trusted. Keys must be known, indices must be within the module and the mesh, and
 * ranges must cover every instruction once. Derived parts must agree with the stages, except paths,
 * op names and sources, which a text module may lack.
 */
#include <math.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "base/files/json.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/plan_file/plan_adapt.h"
#include "lowering/plan_file/plan_names.h"
#include "lowering/plan_file/plan_parts.h"
#include "lowering/plan_file/plan_reader.h"
#include "propagation/stages/stages.h"

#define FORMAT_NAME "automap-plan-1"

static AmStatus refuse_module(const PlanReader *self, const json_t *root, const char *sha256) {
    const PlanContext *context = self->context;
    Text difference = {0};
    plan_append_difference(&difference, root, context);
    if (json_object_get(root, "names") && context->layers_reason)
        text_append(&difference, "; this module's layers cannot be split: %s", context->layers_reason);
    am_fail(self->error, AM_ERROR_INPUT, self->source,
            "$.module: the plan is for module %.100s (sha256 %.12s), not for %.100s of %s (sha256 %.12s)%s",
            self->plan->module_name, sha256, context->canonical->name, context->module->source,
            context->sha256, difference.data ? difference.data : "");
    text_free(&difference);
    return AM_ERROR_INPUT;
}

static AmStatus read_module(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"name", "sha256", "instructions", "structure", NULL};
    json_t *module;
    const char *sha256;
    int64_t instructions;
    const PlanContext *context = self->context;
    TRY(json_get_object(&module, root, "module", self->source, "$", self->error));
    TRY(json_only_keys(module, keys, self->source, "$.module", self->error));
    TRY(json_get_string(&self->plan->module_name, module, "name", self->source, "$.module", self->error));
    TRY(json_get_string(&sha256, module, "sha256", self->source, "$.module", self->error));
    TRY(json_get_integer(&instructions, module, "instructions", 0, INT32_MAX, self->source, "$.module",
                         self->error));
    if (strcmp(sha256, context->sha256) != 0) return refuse_module(self, root, sha256);
    self->plan->module_sha256 = sha256;
    if (instructions != context->canonical->instruction_count)
        return plan_reader_refuse(self, "$.module.instructions", "not the module's number of instructions");
    self->plan->module_instructions = (int32_t)instructions;
    return AM_OK;
}

static AmStatus read_cluster(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"name", "sha256", "description", NULL};
    json_t *cluster;
    Plan *plan = self->plan;
    TRY(json_get_object(&cluster, root, "cluster", self->source, "$", self->error));
    TRY(json_only_keys(cluster, keys, self->source, "$.cluster", self->error));
    TRY(json_get_string(&plan->cluster_name, cluster, "name", self->source, "$.cluster", self->error));
    TRY(json_get_string(&plan->cluster_sha256, cluster, "sha256", self->source, "$.cluster", self->error));
    TRY(json_get_object(&plan->cluster_description, cluster, "description", self->source, "$.cluster",
                        self->error));
    char hex[65];
    TRY(plan_json_sha256(hex, plan->cluster_description, self->error));
    if (strcmp(hex, plan->cluster_sha256) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source,
                   "$.cluster: the description of cluster %.100s has sha256 %.12s, not %.12s",
                   plan->cluster_name, hex, plan->cluster_sha256);
}

static AmStatus read_predicted(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"step_seconds", "devices", "of", NULL};
    static const char *const device_keys[] = {"peak_bytes",
                                              "weights_bytes",
                                              "gradients_bytes",
                                              "optimizer_bytes",
                                              "activation_bytes",
                                              "compute_seconds",
                                              "communication_seconds",
                                              "idle_seconds",
                                              "channel_bytes",
                                              "host_bytes",
                                              NULL};
    json_t *predicted, *devices;
    Plan *plan = self->plan;
    int64_t expected = 0;
    char decided[65];
    TRY(json_get_object(&predicted, root, "predicted", self->source, "$", self->error));
    TRY(json_only_keys(predicted, keys, self->source, "$.predicted", self->error));
    TRY(json_get_number(&plan->predicted_step_seconds, predicted, "step_seconds", 0, 1e300, self->source,
                        "$.predicted", self->error));
    TRY(json_get_array(&devices, predicted, "devices", self->source, "$.predicted", self->error));
    TRY(plan_decided_sha256(decided, root, self->error));
    const char *of = json_string_value(json_object_get(predicted, "of"));
    plan->is_changed = !of || strcmp(of, decided) != 0;
    for (int32_t s = 0; s < plan->stage_count; s++) expected += plan->stages[s].mesh.device_count;
    if ((int64_t)json_array_size(devices) != expected)
        return plan_reader_refuse(self, "$.predicted.devices", "expected one for each device of the stages");
    plan->device_count = (int32_t)expected;
    plan->predicted = ARENA_ARRAY(self->arena, PlanDevicePrediction, expected);
    if (!plan->predicted) return am_fail_memory(self->error, expected);
    for (int32_t d = 0; d < plan->device_count; d++) {
        PlanDevicePrediction *device = &plan->predicted[d];
        json_t *object = json_array_get(devices, (size_t)d);
        const char *at = plan_reader_place(self, "%s.devices[%d]", "$.predicted", d);
        int64_t *bytes[] = {&device->peak_bytes, &device->weights_bytes, &device->gradients_bytes,
                            &device->optimizer_bytes, &device->activation_bytes};
        double *seconds[] = {&device->compute_seconds, &device->communication_seconds, &device->idle_seconds};
        if (!json_is_object(object)) return plan_reader_refuse(self, at, "expected an object");
        TRY(json_only_keys(object, device_keys, self->source, at, self->error));
        for (int32_t k = 0; k < 5; k++)
            TRY(json_get_integer(bytes[k], object, device_keys[k], 0, INT64_MAX, self->source, at,
                                 self->error));
        for (int32_t k = 0; k < 3; k++)
            TRY(json_get_number(seconds[k], object, device_keys[5 + k], 0, 1e300, self->source, at,
                                self->error));
        if (json_object_get(object, "channel_bytes"))
            TRY(json_get_integer(&device->channel_bytes, object, "channel_bytes", 0, INT64_MAX, self->source,
                                 at, self->error));
        int64_t host_bytes = 0;
        if (json_object_get(object, "host_bytes"))
            TRY(json_get_integer(&host_bytes, object, "host_bytes", 0, INT64_MAX / 2, self->source, at,
                                 self->error));
        device->host_bytes = host_bytes;
    }
    return AM_OK;
}

/* Reads the part of the search that found the plan; files of earlier versions lack it. */
static AmStatus read_origin(const PlanReader *self, json_t *search) {
    static const char *const names[] = {
#define PLAN_ORIGIN_KEY(name, text, help) text,
        PLAN_ORIGIN_LIST(PLAN_ORIGIN_KEY)
#undef PLAN_ORIGIN_KEY
            NULL};
    Plan *plan = self->plan;
    const char *name;
    json_t *found;
    if (!json_object_get(search, "origin")) return AM_OK;
    TRY(json_get_string(&name, search, "origin", self->source, "$.search", self->error));
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT; k++)
        if (strcmp(name, names[k - 1]) == 0) plan->origin = (PlanOrigin)k;
    if (plan->origin == PLAN_ORIGIN_UNKNOWN)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "$.search.origin: \"%.60s\" is no part of a search (expected \"%s\")", name,
                       plan_origin_name(PLAN_ORIGIN_BASELINE));
    if (!json_object_get(search, "found_seconds")) return AM_OK;
    TRY(json_get_object(&found, search, "found_seconds", self->source, "$.search", self->error));
    TRY(json_only_keys(found, names, self->source, "$.search.found_seconds", self->error));
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT; k++)
        if (json_object_get(found, names[k - 1]))
            TRY(json_get_number(&plan->found_seconds[k], found, names[k - 1], 0, 1e300, self->source,
                                "$.search.found_seconds", self->error));
    return AM_OK;
}

static AmStatus read_search(const PlanReader *self, json_t *root) {
    static const char *const keys[] = {"searcher", "seed",     "evaluations", "bound_seconds", "bound",
                                       "space",    "settings", "origin",      "found_seconds", NULL};
    json_t *search;
    Plan *plan = self->plan;
    int64_t seed;
    TRY(json_get_object(&search, root, "search", self->source, "$", self->error));
    TRY(json_only_keys(search, keys, self->source, "$.search", self->error));
    TRY(json_get_string(&plan->searcher, search, "searcher", self->source, "$.search", self->error));
    TRY(json_get_string(&plan->space, search, "space", self->source, "$.search", self->error));
    TRY(json_get_integer(&seed, search, "seed", INT64_MIN, INT64_MAX, self->source, "$.search", self->error));
    TRY(json_get_integer(&plan->evaluations, search, "evaluations", 0, INT64_MAX, self->source, "$.search",
                         self->error));
    TRY(json_get_object(&plan->settings, search, "settings", self->source, "$.search", self->error));
    TRY(read_origin(self, search));
    const char *target = json_string_value(json_object_get(plan->settings, "for"));
    plan->is_for_jax = target && strcmp(target, "jax") == 0;
    plan->seed = (uint64_t)seed;
    plan->bound_seconds = NAN;
    if (!json_is_null(json_object_get(search, "bound_seconds")))
        TRY(json_get_number(&plan->bound_seconds, search, "bound_seconds", 0, 1e300, self->source, "$.search",
                            self->error));
    if (!json_is_null(json_object_get(search, "bound")))
        TRY(json_get_string(&plan->bound, search, "bound", self->source, "$.search", self->error));
    return AM_OK;
}

static AmStatus read_relaxations(const PlanReader *self, uint32_t *relaxations, json_t *root) {
    json_t *list;
    Plan *plan = self->plan;
    TRY(json_get_array(&list, root, "relaxations", self->source, "$", self->error));
    plan->relaxations = ARENA_ARRAY(self->arena, const char *, RELAXATION_COUNT + 1);
    if (!plan->relaxations) return am_fail_memory(self->error, RELAXATION_COUNT);
    for (size_t k = 0; k < json_array_size(list); k++) {
        const char *name = json_string_value(json_array_get(list, k));
        Relaxation relaxation = name ? relaxation_from_name(name) : RELAXATION_COUNT;
        if (relaxation == RELAXATION_COUNT)
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "$.relaxations[%zu]: %s%.60s%s is no relaxation (expected %s or %s)", k,
                           name ? "\"" : "", name ? name : "the value", name ? "\"" : "",
                           relaxation_name((Relaxation)0), relaxation_name((Relaxation)1));
        if (*relaxations >> relaxation & 1)
            return plan_reader_refuse(self, "$.relaxations", "a relaxation is named twice");
        *relaxations |= 1u << relaxation;
        plan->relaxations[plan->relaxation_count++] = relaxation_name(relaxation);
    }
    return AM_OK;
}

/* Collects the saved operators across stages, each of which is in a recomputed range (`is_in_range`). */
static AmStatus collect_saved(PlanReader *self, const json_t *stages, bool *is_in_range) {
    PlanRecomputation *recomputed = &self->recomputed;
    int32_t count = plan_context_primary(self->context)->rules->entry_count;
    const json_t *stage;
    size_t capacity = 0, s;
    json_array_foreach(stages, s, stage) capacity += json_array_size(json_object_get(stage, "saved"));
    if (capacity > (size_t)count)
        return plan_reader_refuse(self, "$.stages", "expected no more saved operators than instructions");
    recomputed->saved = ARENA_ARRAY(self->arena, int32_t, capacity + 1);
    if (!recomputed->saved) return am_fail_memory(self->error, (int64_t)capacity * 4);
    json_array_foreach(stages, s, stage) {
        const json_t *saved = json_object_get(stage, "saved");
        const char *at = plan_reader_place(self, "%s.stages[%d].saved", "$", (int32_t)s);
        for (int32_t k = 0, least = 0; k < (int32_t)json_array_size(saved); k++) {
            int32_t *number = &recomputed->saved[recomputed->saved_count++];
            TRY(plan_reader_integer(self, number, saved, k, at, least, count - 1));
            least = *number + 1;
            if (!is_in_range[*number])
                return plan_reader_refuse(
                    self, arena_format(self->arena, "%s[%d]", at, k),
                    "expected an operator of one of the ranges of \"recompute\", and of no other stage");
            is_in_range[*number] = false;
        }
    }
    return AM_OK;
}

/* Collects the recomputed ranges across stages: their names are resolved in a context with
 * recomputation. */
static AmStatus collect_recomputed(PlanReader *self, const json_t *root) {
    const json_t *stages = json_object_get(root, "stages"), *stage, *pair;
    PlanRecomputation *recomputed = &self->recomputed;
    int32_t count = plan_context_primary(self->context)->rules->entry_count;
    size_t capacity = 0, s, k;
    json_array_foreach(stages, s, stage) capacity += json_array_size(json_object_get(stage, "recompute"));
    if (capacity > (size_t)count)
        return plan_reader_refuse(self, "$.stages", "expected no more ranges to recompute than instructions");
    recomputed->ranges = arena_alloc(self->arena, sizeof *recomputed->ranges * (capacity + 1));
    bool *taken = ARENA_ARRAY(self->arena, bool, count + 1);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)capacity * 8);
    json_array_foreach(stages, s, stage) json_array_foreach(json_object_get(stage, "recompute"), k, pair) {
        int32_t *range = recomputed->ranges[recomputed->range_count++];
        const char *at = arena_format(self->arena, "$.stages[%d].recompute[%d]", (int)s, (int)k);
        if (!at) return am_fail_memory(self->error, 32);
        if (json_array_size(pair) != 2) return plan_reader_refuse(self, at, "expected [first, end]");
        TRY(plan_reader_integer(self, &range[0], pair, 0, at, 0, count - 1));
        TRY(plan_reader_integer(self, &range[1], pair, 1, at, range[0] + 1, count));
        for (int32_t i = range[0]; i < range[1]; i++) {
            if (taken[i]) return plan_reader_refuse(self, at, "an operator is in two ranges");
            taken[i] = true;
        }
    }
    return collect_saved(self, stages, taken);
}

/* Reads the parts of the batch that the replicas have, one for each stage. */
static AmStatus read_replicas(const PlanReader *self, PlanReplicas *replicas, json_t *root) {
    size_t stages = json_array_size(json_object_get(root, "stages"));
    json_t *list;
    *replicas = (PlanReplicas){0};
    if (!json_object_get(root, "replicas")) return AM_OK;
    TRY(json_get_array(&list, root, "replicas", self->source, "$", self->error));
    if (stages < 2 || stages > STAGES_MOST || json_array_size(list) != stages)
        return plan_reader_refuse(self, "$.replicas",
                                  "expected a part of the batch for each of at least two stages");
    int32_t *parts = ARENA_ARRAY(self->arena, int32_t, stages);
    if (!parts) return am_fail_memory(self->error, (int64_t)stages * 4);
    for (int32_t r = 0; r < (int32_t)stages; r++)
        TRY(plan_reader_integer(self, &parts[r], list, r, "$.replicas", 1, MICRO_BATCHES_MOST));
    *replicas = (PlanReplicas){.parts = parts, .count = (int32_t)stages};
    return AM_OK;
}

/* Reads the micro-batches, and finds the context in which the plan's names are to be read. */
static AmStatus read_micro_batches(PlanReader *self, PlanContext *primary, json_t *root) {
    MicroBatchSettings settings = {0};
    int64_t micro_batches;
    TRY(json_get_integer(&micro_batches, root, "micro_batches", 1, MICRO_BATCHES_MOST, self->source, "$",
                         self->error));
    TRY(read_relaxations(self, &settings.relaxations, root));
    TRY(collect_recomputed(self, root));
    settings.recomputed = self->recomputed;
    self->plan->micro_batches = settings.micro_batches = (int32_t)micro_batches;
    TRY(read_replicas(self, &settings.replicas, root));
    self->plan->replicas = settings.replicas;
    settings.separate_backward =
        settings.replicas.count == 0 && json_array_size(json_object_get(root, "stages")) > 1;
    AmError own = {0};
    AmStatus status = plan_context_for(&self->context, primary, &settings, &own);
    if (status == AM_ERROR_INFEASIBLE)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.%s: %s",
                       settings.replicas.count > 0 ? "replicas" : "micro_batches", own.text);
    if (status != AM_OK) {
        if (self->error) *self->error = own;
        return status;
    }
    self->plan->context = self->context;
    return AM_OK;
}

/* Checks that the file's rows of a derived part have the derived values of `keys`; other keys are for
 * readers. A plan written by hand may lack the part. */
static AmStatus check_derived(const PlanReader *self, json_t *root, const char *name, const json_t *derived,
                              const char *const *keys) {
    json_t *given;
    if (!json_object_get(root, name)) return AM_OK;
    TRY(json_get_array(&given, root, name, self->source, "$", self->error));
    const char *at = plan_reader_place(self, "$.%s", name, 0);
    if (json_array_size(given) != json_array_size(derived))
        return plan_reader_refuse(self, at, "not as many as the stages give");
    for (size_t k = 0; k < json_array_size(given); k++)
        for (const char *const *key = keys; *key; key++)
            if (!json_equal(json_object_get(json_array_get(given, k), *key),
                            json_object_get(json_array_get(derived, k), *key)))
                return am_fail(self->error, AM_ERROR_INPUT, self->source,
                               "%s[%zu].%s: differs from the value derived from the plan's stages", at, k,
                               *key);
    return AM_OK;
}

static AmStatus check_all_derived(const PlanReader *self, json_t *root) {
    static const char *const parameter_keys[] = {"number", "stage", "sharding", NULL};
    static const char *const decision_keys[] = {"class", "choice", NULL};
    json_t *parameters = NULL, *decisions = NULL;
    AmStatus status;
    status = plan_parameters_to_json(&parameters, self->plan, self->context, self->error);
    if (status == AM_ERROR_INPUT && self->error) /* of the stages, whatever file their names are from */
        snprintf(self->error->source, sizeof self->error->source, "%s", self->source);
    if (status != AM_OK) goto fail;
    TRY_OR_FAIL(plan_decisions_to_json(&decisions, self->plan, self->context, self->error));
    TRY_OR_FAIL(check_derived(self, root, "parameters", parameters, parameter_keys));
    TRY_OR_FAIL(check_derived(self, root, "decisions", decisions, decision_keys));
fail:
    json_decref(parameters);
    json_decref(decisions);
    return status;
}

/* Reads the value of a key of "rewriting", which has one legal word; `*is_set`: it is there. */
static AmStatus read_rewriting_key(PlanReader *self, bool *is_set, json_t *object, const char *key,
                                   const char *word) {
    const char *text;
    *is_set = json_object_get(object, key) != NULL;
    if (!*is_set) return AM_OK;
    TRY(json_get_string(&text, object, key, self->source, "$.rewriting", self->error));
    if (strcmp(text, word) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source,
                   "$.rewriting.%s: expected \"%s\", found \"%.40s\"", key, word, text);
}

/* Replaces the context by that of the module as the plan rewrites it. The module of another plan is refused
 * by read_module(). */
static AmStatus read_rewriting(PlanReader *self, PlanContext **primary, json_t *root) {
    static const char *const keys[] = {"layers", "recomputation", "attention", NULL};
    json_t *object = json_object_get(root, "rewriting");
    const char *sha256 = json_string_value(json_object_get(json_object_get(root, "module"), "sha256"));
    PlanRewrites rewriting = {0};
    if ((*primary)->source) *primary = (*primary)->source;
    self->context = *primary;
    if (!object) return AM_OK;
    if (!json_is_object(object)) return plan_reader_refuse(self, "$.rewriting", "expected an object");
    TRY(json_only_keys(object, keys, self->source, "$.rewriting", self->error));
    TRY(read_rewriting_key(self, &rewriting.splits_layers, object, "layers", "split"));
    TRY(read_rewriting_key(self, &rewriting.undoes_recomputation, object, "recomputation", "undone"));
    TRY(read_rewriting_key(self, &rewriting.fuses_attention, object, "attention", "fused"));
    if (!sha256 || strcmp(sha256, (*primary)->sha256) != 0) return AM_OK;
    AmError own = {0};
    AmStatus status = plan_context_rewrite(primary, *primary, rewriting, &own);
    if (status == AM_ERROR_INFEASIBLE)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.rewriting: %s", own.text);
    if (status != AM_OK && self->error) *self->error = own;
    self->context = *primary;
    return status;
}

static AmStatus read_plan(PlanReader *self, PlanContext *primary, json_t *root) {
    static const char *const keys[] = {"format",        "automap_version", "module",    "cluster",
                                       "micro_batches", "schedule",        "stages",    "relaxations",
                                       "parameters",    "decisions",       "predicted", "search",
                                       "rewriting",     "names",           "replicas",  NULL};
    const char *version;
    json_t *stages;
    if (!json_is_object(root)) return plan_reader_refuse(self, "$", "expected an object");
    TRY(json_check_format(root, FORMAT_NAME, self->source, self->error));
    TRY(json_only_keys(root, keys, self->source, "$", self->error));
    TRY(json_get_string(&version, root, "automap_version", self->source, "$", self->error));
    TRY(plan_rename_keys(root, self->error));
    TRY(plan_adapt(root, plan_context_source(primary), self->source, self->error));
    PlanContext *source = primary->source ? primary->source : primary;
    /* The plan is carried to the module at hand by its names; the hash of its own module is noted. */
    const json_t *module = json_object_get(root, "module");
    const char *sha256 = json_string_value(json_object_get(module, "sha256"));
    const char *before = arena_copy_string(self->arena, sha256 ? sha256 : "");
    if (!before) return am_fail_memory(self->error, 0);
    TRY(plan_names_carry(root, source, self->source, self->error));
    const char *after = json_string_value(json_object_get(module, "sha256"));
    if (after && strcmp(before, after) != 0) self->plan->carried_sha256 = before;
    TRY(read_rewriting(self, &primary, root));
    TRY(read_module(self, root));
    TRY(read_cluster(self, root));
    TRY(read_micro_batches(self, primary, root));
    TRY(json_get_string(&self->plan->schedule, root, "schedule", self->source, "$", self->error));
    TRY(json_get_array(&stages, root, "stages", self->source, "$", self->error));
    TRY(plan_reader_stages(self, stages));
    TRY(read_predicted(self, root));
    return read_search(self, root);
}

static AmStatus from_json(Plan **plan, json_t *root, Arena *arena, PlanContext *context, const char *source,
                          bool is_checked, AmError *error) {
    PlanReader reader = {.arena = arena,
                         .context = context,
                         .source = source,
                         .plan = ARENA_ARRAY(arena, Plan, 1),
                         .taken = ARENA_ARRAY(arena, bool, MESH_MAX_DEVICES),
                         .error = error};
    if (!reader.plan || !reader.taken) return am_fail_memory(error, (int64_t)sizeof(Plan));
    reader.plan->source = source;
    TRY(read_plan(&reader, context, root));
    if (is_checked) TRY(check_all_derived(&reader, root));
    *plan = reader.plan;
    return AM_OK;
}

AmStatus plan_stages_from_json(Plan **plan, json_t *root, Arena *arena, PlanContext *context,
                               const char *source, AmError *error) {
    return from_json(plan, root, arena, context, source, false, error);
}

AmStatus plan_parse(Plan **plan, json_t **root, Arena *arena, PlanContext *context, const char *source,
                    const char *data, int64_t length, AmError *error) {
    json_t *document = NULL;
    const char *kept = arena_copy_string(arena, source);
    if (!kept) return am_fail_memory(error, 0);
    TRY(file_format_expect(FILE_FORMAT_PLAN, kept, data, length, error));
    TRY(json_parse(&document, kept, data, (size_t)length, error));
    AmStatus status = from_json(plan, document, arena, context, kept, true, error);
    if (status == AM_OK) *root = document;
    else json_decref(document);
    return status;
}

AmStatus plan_read(Plan **plan, json_t **root, Arena *arena, PlanContext *context, const char *path,
                   AmError *error) {
    FileBytes bytes = {0};
    TRY(file_read(&bytes, path, error));
    AmStatus status = plan_parse(plan, root, arena, context, bytes.name, bytes.data, bytes.length, error);
    file_release(&bytes);
    return status;
}
