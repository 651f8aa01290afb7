/* Lowers a planned loop: its body and condition become programs for one device.
 *
 * Each carried array has one state (assignment_carried). The initial value is resharded to it
 * before the loop, and the body reshards the new value to it at the end of every iteration. The
 * condition, whose result all devices need, returns a replicated value. The collectives for this
 * are in the regions themselves. One stage of several takes part with the arrays that it carries.
 */
#include "lowering/passes/places.h"
#include "lowering/spmd/lower_internal.h"

/* A planned loop and the arrays of it that are carried here. */
typedef struct CarriedLoop {
    const PlannedLoop *loop;
    int32_t count;
    int32_t *leaves; /* [count] in loop->leaves, ascending */
} CarriedLoop;

/* Lowers the parameters of a region: every array that is carried here. */
static AmStatus lower_carried(Lowering *self, const CarriedLoop *carried, int32_t computation,
                              AmError *error) {
    Program *program = self->program;
    const PlannedLoop *loop = carried->loop;
    program->parameters = ARENA_ARRAY(self->arena, int32_t, carried->count + 1);
    if (!program->parameters) return am_fail_memory(error, carried->count);
    for (int32_t p = 0; p < carried->count; p++) {
        int32_t k = carried->leaves[p];
        const LoopLeaf *leaf = &loop->leaves[k];
        int32_t reader = computation == loop->body ? leaf->in_body : leaf->in_condition;
        int32_t parameter = self->module->computations[computation].parameters[0];
        int32_t value = lower_add_value(self, reader >= 0 ? reader : parameter, reader >= 0 ? 0 : k,
                                        leaf->shape, assignment_carried(self->assignment, leaf));
        if (self->arena->failed) return am_fail_memory(error, loop->leaf_count);
        program->values[value].kind = PROGRAM_VALUE_PARAMETER;
        program->values[value].instruction = -1;
        program->parameters[p] = value;
    }
    for (int32_t k = 0; k < loop->leaf_count && computation == loop->body; k++)
        if (loop->leaves[k].in_body >= 0 && lower_needs_leaf(self, &loop->leaves[k]))
            TRY(lower_value_defined(self, loop->leaves[k].in_body, error));
    return AM_OK;
}

static AmStatus lower_next(Lowering *self, const CarriedLoop *carried, AmError *error) {
    Program *program = self->program;
    program->execution.updates = ARENA_ARRAY(self->arena, ProgramUpdate, carried->count + 1);
    if (!program->execution.updates) return am_fail_memory(error, carried->count);
    for (int32_t k = 0; k < carried->count; k++) {
        const LoopLeaf *leaf = &carried->loop->leaves[carried->leaves[k]];
        TRY(lower_operand_in_state(self, leaf->next, leaf->next_leaf,
                                   assignment_carried(self->assignment, leaf), &program->outputs[k], error));
        if (program->outputs[k] == program->parameters[k]) continue;
        program->execution.updates[program->execution.update_count++] =
            (ProgramUpdate){.parameter = k, .value = program->outputs[k]};
    }
    return AM_OK;
}

static AmStatus lower_region(const Lowering *caller, const CarriedLoop *carried, int32_t computation,
                             Program **region, AmError *error) {
    Lowering self = *caller;
    const PlannedLoop *loop = carried->loop;
    const IrComputation *body = &self.module->computations[computation];
    bool is_body = computation == loop->body;
    IrRoles *roles = ARENA_ARRAY(self.arena, IrRoles, 1);
    if (!roles) return am_fail_memory(error, (int64_t)sizeof *roles);
    *roles = (IrRoles){
        .loss = -1, .parameter_count = carried->count, .output_count = is_body ? carried->count : 1};
    TRY(lower_begin(&self, roles, computation, error));
    TRY(lower_carried(&self, carried, computation, error));
    TRY(lower_instructions(&self, computation, error));
    self.program->outputs = ARENA_ARRAY(self.arena, int32_t, roles->output_count + 1);
    if (!self.program->outputs) return am_fail_memory(error, roles->output_count);
    if (is_body) {
        TRY(lower_next(&self, carried, error));
    } else {
        TRY(lower_operand_in_state(&self, self.rules->alias[body->root], self.rules->leaf[body->root],
                                   (SbpState){.axis = {SBP_B}}, &self.program->outputs[0], error));
    }
    *region = self.program;
    if (is_body) program_set_counter(self.program, loop->instruction, carried->leaves);
    return lower_finish(&self, error);
}

AmStatus lower_loop(Lowering *self, const PlannedLoop *loop, AmError *error) {
    static const IrAttributes none;
    CarriedLoop here = {.loop = loop};
    TRY(lower_list_carried(self, loop, &here.leaves, &here.count, error));
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, here.count + 1);
    int32_t *carried = ARENA_ARRAY(self->arena, int32_t, here.count + 1);
    Program **regions = ARENA_ARRAY(self->arena, Program *, 2);
    if (self->arena->failed) return am_fail_memory(error, loop->leaf_count);
    for (int32_t k = 0; k < here.count; k++) {
        const LoopLeaf *leaf = &loop->leaves[here.leaves[k]];
        /* An array in which the loop accumulates partial sums is zero, and therefore given replicated. */
        SbpState state = assignment_carried(self->assignment, leaf);
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
            if (sbp_is_partial(state.axis[axis])) sbp_set(&state, axis, SBP_B);
        TRY(lower_operand_in_state(self, leaf->initial, leaf->initial_leaf, state, &operands[k], error));
    }
    TRY(lower_region(self, &here, loop->body, &regions[0], error));
    TRY(lower_region(self, &here, loop->condition, &regions[1], error));
    int32_t first_result = self->program->value_count, results = 0;
    for (int32_t k = 0; k < here.count; k++) {
        const LoopLeaf *leaf = &loop->leaves[here.leaves[k]];
        if (leaf->is_invariant) continue;
        bool is_read = leaf->afterwards >= 0;
        carried[results++] = k;
        lower_add_value(self, is_read ? leaf->afterwards : loop->instruction, is_read ? 0 : here.leaves[k],
                        leaf->shape, assignment_carried(self->assignment, leaf));
    }
    ProgramInstruction *instruction = lower_add_instruction(self);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = IR_WHILE;
    instruction->origin = loop->instruction;
    instruction->operand_count = here.count;
    instruction->operands = operands;
    instruction->result_count = results;
    instruction->first_result = first_result;
    instruction->attributes = &none;
    instruction->compute.called = loop->body;
    instruction->compute.called_second = loop->condition;
    instruction->regions.count = 2;
    instruction->regions.programs = regions;
    instruction->loop.carried = carried;
    if (self->arena->failed) return am_fail_memory(error, results);
    for (int32_t r = 0; r < results; r++) {
        int32_t afterwards = loop->leaves[here.leaves[carried[r]]].afterwards;
        if (afterwards >= 0) TRY(lower_finish_partial(self, afterwards, 0, first_result + r, error));
    }
    return AM_OK;
}
