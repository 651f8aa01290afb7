/* Other numbers of micro-batches, other schedules, the other form of attention, gathered weights kept or not,
 * less recomputation, and cuts one unit away.
 *
 * A number of micro-batches makes another module of the one that was read, in which dimension classes have
 * other numbers; so the plan is read from its document again with that number alone changed. Units are those
 * of the hybrid search (planners/layers/layer_costs.h): parts of about equal FLOPs, each cut where least
 * crosses.
 */
#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "lowering/plan_file/plan_parts.h"
#include "planners/explain/explain_parts.h"
#include "planners/layers/layer_costs.h"
#include "planners/problem/attention_choice.h"

AmStatus explain_note_reason(const Explainer *self, ExplainedChange *change, const AmError *why) {
    change->reason = arena_copy_string(self->arena, why->text);
    return change->reason ? AM_OK : am_fail_memory(self->error, 0);
}

ExplainedAlternative *explain_add_alternative(Explainer *self, const char *what, const char *value) {
    ExplainedAlternative *row = &self->result->alternatives.of[self->result->alternatives.count++];
    *row = (ExplainedAlternative){.what = what, .value = value};
    return row;
}

AmStatus explain_keep_document(Explainer *self, json_t *root) {
    ARENA_RESERVE(self->arena, self->documents.of, self->documents.count, self->documents.capacity);
    if (self->documents.of && root) {
        self->documents.of[self->documents.count++] = root;
        return AM_OK;
    }
    json_decref(root);
    return am_fail_memory(self->error, 0);
}

json_t *explain_other_document(const Explainer *self, int32_t micro_batches) {
    json_t *root = json_copy((json_t *)self->root);
    json_object_set_new(root, "micro_batches", json_integer(micro_batches));
    json_object_del(root, "parameters");
    json_object_del(root, "decisions");
    return root;
}

static AmStatus add_micro_batches(Explainer *self, int32_t micro_batches) {
    AmError why = {0};
    Plan *plan;
    const char *value = arena_format(self->arena, "%d", micro_batches);
    if (!value) return am_fail_memory(self->error, 0);
    ExplainedAlternative *row = explain_add_alternative(self, "micro-batches", value);
    json_t *root = explain_other_document(self, micro_batches);
    TRY(explain_keep_document(self, root));
    AmStatus status = plan_stages_from_json(&plan, root, self->arena, self->primary, "the plan", &why);
    if (status == AM_OK) return explain_add_change(self, plan, &row->change);
    if (status != AM_ERROR_INTERNAL) return explain_note_reason(self, &row->change, &why);
    *self->error = why;
    return status;
}

/* Returns the number of an instruction of `from` in another form of the module. */
static int32_t other_number(const PlanContext *from, const PlanContext *to, int32_t number) {
    if (number >= from->rules->entry_count) return to->rules->entry_count;
    if (from->unfused) return from->original[number];
    int32_t other = 0;
    while (other < to->rules->entry_count && to->original[other] < number) other++;
    return other;
}

static void renumber_ranges(json_t *ranges, const PlanContext *from, const PlanContext *to) {
    size_t r, end;
    json_t *range, *number;
    json_array_foreach(ranges, r, range) {
        json_array_foreach(range, end, number) {
            int32_t other = other_number(from, to, (int32_t)json_integer_value(number));
            json_array_set_new(range, end, json_integer(other));
        }
    }
}

/* Renumbers instructions; those that the other form does not have are left out. */
static void renumber_instructions(json_t *list, const PlanContext *from, const PlanContext *to) {
    for (size_t k = 0; k < json_array_size(list);) {
        int32_t number = (int32_t)json_integer_value(json_array_get(list, k));
        int32_t other = other_number(from, to, number);
        bool is_there = other < to->rules->entry_count && (from->unfused || to->original[other] == number);
        if (is_there) json_array_set_new(list, k++, json_integer(other));
        else json_array_remove(list, k);
    }
}

/* Classes that are named by an instruction: ["instruction", 120, 1]. */
static void renumber_classes(json_t *lists, const PlanContext *from, const PlanContext *to) {
    const char *axis;
    json_t *entries, *entry;
    size_t e;
    json_object_foreach(lists, axis, entries) {
        json_array_foreach(entries, e, entry) {
            json_t *class = json_object_get(entry, "class");
            const char *kind = json_string_value(json_array_get(class, 0));
            if (!kind || strcmp(kind, "instruction") != 0) continue;
            int32_t number = (int32_t)json_integer_value(json_array_get(class, 1));
            json_array_set_new(class, 1, json_integer(other_number(from, to, number)));
        }
    }
}

/* Adds the plan with attention in the other form: the same axis priorities and cuts, without overrides for
 * single operators. */
