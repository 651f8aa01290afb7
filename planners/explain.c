/* Explains a plan; see explain.h.
 *
 * A decision's worth is the difference that taking it out of its list makes to
 * the simulated step: everything else is completed anew, so the figure contains
 * what the other entries make of the freedom. Collectives are those of the first
 * device's lowered program, priced one by one; a merged one is shared out over
 * the operators that it serves, by bytes. Numbers in op names are ignored when
 * they are added up, so that repeated layers come together.
 */
#include "planners/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/simulate.h"
#include "propagation/lower.h"
#include "propagation/plan_parts.h"

/* Changes below this share are not listed as text. */
#define LEAST_CHANGE 0.0005

typedef struct Explainer {
    Arena *arena;
    const PlanContext *context;
    const Plan *plan;
    const Cluster *cluster;
    Explanation *result;
    AmError *error;
} Explainer;

static AmStatus price(const Explainer *self, const PlanStage *stage, double *seconds, int64_t *peak_bytes) {
    Plan plan = *self->plan;
    Simulation *simulation;
    Arena scratch = {0};
    PlanStage copy = *stage;
    plan.stages = &copy;
    AmStatus status =
        simulate_plan(&simulation, &scratch, self->context, &plan, self->cluster, 1, self->error);
    if (status == AM_OK) {
        *seconds = simulation->step_seconds;
        *peak_bytes = 0;
        for (int32_t d = 0; d < simulation->device_count; d++)
            if (simulation->devices[d].memory.peak_bytes > *peak_bytes)
                *peak_bytes = simulation->devices[d].memory.peak_bytes;
    }
    arena_free(&scratch);
    return status;
}

static const char *source_text(Arena *arena, const IrInstruction *instruction) {
    if (!instruction->source_file[0]) return "";
    return arena_format(arena, "%s:%d", instruction->source_file, instruction->source_line);
}

static const DimensionClass *class_of(const Explainer *self, const PlanEntry *entry) {
    return &self->context->classes->classes[entry->class_index];
}

/* Names the decision as a reader would: by the first weight that it splits,
 * else by what names the class. */
static void name_decision(const Explainer *self, ExplainedDecision *decision) {
    const PlanContext *context = self->context;
    int32_t class_index = decision->entry->class_index;
    decision->path = decision->op_name = decision->source = "";
    if (class_index == PLAN_ANY_CLASS) return;
    const DimensionClass *class = class_of(self, decision->entry);
    const IrInstruction *named = plan_class_instruction(context, class);
    decision->path = named->name;
    if (class->named_by_parameter) decision->path = context->roles->parameters[class->number].path;
    decision->dimension = class->dimension;
    decision->op_name = named->op_name;
    decision->source = source_text(self->arena, named);
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &context->canonical->instructions[parameter->instruction].shape;
        if (parameter->role != IR_ROLE_WEIGHT || shape->type == DTYPE_TUPLE) continue;
        for (int32_t d = 0; d < shape->rank; d++) {
            if (classes_of(context->classes, context->rules, parameter->instruction, d) != class_index)
                continue;
            decision->path = parameter->path;
            decision->dimension = d;
            return;
        }
    }
}

/* Entries first .. first + count - 1 of the axis's list as one decision. */
static AmStatus add_decision(const Explainer *self, int32_t axis, int32_t first, int32_t count) {
    const PlanStage *stage = &self->plan->stages[0];
    const PlanList *list = &stage->lists[axis];
    PlanStage without = *stage;
    PlanEntry *entries = ARENA_ARRAY(self->arena, PlanEntry, list->count + 1);
    if (!entries) return am_fail_memory(self->error, list->count);
    memcpy(entries, list->entries, sizeof *entries * (size_t)first);
    memcpy(entries + first, list->entries + first + count,
           sizeof *entries * (size_t)(list->count - first - count));
    without.lists[axis] = (PlanList){.count = list->count - count, .entries = entries};
    ExplainedDecision *decision = &self->result->decisions[self->result->decision_count++];
    *decision = (ExplainedDecision){
        .axis = stage->mesh.axes[axis].name, .entry = &list->entries[first], .class_count = count};
    name_decision(self, decision);
    return price(self, &without, &decision->seconds_without, &decision->peak_bytes_without);
}

/* Entries of one kind for classes that repeated layers share. */
static bool is_tied(const Explainer *self, const PlanEntry *a, const PlanEntry *b) {
    if (a->kind != b->kind || a->class_index == PLAN_ANY_CLASS || b->class_index == PLAN_ANY_CLASS)
        return false;
    return class_of(self, a)->tie == class_of(self, b)->tie;
}

static AmStatus explain_decisions(const Explainer *self) {
    const PlanStage *stage = &self->plan->stages[0];
    int32_t total = 0;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) total += stage->lists[axis].count;
    self->result->decisions = ARENA_ARRAY(self->arena, ExplainedDecision, total + 1);
    if (!self->result->decisions) return am_fail_memory(self->error, total);
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        const PlanList *list = &stage->lists[axis];
        for (int32_t first = 0, count; first < list->count; first += count) {
            for (count = 1; first + count < list->count; count++)
                if (!is_tied(self, &list->entries[first], &list->entries[first + count])) break;
            TRY(add_decision(self, axis, first, count));
        }
    }
    return AM_OK;
}

