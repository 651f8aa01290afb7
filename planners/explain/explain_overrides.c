/* The overrides of a plan: operators that differ from its axis priorities, and their value.
 *
 * Equal overrides in repeated layers (one opcode, name except numbers, source line, shape and
 * split) share a row. It contains their split and the split by the axis priorities alone, on the axes where
 * the two differ; its change is the plan without these overrides. One more change is the plan
 * without any.
 */
#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "planners/explain/explain_parts.h"

/* The operators of a stage with overrides of one row. */
typedef struct Alike {
    const PlanOverride *first;
    int32_t stage;
} Alike;

typedef struct Lister {
    Explainer *explainer;
    Assignment **without; /* [stage] the stage without overrides; NULL: it cannot be completed so */
    Alike *alike;         /* [row] */
    int32_t *row_of;      /* [override], those of the stages in order */
} Lister;

/* ---- words ---- */

/* Appends the factor that an operator splits: a dimension of its result, or a contracted one. */
static void append_factor(Text *text, const FactorRule *rule, int32_t factor) {
    const int8_t *dimension = factor < 0 ? NULL : rule->factors[factor].dimension;
    int32_t slot = rule->operand_count, end = slot + rule->result_count;
    while (dimension && slot < end && dimension[slot] < 0) slot++;
    if (!dimension) {
        text_append_string(text, "nothing");
    } else if (slot < end) {
        text_append(text, "dimension %d", dimension[slot]);
    } else {
        for (slot = 0; slot + 1 < rule->operand_count && dimension[slot] < 0;) slot++;
        text_append(text, "the sum over dimension %d of operand %d", dimension[slot], slot);
    }
}

static void append_phrase(Text *text, const char *axis, const char *verb) {
    text_append(text, "%s%s %s ", text->length > 0 ? ", " : "", axis, verb);
}

static const char *words_of(const Explainer *self, Text *text) {
    const char *words = text->failed ? NULL : arena_copy_string(self->arena, text->data ? text->data : "");
    if (!words) self->arena->failed = true;
    text_free(text);
    return words;
}

/* Describes the split of the row's operators on an axis, and, if known, the split by the axis priorities. */
static void describe_axis(const Lister *self, const Alike *alike, int32_t axis, Text *how, Text *instead) {
    const PlanOverride *override = alike->first;
    const Assignment *without = self->without[alike->stage];
    const FactorRule *rule = &self->explainer->context->rules->rules[override->instruction];
    const char *name = self->explainer->plan->stages[alike->stage].mesh.axes[axis].name;
    int32_t factor = override->factors[axis];
    int32_t listed =
        without ? without->factor[override->instruction * MESH_MAX_AXES + axis] : PLAN_NO_OVERRIDE;
    if (override->has_factors && factor != PLAN_NO_OVERRIDE && factor != listed) {
        append_phrase(how, name, "splits");
        append_factor(how, rule, factor);
        if (without) append_phrase(instead, name, "splits");
        if (without) append_factor(instead, rule, listed);
    }
    if (!override->has_states) return;
    Sbp state = override->states.axis[axis];
    if (!override->is_pinned && without && without->stored[override->instruction].axis[axis] == state) return;
    append_phrase(how, name, override->is_pinned ? "is pinned to" : "keeps");
    sbp_print_axis(how, state);
    if (without) append_phrase(instead, name, "keeps");
    if (without) sbp_print_axis(instead, without->stored[override->instruction].axis[axis]);
}

/* ---- rows ---- */

static bool is_same(const Explainer *self, const PlanOverride *a, const PlanOverride *b) {
    const IrInstruction *x = plan_context_instruction(self->context, a->instruction);
    const IrInstruction *y = plan_context_instruction(self->context, b->instruction);
    if (a->has_factors != b->has_factors || a->has_states != b->has_states || a->is_pinned != b->is_pinned)
        return false;
    if (a->has_factors && memcmp(a->factors, b->factors, sizeof a->factors) != 0) return false;
    if (a->has_states && !sbp_equal(a->states, b->states)) return false;
    return x->opcode == y->opcode && x->source_line == y->source_line &&
           strcmp(x->source_file, y->source_file) == 0 && ir_shape_equal(&x->shape, &y->shape) &&
           explain_is_same_name(explain_name(x), explain_name(y));
}

static void add_row(const Lister *self, const Alike *alike) {
    Explanation *result = self->explainer->result;
    const IrInstruction *first =
        plan_context_instruction(self->explainer->context, alike->first->instruction);
    const Mesh *mesh = &self->explainer->plan->stages[alike->stage].mesh;
    Text shape = {0}, how = {0}, instead = {0};
    ExplainedOverride row = {.stage = alike->stage,
                             .op_name = explain_name(first),
                             .source = explain_source(self->explainer->arena, first)};
    ir_shape_append(&shape, &first->shape);
    row.shape = words_of(self->explainer, &shape);
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) describe_axis(self, alike, axis, &how, &instead);
    if (how.length == 0) text_append_string(&how, "as the axis priorities say");
    row.how = words_of(self->explainer, &how);
    row.instead = words_of(self->explainer, &instead);
    self->alike[result->overrides.count] = *alike;
    result->overrides.of[result->overrides.count++] = row;
}

