/* The stages that compute the operators of a plan's ranges, and direct consequences (stages.h has
 * the rules).
 *
 * Three sweeps over the entry. Forwards, every forward operator takes its range's stage. Backwards,
 * its operands become available there, which determines the first use of a weight. Forwards again,
 * the other operators are assigned, in an order in which their operands are known. A value is
 * available where it is computed and where forward operators read it, since it is sent there
 * anyway. The computations of a loop have the stage of the loop.
 *
 * A backward operator has gradient operands, which come down the stages, and others (forward
 * values, weights, helpers). It is computed on the last stage, at most the first of its gradient
 * operands', on which all the others are available. A derivative by an activation is therefore
 * computed at the weight, and one by a weight where both the activation and the gradient are
 * available.
 */
#include "propagation/stages/stages.h"

#include "ir/dataflow.h"

/* Returns the stage that holds a canonical instruction, or -1. */
static int32_t plan_stage_of(const Plan *plan, int32_t instruction) {
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        for (int32_t r = 0; r < stage->range_count; r++)
            if (instruction >= stage->ranges[r][0] && instruction < stage->ranges[r][1]) return s;
    }
    return -1;
}

#define EVERYWHERE (~(StageSet)0)

enum { NO_WEIGHT = -1, SEVERAL_WEIGHTS = -2 };

typedef struct Seeder {
    const PlanContext *context;
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    const IrRoles *roles;
    const Plan *plan;
    StageSeeds *seeds;
    int32_t count;         /* instructions of the entry */
    StageSet *available;   /* [count] */
    int32_t *at;           /* [count]: the stage that computes it, -1: its users decide */
    int32_t *parameter_of; /* [count]: number of the entry parameter, or -1 */
    int32_t *weight;       /* [count]: the only weight that it leads to through arrays, or NO_, SEVERAL_ */
    bool *is_gradient;     /* [count] */
} Seeder;

static bool is_scalar(const Seeder *self, int32_t i) {
    const IrShape *shape = &ir_instruction(self->module, i)->shape;
    return shape->type != DTYPE_TUPLE && ir_shape_elements(shape) <= 1;
}

/* Returns whether an operator moves, converts or changes elements one by one. */
static bool is_light(const Seeder *self, int32_t i) {
    IrOpcode opcode = ir_instruction(self->module, i)->opcode;
    return ir_opcode_has(opcode, FACT_MOVES) || ir_is_elementwise(opcode);
}

/* Computes something itself: neither a parameter nor handing on. An array after a loop is the loop's. */
static bool is_computed(const Seeder *self, int32_t i) {
    IrOpcode opcode = ir_instruction(self->module, i)->opcode;
    return self->split_options->live[i] && !stages_is_transparent(self->context, i) &&
           opcode != IR_PARAMETER && opcode != IR_GET_TUPLE_ELEMENT;
}

/* Returns the stages on which operand o is available without an additional transfer. */
static StageSet available(const Seeder *self, int32_t o) {
    if (self->rules->is_free[o]) return EVERYWHERE;
    bool is_open = self->parameter_of[o] >= 0 && self->available[o] == 0;
    return is_open ? EVERYWHERE : self->available[o];
}

/* Returns the first (or last) stage at which an operand is computed, -1 where none has a stage. */
static int32_t operand_stage(const Seeder *self, int32_t i, bool first, bool arrays_only) {
    int32_t found = -1;
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++) {
        int32_t o = self->split_options->operands[k], at = self->at[o];
        if (at < 0 || (arrays_only && is_scalar(self, o))) continue;
        if (found < 0 || (first ? at < found : at > found)) found = at;
    }
    return found;
}

/* ---- forward ---- */

/* Casts and slices of parameters belong to those who use them. */
static bool is_preparation(const Seeder *self, int32_t i) {
    if (!is_light(self, i)) return false;
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++) {
        int32_t o = self->split_options->operands[k];
        if (!self->rules->is_free[o] && self->parameter_of[o] < 0 && self->at[o] != -2) return false;
    }
    return true;
}

static AmStatus seed_forward(Seeder *self, AmError *error) {
    enum { PREPARATION = -2 };
    for (int32_t i = 0; i < self->count; i++) {
        self->at[i] = -1;
        if (!self->split_options->live[i] || !ir_phase_is_with_forward(self->roles->phases[i])) continue;
        if (!is_computed(self, i)) {
            bool prepares = self->parameter_of[i] < 0 && is_preparation(self, i);
            self->at[i] = prepares ? PREPARATION : operand_stage(self, i, false, false);
            continue;
        }
        if (is_preparation(self, i)) {
            self->at[i] = PREPARATION;
            continue;
        }
        int32_t stage = plan_stage_of(self->plan, i), last = operand_stage(self, i, false, false);
        const IrInstruction *instruction = ir_instruction(self->module, i);
        if (stage < 0)
            return am_fail(error, AM_ERROR_INPUT, self->module->source,
                           "no stage of the plan has the forward operator %s in its ranges",
                           instruction->name);
        if (last > stage)
            return am_fail(
                error, AM_ERROR_INPUT, self->module->source,
                "the forward operator %s is on stage %d and takes a value of stage %d, which comes later",
                instruction->name, stage, last);
        self->at[i] = stage;
    }
    for (int32_t i = 0; i < self->count; i++)
        if (self->at[i] == PREPARATION) self->at[i] = -1;
    return AM_OK;
}

