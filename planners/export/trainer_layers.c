/* The layers of a plan as a trainer of transformers counts them: how many each part has, and how many of the
 * first ones it recomputes.
 *
 * Weights name their layer by their path (layer[3].mlp.w). A part has the layers whose weights are on it. A
 * trainer recomputes whole layers one by one, so a range of the plan must begin and end at boundaries of one
 * layer. What the plan saves in the ranges must be what one of the trainer's sets of modules leaves
 * (layer_modules.h).
 */
#include <string.h>

#include "planners/baselines/layer_modules.h"
#include "planners/export/trainer_reader.h"

/* Layers are numbered below this. */
enum { MOST_LAYERS = 65536 };

/* ---- layers ---- */

/* Finds the only stack of several layers, by the first weight in it. */
static AmStatus find_stack(const TrainerReader *self, LayerPath *stack) {
    const IrRoles *roles = self->context->roles;
    bool has_stack = false;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        LayerPath path = layer_path(roles->parameters[p].path);
        if (path.number <= 0 || (has_stack && layer_path_is_same(stack, &path))) continue;
        if (has_stack)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
                "%s count the layers of one stack, and the module has %.*s and %.*s; --format torch "
                "can hold its stages",
                self->row->form, stack->end, stack->path, path.end, path.path);
        *stack = path;
        has_stack = true;
    }
    if (has_stack) return AM_OK;
    return am_fail(self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
                   "%s count layers, and no paths of weights do (as in layer[0], layer[1]); --format torch "
                   "can hold its stages",
                   self->row->form);
}

/* Finds the part of each layer, and checks that weights outside layers are at an end. */
static AmStatus find_parts(TrainerReader *self, const LayerPath *stack, int32_t *part_of, int32_t *count) {
    const IrRoles *roles = self->context->roles;
    int32_t last = self->ranks.parts->stage_count - 1;
    for (int32_t k = 0; k < MOST_LAYERS; k++) part_of[k] = -1;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        int32_t part = self->ranks.map->owner[p];
        if (parameter->role != IR_ROLE_WEIGHT) continue;
        LayerPath path = layer_path(parameter->path);
        if (path.number < 0 || !layer_path_is_same(stack, &path)) {
            if (part == 0 || part == last) continue;
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s places parameters outside layers on the first and the last stage, and the "
                           "plan has %s on stage %d",
                           self->row->trainer, parameter->path, part % self->plan->stage_count);
        }
        if (path.number >= MOST_LAYERS)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "", "%s are for fewer than %d layers",
                           self->row->form, MOST_LAYERS);
        int32_t *of = &part_of[path.number];
        if (*of >= 0 && *of != part)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s cuts between layers, and the plan has parts of %.*s on stages %d and %d; "
                           "export --whole-layers moves the cuts",
                           self->row->trainer, path.end, path.path, *of % self->plan->stage_count,
                           part % self->plan->stage_count);
        *of = part;
        if (path.number >= *count) *count = (int32_t)path.number + 1;
    }
    return AM_OK;
}

AmStatus trainer_count_layers(TrainerReader *self) {
    int32_t *part_of = ARENA_ARRAY(self->arena, int32_t, MOST_LAYERS), count = 0;
    self->layers = ARENA_ARRAY(self->arena, int32_t, self->ranks.parts->stage_count);
    LayerPath stack;
    if (self->arena->failed) return am_fail_memory(self->error, MOST_LAYERS);
    TRY(find_stack(self, &stack));
    TRY(find_parts(self, &stack, part_of, &count));
    for (int32_t k = 0; k < count; k++) {
        if (part_of[k] < 0 || (k > 0 && part_of[k] < part_of[k - 1]))
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s have layers in order, and layer %d of %.*s is %s", self->row->form, k,
                           stack.before, stack.path, part_of[k] < 0 ? "missing" : "before its predecessor");
        self->layers[part_of[k]]++;
    }
    return AM_OK;
}

/* ---- recomputation ---- */

/* Refuses recomputation of stage s. */
static AmStatus fail_ranges(const TrainerReader *self, int32_t s, const char *reason) {
    return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                   "%s recomputes whole layers one by one, and on stage %d the plan %s; " TRAINER_REMEDY,
                   self->row->trainer, s, reason, self->row->name);
}

static bool is_inside(int32_t place, const int32_t places[2]) {
    return place >= places[0] && place <= places[1];
}

/* Returns the layer that a range recomputes, or -1. */
static int32_t layer_of_range(const LayerSpans *spans, const int32_t range[2]) {
    for (int32_t k = 0; k < spans->count; k++) {
        int32_t before[2], after[2];
        layer_spans_boundary(spans, k, before);
        layer_spans_boundary(spans, k + 1, after);
        if (is_inside(range[0], before) && is_inside(range[1], after)) return k;
    }
    return -1;
}

/* The layers that begin in a part, and how many of them are recomputed. */
typedef struct PartLayers {
    int32_t layers, recomputed;
} PartLayers;

/* Counts the layers of a part. The recomputed ones must come first. */
static AmStatus count_recomputed(const TrainerReader *self, PartLayers *counts, const LayerSpans *spans,
                                 const bool *is_recomputed, int32_t part) {
    int32_t s = part % self->plan->stage_count;
    const PlanStage *stage = &self->plan->stages[s];
    const int32_t entry[2] = {0, spans->work.count};
    const int32_t *range =
        self->plan->stage_count > 1 ? stage->ranges[part / self->plan->stage_count] : entry;
    for (int32_t k = 0; k < spans->count; k++) {
        if (spans->layers[k].first < range[0] || spans->layers[k].first >= range[1]) continue;
        if (is_recomputed[k] && counts->recomputed < counts->layers)
            return fail_ranges(self, s, "recomputes a layer after one that it does not recompute");
        counts->layers++;
        counts->recomputed += is_recomputed[k];
    }
    return AM_OK;
}

