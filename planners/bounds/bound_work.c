/* The work of a step, independent of the plan, for a bound over pipelines. */
#include "planners/bounds/bound_work.h"

#include <math.h>

#include "cost/relaxation/fusion_groups.h"
#include "cost/relaxation/sharding_graph.h"
#include "ir/analysis/flops.h"
#include "ir/dataflow.h"

enum { NO_WEIGHT = -1, SEVERAL_WEIGHTS = -2, NEVER = INT32_MAX };

/* An item that waits for more of the spine than this, or is waited for later, lies nowhere. */
enum { LONGEST_SPAN = 8 };

typedef struct Finder {
    BoundWork *work;
    Arena *arena;
    const PlanContext *context;
    const IrModule *module;
    const SplitOptions *split_options;
    const IrRoles *roles;
    bool *is_batch;  /* [class] */
    int32_t *weight; /* [instruction]: the only weight whose update it leads to, NO_ or SEVERAL_WEIGHTS */
    int32_t *parameter_of; /* [instruction], or -1 */
    int32_t *group_of;     /* [parameter], or -1 */
    /* By instruction, for one pass: place on the spine or -1, FLOPs of the longest path to it, the
     * operand on that path, and the places of BoundItem. */
    int32_t *place;
    double *longest;
    int32_t *best, *after, *until;
    bool *follows;    /* something of the backward pass's iterations */
    int32_t *ordered; /* the last place at or before it in the module's order, or -1 */
    int32_t *item;    /* of the backward pass, or -1 */
    int32_t *least;   /* place whose stage is not behind any on which it may be had; -1 not known */
} Finder;

static const IrInstruction *instruction_at(const Finder *self, int32_t i) {
    return &self->module->instructions[i];
}

static bool is_product(const Finder *self, int32_t i) {
    IrOpcode opcode = instruction_at(self, i)->opcode;
    return opcode == IR_DOT || opcode == IR_CONVOLUTION;
}

static bool is_backward(const Finder *self, int32_t i) {
    return self->roles->phases[i] == IR_PHASE_BACKWARD;
}

/* As propagation/stages/stages.h takes it. */
static bool is_forward(const Finder *self, int32_t i) {
    IrPhase phase = self->roles->phases[i];
    return phase == IR_PHASE_FORWARD || phase == IR_PHASE_OTHER;
}

/* Returns whether the module itself recomputes it: in iterations of the backward pass, without a
 * dependency on them. */
static bool is_recomputed(const Finder *self, int32_t i) {
    return self->roles->phases[i] == IR_PHASE_RECOMPUTED;
}

static bool is_in_iterations(const Finder *self, int32_t i) {
    bool is_first = self->roles->phases[i] == IR_PHASE_FORWARD;
    return self->split_options->live[i] && (is_first || is_backward(self, i) || is_recomputed(self, i));
}

/* Returns whether it is split over the examples. */
static bool has_batch(const Finder *self, int32_t i) {
    const SplitOptions *split_options = self->split_options;
    for (int32_t k = split_options->first_factor[i]; k < split_options->first_factor[i + 1]; k++)
        if (split_options->factors[k].class_index >= 0 &&
            self->is_batch[split_options->factors[k].class_index])
            return true;
    return false;
}

static void find_batch(Finder *self) {
    const PlanContext *context = self->context;
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        const IrParameter *parameter = &self->roles->parameters[p];
        if (parameter->role != IR_ROLE_DATA) continue;
        int32_t class = classes_of(context->classes, context->rules, parameter->instruction, 0);
        if (class >= 0) self->is_batch[class] = true;
    }
}

/* ---- groups ---- */

static void join(int32_t *weight, int32_t other) {
    if (other == NO_WEIGHT || *weight == other) return;
    *weight = *weight == NO_WEIGHT ? other : SEVERAL_WEIGHTS;
}

static int32_t operand_of(const Finder *self, int32_t i, int32_t k) {
    return self->split_options->operands[self->split_options->first_operand[i] + k];
}

static int32_t operand_count(const Finder *self, int32_t i) {
    return self->split_options->first_operand[i + 1] - self->split_options->first_operand[i];
}

