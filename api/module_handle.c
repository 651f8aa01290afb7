/* Handles of modules and clusters: am_module_read() and am_cluster_read() read files, the calls that end in
 * parse read memory, and the others return facts.
 *
 * api_check_module() refuses modules that XLA has compiled, api_check_arrays() those with tuples as
 * parameters, and api_check_trains() those that train nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "base/files/file_format.h"
#include "ir/analysis/roles.h"

/* Copies bytes of the caller with a NUL after them, as readers need it; NULL and an error without memory. */
static char *copy_input(const void *data, size_t bytes, AmError *error) {
    char *copy = bytes < SIZE_MAX ? malloc(bytes + 1) : NULL;
    if (!copy) {
        am_fail_memory(error, (int64_t)bytes);
        return NULL;
    }
    if (bytes > 0) memcpy(copy, data, bytes);
    copy[bytes] = '\0';
    return copy;
}

/* ---- modules ---- */

AmStatus am_module_read(AmModule **module, const char *path, const char *roles_path, AmError *error) {
    api_begin(error);
    TRY(api_require(module, "module", error));
    *module = NULL;
    TRY(api_require(path, "path", error));
    AmModule *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    AmStatus status;
    API_IN_C_LOCALE(status, plan_context_read(&self->context, path, roles_path, error), error);
    if (status == AM_OK) *module = self;
    else free(self);
    return status;
}

AmStatus am_module_parse(AmModule **module, const void *data, size_t bytes, const char *name,
                         AmError *error) {
    api_begin(error);
    TRY(api_require(module, "module", error));
    *module = NULL;
    TRY(api_require(data, "data", error));
    AmModule *self = calloc(1, sizeof *self);
    char *copy = self ? copy_input(data, bytes, error) : NULL;
    AmStatus status = AM_OK;
    if (!self) status = am_fail_memory(error, (int64_t)sizeof *self);
    else if (!copy) status = AM_ERROR_INTERNAL;
    else
        API_IN_C_LOCALE(
            status, plan_context_parse(&self->context, name ? name : "<memory>", copy, (int64_t)bytes, error),
            error);
    free(copy);
    if (status == AM_OK) *module = self;
    else free(self);
    return status;
}

void am_module_free(AmModule *module) {
    if (!module) return;
    plan_context_free(module->context);
    free(module);
}

const char *am_module_name(const AmModule *module) {
    return module->context->canonical->name;
}

const char *am_module_sha256(const AmModule *module) {
    return module->context->sha256;
}

int32_t am_module_instruction_count(const AmModule *module) {
    return plan_context_count(module->context);
}

int32_t am_module_parameter_count(const AmModule *module) {
    return module->context->roles->parameter_count;
}

int32_t am_module_output_count(const AmModule *module) {
    return module->context->roles->output_count;
}

int32_t am_module_loss(const AmModule *module) {
    return module->context->roles->loss;
}

int32_t am_module_warning_count(const AmModule *module) {
    return module->context->canonical->warnings.count; /* with those of the module as read */
}

const char *am_module_warning(const AmModule *module, int32_t k) {
    const AmWarnings *warnings = &module->context->canonical->warnings;
    return k >= 0 && k < warnings->count ? warnings->texts[k] : NULL;
}

AmStatus am_module_parameter(const AmModule *module, int32_t number, AmParameter *parameter, AmError *error) {
    api_begin(error);
    TRY(api_require(module, "module", error));
    TRY(api_require(parameter, "parameter", error));
    const PlanContext *context = module->context;
    TRY(api_check_index(number, context->roles->parameter_count, "parameter", error));
    const IrParameter *from = &context->roles->parameters[number];
    const IrShape *shape = &plan_context_instruction(context, from->instruction)->shape;
    bool is_tuple = shape->type == DTYPE_TUPLE;
    const AmParameter all = {.number = number,
                             .path = from->path,
                             .type = dtype_name(shape->type),
                             .role = ir_role_name(from->role),
                             .rank = is_tuple ? 0 : shape->rank,
                             .dimensions = is_tuple ? NULL : shape->dimensions,
                             .output = from->output};
    return api_copy_facts(parameter, parameter->size, &all, sizeof all, error);
}

AmStatus api_check_module(const AmModule *module, AmError *error) {
    const IrModule *read = module->context->module;
    return read->is_optimized ? am_fail(error, AM_ERROR_INPUT, read->source, "%s", IR_OPTIMIZED_TEXT) : AM_OK;
}

AmStatus api_check_arrays(const AmModule *module, AmError *error) {
    const IrRoles *roles = module->context->roles;
    for (int32_t k = 0; k < roles->parameter_count; k++)
        if (plan_context_instruction(module->context, roles->parameters[k].instruction)->shape.type ==
            DTYPE_TUPLE)
            return am_fail(error, AM_ERROR_INPUT, plan_context_file(module->context),
                           "parameter %s is a tuple (expected a module with one parameter for each array)",
                           roles->parameters[k].path);
    return AM_OK;
}

AmStatus api_check_trains(const AmModule *module, AmError *error) {
    Arena arena = {0};
    const char *reason = ir_no_training(&arena, module->context->roles);
    if (reason)
        am_fail(error, AM_ERROR_INPUT, plan_context_file(module->context),
                "the module trains nothing: %s (expected a step that returns updated weights and a loss; "
                "--inference accepts any module)",
                reason);
    arena_free(&arena);
    return reason ? AM_ERROR_INPUT : AM_OK;
}

/* ---- clusters ---- */

AmStatus am_cluster_read(AmCluster **cluster, const char *name_or_path, AmError *error) {
    api_begin(error);
    TRY(api_require(cluster, "cluster", error));
    *cluster = NULL;
    TRY(api_require(name_or_path, "name_or_path", error));
    AmCluster *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    AmStatus status;
    API_IN_C_LOCALE(status, cluster_read(&self->cluster, &self->arena, name_or_path, error), error);
    if (status == AM_OK) *cluster = self;
    else am_cluster_free(self);
    return status;
}

static AmStatus parse_cluster(AmCluster *self, const char *data, size_t bytes, const char *name,
                              AmError *error) {
    json_t *root;
    TRY(file_format_expect(FILE_FORMAT_CLUSTER, name, data, (int64_t)bytes, error));
    TRY(json_parse(&root, name, data, bytes, error));
    AmStatus status = cluster_from_json(&self->cluster, &self->arena, root, name, error);
    json_decref(root);
    return status;
}

AmStatus am_cluster_parse(AmCluster **cluster, const void *data, size_t bytes, const char *name,
                          AmError *error) {
    api_begin(error);
    TRY(api_require(cluster, "cluster", error));
    *cluster = NULL;
    TRY(api_require(data, "data", error));
    AmCluster *self = calloc(1, sizeof *self);
    char *copy = self ? copy_input(data, bytes, error) : NULL;
    AmStatus status = AM_OK;
    if (!self) status = am_fail_memory(error, (int64_t)sizeof *self);
    else if (!copy) status = AM_ERROR_INTERNAL;
    else API_IN_C_LOCALE(status, parse_cluster(self, copy, bytes, name ? name : "<memory>", error), error);
    free(copy);
    if (status == AM_OK) *cluster = self;
    else am_cluster_free(self);
    return status;
}

void am_cluster_free(AmCluster *cluster) {
    if (!cluster) return;
    cluster_free(cluster->cluster);
    arena_free(&cluster->arena);
    free(cluster);
}

const char *am_cluster_name(const AmCluster *cluster) {
    return cluster->cluster->name;
}

int32_t am_cluster_device_count(const AmCluster *cluster) {
    return cluster->cluster->device_count;
}
