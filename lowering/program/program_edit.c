/* Edits of a lowered program: new values, replaced uses, another list of instructions. */
#include "lowering/program/program_edit.h"

#include <string.h>

int32_t program_add_value(Program *program, const ProgramValue *value) {
    ARENA_RESERVE(program->arena, program->values, program->value_count, program->value_capacity);
    if (program->arena->failed) return 0;
    program->values[program->value_count] = *value;
    program->values[program->value_count].storage = program->value_count;
    return program->value_count++;
}

AmStatus program_insert(Program *program, int32_t place, int32_t more, AmError *error) {
    int32_t count = program->instruction_count, room = count + more;
    const size_t size = sizeof *program->instructions;
    if (room > program->instruction_capacity) {
        room += room / 4;
        program->instructions = arena_grow(program->arena, program->instructions,
                                           size * (size_t)program->instruction_capacity, size * (size_t)room);
        if (!program->instructions) return am_fail_memory(error, (int64_t)size * room);
        program->instruction_capacity = room;
    }
    ProgramInstruction *at = program->instructions + place;
    memmove(at + more, at, size * (size_t)(count - place));
    program->instruction_count += more;
    return AM_OK;
}

void program_number_producers(Program *program, int32_t first) {
    for (int32_t i = first; i < program->instruction_count; i++)
        for (int32_t r = 0; r < program->instructions[i].result_count; r++)
            program->values[program->instructions[i].first_result + r].instruction = i;
}

AmStatus program_uses(ProgramUses *uses, Arena *arena, const Program *program, AmError *error) {
    int32_t values = program->value_count, total = 0;
    *uses = (ProgramUses){.producer = ARENA_ARRAY(arena, int32_t, values + 1),
                          .first = ARENA_ARRAY(arena, int32_t, values + 3),
                          .is_output = ARENA_ARRAY(arena, bool, values + 1)};
    if (arena->failed) return am_fail_memory(error, values);
    for (int32_t v = 0; v < values; v++) uses->producer[v] = -1;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->result_count; k++)
            uses->producer[instruction->first_result + k] = i;
        for (int32_t k = 0; k < instruction->operand_count; k++) uses->first[instruction->operands[k] + 2]++;
        total += instruction->operand_count;
    }
    uses->users = ARENA_ARRAY(arena, int32_t, total + 1);
    if (!uses->users) return am_fail_memory(error, total);
    /* Filling moves first[v + 1] from the start of v's users to their end. */
    for (int32_t v = 0; v < values; v++) uses->first[v + 2] += uses->first[v + 1];
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; k < program->instructions[i].operand_count; k++)
            uses->users[uses->first[program->instructions[i].operands[k] + 1]++] = i;
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) uses->is_output[program->outputs[k]] = true;
    return AM_OK;
}

int32_t program_viewed(const Program *program, int32_t value) {
    int32_t i;
    while ((i = program->values[value].instruction) >= 0 && program->instructions[i].kind == PROGRAM_VIEW)
        value = program->instructions[i].operands[0];
    return value;
}

AmStatus program_relist(Program *program, const int32_t *list, int32_t count, AmError *error) {
    Arena scratch = {0};
    ProgramInstruction *instructions = program->instructions;
    ProgramInstruction *before =
        ARENA_ARRAY_RAW(&scratch, ProgramInstruction, program->instruction_count + 1);
    if (!before) return am_fail_memory(error, (int64_t)sizeof *before * program->instruction_count);
    if (program->instruction_count > 0)
        memcpy(before, instructions, sizeof *before * (size_t)program->instruction_count);
    for (int32_t k = 0; k < count; k++) instructions[k] = before[list[k]];
    arena_free(&scratch);
    program->instruction_count = count;
    program_number_producers(program, 0);
    return AM_OK;
}
