/* Samples of a module's layers as contexts, and their plans for the module.
 *
 * plan_sample_make() derives a context of the sample. A plan of it is moved in two steps: plan_sample_cut()
 * repeats ranges and recomputation for every layer that a layer of the sample represents, and
 * plan_sample_decide() does so with axis priorities and overrides.
 */
#include "propagation/plan/plan_sample.h"

#include <string.h>

/* Derives roles, rules, classes and options to split of the sample. */
static AmStatus derive(PlanSample *sample, AmError *error) {
    PlanContext *self = sample->context;
    TRY(ir_sample_roles(&self->roles, &self->arena, self->canonical, sample->record, sample->primary->roles,
                        error));
    TRY(rules_build(&self->rules, &self->arena, self->canonical, error));
    TRY(classes_build(&self->classes, &self->arena, self->rules, self->roles, error));
    TRY(split_options_build(&self->split_options, &self->arena, self->rules, self->classes, self->roles,
                            error));
    /* The sample's parameters and outputs correspond to those of the module as read. */
    const IrLayerSample *record = sample->record;
    IrLayerMap *map = ARENA_ARRAY(&self->arena, IrLayerMap, 1);
    IrLayerPart *parameters = ARENA_ARRAY(&self->arena, IrLayerPart, record->parameter_count + 1);
    IrLayerPart *outputs = ARENA_ARRAY(&self->arena, IrLayerPart, record->output_count + 1);
    if (self->arena.failed) return am_fail_memory(error, record->parameter_count);
    for (int32_t p = 0; p < record->parameter_count; p++)
        parameters[p] = plan_source_parameter(sample->primary, record->parameters[p]);
    for (int32_t k = 0; k < record->output_count; k++)
        outputs[k] = plan_source_output(sample->primary, record->outputs[k]);
    *map = (IrLayerMap){.parameters = parameters,
                        .outputs = outputs,
                        .parameter_count = record->parameter_count,
                        .output_count = record->output_count};
    self->layer_map = map;
    return AM_OK;
}

AmStatus plan_sample_make(PlanSample *sample, const PlanContext *primary, AmError *error) {
    IrModule *module;
    IrLayerSample *record;
    Arena arena = {0};
    *sample = (PlanSample){.primary = primary};
    TRY(ir_sample_layers(&module, &record, primary->canonical, primary->roles, error));
    if (!module) return AM_OK;
    PlanContext *self = ARENA_ARRAY(&arena, PlanContext, 1);
    if (!self) {
        ir_module_free(module);
        return am_fail_memory(error, (int64_t)sizeof *self);
    }
    *self = (PlanContext){.arena = arena,
                          .module = primary->module,
                          .canonical = module,
                          .source = primary->source ? primary->source : (PlanContext *)primary,
                          .rewriting = primary->rewriting,
                          .unfused = primary->unfused};
    memcpy(self->sha256, primary->sha256, sizeof self->sha256);
    sample->context = self;
    sample->record = record;
    AmStatus status = derive(sample, error);
    if (status != AM_OK) plan_sample_free(sample);
    return status;
}

void plan_sample_free(PlanSample *sample) {
    plan_context_free(sample->context);
    sample->context = NULL;
}

/* ---- ranges ---- */

/* Moves the sample's recomputed ranges to the module: one for each layer, if a range of the sample is in
 * one. */
static AmStatus move_recomputation(PlanRecomputation *recompute, Arena *arena, const PlanSample *sample,
                                   const PlanRecomputation *from, AmError *error) {
    const PlanContext *primary = sample->primary;
    int32_t count = primary->rules->entry_count, last_range = -1, last_standing = -1;
    if (from->range_count == 0) return AM_OK;
    *recompute =
        (PlanRecomputation){.ranges = arena_alloc(arena, sizeof *recompute->ranges * ((size_t)count + 1)),
                            .saved = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        int32_t standing = sample->record->standing[i];
        if (primary->roles->phases[i] != IR_PHASE_FORWARD || standing < 0) continue;
        int32_t range = -1; /* the one that it is in */
        for (int32_t r = 0; r < from->range_count && range < 0; r++)
            if (standing >= from->ranges[r][0] && standing < from->ranges[r][1]) range = r;
        bool is_next = range != last_range || standing <= last_standing; /* of this range, or of this layer */
        if (range >= 0 && is_next) recompute->ranges[recompute->range_count++][0] = i;
        if (range >= 0) recompute->ranges[recompute->range_count - 1][1] = i + 1;
        last_range = range;
        last_standing = standing;
        for (int32_t k = 0; k < from->saved_count && range >= 0; k++)
            if (from->saved[k] == standing) recompute->saved[recompute->saved_count++] = i;
    }
    return AM_OK;
}

