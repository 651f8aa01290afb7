/* Counts the kept values that a backward pass could compute again at little cost.
 *
 * Executors of a framework keep fewer values between the passes than automap: a value that follows by cheap
 * operators (FACT_REPEATABLE) from kept values, weights and data is computed again. find_again() in
 * datasets/automap_jax/pipelines.py has the same rule, by the primitives of JAX (CHEAP).
 *
 *     kept: x, tanh(x)     computed again: 1 + tanh(x), x / 2, x * x
 */
#include "lowering/interleave/interleave.h"

void stacks_find_repeated(const Program *body, bool *is_kept, bool *is_had, RepeatsToo *repeats_too) {
    for (int32_t i = 0; i < body->instruction_count; i++) {
        const ProgramInstruction *instruction = &body->instructions[i];
        bool is_cheap =
            instruction->kind == PROGRAM_VIEW ||
            (instruction->kind == PROGRAM_COMPUTE && ir_opcode_has(instruction->opcode, FACT_REPEATABLE));
        for (int32_t k = 0; k < instruction->operand_count; k++) is_cheap &= is_had[instruction->operands[k]];
        for (int32_t r = 0; r < instruction->result_count; r++) {
            int32_t value = instruction->first_result + r;
            bool is_repeated = is_cheap || (repeats_too && repeats_too(body, instruction, r));
            is_had[value] = is_repeated || is_kept[value];
            if (is_repeated) is_kept[value] = false;
        }
    }
}

AmStatus stacks_count_spare(const JoinedLoops *loops, const LoopStack *stacks, int32_t count,
                            AmError *error) {
    Program *program = loops->program;
    const ProgramInstruction *first_loop = &program->instructions[loops->first];
    const Program *body = first_loop->regions.programs[0];
    bool *is_kept = ARENA_ARRAY(program->arena, bool, body->value_count + 1); /* [value]: a stack has it */
    bool *is_had = ARENA_ARRAY(program->arena, bool, body->value_count + 1);
    int32_t *kept_value = ARENA_ARRAY(program->arena, int32_t, first_loop->result_count + 1);
    if (program->arena->failed) return am_fail_memory(error, body->value_count);
    for (int32_t p = 0; p < first_loop->operand_count; p++)
        is_had[body->parameters[p]] = p == 0 || body->outputs[p] == body->parameters[p];
    for (int32_t k = 0; k < count; k++) {
        int32_t written = body->outputs[first_loop->loop.carried[stacks[k].result]];
        const ProgramInstruction *write = &body->instructions[loops->in_first.producer[written]];
        kept_value[stacks[k].result] = program_viewed(body, write->operands[1]);
        is_kept[kept_value[stacks[k].result]] = true;
    }
    stacks_find_repeated(body, is_kept, is_had, NULL);
    for (int32_t k = 0; k < count; k++) {
        int32_t *value = &kept_value[stacks[k].result];
        if (*value < 0) continue; /* several operands are views of one stack */
        int64_t bytes = ir_shape_bytes(&body->values[*value].shape);
        if (is_kept[*value]) program->kept_bytes += bytes;
        else program->spare_bytes += stacks[k].kept * bytes;
        *value = -1;
    }
    return AM_OK;
}
