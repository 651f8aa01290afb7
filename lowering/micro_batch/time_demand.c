/* Finds where values are needed, backwards from the outputs.
 *
 * A replicated value is computed once, outside the loops, as soon as the sums on which it depends
 * are reduced; a split or partial one in the loop of its component, or in every loop that needs it.
 * A loop slices its part out of a whole value or, if the operator allows it, computes just that
 * part: dropout's random bits never exist for the whole batch. Values made on demand
 * (propagation/rules/rules.h) are computed in the loop itself.
 */
#include "lowering/micro_batch/time_axis.h"

/* A value as a whole: outside the loops, or in the region that it is in. */
static void want_whole(TimeAxis *self, int32_t producer, int32_t leaf) {
    TimeState state = *time_state(self, producer, leaf);
    if (!time_in_entry(self, producer)) {
        if (state.kind == TIME_WHOLE) self->needs[producer] |= TIME_NEED_WHOLE;
        else self->in_levels[producer] = 1;
        return;
    }
    bool is_taken_out =
        state.kind == TIME_PARTIAL || (state.kind == TIME_SPLIT && self->is_derived[producer]);
    int32_t loop = self->reader_loop[producer];
    if (loop >= 0 && self->is_split[loop]) is_taken_out |= state.kind == TIME_WHOLE;
    if (is_taken_out) self->in_levels[producer] |= 1u << time_level(self, producer);
    if (self->averages[producer]) {
        self->needs[producer] |= TIME_NEED_AVERAGE;
        return;
    }
    self->needs[producer] |= state.kind == TIME_SPLIT && is_taken_out ? TIME_NEED_STACKED : TIME_NEED_WHOLE;
}

int32_t time_find_copy(const TimeAxis *self, int32_t instruction, int32_t leaf, TimeState state) {
    for (int32_t c = self->first_copy[instruction]; c >= 0; c = self->copies[c].next)
        if (self->copies[c].leaf == leaf && time_equal(self->copies[c].state, state)) return c;
    return -1;
}

/* Returns whether this operator can be computed for its micro-batch alone; *factor is then its
 * split factor. */
static bool makes_parts(const TimeAxis *self, int32_t i, int32_t leaf, TimeState state, int32_t *factor) {
    const IrInstruction *instruction = &self->module->instructions[i];
    const FactorRule *rule = &self->rules->rules[i];
    *factor = -1;
    if (time_is_reader(self, i) || instruction->opcode == IR_CONSTANT || leaf > 0) return false;
    if (rules_loop(self->rules, i) || rule->result_count != 1) return false;
    if (rule->operand_count != instruction->operand_count) return false;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer, producer_leaf;
        if (self->module->instructions[instruction->operands[k]].shape.type == DTYPE_TUPLE) return false;
        time_operand(self, i, k, 0, &producer, &producer_leaf);
        if (time_state(self, producer, producer_leaf)->kind != TIME_WHOLE) return false;
    }
    if (instruction->opcode == IR_RESHAPE) {
        TimeState from;
        return time_reshape(&from, &self->module->instructions[instruction->operands[0]].shape, state,
                            &instruction->shape, self->settings.micro_batches);
    }
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *candidate = &rule->factors[f];
        if (candidate->kind != FACTOR_PARALLEL || !time_factor_usable(self, i, candidate)) continue;
        if (candidate->dimension[rule->operand_count] != state.dimension) continue;
        *factor = f;
        return true;
    }
    return false;
}

/* Made in one loop alone, and not in that of these levels, which cuts it out of what that has stacked. */
static bool is_of_another_loop(const TimeAxis *self, int32_t producer, uint32_t levels) {
    return time_in_entry(self, producer) && self->is_derived[producer] && time_in_loop(self, producer) &&
           time_state(self, producer, 0)->kind == TIME_SPLIT && levels != 1u << time_level(self, producer);
}

