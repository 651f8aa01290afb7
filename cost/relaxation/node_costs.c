/* Seconds of computing for each label of an operator in the sharding graph. None is more than that of a
 * lowered program. */
#include "cost/relaxation/node_costs.h"

#include <math.h>

#include "cost/operator/operator.h"
#include "ir/analysis/flops.h"

static const FactorRule *rule_of(const ShardingGraphComputing *self, int32_t i) {
    return &self->context->rules->rules[i];
}

/* Returns the number of parts of a slot of instruction i. */
static double ways_of(const ShardingGraphComputing *self, int32_t i, int32_t label, int32_t slot) {
    double ways = 1;
    for (int32_t axis = 0; axis < RESHARD_AXES; axis++) {
        ShardingGraphOption option = sharding_graph_option(&self->parts[i], label, axis);
        if (option.factor >= 0 && rule_of(self, i)->factors[option.factor].dimension[slot] >= 0)
            ways *= self->reshards->sizes[axis];
    }
    return ways;
}

/* Returns the bytes of a slot on a device. */
static double local_bytes(const ShardingGraphComputing *self, int32_t i, int32_t label, int32_t slot) {
    double bytes = (double)ir_shape_bytes(rules_slot_shape(self->context->rules, i, slot));
    return bytes / ways_of(self, i, label, slot);
}

/* Returns whether a label splits a dimension so that shards read ranges of other shards. */
static bool has_halo(const ShardingGraphComputing *self, int32_t i, int32_t label) {
    for (int32_t axis = 0; axis < RESHARD_AXES; axis++) {
        int8_t factor = sharding_graph_option(&self->parts[i], label, axis).factor;
        if (factor >= 0 && rule_of(self, i)->factors[factor].halo) return true;
    }
    return false;
}

static double moving_seconds(const ShardingGraphComputing *self, double bytes) {
    return operator_seconds(&(OperatorWork){.bytes = bytes, .unit = OPERATOR_VECTOR, .is_run = true},
                            self->type);
}

/* Returns the seconds of a product, by its local size. */
static double product_seconds(const ShardingGraphComputing *self, int32_t i, int32_t label, double flops) {
    const IrInstruction *instruction = ir_instruction(self->context->canonical, i);
    Dtype type = ir_instruction(self->context->canonical, instruction->operands[0])->shape.type;
    double bytes = 0, ways = 1;
    for (int32_t slot = 0; slot <= rule_of(self, i)->operand_count; slot++)
        bytes += local_bytes(self, i, label, slot);
    for (int32_t axis = 0; axis < RESHARD_AXES; axis++)
        if (sharding_graph_option(&self->parts[i], label, axis).factor >= 0)
            ways *= self->reshards->sizes[axis];
    OperatorWork work = {.flops = flops / ways,
                         .bytes = bytes,
                         .unit = operator_unit(instruction->opcode),
                         .type = type,
                         .is_run = true};
    return operator_seconds(&work, self->type);
}

/* Returns the seconds of fused attention, by its local size. No factor splits keys. */
static double attention_seconds(const ShardingGraphComputing *self, int32_t i, int32_t label,
                                const AttentionWork *whole) {
    double ways = 1;
    for (int32_t axis = 0; axis < RESHARD_AXES; axis++)
        if (sharding_graph_option(&self->parts[i], label, axis).factor >= 0)
            ways *= self->reshards->sizes[axis];
    OperatorWork work = {.flops = whole->flops / ways,
                         .unit = OPERATOR_DOT,
                         .type = whole->type,
                         .attention = *whole,
                         .is_run = true};
    work.attention.flops /= ways;
    work.attention.rows /= ways;
    for (int32_t slot = 0; slot < rule_of(self, i)->operand_count + rule_of(self, i)->result_count; slot++)
        work.bytes += local_bytes(self, i, label, slot);
    return operator_seconds(&work, self->type);
}

/* Returns the seconds of a reduction over more than dimensions of size 1. If each device has one element of
 * a sum, the reduction is a view. */
static double reduction_seconds(const ShardingGraphComputing *self, int32_t i, int32_t label) {
    double read = local_bytes(self, i, label, 0);
    double written = local_bytes(self, i, label, rule_of(self, i)->operand_count);
    return read > written ? moving_seconds(self, read + written) : 0;
}

/* Returns the best rate of the memory for as many bytes, or less. */
static double memory_rate(const ClusterDeviceType *type, double bytes) {
    const ClusterCurve *curve = &type->memory;
    double best = cluster_efficiency(curve, bytes);
    double size = curve->count == 0 ? 0 : bytes < curve->most ? log2(bytes) : INFINITY;
    for (int32_t k = 0; k < curve->count && curve->log_sizes[k] < size; k++)
        best = fmax(best, curve->fractions[k]);
    return type->memory_bytes_per_second * best;
}

