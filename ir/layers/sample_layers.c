/* Sample of repeated layers: finds the layers, keeps a few of a run of equal ones, and copies the rest.
 *
 * The layer of a value is:
 *   - in the forward pass, the largest of its operands';
 *   - in the backward pass, the last one in which forward operators read the forward values that it reads, at
 *     most that of the gradients that it reads;
 *   - in an update, the largest of its operands' that are arrays;
 *   - without such operands, that of its first user if it depends on a weight, else that of its users.
 *
 * All layers are shifted alike against those of the source.
 *
 * Once a run of equal layers is known, layers are found anew: they begin at the operator of the run's layers
 * over which the fewest bytes go, where a pipeline is cut.
 *
 * Of a run of equal layers, the first ones and the last two are kept. An operand in a layer that is left out
 * is replaced by that of the layer which is as far away among those that are kept.
 */
#include "ir/layers/sample_layers.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"
#include "ir/canonical/canonical.h"
#include "ir/canonical/compose.h"

/* Layers that are kept of the run, of these at its end, and the least run. Operands are at most REACH layers
 * away. Eight let 2, 4 and 8 stages have equally many layers. */
enum { NONE = -1, KEPT = 8, REACH = 2, LEAST = 14 };

typedef struct Sampler {
    const IrModule *from;
    const IrRoles *roles;
    Arena *scratch;
    int32_t count;        /* entry instructions */
    int32_t *first_user;  /* [entry instruction]: the first forward instruction that reads it, or NONE */
    int32_t *layer;       /* [entry instruction] */
    int32_t *last_layer;  /* [entry instruction]: of a forward value, the last layer in which it is read */
    int32_t *borders;     /* [border_count] the first instructions of the layers but for that of layer 0 */
    int32_t border_count; /* 0: layers follow from the anchors */
    int32_t *first, *members; /* [layer + 1]; members[first[l] .. first[l + 1]) are the layer's, in order */
    int32_t *place;           /* [entry instruction]: its place in its layer */
    int32_t layers;
    int32_t low, high; /* the run of equal layers */
    bool *is_kept;     /* [entry instruction] */
    bool *has_weight;  /* [entry instruction]: it depends on a weight or an optimizer's state */
    bool *has_data;    /* [entry instruction]: it depends on another parameter */
    uint64_t *operators, *invariants; /* [entry instruction] */
} Sampler;

static const IrInstruction *instruction_at(const Sampler *self, int32_t i) {
    return &self->from->instructions[i];
}

/* ---- anchors: the weights by which layers are counted ---- */

typedef struct Anchor {
    const IrShape *shape;
    int32_t instruction, user;
} Anchor;

static void find_first_users(Sampler *self) {
    memset(self->first_user, NONE, sizeof *self->first_user * (size_t)self->count);
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const IrInstruction *user = instruction_at(self, i);
        if (self->roles->phases[i] != IR_PHASE_FORWARD) continue;
        for (int32_t k = 0; k < user->operand_count; k++) self->first_user[user->operands[k]] = i;
    }
}

static int compare_shapes(const IrShape *a, const IrShape *b) {
    if (a->type != b->type) return a->type < b->type ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->dimensions[d] != b->dimensions[d]) return a->dimensions[d] < b->dimensions[d] ? -1 : 1;
    return 0;
}

static int compare_anchors(const void *left, const void *right) {
    const Anchor *a = left, *b = right;
    int order = compare_shapes(a->shape, b->shape);
    if (order != 0) return order;
    return a->user != b->user ? (a->user < b->user ? -1 : 1) : a->instruction - b->instruction;
}

/* Lists the weights by their shapes, those of one shape in the order of their use. Returns their number. */
static int32_t list_anchors(const Sampler *self, Anchor *anchors) {
    int32_t count = 0;
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        int32_t instruction = self->roles->parameters[p].instruction, user = self->first_user[instruction];
        const IrShape *shape = &instruction_at(self, instruction)->shape;
        bool is_weight = self->roles->parameters[p].role == IR_ROLE_WEIGHT && shape->type != DTYPE_TUPLE;
        if (is_weight && user >= 0) anchors[count++] = (Anchor){shape, instruction, user};
    }
    qsort(anchors, (size_t)count, sizeof *anchors, compare_anchors);
    return count;
}

/* Weights of one shape. */
typedef struct AnchorGroup {
    const Anchor *anchors;
    int32_t count;
    double elements; /* of all */
} AnchorGroup;

enum { MOST_GROUPS = 8 };

