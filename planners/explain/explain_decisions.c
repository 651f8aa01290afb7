/* The value of each decision of a plan.
 *
 * It is the change of the simulated step if the decision is removed from its axis priority: everything else
 * is assigned again, so that the figure includes the effect of the other entries on the freed
 * dimensions. Entries for classes that repeated layers share are one decision; those of layers on
 * other stages are omitted. The busiest stages come first, since they determine the length of the
 * step.
 */
#include <stdlib.h>
#include <string.h>

#include "lowering/plan_file/plan_parts.h"
#include "planners/explain/explain_parts.h"

/* Entries of a list that are decided together. */
typedef struct EntryGroup {
    int32_t axis, first, count;
} EntryGroup;

typedef struct Decider {
    Explainer *explainer;
    StageSet *touched;  /* [class] parts that hold a value that it is a dimension of; NULL: the only one */
    EntryGroup *groups; /* [decision] */
} Decider;

static const DimensionClass *class_of(const Explainer *self, const PlanEntry *entry) {
    return &self->context->classes->classes[entry->class_index];
}

/* Finds the parts that have values of each class. */
static AmStatus find_touched(Decider *self) {
    const Explainer *explainer = self->explainer;
    const PlanContext *context = explainer->context;
    const StageMap *map = explainer->ranks.map;
    const Classes *classes = context->classes;
    if (!map) return AM_OK;
    self->touched = ARENA_ARRAY(explainer->arena, StageSet, classes->count + 1);
    if (!self->touched) return am_fail_memory(explainer->error, classes->count);
    for (int32_t i = 0; i < context->rules->count; i++)
        for (int32_t node = classes->first_node[i]; node < classes->first_node[i + 1]; node++)
            if (classes->class_of[node] >= 0 && context->split_options->live[i])
                self->touched[classes->class_of[node]] |= map->held[i];
    return AM_OK;
}

/* Sets of parts, which chunk c of stage s is number c S + s of. */
static bool is_touched(const Decider *self, const PlanEntry *entry, int32_t stage) {
    const Explainer *explainer = self->explainer;
    if (!self->touched || entry->class_index == PLAN_ANY_CLASS) return true;
    for (int32_t part = stage; part < explainer->ranks.parts->stage_count;
         part += explainer->plan->stage_count)
        if (stage_in(self->touched[entry->class_index], part)) return true;
    return false;
}

/* Names a class by the first weight of the stage that it splits. Returns false without such a weight. */
static bool name_by_weight(const Explainer *self, ExplainedDecision *decision) {
    const PlanContext *context = self->context;
    const StageMap *map = self->ranks.map;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
        if (parameter->role != IR_ROLE_WEIGHT || shape->type == DTYPE_TUPLE) continue;
        if (map && map->owner[p] % self->plan->stage_count != decision->stage) continue;
        for (int32_t d = 0; d < shape->rank; d++) {
            if (classes_of(context->classes, context->rules, parameter->instruction, d) !=
                decision->entry->class_index)
                continue;
            decision->path = parameter->path;
            decision->dimension = d;
            return true;
        }
    }
    return false;
}

/* Names the decision as a reader would: by the first weight that it splits,
 * else by what names the class. */
static void name_decision(const Explainer *self, ExplainedDecision *decision) {
    const PlanContext *context = self->context;
    decision->path = decision->op_name = decision->source = "";
    if (decision->entry->class_index == PLAN_ANY_CLASS) return;
    const DimensionClass *class = class_of(self, decision->entry);
    const IrInstruction *named = plan_class_instruction(context, class);
    decision->op_name = named->op_name;
    decision->source = explain_source(self->arena, named);
    if (name_by_weight(self, decision)) return;
    decision->path = named->name;
    if (class->named_by_parameter) decision->path = context->roles->parameters[class->number].path;
    decision->dimension = class->dimension;
}

