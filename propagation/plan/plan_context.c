/* Reads and derives everything to which a plan's names refer. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ir/canonical/canonical.h"
#include "propagation/plan/plan.h"

#define ROLES_FILE "model.roles.json"

const char *plan_context_roles(Arena *arena, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (strncmp(name, "model.", 6) != 0) return NULL;
    char *roles = arena_format(arena, "%.*s" ROLES_FILE, (int)(name - path), path);
    return roles && access(roles, R_OK) == 0 ? roles : NULL;
}

AmStatus plan_context_of(PlanContext **context, IrModule *module, const char *roles_path, AmError *error) {
    Arena arena = {0};
    PlanContext *self = ARENA_ARRAY(&arena, PlanContext, 1);
    if (!self) {
        ir_module_free(module);
        return am_fail_memory(error, (int64_t)sizeof *self);
    }
    self->arena = arena;
    self->module = module;
    AmStatus status;
    TRY_OR_FAIL(ir_canonicalize(&self->canonical, self->module, error));
    ir_hash(self->canonical, self->sha256);
    if (!self->sha256[0]) {
        status = am_fail_memory(error, (int64_t)sizeof self->sha256);
        goto fail;
    }
    TRY_OR_FAIL(ir_find_roles(&self->roles, &self->arena, self->canonical, roles_path, error));
    TRY_OR_FAIL(rules_build(&self->rules, &self->arena, self->canonical, error));
    TRY_OR_FAIL(classes_build(&self->classes, &self->arena, self->rules, self->roles, error));
    TRY_OR_FAIL(choices_build(&self->choices, &self->arena, self->rules, self->classes, self->roles, error));
    *context = self;
    return AM_OK;
fail:
    plan_context_free(self);
    return status;
}

AmStatus plan_context_read(PlanContext **context, const char *path, const char *roles_path, AmError *error) {
    Arena arena = {0};
    IrModule *module;
    TRY(ir_read(&module, path, error));
    if (!roles_path) roles_path = plan_context_roles(&arena, path);
    AmStatus status = plan_context_of(context, module, roles_path, error);
    arena_free(&arena);
    return status;
}

AmStatus plan_context_parse(PlanContext **context, const char *source, const char *data, int64_t length,
                            AmError *error) {
    IrModule *module;
    TRY(ir_read_bytes(&module, source, data, length, error));
    return plan_context_of(context, module, NULL, error);
}

void plan_context_free(PlanContext *context) {
    if (!context) return;
    for (PlanContext *next = NULL, *split = context->splits; split; split = next) {
        next = split->next_split;
        plan_context_free(split);
    }
    ir_module_free(context->canonical);
    if (!context->whole) ir_module_free(context->module);
    Arena arena = context->arena; /* the context itself lives in it */
    arena_free(&arena);
}
