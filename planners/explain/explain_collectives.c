/* The collectives of a plan by purpose.
 *
 * They are those of the lowered program of each stage's first device, priced one by one; a merged
 * collective is divided over its tensors, by bytes. Each changes the sharding of a value: the bridges
 * between parts of a model that are split otherwise. Numbers in op names are ignored when they are
 * added up, so that repeated layers share a row.
 */
#include <stdlib.h>
#include <string.h>

#include "planners/explain/explain_parts.h"

static const char *axes_text(const Explainer *self, const Mesh *mesh, uint32_t axes) {
    const char *text = "";
    for (int32_t k = 0; k < mesh->axis_count && text; k++)
        if (axes >> k & 1)
            text = arena_format(self->arena, "%s%s%s", text, *text ? "+" : "", mesh->axes[k].name);
    return text ? text : "";
}

/* The collectives of a stage, step by step. */
typedef struct StageCollectives {
    int32_t stage, first_row; /* of the result: this stage's */
    StepCost *costs;
    int32_t count;
} StageCollectives;

/* Returns the tensors of a collective: its results, or those that a host_store replaces. */
static int32_t tensor_count(const ProgramInstruction *instruction) {
    return instruction->result_count > 0 ? instruction->result_count : instruction->operand_count / 2;
}

static const ProgramValue *tensor_of(const Program *program, const ProgramInstruction *instruction,
                                     int32_t k) {
    int32_t stored = instruction->operand_count / 2 + k;
    return &program->values[instruction->result_count > 0 ? instruction->first_result + k
                                                          : instruction->operands[stored]];
}

/* Adds one tensor that the collective of `step` moves, with its share of bytes and time. */
static void add_tensor(Explainer *self, const StageCollectives *of, int32_t step, int32_t k, double share) {
    const StepCost *cost = &of->costs[step];
    const Program *program = cost->executed.program;
    const ProgramInstruction *instruction = cost->executed.instruction;
    const ProgramValue *result_value = tensor_of(program, instruction, k);
    const Mesh *mesh = &self->plan->stages[of->stage].mesh;
    const IrInstruction *origin = plan_context_instruction(self->context, result_value->origin);
    const char *kind = program_collective_name(cost->kind);
    const char *axes = axes_text(self, mesh, cost->axes);
    const ProgramValue *operand = &program->values[instruction->operands[k]];
    const char *before = explain_sharding(self->arena, mesh, operand->state, operand->shape.rank);
    const char *after = explain_sharding(self->arena, mesh, result_value->state, result_value->shape.rank);
    if (!before || !after) return; /* the arena has failed */
    const char *op_name = explain_name(origin);
    Explanation *result = self->result;
    ExplainedCollective *end = result->collectives.of + result->collectives.count, *row;
    for (row = result->collectives.of + of->first_row; row < end; row++)
        if (row->kind == kind && strcmp(row->axes, axes) == 0 && strcmp(row->before, before) == 0 &&
            strcmp(row->after, after) == 0 && explain_is_same_name(row->op_name, op_name))
            break;
    if (row == end) {
        *row = (ExplainedCollective){.stage = of->stage,
                                     .kind = kind,
                                     .axes = axes,
                                     .before = before,
                                     .after = after,
                                     .op_name = op_name,
                                     .source = explain_source(self->arena, origin),
                                     .last_step = -1};
        result->collectives.count++;
    }
    if (row->last_step != step) row->count += (int64_t)cost->executed.times;
    row->last_step = step;
    row->tensors += (int64_t)cost->executed.times;
    row->bytes += share * cost->executed.times * cost->bytes;
    row->seconds += share * cost->executed.times * cost->seconds;
}

/* Adds all tensors of one collective; only those of one kind are merged, so that their results
 * determine the shares. */
static void add_collective(Explainer *self, const StageCollectives *of, int32_t step) {
    const ExecutedStep *executed = &of->costs[step].executed;
    const ProgramInstruction *instruction = executed_collective(executed);
    int32_t count = tensor_count(instruction);
    double total = 0;
    for (int32_t k = 0; k < count; k++)
        total += (double)ir_shape_bytes(&tensor_of(executed->program, instruction, k)->shape);
    for (int32_t k = 0; k < count; k++) {
        double bytes = (double)ir_shape_bytes(&tensor_of(executed->program, instruction, k)->shape);
        add_tensor(self, of, step, k, total > 0 ? bytes / total : 1.0 / count);
    }
}

static int compare_collectives(const void *left, const void *right) {
    const ExplainedCollective *a = left, *b = right;
    if (a->stage != b->stage) return a->stage - b->stage;
    if (a->seconds != b->seconds) return a->seconds > b->seconds ? -1 : 1;
    int order = strcmp(a->op_name, b->op_name);
    return order ? order : strcmp(a->kind, b->kind);
}

AmStatus explain_collectives(Explainer *self) {
    const Plan *plan = self->plan;
    StageCollectives *of = ARENA_ARRAY(self->arena, StageCollectives, plan->stage_count);
    int32_t most = 0;
    if (!of) return am_fail_memory(self->error, plan->stage_count);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const Program *program = plan_costs_program(self->costs, self->ranks.first_rank[s]);
        of[s].stage = s;
        TRY(price_steps(&of[s].costs, &of[s].count, self->arena, program, self->cluster,
                        plan->stages[s].devices, self->error));
        for (int32_t k = 0; k < of[s].count; k++)
            if (of[s].costs[k].is_collective)
                most += tensor_count(executed_collective(&of[s].costs[k].executed));
    }
    self->result->collectives.of = ARENA_ARRAY(self->arena, ExplainedCollective, most + 1);
    if (!self->result->collectives.of) return am_fail_memory(self->error, most);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        of[s].first_row = self->result->collectives.count;
        for (int32_t k = 0; k < of[s].count; k++)
            if (of[s].costs[k].is_collective) add_collective(self, &of[s], k);
    }
    qsort(self->result->collectives.of, (size_t)self->result->collectives.count,
          sizeof *self->result->collectives.of, compare_collectives);
    return self->arena->failed ? am_fail_memory(self->error, 0) : AM_OK;
}