/* Returns the first instruction of the module that instruction `cut` of the sample represents. */
static int32_t move_cut(const PlanSample *sample, int32_t cut) {
    int32_t count = sample->primary->rules->entry_count;
    for (int32_t i = 0; i < count; i++)
        if (sample->record->standing[i] == cut) return i;
    return count;
}

AmStatus plan_sample_cut(PlanStage *stages, Arena *arena, const PlanSample *sample, const Plan *plan,
                         AmError *error) {
    int32_t count = sample->primary->rules->entry_count;
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanStage *from = &plan->stages[s];
        PlanStage *stage = &stages[s];
        *stage = *from;
        if (from->range_count != 1)
            return am_fail(error, AM_ERROR_INFEASIBLE, "", "a plan of chunks is not moved to all layers");
        stage->ranges = arena_alloc(arena, sizeof *stage->ranges);
        if (!stage->ranges) return am_fail_memory(error, 1);
        stage->ranges[0][0] = s == 0 ? 0 : stages[s - 1].ranges[0][1];
        stage->ranges[0][1] = s + 1 == plan->stage_count ? count : move_cut(sample, from->ranges[0][1]);
        if (stage->ranges[0][1] <= stage->ranges[0][0])
            return am_fail(error, AM_ERROR_INFEASIBLE, "", "stage %d has no layer", s);
        TRY(move_recomputation(&stage->recompute, arena, sample, &from->recompute, error));
    }
    return AM_OK;
}

/* ---- axis priorities and overrides ---- */

/* Maps the instructions and classes of a context of the module to those of the sample's context with the same
 * micro-batches and recomputation. */
typedef struct SampleMap {
    const PlanContext *from, *to;
    int32_t *instruction; /* [instruction of `to`]: of `from`, or -1 */
    int32_t *class_index; /* [class of `to`]: of `from`, or -1 */
} SampleMap;

static int32_t original_of(const PlanContext *context, int32_t i) {
    return context->primary ? context->original[i] : i;
}

/* Maps instructions: several of a context may serve one of the whole module, and correspond in their
 * order. */
static AmStatus map_instructions(SampleMap *self, Arena *arena, const PlanSample *sample, AmError *error) {
    const PlanContext *from = self->from, *to = self->to;
    int32_t wholes = sample->primary->rules->entry_count, samples = sample->context->rules->entry_count;
    int32_t *first = ARENA_ARRAY(arena, int32_t, samples + 2),
            *passed = ARENA_ARRAY(arena, int32_t, wholes + 1);
    int32_t *serving = ARENA_ARRAY(arena, int32_t, from->rules->count + 1);
    self->instruction = ARENA_ARRAY(arena, int32_t, to->rules->count + 1);
    if (arena->failed) return am_fail_memory(error, to->rules->count);
    for (int32_t i = 0; i < from->rules->count; i++)
        if (original_of(from, i) < samples) first[original_of(from, i) + 2]++;
    for (int32_t s = 0; s < samples; s++) first[s + 2] += first[s + 1];
    for (int32_t i = 0; i < from->rules->count; i++)
        if (original_of(from, i) < samples) serving[first[original_of(from, i) + 1]++] = i;
    for (int32_t i = 0; i < to->rules->count; i++) {
        int32_t original = original_of(to, i);
        int32_t standing = original < wholes ? sample->record->standing[original] : -1;
        int32_t at = standing >= 0 ? first[standing] + passed[original]++ : 0;
        self->instruction[i] = standing >= 0 && at < first[standing + 1] ? serving[at] : -1;
    }
    return AM_OK;
}