static void want_copy(TimeAxis *self, int32_t producer, int32_t leaf, TimeState state, uint32_t levels) {
    int32_t found = time_find_copy(self, producer, leaf, state);
    if (found >= 0) {
        self->copies[found].levels |= levels;
        return;
    }
    ARENA_RESERVE(self->arena, self->copies, self->copy_count, self->copy_capacity);
    if (self->arena->failed) return;
    TimeCopy *copy = &self->copies[self->copy_count];
    *copy = (TimeCopy){.next = self->first_copy[producer],
                       .leaf = leaf,
                       .state = state,
                       .is_made = true,
                       .factor = -1,
                       .levels = levels,
                       .value = -1};
    if (state.kind == TIME_SPLIT)
        copy->is_made = !is_of_another_loop(self, producer, levels) &&
                        makes_parts(self, producer, leaf, state, &copy->factor);
    self->first_copy[producer] = self->copy_count++;
}

static bool time_is_estimated_for(const TimeAxis *self, int32_t producer, uint32_t levels) {
    return self->estimating >= 0 && time_in_entry(self, producer) && self->is_estimated[producer] &&
           levels == 1u << self->level[self->estimating];
}

/* A value that a loop takes as a whole. */
static void want_whole_inside(TimeAxis *self, int32_t producer, int32_t leaf, uint32_t levels) {
    static const TimeState whole = {.kind = TIME_WHOLE};
    bool is_estimated = time_is_estimated_for(self, producer, levels);
    bool is_made = time_in_entry(self, producer) && time_state(self, producer, leaf)->kind == TIME_WHOLE &&
                   self->rules->on_demand[producer];
    if (!is_estimated && !is_made) {
        want_whole(self, producer, leaf);
        return;
    }
    if (time_state(self, producer, leaf)->kind == TIME_PARTIAL) self->in_levels[producer] |= levels;
    want_copy(self, producer, leaf, whole, levels);
}

/* A value that a loop takes in the given state. */
static void want_in_state(TimeAxis *self, int32_t producer, int32_t leaf, TimeState state, uint32_t levels) {
    TimeState held = *time_state(self, producer, leaf);
    if (state.kind == TIME_WHOLE || (state.kind == TIME_PARTIAL && held.kind == TIME_WHOLE))
        want_whole_inside(self, producer, leaf, levels);
    else if (is_of_another_loop(self, producer, levels)) want_copy(self, producer, leaf, state, levels);
    else if (held.kind == state.kind) self->in_levels[producer] |= levels;
    else want_copy(self, producer, leaf, state, levels);
}

/* The state in which the operator, splitting this factor, takes operand k; its result is `state`. */
TimeState time_operand_state(const TimeAxis *self, int32_t i, int32_t k, int32_t factor, TimeState state) {
    static const TimeState whole = {.kind = TIME_WHOLE};
    const IrInstruction *instruction = &self->module->instructions[i];
    int32_t producer, leaf;
    time_operand(self, i, k, 0, &producer, &leaf);
    TimeState held = *time_state(self, producer, leaf), from;
    if (held.kind == TIME_SPLIT || (held.kind == TIME_PARTIAL && self->carries[i])) return held;
    if (factor < 0) {
        bool is_part = state.kind == TIME_SPLIT && k == 0 && instruction->opcode == IR_RESHAPE;
        if (is_part && time_reshape(&from, &self->module->instructions[instruction->operands[0]].shape, state,
                                    &instruction->shape, self->settings.micro_batches))
            return from;
        return whole;
    }
    const Factor *split = &self->rules->rules[i].factors[factor];
    if (split->dimension[k] < 0) return whole;
    return (TimeState){
        .kind = TIME_SPLIT, .dimension = split->dimension[k], .unit = time_unit(self, i, state)};
}