static const char *axes_text(const Explainer *self, uint32_t axes) {
    const Mesh *mesh = &self->plan->stages[0].mesh;
    const char *text = "";
    for (int32_t k = 0; k < mesh->axis_count && text; k++)
        if (axes >> k & 1)
            text = arena_format(self->arena, "%s%s%s", text, *text ? "+" : "", mesh->axes[k].name);
    return text ? text : "";
}

/* Equal but for their numbers. */
static bool is_same_name(const char *a, const char *b) {
    while (*a || *b) {
        bool digit_a = *a >= '0' && *a <= '9', digit_b = *b >= '0' && *b <= '9';
        if (digit_a && digit_b) {
            while (*a >= '0' && *a <= '9') a++;
            while (*b >= '0' && *b <= '9') b++;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return true;
}

/* One tensor that the collective of `step` moves, with its share of bytes and time. */
static void add_tensor(const Explainer *self, int32_t step, const StepCost *cost, int32_t origin_index,
                       double share) {
    const IrInstruction *origin = &self->context->canonical->instructions[origin_index];
    const char *kind = program_collective_name(cost->kind), *axes = axes_text(self, cost->axes);
    const char *op_name = origin->op_name[0] ? origin->op_name : origin->name;
    Explanation *result = self->result;
    ExplainedCollective *row = result->collectives;
    for (; row < result->collectives + result->collective_count; row++)
        if (row->kind == kind && strcmp(row->axes, axes) == 0 && is_same_name(row->op_name, op_name)) break;
    if (row == result->collectives + result->collective_count) {
        *row = (ExplainedCollective){.kind = kind,
                                     .axes = axes,
                                     .op_name = op_name,
                                     .source = source_text(self->arena, origin),
                                     .last_step = -1};
        result->collective_count++;
    }
    if (row->last_step != step) row->count += (int64_t)cost->executed.times;
    row->last_step = step;
    row->tensors += (int64_t)cost->executed.times;
    row->bytes += share * cost->executed.times * cost->bytes;
    row->seconds += share * cost->executed.times * cost->seconds;
}

/* All tensors of one collective; only those of one kind are merged, so their results tell the shares. */
static void add_collective(const Explainer *self, int32_t step, const StepCost *cost) {
    const Program *program = cost->executed.program;
    const ProgramInstruction *instruction = executed_collective(&cost->executed);
    const ProgramValue *results = &program->values[instruction->first_result];
    double total = 0;
    for (int32_t k = 0; k < instruction->result_count; k++)
        total += (double)ir_shape_bytes(&results[k].shape);
    for (int32_t k = 0; k < instruction->result_count; k++) {
        double bytes = (double)ir_shape_bytes(&results[k].shape);
        add_tensor(self, step, cost, results[k].origin,
                   total > 0 ? bytes / total : 1.0 / instruction->result_count);
    }
}

static int compare_collectives(const void *left, const void *right) {
    const ExplainedCollective *a = left, *b = right;
    if (a->seconds != b->seconds) return a->seconds > b->seconds ? -1 : 1;
    int order = strcmp(a->op_name, b->op_name);
    return order ? order : strcmp(a->kind, b->kind);
}

static AmStatus explain_collectives(const Explainer *self) {
    const PlanStage *stage = &self->plan->stages[0];
    Completion *completion;
    Program *program;
    StepCost *costs;
    int32_t steps, count = 0;
    TRY(plan_complete(&completion, self->arena, self->context, stage, self->error));
    TRY(plan_lower(&program, self->arena, self->context, completion, 0, self->error));
    TRY(price_steps(&costs, &steps, self->arena, program, self->cluster, stage->devices, self->error));
    for (int32_t k = 0; k < steps; k++)
        if (costs[k].is_collective) count += executed_collective(&costs[k].executed)->result_count;
    self->result->collectives = ARENA_ARRAY(self->arena, ExplainedCollective, count + 1);
    if (!self->result->collectives) return am_fail_memory(self->error, count);
    for (int32_t k = 0; k < steps; k++)
        if (costs[k].is_collective) add_collective(self, k, &costs[k]);
    qsort(self->result->collectives, (size_t)self->result->collective_count,
          sizeof *self->result->collectives, compare_collectives);
    return self->arena->failed ? am_fail_memory(self->error, 0) : AM_OK;
}

AmStatus explain_plan(Explanation **explanation, Arena *arena, const PlanContext *context, const Plan *plan,
                      const Cluster *cluster, AmError *error) {
    Explainer self = {.arena = arena,
                      .context = plan_context_used(plan, context),
                      .plan = plan,
                      .cluster = cluster,
                      .result = ARENA_ARRAY(arena, Explanation, 1),
                      .error = error};
    if (!self.result) return am_fail_memory(error, (int64_t)sizeof *self.result);
    if (plan->stage_count != 1)
        return am_fail(error, AM_ERROR_INPUT, "", "expected a plan of one stage, found %d",
                       plan->stage_count);
    TRY(price(&self, &plan->stages[0], &self.result->step_seconds, &self.result->peak_bytes));
    TRY(explain_decisions(&self));
    TRY(explain_collectives(&self));
    *explanation = self.result;
    return AM_OK;
}

json_t *explanation_to_json(const Explanation *self, const Classes *classes) {
    json_t *decisions = json_array(), *collectives = json_array();
    for (int32_t k = 0; k < self->decision_count; k++) {
        const ExplainedDecision *row = &self->decisions[k];
        json_array_append_new(
            decisions, json_pack("{s:s, s:o, s:s, s:i, s:o, s:i, s:o, s:o, s:f, s:I}", "axis", row->axis,
                                 "class", plan_entry_class_to_json(row->entry, classes), "kind",
                                 plan_entry_kind_name(row->entry->kind), "classes", row->class_count, "path",
                                 plan_string_to_json(row->path), "dimension", row->dimension, "op_name",
                                 plan_string_to_json(row->op_name), "source",
                                 plan_string_to_json(row->source), "seconds_without", row->seconds_without,
                                 "peak_bytes_without", (json_int_t)row->peak_bytes_without));
    }
    for (int32_t k = 0; k < self->collective_count; k++) {
        const ExplainedCollective *row = &self->collectives[k];
        json_array_append_new(collectives,
                              json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:o}", "kind", row->kind, "axes",
                                        row->axes, "count", row->count, "tensors", row->tensors, "bytes",
                                        row->bytes, "seconds", row->seconds, "op_name",
                                        plan_string_to_json(row->op_name), "source",
                                        plan_string_to_json(row->source)));
    }
    return json_pack("{s:f, s:I, s:o, s:o}", "step_seconds", self->step_seconds, "peak_bytes",
                     (json_int_t)self->peak_bytes, "decisions", decisions, "collectives", collectives);
}

