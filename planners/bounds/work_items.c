/* Lists the items of work of a step, from the sharding graph's operators on one device.
 *
 * Weights are followed from their update to the products that read them, which gives groups. The longest path
 * of products in FLOPs is the spine of a pass, and gives every item its places.
 */
#include "planners/bounds/work_items.h"

#include <math.h>

#include "cost/relaxation/fusion_groups.h"
#include "cost/relaxation/graph_parts.h"
#include "cost/relaxation/sharding_graph.h"
#include "ir/analysis/flops.h"
#include "ir/dataflow.h"

/* Weights to whose update a value leads; a place after all others. */
enum { NO_WEIGHT = -1, SEVERAL_WEIGHTS = -2, NEVER = INT32_MAX };

/* An item between products of the spine that are further apart gets no place. */
enum { LONGEST_SPAN = 8 };

typedef struct WorkFinder {
    BoundWork *work;
    Arena *arena;  /* of `work` */
    Arena scratch; /* of the tables below and the graph, which is many times larger than the items */
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    const IrRoles *roles;
    /* -- of the whole step -- */
    bool *is_batch;        /* [class]: the examples */
    int32_t *parameter_of; /* [instruction], or -1 */
    int32_t *weight;     /* [instruction]: the only weight to whose update it leads, NO_ or SEVERAL_WEIGHTS */
    int32_t *group_of;   /* [parameter], or -1 */
    bool *has_gradients; /* [instruction]: it depends on the iterations of the backward pass */
    int32_t *item_of;    /* [instruction], or -1 */
    /* -- of one pass, by instruction -- */
    double *path_flops;     /* of the longest path of products that ends in it */
    int32_t *path_operand;  /* its operand on that path, or -1 */
    int32_t *place;         /* on the spine, or -1 */
    int32_t *after, *until; /* as in BoundItem */
    /* -- of the forward pass, by instruction -- */
    int32_t *last_place;  /* the last place at or before it in the module's order, or -1 */
    int32_t *first_place; /* its stage is not before that of this place; -1: not known, NEVER: any stage */
} WorkFinder;

static bool is_product(const WorkFinder *self, int32_t i) {
    return ir_is_product(ir_instruction(self->module, i)->opcode);
}

static bool is_backward(const WorkFinder *self, int32_t i) {
    return self->roles->phases[i] == IR_PHASE_BACKWARD;
}

/* Returns whether the module itself recomputes the value: in iterations of the backward pass, without a
 * dependency on gradients. */
static bool is_recomputed(const WorkFinder *self, int32_t i) {
    return self->roles->phases[i] == IR_PHASE_RECOMPUTED;
}

static bool is_in_iterations(const WorkFinder *self, int32_t i) {
    bool is_first = self->roles->phases[i] == IR_PHASE_FORWARD;
    return self->split_options->live[i] && (is_first || is_backward(self, i) || is_recomputed(self, i));
}

/* Returns whether an operator has a dimension of the examples. */
static bool has_batch(const WorkFinder *self, int32_t i) {
    const SplitOptions *split_options = self->split_options;
    for (int32_t k = split_options->first_factor[i]; k < split_options->first_factor[i + 1]; k++)
        if (split_options->factors[k].class_index >= 0 &&
            self->is_batch[split_options->factors[k].class_index])
            return true;
    return false;
}

/* ---- groups ---- */

/* Adds a weight to those of a value. */
static void add_weight(int32_t *weight, int32_t other) {
    if (other == NO_WEIGHT || *weight == other) return;
    *weight = *weight == NO_WEIGHT ? other : SEVERAL_WEIGHTS;
}

/* Finds the weight to whose update each value of the backward pass leads, from users to operands. */
static void find_weights(WorkFinder *self) {
    int32_t count = self->rules->entry_count;
    for (int32_t i = 0; i < count; i++) self->weight[i] = NO_WEIGHT;
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        const IrParameter *parameter = &self->roles->parameters[p];
        if (parameter->role != IR_ROLE_WEIGHT || parameter->output < 0) continue;
        add_weight(&self->weight[self->rules->alias[self->roles->outputs[parameter->output]]], p);
    }
    for (int32_t i = count - 1; i >= 0; i--) {
        if (!self->split_options->live[i] || ir_phase_is_with_forward(self->roles->phases[i]) ||
            ir_is_scalar(&ir_instruction(self->module, i)->shape))
            continue;
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++)
            add_weight(&self->weight[split_options_operand(self->split_options, i, k)], self->weight[i]);
    }
}

