/* Moves transposes of sums over devices before the sum.
 *
 *   dot -> all_reduce -> transpose   becomes   dot -> transpose -> all_reduce
 *
 * Gradients of weights have this form: the product is transposed as in the user's program, and the
 * sum over the batch's devices is in between. Moved before it, the transpose is folded into the
 * product (absorb_transposes.c), as on one device; both orders add the same elements. The pass requires
 * that the product and its sum have no other users.
 */
#include "lowering/passes/passes.h"

typedef struct Users {
    int32_t count;
    int32_t instruction; /* one of them, or -1 */
} Users;

/* Returns whether an instruction is an all_reduce of one product. */
static bool sums_product(const Program *program, const ProgramInstruction *sum) {
    if (sum->kind != PROGRAM_COLLECTIVE || sum->collective->kind != PROGRAM_ALL_REDUCE ||
        sum->operand_count != 1)
        return false;
    int32_t producer = program->values[sum->operands[0]].instruction;
    const ProgramInstruction *dot = producer < 0 ? NULL : &program->instructions[producer];
    return dot && dot->kind == PROGRAM_COMPUTE && ir_is_matrix_product(dot->opcode);
}

/* Returns the transpose that is the only user of instruction i, an all_reduce of one product; NULL
 * otherwise. */
static ProgramInstruction *transpose_after(const Program *program, const Users *users, int32_t i) {
    const ProgramInstruction *sum = &program->instructions[i];
    if (!sums_product(program, sum)) return NULL;
    int32_t made = sum->first_result, product = sum->operands[0];
    if (users[made].count != 1 || users[made].instruction < 0 || users[product].count != 1) return NULL;
    ProgramInstruction *user = &program->instructions[users[made].instruction];
    return user->kind == PROGRAM_COMPUTE && user->opcode == IR_TRANSPOSE ? user : NULL;
}

/* Exchanges the operations of the two, which keep their positions and results. */
static void exchange(Program *program, ProgramInstruction *sum, ProgramInstruction *transpose) {
    ProgramInstruction moved = *transpose;
    const ProgramValue *after = &program->values[transpose->first_result];
    ProgramValue *between = &program->values[sum->first_result];
    const ProgramValue *before = &program->values[sum->operands[0]];
    between->shape = after->shape;
    between->origin = after->origin;
    /* Dimension d of the permuted array was dimensions[d]. */
    SbpState result = before->state;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        for (int32_t d = 0; sbp_is_split(before->state.axis[axis]) && d < after->shape.rank; d++)
            if (moved.attributes->dimensions[d] == sbp_dimension(before->state.axis[axis]))
                sbp_set_split(&result, axis, d, before->state.cut[axis]);
    between->state = result;
    *transpose = *sum;
    transpose->operands = moved.operands;
    transpose->first_result = moved.first_result;
    moved.operands = sum->operands;
    moved.first_result = sum->first_result;
    *sum = moved;
}

AmStatus program_transpose_before_reducing(Program *program, AmError *error) {
    bool has_sum = false;
    for (int32_t i = 0; i < program->instruction_count && !has_sum; i++)
        has_sum = sums_product(program, &program->instructions[i]);
    if (program->mesh->device_count == 1 || !has_sum) return AM_OK;
    Users *users = ARENA_ARRAY(program->arena, Users, program->value_count + 1);
    if (!users) return am_fail_memory(error, (int64_t)sizeof *users * program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) users[v].instruction = -1;
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; k < program->instructions[i].operand_count; k++) {
            Users *of_value = &users[program->instructions[i].operands[k]];
            of_value->count++;
            of_value->instruction = i;
        }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) users[program->outputs[k]].count++;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        users[program->execution.updates[k].value].count++;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        ProgramInstruction *transpose = transpose_after(program, users, i);
        if (transpose) exchange(program, &program->instructions[i], transpose);
    }
    return AM_OK;
}
