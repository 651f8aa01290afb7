/* Seconds of computing by label; see additive_computing.h. None is ever more than a lowered program has. */
#include "cost/additive_computing.h"

#include <math.h>

#include "cost/operator.h"
#include "ir/flops.h"

static const IrInstruction *instruction_of(const AdditiveComputing *self, int32_t i) {
    return &self->model->context->canonical->instructions[i];
}

static const FactorRule *rule_of(const AdditiveComputing *self, int32_t i) {
    return &self->model->context->rules->rules[i];
}

/* In how many parts a slot of instruction i lies. */
static double ways_of(const AdditiveComputing *self, int32_t i, int32_t label, int32_t slot) {
    double ways = 1;
    for (int32_t axis = 0; axis < BOX_AXES; axis++) {
        AdditiveOption option = additive_option(&self->parts[i], label, axis);
        if (option.factor >= 0 && rule_of(self, i)->factors[option.factor].dimension[slot] >= 0)
            ways *= self->model->boxes->sizes[axis];
    }
    return ways;
}

/* Bytes of a slot on a device. */
static double local_bytes(const AdditiveComputing *self, int32_t i, int32_t label, int32_t slot) {
    double bytes = (double)ir_shape_bytes(rules_slot_shape(self->model->context->rules, i, slot));
    return bytes / ways_of(self, i, label, slot);
}

static bool takes_partial(const AdditiveComputing *self, int32_t i, int32_t label) {
    return additive_option(&self->parts[i], label, 0).partial ||
           additive_option(&self->parts[i], label, 1).partial;
}

/* Whether a label splits so that parts read ranges of what others have. */
static bool has_halo(const AdditiveComputing *self, int32_t i, int32_t label) {
    for (int32_t axis = 0; axis < BOX_AXES; axis++) {
        int8_t factor = additive_option(&self->parts[i], label, axis).factor;
        if (factor >= 0 && rule_of(self, i)->factors[factor].halo) return true;
    }
    return false;
}

static double moving_seconds(const AdditiveComputing *self, double bytes) {
    return operator_seconds(&(OperatorWork){.bytes = bytes, .unit = OPERATOR_VECTOR, .is_run = true},
                            self->type);
}

/* A product, by its local size. */
static double product_seconds(const AdditiveComputing *self, int32_t i, int32_t label, double flops) {
    const IrInstruction *instruction = instruction_of(self, i);
    Dtype type = instruction_of(self, instruction->operands[0])->shape.type;
    bool is_dot = instruction->opcode == IR_DOT;
    double bytes = 0, ways = 1;
    for (int32_t slot = 0; slot <= rule_of(self, i)->operand_count; slot++)
        bytes += local_bytes(self, i, label, slot);
    for (int32_t axis = 0; axis < BOX_AXES; axis++)
        if (additive_option(&self->parts[i], label, axis).factor >= 0)
            ways *= self->model->boxes->sizes[axis];
    OperatorWork work = {.flops = flops / ways,
                         .bytes = bytes,
                         .unit = is_dot ? OPERATOR_DOT : OPERATOR_CONVOLUTION,
                         .type = type,
                         .is_run = true};
    return operator_seconds(&work, self->type);
}

/* A reduction that is none of sizes 1 alone. */
static double reduction_seconds(const AdditiveComputing *self, int32_t i, int32_t label) {
    return moving_seconds(self, local_bytes(self, i, label, 0) +
                                    local_bytes(self, i, label, rule_of(self, i)->operand_count));
}

static double best_memory_rate(const ClusterDeviceType *type) {
    double best = type->memory.count > 0 ? 0 : 1;
    for (int32_t k = 0; k < type->memory.count; k++) best = fmax(best, type->memory.fractions[k]);
    return type->memory_bytes_per_second * best;
}

/* Whether a label's operator may run nowhere, or as part of a product. */
static bool vanishes(const AdditiveComputing *self, int32_t i, int32_t label) {
    const PlanContext *context = self->model->context;
    Dtype type = instruction_of(self, i)->shape.type;
    if (type == DTYPE_F32 && separation_may_be_taken(context, i)) return true;
    return takes_partial(self, i, label) && separation_may_vanish(context, i);
}