/* Returns the weight that operand k of a product is, or NO_WEIGHT. */
static int32_t weight_read(const WorkFinder *self, int32_t i, int32_t k) {
    int32_t value = split_options_operand(self->split_options, i, k);
    while (split_options_operand_count(self->split_options, value) == 1 &&
           ir_opcode_has(ir_instruction(self->module, value)->opcode, FACT_MOVES))
        value = split_options_operand(self->split_options, value, 0);
    int32_t parameter = self->parameter_of[value];
    if (parameter >= 0 && self->roles->parameters[parameter].role == IR_ROLE_WEIGHT) return parameter;
    return NO_WEIGHT;
}

/* Makes a group of each weight that exactly one forward product reads: it is on the stage of that product. */
static AmStatus find_groups(WorkFinder *self, AmError *error) {
    BoundWork *work = self->work;
    int32_t count = self->rules->entry_count, parameters = self->roles->parameter_count;
    int32_t *readers = ARENA_ARRAY(&self->scratch, int32_t, parameters + 1);
    self->group_of = ARENA_ARRAY(&self->scratch, int32_t, parameters + 1);
    if (self->scratch.failed) return am_fail_memory(error, parameters);
    for (int32_t i = 0; i < count; i++) {
        bool is_again = is_backward(self, i) || is_recomputed(self, i);
        if (!is_product(self, i) || !self->split_options->live[i] || is_again) continue;
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
            int32_t weight = weight_read(self, i, k);
            if (weight >= 0) readers[weight]++;
        }
    }
    for (int32_t p = 0; p < parameters; p++) self->group_of[p] = readers[p] == 1 ? work->group_count++ : -1;
    return AM_OK;
}

/* Returns the group of a product, or -1. Sets `*is_sum` if the product is the gradient of the group's weight,
 * a sum over the batch. */
static int32_t find_group(const WorkFinder *self, int32_t i, bool *is_sum) {
    int32_t led = is_backward(self, i) ? self->weight[i] : NO_WEIGHT;
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
        int32_t weight = weight_read(self, i, k);
        if (weight >= 0 && self->group_of[weight] >= 0) return self->group_of[weight];
    }
    if (led < 0 || self->group_of[led] < 0) return -1;
    const IrShape *shape = &ir_instruction(self->module, self->roles->parameters[led].instruction)->shape;
    *is_sum = ir_shape_elements(shape) == ir_shape_elements(&ir_instruction(self->module, i)->shape);
    return self->group_of[led];
}

/* ---- items ---- */

static double product_flops(const WorkFinder *self, int32_t i) {
    const IrInstruction *product = ir_instruction(self->module, i);
    IrShape operands[2];
    for (int32_t k = 0; k < 2; k++) operands[k] = ir_instruction(self->module, product->operands[k])->shape;
    return ir_flops(self->module, product, operands, &product->shape);
}

double bound_least_seconds(const ShardingGraphNode *node) {
    double least = INFINITY;
    for (int32_t label = 0; label < node->label_count; label++) least = fmin(least, node->seconds[label]);
    return least;
}

/* Returns whether the instruction updates weights and depends on gradients. */
static bool is_update(const WorkFinder *self, int32_t i) {
    return self->split_options->live[i] && self->has_gradients[i] &&
           self->roles->phases[i] == IR_PHASE_OPTIMIZER;
}