/* Returns the row of an override, which may be new. */
static int32_t find_row(const Lister *self, int32_t stage, const PlanOverride *override) {
    const Explanation *result = self->explainer->result;
    for (int32_t row = 0; row < result->overrides.count; row++)
        if (self->alike[row].stage == stage && is_same(self->explainer, self->alike[row].first, override))
            return row;
    add_row(self, &(Alike){override, stage});
    return result->overrides.count - 1;
}

/* Puts all overrides into rows and each row's instructions, by the module's numbers, into `numbers`. */
static void list_rows(const Lister *self, int32_t *numbers) {
    Explanation *result = self->explainer->result;
    const Plan *plan = self->explainer->plan;
    int32_t at = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t k = 0; k < plan->stages[s].override_count; k++) {
            int32_t row = self->row_of[at++] = find_row(self, s, &plan->stages[s].overrides[k]);
            result->overrides.of[row].count++;
        }
    for (int32_t row = 0; row < result->overrides.count; row++) {
        result->overrides.of[row].instructions = numbers;
        numbers += result->overrides.of[row].count;
        result->overrides.of[row].count = 0;
    }
    at = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t k = 0; k < plan->stages[s].override_count; k++) {
            ExplainedOverride *row = &result->overrides.of[self->row_of[at++]];
            row->instructions[row->count++] =
                plan_number_of(self->explainer->context, plan->stages[s].overrides[k].instruction);
        }
}

/* ---- changes ---- */

/* Makes the plan without the overrides of a row; -1: without any. */
static AmStatus plan_without(const Plan **made, Arena *arena, const void *data, int32_t row, AmError *error) {
    const Lister *self = data;
    const Plan *given = self->explainer->plan;
    Plan *plan = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, given->stage_count);
    if (!plan || !stages) return am_fail_memory(error, given->stage_count);
    for (int32_t s = 0, at = 0; s < given->stage_count; s++) {
        PlanOverride *left = ARENA_ARRAY(arena, PlanOverride, given->stages[s].override_count + 1);
        if (!left) return am_fail_memory(error, given->stages[s].override_count);
        stages[s] = given->stages[s];
        stages[s].overrides = left;
        stages[s].override_count = 0;
        for (int32_t k = 0; k < given->stages[s].override_count; k++, at++)
            if (row >= 0 && self->row_of[at] != row)
                left[stages[s].override_count++] = given->stages[s].overrides[k];
    }
    *plan = *given;
    plan->stages = stages;
    *made = plan;
    return AM_OK;
}

AmStatus explain_overrides(Explainer *explainer) {
    Arena *arena = explainer->arena;
    Lister *self = ARENA_ARRAY(arena, Lister, 1);
    const Plan *plan = explainer->plan;
    int32_t count = 0;
    for (int32_t s = 0; s < plan->stage_count; s++) count += plan->stages[s].override_count;
    if (count == 0) return AM_OK;
    int32_t *numbers = ARENA_ARRAY(arena, int32_t, count);
    explainer->result->overrides.of = ARENA_ARRAY(arena, ExplainedOverride, count);
    if (!self || arena->failed) return am_fail_memory(explainer->error, count);
    *self = (Lister){.explainer = explainer,
                     .without = ARENA_ARRAY(arena, Assignment *, plan->stage_count),
                     .alike = ARENA_ARRAY(arena, Alike, count),
                     .row_of = ARENA_ARRAY(arena, int32_t, count)};
    if (arena->failed) return am_fail_memory(explainer->error, count);
    /* Assigns each stage with overrides by its axis priorities alone. */
    for (int32_t s = 0; s < explainer->plan->stage_count; s++) {
        PlanStage *stage = ARENA_ARRAY(explainer->arena, PlanStage, 1);
        AmError why = {0};
        if (!stage) return am_fail_memory(explainer->error, (int64_t)sizeof *stage);
        *stage = explainer->plan->stages[s];
        if (stage->override_count == 0) continue;
        stage->override_count = 0;
        AmStatus status = plan_assign_stage(&self->without[s], explainer->arena, explainer->context, stage,
                                            explainer->ranks.map, &why);
        if (status == AM_ERROR_INPUT) self->without[s] = NULL;
        else if (status != AM_OK && explainer->error) *explainer->error = why;
        if (status != AM_ERROR_INPUT) TRY(status);
    }
    list_rows(self, numbers);
    Explanation *result = explainer->result;
    TRY(explain_add_made(explainer, plan_without, self, -1, &result->overrides.without));
    for (int32_t row = 0; row < result->overrides.count; row++)
        TRY(explain_add_made(explainer, plan_without, self, row, &result->overrides.of[row].without));
    return AM_OK;
}