int64_t time_unit(const TimeAxis *self, int32_t i, TimeState state) {
    if (state.kind == TIME_SPLIT) return state.unit;
    for (int32_t k = 0; k < self->module->instructions[i].operand_count; k++) {
        int32_t producer, leaf;
        time_operand(self, i, k, 0, &producer, &leaf);
        TimeState held = *time_state(self, producer, leaf);
        if (held.kind == TIME_SPLIT) return held.unit;
    }
    return 1;
}

static void want_operands(TimeAxis *self, int32_t i, int32_t factor, TimeState state, uint32_t levels) {
    const IrInstruction *instruction = &self->module->instructions[i];
    for (int32_t k = 0; k < instruction->operand_count; k++)
        for (int32_t leaf = 0; leaf < time_operand_leaves(self, i, k); leaf++) {
            int32_t producer, producer_leaf;
            time_operand(self, i, k, leaf, &producer, &producer_leaf);
            want_in_state(self, producer, producer_leaf, time_operand_state(self, i, k, factor, state),
                          levels);
        }
}

/* Operands of a value that is made whole: outside the loops, or in a region. */
static void want_operands_whole(TimeAxis *self, int32_t i) {
    const PlannedLoop *loop = rules_loop(self->rules, i);
    for (int32_t l = 0; loop && l < loop->leaf_count; l++)
        want_whole(self, loop->leaves[l].initial, loop->leaves[l].initial_leaf);
    for (int32_t k = 0; !loop && k < self->module->instructions[i].operand_count; k++)
        for (int32_t leaf = 0; leaf < time_operand_leaves(self, i, k); leaf++) {
            int32_t producer, producer_leaf;
            time_operand(self, i, k, leaf, &producer, &producer_leaf);
            want_whole(self, producer, producer_leaf);
        }
}

static void find_demands_of(TimeAxis *self, int32_t computation);

static void want_in_loop(TimeAxis *self, const PlannedLoop *loop, uint32_t levels) {
    bool *is_done = &self->is_demanded[loop - self->rules->loops];
    for (int32_t l = 0; l < loop->leaf_count; l++) {
        const LoopLeaf *leaf = &loop->leaves[l];
        TimeState state = time_leaf_state(self, loop, l);
        want_in_state(self, leaf->initial, leaf->initial_leaf, state, levels);
        if (!*is_done) want_in_state(self, leaf->next, leaf->next_leaf, state, 1);
    }
    if (*is_done) return;
    *is_done = true;
    int32_t root = self->module->computations[loop->condition].root;
    want_whole(self, self->rules->alias[root], self->rules->leaf[root]);
    find_demands_of(self, loop->condition);
    find_demands_of(self, loop->body);
}

TimeState time_leaf_state(const TimeAxis *self, const PlannedLoop *loop, int32_t leaf) {
    TimeState state = *time_state(self, self->module->computations[loop->body].parameters[0], leaf);
    state.is_zero = false;
    return state;
}

/* Marks a loop as needed by a reader of its arrays after it: per iteration, or unchanged. */
static void want_for_reader(TimeAxis *self, int32_t i) {
    int32_t loop = self->reader_loop[i], from = self->rules->loops[loop].instruction;
    bool is_data = time_state(self, i, 0)->kind == TIME_SPLIT && !self->is_derived[i];
    self->in_levels[from] |= self->in_levels[i];
    if (self->is_split[loop] && !time_in_entry(self, i) && self->needs[i]) self->in_levels[from] = 1;
    if (!self->is_split[loop] || (time_in_entry(self, i) && is_data))
        self->needs[from] |= self->needs[i] & TIME_NEED_WHOLE;
}