/* Whether a decision moves the step time or the peak by as much as the table shows. */
static bool is_felt(const Explanation *self, const ExplainedDecision *row) {
    double seconds = fabs(row->seconds_without / self->step_seconds - 1);
    double bytes = fabs((double)row->peak_bytes_without / (double)self->peak_bytes - 1);
    return seconds >= LEAST_CHANGE || bytes >= LEAST_CHANGE;
}

static void print_decisions(Text *text, const Explanation *self) {
    Text rows = {0};
    int32_t felt = 0;
    text_append_string(&rows, "axis\tdecision\tlayers\tstep without\tslower by\tpeak without\tsource\n");
    for (int32_t k = 0; k < self->decision_count; k++) {
        const ExplainedDecision *row = &self->decisions[k];
        if (!is_felt(self, row)) continue;
        felt++;
        bool is_storage = row->entry->kind != PLAN_COMPUTE;
        text_append(&rows, "%s\t", row->axis);
        if (is_storage) text_append(&rows, "keep %s in shards", plan_entry_kind_name(row->entry->kind));
        else text_append_string(&rows, "split");
        if (row->path[0])
            text_append(&rows, "%s dimension %d of %s", is_storage ? "," : "", row->dimension, row->path);
        text_append(&rows, "\t%d\t", row->class_count);
        text_append_seconds(&rows, row->seconds_without);
        text_append(&rows, "\t%+.1f %%\t", 100 * (row->seconds_without / self->step_seconds - 1));
        text_append_bytes_size(&rows, (double)row->peak_bytes_without);
        text_append(&rows, "\t%s\n", row->source);
    }
    int32_t rest = self->decision_count - felt;
    if (felt > 0) text_append_table(text, rows.data);
    if (rest > 0)
        text_append(text, "%s%d decision%s that change%s time and peak by less than %g %%\n",
                    felt ? "and " : "", rest, rest == 1 ? "" : "s", rest == 1 ? "s" : "", 100 * LEAST_CHANGE);
    text_free(&rows);
}

static void print_collectives(Text *text, const Explanation *self) {
    Text rows = {0};
    text_append_string(&rows, "collective\taxes\tnumber\ttensors\tbytes\ttime\toperator\tsource\n");
    for (int32_t k = 0; k < self->collective_count; k++) {
        const ExplainedCollective *row = &self->collectives[k];
        text_append(&rows, "%s\t%s\t%lld\t%lld\t", row->kind, row->axes, (long long)row->count,
                    (long long)row->tensors);
        text_append_bytes_size(&rows, row->bytes);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->seconds);
        text_append(&rows, "\t%s\t%s\n", row->op_name, row->source);
    }
    text_append_table(text, rows.data);
    text_free(&rows);
}

void explanation_print(Text *text, const Explanation *self) {
    text_append_string(text, "step ");
    text_append_seconds(text, self->step_seconds);
    text_append_string(text, ", peak ");
    text_append_bytes_size(text, (double)self->peak_bytes);
    text_append_string(text, "\n\n");
    if (self->decision_count == 0) text_append_string(text, "no decisions: every device does everything\n");
    else print_decisions(text, self);
    text_append_string(text, "\n");
    if (self->collective_count == 0) text_append_string(text, "no collectives\n");
    else print_collectives(text, self);
}
