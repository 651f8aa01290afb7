/* Lowering: makes the program of one device from an assignment.
 *
 * Instructions are visited in canonical order. Each requests its operands in the states that its
 * factors need. require_value() finds such a value, reshards one (once per tensor and state) or, for
 * values made on demand, emits the instruction again in that state. Instructions that no output
 * needs are not emitted. reshard.c chooses the collectives between states.
 */
#include "lowering/spmd/lower_internal.h"

#include <string.h>

#include "lowering/interleave/interleave.h"
#include "lowering/offload/offload.h"
#include "lowering/passes/passes.h"
#include "lowering/passes/reduce_early.h"
#include "lowering/spmd/lower_chunks.h"
#include "propagation/rules/linearity.h"

/* Returns whether operand k is a tuple, not an element of one. */
static bool is_tuple_operand(const Lowering *self, const IrInstruction *instruction, int32_t k) {
    return self->module->instructions[instruction->operands[k]].shape.type == DTYPE_TUPLE;
}

int32_t lower_add_value(Lowering *self, int32_t instruction, int32_t leaf, const IrShape *global,
                        SbpState state) {
    Program *program = self->program;
    int32_t value = program->value_count;
    ARENA_RESERVE(self->arena, program->values, value, program->value_capacity);
    ARENA_RESERVE(self->scratch, self->states, value, self->state_capacity);
    self->arena->failed |= self->scratch->failed;
    if (self->arena->failed) return 0;
    IrShape shape = *global;
    if (sbp_has_split(state) && global->type != DTYPE_TUPLE && global->rank > 0) {
        const LocalShape *local =
            lower_memo_shape(self->memo, self->arena, program->mesh, program->device, global, state);
        if (!local) return 0;
        shape.dimensions = local->local;
        *self->is_uneven |= local->is_uneven;
    }
    program->values[value] = (ProgramValue){.shape = shape,
                                            .kind = PROGRAM_VALUE_TEMPORARY,
                                            .origin = instruction,
                                            .leaf = leaf > 0 ? leaf : 0,
                                            .instruction = program->instruction_count,
                                            .state = state,
                                            .storage = value,
                                            .offset = -1};
    self->states[value] = (LoweredState){.older = self->newest[instruction], .leaf = leaf, .state = state};
    self->newest[instruction] = value;
    return program->value_count++;
}

ProgramInstruction *lower_add_instruction(Lowering *self) {
    static ProgramInstruction nowhere;
    Program *program = self->program;
    ARENA_RESERVE(self->arena, program->instructions, program->instruction_count,
                  program->instruction_capacity);
    if (self->arena->failed) return &nowhere;
    ProgramInstruction *instruction = &program->instructions[program->instruction_count++];
    *instruction = (ProgramInstruction){.compute.called = -1, .compute.called_second = -1};
    return instruction;
}

/* Returns the pass of the current instruction; the backward pass uses its recomputed values. */
static IrPhase pass_of(const Lowering *self) {
    return self->phase == IR_PHASE_RECOMPUTED ? IR_PHASE_BACKWARD : self->phase;
}

/* Returns whether a value that was made for one pass is not for this one: another pass, or others were
 * gathered since, so that it would be kept for a use far away. */
static bool is_gone(const Lowering *self, int32_t value) {
    const LoweredState *state = &self->states[value];
    return state->gather > 0 &&
           (state->pass != pass_of(self) || self->gathers - state->gather > LOWERED_NEAR_GATHERS);
}

static int32_t find_state(const Lowering *self, int32_t instruction, int32_t leaf, SbpState state) {
    for (int32_t value = self->newest[instruction]; value >= 0; value = self->states[value].older)
        if (self->states[value].leaf == leaf && sbp_equal(self->states[value].state, state) &&
            !is_gone(self, value))
            return value;
    return -1;
}

/* Returns the state of a result or operand place of instruction i that is split so. */
static SbpState place_state(const Lowering *self, int32_t i, Split split, int32_t place) {
    return split_state(self->rules, self->mesh, i, split, place);
}

/* Returns the state of result `leaf`. */
static SbpState result_place_state(const Lowering *self, int32_t i, Split split, uint8_t carries,
                                   int32_t leaf) {
    SbpState state = place_state(self, i, split, self->rules->rules[i].operand_count + leaf);
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++)
        if (carries >> axis & 1)
            sbp_set(&state, axis,
                    sbp_partial(self->assignment->partial[(size_t)i * MESH_MAX_AXES + (size_t)axis]));
    return state;
}