/* Lists the shapes of at least LEAST weights, by their elements in all, most first. Returns their number. */
static int32_t list_groups(AnchorGroup *groups, const Anchor *anchors, int32_t anchor_count) {
    int32_t count = 0;
    for (int32_t low = 0, high = 0; low < anchor_count; low = high) {
        while (high < anchor_count && compare_shapes(anchors[low].shape, anchors[high].shape) == 0) high++;
        double elements = (double)(high - low) * (double)ir_shape_elements(anchors[low].shape);
        int32_t at = count;
        while (at > 0 && groups[at - 1].elements < elements) at--;
        if (high - low < LEAST || at == MOST_GROUPS) continue;
        if (count < MOST_GROUPS) count++;
        for (int32_t k = count - 1; k > at; k--) groups[k] = groups[k - 1];
        groups[at] = (AnchorGroup){&anchors[low], high - low, elements};
    }
    return count;
}

/* ---- the layer of every instruction ---- */

static void find_weights(Sampler *self) {
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        const IrParameter *parameter = &self->roles->parameters[p];
        bool is_weight = parameter->role == IR_ROLE_WEIGHT || parameter->role == IR_ROLE_OPTIMIZER;
        self->has_weight[parameter->instruction] = is_weight;
        self->has_data[parameter->instruction] = !is_weight;
    }
    for (int32_t i = 0; i < self->count; i++) {
        const IrInstruction *instruction = instruction_at(self, i);
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            self->has_weight[i] |= self->has_weight[instruction->operands[k]];
            self->has_data[i] |= self->has_data[instruction->operands[k]];
        }
    }
}

/* Returns whether the instruction computes a value of the forward pass from weights and data. */
static bool is_activation(const Sampler *self, int32_t i) {
    return self->roles->phases[i] == IR_PHASE_FORWARD && self->has_weight[i] && self->has_data[i];
}

/* The layer that follows from the operands; NONE: none has one. */
static int32_t layer_of_operands(const Sampler *self, int32_t i) {
    const IrInstruction *instruction = instruction_at(self, i);
    IrPhase phase = self->roles->phases[i];
    bool is_array = instruction->shape.type == DTYPE_TUPLE || instruction->shape.rank > 0;
    int32_t found = NONE;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k], layer = self->layer[operand];
        const IrShape *shape = &instruction_at(self, operand)->shape;
        bool is_scalar = shape->type != DTYPE_TUPLE && shape->rank == 0;
        if (layer < 0 || (phase == IR_PHASE_OPTIMIZER && is_array && is_scalar)) continue;
        if (phase == IR_PHASE_BACKWARD) layer = self->last_layer[operand];
        bool is_further = phase == IR_PHASE_BACKWARD ? layer < found : layer > found;
        if (found < 0 || is_further) found = layer;
    }
    return found;
}

/* The layers of anchors, or of forward values by the borders and of weights by their first users. */
static void seed_layers(Sampler *self, const AnchorGroup *group) {
    memset(self->layer, NONE, sizeof *self->layer * (size_t)self->count);
    for (int32_t k = 0; k < group->count && self->border_count == 0; k++)
        self->layer[group->anchors[k].instruction] = k / (group->count / self->layers);
    if (self->border_count == 0) return;
    for (int32_t i = 0, passed = 0; i < self->count; i++) {
        passed += passed < self->border_count && i == self->borders[passed];
        if (is_activation(self, i)) self->layer[i] = passed;
    }
    for (int32_t i = self->count - 1; i >= 0; i--) {
        bool is_weight = self->has_weight[i] && !self->has_data[i] && self->first_user[i] >= 0;
        if (is_weight) self->layer[i] = self->layer[self->first_user[i]];
    }
}

/* Forward values are also in the layers in which forward operators read them. */
static void find_last_layers(Sampler *self) {
    memcpy(self->last_layer, self->layer, sizeof *self->layer * (size_t)self->count);
    for (int32_t i = 0; i < self->count; i++) {
        const IrInstruction *instruction = instruction_at(self, i);
        if (self->roles->phases[i] != IR_PHASE_FORWARD) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t *last = &self->last_layer[instruction->operands[k]];
            if (*last < self->layer[i]) *last = self->layer[i];
        }
    }
}

static void find_layers(Sampler *self, const AnchorGroup *group) {
    enum { SEVERAL = -2 };
    int32_t *users = self->place; /* for now: the layer of all users */
    int32_t root = self->from->computations[self->from->entry].root;
    seed_layers(self, group);
    for (int32_t i = 0; i < self->count; i++)
        if (self->layer[i] < 0 && i != root && self->roles->phases[i] == IR_PHASE_FORWARD)
            self->layer[i] = layer_of_operands(self, i);
    find_last_layers(self);
    for (int32_t i = 0; i < self->count; i++) {
        if (self->layer[i] >= 0 || i == root) continue;
        self->layer[i] = self->last_layer[i] = layer_of_operands(self, i);
    }
    for (int32_t i = 0; i < self->count; i++) users[i] = NONE;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = instruction_at(self, i);
        if (self->layer[i] < 0 && i != root) self->layer[i] = users[i];
        if (self->layer[i] == SEVERAL) self->layer[i] = NONE;
        if (i == root) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k], *of = &users[operand];
            bool is_first = self->has_weight[operand] && self->layer[i] >= 0;
            if (is_first || *of == NONE) *of = self->layer[i] >= 0 ? self->layer[i] : SEVERAL;
            else if (!self->has_weight[operand] && *of != self->layer[i]) *of = SEVERAL;
        }
    }
}