static void add_item(WorkFinder *self, const ShardingGraphNode *node) {
    BoundWork *work = self->work;
    int32_t i = node->instruction;
    bool is_sum = false;
    IrOpcode opcode = ir_instruction(self->module, i)->opcode;
    bool is_after = is_update(self, i);
    if (!node->seconds || !(is_after || (is_in_iterations(self, i) && has_batch(self, i)))) return;
    ARENA_RESERVE(self->arena, work->items, work->item_count, work->item_capacity);
    if (self->arena->failed) return;
    BoundItem *item = &work->items[work->item_count++];
    *item = (BoundItem){.group = -1,
                        .is_backward = is_after || is_recomputed(self, i) || is_backward(self, i),
                        .seconds = bound_least_seconds(node),
                        .launches = node->launches,
                        .first = -1,
                        .end = -1};
    if (i >= self->rules->entry_count) return;
    if (is_after) {
        item->order = BOUND_AFTER;
        if (self->weight[i] >= 0) item->group = self->group_of[self->weight[i]];
        return;
    }
    if (!is_recomputed(self, i)) { /* the products of the spine between which, or after which, it is */
        item->after = self->after[i];
        item->until = self->until[i];
        if (item->after >= 0 && item->until == NEVER) {
            item->order = BOUND_BEHIND;
            item->until = item->after + 1;
        } else if (item->after >= 0 && item->until - item->after <= LONGEST_SPAN) {
            item->order = item->until == item->after ? BOUND_SPINE : BOUND_BETWEEN;
        }
    }
    self->item_of[i] = work->item_count - 1;
    if (!is_product(self, i) && opcode != IR_REDUCE) return;
    if (!item->is_backward && self->last_place[i] >= 0) {
        item->first = self->last_place[i];
        item->end = item->first + (self->place[i] < 0);
    }
    item->work = (OperatorWork){.unit = OPERATOR_VECTOR, .is_run = true};
    /* A product moves all operands and the result, others the first operand and the result. */
    int32_t operands = self->rules->rules[i].operand_count;
    for (int32_t slot = 0; slot <= operands; slot++)
        if (slot == 0 || slot == operands || is_product(self, i))
            item->work.bytes += (double)ir_shape_bytes(rules_slot_shape(self->rules, i, slot));
    if (opcode == IR_REDUCE) return;
    item->work.flops = product_flops(self, i);
    item->work.type = ir_instruction(self->module, ir_instruction(self->module, i)->operands[0])->shape.type;
    item->work.unit = operator_unit(opcode);
    if (!is_recomputed(self, i)) item->group = find_group(self, i, &is_sum);
    if (is_sum) item->sum_bytes = (double)ir_shape_bytes(&ir_instruction(self->module, i)->shape);
}

/* ---- spines ---- */

/* Returns whether an instruction may be a product of the spine of a pass. */
static bool is_on_path(const WorkFinder *self, int32_t i, bool backward) {
    return is_product(self, i) && is_in_iterations(self, i) && !is_recomputed(self, i) &&
           is_backward(self, i) == backward && has_batch(self, i);
}

/* Finds the spine of a pass, and the places of its products; returns their number. */
static int32_t find_spine(WorkFinder *self, bool backward) {
    int32_t count = self->rules->entry_count, end = -1, length = 0;
    for (int32_t i = 0; i < count; i++) {
        self->path_flops[i] = 0;
        self->path_operand[i] = self->place[i] = -1;
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
            int32_t operand = split_options_operand(self->split_options, i, k);
            if (self->path_flops[operand] <= self->path_flops[i]) continue;
            self->path_flops[i] = self->path_flops[operand];
            self->path_operand[i] = operand;
        }
        if (!is_on_path(self, i, backward)) continue;
        self->path_flops[i] += product_flops(self, i);
        if (end < 0 || self->path_flops[i] > self->path_flops[end]) end = i;
    }
    for (int32_t i = end; i >= 0; i = self->path_operand[i]) length += is_on_path(self, i, backward);
    for (int32_t i = end, place = length; i >= 0; i = self->path_operand[i])
        if (is_on_path(self, i, backward)) self->place[i] = --place;
    return length;
}

/* Finds the last product of the spine for which each instruction waits, and the first one that waits for it;
 * one of the spine waits for itself. */
static void find_waits(WorkFinder *self) {
    const SplitOptions *options = self->split_options;
    int32_t count = self->rules->entry_count;
    for (int32_t i = 0; i < count; i++) {
        self->after[i] = self->place[i];
        self->until[i] = self->place[i] >= 0 ? self->place[i] : NEVER;
        for (int32_t k = 0; k < split_options_operand_count(options, i) && self->place[i] < 0; k++) {
            int32_t operand = split_options_operand(options, i, k);
            if (self->after[operand] > self->after[i]) self->after[i] = self->after[operand];
        }
    }
    for (int32_t i = count - 1; i >= 0; i--)
        for (int32_t k = 0; k < split_options_operand_count(options, i); k++) {
            int32_t operand = split_options_operand(options, i, k);
            if (self->place[operand] < 0 && self->until[i] < self->until[operand])
                self->until[operand] = self->until[i];
        }
}

/* Finds the bytes between neighbouring products of the spine: of all paths from one to the next, the greatest
 * of their least values. No path passes a third product of the spine. */
static AmStatus find_sent(WorkFinder *self, int32_t pass, AmError *error) {
    const SplitOptions *options = self->split_options;
    int32_t count = self->rules->entry_count, length = self->work->spine_count[pass];
    double *sent = self->work->sent[pass] = ARENA_ARRAY(self->arena, double, length + 1);
    double *widest = ARENA_ARRAY(&self->scratch, double, count + 1); /* of the paths from product after[i] */
    if (self->arena->failed || self->scratch.failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        const IrShape *shape = &ir_instruction(self->module, i)->shape;
        double bytes = shape->type == DTYPE_TUPLE ? 0 : (double)ir_shape_bytes(shape), before = 0;
        int32_t place = self->place[i], from = place >= 0 ? place - 1 : self->after[i];
        for (int32_t k = 0; k < split_options_operand_count(options, i) && from >= 0; k++) {
            int32_t operand = split_options_operand(options, i, k);
            if (self->after[operand] == from) before = fmax(before, widest[operand]);
        }
        if (place > 0) sent[place - 1] = before;
        widest[i] = place >= 0 ? bytes : fmin(before, bytes);
    }
    return AM_OK;
}