/* Returns the state in which result `leaf` of i is stored: as decided for the first, and as computed, with
 * sums reduced, for others. */
static SbpState stored_state(const Lowering *self, int32_t i, int32_t leaf) {
    const Assignment *assignment = self->assignment;
    if (leaf <= 0) return assignment->stored[i];
    SbpState state =
        place_state(self, i, split_of(assignment, i), self->rules->rules[i].operand_count + leaf);
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_partial(state.axis[axis])) sbp_set(&state, axis, SBP_B);
    return state;
}

/* Arrays that an instruction takes, a tuple counted by its leaves. */
static int32_t count_operands(const Lowering *self, const IrInstruction *instruction) {
    int32_t count = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrInstruction *producer =
            &self->module->instructions[self->rules->alias[instruction->operands[k]]];
        if (!is_tuple_operand(self, instruction, k)) count++;
        else if (producer->opcode == IR_TUPLE) count += count_operands(self, producer);
        else count += rules_leaf_count(&producer->shape);
    }
    return count;
}

/* Requires the leaves of a tuple operand, replicated: loops and calls take tuples. */
static AmStatus require_tuple(Lowering *self, int32_t producer, int32_t *operands, int32_t *count,
                              AmError *error) {
    const IrInstruction *tuple = &self->module->instructions[producer];
    const SbpState replicated = {.axis = {0}};
    if (tuple->opcode != IR_TUPLE) {
        for (int32_t leaf = 0; leaf < rules_leaf_count(&tuple->shape); leaf++, ++*count)
            TRY(lower_operand_in_state(self, producer, leaf, replicated, &operands[*count], error));
        return AM_OK;
    }
    for (int32_t k = 0; k < tuple->operand_count; k++) {
        int32_t source = self->rules->alias[tuple->operands[k]];
        if (is_tuple_operand(self, tuple, k)) {
            TRY(require_tuple(self, source, operands, count, error));
            continue;
        }
        TRY(lower_operand_in_state(self, source, self->rules->leaf[tuple->operands[k]], replicated,
                                   &operands[*count], error));
        ++*count;
    }
    return AM_OK;
}

/* Returns the state of operand k that the chosen factors need. A carrier uses the operands that stayed
 * partial for it without a reduction, and its addends as parts. */
static SbpState operand_state(const Lowering *self, int32_t i, Split split, uint8_t carries, int32_t k) {
    int32_t axes = self->mesh->axis_count;
    SbpState state = place_state(self, i, split, k);
    if (lower_has_halo(self, i, split.factors)) state = lower_halo_state(self, i, split.factors, k, state);
    if (carries == 0) return state;
    int32_t producer = self->split_options->operands[self->split_options->first_operand[i] + k];
    for (int32_t axis = 0; axis < axes; axis++) {
        SbpReduction reduction = self->assignment->partial[(size_t)i * MESH_MAX_AXES + (size_t)axis];
        if (!(carries >> axis & 1)) continue;
        if (self->assignment->deferred[producer] >> axis & 1)
            sbp_set(&state, axis,
                    sbp_partial(self->assignment->partial[(size_t)producer * MESH_MAX_AXES + (size_t)axis]));
        else if (linearity_beside(&self->module->instructions[i], ~(1u << k), reduction) >> k & 1)
            sbp_set(&state, axis, sbp_partial(reduction));
    }
    return state;
}

static AmStatus require_operands(Lowering *self, int32_t i, Split split, uint8_t carries, int32_t *operands,
                                 AmError *error) {
    const IrInstruction *instruction = &self->module->instructions[i];
    const int32_t *producers = &self->split_options->operands[self->split_options->first_operand[i]];
    bool takes_tuple = self->split_options->takes_tuple[i];
    int32_t count = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer = producers[k];
        if (takes_tuple && is_tuple_operand(self, instruction, k)) {
            TRY(require_tuple(self, producer, operands, &count, error));
            continue;
        }
        int32_t leaf = self->rules->leaf[instruction->operands[k]];
        if (self->assignment->deferred[producer])
            for (int32_t value = self->newest[producer]; value >= 0; value = self->states[value].older)
                if (self->states[value].leaf == LOWERED_F32_SUM) leaf = LOWERED_F32_SUM;
        TRY(lower_operand_in_state(self, producer, leaf, operand_state(self, i, split, carries, k),
                                   &operands[count++], error));
    }
    return AM_OK;
}

