/* A module as the chain of forward operators that Auto-MAP cuts into a pipeline (its sections 3.4 and 4.4).
 */
#include "planners/automap_paper/paper_chain.h"

#include "cost/step/executed.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/lower.h"
#include "planners/baselines/baseline.h"
#include "propagation/stages/stages.h"

typedef struct PaperChainBuilder {
    Arena *arena;
    const PlanContext *context;
    const Cluster *cluster;
    PaperChain *chain;
    int32_t count;         /* instructions of the entry */
    int32_t *outermost;    /* [instruction]: the entry's that runs it; -1: none */
    int32_t *place;        /* [entry instruction]: the forward operator that it belongs to; -1: none */
    int32_t *weight_place; /* [parameter]: the first forward operator that takes it; -1: none */
    double *seconds[PAPER_PASSES], *crossing, *kept; /* [entry instruction + 1] */
} PaperChainBuilder;

/* ---- where everything belongs ---- */

static void find_weights(PaperChainBuilder *self) {
    const IrRoles *roles = self->context->roles;
    const SplitOptions *split_options = self->context->split_options;
    for (int32_t p = 0; p < roles->parameter_count; p++) self->weight_place[p] = -1;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        if (!plan_context_in_forward(self->context, i)) continue;
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            const IrInstruction *operand =
                plan_context_instruction(self->context, split_options->operands[k]);
            if (operand->opcode == IR_PARAMETER && split_options->operands[k] < self->count)
                self->weight_place[operand->attributes->parameter_number] = i;
        }
    }
}

/* Finds the place of each operator: of a forward one itself; of another one the last forward value or weight
 * that it reads, else the place of its first operand. */
static void find_places(PaperChainBuilder *self) {
    const SplitOptions *split_options = self->context->split_options;
    const IrRoles *roles = self->context->roles;
    const Rules *rules = self->context->rules;
    for (int32_t i = 0; i < self->count; i++) {
        const IrInstruction *instruction = plan_context_instruction(self->context, i);
        self->place[i] = plan_context_in_forward(self->context, i) ? i : -1;
        if (instruction->opcode == IR_PARAMETER)
            self->place[i] = self->weight_place[instruction->attributes->parameter_number];
        if (self->place[i] >= 0 || instruction->opcode == IR_PARAMETER) continue;
        int32_t last = -1, first = -1;
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            int32_t operand = split_options->operands[k], place = self->place[operand];
            bool is_given = plan_context_in_forward(self->context, operand) ||
                            plan_context_instruction(self->context, operand)->opcode == IR_PARAMETER;
            /* Constants shared by several layers have no place. */
            if (place < 0 || rules->is_free[operand] || rules->on_demand[operand]) continue;
            if (is_given && place > last) last = place;
            if (!is_given && (first < 0 || place < first)) first = place;
        }
        bool is_update = roles->phases[i] == IR_PHASE_OPTIMIZER;
        self->place[i] = last < 0 || (is_update && first >= 0) ? first : last;
    }
}

/* ---- costs ---- */

static void add_step(PaperChainBuilder *self, const ExecutedStep *executed) {
    if (executed_collective(executed)) return;
    int32_t origin = executed_origin(executed), outermost = origin < 0 ? -1 : self->outermost[origin];
    if (outermost < 0) return;
    IrPhase phase = self->context->roles->phases[origin];
    bool is_gradient = self->context->split_options->storage->role[origin] == STORAGE_GRADIENT;
    PaperPass pass = phase == IR_PHASE_OPTIMIZER                                  ? PAPER_UPDATE
                     : phase == IR_PHASE_BACKWARD && is_gradient                  ? PAPER_GRADIENTS
                     : phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED ? PAPER_BACKWARD
                                                                                  : PAPER_FORWARD;
    int32_t place = self->place[outermost] < 0 ? 0 : self->place[outermost];
    self->seconds[pass][place] += executed->times * executed_seconds(executed, &self->cluster->types[0]);
}