/* Accepts recomputation that the source prescribes (jax.checkpoint) if it repeats most products of layers. */
static AmStatus check_source_recomputation(TrainerReader *self, int32_t ranges) {
    const PlanContext *primary = plan_context_primary(self->context);
    int64_t products = 0, again = 0;
    for (int32_t i = 0; i < primary->canonical->instruction_count; i++) {
        if (!ir_is_matrix_product(plan_context_instruction(primary, i)->opcode)) continue;
        products += primary->roles->phases[i] == IR_PHASE_FORWARD;
        again += primary->roles->phases[i] == IR_PHASE_RECOMPUTED;
    }
    if (again == 0) return AM_OK;
    if (ranges > 0)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                       "%s recomputes layers once, and both the module and the plan do; " TRAINER_REMEDY,
                       self->row->trainer, self->row->name);
    if (2 * again < products)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
                       "%s recomputes whole layers, and the module repeats %lld of %lld products "
                       "(jax.checkpoint with a policy)",
                       self->row->trainer, (long long)again, (long long)products);
    self->recomputed = INT32_MAX;
    self->recomputes_all = true;
    return AM_OK;
}

/* Returns whether stages save, in the same ranges, the same values as `all`. */
static bool saves_same(const Plan *plan, const PlanRecomputation *all, uint8_t *is_saved, int32_t entry) {
    int32_t count = 0;
    memset(is_saved, 0, (size_t)entry);
    for (int32_t k = 0; k < all->saved_count; k++) is_saved[all->saved[k]] = 1;
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanRecomputation *own = &plan->stages[s].recompute;
        for (int32_t k = 0; k < own->saved_count; k++)
            if (!is_saved[own->saved[k]]) return false;
        count += own->saved_count;
    }
    return count == all->saved_count;
}

/* Finds the modules of layers that the plan recomputes, where it saves values in its ranges. */
static AmStatus find_modules(TrainerReader *self, const LayerSpans *spans) {
    const PlanContext *primary = plan_context_primary(self->context);
    int32_t count = 0, saved = 0, entry = primary->rules->entry_count;
    for (int32_t s = 0; s < self->plan->stage_count; s++) {
        count += self->plan->stages[s].recompute.range_count;
        saved += self->plan->stages[s].recompute.saved_count;
    }
    if (saved == 0) return AM_OK;
    PlanRecomputation all = {.ranges = arena_alloc(self->arena, sizeof *all.ranges * (size_t)(count + 1))};
    uint8_t *is_saved = ARENA_ARRAY(self->arena, uint8_t, entry + 1);
    if (self->arena->failed) return am_fail_memory(self->error, count);
    for (int32_t s = 0; s < self->plan->stage_count; s++)
        for (int32_t r = 0; r < self->plan->stages[s].recompute.range_count; r++)
            memcpy(all.ranges[all.range_count++], self->plan->stages[s].recompute.ranges[r],
                   sizeof *all.ranges);
    for (int32_t k = 0; self->row->selective[k]; k++) {
        uint32_t modules = self->row->selective[k];
        AmStatus status = layer_modules_save(&all, self->arena, primary, spans, modules, NULL);
        if (status != AM_OK || !saves_same(self->plan, &all, is_saved, entry)) continue;
        self->recomputed_modules = modules;
        return AM_OK;
    }
    return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                   "%s recomputes whole layers or certain parts of them, and the plan keeps other "
                   "values; " TRAINER_REMEDY,
                   self->row->trainer, self->row->name);
}

AmStatus trainer_check_recomputation(TrainerReader *self) {
    const Plan *plan = self->plan;
    const PlanContext *primary = plan_context_primary(self->context);
    LayerSpans spans;
    int32_t ranges = 0, parts = plan->stage_count * (plan->stage_count > 1 ? plan->stages[0].range_count : 1);
    bool is_all = true;
    for (int32_t s = 0; s < plan->stage_count; s++) ranges += plan->stages[s].recompute.range_count;
    TRY(check_source_recomputation(self, ranges));
    if (ranges == 0) return AM_OK;
    TRY(layer_spans_find(&spans, self->arena, primary, self->error));
    bool *is_recomputed = ARENA_ARRAY(self->arena, bool, spans.count + 1);
    PartLayers *counts = ARENA_ARRAY(self->arena, PartLayers, parts);
    if (self->arena->failed) return am_fail_memory(self->error, spans.count);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanRecomputation *recompute = &plan->stages[s].recompute;
        for (int32_t r = 0; r < recompute->range_count; r++) {
            int32_t layer = layer_of_range(&spans, recompute->ranges[r]);
            if (layer < 0) return fail_ranges(self, s, "has other ranges");
            is_recomputed[layer] = true;
        }
    }
    for (int32_t p = 0; p < parts; p++) {
        TRY(count_recomputed(self, &counts[p], &spans, is_recomputed, p));
        if (counts[p].recomputed > self->recomputed) self->recomputed = counts[p].recomputed;
        is_all = is_all && counts[p].recomputed == counts[p].layers;
    }
    for (int32_t p = 0; p < parts; p++)
        if (counts[p].recomputed < self->recomputed && counts[p].recomputed < counts[p].layers)
            return fail_ranges(self, p % plan->stage_count, "recomputes fewer than elsewhere");
    TRY(find_modules(self, &spans));
    if (!is_all && (!self->row->recomputes_some || self->recomputed_modules != 0))
        return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                       "%s recomputes %s or none, and the plan some; " TRAINER_REMEDY, self->row->trainer,
                       self->recomputed_modules != 0 ? "parts of all layers" : "all layers", self->row->name);
    self->recomputes_all = is_all;
    return AM_OK;
}