/* Sets the attributes that depend on the position of operand 0's shard in the global array. */
static void place_operand(Lowering *self, ProgramInstruction *instruction, const IrInstruction *source,
                          SbpState state) {
    const IrShape *shape =
        rules_leaf(&self->module->instructions[self->rules->alias[source->operands[0]]].shape,
                   self->rules->leaf[source->operands[0]]);
    if (!sbp_has_split(state)) return;
    instruction->attributes = lower_attributes(self, source, state, shape);
    if (!lower_moves_window(source->opcode)) return;
    const int64_t *window = lower_window(self->arena, self->module, source);
    bool is_moved = source->opcode == IR_GATHER || source->opcode == IR_SCATTER;
    for (int32_t d = 0; window && d < shape->rank; d++)
        is_moved |= sbp_ways(self->mesh, state, d) > 1 && window[d] < shape->dimensions[d];
    if (is_moved) instruction->compute.shard = lower_shard(self, shape, state, window);
}

IrShape lower_f32_shape(const IrShape *shape) {
    IrShape f32 = *shape;
    f32.type = DTYPE_F32;
    return f32;
}

AmStatus lower_convert(Lowering *self, LoweredResult result, int32_t value, int32_t *converted,
                       AmError *error) {
    static const IrAttributes none;
    int32_t *operand = ARENA_ARRAY(self->arena, int32_t, 1);
    if (!operand) return am_fail_memory(error, (int64_t)sizeof *operand);
    *operand = value;
    *converted =
        lower_add_value(self, result.i, result.leaf, result.global, self->program->values[value].state);
    ProgramInstruction *instruction = lower_add_instruction(self);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = IR_CONVERT;
    instruction->origin = result.i;
    instruction->operand_count = instruction->result_count = 1;
    instruction->operands = operand;
    instruction->first_result = *converted;
    instruction->attributes = &none;
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* Converts all operands of an instruction if one of them has f32 parts, and sets `*has_f32_sum` then. */
static AmStatus convert_operands_to_f32(Lowering *self, const IrInstruction *source, int32_t *operands,
                                        bool *has_f32_sum, AmError *error) {
    *has_f32_sum = false;
    for (int32_t k = 0; k < source->operand_count; k++)
        *has_f32_sum |= self->states[operands[k]].leaf == LOWERED_F32_SUM;
    for (int32_t k = 0; *has_f32_sum && k < source->operand_count; k++) {
        if (self->states[operands[k]].leaf == LOWERED_F32_SUM) continue;
        const IrInstruction *operand = &self->module->instructions[source->operands[k]];
        IrShape f32 = lower_f32_shape(&operand->shape);
        const LoweredResult converted = {self->program->values[operands[k]].origin, LOWERED_HELPER, &f32};
        TRY(lower_convert(self, converted, operands[k], &operands[k], error));
    }
    return AM_OK;
}

/* Lowers one instruction: brings its operands into the needed states, and adds its local form with local
 * results. */
static AmStatus emit_local_form(Lowering *self, int32_t i, Split split, uint8_t carries, AmError *error) {
    const IrInstruction *source = &self->module->instructions[i];
    TRY(lower_check_bitcast(self->module, i, error));
    bool takes_tuple = self->split_options->takes_tuple[i];
    int32_t operand_count = takes_tuple ? count_operands(self, source) : source->operand_count;
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, operand_count + 1);
    if (!operands) return am_fail_memory(error, operand_count);
    TRY(require_operands(self, i, split, carries, operands, error));
    SbpState result_state = result_place_state(self, i, split, carries, 0);
    if (lower_has_halo(self, i, split.factors))
        return lower_halo(self, i, split.factors, operands, result_state, error);
    bool has_f32_sum = false;
    if (carries) TRY(convert_operands_to_f32(self, source, operands, &has_f32_sum, error));
    int32_t first_result = self->program->value_count, results = rules_leaf_count(&source->shape);
    if (linearity_is_16bit(source) &&
        (has_f32_sum || (ir_is_matrix_product(source->opcode) && sbp_has_partial(result_state) &&
                         !self->assignment->stage->rounds_parts))) {
        IrShape f32 = lower_f32_shape(&source->shape);
        lower_add_value(self, i, LOWERED_F32_SUM, &f32, result_state);
    } else {
        for (int32_t leaf = 0; leaf < results; leaf++)
            lower_add_value(self, i, leaf, rules_leaf(&source->shape, leaf),
                            leaf == 0 ? result_state : result_place_state(self, i, split, carries, leaf));
    }
    ProgramInstruction *instruction = lower_add_instruction(self);
    bool view = operand_count > 0 && lower_is_view(self, source, operands[0], first_result);
    view |= has_f32_sum && source->opcode == IR_CONVERT; /* of a value that is f32 already */
    instruction->kind = view ? PROGRAM_VIEW : PROGRAM_COMPUTE;
    instruction->opcode = source->opcode;
    instruction->origin = i;
    instruction->operand_count = view ? 1 : operand_count;
    instruction->operands = operands;
    instruction->result_count = results;
    instruction->first_result = first_result;
    instruction->attributes = source->attributes;
    instruction->compute.literal =
        source->opcode == IR_CONSTANT ? lower_literal(self, source, result_state) : NULL;
    if (source->called_count > 0) instruction->compute.called = source->called[0];
    if (source->called_count > 1) instruction->compute.called_second = source->called[1];
    int32_t made = source->opcode == IR_RNG_BIT_GENERATOR ? 1 : 0;
    SbpState made_state = made == 0 ? result_state : result_place_state(self, i, split, carries, made);
    if (lower_makes_by_place(source->opcode) && sbp_has_split(made_state))
        instruction->compute.shard = lower_shard(self, rules_leaf(&source->shape, made), made_state, NULL);
    TRY(lower_local_groups(self, instruction, source, error));
    if (source->opcode == IR_SLICE || lower_moves_window(source->opcode))
        place_operand(self, instruction, source, operand_state(self, i, split, carries, 0));
    if (self->arena->failed) return am_fail_memory(error, 0);
    if (!lower_has_regions(source->opcode)) return AM_OK;
    TRY(lower_check_regions(self->module, source, error));
    if (self->rules->rules[i].inner) return lower_fusion_region(self, instruction, error);
    return lower_replicated_regions(instruction, self->arena, self->module, error);
}

