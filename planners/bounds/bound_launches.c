/* Counts launches of the canonical module. Two counts go along each path: `shared` if the last launch is a
 * fusion that the next element-wise operator may be in, `alone` if it is another step. For `relu(x @ w) @ v`
 * the counts are 1 alone, 2 shared, 3 alone. Results of a loop wait for all that it runs.
 */
#include "planners/bounds/bound_launches.h"

#include <math.h>

#include "cost/relaxation/fusion_groups.h"
#include "cost/step/executed.h"
#include "ir/analysis/loops.h"
#include "lowering/spmd/lower.h"

enum { NOWHERE = -1, IN_BRANCH = -2 };

typedef struct Counter {
    const PlanContext *context;
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    FusionGroups fusion_groups;
    double least_parts;  /* a reduction of more elements is no view in any part */
    int32_t *of;         /* [instruction] computation */
    double *loops;       /* [instruction] launches of a step inside a loop, of an instruction of the entry */
    double *unplanned;   /* [instruction] the same of a loop without a plan, of one run of it */
    int32_t *after;      /* [instruction] the planned loop whose result it stands for, or NOWHERE */
    int32_t *after_leaf; /* [instruction] and which of its arrays */
    bool *is_read;       /* [instruction] by an operator */
    double *shared, *alone; /* [instruction of the entry] */
} Counter;

/* ---- steps ---- */

/* Returns whether an operator that is no fusion launches a kernel in every plan. */
static bool is_step(const Counter *self, int32_t i) {
    if (!self->split_options->live[i] || self->rules->on_demand[i]) return false;
    const IrInstruction *instruction = ir_instruction(self->module, i);
    IrOpcode opcode = instruction->opcode;
    if (ir_is_product(opcode) || opcode == IR_SORT || opcode == IR_SCATTER) return true;
    if (opcode != IR_REDUCE) return false;
    const IrShape *operand = &ir_instruction(self->module, instruction->operands[0])->shape;
    if (instruction->shape.type == DTYPE_TUPLE || operand->type == DTYPE_TUPLE) return false;
    double results = (double)ir_shape_elements(&instruction->shape);
    return results > 0 && (double)ir_shape_elements(operand) / results > self->least_parts;
}

/* ---- loops ---- */

/* Launches of a region, of one run of the loop that it is in; regions inside it are loops without a plan,
 * too. */
static double region_launches(const Counter *self, const Program *region);

static double loop_launches(const Counter *self, const Program *within, const ProgramInstruction *loop) {
    int64_t known = ir_loop_trips(within->module, loop->origin);
    double trips = known == IR_TRIPS_UNKNOWN ? 1 : (double)known, copied = 0;
    const Program *body = loop->regions.programs[0];
    for (int32_t k = 0; k < body->execution.update_count; k++) copied += !body->execution.updates[k].in_place;
    return trips * (region_launches(self, body) + copied) +
           (trips + 1) * region_launches(self, loop->regions.programs[1]);
}

static double region_launches(const Counter *self, const Program *region) {
    double sum = 0;
    for (int32_t s = 0; s < region->execution.step_count; s++) {
        const ProgramStep *step = &region->execution.steps[s];
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &region->instructions[step->instruction] : NULL;
        OperatorWork work;
        operator_work(&work, region, step);
        bool is_loop = instruction && instruction->opcode == IR_WHILE && instruction->regions.count == 2;
        sum += is_loop ? loop_launches(self, region, instruction) : work.is_run;
    }
    return sum;
}

/* Counts the launches of loops without a plan. Such a loop is replicated, so that each device runs the same
 * regions in every plan. */
static void count_unplanned(Counter *self, const Program *program) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        bool is_loop = instruction->opcode == IR_WHILE && instruction->regions.count == 2;
        if (is_loop && !rules_loop(self->rules, instruction->origin)) {
            self->unplanned[instruction->origin] = loop_launches(self, program, instruction);
            continue;
        }
        for (int32_t r = 0; r < instruction->regions.count; r++)
            count_unplanned(self, instruction->regions.programs[r]);
    }
}

