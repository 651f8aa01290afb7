/* Sums taken into the products that make one of their terms.
 *
 *   p = dot(a, b); s = add(c, p)   becomes   s = dot(a, b, c)
 *
 * A gradient that is summed up turn by turn comes so: over micro-batches, or over the time steps of a loop.
 * As a step of its own the sum would read what the product has just written, and write as much once more;
 * any library of products adds to an array instead. The result may lie where the addend did (buffers.c).
 *
 * No bit changes, as the addition rounds after the product has. So only f32 is taken: a product of 16 bits
 * is rounded before it is added, which one that adds would not do. Left alone is also what a fusion computes
 * with other operators, where the addition costs nothing, or whose addend exists only inside of one.
 */
#include "ir/dataflow.h"
#include "propagation/program.h"

typedef struct Uses {
    int32_t count; /* by instructions, outputs and updates */
    bool is_fused; /* an element-wise operator of the same dimensions is among them */
} Uses;

static bool is_element_wise(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COMPUTE && ir_is_elementwise(instruction->opcode);
}

/* From the last instruction on: a view that nobody needs, as an absorbed transpose leaves it, is no user. */
static void count_uses(Uses *uses, const Program *program) {
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) uses[program->outputs[k]].count++;
    for (int32_t k = 0; k < program->update_count; k++) uses[program->updates[k].value].count++;
    for (int32_t i = program->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind == PROGRAM_VIEW && uses[instruction->first_result].count == 0) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t value = instruction->operands[k];
            uses[value].count++;
            uses[value].is_fused |= is_element_wise(instruction) &&
                                    ir_same_dimensions(&program->values[value].shape,
                                                       &program->values[instruction->first_result].shape);
        }
    }
}

/* Whether a value has memory in any case, and is there before instruction `before`. */
static bool is_at_hand(const Program *program, int32_t value, int32_t before) {
    int32_t maker = program->values[value].instruction;
    if (maker < 0) return true;
    const ProgramInstruction *instruction = &program->instructions[maker];
    if (maker >= before || is_element_wise(instruction)) return false;
    return instruction->opcode != IR_BROADCAST && instruction->opcode != IR_IOTA &&
           instruction->opcode != IR_CONSTANT;
}

/* The product that makes operand `side` of the sum, if it can add the other one; or NULL. */
static ProgramInstruction *product_of(const Program *program, const Uses *uses, const ProgramInstruction *sum,
                                      int32_t side) {
    int32_t made = sum->operands[side], addend = sum->operands[1 - side];
    int32_t maker = program->values[made].instruction;
    ProgramInstruction *dot = maker < 0 ? NULL : &program->instructions[maker];
    if (!dot || dot->kind != PROGRAM_COMPUTE || dot->opcode != IR_DOT || !dot->attributes->dot ||
        dot->operand_count != 2 || dot->attributes->dimension_count > 0)
        return NULL;
    bool is_alone = uses[made].count == 1 && made != addend;
    const IrShape *shape = &program->values[made].shape;
    return is_alone && ir_shape_equal(shape, &program->values[addend].shape) &&
                   is_at_hand(program, addend, maker)
               ? dot
               : NULL;
}

/* The product makes the sum where it stands; the sum becomes a view that nobody reads. */
static AmStatus take(Program *program, ProgramInstruction *dot, ProgramInstruction *sum, int32_t addend,
                     AmError *error) {
    static const IrAttributes nothing = {0};
    int32_t *operands = ARENA_ARRAY(program->arena, int32_t, 3);
    int32_t *views = ARENA_ARRAY(program->arena, int32_t, 1);
    if (program->arena->failed) return am_fail_memory(error, (int64_t)sizeof *operands);
    int32_t made = dot->first_result, result = sum->first_result;
    operands[0] = dot->operands[0];
    operands[1] = dot->operands[1];
    operands[2] = addend;
    dot->operands = operands;
    dot->operand_count = 3;
    dot->first_result = result;
    views[0] = result;
    sum->kind = PROGRAM_VIEW;
    sum->opcode = IR_BITCAST;
    sum->attributes = &nothing;
    sum->operands = views;
    sum->operand_count = 1;
    sum->first_result = made;
    program->values[result].instruction = (int32_t)(dot - program->instructions);
    program->values[made].instruction = (int32_t)(sum - program->instructions);
    return AM_OK;
}

AmStatus program_accumulate_products(Program *program, AmError *error) {
    Uses *uses = NULL;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        ProgramInstruction *sum = &program->instructions[i];
        if (sum->kind != PROGRAM_COMPUTE || sum->opcode != IR_ADD) continue;
        if (program->values[sum->first_result].shape.type != DTYPE_F32) continue;
        if (!uses) {
            uses = ARENA_ARRAY(program->arena, Uses, program->value_count + 1);
            if (!uses) return am_fail_memory(error, (int64_t)sizeof *uses * program->value_count);
            count_uses(uses, program);
        }
        if (uses[sum->first_result].is_fused) continue;
        for (int32_t side = 0; side < 2; side++) {
            ProgramInstruction *dot = product_of(program, uses, sum, side);
            if (!dot) continue;
            TRY(take(program, dot, sum, sum->operands[1 - side], error));
            break;
        }
    }
    return AM_OK;
}
