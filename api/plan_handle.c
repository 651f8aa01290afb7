/* Handles of plans: am_plan_read() and am_plan_parse(), the writers, and accessors.
 *
 * A plan is written as a plan file (am_plan_write(), am_plan_to_json()) or for a target, with the limits of
 * that system (am_plan_write_for()). Accessors return copies of facts: stages, devices, parameters with
 * their shardings, baselines. Tables for parameters are made on the first call, under a mutex.
 */
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "api/options.h"
#include "base/files/file.h"
#include "lowering/plan_file/plan_parts.h"

AmPlan *api_new_plan(AmModule *module, AmError *error) {
    AmPlan *self = calloc(1, sizeof *self);
    if (!self || pthread_mutex_init(&self->mutex, NULL) != 0) {
        free(self);
        am_fail_memory(error, (int64_t)sizeof *self);
        return NULL;
    }
    self->module = self->primary = module->context;
    self->memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION;
    return self;
}

/* Takes the context of the module as the plan rewrites it. */
static AmStatus find_whole(AmPlan *self, AmError *error) {
    const PlanContext *used = plan_context_used(self->plan, self->module);
    return plan_context_rewrite(&self->primary, self->module, plan_context_primary(used)->rewriting, error);
}

void am_plan_free(AmPlan *plan) {
    if (!plan) return;
    json_decref(plan->document);
    json_decref(plan->root);
    json_decref(plan->settings);
    cluster_free(plan->cluster);
    profile_close(plan->profile);
    pthread_mutex_destroy(&plan->mutex);
    arena_free(&plan->arena);
    free(plan);
}

/* ---- files ---- */

AmStatus am_plan_read(AmPlan **plan, AmModule *module, const char *path, AmError *error) {
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    *plan = NULL;
    TRY(api_require(module, "module", error));
    TRY(api_require(path, "path", error));
    TRY(api_check_module(module, error));
    AmPlan *self = api_new_plan(module, error);
    if (!self) return AM_ERROR_INTERNAL;
    AmStatus status;
    API_IN_C_LOCALE(status, plan_read(&self->plan, &self->root, &self->arena, self->primary, path, error),
                    error);
    if (status == AM_OK) status = find_whole(self, error);
    if (status == AM_OK) *plan = self;
    else am_plan_free(self);
    return status;
}

AmStatus am_plan_parse(AmPlan **plan, AmModule *module, const void *data, size_t bytes, const char *name,
                       AmError *error) {
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    *plan = NULL;
    TRY(api_require(module, "module", error));
    TRY(api_require(data, "data", error));
    TRY(api_check_module(module, error));
    AmPlan *self = api_new_plan(module, error);
    if (!self) return AM_ERROR_INTERNAL;
    char *copy = arena_copy_bytes(&self->arena, data, bytes);
    AmStatus status = copy ? AM_OK : am_fail_memory(error, (int64_t)bytes);
    if (copy)
        API_IN_C_LOCALE(status,
                        plan_parse(&self->plan, &self->root, &self->arena, self->primary,
                                   name ? name : "<memory>", copy, (int64_t)bytes, error),
                        error);
    if (status == AM_OK) status = find_whole(self, error);
    if (status == AM_OK) *plan = self;
    else am_plan_free(self);
    return status;
}

AmStatus api_plan_document(json_t **document, const AmPlan *plan, AmError *error) {
    AmPlan *self = (AmPlan *)plan; /* the mutex guards a cache in it */
    AmStatus status = AM_OK;
    pthread_mutex_lock(&self->mutex);
    if (!self->document) status = plan_to_json(&self->document, self->plan, self->primary, error);
    *document = self->document;
    pthread_mutex_unlock(&self->mutex);
    return status;
}

AmStatus am_plan_write(const AmPlan *plan, const char *path, AmError *error) {
    json_t *document;
    AmStatus status;
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    TRY(api_require(path, "path", error));
    API_IN_C_LOCALE(status, api_plan_document(&document, plan, error), error);
    if (status == AM_OK) API_IN_C_LOCALE(status, plan_write_json(document, path, error), error);
    return status;
}

static AmStatus parse_target(Target *target, const char *name, AmError *error) {
    int32_t chosen = 0;
    TRY(option_parse_choice("target", name, target_name, TARGET_NAMES, &chosen, error));
    *target = target_of_name(chosen);
    return AM_OK;
}

static AmStatus check_module(const PlanContext *module, const char *name, AmError *error) {
    Target target;
    TRY(parse_target(&target, name, error));
    return target_check_module(target, module, error);
}