/* Makes the plan without the decision's entries. */
static AmStatus plan_without(const Decider *self, int32_t decision, Plan **made) {
    const Explainer *explainer = self->explainer;
    const Plan *given = explainer->plan;
    const EntryGroup *group = &self->groups[decision];
    int32_t stage = explainer->result->decisions.of[decision].stage, end = group->first + group->count;
    const PlanAxisPriority *priority = &given->stages[stage].axis_priorities[group->axis];
    Plan *plan = *made = ARENA_ARRAY(explainer->arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(explainer->arena, PlanStage, given->stage_count);
    PlanEntry *entries = ARENA_ARRAY(explainer->arena, PlanEntry, priority->count + 1);
    if (!plan || !stages || !entries) return am_fail_memory(explainer->error, priority->count);
    memcpy(entries, priority->entries, sizeof *entries * (size_t)group->first);
    memcpy(entries + group->first, priority->entries + end,
           sizeof *entries * (size_t)(priority->count - end));
    memcpy(stages, given->stages, sizeof *stages * (size_t)given->stage_count);
    stages[stage].axis_priorities[group->axis] =
        (PlanAxisPriority){.count = priority->count - group->count, .entries = entries};
    *plan = *given;
    plan->stages = stages;
    return AM_OK;
}

static void add_group(const Decider *self, int32_t stage, EntryGroup group) {
    Explanation *result = self->explainer->result;
    const PlanStage *of = &self->explainer->plan->stages[stage];
    const PlanEntry *entries = &of->axis_priorities[group.axis].entries[group.first];
    ExplainedDecision decision = {.stage = stage, .axis = of->mesh.axes[group.axis].name};
    for (int32_t k = 0; k < group.count; k++) {
        if (!is_touched(self, &entries[k], stage)) continue;
        if (decision.class_count++ == 0) decision.entry = &entries[k];
    }
    if (decision.class_count == 0) return;
    name_decision(self->explainer, &decision);
    self->groups[result->decisions.count] = group;
    result->decisions.of[result->decisions.count++] = decision;
}

static void list_groups(const Decider *self, int32_t stage) {
    const PlanStage *of = &self->explainer->plan->stages[stage];
    for (int32_t axis = 0; axis < of->mesh.axis_count; axis++) {
        const PlanAxisPriority *priority = &of->axis_priorities[axis];
        for (int32_t first = 0, count; first < priority->count; first += count) {
            const PlanEntry *a = &priority->entries[first];
            for (count = 1; first + count < priority->count; count++) {
                const PlanEntry *b = &priority->entries[first + count];
                if (a->kind != b->kind || a->class_index == PLAN_ANY_CLASS ||
                    b->class_index == PLAN_ANY_CLASS ||
                    class_of(self->explainer, a)->tie != class_of(self->explainer, b)->tie)
                    break; /* repeated layers do not share the classes */
            }
            add_group(self, stage, (EntryGroup){axis, first, count});
        }
    }
}

/* Returns the stage that is busiest of those that are not done, or -1. */
static int32_t busiest(const Explanation *result, const bool *is_done) {
    int32_t stage = -1;
    for (int32_t s = 0; s < result->stages.count; s++)
        if (!is_done[s] &&
            (stage < 0 || result->stages.of[s].seconds.idle < result->stages.of[stage].seconds.idle))
            stage = s;
    return stage;
}

AmStatus explain_decisions(Explainer *explainer) {
    Decider self = {.explainer = explainer};
    const Plan *plan = explainer->plan;
    int32_t most = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t axis = 0; axis < plan->stages[s].mesh.axis_count; axis++)
            most += plan->stages[s].axis_priorities[axis].count;
    explainer->result->decisions.of = ARENA_ARRAY(explainer->arena, ExplainedDecision, most + 1);
    self.groups = ARENA_ARRAY(explainer->arena, EntryGroup, most + 1);
    if (explainer->arena->failed) return am_fail_memory(explainer->error, most);
    TRY(find_touched(&self));
    for (int32_t s = 0; s < plan->stage_count; s++) list_groups(&self, s);
    Explanation *result = explainer->result;
    bool *is_done = ARENA_ARRAY(explainer->arena, bool, result->stages.count);
    if (!is_done) return am_fail_memory(explainer->error, result->stages.count);
    for (int32_t stage; (stage = busiest(result, is_done)) >= 0; is_done[stage] = true)
        for (int32_t d = 0; d < result->decisions.count; d++) {
            Plan *changed;
            if (result->decisions.of[d].stage != stage) continue;
            TRY(plan_without(&self, d, &changed));
            TRY(explain_add_change(explainer, changed, &result->decisions.of[d].without));
        }
    return AM_OK;
}