/* Lists the instructions of each layer, in order. */
static void list_members(Sampler *self) {
    int32_t *first = self->first;
    memset(first, 0, sizeof *first * (size_t)(self->layers + 2));
    for (int32_t i = 0; i < self->count; i++)
        if (self->layer[i] >= 0) first[self->layer[i] + 2]++;
    for (int32_t l = 0; l < self->layers; l++) first[l + 2] += first[l + 1];
    for (int32_t i = 0; i < self->count; i++) { /* first[l + 1] is where the next one of layer l goes */
        int32_t layer = self->layer[i];
        if (layer < 0) continue;
        self->members[first[layer + 1]++] = i;
    }
    for (int32_t i = 0; i < self->count; i++)
        if (self->layer[i] < 0) self->place[i] = NONE;
    for (int32_t l = 0; l < self->layers; l++)
        for (int32_t m = first[l]; m < first[l + 1]; m++) self->place[self->members[m]] = m - first[l];
}

/* ---- runs of equal layers ---- */

/* Numbers values that have no layer: equal ones are made alike of constants, or are one. */
static void number_invariants(Sampler *self) {
    for (int32_t i = 0; i < self->count; i++) {
        const IrInstruction *instruction = instruction_at(self, i);
        bool is_own = self->layer[i] >= 0 || instruction->opcode == IR_PARAMETER;
        uint64_t number = is_own ? hash_combine(1, (uint64_t)i) : self->operators[i];
        for (int32_t k = 0; k < instruction->operand_count && !is_own; k++)
            number = hash_combine(number, self->invariants[instruction->operands[k]]);
        self->invariants[i] = number;
    }
}

/* Returns whether the members of a layer are those of the next one, up to the shift. */
static bool equals_next(const Sampler *self, int32_t layer) {
    const int32_t *first = self->first;
    int32_t count = first[layer + 1] - first[layer];
    if (count == 0 || first[layer + 2] - first[layer + 1] != count) return false;
    for (int32_t m = 0; m < count; m++) {
        int32_t i = self->members[first[layer] + m], j = self->members[first[layer + 1] + m];
        const IrInstruction *a = instruction_at(self, i), *b = instruction_at(self, j);
        bool is_same = self->roles->phases[i] == self->roles->phases[j] &&
                       self->operators[i] == self->operators[j] && a->operand_count == b->operand_count;
        if (!is_same) return false;
        for (int32_t k = 0; k < a->operand_count; k++) {
            int32_t of_a = a->operands[k], of_b = b->operands[k];
            bool is_invariant = self->layer[of_a] < 0 && self->layer[of_b] < 0;
            if (is_invariant && self->invariants[of_a] == self->invariants[of_b]) continue;
            int32_t shift = self->layer[of_a] - layer;
            bool is_moved = self->layer[of_a] >= 0 && self->layer[of_b] - layer - 1 == shift &&
                            self->place[of_a] == self->place[of_b];
            if (!is_moved || shift < -REACH || shift > REACH) return false;
        }
    }
    return true;
}

/* The longest run of equal layers; its length. */
static int32_t find_run(Sampler *self) {
    self->low = self->high = 0;
    for (int32_t l = 0, low = 0; l + 1 < self->layers; l++) {
        if (!equals_next(self, l)) low = l + 1;
        else if (l + 1 - low > self->high - self->low) self->low = low, self->high = l + 1;
    }
    return self->high - self->low + 1;
}

/* Finds the layers, and a run of equal ones; false: it is short. */
static bool find_layers_and_run(Sampler *self, const AnchorGroup *group) {
    find_layers(self, group);
    list_members(self);
    number_invariants(self);
    return find_run(self) >= LEAST;
}

/* ---- borders of layers ---- */

/* Counts the bytes of activations that go over a cut before each instruction. */
static void count_crossing(const Sampler *self, int64_t *crossing) {
    int32_t *last_use = self->place; /* for now */
    for (int32_t i = 0; i < self->count; i++) last_use[i] = NONE;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const IrInstruction *user = instruction_at(self, i);
        if (self->roles->phases[i] != IR_PHASE_FORWARD) continue;
        bool hands_on = user->opcode == IR_TUPLE || user->opcode == IR_BITCAST || user->opcode == IR_RESHAPE;
        for (int32_t k = 0; k < user->operand_count; k++) {
            int32_t *last = &last_use[user->operands[k]], use = hands_on ? last_use[i] : i;
            if (*last < use) *last = use;
        }
    }
    for (int32_t i = 0; i < self->count; i++) {
        const IrInstruction *instruction = instruction_at(self, i);
        bool is_sent = is_activation(self, i) && instruction->shape.type != DTYPE_TUPLE &&
                       instruction->opcode != IR_BITCAST && instruction->opcode != IR_RESHAPE;
        if (!is_sent || last_use[i] <= i) continue;
        crossing[i + 1] += ir_shape_bytes(&instruction->shape);
        crossing[last_use[i] + 1] -= ir_shape_bytes(&instruction->shape);
    }
    for (int32_t i = 1; i <= self->count; i++) crossing[i] += crossing[i - 1];
}

