/* Reads a module, and derives everything to which a plan's names refer.
 *
 * plan_context_read() reads the module and its roles; derive() adds rules, classes, ties and options to
 * split. plan_context_rewrite() makes contexts of rewritten modules, once each: separate layers, undone
 * recomputation, fused attention. All contexts of a module are released together.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/parallel.h"
#include "ir/canonical/canonical.h"
#include "ir/recomputation/undo.h"
#include "propagation/plan/plan.h"

#define ROLES_FILE "model.roles.json"

void plan_replicas_append(Text *text, const PlanReplicas *replicas) {
    int32_t all = 0;
    text_append(text, "%d replicas with ", replicas->count);
    for (int32_t r = 0; r < replicas->count; r++) {
        text_append(text, "%s%d", r > 0 ? " + " : "", replicas->parts[r]);
        all += replicas->parts[r];
    }
    text_append(text, " of %d examples", all);
}

const char *plan_context_roles_path(Arena *arena, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (strncmp(name, "model.", 6) != 0) return NULL;
    return arena_format(arena, "%.*s" ROLES_FILE, (int)(name - path), path);
}

const char *plan_context_roles(Arena *arena, const char *path) {
    const char *roles = plan_context_roles_path(arena, path);
    return roles && access(roles, R_OK) == 0 ? roles : NULL;
}

/* Derives everything that follows from the canonical module and its roles. */
static AmStatus derive(PlanContext *self, AmError *error) {
    TRY(rules_build(&self->rules, &self->arena, self->canonical, error));
    TRY(classes_build(&self->classes, &self->arena, self->rules, self->roles, error));
    return split_options_build(&self->split_options, &self->arena, self->rules, self->classes, self->roles,
                               error);
}

/* The roles and the hash of a canonical module, found side by side. */
typedef struct ContextTasks {
    PlanContext *context;
    const char *roles_path;
    AmStatus status;
    AmError error;
} ContextTasks;

