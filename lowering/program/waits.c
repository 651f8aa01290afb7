/* The collectives for which each step of a program waits, on devices that communicate while they compute.
 * Collectives under way are kept as the ranges of memory that they use. */
#include "lowering/program/waits.h"

typedef struct MemoryRange {
    int64_t first, end;
    int32_t collective; /* its step */
    bool is_written;
} MemoryRange;

typedef struct WaitFinder {
    Arena *arena;
    const Program *program;
    MemoryRange *under_way; /* in the order of issue */
    int32_t count, capacity;
} WaitFinder;

static MemoryRange range_of(const Program *program, int32_t value) {
    const ProgramValue *self = &program->values[value];
    /* Copies from and to the host's memory take place in order. */
    return (MemoryRange){.first = self->offset, .end = self->offset < 0 ? -1 : self->offset + self->bytes};
}

/* Notes the memory that a collective under way reads and writes. */
static void issue(WaitFinder *self, int32_t step, const ProgramInstruction *collective) {
    for (int32_t k = 0; k < collective->operand_count + collective->result_count; k++) {
        bool is_result = k >= collective->operand_count;
        int32_t value =
            is_result ? collective->first_result + k - collective->operand_count : collective->operands[k];
        MemoryRange range = range_of(self->program, value);
        range.collective = step;
        range.is_written = is_result;
        if (range.first < 0 || range.first == range.end) continue;
        ARENA_RESERVE(self->arena, self->under_way, self->count, self->capacity);
        if (!self->arena->failed) self->under_way[self->count++] = range;
    }
}

/* Returns the newest collective under way that a step must wait for because of one value; -1: none. */
static int32_t find_conflict(const WaitFinder *self, int32_t value, bool writes) {
    MemoryRange own = range_of(self->program, value);
    for (int32_t k = own.first < 0 ? -1 : self->count - 1; k >= 0; k--) {
        const MemoryRange *other = &self->under_way[k];
        if (own.first < other->end && other->first < own.end && (writes || other->is_written))
            return other->collective;
    }
    return -1;
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t find_wait(const WaitFinder *self, const ProgramStep *step) {
    const Program *program = self->program;
    int32_t wait = -1;
    if (step->fusion >= 0) {
        const ProgramFusion *fusion = &program->execution.fusions[step->fusion];
        for (int32_t k = 0; k < fusion->input_count; k++)
            wait = larger(wait, find_conflict(self, fusion->inputs[k].value, false));
        for (int32_t k = 0; k < fusion->output_count; k++)
            wait = larger(wait, find_conflict(self, fusion->output_values[k], true));
        return wait;
    }
    const ProgramInstruction *instruction = &program->instructions[step->instruction];
    for (int32_t k = 0; k < instruction->operand_count; k++)
        wait = larger(wait, find_conflict(self, instruction->operands[k], false));
    for (int32_t k = 0; k < instruction->result_count; k++)
        wait = larger(wait, find_conflict(self, instruction->first_result + k, true));
    return wait;
}

AmStatus program_find_waits(int32_t **waits, Arena *arena, const Program *program, AmError *error) {
    WaitFinder self = {.arena = arena, .program = program};
    *waits = ARENA_ARRAY(arena, int32_t, program->execution.step_count + 1);
    if (!*waits) return am_fail_memory(error, program->execution.step_count);
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        (*waits)[s] = -1;
        if (instruction && (program_has_control(instruction) || instruction->kind == PROGRAM_TRANSFER)) {
            self.count = 0;
        } else if (instruction && instruction->kind == PROGRAM_COLLECTIVE) {
            issue(&self, s, instruction);
        } else if (self.count > 0) {
            (*waits)[s] = find_wait(&self, step);
            if ((*waits)[s] >= 0) {
                /* The awaited collective, and all before it, have ended. */
                int32_t done = 0;
                while (done < self.count && self.under_way[done].collective <= (*waits)[s]) done++;
                for (int32_t k = done; k < self.count; k++) self.under_way[k - done] = self.under_way[k];
                self.count -= done;
            }
        }
    }
    return arena->failed ? am_fail_memory(error, program->execution.step_count) : AM_OK;
}
