/* Finds weights, gradients and optimizer state among the values of a step, for storage entries.
 *
 * Three passes. Weights are followed down through their views, callers before the loops that read
 * them. Then, from the new weights upwards, optimizer and gradient values are found, dimension by
 * dimension through the factor rules. A last pass downwards adds other values that the optimizer
 * derives (squares for a norm, factored statistics) and pairs new state with old.
 */
#include "propagation/plan/storage_roles.h"

#include "propagation/plan/split_options.h"

typedef struct StorageRoleFinder {
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    const IrRoles *roles;
    StorageRoles *result;
    int32_t *claims; /* [instruction]: uses by the optimizer, or on a gradient's way to it */
} StorageRoleFinder;

static int32_t rank_of(const StorageRoleFinder *self, int32_t i) {
    const IrShape *shape = split_options_array_shape(&self->module->instructions[i]);
    return shape->type == DTYPE_TUPLE ? 0 : shape->rank;
}

static int8_t *dimensions_of(const StorageRoleFinder *self, int32_t i) {
    return &self->result->dimension[self->result->first[i]];
}

/* Gives `to`, slot `to_slot` of instruction `through`, the dimensions of `from`,
 * which is slot `from_slot`; a role that it has is kept, if it follows the same weight. */
static void hand_on(StorageRoleFinder *self, int32_t through, int32_t from, int32_t from_slot, int32_t to,
                    int32_t to_slot, StorageRole role) {
    StorageRoles *result = self->result;
    const FactorRule *rule = &self->rules->rules[through];
    int8_t *have = dimensions_of(self, from), *want = dimensions_of(self, to);
    if (result->role[to] != STORAGE_NONE && result->weight[to] != result->weight[from]) return;
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->kind != FACTOR_PARALLEL) continue;
        int32_t source = factor->dimension[from_slot], target = factor->dimension[to_slot];
        if (source < 0 || target < 0 || have[source] < 0 || want[target] >= 0) continue;
        want[target] = have[source];
        if (result->role[to] == STORAGE_NONE) {
            result->role[to] = (uint8_t)role;
            result->weight[to] = result->weight[from];
            result->is_added_up[to] = role == STORAGE_GRADIENT && result->is_added_up[from];
        }
    }
}

static void copy_role(StorageRoleFinder *self, int32_t from, int32_t to) {
    StorageRoles *result = self->result;
    if (to < 0 || result->role[from] == STORAGE_NONE || result->role[to] != STORAGE_NONE) return;
    if (rank_of(self, from) != rank_of(self, to)) return;
    result->role[to] = result->role[from];
    result->weight[to] = result->weight[from];
    result->is_added_up[to] = result->is_added_up[from];
    for (int32_t d = 0; d < rank_of(self, from); d++)
        dimensions_of(self, to)[d] = dimensions_of(self, from)[d];
}

static void set_whole(StorageRoleFinder *self, int32_t i, StorageRole role, int32_t weight) {
    self->result->role[i] = (uint8_t)role;
    self->result->weight[i] = weight;
    for (int32_t d = 0; d < rank_of(self, i); d++) dimensions_of(self, i)[d] = (int8_t)d;
}

/* Returns whether a value is a view of a weight, or a cast that makes it no wider: gathers are of the
 * narrowest type. */
static bool is_weight_view(const IrModule *module, const IrInstruction *instruction) {
    switch (instruction->opcode) {
    case IR_CONVERT:
        return dtype_bytes(instruction->shape.type) <=
               dtype_bytes(module->instructions[instruction->operands[0]].shape.type);
    case IR_COPY:
    case IR_RESHAPE:
    case IR_TRANSPOSE:
    case IR_SLICE:
    case IR_DYNAMIC_SLICE: return true;
    default: return false;
    }
}

static bool is_decided(const StorageRoleFinder *self, int32_t i) {
    return self->split_options->live[i] && !self->rules->on_demand[i] &&
           self->rules->rules[i].result_count == 1;
}