/* The operator of a layer before which the fewest bytes cross, of those with work; NONE: it has none. */
static int32_t find_border(const Sampler *self, int32_t layer, const int64_t *crossing) {
    int32_t best = NONE;
    for (int32_t m = self->first[layer]; m < self->first[layer + 1]; m++) {
        int32_t i = self->members[m];
        bool is_fewer = is_activation(self, i) && (best < 0 || crossing[i] < crossing[best]);
        if (is_fewer && ir_instruction_flops(self->from, i, self->scratch) > 0) best = i;
    }
    return best;
}

/* Sets the borders: the same operator in all layers of the run, and beyond it at the same distances. */
static bool set_borders(Sampler *self) {
    int64_t *crossing = ARENA_ARRAY(self->scratch, int64_t, self->count + 2);
    self->borders = ARENA_ARRAY(self->scratch, int32_t, self->count + 1);
    if (self->scratch->failed) return false;
    int32_t place_of_middle = self->low + (self->high - self->low) / 2, count = 0;
    count_crossing(self, crossing);
    list_members(self);
    int32_t middle = find_border(self, place_of_middle, crossing);
    if (middle < 0) return false;
    int32_t at = self->place[middle], first = self->members[self->first[self->low] + at],
            last = self->members[self->first[self->high] + at];
    int32_t distance = (last - first) / (self->high - self->low);
    int32_t before = first - distance, behind = last + distance;
    while (before > 0 && self->operators[before] == self->operators[middle] && is_activation(self, before))
        before -= distance;
    for (before += distance; before < first; before += distance) self->borders[count++] = before;
    for (int32_t l = self->low; l <= self->high; l++) {
        int32_t border = self->members[self->first[l] + at];
        if (count > 0 && border <= self->borders[count - 1]) return false;
        self->borders[count++] = border;
    }
    for (; behind < self->count; behind += distance) {
        if (self->operators[behind] != self->operators[middle] || !is_activation(self, behind)) break;
        self->borders[count++] = behind;
    }
    self->border_count = count;
    return true;
}

/* Finds layers that begin where a pipeline is cut, by one, two, ... weights of a group in each; false: there
 * is no run of them that is equal. */
static bool find_bordered_layers(Sampler *self, const AnchorGroup *group) {
    for (int32_t each = 1; group->count / each >= LEAST; each++) {
        if (group->count % each != 0) continue;
        self->border_count = 0;
        self->layers = group->count / each;
        if (!find_layers_and_run(self, group) || !set_borders(self)) continue;
        self->layers = self->border_count + 1;
        if (find_layers_and_run(self, group)) return true;
    }
    return false;
}

/* The same by the first shape of weights by which there are such layers. */
static bool find_sampled_layers(Sampler *self) {
    AnchorGroup groups[MOST_GROUPS];
    Anchor *anchors = ARENA_ARRAY(self->scratch, Anchor, self->roles->parameter_count + 1);
    bool is_found = false;
    if (self->scratch->failed) return false;
    find_first_users(self);
    find_weights(self);
    int32_t count = list_groups(groups, anchors, list_anchors(self, anchors));
    for (int32_t k = 0; k < count && !is_found; k++) is_found = find_bordered_layers(self, &groups[k]);
    return is_found;
}

/* ---- the sample ---- */

static bool is_left_out(const Sampler *self, int32_t layer) {
    return layer >= self->low + KEPT - REACH && layer <= self->high - REACH;
}

/* The place of a kept layer among those kept of the run. */
static int32_t kept_place(const Sampler *self, int32_t layer) {
    return layer <= self->high - REACH ? layer - self->low : KEPT - 1 - (self->high - layer);
}

/* The layers that a kept layer stands for: those of the run are dealt to the kept ones. */
static int32_t layers_for(const Sampler *self, int32_t layer) {
    int32_t all = self->high - self->low + 1, at = kept_place(self, layer);
    bool is_in_run = layer >= self->low && layer <= self->high;
    return is_in_run ? all * (at + 1) / KEPT - all * at / KEPT : 1;
}

/* The kept layer that stands for one of the run. */
static int32_t standing_layer(const Sampler *self, int32_t layer) {
    if (layer < self->low || layer > self->high) return layer;
    int32_t kept = self->low, end = self->low + layers_for(self, self->low);
    while (layer >= end) {
        kept = kept == self->low + KEPT - REACH - 1 ? self->high - REACH + 1 : kept + 1;
        end += layers_for(self, kept);
    }
    return kept;
}