/* Finds, on each axis, the factor of an on-demand instruction that gives `state`; without one the
 * axis stays replicated and false is returned. */
static bool factors_for(const Lowering *self, int32_t i, int32_t leaf, SbpState state, int8_t *factors,
                        SbpCut *cuts) {
    const FactorRule *rule = &self->rules->rules[i];
    const Mesh *mesh = self->mesh;
    const IrShape *shape = rules_leaf(&self->module->instructions[i].shape, leaf);
    IrOpcode opcode = self->module->instructions[i].opcode;
    bool exact = true;
    bool knows_places = lower_makes_by_place(opcode);
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        factors[axis] = -1;
        if (!sbp_is_split(state.axis[axis])) continue;
        int32_t d = sbp_dimension(state.axis[axis]);
        for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
            const Factor *factor = &rule->factors[f];
            int32_t slot = rule->operand_count + leaf;
            if (factor->kind != FACTOR_PARALLEL || factor->dimension[slot] != d) continue;
            bool in_blocks = sbp_blocks(state, d) > 1;
            if (factor_blocks(factor, slot) > 1 || (in_blocks && knows_places)) continue;
            if (!sbp_cuts_between(mesh, state, d, shape->dimensions[d], factor->size)) continue;
            factors[axis] = (int8_t)f;
            cuts[axis] = state.cut[axis].count > 0 ? state.cut[axis] : (SbpCut){1, (int32_t)factor->size};
            break;
        }
        if (factors[axis] < 0) exact = false;
    }
    return exact;
}