static AmStatus add_attention(Explainer *self) {
    AmError why = {0};
    Plan *plan;
    PlanContext *other = self->primary->unfused;
    bool has_kernels = other != NULL;
    if (!other) TRY(attention_has_kernels(&has_kernels, self->primary, self->cluster, self->error));
    if (!has_kernels) return AM_OK;
    if (!other) TRY(plan_context_fuse(&other, self->primary, self->error));
    if (other == self->primary) return AM_OK;
    ExplainedAlternative *row =
        explain_add_alternative(self, "attention", other->unfused ? "fused" : "unfused");
    json_t *root = explain_other_document(self, self->plan->micro_batches);
    json_t *stages = root ? json_deep_copy(json_object_get(root, "stages")) : NULL, *stage;
    json_t *module = root ? json_copy(json_object_get(root, "module")) : NULL;
    size_t s;
    json_array_foreach(stages, s, stage) {
        renumber_ranges(json_object_get(stage, "ranges"), self->primary, other);
        renumber_classes(json_object_get(stage, "axis_priorities"), self->primary, other);
        renumber_ranges(json_object_get(stage, "recompute"), self->primary, other);
        renumber_instructions(json_object_get(stage, "saved"), self->primary, other);
        json_object_set_new(stage, "overrides", json_array());
        json_object_set_new(stage, "reshards", json_array());
    }
    json_object_set_new(module, "instructions", json_integer(other->canonical->instruction_count));
    json_object_set_new(root, "module", module);
    json_object_set_new(root, "stages", stages);
    json_object_del(root, "rewriting");
    json_t *rewriting = plan_rewriting_to_json(other->rewriting);
    if (rewriting) json_object_set_new(root, "rewriting", rewriting);
    TRY(explain_keep_document(self, root));
    AmStatus status = stages && module
                          ? plan_stages_from_json(&plan, root, self->arena, other, "the plan", &why)
                          : am_fail_memory(&why, 0);
    if (status == AM_OK) return explain_add_change(self, plan, &row->change);
    if (status != AM_ERROR_INTERNAL) return explain_note_reason(self, &row->change, &why);
    *self->error = why;
    return status;
}

static AmStatus add_schedule(Explainer *self, ScheduleKind kind) {
    ExplainedAlternative *row = explain_add_alternative(self, "schedule", schedule_kind_name(kind));
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (!plan) return am_fail_memory(self->error, (int64_t)sizeof *plan);
    *plan = *self->plan;
    plan->schedule = schedule_kind_name(kind);
    return explain_add_change(self, plan, &row->change);
}

/* Returns whether it is worth a word how long the stage keeps weights that were gathered. */
static bool gathers_weights(const Explainer *self, const PlanStage *stage) {
    if (self->context->split_options->storage->reread_count > 0) return true;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++)
            if (stage->axis_priorities[axis].entries[e].kind == PLAN_WEIGHTS) return true;
    return false;
}

static AmStatus add_gathered(Explainer *self) {
    const Plan *own = self->plan;
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(self->arena, PlanStage, own->stage_count);
    if (!plan || !stages) return am_fail_memory(self->error, own->stage_count);
    bool keeps = own->stages[0].keeps_gathered_weights;
    for (int32_t s = 0; s < own->stage_count; s++) {
        stages[s] = own->stages[s];
        stages[s].keeps_gathered_weights = !keeps;
    }
    *plan = *own;
    plan->stages = stages;
    ExplainedAlternative *row =
        explain_add_alternative(self, "gathered weights", keeps ? "repeated" : "kept");
    return explain_add_change(self, plan, &row->change);
}

AmStatus explain_alternatives(Explainer *self) {
    int32_t micro_batches = self->plan->micro_batches;
    const int32_t most = SCHEDULE_KINDS + 4 + EXPLAIN_MOST_RECOMPUTED;
    self->result->alternatives.of = ARENA_ARRAY(self->arena, ExplainedAlternative, most);
    if (!self->result->alternatives.of) return am_fail_memory(self->error, most);
    if (self->plan->replicas.count > 0) return AM_OK;
    bool may_number = !self->keeps.micro_batches;
    if (may_number && micro_batches > 1) TRY(add_micro_batches(self, micro_batches / 2));
    if (may_number && micro_batches * 2 <= micro_batches_limit(self->primary))
        TRY(add_micro_batches(self, micro_batches * 2));
    if (!self->keeps.attention) TRY(add_attention(self));
    bool gathers = false;
    for (int32_t s = 0; s < self->plan->stage_count; s++)
        gathers |= gathers_weights(self, &self->plan->stages[s]);
    if (gathers) TRY(add_gathered(self));
    TRY(explain_recompute(self));
    ScheduleKind kind = plan_schedule(self->plan);
    if (self->plan->stage_count == 1 || kind == SCHEDULE_INTERLEAVED) return AM_OK;
    for (int32_t other = 0; other < SCHEDULE_KINDS; other++)
        if (self->schedules >> other & 1 && other != (int32_t)kind && other != SCHEDULE_INTERLEAVED)
            TRY(add_schedule(self, (ScheduleKind)other));
    return AM_OK;
}

AmStatus explain_units(Explainer *self) {
    const ProblemSettings settings = problem_settings(SPACE_AUTO, CLUSTER_DEFAULT_MEMORY_FRACTION);
    LayerCosts *costs;
    AmError why = {0};
    if (self->places.of) return explain_moves(self, self->places.of, self->places.count);
    AmStatus status = layer_costs_open(&costs, self->primary, self->cluster, &settings, NULL, &why);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    if (status != AM_OK) {
        *self->error = why;
        return status;
    }
    status = explain_moves(self, costs->units.cuts + 1, costs->units.count - 1);
    layer_costs_close(costs);
    return status;
}
