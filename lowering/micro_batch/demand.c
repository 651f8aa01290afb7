/* Finds where values are needed, backwards from the outputs.
 *
 * A replicated value is computed once, outside the loops, as soon as the sums on which it depends
 * are reduced; a split or partial one in the loop of its component, or in every loop that needs it.
 * A loop slices its part out of a full value or, if the operator allows it, computes just that
 * part: dropout's random bits never exist for the whole batch. Values made on demand
 * (propagation/rules/rules.h) are computed in the loop itself.
 */
#include "lowering/micro_batch/micro_batch_rewrite.h"

/* Makes the full value: outside the loops, or in the region that it is in. */
static void make_whole(MicroBatchRewrite *self, int32_t producer, int32_t leaf) {
    MicroBatchState state = *micro_batch_state(self, producer, leaf);
    if (!micro_batch_in_entry(self, producer)) {
        if (state.kind == TIME_FULL) self->needs[producer] |= TIME_NEED_FULL;
        else self->in_levels[producer] = 1;
        return;
    }
    bool is_taken_out =
        state.kind == TIME_PARTIAL || (state.kind == TIME_SPLIT && self->has_weight[producer]);
    int32_t loop = self->reader_loop[producer];
    if (loop >= 0 && self->is_split[loop]) is_taken_out |= state.kind == TIME_FULL;
    if (is_taken_out) self->in_levels[producer] |= 1u << micro_batch_level(self, producer);
    if (self->is_averaged[producer]) {
        self->needs[producer] |= TIME_NEED_AVERAGE;
        return;
    }
    if (state.kind == TIME_SPLIT && is_taken_out) self->is_stacked[self->first_state[producer] + leaf] = true;
    else self->needs[producer] |= TIME_NEED_FULL;
}

static void demand_full(MicroBatchRewrite *self, int32_t producer, int32_t leaf) {
    self->reads_whole[producer] = true;
    make_whole(self, producer, leaf);
}

int32_t micro_batch_find_copy(const MicroBatchRewrite *self, int32_t instruction, int32_t leaf,
                              MicroBatchState state) {
    for (int32_t c = self->first_copy[instruction]; c >= 0; c = self->copies[c].next)
        if (self->copies[c].leaf == leaf && micro_batch_equal(self->copies[c].state, state)) return c;
    return -1;
}

/* Returns whether this operator can be computed for its micro-batch alone; *factor is then its
 * split factor. */
static bool makes_parts(const MicroBatchRewrite *self, int32_t i, int32_t leaf, MicroBatchState state,
                        int32_t *factor) {
    const IrInstruction *instruction = &self->module->instructions[i];
    const FactorRule *rule = &self->rules->rules[i];
    *factor = -1;
    if (micro_batch_is_reader(self, i) || instruction->opcode == IR_CONSTANT || leaf > 0) return false;
    if (rules_loop(self->rules, i) || rule->result_count != 1) return false;
    if (rule->operand_count != instruction->operand_count) return false;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer, producer_leaf;
        if (self->module->instructions[instruction->operands[k]].shape.type == DTYPE_TUPLE) return false;
        micro_batch_operand(self, i, k, 0, &producer, &producer_leaf);
        if (micro_batch_state(self, producer, producer_leaf)->kind != TIME_FULL) return false;
    }
    if (instruction->opcode == IR_RESHAPE) {
        MicroBatchState from;
        return micro_batch_reshape(&from, &self->module->instructions[instruction->operands[0]].shape, state,
                                   &instruction->shape, self->settings.micro_batches);
    }
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *candidate = &rule->factors[f];
        if (candidate->kind != FACTOR_PARALLEL || !micro_batch_factor_usable(self, i, candidate)) continue;
        if (candidate->dimension[rule->operand_count] != state.dimension) continue;
        *factor = f;
        return true;
    }
    return false;
}

/* Returns whether a leaf of a value is made in one loop alone, and not in that of these levels, which cuts it
 * out of a stack. */