/* Returns whether a label's operator may run nowhere, or as part of a product. */
static bool vanishes(const ShardingGraphComputing *self, int32_t i, int32_t label) {
    const PlanContext *context = self->context;
    Dtype type = ir_instruction(self->context->canonical, i)->shape.type;
    if (type == DTYPE_F32 && fusion_groups_may_be_taken(context, i)) return true;
    return (sharding_graph_option(&self->parts[i], label, 0).partial ||
            sharding_graph_option(&self->parts[i], label, 1).partial) &&
           fusion_groups_may_vanish(context, i);
}

/* Returns the extra bytes of a 16-bit sum with partial operands. Its addends are f32. Values computed from
 * them, which a later operator reads, are f32 too, in any number of parts. The sum pays its own share, at
 * most half of that; the later reader pays the other half. */
static double read_on_bytes(const ShardingGraphComputing *self, int32_t i) {
    const PlanContext *context = self->context;
    const IrShape *shape = &ir_instruction(self->context->canonical, i)->shape;
    int32_t first = context->split_options->first_operand[i], paid = 0;
    double ways = 1;
    for (int32_t k = first; k < context->split_options->first_operand[i + 1]; k++)
        paid += self->fusion_groups->is_paid[k];
    for (int32_t axis = 0; axis < self->reshards->axis_count; axis++) ways *= self->reshards->sizes[axis];
    bool is_half_sum = fusion_groups_may_be_taken(context, i) && shape->type != DTYPE_F32;
    return is_half_sum && self->fusion_groups->is_read_on[i] && paid > 0
               ? (double)ir_shape_bytes(shape) / ways
               : 0;
}

/* Returns the seconds of the bytes that an element-wise operator moves in every possible fusion; launches
 * are not included. */
static double fused_seconds(const ShardingGraphComputing *self, int32_t i, int32_t label, double width) {
    const SplitOptions *split_options = self->context->split_options;
    int32_t first = split_options->first_operand[i], result = rule_of(self, i)->operand_count;
    double bytes = 0;
    if (ir_instruction(self->context->canonical, i)->shape.rank == 0) return 0;
    bool is_there = !vanishes(self, i, label);
    if (!is_there) bytes = read_on_bytes(self, i);
    for (int32_t k = 0; is_there && first + k < split_options->first_operand[i + 1]; k++)
        if (self->fusion_groups->is_paid[first + k])
            bytes += (double)self->fusion_groups->share[first + k] * local_bytes(self, i, label, k);
    if (is_there && self->parts[i].is_written) bytes += local_bytes(self, i, label, result);
    if (bytes == 0) return 0;
    double elements = (double)ir_shape_elements(&ir_instruction(self->context->canonical, i)->shape) /
                      ways_of(self, i, label, result);
    return bytes / memory_rate(self->type, elements * width);
}

/* Returns whether operand k is a number in every place that is written out for this operator alone. */
static bool is_filled_for(const ShardingGraphComputing *self, int32_t i, int32_t k) {
    const PlanContext *context = self->context;
    int32_t source = context->split_options->operands[context->split_options->first_operand[i] + k];
    const IrInstruction *instruction = ir_instruction(self->context->canonical, source);
    return context->rules->on_demand[source] && instruction->opcode == IR_BROADCAST &&
           context->split_options->uses[source] == 1 && instruction->shape.rank > 0 &&
           ir_instruction(self->context->canonical, instruction->operands[0])->shape.rank == 0;
}

/* Returns the seconds of an operator that moves all its operands and results in a step of its own and returns
 * no view. If its shards read ranges of other shards, the range of an operand may be empty; those of a
 * concatenation have the size of its shard. */
static double moved_seconds(const ShardingGraphComputing *self, int32_t i, int32_t label) {
    int32_t result = rule_of(self, i)->operand_count;
    double bytes = local_bytes(self, i, label, result);
    IrOpcode opcode = ir_instruction(self->context->canonical, i)->opcode;
    bool reads_as_much = opcode == IR_GATHER || (opcode == IR_CONCATENATE && has_halo(self, i, label));
    if (reads_as_much) bytes *= 2;
    double filled = 0;
    for (int32_t k = reads_as_much; k < result && !has_halo(self, i, label); k++) {
        bytes += local_bytes(self, i, label, k);
        if (is_filled_for(self, i, k)) filled += moving_seconds(self, local_bytes(self, i, label, k));
    }
    return moving_seconds(self, bytes) + filled;
}

/* ---- how much a fusion may move ---- */

static double width_of(const ShardingGraphComputing *self, int32_t i) {
    const IrShape *shape = split_options_array_shape(ir_instruction(self->context->canonical, i));
    double bytes = shape->rank > 0 ? (double)dtype_bytes(shape->type) : 0;
    return bytes == 2 ? 4 : bytes; /* parts of 16-bit sums are in f32 */
}

/* Steps per doubling at which widths are distinguished, so that nearly equal layers are folded. */
enum { WIDTH_STEPS = 2 };

/* Finds the most bytes of an element that a fusion of each group reads and writes: [group]. NULL: no
 * memory. */