AmStatus am_module_check_target(const AmModule *module, const char *target, AmError *error) {
    AmStatus status;
    api_begin(error);
    TRY(api_require(module, "module", error));
    TRY(api_require(target, "target", error));
    API_IN_C_LOCALE(status, check_module(module->context, target, error), error);
    return status;
}

static AmStatus write_for(const AmPlan *self, const char *name, const char *path, AmError *error) {
    Target target;
    TRY(parse_target(&target, name, error));
    const Plan *found = self->targets.on[target];
    if (!found)
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "none of the priced plans runs there (--for %s searches for one)",
                       target_row(target)->name);
    Plan plan = *found;
    plan.settings = self->plan->settings;
    return plan_write(&plan, self->primary, path, error);
}

AmStatus am_plan_write_for(const AmPlan *plan, const char *target, const char *path, AmError *error) {
    AmStatus status;
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    TRY(api_require(target, "target", error));
    TRY(api_require(path, "path", error));
    API_IN_C_LOCALE(status, write_for(plan, target, path, error), error);
    return status;
}

AmStatus am_plan_to_json(const AmPlan *plan, char **json, size_t *bytes, AmError *error) {
    json_t *document;
    AmStatus status;
    api_begin(error);
    TRY(api_require(json, "json", error));
    *json = NULL;
    TRY(api_require(plan, "plan", error));
    API_IN_C_LOCALE(status, api_plan_document(&document, plan, error), error);
    if (status == AM_OK)
        API_IN_C_LOCALE(status, api_give_json(json, bytes, json_incref(document), JSON_STYLE_INDENTED, error),
                        error);
    return status;
}

/* ---- numbers ---- */

double am_plan_step_seconds(const AmPlan *plan) {
    return plan->plan->predicted_step_seconds;
}

double am_plan_bound_seconds(const AmPlan *plan) {
    return plan->plan->bound_seconds;
}

double am_plan_gap(const AmPlan *plan) {
    return plan->plan->predicted_step_seconds / plan->plan->bound_seconds - 1;
}

int64_t am_plan_peak_bytes(const AmPlan *plan) {
    int64_t most = 0;
    for (int32_t d = 0; d < plan->plan->device_count; d++) {
        const PlanDevicePrediction *device = &plan->plan->predicted[d];
        int64_t bytes = device->peak_bytes + device->channel_bytes;
        if (bytes > most) most = bytes;
    }
    return most;
}

int64_t am_plan_evaluations(const AmPlan *plan) {
    return plan->is_searched ? plan->result.evaluations : plan->plan->evaluations;
}

int32_t am_plan_micro_batches(const AmPlan *plan) {
    return plan->plan->micro_batches;
}

const char *am_plan_schedule(const AmPlan *plan) {
    return plan->plan->schedule;
}

const char *am_plan_searcher(const AmPlan *plan) {
    return plan->plan->searcher;
}

const char *am_plan_space(const AmPlan *plan) {
    return plan->plan->space;
}

int32_t am_plan_stage_count(const AmPlan *plan) {
    return plan->plan->stage_count;
}

int32_t am_plan_device_count(const AmPlan *plan) {
    int32_t count = 0;
    for (int32_t s = 0; s < plan->plan->stage_count; s++) count += plan->plan->stages[s].mesh.device_count;
    return count;
}

int32_t am_plan_parameter_count(const AmPlan *plan) {
    return plan->primary->roles->parameter_count;
}

/* ---- stages and devices ---- */

AmStatus am_plan_stage(const AmPlan *plan, int32_t stage, AmStage *facts, AmError *error) {
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(stage, plan->plan->stage_count, "stage", error));
    const PlanStage *from = &plan->plan->stages[stage];
    AmStage all = {.device_count = from->mesh.device_count,
                   .devices = from->devices,
                   .axis_count = from->mesh.axis_count};
    for (int32_t s = 0; s < stage; s++) all.first += plan->plan->stages[s].mesh.device_count;
    /* Names and sizes of the axes, as arrays; `mesh->axes` has both in one struct. */
    AmPlan *self = (AmPlan *)plan; /* the mutex guards the arena */
    pthread_mutex_lock(&self->mutex);
    const char **own_names = ARENA_ARRAY(&self->arena, const char *, from->mesh.axis_count + 1);
    int32_t *own_sizes = ARENA_ARRAY(&self->arena, int32_t, from->mesh.axis_count + 1);
    pthread_mutex_unlock(&self->mutex);
    if (!own_names || !own_sizes) return am_fail_memory(error, from->mesh.axis_count);
    for (int32_t axis = 0; axis < from->mesh.axis_count; axis++) {
        own_names[axis] = from->mesh.axes[axis].name;
        own_sizes[axis] = from->mesh.axes[axis].size;
    }
    all.axis_names = own_names;
    all.axis_sizes = own_sizes;
    return api_copy_facts(facts, facts->size, &all, sizeof all, error);
}