/* Lowers the module for one device, which has the regions of all loops. */
static AmStatus find_unplanned(Counter *self, AmError *error) {
    Arena scratch = {0};
    int32_t device = 0, range[1][2] = {{0, self->rules->entry_count}};
    PlanStage stage = {.mesh = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1},
                       .devices = &device,
                       .ranges = range,
                       .range_count = 1};
    Assignment *assignment;
    Program *program;
    bool has_unplanned = false;
    for (int32_t i = 0; i < self->rules->count && !has_unplanned; i++)
        has_unplanned = ir_instruction(self->module, i)->opcode == IR_WHILE &&
                        self->rules->is_planned[self->of[i]] && !rules_loop(self->rules, i);
    if (!has_unplanned) return AM_OK;
    AmStatus status = plan_assign(&assignment, &scratch, self->context, &stage, error);
    if (status == AM_OK) status = plan_lower(&program, &scratch, self->context, assignment, 0, error);
    if (status == AM_OK) count_unplanned(self, program);
    arena_free(&scratch);
    return status;
}

/* Returns the instruction of the entry that contains a planned computation; NOWHERE: the entry itself;
 * IN_BRANCH: a branch; only the most expensive branch counts. */
static int32_t entry_loop_of(const Counter *self, int32_t computation) {
    int32_t found = NOWHERE;
    while (computation != self->module->entry) {
        int32_t loop = self->rules->region_of[computation];
        if (loop < 0) return IN_BRANCH;
        found = self->rules->loops[loop].instruction;
        computation = self->of[found];
    }
    return found;
}

/* Returns whether a step writes an array of a loop in each trip of every plan: its next value is
 * element-wise, or a scalar that is copied from another array. */
static bool is_written(const Counter *self, const PlannedLoop *loop, int32_t k) {
    const LoopLeaf *leaf = &loop->leaves[k];
    const IrOpcode opcode = ir_instruction(self->module, leaf->next)->opcode;
    if (leaf->is_invariant || loop_leaf_reader(leaf) < 0) return false;
    for (int32_t other = 0; other < k; other++)
        if (loop->leaves[other].next == leaf->next && loop->leaves[other].next_leaf == leaf->next_leaf)
            return false;
    if (opcode == IR_PARAMETER) return leaf->next_leaf != k && leaf->shape->rank == 0;
    return self->split_options->live[leaf->next] && fusion_groups_is_element_wise(self->module, leaf->next) &&
           !fusion_groups_may_vanish(self->context, leaf->next);
}

/* Counts all launches. Each array of a loop has a place of its own in memory, and a step writes one array; a
 * condition writes its result. */
static double count_total(Counter *self) {
    double total = 0;
    for (int32_t c = 0; c < self->module->computation_count; c++) {
        const IrComputation *computation = &self->module->computations[c];
        if (!self->rules->is_planned[c]) continue;
        int32_t within = entry_loop_of(self, c);
        if (within == IN_BRANCH) continue;
        double steps = 0, writes = 0;
        int32_t region = c == self->module->entry ? -1 : self->rules->region_of[c];
        const PlannedLoop *loop = region < 0 ? NULL : &self->rules->loops[region];
        if (loop && c == loop->condition)
            writes = fusion_groups_is_element_wise(self->module, computation->root);
        else
            for (int32_t k = 0; loop && k < loop->leaf_count; k++) writes += is_written(self, loop, k);
        /* The launches of a fusion group are counted at one of its operators. */
        for (int32_t i = computation->first; i < computation->first + computation->count; i++)
            steps += is_step(self, i) + self->fusion_groups.launches[i] + self->unplanned[i];
        double here = fmax(steps, writes) * self->rules->times[c];
        total += here;
        if (within >= 0) self->loops[within] += here;
    }
    return total;
}

/* ---- the chain ---- */

static void take_path(Counter *self, int32_t i, int32_t from) {
    if (from < 0 || from >= i) return;
    self->shared[i] = fmax(self->shared[i], self->shared[from]);
    self->alone[i] = fmax(self->alone[i], self->alone[from]);
}

/* Counts the launches before a result of a loop, which waits for all inputs of the loop's body. */
static void pass_loop(Counter *self, int32_t i) {
    const PlannedLoop *loop = &self->rules->loops[self->after[i]];
    const LoopLeaf *own = &loop->leaves[self->after_leaf[i]];
    if (own->is_invariant) {
        if (own->initial_leaf == 0) take_path(self, i, own->initial);
        return;
    }
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        const LoopLeaf *leaf = &loop->leaves[k];
        bool is_needed = leaf->in_body >= 0 && self->is_read[leaf->in_body] && leaf->initial_leaf == 0;
        if (is_needed && leaf->initial < self->rules->entry_count) take_path(self, i, leaf->initial);
    }
    self->alone[i] = fmax(self->alone[i], self->shared[i]) + self->loops[loop->instruction];
    self->shared[i] = -INFINITY;
}

