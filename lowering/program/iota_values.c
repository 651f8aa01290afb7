/* Marks values that are consecutive integers.
 *
 * Results of iota are marked; views, copies, and the parameters of regions take the mark of their operand. A
 * loop passes on only values that its body does not change. Kernels then compute such indices instead of
 * reading them.
 */
#include "lowering/program/iota_values.h"

static void copy_mark(ProgramValue *to, const ProgramValue *from) {
    to->is_iota = from->is_iota;
    to->iota_first = from->iota_first;
}

/* Returns whether the region of a loop gives its parameter k to the next iteration unchanged. */
static bool keeps(const ProgramInstruction *loop, int32_t k) {
    const Program *body = loop->regions.programs[0];
    if (k >= body->roles->output_count || body->outputs[k] < 0) return true;
    int32_t value = body->outputs[k];
    int32_t producer = body->values[value].instruction;
    while (producer >= 0 && body->instructions[producer].kind == PROGRAM_VIEW) {
        value = body->instructions[producer].operands[0];
        producer = body->values[value].instruction;
    }
    return value == body->parameters[k];
}

/* Sets the parameters of regions of calls, fusions and loops to the operands. */
static void enter_regions(const Program *program, const ProgramInstruction *instruction) {
    bool is_loop = instruction->opcode == IR_WHILE;
    if (is_loop && !instruction->loop.carried) return;
    for (int32_t r = 0; r < instruction->regions.count; r++) {
        Program *region = instruction->regions.programs[r];
        bool passes = is_loop || instruction->opcode == IR_CALL || instruction->opcode == IR_FUSION;
        for (int32_t k = 0; passes && k < instruction->operand_count && k < region->roles->parameter_count;
             k++)
            if (region->parameters[k] >= 0 && (!is_loop || keeps(instruction, k)))
                copy_mark(&region->values[region->parameters[k]], &program->values[instruction->operands[k]]);
        program_find_iotas(region);
    }
}

void program_find_iotas(Program *program) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->regions.count > 0) enter_regions(program, instruction);
        if (instruction->result_count != 1 || instruction->compute.place) continue;
        ProgramValue *result = &program->values[instruction->first_result];
        bool is_integer = result->shape.type == DTYPE_S32 || result->shape.type == DTYPE_S64;
        if (result->shape.rank != 1 || !is_integer) continue;
        if (instruction->kind == PROGRAM_COMPUTE && instruction->opcode == IR_IOTA) {
            result->is_iota = true;
            result->iota_first = instruction->compute.shard ? instruction->compute.shard->start[0] : 0;
        } else if (instruction->kind == PROGRAM_VIEW ||
                   (instruction->kind == PROGRAM_COMPUTE && instruction->opcode == IR_COPY)) {
            const ProgramValue *from = &program->values[instruction->operands[0]];
            if (from->shape.type == result->shape.type && from->shape.rank == 1 &&
                from->shape.dimensions[0] == result->shape.dimensions[0])
                copy_mark(result, from);
        }
    }
}