static AmStatus map_classes(SampleMap *self, Arena *arena, AmError *error) {
    const Classes *classes = self->to->classes, *own = self->from->classes;
    self->class_index = ARENA_ARRAY(arena, int32_t, classes->count + 1);
    if (!self->class_index) return am_fail_memory(error, classes->count);
    for (int32_t c = 0; c < classes->count; c++) self->class_index[c] = -1;
    for (int32_t i = 0; i < self->to->rules->count; i++) {
        int32_t standing = self->instruction[i];
        for (int32_t node = classes->first_node[i]; standing >= 0 && node < classes->first_node[i + 1];
             node++) {
            int32_t class_index = classes->class_of[node];
            int32_t at = own->first_node[standing] + node - classes->first_node[i];
            if (class_index < 0 || self->class_index[class_index] >= 0) continue;
            if (at < own->first_node[standing + 1]) self->class_index[class_index] = own->class_of[at];
        }
    }
    return AM_OK;
}

static AmStatus move_axis_priorities(PlanStage *stage, Arena *arena, const SampleMap *standing,
                                     const PlanStage *from, AmError *error) {
    int32_t classes = standing->to->classes->count;
    for (int32_t axis = 0; axis < from->mesh.axis_count; axis++) {
        const PlanAxisPriority *priority = &from->axis_priorities[axis];
        PlanAxisPriority *made = &stage->axis_priorities[axis];
        *made = (PlanAxisPriority){
            .entries = ARENA_ARRAY(arena, PlanEntry, classes * PLAN_ENTRY_KINDS + priority->count + 1)};
        if (!made->entries) return am_fail_memory(error, classes);
        for (int32_t k = 0; k < priority->count; k++) {
            const PlanEntry *entry = &priority->entries[k];
            if (entry->class_index == PLAN_ANY_CLASS) made->entries[made->count++] = *entry;
            for (int32_t c = 0; c < classes && entry->class_index != PLAN_ANY_CLASS; c++)
                if (standing->class_index[c] == entry->class_index)
                    made->entries[made->count++] = (PlanEntry){.class_index = c, .kind = entry->kind};
        }
    }
    return AM_OK;
}

/* Gives the decisions for an instruction to all for which it stands. */
static AmStatus move_overrides(PlanStage *stage, Arena *arena, const SampleMap *standing,
                               const PlanStage *from, AmError *error) {
    int32_t count = standing->to->rules->count, own = standing->from->rules->count;
    int32_t *override = ARENA_ARRAY(arena, int32_t, own + 1), *place = ARENA_ARRAY(arena, int32_t, own + 1);
    if (arena->failed) return am_fail_memory(error, own);
    for (int32_t k = 0; k < from->override_count; k++) override[from->overrides[k].instruction] = k + 1;
    for (int32_t k = 0; k < from->reshard_count; k++) place[from->reshard[k].instruction] = k + 1;
    stage->override_count = stage->reshard_count = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t of = standing->instruction[i];
        stage->override_count += of >= 0 && override[of] > 0;
        stage->reshard_count += of >= 0 && place[of] > 0;
    }
    stage->overrides = ARENA_ARRAY(arena, PlanOverride, stage->override_count + 1);
    stage->reshard = ARENA_ARRAY(arena, PlanReshard, stage->reshard_count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0, overrides = 0, places = 0; i < count; i++) {
        int32_t of = standing->instruction[i];
        if (of >= 0 && override[of] > 0) {
            stage->overrides[overrides] = from->overrides[override[of] - 1];
            stage->overrides[overrides++].instruction = i;
        }
        if (of >= 0 && place[of] > 0)
            stage->reshard[places++] = (PlanReshard){i, from->reshard[place[of] - 1].place};
    }
    return AM_OK;
}

AmStatus plan_sample_decide(PlanStage *stages, Arena *arena, const PlanSample *sample, const Plan *plan,
                            const PlanContext *context, AmError *error) {
    SampleMap standing = {.from = plan_context_used(plan, sample->context), .to = context};
    TRY(map_instructions(&standing, arena, sample, error));
    TRY(map_classes(&standing, arena, error));
    for (int32_t s = 0; s < plan->stage_count; s++) {
        TRY(move_axis_priorities(&stages[s], arena, &standing, &plan->stages[s], error));
        TRY(move_overrides(&stages[s], arena, &standing, &plan->stages[s], error));
    }
    return AM_OK;
}