/* Which weight's update the values of the backward pass lead to. */
static void find_weights(Finder *self) {
    int32_t count = self->context->rules->entry_count;
    for (int32_t i = 0; i < count; i++) self->weight[i] = NO_WEIGHT;
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        const IrParameter *parameter = &self->roles->parameters[p];
        if (parameter->role != IR_ROLE_WEIGHT || parameter->output < 0) continue;
        join(&self->weight[self->context->rules->alias[self->roles->outputs[parameter->output]]], p);
    }
    for (int32_t i = count - 1; i >= 0; i--) {
        if (!self->split_options->live[i] || is_forward(self, i) ||
            ir_is_scalar(&instruction_at(self, i)->shape))
            continue;
        for (int32_t k = 0; k < operand_count(self, i); k++)
            join(&self->weight[operand_of(self, i, k)], self->weight[i]);
    }
}

/* The weight that operand k of a product is, or NO_WEIGHT. */
static int32_t weight_read(const Finder *self, int32_t i, int32_t k) {
    int32_t value = operand_of(self, i, k);
    while (operand_count(self, value) == 1 && ir_opcode_has(instruction_at(self, value)->opcode, FACT_MOVES))
        value = operand_of(self, value, 0);
    int32_t parameter = self->parameter_of[value];
    if (parameter >= 0 && self->roles->parameters[parameter].role == IR_ROLE_WEIGHT) return parameter;
    return NO_WEIGHT;
}

/* Weights that one forward product reads, and no other: their stage is that product's. */
static AmStatus find_groups(Finder *self, AmError *error) {
    BoundWork *work = self->work;
    int32_t count = self->context->rules->entry_count, parameters = self->roles->parameter_count;
    int32_t *readers = ARENA_ARRAY(self->arena, int32_t, parameters + 1);
    self->group_of = ARENA_ARRAY(self->arena, int32_t, parameters + 1);
    if (self->arena->failed) return am_fail_memory(error, parameters);
    for (int32_t i = 0; i < count; i++) {
        bool is_again = is_backward(self, i) || is_recomputed(self, i);
        if (!is_product(self, i) || !self->split_options->live[i] || is_again) continue;
        for (int32_t k = 0; k < operand_count(self, i); k++) {
            int32_t weight = weight_read(self, i, k);
            if (weight >= 0) readers[weight]++;
        }
    }
    for (int32_t p = 0; p < parameters; p++) self->group_of[p] = readers[p] == 1 ? work->group_count++ : -1;
    return AM_OK;
}

/* The group of a product; `*is_sum`: it is the gradient of the group's weight, a sum over the batch. */
static int32_t find_group(const Finder *self, int32_t i, bool *is_sum) {
    int32_t led = is_backward(self, i) ? self->weight[i] : NO_WEIGHT;
    for (int32_t k = 0; k < operand_count(self, i); k++) {
        int32_t weight = weight_read(self, i, k);
        if (weight >= 0 && self->group_of[weight] >= 0) return self->group_of[weight];
    }
    if (led < 0 || self->group_of[led] < 0) return -1;
    const IrShape *shape = &instruction_at(self, self->roles->parameters[led].instruction)->shape;
    *is_sum = ir_shape_elements(shape) == ir_shape_elements(&instruction_at(self, i)->shape);
    return self->group_of[led];
}

/* ---- items ---- */

static double product_flops(const Finder *self, int32_t i) {
    const IrInstruction *product = instruction_at(self, i);
    IrShape operands[2];
    for (int32_t k = 0; k < 2; k++) operands[k] = instruction_at(self, product->operands[k])->shape;
    return ir_flops(self->module, product, operands, &product->shape);
}

static double slot_bytes(const Finder *self, int32_t i) {
    const FactorRule *rule = &self->context->rules->rules[i];
    double bytes = 0;
    for (int32_t slot = 0; slot <= rule->operand_count; slot++)
        if (slot == 0 || slot == rule->operand_count || is_product(self, i))
            bytes += (double)ir_shape_bytes(rules_slot_shape(self->context->rules, i, slot));
    return bytes;
}

static double least_label(const ShardingGraphNode *node) {
    double least = INFINITY;
    for (int32_t label = 0; label < node->label_count; label++) least = fmin(least, node->seconds[label]);
    return least;
}

/* Between which products of the spine, or behind which, it is computed. */
static void place_item(const Finder *self, BoundItem *item, int32_t i) {
    item->after = self->after[i];
    item->until = self->until[i];
    if (item->after < 0) return;
    if (item->until == NEVER) {
        item->order = BOUND_BEHIND;
        item->until = item->after + 1;
    } else if (item->until - item->after <= LONGEST_SPAN) {
        item->order = item->until == item->after ? BOUND_SPINE : BOUND_BETWEEN;
    }
}

/* Returns whether the instruction updates weights and depends on gradients. */
static bool is_update(const Finder *self, int32_t i) {
    return self->split_options->live[i] && self->follows[i] && self->roles->phases[i] == IR_PHASE_OPTIMIZER;
}