static bool is_of_another_loop(const MicroBatchRewrite *self, int32_t producer, int32_t leaf,
                               uint32_t levels) {
    return micro_batch_in_entry(self, producer) && self->has_weight[producer] &&
           micro_batch_in_loop(self, producer) &&
           micro_batch_state(self, producer, leaf)->kind == TIME_SPLIT &&
           levels != 1u << micro_batch_level(self, producer);
}

static void demand_copy(MicroBatchRewrite *self, int32_t producer, int32_t leaf, MicroBatchState state,
                        uint32_t levels) {
    int32_t found = micro_batch_find_copy(self, producer, leaf, state);
    if (found >= 0) {
        self->copies[found].levels |= levels;
        return;
    }
    ARENA_RESERVE(self->arena, self->copies, self->copy_count, self->copy_capacity);
    if (self->arena->failed) return;
    MicroBatchCopy *copy = &self->copies[self->copy_count];
    *copy = (MicroBatchCopy){.next = self->first_copy[producer],
                             .leaf = leaf,
                             .state = state,
                             .is_made = true,
                             .factor = -1,
                             .levels = levels};
    if (state.kind == TIME_SPLIT)
        copy->is_made = !is_of_another_loop(self, producer, leaf, levels) &&
                        makes_parts(self, producer, leaf, state, &copy->factor);
    self->first_copy[producer] = self->copy_count++;
}

/* Demands a full value that a loop reads. */
static void demand_full_inside(MicroBatchRewrite *self, int32_t producer, int32_t leaf, uint32_t levels) {
    static const MicroBatchState full = {.kind = TIME_FULL};
    bool is_estimated = self->estimating >= 0 && micro_batch_in_entry(self, producer) &&
                        self->is_estimated[producer] && levels == 1u << self->level[self->estimating];
    bool is_made = micro_batch_in_entry(self, producer) &&
                   micro_batch_state(self, producer, leaf)->kind == TIME_FULL &&
                   self->rules->on_demand[producer];
    if (!is_estimated && !is_made) {
        demand_full(self, producer, leaf);
        return;
    }
    if (micro_batch_state(self, producer, leaf)->kind == TIME_PARTIAL) self->in_levels[producer] |= levels;
    demand_copy(self, producer, leaf, full, levels);
}

/* Demands a value that a loop reads in the given state. */
static void demand_in_state(MicroBatchRewrite *self, int32_t producer, int32_t leaf, MicroBatchState state,
                            uint32_t levels) {
    MicroBatchState held = *micro_batch_state(self, producer, leaf);
    if (state.kind == TIME_FULL || (state.kind == TIME_PARTIAL && held.kind == TIME_FULL))
        demand_full_inside(self, producer, leaf, levels);
    else if (is_of_another_loop(self, producer, leaf, levels))
        demand_copy(self, producer, leaf, state, levels);
    else if (held.kind == state.kind) self->in_levels[producer] |= levels;
    else demand_copy(self, producer, leaf, state, levels);
}

/* Returns the unit of what i splits: that of its result or of a split operand. */
static int64_t unit_of(const MicroBatchRewrite *self, int32_t i, MicroBatchState state) {
    if (state.kind == TIME_SPLIT) return state.unit;
    for (int32_t k = 0; k < self->module->instructions[i].operand_count; k++) {
        int32_t producer, leaf;
        micro_batch_operand(self, i, k, 0, &producer, &leaf);
        MicroBatchState held = *micro_batch_state(self, producer, leaf);
        if (held.kind == TIME_SPLIT) return held.unit;
    }
    return 1;
}

/* Returns the state in which the operator, splitting this factor, reads operand k; its result is `state`. */
MicroBatchState micro_batch_operand_state(const MicroBatchRewrite *self, int32_t i, int32_t k, int32_t factor,
                                          MicroBatchState state) {
    static const MicroBatchState full = {.kind = TIME_FULL};
    const IrInstruction *instruction = &self->module->instructions[i];
    int32_t producer, leaf;
    micro_batch_operand(self, i, k, 0, &producer, &leaf);
    MicroBatchState held = *micro_batch_state(self, producer, leaf), from;
    if (held.kind == TIME_SPLIT || (held.kind == TIME_PARTIAL && self->keeps_partial[i])) return held;
    if (factor < 0) {
        bool is_part = state.kind == TIME_SPLIT && k == 0 && instruction->opcode == IR_RESHAPE;
        if (is_part && micro_batch_reshape(&from, &self->module->instructions[instruction->operands[0]].shape,
                                           state, &instruction->shape, self->settings.micro_batches))
            return from;
        return full;
    }
    const Factor *split = &self->rules->rules[i].factors[factor];
    if (split->dimension[k] < 0) return full;
    return (MicroBatchState){
        .kind = TIME_SPLIT, .dimension = split->dimension[k], .unit = unit_of(self, i, state)};
}