static void context_task(void *user, int32_t k) {
    ContextTasks *tasks = user;
    PlanContext *self = tasks->context;
    if (k == 1) ir_hash(self->canonical, self->sha256);
    else
        tasks->status =
            ir_find_roles(&self->roles, &self->arena, self->canonical, tasks->roles_path, &tasks->error);
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
    ContextTasks tasks = {.context = self, .roles_path = roles_path};
    parallel_for(2, 0, context_task, &tasks);
    TRY_OR_FAIL(am_pass_error(tasks.status, &tasks.error, error));
    if (!self->sha256[0]) {
        status = am_fail_memory(error, (int64_t)sizeof self->sha256);
        goto fail;
    }
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

AmStatus plan_context_move_roles(IrRoles **roles, Arena *arena, const PlanContext *from,
                                 const IrModule *module, const int32_t *original, AmError *error) {
    const IrComputation *entry = &module->computations[module->entry];
    const IrInstruction *root = &module->instructions[entry->root];
    IrRoles *made = ARENA_ARRAY(arena, IrRoles, 1);
    IrParameter *parameters = ARENA_ARRAY(arena, IrParameter, from->roles->parameter_count + 1);
    int32_t *outputs = ARENA_ARRAY(arena, int32_t, from->roles->output_count + 1);
    IrPhase *phases = ARENA_ARRAY(arena, IrPhase, module->instruction_count + 1);
    if (arena->failed) return am_fail_memory(error, module->instruction_count);
    for (int32_t p = 0; p < from->roles->parameter_count; p++) {
        parameters[p] = from->roles->parameters[p];
        parameters[p].instruction = entry->parameters[p];
    }
    for (int32_t k = 0; k < from->roles->output_count; k++)
        outputs[k] = root->opcode == IR_TUPLE ? root->operands[k] : entry->root;
    for (int32_t i = 0; i < module->instruction_count; i++) phases[i] = from->roles->phases[original[i]];
    *made = *from->roles;
    made->parameters = parameters;
    made->outputs = outputs;
    made->phases = phases;
    *roles = made;
    return AM_OK;
}

const char *attention_choice_name(AttentionChoice choice) {
    static const char *const names[] = {
        [ATTENTION_AUTO] = "auto", [ATTENTION_FUSED] = "fused", [ATTENTION_UNFUSED] = "unfused"};
    return names[choice];
}

AmStatus plan_context_find_attention(PlanContext *context, AmError *error) {
    if (context->attention) return AM_OK;
    return ir_find_attention(&context->attention, &context->arena, context->canonical, context->roles->phases,
                             error);
}

/* roles->repeats by the instructions of a module made from that of `made_from`: the first that serves the one
 * repeated. `original` [instruction]: that of `made_from`. */
static AmStatus move_repeats(PlanContext *self, const PlanContext *made_from, const int32_t *original,
                             AmError *error) {
    const IrRoles *from = made_from->roles;
    int32_t count = self->canonical->instruction_count, primary = made_from->canonical->instruction_count;
    if (!from->repeats) return AM_OK;
    int32_t *serving = ARENA_ARRAY(&self->arena, int32_t, primary + 1);
    int32_t *repeats = ARENA_ARRAY(&self->arena, int32_t, count + 1);
    if (!serving || !repeats) return am_fail_memory(error, count);
    for (int32_t i = 0; i < primary; i++) serving[i] = -1;
    for (int32_t i = count - 1; i >= 0; i--) serving[original[i]] = i;
    for (int32_t i = 0; i < count; i++) {
        int32_t repeated = from->repeats[original[i]];
        repeats[i] = repeated < 0 ? -1 : serving[repeated];
    }
    self->roles->repeats = repeats;
    return AM_OK;
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
    if (!context->primary && !context->source) ir_module_free(context->module);
    Arena arena = context->arena; /* the context itself lives in it */
    arena_free(&arena);
}

/* Returns why a module has no layers to split, if it has no obstacle. */
static const char *no_layers_reason(const IrModule *module) {
    for (int32_t i = 0; i < module->instruction_count; i++)
        if (module->instructions[i].opcode == IR_WHILE)
            return "it has no stacked parameters of which a loop takes one row in each trip, as scan does "
                   "without unroll and without a scan inside";
    return "it has no stacked parameters that are read layer by layer";
}

static AmStatus split_layers(PlanContext *self, PlanContext *source, AmError *error) {
    const char *reason = NULL;
    IrLayerMap *map = NULL;
    TRY(ir_split_layers(&self->canonical, &map, &reason, &source->arena, source->canonical, source->roles,
                        error));
    if (!self->canonical) {
        source->layers_reason = reason ? reason : no_layers_reason(source->canonical);
        return am_fail(error, AM_ERROR_INFEASIBLE, source->module->source, "its layers cannot be split: %s",
                       source->layers_reason);
    }
    self->layer_map = map;
    return ir_split_roles(&self->roles, &self->arena, self->canonical, map, source->roles, error);
}

/* Fuses attention in the module of `from`, which is as read or with split layers. */
static AmStatus fuse_attention(PlanContext *self, PlanContext *from, AmError *error) {
    TRY(plan_context_find_attention(from, error));
    if (ir_count_attention(from->attention) == 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, from->module->source,
                       "the module has no attention operator (automap info has near misses)");
    self->unfused = from;
    self->layer_map = from->layer_map;
    TRY(ir_fuse_attention(&self->canonical, &self->original, from->canonical, from->attention, error));
    TRY(plan_context_move_roles(&self->roles, &self->arena, from, self->canonical, self->original, error));
    return move_repeats(self, from, self->original, error);
}

/* Undoes the recomputation in the module of `from`, which is as read or with split layers. */
static AmStatus undo_recomputation(PlanContext *self, PlanContext *from, AmError *error) {
    int32_t *origins;
    self->layer_map = from->layer_map;
    TRY(ir_undo_recomputation(&self->canonical, &origins, from->canonical, from->roles->phases, error));
    if (!self->canonical)
        return am_fail(error, AM_ERROR_INFEASIBLE, from->module->source,
                       "the module recomputes no forward value outside of loops");
    TRY(plan_context_move_roles(&self->roles, &self->arena, from, self->canonical, origins, error));
    return move_repeats(self, from, origins, error);
}

static AmStatus make_rewritten(PlanContext **made, PlanContext *source, PlanRewrites rewriting,
                               AmError *error) {
    Arena arena = {0};
    PlanContext *from, *self = ARENA_ARRAY(&arena, PlanContext, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->arena = arena;
    self->source = source;
    self->module = source->module;
    self->rewriting = rewriting;
    memcpy(self->sha256, source->sha256, sizeof self->sha256);
    AmStatus status;
    if (rewriting.fuses_attention) {
        rewriting.fuses_attention = false;
        TRY_OR_FAIL(plan_context_rewrite(&from, source, rewriting, error));
        TRY_OR_FAIL(fuse_attention(self, from, error));
    } else if (rewriting.undoes_recomputation) {
        rewriting.undoes_recomputation = false;
        TRY_OR_FAIL(plan_context_rewrite(&from, source, rewriting, error));
        TRY_OR_FAIL(undo_recomputation(self, from, error));
    } else {
        TRY_OR_FAIL(split_layers(self, source, error));
    }
    TRY_OR_FAIL(derive(self, error));
    *made = self;
    return AM_OK;
fail:
    plan_context_free(self);
    return status;
}

/* Of the lists of rewritten contexts: two threads may make different ones of a module. */
static pthread_mutex_t rewritten_lock = PTHREAD_MUTEX_INITIALIZER;

AmStatus plan_context_rewrite(PlanContext **rewritten, PlanContext *source, PlanRewrites rewriting,
                              AmError *error) {
    *rewritten = source;
    if (plan_rewriting_is_none(rewriting)) return AM_OK;
    pthread_mutex_lock(&rewritten_lock);
    PlanContext *made = source->rewritten;
    while (made && !plan_rewriting_equal(made->rewriting, rewriting)) made = made->next_split;
    pthread_mutex_unlock(&rewritten_lock);
    if (!made) {
        TRY(make_rewritten(&made, source, rewriting, error));
        pthread_mutex_lock(&rewritten_lock);
        made->next_split = source->rewritten;
        source->rewritten = made;
        pthread_mutex_unlock(&rewritten_lock);
    }
    *rewritten = made;
    return AM_OK;
}

void plan_context_forget(PlanContext *rewritten) {
    PlanContext **place = &rewritten->source->rewritten;
    while (*place != rewritten) place = &(*place)->next_split;
    *place = rewritten->next_split;
    plan_context_free(rewritten);
}

AmStatus plan_context_fuse(PlanContext **fused, PlanContext *context, AmError *error) {
    PlanRewrites rewriting = context->rewriting;
    *fused = context;
    if (context->unfused) return AM_OK;
    TRY(plan_context_find_attention(context, error));
    if (ir_count_attention(context->attention) == 0) return AM_OK;
    rewriting.fuses_attention = true;
    return plan_context_rewrite(fused, context->source ? context->source : context, rewriting, error);
}