/* Marks where values are available: forward values where forward operators read them, weights where they are
 * used. */
static void find_available(Seeder *self) {
    for (int32_t i = self->count - 1; i >= 0; i--) {
        if (!self->split_options->live[i] || !ir_phase_is_with_forward(self->roles->phases[i]) ||
            self->parameter_of[i] >= 0)
            continue;
        bool computes = is_computed(self, i) && self->at[i] >= 0;
        if (computes) self->available[i] |= stage_bit(self->at[i]);
        StageSet where = computes ? stage_bit(self->at[i]) : self->available[i];
        for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
             k++)
            self->available[self->split_options->operands[k]] |= where;
    }
    for (int32_t k = 0; k < self->roles->parameter_count; k++) {
        StageSet used = self->available[self->roles->parameters[k].instruction];
        if (used) self->seeds->owner[k] = stage_first(used);
    }
}

/* ---- backward ---- */

static void join_weight(int32_t *weight, int32_t other) {
    if (other == NO_WEIGHT || *weight == other) return;
    *weight = *weight == NO_WEIGHT ? other : SEVERAL_WEIGHTS;
}

/* Finds the weight whose gradient or update an instruction ends in. Scalars, as the norm of all gradients,
 * tie nothing together. */
static void find_weights(Seeder *self) {
    for (int32_t i = 0; i < self->count; i++) self->weight[i] = NO_WEIGHT;
    for (int32_t k = 0; k < self->roles->parameter_count; k++) {
        const IrParameter *parameter = &self->roles->parameters[k];
        if (parameter->role == IR_ROLE_WEIGHT && parameter->output >= 0)
            join_weight(&self->weight[self->rules->alias[self->roles->outputs[parameter->output]]], k);
    }
    for (int32_t i = self->count - 1; i >= 0; i--) {
        if (!self->split_options->live[i] || ir_phase_is_with_forward(self->roles->phases[i]) ||
            is_scalar(self, i))
            continue;
        for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
             k++)
            join_weight(&self->weight[self->split_options->operands[k]], self->weight[i]);
    }
}

/* Returns the stage of the weight that i ends in, or -1. */
static int32_t weight_stage(const Seeder *self, int32_t i) {
    return self->weight[i] >= 0 ? self->seeds->owner[self->weight[i]] : -1;
}

/* Returns the last stage up to `most` of a set, -1: it has none. */
static int32_t last_up_to(StageSet set, int32_t most) {
    set &= most >= 63 ? EVERYWHERE : stage_bit(most + 1) - 1;
    return set ? stage_last(set) : -1;
}

/* Returns the stage with the largest part of a backward operator's operands other than gradients. */
static StageSet largest_available(const Seeder *self, int32_t i) {
    StageSet found = EVERYWHERE;
    double most = -1;
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++) {
        int32_t o = self->split_options->operands[k];
        if (self->is_gradient[o] || self->split_options->bytes[o] <= most) continue;
        found = available(self, o);
        most = self->split_options->bytes[o];
    }
    return found;
}

/* Seeds a recomputation at the stage of its forward operator; false for other operators. */
static bool seed_recomputed(Seeder *self, int32_t i) {
    int32_t forward = self->roles->repeats ? self->roles->repeats[i] : -1;
    if (forward < 0 || forward >= self->count || self->at[forward] < 0) return false;
    self->at[i] = self->at[forward];
    self->available[i] = self->available[forward];
    return true;
}

static void seed_backward(Seeder *self, int32_t i) {
    int32_t most = self->plan->stage_count - 1;
    StageSet all = EVERYWHERE;
    bool has_gradient = false;
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++) {
        int32_t o = self->split_options->operands[k];
        if (!self->is_gradient[o]) {
            all &= available(self, o);
            continue;
        }
        has_gradient = true;
        if (self->at[o] < most) most = self->at[o];
    }
    if (!has_gradient && is_light(self, i)) { /* a helper */
        self->available[i] = all ? all : largest_available(self, i);
        self->seeds->allowed[i] = self->available[i];
        self->seeds->is_cheap[i] = true;
        return;
    }
    int32_t wanted = weight_stage(self, i);
    self->at[i] = wanted >= 0 && wanted <= most && stage_in(all, wanted) ? wanted : last_up_to(all, most);
    if (self->at[i] < 0) self->at[i] = last_up_to(largest_available(self, i), most);
    if (self->at[i] < 0) self->at[i] = most;
    self->is_gradient[i] = true;
}

