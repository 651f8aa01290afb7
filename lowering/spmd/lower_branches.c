/* Lowers a planned conditional: its branches become programs for one device.
 *
 * Inputs of a branch are resharded before the conditional to the state in which the branch reads
 * them, whichever branch is taken; each branch returns every result in its one state after the
 * conditional. The selector is replicated, so that all ranks take the same branch and run its
 * collectives.
 */
#include "lowering/spmd/lower_internal.h"

/* Returns the state of a value that `reader` represents; replicated without a reader. */
static SbpState read_state(const Lowering *self, int32_t reader) {
    return reader < 0 ? (SbpState){.axis = {SBP_B}} : self->assignment->stored[reader];
}

static AmStatus lower_branch(const Lowering *caller, const PlannedConditional *conditional,
                             const PlannedBranch *branch, Program **region, AmError *error) {
    Lowering self = *caller;
    self.stages = NULL; /* all of a branch is where the conditional is */
    IrRoles *roles = ARENA_ARRAY(self.arena, IrRoles, 1);
    if (!roles) return am_fail_memory(error, (int64_t)sizeof *roles);
    *roles = (IrRoles){
        .loss = -1, .parameter_count = branch->leaf_count, .output_count = conditional->result_count};
    TRY(lower_begin(&self, roles, branch->computation, error));
    Program *program = self.program;
    program->parameters = ARENA_ARRAY(self.arena, int32_t, branch->leaf_count + 1);
    if (!program->parameters) return am_fail_memory(error, branch->leaf_count);
    for (int32_t k = 0; k < branch->leaf_count; k++) {
        const BranchLeaf *leaf = &branch->leaves[k];
        bool is_read = leaf->reader >= 0;
        int32_t value = lower_add_value(&self, is_read ? leaf->reader : leaf->parameter, is_read ? 0 : k,
                                        leaf->shape, read_state(&self, leaf->reader));
        if (self.arena->failed) return am_fail_memory(error, branch->leaf_count);
        program->values[value].kind = PROGRAM_VALUE_PARAMETER;
        program->values[value].instruction = -1;
        program->parameters[k] = value;
    }
    TRY(lower_instructions(&self, branch->computation, error));
    self.program->outputs = ARENA_ARRAY(self.arena, int32_t, conditional->result_count + 1);
    if (!self.program->outputs) return am_fail_memory(error, conditional->result_count);
    for (int32_t r = 0; r < conditional->result_count; r++)
        TRY(lower_operand_in_state(&self, branch->made[r], branch->made_leaf[r],
                                   read_state(&self, conditional->afterwards[r]), &self.program->outputs[r],
                                   error));
    self.program->allocation.outputs_outside = true;
    *region = self.program;
    return lower_finish(&self, error);
}

AmStatus lower_conditional(Lowering *self, const PlannedConditional *conditional, AmError *error) {
    static const IrAttributes none;
    const IrInstruction *source = &self->module->instructions[conditional->instruction];
    int32_t operand_count = 1, selector = source->operands[0];
    for (int32_t k = 0; k < conditional->branch_count; k++)
        operand_count += conditional->branches[k].leaf_count;
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, operand_count);
    Program **regions = ARENA_ARRAY(self->arena, Program *, conditional->branch_count);
    if (self->arena->failed) return am_fail_memory(error, operand_count);
    TRY(lower_operand_in_state(self, self->rules->alias[selector], self->rules->leaf[selector],
                               (SbpState){.axis = {SBP_B}}, &operands[0], error));
    for (int32_t k = 0, next = 1; k < conditional->branch_count; k++) {
        const PlannedBranch *branch = &conditional->branches[k];
        for (int32_t l = 0; l < branch->leaf_count; l++, next++)
            TRY(lower_operand_in_state(self, branch->leaves[l].given, branch->leaves[l].given_leaf,
                                       read_state(self, branch->leaves[l].reader), &operands[next], error));
    }
    for (int32_t k = 0; k < conditional->branch_count; k++)
        TRY(lower_branch(self, conditional, &conditional->branches[k], &regions[k], error));
    int32_t first_result = self->program->value_count;
    for (int32_t r = 0; r < conditional->result_count; r++) {
        int32_t reader = conditional->afterwards[r];
        lower_add_value(self, reader >= 0 ? reader : conditional->instruction, reader >= 0 ? 0 : r,
                        conditional->result_shapes[r], read_state(self, reader));
    }
    ProgramInstruction *instruction = lower_add_instruction(self);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = IR_CONDITIONAL;
    instruction->origin = conditional->instruction;
    instruction->operand_count = operand_count;
    instruction->operands = operands;
    instruction->result_count = conditional->result_count;
    instruction->first_result = first_result;
    instruction->attributes = &none;
    instruction->compute.called = source->called[0];
    instruction->compute.called_second = source->called_count > 1 ? source->called[1] : -1;
    instruction->regions.count = conditional->branch_count;
    instruction->regions.programs = regions;
    return self->arena->failed ? am_fail_memory(error, operand_count) : AM_OK;
}
