/* The public C API (include/automap.h): handles around the library's own types. Every call that
 * can fail clears the caller's AmError first and checks its arguments. */
#include <stdlib.h>

#include "automap.h"
#include "base/system/locale_scope.h"
#include "planners/plan_search.h"

struct AmModule {
    PlanContext *context;
};

struct AmCluster {
    Arena arena;
    Cluster *cluster;
};

struct AmPlan {
    Arena arena;
    const PlanContext *context; /* the module's */
    Plan *plan;
    json_t *root; /* JSON that a plan from a file points into, or NULL */
};

/* Clears the error of an earlier call, or whatever the caller's memory held: errors are
 * filled once inside the library, so every public call starts here. */
static void begin_call(AmError *error) {
    if (error) *error = (AmError){.code = AM_OK};
}

/* Assigns the result of CALL to STATUS with numbers in the format of the C locale. */
#define IN_C_LOCALE(STATUS, CALL, ERROR)               \
    do {                                               \
        LocaleScope scope_;                            \
        (STATUS) = locale_scope_enter(&scope_, ERROR); \
        if ((STATUS) == AM_OK) (STATUS) = (CALL);      \
        locale_scope_leave(&scope_);                   \
    } while (0)

static AmStatus require(const void *argument, const char *name, AmError *error) {
    if (argument) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s: NULL (expected a pointer)", name);
}

/* Allocates a zeroed handle; returns NULL and fills `error` without memory. */
static void *new_handle(size_t bytes, AmError *error) {
    void *handle = calloc(1, bytes);
    if (!handle) am_fail_memory(error, (int64_t)bytes);
    return handle;
}

const char *am_version(void) {
    return AM_VERSION;
}

AmStatus am_module_read(AmModule **module, const char *path, const char *roles_path, AmError *error) {
    begin_call(error);
    TRY(require(module, "module", error));
    *module = NULL;
    TRY(require(path, "path", error));
    AmModule *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    AmStatus status;
    IN_C_LOCALE(status, plan_context_read(&self->context, path, roles_path, error), error);
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
    return module->context->canonical->instruction_count;
}

AmStatus am_cluster_read(AmCluster **cluster, const char *name_or_path, AmError *error) {
    begin_call(error);
    TRY(require(cluster, "cluster", error));
    *cluster = NULL;
    TRY(require(name_or_path, "name_or_path", error));
    AmCluster *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    AmStatus status;
    IN_C_LOCALE(status, cluster_read(&self->cluster, &self->arena, name_or_path, error), error);
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

int32_t am_cluster_device_count(const AmCluster *cluster) {
    return cluster->cluster->device_count;
}

/* Checks that an option is zero or a positive finite number of at most `most`. */
static AmStatus check_number(const char *name, double value, double most, AmError *error) {
    if (value >= 0 && value <= most) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s: %g (expected a number from 0 to %g)", name, value, most);
}

static AmStatus check_options(const AmSearchOptions *options, AmError *error) {
    TRY(check_number("evaluations", (double)options->evaluations, (double)INT64_MAX, error));
    TRY(check_number("seconds", options->seconds, 1e9, error));
    return check_number("memory_fraction", options->memory_fraction, 1, error);
}

AmStatus am_search(AmPlan **plan, const AmModule *module, const AmCluster *cluster,
                   const AmSearchOptions *options, AmError *error) {
    begin_call(error);
    TRY(require(plan, "plan", error));
    *plan = NULL;
    TRY(require(module, "module", error));
    TRY(require(cluster, "cluster", error));
    if (options) TRY(check_options(options, error));
    SearchOptions settings = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    const MicroBatching micro_batching = {.micro_batches = options && options->mesh ? 1 : 0};
    SearchResult result = {0};
    if (options) {
        settings.mesh = options->mesh;
        settings.seconds = options->seconds;
        settings.seed = options->seed;
        if (options->evaluations > 0) settings.evaluations = options->evaluations;
        if (options->memory_fraction > 0) settings.memory_fraction = options->memory_fraction;
    }
    AmPlan *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    self->context = module->context;
    AmStatus status;
    IN_C_LOCALE(status,
                plan_search(&result, &self->arena, module->context, cluster->cluster, &settings,
                            &micro_batching, error),
                error);
    self->plan = result.plan;
    if (status == AM_OK) *plan = self;
    else am_plan_free(self);
    return status;
}

AmStatus am_plan_read(AmPlan **plan, const AmModule *module, const char *path, AmError *error) {
    begin_call(error);
    TRY(require(plan, "plan", error));
    *plan = NULL;
    TRY(require(module, "module", error));
    TRY(require(path, "path", error));
    AmPlan *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    self->context = module->context;
    AmStatus status;
    IN_C_LOCALE(status, plan_read(&self->plan, &self->root, &self->arena, module->context, path, error),
                error);
    if (status == AM_OK) *plan = self;
    else am_plan_free(self);
    return status;
}

AmStatus am_plan_write(const AmPlan *plan, const char *path, AmError *error) {
    begin_call(error);
    TRY(require(plan, "plan", error));
    TRY(require(path, "path", error));
    AmStatus status;
    IN_C_LOCALE(status, plan_write(plan->plan, plan->context, path, error), error);
    return status;
}

void am_plan_free(AmPlan *plan) {
    if (!plan) return;
    json_decref(plan->root);
    arena_free(&plan->arena);
    free(plan);
}

double am_plan_step_seconds(const AmPlan *plan) {
    return plan->plan->predicted_step_seconds;
}