static void find_weights(StorageRoleFinder *self) {
    const Rules *rules = self->rules;
    for (int32_t p = 0; p < self->roles->parameter_count; p++)
        if (self->roles->parameters[p].role == IR_ROLE_WEIGHT)
            set_whole(self, self->roles->parameters[p].instruction, STORAGE_WEIGHT, p);
    for (int32_t c = 0; c < self->module->computation_count; c++) {
        const IrComputation *body = &self->module->computations[c];
        if (!rules->is_planned[c]) continue;
        const PlannedLoop *loop = rules->region_of[c] < 0 ? NULL : &rules->loops[rules->region_of[c]];
        for (int32_t l = 0; loop && loop->body == c && l < loop->leaf_count; l++) {
            const LoopLeaf *leaf = &loop->leaves[l];
            if (leaf->is_invariant && leaf->initial_leaf == 0) copy_role(self, leaf->initial, leaf->in_body);
        }
        for (int32_t i = body->first; i < body->first + body->count; i++) {
            if (!is_decided(self, i) || self->roles->phases[i] == IR_PHASE_OPTIMIZER) continue;
            if (!is_weight_view(self->module, &self->module->instructions[i])) continue;
            int32_t source = split_options_operand(self->split_options, i, 0);
            if (self->result->role[source] == STORAGE_WEIGHT)
                hand_on(self, i, source, 0, i, self->rules->rules[i].operand_count, STORAGE_WEIGHT);
        }
    }
}

/* Operators that a gradient passes on its way to the optimizer. */
static bool passes_gradient(IrOpcode opcode) {
    switch (opcode) {
    case IR_COPY:
    case IR_RESHAPE:
    case IR_TRANSPOSE:
    case IR_DYNAMIC_UPDATE_SLICE: return true;
    default: return ir_is_elementwise(opcode);
    }
}

/* Assigns roles to the operands of instruction i, from its own role. */
static void claim_operands(StorageRoleFinder *self, int32_t i) {
    const IrPhase *phases = self->roles->phases;
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
        int32_t source = split_options_operand(self->split_options, i, k);
        const IrInstruction *instruction = &self->module->instructions[source];
        self->claims[source]++;
        if (!is_decided(self, source)) continue;
        bool is_parameter = instruction->opcode == IR_PARAMETER && source < self->rules->entry_count;
        StorageRole role =
            is_parameter || phases[source] == IR_PHASE_OPTIMIZER ? STORAGE_OPTIMIZER : STORAGE_GRADIENT;
        if (is_parameter &&
            self->roles->parameters[instruction->attributes->parameter_number].role != IR_ROLE_OPTIMIZER)
            continue;
        hand_on(self, i, i, self->rules->rules[i].operand_count, source, k, role);
    }
}

/* Marks a gradient that a loop accumulates as one in the loop, too. */
static void enter_loop(StorageRoleFinder *self, const PlannedLoop *loop) {
    for (int32_t l = 0; l < loop->leaf_count; l++) {
        const LoopLeaf *leaf = &loop->leaves[l];
        if (leaf->afterwards < 0 || self->result->role[leaf->afterwards] != STORAGE_GRADIENT) continue;
        if (leaf->next_leaf > 0 || leaf->initial_leaf > 0 || leaf->in_condition >= 0) continue;
        self->claims[leaf->next]++;
        copy_role(self, leaf->afterwards, leaf->next);
        copy_role(self, leaf->afterwards, leaf->in_body);
        if (self->split_options->accumulation_of[leaf->next] >= 0 && leaf->in_body >= 0)
            self->result->is_added_up[leaf->next] = self->result->is_added_up[leaf->in_body] = true;
        if (self->rules->on_demand[leaf->initial]) continue;
        self->claims[leaf->initial]++;
        copy_role(self, leaf->afterwards, leaf->initial);
    }
}

static void forget(StorageRoleFinder *self, int32_t i) {
    self->result->role[i] = STORAGE_NONE;
    self->result->weight[i] = -1;
    for (int32_t d = 0; d < rank_of(self, i); d++) dimensions_of(self, i)[d] = -1;
}