/* Finds the value in the state, or emits it. */
static AmStatus require_value(Lowering *self, int32_t i, int32_t leaf, SbpState state, int32_t *value,
                              AmError *error) {
    if (self->module->instructions[i].shape.type == DTYPE_TUPLE) rules_find_value(self->rules, &i, &leaf);
    if (self->stages) i = stages_stand_in(self->stages->context, self->stages->map, i, self->stages->stage);
    *value = find_state(self, i, leaf, state);
    if (*value >= 0) return AM_OK;
    if (self->rules->on_demand[i]) {
        int8_t factors[MESH_MAX_AXES] = {-1, -1, -1, -1};
        SbpCut cuts[MESH_MAX_AXES] = {{0, 0}};
        const Split split = {factors, cuts};
        if (!factors_for(self, i, leaf, state, factors, cuts))
            for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) factors[axis] = -1;
        SbpState made = place_state(self, i, split, self->rules->rules[i].operand_count + leaf);
        if (find_state(self, i, leaf, made) < 0) TRY(emit_local_form(self, i, split, 0, error));
        *value = find_state(self, i, leaf, state);
        if (*value >= 0) return AM_OK;
    }
    /* Reshard from the cheapest state. */
    int32_t from = -1;
    double least = 0;
    const IrShape *shape = rules_leaf(&self->module->instructions[i].shape, leaf);
    IrShape f32 = lower_f32_shape(shape);
    if (leaf == LOWERED_F32_SUM) shape = &f32;
    for (int32_t held = self->newest[i]; held >= 0; held = self->states[held].older) {
        if (self->states[held].leaf != leaf || is_gone(self, held)) continue;
        SbpState have = self->states[held].state;
        const ReshardPath *path = lower_memo_path(self->memo, self->arena, self->mesh, shape, have,
                                                  reshard_before_partial(have, state));
        if (!path || (from >= 0 && path->weight > least)) continue;
        from = held;
        least = path->weight;
    }
    if (from < 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, self->module->source,
                       "lowering %s: its stage has no copy of the value from which it can be resharded",
                       self->module->instructions[i].name);
    return reshard_value(self, (LoweredResult){i, leaf, shape}, from, state, value, error);
}

AmStatus lower_operand_in_state(Lowering *self, int32_t i, int32_t leaf, SbpState state, int32_t *value,
                                AmError *error) {
    int32_t before = self->newest[i];
    TRY(require_value(self, i, leaf, state, value, error));
    if (self->assignment->regathered[i] && self->newest[i] != before) {
        /* The values of i made from here on are for this pass alone. */
        self->gathers++;
        for (int32_t made = self->newest[i]; made >= 0 && made != before; made = self->states[made].older) {
            self->states[made].gather = self->gathers;
            self->states[made].pass = pass_of(self);
        }
    }
    return AM_OK;
}

/* Returns the state in which a sum of `shape` that becomes replicated on the `axes` (bits) is rounded: split
 * by them along the first unsplit dimension that divides, so that only 16-bit values are gathered; else
 * `state`, its final state. */
static SbpState rounding_state(const Lowering *self, const IrShape *shape, SbpState state, uint32_t axes) {
    const Mesh *mesh = self->mesh;
    int64_t ways = 1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (axes >> axis & 1) ways *= mesh->axes[axis].size;
    for (int32_t d = 0; axes && d < shape->rank; d++) {
        if (shape->dimensions[d] == 0 || shape->dimensions[d] % ways != 0 || sbp_ways(mesh, state, d) > 1)
            continue;
        SbpState split = state;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (axes >> axis & 1) sbp_set_split(&split, axis, d, (SbpCut){0, 0});
        return split;
    }
    return state;
}

/* Finishes a sum whose parts are in f32, in `state`, and rounds it. */
static AmStatus finish_f32_sum(Lowering *self, int32_t i, int32_t value, SbpState state, AmError *error) {
    const IrShape *shape = &self->module->instructions[i].shape;
    SbpState parts = self->program->values[value].state, rounded = state;
    uint32_t replicated = 0;
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++)
        if (sbp_is_partial(parts.axis[axis]) && state.axis[axis] == SBP_B) replicated |= 1u << axis;
    bool is_part = sbp_has_partial(state); /* which is not rounded */
    if (!is_part) rounded = rounding_state(self, shape, state, replicated);
    IrShape f32 = lower_f32_shape(shape);
    const LoweredResult sum = {i, LOWERED_F32_SUM, &f32}, result = {i, 0, shape};
    TRY(reshard_value(self, sum, value, rounded, &value, error));
    if (is_part) return AM_OK;
    TRY(lower_convert(self, result, value, &value, error));
    return reshard_value(self, result, value, state, &value, error);
}

