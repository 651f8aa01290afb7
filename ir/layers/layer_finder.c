/* Assigns layers from the weights or borders to all other values: forward, then backward and updates, then by
 * users. */
#include "ir/layers/layer_finder.h"

#include <string.h>

void layer_finder_prepare(LayerFinder *self) {
    memset(self->first_user, LAYER_NONE, sizeof *self->first_user * (size_t)self->run.count);
    for (int32_t i = self->run.count - 1; i >= 0; i--) {
        const IrInstruction *user = ir_instruction(self->run.from, i);
        if (self->run.roles->phases[i] != IR_PHASE_FORWARD) continue;
        for (int32_t k = 0; k < user->operand_count; k++) self->first_user[user->operands[k]] = i;
    }
    for (int32_t p = 0; p < self->run.roles->parameter_count; p++) {
        const IrParameter *parameter = &self->run.roles->parameters[p];
        bool is_weight = parameter->role == IR_ROLE_WEIGHT || parameter->role == IR_ROLE_OPTIMIZER;
        self->has_weight[parameter->instruction] = is_weight;
        self->has_data[parameter->instruction] = !is_weight;
    }
    for (int32_t i = 0; i < self->run.count; i++) {
        const IrInstruction *instruction = ir_instruction(self->run.from, i);
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            self->has_weight[i] |= self->has_weight[instruction->operands[k]];
            self->has_data[i] |= self->has_data[instruction->operands[k]];
        }
    }
}

bool layer_is_activation(const LayerFinder *self, int32_t i) {
    return self->run.roles->phases[i] == IR_PHASE_FORWARD && self->has_weight[i] && self->has_data[i];
}

/* Returns the layer that follows from the operands; LAYER_NONE: none has one. */
static int32_t layer_of_operands(const LayerFinder *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->run.from, i);
    IrPhase phase = self->run.roles->phases[i];
    bool is_array = instruction->shape.type == DTYPE_TUPLE || instruction->shape.rank > 0;
    int32_t found = LAYER_NONE;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k], layer = self->run.layer[operand];
        const IrShape *shape = &ir_instruction(self->run.from, operand)->shape;
        bool is_scalar = shape->type != DTYPE_TUPLE && shape->rank == 0;
        if (layer < 0 || (phase == IR_PHASE_OPTIMIZER && is_array && is_scalar)) continue;
        if (phase == IR_PHASE_BACKWARD) layer = self->last_layer[operand];
        bool is_further = phase == IR_PHASE_BACKWARD ? layer < found : layer > found;
        if (found < 0 || is_further) found = layer;
    }
    return found;
}

/* Sets the layers of the weights, or of forward values by the borders and of weights by their first users. */
static void seed_layers(LayerFinder *self, const WeightGroup *group) {
    memset(self->run.layer, LAYER_NONE, sizeof *self->run.layer * (size_t)self->run.count);
    for (int32_t k = 0; k < group->count && self->run.border_count == 0; k++)
        self->run.layer[group->weights[k].instruction] = k / (group->count / self->run.layers);
    if (self->run.border_count == 0) return;
    for (int32_t i = 0, passed = 0; i < self->run.count; i++) {
        passed += passed < self->run.border_count && i == self->run.borders[passed];
        if (layer_is_activation(self, i)) self->run.layer[i] = passed;
    }
    for (int32_t i = self->run.count - 1; i >= 0; i--) {
        bool is_weight = self->has_weight[i] && !self->has_data[i] && self->first_user[i] >= 0;
        if (is_weight) self->run.layer[i] = self->run.layer[self->first_user[i]];
    }
}

static void assign_layers(LayerFinder *self, const WeightGroup *group) {
    enum { SEVERAL = -2 };
    int32_t *users = self->work; /* the layer of all users */
    int32_t root = self->run.from->computations[self->run.from->entry].root;
    seed_layers(self, group);
    for (int32_t i = 0; i < self->run.count; i++)
        if (self->run.layer[i] < 0 && i != root && self->run.roles->phases[i] == IR_PHASE_FORWARD)
            self->run.layer[i] = layer_of_operands(self, i);
    /* The last layer of a value is its own, or a later one of a forward operator that reads it. */
    memcpy(self->last_layer, self->run.layer, sizeof *self->run.layer * (size_t)self->run.count);
    for (int32_t i = 0; i < self->run.count; i++) {
        const IrInstruction *instruction = ir_instruction(self->run.from, i);
        if (self->run.roles->phases[i] != IR_PHASE_FORWARD) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t *last = &self->last_layer[instruction->operands[k]];
            if (*last < self->run.layer[i]) *last = self->run.layer[i];
        }
    }
    for (int32_t i = 0; i < self->run.count; i++) {
        if (self->run.layer[i] >= 0 || i == root) continue;
        self->run.layer[i] = self->last_layer[i] = layer_of_operands(self, i);
    }
    for (int32_t i = 0; i < self->run.count; i++) users[i] = LAYER_NONE;
    for (int32_t i = self->run.count - 1; i >= 0; i--) {
        const IrInstruction *instruction = ir_instruction(self->run.from, i);
        if (self->run.layer[i] < 0 && i != root) self->run.layer[i] = users[i];
        if (self->run.layer[i] == SEVERAL) self->run.layer[i] = LAYER_NONE;
        if (i == root) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k], *of = &users[operand];
            bool is_first = self->has_weight[operand] && self->run.layer[i] >= 0;
            if (is_first || *of == LAYER_NONE) *of = self->run.layer[i] >= 0 ? self->run.layer[i] : SEVERAL;
            else if (!self->has_weight[operand] && *of != self->run.layer[i]) *of = SEVERAL;
        }
    }
}

/* Lists the instructions of each layer, in order. */
static void list_members(LayerFinder *self) {
    int32_t *first = self->run.first;
    memset(first, 0, sizeof *first * (size_t)(self->run.layers + 2));
    for (int32_t i = 0; i < self->run.count; i++)
        if (self->run.layer[i] >= 0) first[self->run.layer[i] + 2]++;
    for (int32_t l = 0; l < self->run.layers; l++) first[l + 2] += first[l + 1];
    for (int32_t i = 0; i < self->run.count; i++) { /* first[l + 1] is where the next one of layer l goes */
        int32_t layer = self->run.layer[i];
        if (layer < 0) continue;
        self->run.members[first[layer + 1]++] = i;
    }
    for (int32_t i = 0; i < self->run.count; i++)
        if (self->run.layer[i] < 0) self->run.place[i] = LAYER_NONE;
    for (int32_t l = 0; l < self->run.layers; l++)
        for (int32_t m = first[l]; m < first[l + 1]; m++)
            self->run.place[self->run.members[m]] = m - first[l];
}

void layer_finder_assign(LayerFinder *self, const WeightGroup *group) {
    assign_layers(self, group);
    list_members(self);
}
