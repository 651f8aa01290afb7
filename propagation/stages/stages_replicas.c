/* The stages of a module in replicas, each of which is a stage.
 *
 *     operators of a replica     its stage
 *     a weight                   the stage with the fewest bytes of weights so far, larger weights first
 *     what leads to one weight   that of the weight: sums of gradients, updates, optimizer states
 *     scalars of scalars         all stages that need them
 *     others                     that of the largest operand: casts of a weight, its squared norm, parts of
 *                                the data; the first stage without one
 *
 * So each stage updates a part of the weights, as under ZeRO 1 with whole tensors as shards: gradients are
 * summed where the weight is, and the new value is sent to the stages that compute with it.
 */
#include <stdlib.h>
#include <string.h>

#include "ir/dataflow.h"
#include "propagation/stages/stages.h"

enum { NO_WEIGHT = -1, SEVERAL_WEIGHTS = -2 };

typedef struct ReplicaSeeder {
    const PlanContext *context;
    const SplitOptions *options;
    const IrRoles *roles;
    StageSeeds *seeds;
    int32_t count;         /* instructions of all computations */
    int32_t *parameter_of; /* [instruction]: number of the entry parameter, or -1 */
    int32_t *weight; /* [instruction]: the only weight that it leads to through arrays, or NO_, SEVERAL_ */
    int32_t *home;   /* [instruction]: stage, or -1: open */
} ReplicaSeeder;

static bool is_scalar(const ReplicaSeeder *self, int32_t i) {
    const IrShape *shape = &plan_context_instruction(self->context, i)->shape;
    return shape->type != DTYPE_TUPLE && ir_shape_elements(shape) <= 1;
}

static void join_weight(int32_t *weight, int32_t other) {
    if (other == NO_WEIGHT || *weight == other) return;
    *weight = *weight == NO_WEIGHT ? other : SEVERAL_WEIGHTS;
}

/* Finds the weight that each value outside of the replicas leads to. */
static void find_weights(ReplicaSeeder *self) {
    const Rules *rules = self->context->rules;
    const SplitOptions *options = self->options;
    for (int32_t i = 0; i < self->count; i++) self->weight[i] = NO_WEIGHT;
    for (int32_t k = 0; k < self->roles->parameter_count; k++) {
        const IrParameter *parameter = &self->roles->parameters[k];
        if (parameter->role == IR_ROLE_WEIGHT && parameter->output >= 0)
            join_weight(&self->weight[rules->alias[self->roles->outputs[parameter->output]]], k);
    }
    for (int32_t i = rules->entry_count - 1; i >= 0; i--) {
        if (!options->live[i] || is_scalar(self, i) || self->context->replica_of[i] >= 0) continue;
        for (int32_t k = options->first_operand[i]; k < options->first_operand[i + 1]; k++)
            join_weight(&self->weight[options->operands[k]], self->weight[i]);
    }
}

typedef struct WeightBytes {
    int32_t parameter;
    double bytes;
} WeightBytes;

static int compare_bytes(const void *a, const void *b) {
    const WeightBytes *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->parameter - y->parameter;
}

/* Divides the weights between the stages. */
static AmStatus share_weights(ReplicaSeeder *self, Arena *arena, int32_t stages, AmError *error) {
    WeightBytes *weights = ARENA_ARRAY(arena, WeightBytes, self->roles->parameter_count + 1);
    double *held = ARENA_ARRAY(arena, double, stages);
    int32_t count = 0;
    if (arena->failed) return am_fail_memory(error, self->roles->parameter_count);
    for (int32_t k = 0; k < self->roles->parameter_count; k++) {
        const IrParameter *parameter = &self->roles->parameters[k];
        self->seeds->owner[k] = parameter->role == IR_ROLE_DATA ? 0 : -1;
        if (parameter->role == IR_ROLE_WEIGHT)
            weights[count++] =
                (WeightBytes){k, (double)ir_shape_bytes(plan_context_parameter_shape(self->context, k))};
    }
    qsort(weights, (size_t)count, sizeof *weights, compare_bytes);
    for (int32_t w = 0; w < count; w++) {
        int32_t least = 0;
        for (int32_t s = 1; s < stages; s++)
            if (held[s] < held[least]) least = s;
        held[least] += weights[w].bytes;
        self->seeds->owner[weights[w].parameter] = least;
    }
    return AM_OK;
}