/* Adds the items of a pass, from the operators of the sharding graph. */
static void add_items(WorkFinder *self, const ShardingGraph *graph, bool backward) {
    for (int32_t n = 0; n < graph->node_count; n++) {
        int32_t i = graph->nodes[n].instruction;
        bool is_behind = is_backward(self, i) || is_recomputed(self, i) || is_update(self, i);
        if (!graph->nodes[n].is_tensor && is_behind == backward) add_item(self, &graph->nodes[n]);
    }
}

/* ---- items for which nothing waits ---- */

/* Returns the first possible place of a value. By the rules of propagation/stages/stages.h a backward
 * operator is on the stage of its gradient operands or on an earlier one. It is not on an earlier stage than
 * the first of its operands and the only weight to which it leads. */
static int32_t first_place_of(const WorkFinder *self, const int32_t *first_use, int32_t i) {
    int32_t parameter = self->parameter_of[i], least = NEVER;
    if (self->rules->is_free[i]) return NEVER;
    if (parameter >= 0) return first_use[parameter];
    if (ir_phase_is_with_forward(self->roles->phases[i])) return self->last_place[i];
    if (is_recomputed(self, i)) return -1;
    if (self->weight[i] >= 0) least = first_use[self->weight[i]];
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
        int32_t of_operand = self->first_place[split_options_operand(self->split_options, i, k)];
        if (of_operand < least) least = of_operand;
    }
    return least;
}

/* Gives gradients that are in no group, such as that of a bias, their first possible place. */
static AmStatus place_sums(WorkFinder *self, AmError *error) {
    int32_t count = self->rules->entry_count, parameters = self->roles->parameter_count;
    int32_t *first_use = ARENA_ARRAY(&self->scratch, int32_t, parameters + 1);
    if (!first_use) return am_fail_memory(error, parameters);
    for (int32_t p = 0; p < parameters; p++) first_use[p] = NEVER;
    for (int32_t i = 0; i < count; i++) {
        if (!self->split_options->live[i] || !ir_phase_is_with_forward(self->roles->phases[i])) continue;
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
            int32_t parameter = self->parameter_of[split_options_operand(self->split_options, i, k)];
            if (parameter >= 0 && self->last_place[i] < first_use[parameter])
                first_use[parameter] = self->last_place[i];
        }
    }
    for (int32_t i = 0; i < count; i++) {
        self->first_place[i] = first_place_of(self, first_use, i);
        BoundItem *item = self->item_of[i] < 0 ? NULL : &self->work->items[self->item_of[i]];
        bool is_sum = item && item->work.is_run && item->is_backward && item->order == BOUND_BEHIND;
        if (is_sum && item->group < 0 && self->first_place[i] < NEVER) item->first = self->first_place[i];
    }
    return AM_OK;
}

/* Adds up the bytes that the stage of each group keeps, at the group's forward product. A weight with other
 * readers may be kept on another stage. */
static AmStatus find_kept_bytes(WorkFinder *self, const ShardingGraph *graph, AmError *error) {
    BoundWork *work = self->work;
    double *bytes = ARENA_ARRAY(&self->scratch, double, 2 * work->group_count + 1);
    bool *is_shared = ARENA_ARRAY(&self->scratch, bool, work->group_count + 1);
    if (self->scratch.failed) return am_fail_memory(error, work->group_count);
    for (int32_t i = 0; i < self->rules->entry_count; i++)
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
            int32_t p = self->parameter_of[split_options_operand(self->split_options, i, k)];
            bool is_other = p >= 0 && self->group_of[p] >= 0 && self->roles->phases[i] == IR_PHASE_FORWARD &&
                            !is_product(self, i);
            if (is_other) is_shared[self->group_of[p]] = true;
        }
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        const IrParameter *parameter = &self->roles->parameters[p];
        bool is_weight = parameter->role == IR_ROLE_WEIGHT;
        int32_t weight = is_weight ? p : self->weight[parameter->instruction];
        if (weight < 0 || self->group_of[weight] < 0) continue;
        if (!is_weight && !graph->parts->is_optimizer[parameter->instruction]) continue;
        bytes[2 * self->group_of[weight] + !is_weight] += graph->parts->kept_bytes[parameter->instruction];
    }
    for (int32_t k = 0; k < work->item_count; k++) {
        BoundItem *item = &work->items[k];
        if (item->group < 0 || item->is_backward || item->work.unit == OPERATOR_VECTOR) continue;
        for (int32_t of = 0; of < 2 && !is_shared[item->group]; of++)
            item->kept_bytes[of] = bytes[2 * item->group + of];
    }
    return AM_OK;
}