/* What an element-wise operator moves in every fusion that it may be in; launches are not counted here. */
static double fused_seconds(const AdditiveComputing *self, int32_t i, int32_t label) {
    const Choices *choices = self->model->context->choices;
    int32_t first = choices->first_operand[i], result = rule_of(self, i)->operand_count;
    double bytes = 0;
    if (instruction_of(self, i)->shape.rank == 0 || vanishes(self, i, label)) return 0;
    for (int32_t k = 0; first + k < choices->first_operand[i + 1]; k++)
        if (self->separation->is_paid[first + k])
            bytes += (double)self->separation->share[first + k] * local_bytes(self, i, label, k);
    if (self->parts[i].is_written) bytes += local_bytes(self, i, label, result);
    return bytes / best_memory_rate(self->type);
}

/* What moves all that it takes and makes, in a step of its own, and is no view. Where its parts read ranges
 * of what others have, little may be read: an operand's range may be empty. */
static double moved_seconds(const AdditiveComputing *self, int32_t i, int32_t label) {
    int32_t result = rule_of(self, i)->operand_count;
    double bytes = local_bytes(self, i, label, result);
    bool reads_a_part = instruction_of(self, i)->opcode == IR_GATHER;
    if (reads_a_part) bytes *= 2;
    for (int32_t k = reads_a_part; k < result && !has_halo(self, i, label); k++)
        bytes += local_bytes(self, i, label, k);
    return moving_seconds(self, bytes);
}

typedef enum Kind { NO_KIND, PRODUCT, REDUCTION, FUSED, MOVED } Kind;

static Kind kind_of(const AdditiveComputing *self, int32_t i) {
    const IrModule *module = self->model->context->canonical;
    if (separation_is_element_wise(module, i)) return FUSED;
    switch (module->instructions[i].opcode) {
    case IR_DOT:
    case IR_CONVOLUTION: return PRODUCT;
    case IR_REDUCE: return separation_reduces_ones(module, i) ? NO_KIND : REDUCTION;
    case IR_CONCATENATE:
    case IR_PAD:
    case IR_REVERSE:
    case IR_GATHER: return MOVED;
    default: return NO_KIND;
    }
}

static double label_seconds(const AdditiveComputing *self, int32_t i, int32_t label, Kind kind,
                            double flops) {
    switch (kind) {
    case PRODUCT: return product_seconds(self, i, label, flops);
    case REDUCTION: return reduction_seconds(self, i, label);
    case FUSED: return fused_seconds(self, i, label);
    case MOVED: return moved_seconds(self, i, label);
    default: return 0;
    }
}

/* Launches that no label saves, at the operator for which they are counted, or, if that is made where it is
 * used, at one for which it is made: [node], times runs. */
static void count_launches(const AdditiveComputing *self, double *launches) {
    const Choices *choices = self->model->context->choices;
    for (int32_t i = 0; i < choices->count; i++) {
        int32_t at = i;
        if (self->separation->launches[i] == 0) continue;
        while (at >= 0 && self->model->context->rules->on_demand[at]) at = choices->user[at];
        if (at >= 0 && self->parts[at].operator_node >= 0)
            launches[self->parts[at].operator_node] += self->separation->launches[i] * self->times[i];
    }
}

AmStatus additive_set_seconds(const AdditiveComputing *self, Arena *arena, AmError *error) {
    const AdditiveModel *model = self->model;
    double *launches = ARENA_ARRAY(arena, double, model->node_count + 1);
    if (!launches) return am_fail_memory(error, model->node_count);
    count_launches(self, launches);
    for (int32_t n = 0; n < model->node_count; n++) {
        AdditiveNode *node = &model->nodes[n];
        int32_t i = node->instruction;
        Kind kind = node->is_tensor ? NO_KIND : kind_of(self, i);
        if (kind == NO_KIND && launches[n] == 0) continue;
        float *seconds = ARENA_ARRAY(arena, float, node->label_count);
        if (!seconds) return am_fail_memory(error, node->label_count);
        double flops = kind == PRODUCT ? ir_instruction_flops(model->context->canonical, i, arena) : 0;
        for (int32_t label = 0; label < node->label_count; label++)
            seconds[label] = (float)(label_seconds(self, i, label, kind, flops) * self->times[i] +
                                     launches[n] * self->type->kernel_launch_seconds);
        node->seconds = seconds;
    }
    return AM_OK;
}