AmStatus lower_finish_partial(Lowering *self, int32_t i, int32_t leaf, int32_t value, AmError *error) {
    const Assignment *assignment = self->assignment;
    const SbpState stored = stored_state(self, i, leaf);
    SbpState state = self->program->values[value].state;
    int32_t axes = self->mesh->axis_count;
    bool finish = false;
    for (int32_t axis = 0; axis < axes; axis++) {
        if (!sbp_is_partial(state.axis[axis]) || assignment->deferred[i] >> axis & 1) continue;
        sbp_take(&state, stored, axis);
        finish = true;
    }
    if (!finish) return AM_OK;
    /* Moving a part of the state must not leave two axes on one dimension in conflict: other axes
     * that are split take their stored place too. */
    for (int32_t axis = 0; axis < axes; axis++)
        if (!sbp_is_partial(state.axis[axis])) sbp_take(&state, stored, axis);
    const IrShape *shape = rules_leaf(&self->module->instructions[i].shape, leaf);
    if (self->states[value].leaf == LOWERED_F32_SUM) return finish_f32_sum(self, i, value, state, error);
    return reshard_value(self, (LoweredResult){i, leaf, shape}, value, state, &value, error);
}

/* Reshards a pinned result where it is computed; its users find it in its stored state only. */
static AmStatus store_pinned(Lowering *self, int32_t i, AmError *error) {
    int32_t value;
    TRY(require_value(self, i, 0, self->assignment->stored[i], &value, error));
    if (self->arena->failed) return am_fail_memory(error, 0);
    self->newest[i] = value;
    self->states[value].older = -1;
    return AM_OK;
}

static AmStatus lower_instruction(Lowering *self, int32_t i, AmError *error) {
    const Assignment *assignment = self->assignment;
    self->phase = self->roles->phases[i];
    TRY(emit_local_form(self, i, split_of(assignment, i), assignment->carries[i], error));
    const ProgramInstruction *made = &self->program->instructions[self->program->instruction_count - 1];
    int32_t leaves = made->result_count, first = made->first_result;
    for (int32_t leaf = 0; leaf < leaves; leaf++)
        TRY(lower_finish_partial(self, i, leaf, first + leaf, error));
    return assignment->pinned && assignment->pinned[i] ? store_pinned(self, i, error) : AM_OK;
}

static AmStatus lower_parameters(Lowering *self, AmError *error) {
    const IrRoles *roles = self->roles;
    Program *program = self->program;
    program->parameters = ARENA_ARRAY(self->arena, int32_t, roles->parameter_count + 1);
    if (!program->parameters) return am_fail_memory(error, roles->parameter_count);
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        int32_t i = roles->parameters[k].instruction;
        if (self->module->instructions[i].shape.type == DTYPE_TUPLE)
            return am_fail(error, AM_ERROR_INPUT, self->module->source,
                           "parameter %s is a tuple; only array parameters can be planned",
                           roles->parameters[k].path);
        program->parameters[k] = -1;
        if (!lower_holds_parameter(self, k)) continue;
        int32_t value =
            lower_add_value(self, i, 0, &self->module->instructions[i].shape, self->assignment->stored[i]);
        if (self->arena->failed) return am_fail_memory(error, 0);
        program->values[value].kind = PROGRAM_VALUE_PARAMETER;
        program->values[value].instruction = -1;
        program->parameters[k] = value;
    }
    for (int32_t k = 0; k < roles->parameter_count; k++)
        TRY(lower_value_defined(self, roles->parameters[k].instruction, error));
    return AM_OK;
}

/* Lowers the outputs: a new value is stored where the parameter is that it replaces, others as decided. */
static AmStatus lower_outputs(Lowering *self, AmError *error) {
    const IrRoles *roles = self->roles;
    Program *program = self->program;
    program->outputs = ARENA_ARRAY(self->arena, int32_t, roles->output_count + 1);
    program->execution.updates = ARENA_ARRAY(self->arena, ProgramUpdate, roles->parameter_count + 1);
    SbpState *states = ARENA_ARRAY(self->arena, SbpState, roles->output_count + 1);
    if (self->arena->failed) return am_fail_memory(error, roles->output_count);
    for (int32_t k = 0; k < roles->output_count; k++)
        if (self->module->instructions[roles->outputs[k]].shape.type == DTYPE_TUPLE)
            return am_fail(error, AM_ERROR_INPUT, self->module->source,
                           "output %d is a tuple within the result; only array outputs can be planned", k);
    for (int32_t k = 0; k < roles->output_count; k++)
        states[k] =
            stored_state(self, self->rules->alias[roles->outputs[k]], self->rules->leaf[roles->outputs[k]]);
    for (int32_t k = 0; k < roles->parameter_count; k++)
        if (roles->parameters[k].output >= 0)
            states[roles->parameters[k].output] = self->assignment->stored[roles->parameters[k].instruction];
    for (int32_t k = 0; k < roles->output_count; k++) {
        program->outputs[k] = -1;
        if (!lower_holds_output(self, k)) continue;
        TRY(lower_operand_in_state(self, self->rules->alias[roles->outputs[k]],
                                   self->rules->leaf[roles->outputs[k]], states[k], &program->outputs[k],
                                   error));
    }
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        int32_t output = roles->parameters[k].output;
        if (output < 0 || program->parameters[k] < 0 || program->outputs[output] == program->parameters[k])
            continue;
        program->execution.updates[program->execution.update_count++] =
            (ProgramUpdate){.parameter = k, .value = program->outputs[output]};
    }
    return AM_OK;
}