/* Lowers the module for one device of a mesh that cuts the batch into `parts`. */
static AmStatus add_seconds(PaperChainBuilder *self, Arena *scratch, AmError *error) {
    int32_t parts = self->chain->parts, count;
    int32_t *devices = ARENA_ARRAY(scratch, int32_t, parts); /* all the first: nothing is sent */
    const Mesh mesh = {.axis_count = 1, .axes = {{.name = "data", .size = parts}}, .device_count = parts};
    const ProblemSettings settings = problem_settings(SPACE_DATA, 1);
    StageProblem *problem;
    AxisPlan axis_plan = {0};
    Assignment *assignment;
    Program *program;
    ExecutedStep *steps;
    PlanStage *stage = ARENA_ARRAY(scratch, PlanStage, 1);
    if (scratch->failed) return am_fail_memory(error, parts * 4);
    TRY(problem_create(&problem, self->context, self->cluster, &mesh, devices, &settings, error));
    AmStatus status = AM_OK;
    if (parts > 1 && !baseline_batch(problem, 0, &axis_plan))
        status = am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
                         "no pipeline: no data input has a batch dimension");
    if (status == AM_OK) problem_stage(problem, &axis_plan, scratch, stage);
    problem_free(problem);
    if (status != AM_OK) return status;
    if (scratch->failed) return am_fail_memory(error, 0);
    TRY(plan_assign(&assignment, scratch, self->context, stage, error));
    TRY(plan_lower(&program, scratch, self->context, assignment, 0, error));
    TRY(executed_steps(&steps, &count, scratch, program, &self->cluster->types[0], error));
    for (int32_t k = 0; k < count; k++) add_step(self, &steps[k]);
    return AM_OK;
}

/* Adds the accumulation of gradients over iterations, which the module as read lacks. The product that
 * computes a gradient accumulates, and reads the sum in addition. */
static void add_accumulation(PaperChainBuilder *self) {
    const IrRoles *roles = self->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrShape *shape =
            &plan_context_instruction(self->context, roles->parameters[p].instruction)->shape;
        if (roles->parameters[p].role != IR_ROLE_WEIGHT || self->weight_place[p] < 0) continue;
        const OperatorWork work = {.flops = (double)ir_shape_elements(shape),
                                   .bytes = (double)ir_shape_bytes(shape),
                                   .unit = OPERATOR_VECTOR,
                                   .type = shape->type,
                                   .is_run = true};
        self->seconds[PAPER_GRADIENTS][self->weight_place[p]] +=
            operator_seconds(&work, &self->cluster->types[0]);
    }
}

/* Adds the bytes of forward values that forward operators after a cut read, and that the backward pass
 * reads. */
static void add_bytes(PaperChainBuilder *self, int32_t *last_use) {
    const SplitOptions *split_options = self->context->split_options;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        if (!split_options->live[i]) continue;
        bool forward = plan_context_in_forward(self->context, i),
             hands_on = stages_is_transparent(self->context, i);
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            int32_t operand = split_options->operands[k], used = hands_on ? last_use[i] : i;
            if (forward && last_use[operand] < used) last_use[operand] = used;
            if (!forward && plan_context_in_forward(self->context, operand) &&
                !stages_is_transparent(self->context, operand))
                self->kept[operand] = split_options->bytes[operand];
        }
    }
    for (int32_t i = 0; i < self->count; i++) {
        bool is_sent = plan_context_in_forward(self->context, i) && !stages_is_transparent(self->context, i);
        if (!is_sent || last_use[i] <= i) continue;
        self->crossing[i + 1] += split_options->bytes[i];
        self->crossing[last_use[i] + 1] -= split_options->bytes[i];
    }
    for (int32_t i = 1; i <= self->count; i++) self->crossing[i] += self->crossing[i - 1];
}

/* ---- pivots ---- */

static bool is_product(const PaperChainBuilder *self, int32_t i) {
    IrOpcode opcode = plan_context_instruction(self->context, i)->opcode;
    return plan_context_in_forward(self->context, i) && (ir_is_product(opcode) || opcode == IR_WHILE);
}

/* Finds the cut with the fewest crossing bytes in every gap between products, with the sums before
 * it. */