static void demand_operands(MicroBatchRewrite *self, int32_t i, int32_t factor, MicroBatchState state,
                            uint32_t levels) {
    const IrInstruction *instruction = &self->module->instructions[i];
    for (int32_t k = 0; k < instruction->operand_count; k++)
        for (int32_t leaf = 0; leaf < micro_batch_operand_leaves(self, i, k); leaf++) {
            int32_t producer, producer_leaf;
            micro_batch_operand(self, i, k, leaf, &producer, &producer_leaf);
            demand_in_state(self, producer, producer_leaf,
                            micro_batch_operand_state(self, i, k, factor, state), levels);
        }
}

/* Operands of a value that is made in full: outside the loops, or in a region. */
static void demand_operands_in_full(MicroBatchRewrite *self, int32_t i) {
    const PlannedLoop *loop = rules_loop(self->rules, i);
    for (int32_t l = 0; loop && l < loop->leaf_count; l++)
        demand_full(self, loop->leaves[l].initial, loop->leaves[l].initial_leaf);
    for (int32_t k = 0; !loop && k < self->module->instructions[i].operand_count; k++)
        for (int32_t leaf = 0; leaf < micro_batch_operand_leaves(self, i, k); leaf++) {
            int32_t producer, producer_leaf;
            micro_batch_operand(self, i, k, leaf, &producer, &producer_leaf);
            demand_full(self, producer, producer_leaf);
        }
}

static void find_demands_of(MicroBatchRewrite *self, int32_t computation);

static void demand_in_loop(MicroBatchRewrite *self, const PlannedLoop *loop, uint32_t levels) {
    bool *is_done = &self->is_demanded[loop - self->rules->loops];
    for (int32_t l = 0; l < loop->leaf_count; l++) {
        const LoopLeaf *leaf = &loop->leaves[l];
        MicroBatchState state = micro_batch_leaf_state(self, loop, l);
        demand_in_state(self, leaf->initial, leaf->initial_leaf, state, levels);
        if (!*is_done) demand_in_state(self, leaf->next, leaf->next_leaf, state, 1);
    }
    if (*is_done) return;
    *is_done = true;
    int32_t root = self->module->computations[loop->condition].root;
    demand_full(self, self->rules->alias[root], self->rules->leaf[root]);
    find_demands_of(self, loop->condition);
    find_demands_of(self, loop->body);
}

MicroBatchState micro_batch_leaf_state(const MicroBatchRewrite *self, const PlannedLoop *loop, int32_t leaf) {
    MicroBatchState state =
        *micro_batch_state(self, self->module->computations[loop->body].parameters[0], leaf);
    state.is_zero = false;
    return state;
}

