/* The public C API (include/automap.h): handles around the library's own types. */
#include <stdlib.h>

#include "automap.h"
#include "planners/micro_batch_search.h"

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
    json_t *root; /* what a plan that was read points into, or NULL */
};

/* A zeroed handle; NULL with the error filled. */
static void *new_handle(size_t bytes, AmError *error) {
    void *handle = calloc(1, bytes);
    if (!handle) am_fail_memory(error, (int64_t)bytes);
    return handle;
}

const char *am_version(void) {
    return AM_VERSION;
}

AmStatus am_module_read(AmModule **module, const char *path, const char *roles_path, AmError *error) {
    AmModule *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    AmStatus status = plan_context_read(&self->context, path, roles_path, error);
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
    AmCluster *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    AmStatus status = cluster_read(&self->cluster, &self->arena, name_or_path, error);
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

AmStatus am_search(AmPlan **plan, const AmModule *module, const AmCluster *cluster,
                   const AmSearchOptions *options, AmError *error) {
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
    AmStatus status = search_micro_batches(&result, &self->arena, module->context, cluster->cluster,
                                           &settings, &micro_batching, error);
    self->plan = result.plan;
    if (status == AM_OK) *plan = self;
    else am_plan_free(self);
    return status;
}

AmStatus am_plan_read(AmPlan **plan, const AmModule *module, const char *path, AmError *error) {
    AmPlan *self = new_handle(sizeof *self, error);
    if (!self) return AM_ERROR_INTERNAL;
    self->context = module->context;
    AmStatus status = plan_read(&self->plan, &self->root, &self->arena, module->context, path, error);
    if (status == AM_OK) *plan = self;
    else am_plan_free(self);
    return status;
}

AmStatus am_plan_write(const AmPlan *plan, const char *path, AmError *error) {
    return plan_write(plan->plan, plan->context, path, error);
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
