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

/* What follows from the canonical module and its roles. */
static AmStatus derive(PlanContext *self, AmError *error) {
    TRY(rules_build(&self->rules, &self->arena, self->canonical, error));
    TRY(classes_build(&self->classes, &self->arena, self->rules, self->roles, error));
    return choices_build(&self->choices, &self->arena, self->rules, self->classes, self->roles, error);
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
    TRY_OR_FAIL(derive(self, error));
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
    PlanContext *owned[] = {context->splits, context->rewritten};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++)
        for (PlanContext *next = NULL, *split = owned[k]; split; split = next) {
            next = split->next_split;
            plan_context_free(split);
        }
    ir_module_free(context->canonical);
    if (!context->whole && !context->source) ir_module_free(context->module);
    Arena arena = context->arena; /* the context itself lives in it */
    arena_free(&arena);
}

static AmStatus make_rewritten(PlanContext **made, PlanContext *source, PlanRewriting rewriting,
                               AmError *error) {
    Arena arena = {0};
    IrLayerMap *map = NULL;
    PlanContext *self = ARENA_ARRAY(&arena, PlanContext, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->arena = arena;
    self->source = source;
    self->module = source->module;
    self->rewriting = rewriting;
    memcpy(self->sha256, source->sha256, sizeof self->sha256);
    AmStatus status;
    const char *reason = NULL;
    TRY_OR_FAIL(ir_split_layers(&self->canonical, &map, &reason, &source->arena, source->canonical,
                                source->roles, error));
    if (!self->canonical) {
        source->layers_reason = reason ? reason : "it has no stacked parameters that are read layer by layer";
        status = am_fail(error, AM_ERROR_INFEASIBLE, source->module->source, "its layers cannot be split: %s",
                         source->layers_reason);
        goto fail;
    }
    self->layer_map = map;
    TRY_OR_FAIL(ir_split_roles(&self->roles, &self->arena, self->canonical, map, source->roles, error));
    TRY_OR_FAIL(derive(self, error));
    *made = self;
    return AM_OK;
fail:
    plan_context_free(self);
    return status;
}

AmStatus plan_context_rewrite(PlanContext **rewritten, PlanContext *source, PlanRewriting rewriting,
                              AmError *error) {
    PlanContext *made = source->rewritten;
    *rewritten = source;
    if (plan_rewriting_is_none(rewriting)) return AM_OK;
    while (made && made->rewriting.splits_layers != rewriting.splits_layers) made = made->next_split;
    if (!made) {
        TRY(make_rewritten(&made, source, rewriting, error));
        made->next_split = source->rewritten;
        source->rewritten = made;
    }
    *rewritten = made;
    return AM_OK;
}