/* Lists the items. The forward spine ends with the operands of the first product of the backward spine. */
static AmStatus find_items(WorkFinder *self, const ShardingGraph *graph, AmError *error) {
    int32_t *spine_count = self->work->spine_count, count = self->rules->entry_count, first = -1;
    for (int32_t i = 0; i < count; i++) { /* what depends on the backward pass */
        self->has_gradients[i] = is_in_iterations(self, i) && is_backward(self, i) && has_batch(self, i);
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++)
            self->has_gradients[i] |= self->has_gradients[split_options_operand(self->split_options, i, k)];
    }
    spine_count[1] = find_spine(self, true);
    for (int32_t i = 0; i < count; i++)
        if (self->place[i] == 0) first = i;
    find_waits(self);
    TRY(find_sent(self, 1, error));
    add_items(self, graph, true);
    spine_count[0] = find_spine(self, false);
    find_waits(self);
    if (first >= 0) spine_count[0] = self->after[first] + 1;
    for (int32_t i = 0, last = -1; i < count; i++) {
        if (self->place[i] >= spine_count[0]) self->place[i] = -1;
        self->last_place[i] = last = self->place[i] >= 0 ? self->place[i] : last;
    }
    find_waits(self);
    TRY(find_sent(self, 0, error));
    add_items(self, graph, false);
    for (int32_t pass = 0; pass < 2; pass++)
        self->work->crossing[pass] = ARENA_ARRAY(self->arena, double, spine_count[0] + 1);
    return self->arena->failed ? am_fail_memory(error, spine_count[0]) : AM_OK;
}

/* Allocates the tables, and finds the parameters and the classes of the batch. */
static AmStatus open_finder(WorkFinder *self, const PlanContext *primary, AmError *error) {
    Arena *scratch = &self->scratch;
    int32_t count = primary->rules->count;
    self->module = primary->canonical;
    self->rules = primary->rules;
    self->split_options = primary->split_options;
    self->roles = primary->roles;
    self->is_batch = ARENA_ARRAY(scratch, bool, primary->classes->count + 1);
    self->weight = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->parameter_of = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->place = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->path_flops = ARENA_ARRAY(scratch, double, count + 1);
    self->path_operand = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->after = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->until = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->has_gradients = ARENA_ARRAY(scratch, bool, count + 1);
    self->last_place = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->item_of = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->first_place = ARENA_ARRAY(scratch, int32_t, count + 1);
    if (scratch->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) self->parameter_of[i] = self->item_of[i] = -1;
    for (int32_t p = 0; p < primary->roles->parameter_count; p++) {
        const IrParameter *parameter = &primary->roles->parameters[p];
        self->parameter_of[parameter->instruction] = p;
        if (parameter->role != IR_ROLE_DATA) continue;
        int32_t class = classes_of(primary->classes, primary->rules, parameter->instruction, 0);
        if (class >= 0) self->is_batch[class] = true; /* of the first dimension */
    }
    return AM_OK;
}

AmStatus bound_work_find(BoundWork *work, bool *known, Arena *arena, const PlanContext *primary,
                         const Cluster *cluster, int32_t device, AmError *error) {
    const Mesh alone = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1};
    WorkFinder self = {.work = work, .arena = arena};
    ShardingGraph *graph;
    AmStatus status;
    *work = (BoundWork){0};
    TRY_OR_FAIL(sharding_graph_create(&graph, &self.scratch, primary, &(PlacedMesh){&alone, cluster, &device},
                                      error));
    *known = graph != NULL;
    if (!graph) goto fail;
    TRY_OR_FAIL(open_finder(&self, primary, error));
    find_weights(&self);
    TRY_OR_FAIL(find_groups(&self, error));
    TRY_OR_FAIL(find_items(&self, graph, error));
    TRY_OR_FAIL(find_kept_bytes(&self, graph, error));
    TRY_OR_FAIL(place_sums(&self, error));
    status = bound_work_find_borders(work, error);
fail:
    arena_free(&self.scratch);
    return status;
}