/* The instruction at the place of `i`, which is in the run, in another layer of it. */
static int32_t in_layer(const Sampler *self, int32_t i, int32_t layer) {
    return self->members[self->first[layer] + self->place[i]];
}

/* The operand that takes the place of one, for a user in `layer` (NONE: in none): as far away among the kept
 * layers. */
static int32_t replaced(const Sampler *self, int32_t operand, int32_t layer) {
    int32_t of = self->layer[operand], last = self->low + KEPT - REACH - 1;
    if (of < 0 || !is_left_out(self, of)) return operand;
    if (layer < 0) return in_layer(self, operand, last);
    int32_t wanted =
        layer <= last ? of - last - 1 + self->high - REACH + 1 : of - (self->high - REACH) + last;
    bool is_in_run = wanted >= self->low && wanted <= self->high;
    return in_layer(self, operand, is_in_run ? wanted : last);
}

/* Marks what the sample has: all but the layers that are left out, and of the rest what something reads. */
static void mark_kept(Sampler *self) {
    int32_t root = self->from->computations[self->from->entry].root;
    const IrInstruction *outputs = instruction_at(self, root);
    self->is_kept[root] = true;
    for (int32_t k = 0; k < outputs->operand_count; k++) {
        int32_t operand = outputs->operands[k];
        if (self->layer[operand] < 0 || !is_left_out(self, self->layer[operand]))
            self->is_kept[operand] = true;
    }
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = instruction_at(self, i);
        for (int32_t k = 0; self->is_kept[i] && i != root && k < instruction->operand_count; k++)
            self->is_kept[replaced(self, instruction->operands[k], self->layer[i])] = true;
    }
}

typedef struct Copying {
    const Sampler *sampler;
    IrComposer composer;
    int32_t *made;        /* [instruction]: its index in the computation that is made, or NONE */
    int32_t *computation; /* [computation]: the one that is made, or NONE */
    int32_t *count;       /* [computation made]: the layers that its caller stands for */
    IrLayerSample *record;
    bool fails;
} Copying;

static int32_t *called_of(Copying *self, const IrInstruction *from, int32_t layers) {
    int32_t *called = ARENA_ARRAY(&self->composer.module->arena, int32_t, from->called_count + 1);
    for (int32_t k = 0; called && k < from->called_count; k++) {
        int32_t *made = &self->computation[from->called[k]];
        if (*made < 0)
            *made = ir_compose_computation(&self->composer,
                                           self->sampler->from->computations[from->called[k]].name);
        called[k] = *made;
        self->count[*made] = layers;
    }
    return called;
}

/* Attributes with the number of a parameter in the sample. */
static const IrAttributes *number_parameter(Copying *self, const IrAttributes *from) {
    IrAttributes *attributes = ARENA_ARRAY(&self->composer.module->arena, IrAttributes, 1);
    if (!attributes) return from;
    *attributes = *from;
    attributes->parameter_number = self->record->parameter_count;
    self->record->parameters[self->record->parameter_count++] = (int32_t)from->parameter_number;
    return attributes;
}

/* The root has the outputs that are kept. */
static void copy_root(Copying *self, IrInstruction *root, int32_t *operands) {
    const IrInstruction *from =
        instruction_at(self->sampler, self->sampler->from->computations[self->sampler->from->entry].root);
    Arena *arena = &self->composer.module->arena;
    IrShape *elements = ARENA_ARRAY(arena, IrShape, from->operand_count + 1);
    int32_t count = 0;
    if (!elements) return;
    for (int32_t k = 0; k < from->operand_count; k++) {
        int32_t made = self->made[from->operands[k]];
        if (made < 0) continue;
        operands[count] = made;
        elements[count] = from->shape.elements[k];
        self->record->outputs[count++] = k;
    }
    self->record->output_count = root->operand_count = root->shape.rank = count;
    root->shape.elements = elements;
}

static void copy_instruction(Copying *self, int32_t made_in, int32_t i, int32_t layers) {
    const Sampler *sampler = self->sampler;
    const IrInstruction *from = instruction_at(sampler, i);
    IrInstruction instruction = *from;
    Arena *arena = &self->composer.module->arena;
    int32_t *operands = ARENA_ARRAY(arena, int32_t, from->operand_count + 1);
    instruction.called = called_of(self, from, layers);
    if (arena->failed) return;
    bool is_root = made_in == 0 && i == sampler->from->computations[sampler->from->entry].root;
    for (int32_t k = 0; k < from->operand_count && !is_root; k++) {
        int32_t operand = from->operands[k];
        operands[k] = self->made[made_in == 0 ? replaced(sampler, operand, sampler->layer[i]) : operand];
        self->fails |= operands[k] < 0;
    }
    if (is_root) copy_root(self, &instruction, operands);
    if (made_in == 0 && from->opcode == IR_PARAMETER)
        instruction.attributes = number_parameter(self, from->attributes);
    instruction.operands = operands;
    if (!self->fails) self->made[i] = ir_compose(&self->composer, made_in, &instruction, i);
}