static double *find_widths(const ShardingGraphComputing *self, Arena *arena) {
    const PlanContext *context = self->context;
    const SplitOptions *split_options = context->split_options;
    /* The widest result of an element-wise operator. A recomputed value reads less than twice the bytes
     * of such a result (choose_recomputed() of lowering/passes/fuse.c). */
    double widest = 0;
    for (int32_t n = 0; n < split_options->count; n++)
        if (self->fusion_groups->group[n] >= 0) widest = fmax(widest, width_of(self, n));
    double *width = ARENA_ARRAY(arena, double, split_options->count + 1), recomputed = 2 * widest;
    int32_t *read_by =
        ARENA_ARRAY(arena, int32_t, split_options->count + 1); /* the last group that read the value */
    if (arena->failed) return NULL;
    for (int32_t i = 0; i < split_options->count; i++) {
        int32_t group = self->fusion_groups->group[i];
        if (group < 0) continue;
        width[group] += width_of(self, i);
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            int32_t source = split_options->operands[k];
            if (self->fusion_groups->group[source] == group || read_by[source] == group + 1) continue;
            read_by[source] = group + 1;
            width[group] += self->fusion_groups->group[source] >= 0 ? recomputed : width_of(self, source);
        }
    }
    for (int32_t i = 0; i < split_options->count; i++)
        if (width[i] > 0) width[i] = exp2(ceil(log2(width[i]) * WIDTH_STEPS) / WIDTH_STEPS);
    return width;
}

/* ---- nodes ---- */

typedef enum Kind { NO_KIND, PRODUCT, ATTENTION, REDUCTION, FUSED, MOVED } Kind;

static Kind kind_of(const ShardingGraphComputing *self, int32_t i) {
    const IrModule *module = self->context->canonical;
    if (fusion_groups_is_element_wise(module, i)) return FUSED;
    if (ir_is_product(module->instructions[i].opcode)) return PRODUCT;
    switch (module->instructions[i].opcode) {
    case IR_FUSION: return plan_context_primary(self->context)->unfused ? ATTENTION : NO_KIND;
    case IR_REDUCE: return fusion_groups_reduces_ones(module, i) ? NO_KIND : REDUCTION;
    case IR_CONCATENATE:
    case IR_PAD:
    case IR_REVERSE:
    case IR_GATHER:
    case IR_SCATTER: return module->instructions[i].shape.type == DTYPE_TUPLE ? NO_KIND : MOVED;
    default: return NO_KIND;
    }
}

/* Returns the seconds of a label. `size`: the FLOPs of a product, the width of an element-wise operator's
 * group. */
static double label_seconds(const ShardingGraphComputing *self, int32_t i, int32_t label, Kind kind,
                            double size, const AttentionWork *attention) {
    switch (kind) {
    case ATTENTION: return attention_seconds(self, i, label, attention);
    case PRODUCT: return product_seconds(self, i, label, size);
    case REDUCTION: return reduction_seconds(self, i, label);
    case FUSED: return fused_seconds(self, i, label, size);
    case MOVED: return moved_seconds(self, i, label);
    default: return 0;
    }
}

AmStatus sharding_graph_set_seconds(const ShardingGraphComputing *self, Arena *arena, AmError *error) {
    const ShardingGraph *graph = self->graph;
    double *launches = ARENA_ARRAY(arena, double, graph->node_count + 1);
    const double *width = find_widths(self, arena);
    if (arena->failed) return am_fail_memory(error, graph->context->split_options->count);
    /* Launches that no label saves, at the operator for which they are counted, or, if that is made where it
     * is used, at one for which it is made. */
    const SplitOptions *split_options = graph->context->split_options;
    for (int32_t i = 0; i < split_options->count; i++) {
        int32_t at = i;
        if (self->fusion_groups->launches[i] == 0) continue;
        while (at >= 0 && graph->context->rules->on_demand[at]) at = split_options->user[at];
        if (at < 0 || self->parts[at].operator_node < 0) continue;
        ShardingGraphNode *node = &graph->nodes[self->parts[at].operator_node];
        double added = self->fusion_groups->launches[i] * self->times[i];
        launches[self->parts[at].operator_node] += added;
        if (at == i && ir_instruction(graph->context->canonical, i)->opcode != IR_IOTA)
            node->launches += added;
    }
    for (int32_t n = 0; n < graph->node_count; n++) {
        ShardingGraphNode *node = &graph->nodes[n];
        int32_t i = node->instruction;
        Kind kind = node->is_tensor ? NO_KIND : kind_of(self, i);
        if (kind == NO_KIND && launches[n] == 0) continue;
        float *seconds = ARENA_ARRAY(arena, float, node->label_count);
        if (!seconds) return am_fail_memory(error, node->label_count);
        double size = kind == PRODUCT ? ir_instruction_flops(graph->context->canonical, i, arena)
                      : kind == FUSED ? width[self->fusion_groups->group[i]]
                                      : 0;
        double launching = launches[n] * self->type->kernel_launch_seconds;
        AttentionWork attention;
        if (kind == ATTENTION) attention_work_unsharded(&attention, graph->context->canonical, i);
        for (int32_t label = 0; label < node->label_count; label++)
            seconds[label] =
                (float)(label_seconds(self, i, label, kind, size, &attention) * self->times[i] + launching);
        node->seconds = seconds;
    }
    return AM_OK;
}
