/* Finds the layers of an unrolled model, their borders, and the longest run of equal ones.
 *
 * For each group of weights of one shape (group_weights()), and for one, two, ... weights in a layer:
 * layer_finder.c assigns instructions to layers, find_run() compares layers with their successors, and
 * set_borders() moves their beginnings to where the fewest bytes cross. The assignment is then repeated from
 * the borders. The first group with a run is taken.
 */
#include "ir/layers/layer_run.h"

#include <stdlib.h>

#include "base/hash.h"
#include "ir/analysis/flops.h"
#include "ir/canonical/canonical.h"
#include "ir/layers/layer_finder.h"

enum { WEIGHT_GROUPS_MOST = 8 };

/* ---- weights of one shape ---- */

static int compare_shapes(const IrShape *a, const IrShape *b) {
    if (a->type != b->type) return a->type < b->type ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->dimensions[d] != b->dimensions[d]) return a->dimensions[d] < b->dimensions[d] ? -1 : 1;
    return 0;
}

static int compare_weights(const void *left, const void *right) {
    const LayerWeight *a = left, *b = right;
    int order = compare_shapes(a->shape, b->shape);
    if (order != 0) return order;
    return a->user != b->user ? (a->user < b->user ? -1 : 1) : a->instruction - b->instruction;
}

/* Lists the weights by their shapes, those of one shape in the order of their use. Returns their number. */
static int32_t list_weights(LayerWeight *weights, const IrModule *module, const IrRoles *roles,
                            const int32_t *first_user) {
    int32_t count = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t instruction = roles->parameters[p].instruction, user = first_user[instruction];
        const IrShape *shape = &module->instructions[instruction].shape;
        bool is_weight = roles->parameters[p].role == IR_ROLE_WEIGHT && shape->type != DTYPE_TUPLE;
        if (is_weight && user >= 0) weights[count++] = (LayerWeight){shape, instruction, user};
    }
    qsort(weights, (size_t)count, sizeof *weights, compare_weights);
    return count;
}

/* Lists the shapes of at least LAYER_RUN_LEAST weights, those with the most elements first. `weights`
 * [roles->parameter_count + 1] receives the weights. Returns the number of groups. */
static int32_t group_weights(WeightGroup *groups, LayerWeight *weights, const IrModule *module,
                             const IrRoles *roles, const int32_t *first_user) {
    int32_t count = 0, weight_count = list_weights(weights, module, roles, first_user);
    for (int32_t low = 0, high = 0; low < weight_count; low = high) {
        while (high < weight_count && compare_shapes(weights[low].shape, weights[high].shape) == 0) high++;
        double elements = (double)(high - low) * (double)ir_shape_elements(weights[low].shape);
        int32_t at = count;
        while (at > 0 && groups[at - 1].elements < elements) at--;
        if (high - low < LAYER_RUN_LEAST || at == WEIGHT_GROUPS_MOST) continue;
        if (count < WEIGHT_GROUPS_MOST) count++;
        for (int32_t k = count - 1; k > at; k--) groups[k] = groups[k - 1];
        groups[at] = (WeightGroup){&weights[low], high - low, elements};
    }
    return count;
}

/* ---- runs of equal layers ---- */

/* Returns whether the members of a layer are those of the next one, up to the shift. */
static bool equals_next(const LayerFinder *self, int32_t layer) {
    const int32_t *first = self->run.first;
    int32_t count = first[layer + 1] - first[layer];
    if (count == 0 || first[layer + 2] - first[layer + 1] != count) return false;
    for (int32_t m = 0; m < count; m++) {
        int32_t i = self->run.members[first[layer] + m], j = self->run.members[first[layer + 1] + m];
        const IrInstruction *a = ir_instruction(self->run.from, i), *b = ir_instruction(self->run.from, j);
        bool is_same = self->run.roles->phases[i] == self->run.roles->phases[j] &&
                       self->operators[i] == self->operators[j] && a->operand_count == b->operand_count;
        if (!is_same) return false;
        for (int32_t k = 0; k < a->operand_count; k++) {
            int32_t of_a = a->operands[k], of_b = b->operands[k];
            bool is_invariant = self->run.layer[of_a] < 0 && self->run.layer[of_b] < 0;
            if (is_invariant && self->invariants[of_a] == self->invariants[of_b]) continue;
            int32_t shift = self->run.layer[of_a] - layer;
            bool is_moved = self->run.layer[of_a] >= 0 && self->run.layer[of_b] - layer - 1 == shift &&
                            self->run.place[of_a] == self->run.place[of_b];
            if (!is_moved || shift < -LAYER_REACH || shift > LAYER_REACH) return false;
        }
    }
    return true;
}