/* Begins the program of a stage, with room for a few more instructions than its part of the module: growth
 * by doubling would copy them again and again. */
AmStatus lower_begin(Lowering *self, const IrRoles *roles, int32_t computation, AmError *error) {
    Program *program = ARENA_ARRAY(self->arena, Program, 1);
    const IrComputation *body = &self->module->computations[computation];
    int32_t count = 0; /* instructions that this stage holds */
    for (int32_t i = body->first; i < body->first + body->count; i++)
        count += !self->stages || lower_holds(self, i);
    int32_t room = count + count / 4 + 8, value_room = room + room / 4;
    int32_t first_rank = self->stages    ? self->stages->map->first_rank[self->stages->stage]
                         : self->program ? self->program->first_rank /* the caller's */
                                         : 0;
    if (!program) return am_fail_memory(error, (int64_t)sizeof *program);
    self->mesh = &self->assignment->stage->mesh;
    *program = (Program){.arena = self->arena,
                         .module = self->module,
                         .roles = roles,
                         .mesh = self->mesh,
                         .device = self->device,
                         .execution.fuses_rows = self->fuses_rows,
                         .first_rank = first_rank,
                         .values = ARENA_ARRAY_RAW(self->arena, ProgramValue, value_room),
                         .instructions = ARENA_ARRAY_RAW(self->arena, ProgramInstruction, room)};
    self->states = ARENA_ARRAY_RAW(self->scratch, LoweredState, value_room);
    if (!self->is_uneven) self->is_uneven = ARENA_ARRAY(self->arena, bool, 1);
    if (!self->memo) self->memo = ARENA_ARRAY(self->arena, LowerMemo, 1);
    if (self->arena->failed || !self->states) return am_fail_memory(error, room);
    program->value_capacity = self->state_capacity = value_room;
    program->instruction_capacity = room;
    self->program = program;
    self->put_off = NULL;
    self->put_off_count = self->put_off_capacity = self->transfers = 0;
    return AM_OK;
}

AmStatus lower_instructions(Lowering *self, int32_t computation, AmError *error) {
    const IrComputation *body = &self->module->computations[computation];
    const Rules *rules = self->rules;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        IrOpcode opcode = self->module->instructions[i].opcode;
        TRY(lower_flush_transfers(self, i, error));
        if (!self->assignment->live[i] || rules->on_demand[i] || rules->alias[i] != i) continue;
        const PlannedLoop *loop = rules_loop(rules, i);
        if (loop) {
            if (lower_holds(self, i)) TRY(lower_loop(self, loop, error));
            for (int32_t k = 0; k < loop->leaf_count; k++)
                if (loop->leaves[k].afterwards >= 0)
                    TRY(lower_value_defined(self, loop->leaves[k].afterwards, error));
            continue;
        }
        const PlannedConditional *conditional = rules_conditional(rules, i);
        if (conditional) {
            if (lower_holds(self, i)) TRY(lower_conditional(self, conditional, error));
            for (int32_t k = 0; k < conditional->result_count; k++)
                if (conditional->afterwards[k] >= 0)
                    TRY(lower_value_defined(self, conditional->afterwards[k], error));
            continue;
        }
        bool forwards_tuple = rules->rules[i].result_count == 0; /* hands tuples on */
        if (forwards_tuple || opcode == IR_PARAMETER || opcode == IR_GET_TUPLE_ELEMENT) continue;
        if (lower_holds(self, i)) TRY(lower_instruction(self, i, error));
        TRY(lower_value_defined(self, i, error));
    }
    return lower_transfers(self, error);
}

