/* Folds additions into the products that compute one of their terms.
 *
 *   p = dot(a, b); s = add(c, p)   becomes   s = dot(a, b, c)
 *
 * A gradient that accumulates over iterations has this form: over micro-batches, or over the time
 * steps of a loop. A separate addition would read the product's result and write the same number of
 * bytes again; every matrix library can add to an array instead. The result may overwrite the
 * addend (buffers.c). Sums of several products and residual additions have this form too.
 *
 * Results do not change in any bit, since the addition rounds after the product. The pass is
 * limited to f32: a 16-bit product is rounded before the addition, which an accumulating product
 * would omit. An addition inside a fusion with other operators is left alone, because it costs
 * nothing there. The product now waits for the addend. Only the sum uses the product, so that no
 * group of steps can wait for itself.
 */
#include "lowering/passes/accumulate.h"

#include <string.h>

enum { MOST_SUMS = 8 }; /* of one group */

typedef struct Accumulator {
    Program *program;
    int32_t *uses;     /* [value] */
    int32_t *producer; /* [value]: instruction, or -1; of sums that are about to be taken, the product */
    int32_t *next;     /* [instruction]: the next member of its group, or -1 */
} Accumulator;

/* Returns whether a value is there before instruction `before`, and no fusion makes it where it is read. */
static bool is_at_hand(const Accumulator *self, int32_t value, int32_t before) {
    int32_t producer = self->producer[value];
    if (producer < 0) return true;
    const ProgramInstruction *instruction = &self->program->instructions[producer];
    return producer < before && (instruction->kind != PROGRAM_COMPUTE ||
                                 (instruction->opcode != IR_BROADCAST && instruction->opcode != IR_IOTA &&
                                  instruction->opcode != IR_CONSTANT));
}

static bool is_sum(const Program *program, const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COMPUTE && instruction->opcode == IR_ADD &&
           program->values[instruction->first_result].shape.type == DTYPE_F32;
}

/* Returns whether operand `side` of the sum is made by a product that can add the other one. */
static bool is_taken_by(const Accumulator *self, const ProgramInstruction *sum, int32_t side) {
    const Program *program = self->program;
    int32_t made = sum->operands[side], addend = sum->operands[1 - side];
    const ProgramInstruction *dot =
        self->producer[made] < 0 ? NULL : &program->instructions[self->producer[made]];
    if (!dot || dot->kind != PROGRAM_COMPUTE || !ir_is_matrix_product(dot->opcode) || !dot->attributes->dot ||
        dot->operand_count != 2 || dot->attributes->dimension_count > 0)
        return false;
    return dot->first_result == made && self->uses[made] == 1 && made != addend &&
           ir_shape_equal(&program->values[made].shape, &program->values[addend].shape) &&
           is_at_hand(self, addend, self->producer[made]);
}

/* Makes the product compute the sum; the sum becomes a view without readers. */
static AmStatus add_into_product(Program *program, ProgramInstruction *sum, int32_t side, AmError *error) {
    static const IrAttributes nothing = {0};
    ProgramInstruction *dot = &program->instructions[program->values[sum->operands[side]].instruction];
    int32_t *operands = ARENA_ARRAY(program->arena, int32_t, 3);
    int32_t *views = ARENA_ARRAY(program->arena, int32_t, 1);
    if (program->arena->failed) return am_fail_memory(error, (int64_t)sizeof *operands);
    int32_t made = dot->first_result, result = sum->first_result;
    operands[0] = dot->operands[0];
    operands[1] = dot->operands[1];
    operands[2] = sum->operands[1 - side];
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

/* Finds the operand of each member that its product makes: sides[m]. Returns false if a member has none. */
static bool find_receivers(Accumulator *self, int32_t *sides, int32_t leader) {
    int32_t count = 0;
    bool takes_all = true;
    for (int32_t i = leader; i >= 0 && takes_all; i = self->next[i], count++) {
        const ProgramInstruction *sum = &self->program->instructions[i];
        takes_all = count < MOST_SUMS && is_sum(self->program, sum);
        if (!takes_all) break;
        int32_t side = is_taken_by(self, sum, 0) ? 0 : 1;
        takes_all = side == 0 || is_taken_by(self, sum, 1);
        if (!takes_all) break;
        sides[count] = side;
        self->producer[sum->first_result] = self->producer[sum->operands[side]];
    }
    for (int32_t i = leader; i >= 0 && !takes_all; i = self->next[i])
        self->producer[self->program->instructions[i].first_result] = i;
    return takes_all;
}

static AmStatus count_uses(Accumulator *self, const int32_t *leader, AmError *error) {
    const Program *program = self->program;
    int32_t count = program->instruction_count;
    Arena *arena = program->arena;
    self->uses = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    self->producer = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
    self->next = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *last = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t v = 0; v < program->value_count; v++) self->producer[v] = program->values[v].instruction;
    for (int32_t i = 0; i < count; i++) {
        self->next[i] = -1;
        if (leader[i] != i) self->next[last[leader[i]]] = i;
        last[leader[i]] = i;
    }
    /* Uses by instructions, outputs and updates. A view without users, such as an absorbed transpose, is not
     * counted. */
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) self->uses[program->outputs[k]]++;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        self->uses[program->execution.updates[k].value]++;
    for (int32_t i = program->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind == PROGRAM_VIEW && self->uses[instruction->first_result] == 0) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) self->uses[instruction->operands[k]]++;
    }
    return AM_OK;
}

AmStatus program_accumulate_products(bool **taken, Program *program, int32_t *leader, int32_t *size,
                                     AmError *error) {
    Accumulator self = {.program = program};
    int32_t count = program->instruction_count, sides[MOST_SUMS];
    *taken = NULL;
    bool has_sum = false;
    for (int32_t i = 0; i < count && !has_sum; i++) has_sum = is_sum(program, &program->instructions[i]);
    if (!has_sum) return AM_OK;
    TRY(count_uses(&self, leader, error));
    for (int32_t first = 0; first < count; first++) {
        if (leader[first] != first || !is_sum(program, &program->instructions[first]) ||
            !find_receivers(&self, sides, first))
            continue;
        if (!*taken) *taken = ARENA_ARRAY(program->arena, bool, count + 1);
        if (!*taken) return am_fail_memory(error, count);
        for (int32_t i = first, m = 0; i >= 0; i = self.next[i], m++) {
            TRY(add_into_product(program, &program->instructions[i], sides[m], error));
            (*taken)[i] = true;
            leader[i] = i;
            size[i] = 1;
        }
    }
    return AM_OK;
}