static AmStatus find_pivots(PaperChainBuilder *self, Arena *scratch, AmError *error) {
    PaperChain *chain = self->chain;
    double *bytes = ARENA_ARRAY(scratch, double, self->count + 1), state_per_byte;
    int32_t *weights = ARENA_ARRAY(scratch, int32_t, self->count + 1), products = 0;
    chain->pivots = ARENA_ARRAY(self->arena, PaperPivot, self->count + 1);
    if (scratch->failed || self->arena->failed) return am_fail_memory(error, self->count * 12);
    /* Adds the memory of weights and the optimizer at the first operators that use the weights. */
    const IrRoles *roles = self->context->roles;
    double all = 0, state = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrShape *shape =
            &plan_context_instruction(self->context, roles->parameters[p].instruction)->shape;
        if (roles->parameters[p].role == IR_ROLE_OPTIMIZER) state += (double)ir_shape_bytes(shape);
        if (roles->parameters[p].role != IR_ROLE_WEIGHT || self->weight_place[p] < 0) continue;
        bytes[self->weight_place[p]] += (double)ir_shape_bytes(shape);
        weights[self->weight_place[p]]++;
        all += (double)ir_shape_bytes(shape);
    }
    state_per_byte = all > 0 ? state / all : 0;
    PaperPivot at = {0}, best = {.instruction = -1};
    for (int32_t i = 0; i <= self->count; i++) {
        at.instruction = i;
        at.crossing = self->crossing[i];
        at.state_bytes = at.weight_bytes * state_per_byte;
        bool is_end = i == self->count,
             is_cut = !is_end && plan_context_in_forward(self->context, i) && products > 0;
        if (is_cut && (best.instruction < 0 || at.crossing < best.crossing)) best = at;
        if ((is_end || is_product(self, i)) && best.instruction >= 0) {
            chain->pivots[chain->count++] = best;
            best.instruction = -1;
        }
        if (is_end) break;
        products += is_product(self, i);
        for (int32_t pass = 0; pass < PAPER_PASSES; pass++) at.seconds[pass] += self->seconds[pass][i];
        at.weight_bytes += bytes[i];
        at.weights += weights[i];
        at.kept_bytes += self->kept[i];
    }
    chain->end = at;
    if (products > 1) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, plan_context_file(self->context),
                   "too few forward operators for a pipeline");
}

AmStatus paper_chain_build(PaperChain **chain, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, int32_t micro_batches, int32_t devices, AmError *error) {
    int32_t count = context->rules->entry_count, all = context->canonical->instruction_count;
    int64_t batch = micro_batches_limit(context);
    Arena scratch = {0};
    PaperChainBuilder self = {.arena = arena,
                              .context = context,
                              .cluster = cluster,
                              .chain = ARENA_ARRAY(arena, PaperChain, 1),
                              .count = count,
                              .outermost = ARENA_ARRAY(&scratch, int32_t, all + 1),
                              .place = ARENA_ARRAY(&scratch, int32_t, count + 1),
                              .weight_place =
                                  ARENA_ARRAY(&scratch, int32_t, context->roles->parameter_count + 1),
                              .crossing = ARENA_ARRAY(&scratch, double, count + 2),
                              .kept = ARENA_ARRAY(&scratch, double, count + 1)};
    for (int32_t pass = 0; pass < PAPER_PASSES; pass++)
        self.seconds[pass] = ARENA_ARRAY(&scratch, double, count + 1);
    int32_t *last_use = ARENA_ARRAY(&scratch, int32_t, count + 1);
    AmStatus status = scratch.failed || arena->failed ? am_fail_memory(error, (int64_t)count * 60) : AM_OK;
    if (status == AM_OK) {
        int64_t parts = (int64_t)micro_batches * devices;
        self.chain->parts = (int32_t)(batch < parts ? batch : parts);
        for (int32_t i = 0; i < count; i++) last_use[i] = -1;
        rules_find_outermost(context->rules, self.outermost);
        find_weights(&self);
        find_places(&self);
        add_bytes(&self, last_use);
        status = add_seconds(&self, &scratch, error);
    }
    if (status == AM_OK && micro_batches > 1) add_accumulation(&self);
    if (status == AM_OK) status = find_pivots(&self, &scratch, error);
    arena_free(&scratch);
    *chain = self.chain;
    return status;
}

void paper_chain_layers(const char **before, const char **after, const PlanContext *context,
                        int32_t instruction) {
    const SplitOptions *split_options = context->split_options;
    *before = *after = NULL;
    for (int32_t i = 0; i < context->rules->entry_count && !*after; i++) {
        if (!split_options->live[i] || context->roles->phases[i] != IR_PHASE_FORWARD) continue;
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            const IrInstruction *operand = plan_context_instruction(context, split_options->operands[k]);
            if (operand->opcode != IR_PARAMETER) continue;
            const IrParameter *parameter = &context->roles->parameters[operand->attributes->parameter_number];
            if (parameter->role != IR_ROLE_WEIGHT) continue;
            if (i < instruction) *before = parameter->path;
            else if (!*after) *after = parameter->path;
        }
    }
}