static void find_gradients(StorageRoleFinder *self) {
    const IrRoles *roles = self->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT || roles->parameters[p].output < 0) continue;
        int32_t made = self->rules->alias[roles->outputs[roles->parameters[p].output]];
        bool fits = is_decided(self, made) && self->result->role[made] == STORAGE_NONE &&
                    roles->phases[made] == IR_PHASE_OPTIMIZER &&
                    rank_of(self, made) == rank_of(self, roles->parameters[p].instruction);
        if (fits) set_whole(self, made, STORAGE_OPTIMIZER, p);
    }
    for (int32_t c = 0; c < self->module->computation_count; c++) {
        const IrComputation *body = &self->module->computations[c];
        if (!self->rules->is_planned[c]) continue;
        for (int32_t i = body->first + body->count - 1; i >= body->first; i--) {
            if (!self->split_options->live[i]) continue;
            const PlannedLoop *loop = rules_loop(self->rules, i);
            if (loop) enter_loop(self, loop);
            IrOpcode opcode = self->module->instructions[i].opcode;
            if (opcode == IR_PARAMETER || opcode == IR_GET_TUPLE_ELEMENT) {
                if (self->result->role[i] == STORAGE_GRADIENT &&
                    self->claims[i] < self->split_options->uses[i])
                    forget(self, i);
                continue;
            }
            switch ((StorageRole)self->result->role[i]) {
            case STORAGE_OPTIMIZER: claim_operands(self, i); break;
            case STORAGE_GRADIENT:
                if (self->claims[i] < self->split_options->uses[i]) forget(self, i);
                else if (passes_gradient(opcode)) claim_operands(self, i);
                break;
            default:
                for (int32_t k = 0; roles->phases[i] == IR_PHASE_OPTIMIZER &&
                                    k < split_options_operand_count(self->split_options, i);
                     k++)
                    self->claims[split_options_operand(self->split_options, i, k)]++;
            }
        }
    }
}

/* Gives other values of the optimizer the role of their largest operand. */
static void find_derived(StorageRoleFinder *self) {
    const IrRoles *roles = self->roles;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!is_decided(self, i) || roles->phases[i] != IR_PHASE_OPTIMIZER) continue;
        if (self->result->role[i] != STORAGE_NONE || rules_loop(self->rules, i)) continue;
        int32_t largest = -1;
        for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
            int32_t source = split_options_operand(self->split_options, i, k);
            if (self->result->role[source] == STORAGE_NONE) continue;
            if (largest < 0 ||
                self->split_options->array_bytes[source] >
                    self->split_options->array_bytes[split_options_operand(self->split_options, i, largest)])
                largest = k;
        }
        if (largest < 0) continue;
        hand_on(self, i, split_options_operand(self->split_options, i, largest), largest, i,
                self->rules->rules[i].operand_count, STORAGE_OPTIMIZER);
    }
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_OPTIMIZER || roles->parameters[p].output < 0) continue;
        int32_t made = self->rules->alias[roles->outputs[roles->parameters[p].output]];
        if (self->result->role[made] != STORAGE_OPTIMIZER) continue;
        copy_role(self, made, roles->parameters[p].instruction);
    }
}

AmStatus storage_find_roles(const StorageRoles **roles, Arena *arena, const Rules *rules,
                            const struct SplitOptions *split_options, const IrRoles *module_roles,
                            AmError *error) {
    int32_t count = rules->count, dimensions = 0;
    StorageRoles *result = ARENA_ARRAY(arena, StorageRoles, 1);
    if (!result) return am_fail_memory(error, (int64_t)sizeof *result);
    StorageRoleFinder self = {.module = rules->module,
                              .rules = rules,
                              .split_options = split_options,
                              .roles = module_roles,
                              .result = result,
                              .claims = ARENA_ARRAY(arena, int32_t, count + 1)};
    *result = (StorageRoles){.role = ARENA_ARRAY(arena, uint8_t, count + 1),
                             .is_added_up = ARENA_ARRAY(arena, bool, count + 1),
                             .is_reread = ARENA_ARRAY(arena, bool, count + 1),
                             .weight = ARENA_ARRAY(arena, int32_t, count + 1),
                             .first = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        result->weight[i] = -1;
        result->first[i] = dimensions;
        dimensions += rank_of(&self, i);
    }
    result->dimension = ARENA_ARRAY(arena, int8_t, dimensions + 1);
    if (!result->dimension) return am_fail_memory(error, dimensions);
    for (int32_t k = 0; k < dimensions; k++) result->dimension[k] = -1;
    find_weights(&self);
    find_gradients(&self);
    find_derived(&self);
    for (int32_t i = 0; i < self.rules->entry_count; i++) {
        if (!self.split_options->live[i] || self.roles->phases[i] != IR_PHASE_RECOMPUTED) continue;
        for (int32_t k = self.split_options->first_operand[i]; k < self.split_options->first_operand[i + 1];
             k++) {
            int32_t operand = self.split_options->operands[k];
            if (result->role[operand] != STORAGE_WEIGHT || result->is_reread[operand]) continue;
            result->is_reread[operand] = true;
            result->reread_count++;
        }
    }
    *roles = result;
    return AM_OK;
}