/* Finds the layers, and a run of equal ones; false: it is short. */
static bool find_layers_and_run(LayerFinder *self, const WeightGroup *group) {
    layer_finder_assign(self, group);
    /* Equal values without a layer are made alike of constants, or are one. */
    for (int32_t i = 0; i < self->run.count; i++) {
        const IrInstruction *instruction = ir_instruction(self->run.from, i);
        bool is_own = self->run.layer[i] >= 0 || instruction->opcode == IR_PARAMETER;
        uint64_t number = is_own ? hash_combine(1, (uint64_t)i) : self->operators[i];
        for (int32_t k = 0; k < instruction->operand_count && !is_own; k++)
            number = hash_combine(number, self->invariants[instruction->operands[k]]);
        self->invariants[i] = number;
    }
    self->run.low = self->run.high = 0;
    for (int32_t l = 0, low = 0; l + 1 < self->run.layers; l++) {
        if (!equals_next(self, l)) low = l + 1;
        else if (l + 1 - low > self->run.high - self->run.low) self->run.low = low, self->run.high = l + 1;
    }
    return self->run.high - self->run.low + 1 >= LAYER_RUN_LEAST;
}

/* ---- borders of layers ---- */

/* Counts the bytes of activations that go over a cut before each instruction. */
static void count_crossing(const LayerFinder *self, int64_t *crossing) {
    int32_t *last_use = self->work;
    for (int32_t i = 0; i < self->run.count; i++) last_use[i] = LAYER_NONE;
    for (int32_t i = self->run.count - 1; i >= 0; i--) {
        const IrInstruction *user = ir_instruction(self->run.from, i);
        if (self->run.roles->phases[i] != IR_PHASE_FORWARD) continue;
        bool hands_on = user->opcode == IR_TUPLE || user->opcode == IR_BITCAST || user->opcode == IR_RESHAPE;
        for (int32_t k = 0; k < user->operand_count; k++) {
            int32_t *last = &last_use[user->operands[k]], use = hands_on ? last_use[i] : i;
            if (*last < use) *last = use;
        }
    }
    for (int32_t i = 0; i < self->run.count; i++) {
        const IrInstruction *instruction = ir_instruction(self->run.from, i);
        bool is_sent = layer_is_activation(self, i) && instruction->shape.type != DTYPE_TUPLE &&
                       instruction->opcode != IR_BITCAST && instruction->opcode != IR_RESHAPE;
        if (!is_sent || last_use[i] <= i) continue;
        crossing[i + 1] += ir_shape_bytes(&instruction->shape);
        crossing[last_use[i] + 1] -= ir_shape_bytes(&instruction->shape);
    }
    for (int32_t i = 1; i <= self->run.count; i++) crossing[i] += crossing[i - 1];
}

/* Returns the operator of a layer before which the fewest bytes cross, of those with work; LAYER_NONE: it
 * has none. */
static int32_t find_border(const LayerFinder *self, int32_t layer, const int64_t *crossing) {
    int32_t best = LAYER_NONE;
    for (int32_t m = self->run.first[layer]; m < self->run.first[layer + 1]; m++) {
        int32_t i = self->run.members[m];
        bool is_fewer = layer_is_activation(self, i) && (best < 0 || crossing[i] < crossing[best]);
        if (is_fewer && ir_instruction_flops(self->run.from, i, self->arena) > 0) best = i;
    }
    return best;
}