static void demand_inputs(MicroBatchRewrite *self, int32_t i) {
    static const MicroBatchState full = {.kind = TIME_FULL};
    const PlannedLoop *loop = rules_loop(self->rules, i);
    uint32_t levels = self->in_levels[i];
    if (self->reader_loop[i] >= 0) {
        /* A reader of a loop's arrays after it needs the loop per iteration, or unchanged. */
        int32_t of_reader = self->reader_loop[i], from = self->rules->loops[of_reader].instruction;
        bool is_data = micro_batch_state(self, i, 0)->kind == TIME_SPLIT && !self->has_weight[i];
        self->in_levels[from] |= self->in_levels[i];
        if (self->is_split[of_reader] && !micro_batch_in_entry(self, i) && self->needs[i])
            self->in_levels[from] = 1;
        if (!self->is_split[of_reader] || (micro_batch_in_entry(self, i) && is_data))
            self->needs[from] |= self->needs[i] & TIME_NEED_FULL;
    }
    if (self->reader_conditional[i] >= 0)
        self->needs[self->reader_conditional[i]] |= self->needs[i] & TIME_NEED_FULL;
    if (micro_batch_is_reader(self, i)) return;
    if (self->needs[i] & TIME_NEED_AVERAGE)
        demand_copy(self, i, 0, full, 1u << self->level[self->estimating]);
    if (levels && loop) demand_in_loop(self, loop, levels);
    else if (levels) demand_operands(self, i, self->factor[i], *micro_batch_state(self, i, 0), levels);
    bool is_made_inside =
        micro_batch_in_entry(self, i) && levels && micro_batch_state(self, i, 0)->kind == TIME_PARTIAL;
    if (self->needs[i] & TIME_NEED_FULL && !is_made_inside) demand_operands_in_full(self, i);
    for (int32_t c = self->first_copy[i]; c >= 0; c = self->copies[c].next) {
        MicroBatchCopy copy = self->copies[c];
        if (copy.state.kind == TIME_SPLIT && !copy.is_made) continue;
        if (micro_batch_state(self, i, 0)->kind != TIME_PARTIAL)
            demand_operands(self, i, copy.factor, copy.state, copy.levels);
    }
}

static void find_demands_of(MicroBatchRewrite *self, int32_t computation) {
    const IrComputation *body = &self->module->computations[computation];
    for (int32_t i = body->first + body->count - 1; i >= body->first; i--) {
        if (!self->split_options->live[i] || self->rules->alias[i] != i ||
            micro_batch_forwards_values(self, i))
            continue;
        /* Slicing a part needs the full value, which is requested before its operands are. */
        for (int32_t c = self->first_copy[i]; c >= 0; c = self->copies[c].next)
            if (self->copies[c].state.kind == TIME_SPLIT && !self->copies[c].is_made)
                make_whole(self, i, self->copies[c].leaf);
        demand_inputs(self, i);
    }
}

/* Iterations in which nothing is computed with weights would split nothing. */
static AmStatus check_iterations(const MicroBatchRewrite *self, AmError *error) {
    int32_t gathering = -1;
    for (int32_t i = self->rules->entry_count - 1; i >= 0; i--) {
        if (self->in_levels[i] && self->has_weight[i]) return AM_OK;
        if (self->takes_full[i] && self->needs[i]) gathering = i;
    }
    if (gathering >= 0)
        return micro_batch_refuse(self, gathering, "needs all examples of the batch at once", NULL, error);
    return am_fail(error, AM_ERROR_INFEASIBLE, self->module->source,
                   "cannot be split into micro-batches: no operator reads a weight and the batch");
}

AmStatus micro_batch_find_demands(MicroBatchRewrite *self, AmError *error) {
    const IrRoles *roles = self->context->roles;
    /* Gradients that are the product of a sum and of an estimate are means of the iterations'. */
    const IrPhase *phases = self->context->roles->phases;
    for (int32_t i = 0; i < self->rules->entry_count && self->estimating >= 0; i++) {
        if (!self->is_estimated[i] || micro_batch_state(self, i, 0)->kind != TIME_FULL) continue;
        if (phases[i] != IR_PHASE_BACKWARD || micro_batch_is_reader(self, i)) continue;
        for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
             k++) {
            int32_t operand = self->split_options->operands[k];
            self->is_averaged[i] |= self->is_averaged[operand] ||
                                    (self->is_estimated[operand] && phases[operand] != IR_PHASE_BACKWARD);
        }
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        int32_t output = roles->outputs[k];
        if (self->module->instructions[output].shape.type == DTYPE_TUPLE)
            return micro_batch_refuse(self, output, "is a tuple within the result", NULL, error);
        demand_full(self, self->rules->alias[output], self->rules->leaf[output]);
    }
    find_demands_of(self, self->module->entry);
    TRY(check_iterations(self, error));
    for (int32_t i = 0; i < self->rules->entry_count; i++)
        while (self->in_levels[i] >> self->level_count) self->level_count++;
    return self->arena->failed ? am_fail_memory(error, self->count) : AM_OK;
}