static void find_following(Finder *self) {
    for (int32_t i = 0; i < self->context->rules->entry_count; i++) {
        self->follows[i] = is_in_iterations(self, i) && is_backward(self, i) && has_batch(self, i);
        for (int32_t k = 0; k < operand_count(self, i) && !self->follows[i]; k++)
            self->follows[i] = self->follows[operand_of(self, i, k)];
    }
}

static void add_item(Finder *self, const ShardingGraphNode *node) {
    BoundWork *work = self->work;
    int32_t i = node->instruction;
    bool is_sum = false;
    IrOpcode opcode = instruction_at(self, i)->opcode;
    bool is_after = is_update(self, i);
    if (!node->seconds || !(is_after || (is_in_iterations(self, i) && has_batch(self, i)))) return;
    ARENA_RESERVE(self->arena, work->items, work->item_count, work->item_capacity);
    if (self->arena->failed) return;
    BoundItem *item = &work->items[work->item_count++];
    *item = (BoundItem){.group = -1,
                        .is_backward = is_after || is_recomputed(self, i) || is_backward(self, i),
                        .seconds = least_label(node),
                        .first = -1,
                        .end = -1};
    if (i >= self->context->rules->entry_count) return;
    if (is_after) {
        item->order = BOUND_AFTER;
        if (self->weight[i] >= 0) item->group = self->group_of[self->weight[i]];
        return;
    }
    if (!is_recomputed(self, i)) place_item(self, item, i);
    self->item[i] = work->item_count - 1;
    if (!is_product(self, i) && opcode != IR_REDUCE) return;
    if (!item->is_backward && self->ordered[i] >= 0) {
        item->first = self->ordered[i];
        item->end = item->first + (self->place[i] < 0);
    }
    item->work = (OperatorWork){.bytes = slot_bytes(self, i), .unit = OPERATOR_VECTOR, .is_run = true};
    if (opcode == IR_REDUCE) return;
    item->work.flops = product_flops(self, i);
    item->work.type = instruction_at(self, instruction_at(self, i)->operands[0])->shape.type;
    item->work.unit = opcode == IR_DOT ? OPERATOR_DOT : OPERATOR_CONVOLUTION;
    if (!is_recomputed(self, i)) item->group = find_group(self, i, &is_sum);
    if (is_sum) item->sum_bytes = (double)ir_shape_bytes(&instruction_at(self, i)->shape);
}

/* ---- spines ---- */

static bool is_on_path(const Finder *self, int32_t i, bool backward) {
    return is_product(self, i) && is_in_iterations(self, i) && !is_recomputed(self, i) &&
           is_backward(self, i) == backward && has_batch(self, i);
}

/* The places of the products of the longest path of a pass; returns their number. */
static int32_t find_spine(Finder *self, bool backward) {
    int32_t count = self->context->rules->entry_count, end = -1, length = 0;
    for (int32_t i = 0; i < count; i++) {
        self->longest[i] = 0;
        self->best[i] = self->place[i] = -1;
        for (int32_t k = 0; k < operand_count(self, i); k++) {
            int32_t operand = operand_of(self, i, k);
            if (self->longest[operand] <= self->longest[i]) continue;
            self->longest[i] = self->longest[operand];
            self->best[i] = operand;
        }
        if (!is_on_path(self, i, backward)) continue;
        self->longest[i] += product_flops(self, i);
        if (end < 0 || self->longest[i] > self->longest[end]) end = i;
    }
    for (int32_t i = end; i >= 0; i = self->best[i]) length += is_on_path(self, i, backward);
    for (int32_t i = end, place = length; i >= 0; i = self->best[i])
        if (is_on_path(self, i, backward)) self->place[i] = --place;
    return length;
}

/* Which product of the spine each instruction waits for last; itself, where it is one. */
static void find_after(Finder *self) {
    for (int32_t i = 0; i < self->context->rules->entry_count; i++) {
        self->after[i] = self->place[i];
        for (int32_t k = 0; k < operand_count(self, i) && self->place[i] < 0; k++)
            if (self->after[operand_of(self, i, k)] > self->after[i])
                self->after[i] = self->after[operand_of(self, i, k)];
    }
}

/* Which waits for each first. */
static void find_until(Finder *self) {
    int32_t count = self->context->rules->entry_count;
    for (int32_t i = 0; i < count; i++) self->until[i] = self->place[i] >= 0 ? self->place[i] : NEVER;
    for (int32_t i = count - 1; i >= 0; i--)
        for (int32_t k = 0; k < operand_count(self, i); k++) {
            int32_t operand = operand_of(self, i, k);
            if (self->place[operand] < 0 && self->until[i] < self->until[operand])
                self->until[operand] = self->until[i];
        }
}