/* Returns the stage of the largest operand that has one, or -1. */
static int32_t operand_home(const ReplicaSeeder *self, int32_t i) {
    const SplitOptions *options = self->options;
    double most = -1;
    int32_t found = -1;
    for (int32_t k = options->first_operand[i]; k < options->first_operand[i + 1]; k++) {
        int32_t o = options->operands[k];
        if (self->home[o] < 0 || options->bytes[o] <= most) continue;
        most = options->bytes[o];
        found = self->home[o];
    }
    return found;
}

/* Returns whether i is a scalar that takes only scalars that no replica computes. */
static bool is_open_scalar(const ReplicaSeeder *self, int32_t i) {
    if (!is_scalar(self, i)) return false;
    for (int32_t k = self->options->first_operand[i]; k < self->options->first_operand[i + 1]; k++)
        if (!is_scalar(self, self->options->operands[k])) return false;
    return true;
}

static void find_homes(ReplicaSeeder *self) {
    const PlanContext *context = self->context;
    for (int32_t i = 0; i < self->count; i++) {
        int32_t weight = self->weight[i], parameter = self->parameter_of[i];
        self->home[i] = -1;
        if (!self->options->live[i] || context->rules->is_free[i]) continue;
        if (context->replica_of[i] >= 0) self->home[i] = context->replica_of[i];
        else if (parameter >= 0 && self->seeds->owner[parameter] >= 0)
            self->home[i] = self->seeds->owner[parameter];
        else if (weight >= 0) self->home[i] = self->seeds->owner[weight];
        else if (is_open_scalar(self, i)) self->seeds->is_cheap[i] = true;
        else self->home[i] = operand_home(self, i);
    }
}

AmStatus stages_seed_replicas(StageSeeds *seeds, Arena *arena, const PlanContext *context, const Plan *plan,
                              AmError *error) {
    int32_t count = context->rules->count, parameters = context->roles->parameter_count;
    *seeds = (StageSeeds){.held = ARENA_ARRAY(arena, StageSet, count + 1),
                          .allowed = ARENA_ARRAY(arena, StageSet, count + 1),
                          .is_cheap = ARENA_ARRAY(arena, bool, count + 1),
                          .owner = ARENA_ARRAY(arena, int32_t, parameters + 1)};
    ReplicaSeeder self = {.context = context,
                          .options = context->split_options,
                          .roles = context->roles,
                          .seeds = seeds,
                          .count = count,
                          .parameter_of = ARENA_ARRAY(arena, int32_t, count + 1),
                          .weight = ARENA_ARRAY(arena, int32_t, count + 1),
                          .home = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) self.parameter_of[i] = -1;
    for (int32_t k = 0; k < parameters; k++) self.parameter_of[context->roles->parameters[k].instruction] = k;
    find_weights(&self);
    TRY(share_weights(&self, arena, plan->stage_count, error));
    find_homes(&self);
    for (int32_t i = 0; i < count; i++) {
        IrOpcode opcode = plan_context_instruction(context, i)->opcode;
        bool is_computed = context->split_options->live[i] && !stages_is_transparent(context, i) &&
                           context->rules->loop_of[i] < 0 && opcode != IR_PARAMETER &&
                           opcode != IR_GET_TUPLE_ELEMENT;
        if (!is_computed || seeds->is_cheap[i]) continue;
        if (self.home[i] >= 0) seeds->held[i] = stage_bit(self.home[i]);
        else if (i < context->rules->entry_count) seeds->held[i] = stage_bit(0);
        else seeds->is_cheap[i] = true;
    }
    return AM_OK;
}