AmStatus am_plan_device(const AmPlan *plan, int32_t k, AmDevice *facts, AmError *error) {
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(k, plan->plan->device_count, "device", error));
    const PlanDevicePrediction *from = &plan->plan->predicted[k];
    AmDevice all = {.peak_bytes = from->peak_bytes + from->channel_bytes,
                    .weights_bytes = from->weights_bytes,
                    .gradients_bytes = from->gradients_bytes,
                    .optimizer_bytes = from->optimizer_bytes,
                    .activation_bytes = from->activation_bytes,
                    .slot_bytes = from->channel_bytes,
                    .compute_seconds = from->compute_seconds,
                    .communication_seconds = from->communication_seconds,
                    .idle_seconds = from->idle_seconds,
                    .host_bytes = from->host_bytes};
    int32_t at = k;
    while (at >= plan->plan->stages[all.stage].mesh.device_count)
        at -= plan->plan->stages[all.stage++].mesh.device_count;
    all.device = plan->plan->stages[all.stage].devices[at];
    return api_copy_facts(facts, facts->size, &all, sizeof all, error);
}

/* ---- parameters ---- */

static AmStatus describe_parameter(AmPlanParameter *row, Arena *arena, const PlanContext *context, int32_t p,
                                   const json_t *parameter, AmError *error) {
    const IrParameter *from = &context->roles->parameters[p];
    const IrShape *shape = &plan_context_instruction(context, from->instruction)->shape;
    const json_t *sharding = json_object_get(parameter, "sharding");
    int32_t rank = (int32_t)json_array_size(sharding);
    const char **axes = ARENA_ARRAY(arena, const char *, rank + 1);
    char *text = arena_copy_string(arena, "[");
    for (int32_t d = 0; axes && text && d < rank; d++) {
        axes[d] = plan_axes_text(arena, json_array_get(sharding, (size_t)d));
        if (axes[d]) text = arena_format(arena, "%s%s%s", text, d ? "," : "", *axes[d] ? axes[d] : "-");
    }
    if (text) text = arena_format(arena, "%s]", text);
    if (arena->failed) return am_fail_memory(error, rank);
    *row = (AmPlanParameter){.number = p,
                             .path = from->path,
                             .type = dtype_name(shape->type),
                             .role = ir_role_name(from->role),
                             .rank = rank,
                             .dimensions = shape->type == DTYPE_TUPLE ? NULL : shape->dimensions,
                             .stage = (int32_t)json_integer_value(json_object_get(parameter, "stage")),
                             .sharding = text,
                             .axes = axes};
    return AM_OK;
}

/* Fills plan->parameters; the caller holds the mutex. */
static AmStatus describe_parameters(AmPlan *self, const json_t *document, AmError *error) {
    const json_t *parameters = json_object_get(document, "parameters");
    int32_t count = self->primary->roles->parameter_count;
    AmPlanParameter *rows = ARENA_ARRAY(&self->arena, AmPlanParameter, count + 1);
    if (!rows) return am_fail_memory(error, count);
    for (int32_t p = 0; p < count; p++)
        TRY(describe_parameter(&rows[p], &self->arena, self->primary, p,
                               json_array_get(parameters, (size_t)p), error));
    self->parameters = rows;
    return AM_OK;
}

AmStatus am_plan_parameter(const AmPlan *plan, int32_t number, AmPlanParameter *facts, AmError *error) {
    json_t *document;
    AmStatus status;
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(number, am_plan_parameter_count(plan), "parameter", error));
    API_IN_C_LOCALE(status, api_plan_document(&document, plan, error), error);
    TRY(status);
    AmPlan *self = (AmPlan *)plan;
    pthread_mutex_lock(&self->mutex);
    if (!self->parameters) status = describe_parameters(self, document, error);
    pthread_mutex_unlock(&self->mutex);
    TRY(status);
    const AmPlanParameter *row = &self->parameters[number];
    return api_copy_facts(facts, facts->size, row, sizeof *row, error);
}

/* ---- baselines ---- */

int32_t am_plan_baseline_count(const AmPlan *plan) {
    return plan->is_searched && !plan->result.paper ? BASELINE_COUNT : 0;
}

AmStatus am_plan_baseline(const AmPlan *plan, int32_t k, AmBaseline *facts, AmError *error) {
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(k, am_plan_baseline_count(plan), "baseline", error));
    const BaselineResult *from = &plan->result.baselines[k];
    const AmBaseline all = {
        .name = baseline_name((Baseline)k), .seconds = from->seconds, .reason = from->reason};
    return api_copy_facts(facts, facts->size, &all, sizeof all, error);
}