static void find_pass(Finder *self, const ShardingGraph *model, bool backward) {
    for (int32_t n = 0; n < model->node_count; n++) {
        int32_t i = model->nodes[n].instruction;
        bool is_behind = is_backward(self, i) || is_recomputed(self, i) || is_update(self, i);
        if (!model->nodes[n].is_tensor && is_behind == backward) add_item(self, &model->nodes[n]);
    }
}

/* ---- what nothing waits for ---- */

/* The first possible place. By the rules of propagation/stages/stages.h a backward operator is not after
 * its gradient operands, and not before the first of these, of other operands and of the only
 * weight to which it leads. */
static int32_t least_place(const Finder *self, const int32_t *first_use, int32_t i) {
    int32_t parameter = self->parameter_of[i], least = NEVER;
    if (self->context->rules->is_free[i]) return NEVER;
    if (parameter >= 0) return first_use[parameter];
    if (is_forward(self, i)) return self->ordered[i];
    if (is_recomputed(self, i)) return -1;
    if (self->weight[i] >= 0) least = first_use[self->weight[i]];
    for (int32_t k = 0; k < operand_count(self, i); k++) {
        int32_t of_operand = self->least[operand_of(self, i, k)];
        if (of_operand < least) least = of_operand;
    }
    return least;
}

/* Sums for gradients that no group has, as of a bias, have a first place by it. */
static AmStatus place_sums(Finder *self, AmError *error) {
    int32_t count = self->context->rules->entry_count, parameters = self->roles->parameter_count;
    int32_t *first_use = ARENA_ARRAY(self->arena, int32_t, parameters + 1);
    if (!first_use) return am_fail_memory(error, parameters);
    for (int32_t p = 0; p < parameters; p++) first_use[p] = NEVER;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < operand_count(self, i) && self->split_options->live[i] && is_forward(self, i);
             k++) {
            int32_t parameter = self->parameter_of[operand_of(self, i, k)];
            if (parameter >= 0 && self->ordered[i] < first_use[parameter])
                first_use[parameter] = self->ordered[i];
        }
    for (int32_t i = 0; i < count; i++) {
        self->least[i] = least_place(self, first_use, i);
        BoundItem *item = self->item[i] < 0 ? NULL : &self->work->items[self->item[i]];
        bool is_sum = item && item->work.is_run && item->is_backward && item->order == BOUND_BEHIND;
        if (is_sum && item->group < 0 && self->least[i] < NEVER) item->first = self->least[i];
    }
    return AM_OK;
}

/* Lists the items. The forward spine ends where the backward spine begins: with the operands of its
 * first product. */
static void find_items(Finder *self, const ShardingGraph *model) {
    int32_t *spine_count = self->work->spine_count, first = -1;
    find_following(self);
    spine_count[1] = find_spine(self, true);
    for (int32_t i = 0; i < self->context->rules->entry_count; i++)
        if (self->place[i] == 0) first = i;
    find_after(self);
    find_until(self);
    find_pass(self, model, true);
    spine_count[0] = find_spine(self, false);
    find_after(self);
    if (first >= 0) spine_count[0] = self->after[first] + 1;
    for (int32_t i = 0; i < self->context->rules->entry_count; i++)
        if (self->place[i] >= spine_count[0]) self->place[i] = -1;
    find_after(self);
    find_until(self);
    for (int32_t i = 0, last = -1; i < self->context->rules->entry_count; i++)
        self->ordered[i] = last = self->place[i] >= 0 ? self->place[i] : last;
    find_pass(self, model, false);
}

/* ---- stages ---- */

/* Places of the forward spine between which a group's forward product is: [2 g], [2 g + 1]; -1 not known. */
static void find_group_places(const BoundWork *work, int32_t *places) {
    for (int32_t g = 0; g < 2 * work->group_count; g++) places[g] = -1;
    for (int32_t k = 0; k < work->item_count; k++) {
        const BoundItem *item = &work->items[k];
        if (item->group < 0 || item->is_backward || item->first < 0) continue;
        places[2 * item->group] = item->first;
        places[2 * item->group + 1] = item->end;
    }
}

/* The least and the greatest place whose stage each product of the backward spine can have: [2 t], [2 t + 1];
 * and behind the last one. */