static double count_chain(Counter *self) {
    const SplitOptions *options = self->split_options;
    double longest = 0;
    for (int32_t i = 0; i < options->count; i++)
        for (int32_t k = options->first_operand[i]; k < options->first_operand[i + 1]; k++)
            self->is_read[options->operands[k]] |=
                options->live[i] && ir_instruction(self->module, i)->opcode != IR_TUPLE;
    for (int32_t i = 0; i < self->rules->entry_count; i++) self->after[i] = NOWHERE;
    for (int32_t l = 0; l < self->rules->loop_count; l++) {
        const PlannedLoop *loop = &self->rules->loops[l];
        for (int32_t k = 0; k < loop->leaf_count; k++) {
            int32_t after = loop->leaves[k].afterwards;
            if (after < 0) continue;
            self->after[after] = l;
            self->after_leaf[after] = k;
        }
    }
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        self->shared[i] = -INFINITY;
        self->alone[i] = 0;
        if (self->after[i] >= 0) {
            pass_loop(self, i);
            continue;
        }
        for (int32_t k = options->first_operand[i]; k < options->first_operand[i + 1]; k++)
            take_path(self, i, options->operands[k]);
        bool is_always_fused =
            options->live[i] && !self->rules->on_demand[i] && self->fusion_groups.group[i] >= 0 &&
            ir_instruction(self->module, i)->shape.rank > 0 && !fusion_groups_may_vanish(self->context, i);
        if (is_step(self, i) || self->unplanned[i] > 0) {
            self->alone[i] = fmax(self->alone[i], self->shared[i]) + is_step(self, i) + self->unplanned[i];
            self->shared[i] = -INFINITY;
        } else if (is_always_fused) {
            self->shared[i] = fmax(self->shared[i], self->alone[i] + 1);
        }
        if (options->live[i]) longest = fmax(longest, fmax(self->alone[i], self->shared[i]));
    }
    return longest;
}

/* ---- all of it ---- */

AmStatus bound_launches_find(BoundLaunches *launches, const PlanContext *context, const Cluster *cluster,
                             AmError *error) {
    const IrModule *module = context->canonical;
    int32_t count = context->rules->count;
    double most_examples = 1; /* the largest batch dimension */
    *launches = (BoundLaunches){.seconds = INFINITY};
    for (int32_t t = 0; t < cluster->type_count; t++) {
        const ClusterDeviceType *type = &cluster->types[t];
        bool is_measured = type->profile || type->operators;
        launches->seconds = is_measured ? 0 : fmin(launches->seconds, type->kernel_launch_seconds);
        if (is_measured) return AM_OK;
    }
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &ir_instruction(module, parameter->instruction)->shape;
        if (parameter->role == IR_ROLE_DATA && shape->rank > 0)
            most_examples = fmax(most_examples, (double)shape->dimensions[0]);
    }
    Arena arena = {0};
    AmStatus status = AM_OK;
    Counter self = {.context = context,
                    .module = module,
                    .rules = context->rules,
                    .split_options = context->split_options,
                    .least_parts = cluster->device_count * most_examples,
                    .of = ARENA_ARRAY(&arena, int32_t, count + 1),
                    .loops = ARENA_ARRAY(&arena, double, count + 1),
                    .unplanned = ARENA_ARRAY(&arena, double, count + 1),
                    .after = ARENA_ARRAY(&arena, int32_t, count + 1),
                    .after_leaf = ARENA_ARRAY(&arena, int32_t, count + 1),
                    .is_read = ARENA_ARRAY(&arena, bool, count + 1),
                    .shared = ARENA_ARRAY(&arena, double, count + 1),
                    .alone = ARENA_ARRAY(&arena, double, count + 1)};
    if (arena.failed) TRY_OR_FAIL(am_fail_memory(error, count));
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t i = 0; i < module->computations[c].count; i++)
            self.of[module->computations[c].first + i] = c;
    TRY_OR_FAIL(fusion_groups_find(&self.fusion_groups, &arena, context, error));
    TRY_OR_FAIL(find_unplanned(&self, error));
    launches->total = count_total(&self);
    launches->chain = count_chain(&self);
fail:
    arena_free(&arena);
    return status;
}

double bound_launches_seconds(const BoundLaunches *launches, int32_t most_stages) {
    return launches->seconds * fmax(launches->chain, launches->total / most_stages);
}