static void want_for(TimeAxis *self, int32_t i) {
    static const TimeState whole = {.kind = TIME_WHOLE};
    const PlannedLoop *loop = rules_loop(self->rules, i);
    uint32_t levels = self->in_levels[i];
    if (self->reader_loop[i] >= 0) want_for_reader(self, i);
    if (self->reader_conditional[i] >= 0)
        self->needs[self->reader_conditional[i]] |= self->needs[i] & TIME_NEED_WHOLE;
    if (time_is_reader(self, i)) return;
    if (self->needs[i] & TIME_NEED_AVERAGE) want_copy(self, i, 0, whole, 1u << self->level[self->estimating]);
    if (levels && loop) want_in_loop(self, loop, levels);
    else if (levels) want_operands(self, i, self->factor[i], *time_state(self, i, 0), levels);
    bool is_made_inside = time_in_entry(self, i) && levels && time_state(self, i, 0)->kind == TIME_PARTIAL;
    if (self->needs[i] & TIME_NEED_WHOLE && !is_made_inside) want_operands_whole(self, i);
    for (int32_t c = self->first_copy[i]; c >= 0; c = self->copies[c].next) {
        TimeCopy copy = self->copies[c];
        if (copy.state.kind == TIME_SPLIT && !copy.is_made) continue;
        if (time_state(self, i, 0)->kind != TIME_PARTIAL)
            want_operands(self, i, copy.factor, copy.state, copy.levels);
    }
}

static void find_demands_of(TimeAxis *self, int32_t computation) {
    const IrComputation *body = &self->module->computations[computation];
    for (int32_t i = body->first + body->count - 1; i >= body->first; i--) {
        if (!self->choices->live[i] || self->rules->alias[i] != i || time_is_plumbing(self, i)) continue;
        /* Slicing a part needs the whole value, which is requested before its operands are. */
        for (int32_t c = self->first_copy[i]; c >= 0; c = self->copies[c].next)
            if (self->copies[c].state.kind == TIME_SPLIT && !self->copies[c].is_made)
                want_whole(self, i, self->copies[c].leaf);
        want_for(self, i);
    }
}

/* Gradients that are the product of a sum and of an estimate are means of the turns'. */
static void find_averages(TimeAxis *self) {
    const IrPhase *phases = self->context->roles->phases;
    for (int32_t i = 0; i < self->rules->entry_count && self->estimating >= 0; i++) {
        if (!self->is_estimated[i] || time_state(self, i, 0)->kind != TIME_WHOLE) continue;
        if (phases[i] != IR_PHASE_BACKWARD || time_is_reader(self, i)) continue;
        for (int32_t k = self->choices->first_operand[i]; k < self->choices->first_operand[i + 1]; k++) {
            int32_t operand = self->choices->operands[k];
            self->averages[i] |= self->averages[operand] ||
                                 (self->is_estimated[operand] && phases[operand] != IR_PHASE_BACKWARD);
        }
    }
}

/* Turns in which nothing is computed with weights would split nothing. */
static AmStatus check_turns(const TimeAxis *self, AmError *error) {
    int32_t gathering = -1;
    for (int32_t i = self->rules->entry_count - 1; i >= 0; i--) {
        if (self->in_levels[i] && self->is_derived[i]) return AM_OK;
        if (self->gathers[i] && self->needs[i]) gathering = i;
    }
    if (gathering >= 0)
        return time_refuse(self, gathering, "needs all examples of the batch at once", NULL, error);
    return am_fail(error, AM_ERROR_INFEASIBLE, self->module->source,
                   "cannot be split into micro-batches: no weight meets the batch");
}

AmStatus time_find_demands(TimeAxis *self, AmError *error) {
    const IrRoles *roles = self->context->roles;
    find_averages(self);
    for (int32_t k = 0; k < roles->output_count; k++) {
        int32_t output = roles->outputs[k];
        if (self->module->instructions[output].shape.type == DTYPE_TUPLE)
            return time_refuse(self, output, "is a tuple within the result", NULL, error);
        want_whole(self, self->rules->alias[output], self->rules->leaf[output]);
    }
    find_demands_of(self, self->module->entry);
    TRY(check_turns(self, error));
    for (int32_t i = 0; i < self->rules->entry_count; i++)
        while (self->in_levels[i] >> self->level_count) self->level_count++;
    return self->arena->failed ? am_fail_memory(error, self->count) : AM_OK;
}