/* Copies an instruction of the entry. An operand that takes the place of another one may come later in the
 * module: it is copied before. */
static void copy_entry(Copying *self, int32_t i, int32_t depth) {
    enum { MOST_DEPTH = 256 };
    const Sampler *sampler = self->sampler;
    const IrInstruction *from = instruction_at(sampler, i);
    if (self->made[i] >= 0 || self->fails) return;
    self->fails |= depth == MOST_DEPTH;
    bool is_root = i == sampler->from->computations[sampler->from->entry].root;
    for (int32_t k = 0; k < from->operand_count && !is_root && !self->fails; k++)
        copy_entry(self, replaced(sampler, from->operands[k], sampler->layer[i]), depth + 1);
    copy_instruction(self, 0, i, sampler->layer[i] >= 0 ? layers_for(sampler, sampler->layer[i]) : 1);
}

static void copy_computations(Copying *self) {
    const Sampler *sampler = self->sampler;
    const IrModule *from = sampler->from;
    bool goes_on = true;
    while (goes_on && !self->fails) {
        goes_on = false;
        for (int32_t c = 0; c < from->computation_count && !self->fails; c++) {
            int32_t made_in = self->computation[c];
            if (made_in < 0 || self->composer.computations[made_in].count > 0) continue;
            const IrComputation *body = &from->computations[c];
            for (int32_t i = body->first; i < body->first + body->count; i++) {
                if (made_in > 0) copy_instruction(self, made_in, i, self->count[made_in]);
                else if (sampler->is_kept[i]) copy_entry(self, i, 0);
            }
            if (self->composer.module->arena.failed || self->fails) return;
            self->composer.computations[made_in].root = self->made[body->root];
            goes_on = true;
        }
    }
}

/* Notes for every entry instruction of the module the one that stands for it. */
static void find_standing(Copying *self) {
    const Sampler *sampler = self->sampler;
    IrLayerSample *record = self->record;
    for (int32_t i = 0; i < sampler->count; i++) {
        int32_t layer = sampler->layer[i];
        int32_t kept = layer >= 0 ? standing_layer(sampler, layer) : NONE;
        bool is_moved = kept >= 0 && kept != layer;
        record->layer[i] = layer;
        record->standing[i] = self->made[is_moved ? in_layer(sampler, i, kept) : i];
    }
}

/* Marks values that follow from one weight alone, and gradients. A gradient is a value of the backward pass
 * that only updates read, directly or after operators that keep its elements. */