/* Sets the borders: the same operator in all layers of the run, and beyond it at the same distances. */
static bool set_borders(LayerFinder *self) {
    int64_t *crossing = ARENA_ARRAY(self->arena, int64_t, self->run.count + 2);
    self->run.borders = ARENA_ARRAY(self->arena, int32_t, self->run.count + 1);
    if (self->arena->failed) return false;
    int32_t place_of_middle = self->run.low + (self->run.high - self->run.low) / 2, count = 0;
    count_crossing(self, crossing);
    int32_t middle = find_border(self, place_of_middle, crossing);
    if (middle < 0) return false;
    int32_t at = self->run.place[middle], first = self->run.members[self->run.first[self->run.low] + at],
            last = self->run.members[self->run.first[self->run.high] + at];
    int32_t distance = (last - first) / (self->run.high - self->run.low);
    int32_t before = first - distance, behind = last + distance;
    while (before > 0 && self->operators[before] == self->operators[middle] &&
           layer_is_activation(self, before))
        before -= distance;
    for (before += distance; before < first; before += distance) self->run.borders[count++] = before;
    for (int32_t l = self->run.low; l <= self->run.high; l++) {
        int32_t border = self->run.members[self->run.first[l] + at];
        if (count > 0 && border <= self->run.borders[count - 1]) return false;
        self->run.borders[count++] = border;
    }
    for (; behind < self->run.count; behind += distance) {
        if (self->operators[behind] != self->operators[middle] || !layer_is_activation(self, behind)) break;
        self->run.borders[count++] = behind;
    }
    self->run.border_count = count;
    return true;
}

/* Finds layers that begin where a pipeline is cut, by one, two, ... weights of a group in each; false: there
 * is no run of them that is equal. */
static bool find_bordered_layers(LayerFinder *self, const WeightGroup *group) {
    for (int32_t each = 1; group->count / each >= LAYER_RUN_LEAST; each++) {
        if (group->count % each != 0) continue;
        self->run.border_count = 0;
        self->run.layers = group->count / each;
        if (!find_layers_and_run(self, group) || !set_borders(self)) continue;
        self->run.layers = self->run.border_count + 1;
        if (find_layers_and_run(self, group)) return true;
    }
    return false;
}

AmStatus layer_run_find(LayerRun *run, bool *is_found, Arena *arena, const IrModule *module,
                        const IrRoles *roles, AmError *error) {
    int32_t count = module->computations[module->entry].count;
    WeightGroup groups[WEIGHT_GROUPS_MOST];
    LayerWeight *weights = ARENA_ARRAY(arena, LayerWeight, roles->parameter_count + 1);
    LayerFinder self = {.run = {.from = module,
                                .roles = roles,
                                .count = count,
                                .layer = ARENA_ARRAY(arena, int32_t, count + 1),
                                .first = ARENA_ARRAY(arena, int32_t, count + 3),
                                .members = ARENA_ARRAY(arena, int32_t, count + 1),
                                .place = ARENA_ARRAY(arena, int32_t, count + 1)},
                        .arena = arena,
                        .first_user = ARENA_ARRAY(arena, int32_t, count + 1),
                        .last_layer = ARENA_ARRAY(arena, int32_t, count + 1),
                        .has_weight = ARENA_ARRAY(arena, bool, count + 1),
                        .has_data = ARENA_ARRAY(arena, bool, count + 1),
                        .operators = ARENA_ARRAY(arena, uint64_t, count + 1),
                        .invariants = ARENA_ARRAY(arena, uint64_t, count + 1),
                        .work = ARENA_ARRAY(arena, int32_t, count + 1)};
    *is_found = false;
    if (arena->failed) return am_fail_memory(error, count);
    TRY(ir_hash_operators(self.operators, module, error));
    layer_finder_prepare(&self);
    int32_t group_count = group_weights(groups, weights, module, roles, self.first_user);
    for (int32_t k = 0; k < group_count && !*is_found; k++)
        *is_found = find_bordered_layers(&self, &groups[k]);
    *run = self.run;
    return AM_OK;
}