AmStatus lower_finish(Lowering *self, AmError *error) {
    bool is_entry = self->program->roles == self->roles;
    TRY(program_transpose_before_reducing(self->program, error));
    TRY(program_merge_collectives(self->program, error));
    TRY(program_reduce_early(self->program, error));
    self->program->is_uneven = *self->is_uneven;
    TRY(program_absorb_transposes(self->program, error));
    TRY(lower_finish_fusion_regions(self->program, error));
    if (is_entry && self->stages && self->stages->schedule != SCHEDULE_GPIPE)
        TRY(program_interleave(self->program, self->rules, self->stages->map, self->stages->stage,
                               self->stages->schedule, error));
    else if (is_entry) TRY(program_gather_stacks(self->program, self->rules, error));
    if (is_entry && self->stages && self->stages->map->chunks > 1) return AM_OK; /* a part of a program */
    TRY(program_fuse(self->program, error));
    if (is_entry && self->assignment->stage->offloads_optimizer)
        TRY(program_offload_optimizer(self->program, error));
    return program_plan_buffers(self->program, error);
}

static AmStatus lower_stage(Program **program, Arena *arena, const PlanContext *context,
                            const Assignment *assignment, const LoweredStages *stages, int32_t device,
                            AmError *error) {
    const IrModule *module = context->canonical;
    Arena scratch = {0};
    Lowering self = {.arena = arena,
                     .scratch = &scratch,
                     .module = module,
                     .rules = context->rules,
                     .split_options = context->split_options,
                     .roles = context->roles,
                     .assignment = assignment,
                     .stages = stages,
                     .device = device,
                     .fuses_rows = plan_context_primary(context)->unfused != NULL,
                     .newest = ARENA_ARRAY(&scratch, int32_t, context->rules->count + 1)};
    if (!self.newest) return am_fail_memory(error, context->rules->count);
    for (int32_t i = 0; i < context->rules->count; i++) self.newest[i] = -1;
    AmStatus status = lower_begin(&self, context->roles, module->entry, error);
    if (status == AM_OK) status = lower_parameters(&self, error);
    if (status == AM_OK) status = lower_instructions(&self, module->entry, error);
    if (status == AM_OK) status = lower_outputs(&self, error);
    arena_free(&scratch);
    TRY(status);
    TRY(lower_finish(&self, error));
    *program = self.program;
    return AM_OK;
}

AmStatus plan_lower(Program **program, Arena *arena, const PlanContext *context, const Assignment *assignment,
                    int32_t device, AmError *error) {
    return lower_stage(program, arena, context, assignment, NULL, device, error);
}

AmStatus plan_lower_stage(Program **program, Arena *arena, const AssignedStages *all, int32_t stage,
                          int32_t device, AmError *error) {
    int32_t count = plan_context_count(all->context);
    Arena scratch = {0};
    LoweredStages stages = {.context = all->context,
                            .map = all->map,
                            .assignments = all->assignments,
                            .stage = stage,
                            .schedule = all->schedule,
                            .awaited = ARENA_ARRAY(&scratch, StageSet, count + 1)};
    if (!stages.awaited) return am_fail_memory(error, count);
    AmStatus status =
        lower_stage(program, arena, all->context, all->assignments[stage], &stages, device, error);
    arena_free(&scratch);
    return status;
}

AmStatus plan_lower_chunks(Program **program, Arena *arena, const AssignedStages *all, int32_t stage,
                           int32_t device, AmError *error) {
    const StageMap *map = all->map;
    int32_t stage_count = map->stage_count / map->chunks;
    Program **chunks = ARENA_ARRAY(arena, Program *, map->chunks);
    if (!chunks) return am_fail_memory(error, map->chunks);
    for (int32_t c = 0; c < map->chunks; c++)
        TRY(plan_lower_stage(&chunks[c], arena, all, c * stage_count + stage, device, error));
    TRY(lower_merge_chunks(program, chunks, map->chunks, stage, stage_count, error));
    TRY(program_fuse(*program, error));
    if (all->assignments[stage]->stage->offloads_optimizer) TRY(program_offload_optimizer(*program, error));
    return program_plan_buffers(*program, error);
}

AmStatus plan_lower_one_device(Program **program, Arena *arena, const PlanContext *context, AmError *error) {
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    if (!stage) return am_fail_memory(error, (int64_t)sizeof *stage);
    *stage = (PlanStage){.mesh = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1}};
    Assignment *assignment;
    TRY(plan_assign(&assignment, arena, context, stage, error));
    return plan_lower(program, arena, context, assignment, 0, error);
}