static void mark_beside(bool *is_beside, const IrModule *module, const IrPhase *phases,
                        const IrParameter *parameters, int32_t parameter_count) {
    int32_t count = module->computations[module->entry].count;
    for (int32_t p = 0; p < parameter_count; p++)
        is_beside[module->computations[module->entry].parameters[p]] = parameters[p].role == IR_ROLE_WEIGHT;
    for (int32_t i = count - 1; i >= 0; i--) /* for now: gradients are not read by anything else */
        if (phases[i] == IR_PHASE_BACKWARD) is_beside[i] = true;
    for (int32_t i = count - 1; i >= 0; i--) {
        const IrInstruction *user = &module->instructions[i];
        for (int32_t k = 0; k < user->operand_count; k++) {
            int32_t operand = user->operands[k];
            const IrShape *from = &module->instructions[operand].shape;
            if (phases[operand] != IR_PHASE_BACKWARD || phases[i] == IR_PHASE_OPTIMIZER) continue;
            bool keeps = phases[i] == IR_PHASE_BACKWARD && is_beside[i] && user->opcode != IR_DOT &&
                         user->opcode != IR_CONVOLUTION && user->opcode != IR_TUPLE &&
                         from->type != DTYPE_TUPLE && user->shape.type != DTYPE_TUPLE &&
                         ir_shape_elements(from) == ir_shape_elements(&user->shape);
            if (!keeps) is_beside[operand] = false;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        if (instruction->operand_count == 1 && phases[i] != IR_PHASE_BACKWARD)
            is_beside[i] = is_beside[instruction->operands[0]];
    }
}

/* Finds the outputs that update parameters: if that of the module is left out, the one that takes its place.
 */
static void find_updates(Copying *self) {
    const Sampler *sampler = self->sampler;
    const IrInstruction *root =
        instruction_at(sampler, sampler->from->computations[sampler->from->entry].root);
    IrLayerSample *record = self->record;
    for (int32_t p = 0; p < record->parameter_count; p++) {
        const IrParameter *parameter = &sampler->roles->parameters[record->parameters[p]];
        record->updates[p] = NONE;
        if (parameter->output < 0) continue;
        int32_t layer = sampler->layer[parameter->instruction];
        int32_t value = replaced(sampler, root->operands[parameter->output], layer);
        for (int32_t k = 0; k < record->output_count && record->updates[p] < 0; k++)
            if (root->operands[record->outputs[k]] == value) record->updates[p] = k;
    }
}

/* The number of a kept layer among those of the sample. */
static int32_t number_in_sample(const Sampler *self, int32_t layer) {
    int32_t left_out = self->high - self->low + 1 - KEPT;
    return layer > self->high - REACH ? layer - left_out : layer;
}

/* Sets the layer of each instruction, and how many it stands for; called computations have the number of
 * their caller. */
static AmStatus count_layers(const Copying *self, const int32_t *origins, AmError *error) {
    IrModule *module = self->composer.module;
    const Sampler *sampler = self->sampler;
    int32_t *layers = ARENA_ARRAY(&module->arena, int32_t, module->instruction_count + 1);
    int32_t *number = ARENA_ARRAY(&module->arena, int32_t, module->instruction_count + 1);
    IrPhase *phases = ARENA_ARRAY(&module->arena, IrPhase, module->instruction_count + 1);
    IrLoops *loops = ARENA_ARRAY(&module->arena, IrLoops, 1);
    bool *is_beside = ARENA_ARRAY(&module->arena, bool, module->instruction_count + 1);
    bool *may_cut = ARENA_ARRAY(&module->arena, bool, module->instruction_count + 1);
    IrParameter *parameters = ARENA_ARRAY(&module->arena, IrParameter, self->record->parameter_count + 1);
    if (module->arena.failed) return am_fail_memory(error, module->instruction_count);
    for (int32_t p = 0; p < self->record->parameter_count; p++)
        parameters[p] = sampler->roles->parameters[self->record->parameters[p]];
    for (int32_t i = 0; i < module->instruction_count; i++) {
        layers[i] = 1;
        number[i] = NONE;
        phases[i] = sampler->roles->phases[origins[i]];
    }
    for (int32_t i = 0; i < module->computations[0].count; i++) {
        int32_t layer = sampler->layer[origins[i]];
        if (layer >= 0) layers[i] = layers_for(sampler, layer);
        if (layer >= 0) number[i] = number_in_sample(sampler, layer);
        may_cut[i] = layers[i] == 1 || (layer > 0 && origins[i] == sampler->borders[layer - 1]);
    }
    for (int32_t i = 0; i < module->instruction_count; i++) /* callers come before what they call */
        for (int32_t k = 0; k < module->instructions[i].called_count; k++) {
            const IrComputation *called = &module->computations[module->instructions[i].called[k]];
            for (int32_t j = called->first; j < called->first + called->count; j++) {
                layers[j] = layers[i];
                number[j] = number[i];
            }
        }
    *loops = *module->loops;
    loops->layers = layers;
    loops->layer = number;
    loops->layer_count = number_in_sample(sampler, sampler->layers);
    loops->phases = phases;
    mark_beside(is_beside, module, phases, parameters, self->record->parameter_count);
    loops->is_beside = is_beside;
    loops->may_cut = may_cut;
    module->loops = loops;
    return AM_OK;
}

static AmStatus compose(IrModule **sample, IrLayerSample **record, Sampler *sampler, AmError *error) {
    const IrModule *from = sampler->from;
    IrModule *module = ir_module_new(from->source);
    if (!module) return am_fail_memory(error, (int64_t)sizeof *module);
    Copying self = {.sampler = sampler,
                    .composer = {.module = module},
                    .made = ARENA_ARRAY(sampler->scratch, int32_t, from->instruction_count + 1),
                    .computation = ARENA_ARRAY(sampler->scratch, int32_t, from->computation_count + 1),
                    .count = ARENA_ARRAY(sampler->scratch, int32_t, from->computation_count + 1),
                    .record = ARENA_ARRAY(&module->arena, IrLayerSample, 1)};
    const IrRoles *roles = sampler->roles;
    IrLayerSample *made = self.record;
    AmStatus status = AM_OK;
    if (made)
        *made =
            (IrLayerSample){.standing = ARENA_ARRAY(&module->arena, int32_t, sampler->count + 1),
                            .layer = ARENA_ARRAY(&module->arena, int32_t, sampler->count + 1),
                            .parameters = ARENA_ARRAY(&module->arena, int32_t, roles->parameter_count + 1),
                            .outputs = ARENA_ARRAY(&module->arena, int32_t, roles->output_count + 1),
                            .updates = ARENA_ARRAY(&module->arena, int32_t, roles->parameter_count + 1),
                            .from_count = from->instruction_count};
    if (sampler->scratch->failed || module->arena.failed) {
        status = am_fail_memory(error, from->instruction_count);
        goto fail;
    }
    memset(self.made, NONE, sizeof *self.made * (size_t)from->instruction_count);
    memset(self.computation, NONE, sizeof *self.computation * (size_t)from->computation_count);
    module->name = from->name;
    self.computation[from->entry] =
        ir_compose_computation(&self.composer, from->computations[from->entry].name);
    copy_computations(&self);
    if (module->arena.failed) status = am_fail_memory(error, from->instruction_count);
    if (status != AM_OK || self.fails) goto fail;
    find_standing(&self);
    find_updates(&self);
    TRY_OR_FAIL(ir_compose_finish(&self.composer, &made->origins, error));
    TRY_OR_FAIL(count_layers(&self, made->origins, error));
    *sample = module;
    *record = made;
    return AM_OK;
fail:
    ir_module_free(module);
    return status;
}

AmStatus ir_sample_layers(IrModule **sample, IrLayerSample **record, const IrModule *canonical,
                          const IrRoles *roles, AmError *error) {
    Arena scratch = {0};
    int32_t count = canonical->computations[canonical->entry].count;
    Sampler self = {.from = canonical,
                    .roles = roles,
                    .scratch = &scratch,
                    .count = count,
                    .first_user = ARENA_ARRAY(&scratch, int32_t, count + 1),
                    .layer = ARENA_ARRAY(&scratch, int32_t, count + 1),
                    .last_layer = ARENA_ARRAY(&scratch, int32_t, count + 1),
                    .first = ARENA_ARRAY(&scratch, int32_t, count + 3),
                    .members = ARENA_ARRAY(&scratch, int32_t, count + 1),
                    .place = ARENA_ARRAY(&scratch, int32_t, count + 1),
                    .is_kept = ARENA_ARRAY(&scratch, bool, count + 1),
                    .has_weight = ARENA_ARRAY(&scratch, bool, count + 1),
                    .has_data = ARENA_ARRAY(&scratch, bool, count + 1),
                    .operators = ARENA_ARRAY(&scratch, uint64_t, count + 1),
                    .invariants = ARENA_ARRAY(&scratch, uint64_t, count + 1)};
    const IrInstruction *root = &canonical->instructions[canonical->computations[canonical->entry].root];
    AmStatus status = scratch.failed ? am_fail_memory(error, count) : AM_OK;
    *sample = NULL;
    bool is_sampled = status == AM_OK && root->opcode == IR_TUPLE;
    if (is_sampled) status = ir_hash_operators(self.operators, canonical, error);
    if (is_sampled && status == AM_OK && find_sampled_layers(&self)) {
        mark_kept(&self);
        status = compose(sample, record, &self, error);
    }
    arena_free(&scratch);
    return status;
}

AmStatus ir_sample_roles(IrRoles **sample_roles, Arena *arena, const IrModule *sample,
                         const IrLayerSample *record, const IrRoles *roles, AmError *error) {
    const IrComputation *entry = &sample->computations[sample->entry];
    const IrInstruction *root = &sample->instructions[entry->root];
    int32_t count = sample->instruction_count;
    IrRoles *made = ARENA_ARRAY(arena, IrRoles, 1);
    IrParameter *parameters = ARENA_ARRAY(arena, IrParameter, record->parameter_count + 1);
    int32_t *number = ARENA_ARRAY(arena, int32_t, roles->output_count + 1);
    IrPhase *phases = ARENA_ARRAY(arena, IrPhase, count + 1);
    int32_t *repeats = roles->repeats ? ARENA_ARRAY(arena, int32_t, count + 1) : NULL;
    int32_t *made_of = ARENA_ARRAY(arena, int32_t, record->from_count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < roles->output_count; k++) number[k] = NONE;
    for (int32_t i = 0; i < record->from_count; i++) made_of[i] = NONE;
    for (int32_t i = 0; i < count; i++) made_of[record->origins[i]] = i;
    for (int32_t k = 0; k < record->output_count; k++) number[record->outputs[k]] = k;
    for (int32_t p = 0; p < record->parameter_count; p++) {
        parameters[p] = roles->parameters[record->parameters[p]];
        parameters[p].number = p;
        parameters[p].instruction = entry->parameters[p];
        parameters[p].output = record->updates[p];
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t repeated = repeats ? roles->repeats[record->origins[i]] : NONE;
        phases[i] = roles->phases[record->origins[i]];
        if (repeats) repeats[i] = repeated >= 0 ? made_of[repeated] : NONE;
    }
    *made = (IrRoles){.parameters = parameters,
                      .parameter_count = record->parameter_count,
                      .outputs = (int32_t *)root->operands,
                      .output_count = record->output_count,
                      .loss = roles->loss >= 0 ? number[roles->loss] : NONE,
                      .phases = phases,
                      .repeats = repeats};
    *sample_roles = made;
    return AM_OK;
}