/* Seeds the state of an optimizer, and operators that only prepare it, with the stage of the update. */
static void seed_optimizer(Seeder *self, int32_t i) {
    bool scalar = is_scalar(self, i);
    int32_t wanted = scalar ? -1 : weight_stage(self, i);
    for (int32_t k = self->split_options->first_operand[i];
         wanted < 0 && k < self->split_options->first_operand[i + 1]; k++) {
        int32_t parameter = self->parameter_of[self->split_options->operands[k]];
        if (parameter >= 0 && !scalar) wanted = self->seeds->owner[parameter];
    }
    if (wanted < 0) wanted = operand_stage(self, i, true, !scalar);
    self->at[i] = wanted;
    self->is_gradient[i] = wanted >= 0;
    self->seeds->is_cheap[i] = scalar;
}

static void seed_rest(Seeder *self) {
    for (int32_t i = 0; i < self->count; i++) {
        if (!self->split_options->live[i] || self->parameter_of[i] >= 0) continue;
        if (!is_computed(self, i)) {
            /* A forwarding instruction has the stage of its source. */
            const SplitOptions *options = self->split_options;
            self->available[i] = EVERYWHERE;
            self->at[i] = operand_stage(self, i, true, false);
            for (int32_t k = options->first_operand[i]; k < options->first_operand[i + 1]; k++) {
                self->available[i] &= available(self, options->operands[k]);
                self->is_gradient[i] |= self->is_gradient[options->operands[k]];
            }
            continue;
        }
        if (ir_phase_is_with_forward(self->roles->phases[i])) continue;
        IrPhase phase = self->roles->phases[i];
        if (phase == IR_PHASE_OPTIMIZER) seed_optimizer(self, i);
        else if (phase != IR_PHASE_RECOMPUTED || !seed_recomputed(self, i)) seed_backward(self, i);
        if (self->at[i] >= 0) self->available[i] |= stage_bit(self->at[i]);
    }
}

/* ---- all planned computations ---- */

AmStatus stages_seed(StageSeeds *seeds, Arena *arena, const PlanContext *context, const Plan *plan,
                     AmError *error) {
    const Rules *rules = context->rules;
    int32_t count = rules->entry_count, parameters = context->roles->parameter_count;
    if (plan->stage_count > STAGES_MOST)
        return am_fail(error, AM_ERROR_INPUT, context->canonical->source,
                       "the plan has %d stages: at most %d can be lowered", plan->stage_count, STAGES_MOST);
    *seeds = (StageSeeds){.held = ARENA_ARRAY(arena, StageSet, rules->count + 1),
                          .allowed = ARENA_ARRAY(arena, StageSet, rules->count + 1),
                          .is_cheap = ARENA_ARRAY(arena, bool, rules->count + 1),
                          .owner = ARENA_ARRAY(arena, int32_t, parameters + 1)};
    Seeder self = {.context = context,
                   .module = context->canonical,
                   .rules = rules,
                   .split_options = context->split_options,
                   .roles = context->roles,
                   .plan = plan,
                   .seeds = seeds,
                   .count = count,
                   .available = ARENA_ARRAY(arena, StageSet, count + 1),
                   .at = ARENA_ARRAY(arena, int32_t, count + 1),
                   .parameter_of = ARENA_ARRAY(arena, int32_t, count + 1),
                   .weight = ARENA_ARRAY(arena, int32_t, count + 1),
                   .is_gradient = ARENA_ARRAY(arena, bool, count + 1)};
    if (arena->failed) return am_fail_memory(error, rules->count);
    for (int32_t i = 0; i < count; i++) self.parameter_of[i] = -1;
    for (int32_t k = 0; k < parameters; k++) {
        self.parameter_of[context->roles->parameters[k].instruction] = k;
        seeds->owner[k] = -1;
    }
    TRY(seed_forward(&self, error));
    find_available(&self);
    find_weights(&self);
    seed_rest(&self);
    for (int32_t i = 0; i < self.count; i++)
        seeds->held[i] = is_computed(&self, i) && self.at[i] >= 0 ? stage_bit(self.at[i]) : 0;
    for (int32_t k = 0; k < rules->loop_count; k++) {
        const PlannedLoop *loop = &rules->loops[k];
        const IrComputation *body = &self.module->computations[loop->body];
        for (int32_t i = body->first; i < body->first + body->count; i++)
            if (is_computed(&self, i)) seeds->held[i] = seeds->held[loop->instruction];
    }
    return AM_OK;
}