static void find_backward_places(const BoundWork *work, const int32_t *of_groups, int32_t *places) {
    int32_t count = work->spine_count[1], last = work->spine_count[0];
    for (int32_t t = 0; t <= count; t++) {
        places[2 * t] = 0;
        places[2 * t + 1] = last;
    }
    for (int32_t k = 0; k < work->item_count; k++) {
        const BoundItem *item = &work->items[k];
        bool is_there = item->is_backward && item->order == BOUND_SPINE;
        if (!is_there || item->group < 0 || of_groups[2 * item->group] < 0) continue;
        places[2 * item->after] = of_groups[2 * item->group];
        places[2 * item->after + 1] = of_groups[2 * item->group + 1];
    }
    for (int32_t t = 1; t <= count; t++)
        if (places[2 * t - 1] < places[2 * t + 1]) places[2 * t + 1] = places[2 * t - 1];
    for (int32_t t = count - 1; t >= 0; t--)
        if (places[2 * t + 2] > places[2 * t]) places[2 * t] = places[2 * t + 2];
}

static void find_item_borders(BoundItem *item, const int32_t *of_groups, const int32_t *of_backward) {
    /* Other items may be on any stage before that of their operands. */
    bool is_located = item->group >= 0 && of_groups[2 * item->group] >= 0;
    bool is_sum = item->is_backward && item->first >= 0; /* without users it has no first place */
    if (item->order == BOUND_BEHIND && !is_located && !is_sum) item->order = BOUND_ANYWHERE;
    if (item->order == BOUND_ANYWHERE || item->order == BOUND_AFTER) return;
    int32_t first = is_sum ? item->first : item->is_backward ? of_backward[2 * item->until] : item->after;
    int32_t end = item->is_backward ? of_backward[2 * item->after + 1] : item->until;
    if (item->first < 0 || first < item->first) item->first = first;
    if (end > item->end) item->end = end;
    if (item->end < item->first) item->end = item->first;
}

AmStatus bound_work_find_borders(BoundWork *work, AmError *error) {
    Arena arena = {0};
    int32_t *of_groups = ARENA_ARRAY(&arena, int32_t, 2 * work->group_count + 1);
    int32_t *of_backward = ARENA_ARRAY(&arena, int32_t, 2 * work->spine_count[1] + 2);
    AmStatus status = arena.failed ? am_fail_memory(error, work->group_count) : AM_OK;
    if (status == AM_OK) {
        find_group_places(work, of_groups);
        find_backward_places(work, of_groups, of_backward);
        for (int32_t k = 0; k < work->item_count; k++)
            find_item_borders(&work->items[k], of_groups, of_backward);
    }
    arena_free(&arena);
    return status;
}

AmStatus bound_work_find(BoundWork *work, bool *known, Arena *arena, const PlanContext *whole,
                         const Cluster *cluster, int32_t device, AmError *error) {
    const Mesh alone = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1};
    int32_t count = whole->rules->count;
    ShardingGraph *model;
    *work = (BoundWork){0};
    TRY(sharding_graph_create(&model, arena, whole, &alone, cluster, &device, error));
    *known = model != NULL;
    if (!model) return AM_OK;
    Finder self = {.work = work,
                   .arena = arena,
                   .context = whole,
                   .module = whole->canonical,
                   .split_options = whole->split_options,
                   .roles = whole->roles,
                   .is_batch = ARENA_ARRAY(arena, bool, whole->classes->count + 1),
                   .weight = ARENA_ARRAY(arena, int32_t, count + 1),
                   .parameter_of = ARENA_ARRAY(arena, int32_t, count + 1),
                   .place = ARENA_ARRAY(arena, int32_t, count + 1),
                   .longest = ARENA_ARRAY(arena, double, count + 1),
                   .best = ARENA_ARRAY(arena, int32_t, count + 1),
                   .after = ARENA_ARRAY(arena, int32_t, count + 1),
                   .until = ARENA_ARRAY(arena, int32_t, count + 1),
                   .follows = ARENA_ARRAY(arena, bool, count + 1),
                   .ordered = ARENA_ARRAY(arena, int32_t, count + 1),
                   .item = ARENA_ARRAY(arena, int32_t, count + 1),
                   .least = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) self.parameter_of[i] = self.item[i] = -1;
    for (int32_t p = 0; p < whole->roles->parameter_count; p++)
        self.parameter_of[whole->roles->parameters[p].instruction] = p;
    find_batch(&self);
    find_weights(&self);
    TRY(find_groups(&self, error));
    find_items(&self, model);
    TRY(place_sums(&self, error));
    return arena->failed ? am_fail_memory(error, count) : bound_work_find_borders(work, error);
}
