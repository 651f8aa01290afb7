/* The steps that run, loops unrolled into counts.
 *
 * Regions are walked depth first, each appended with the times that it runs. The
 * branches of a conditional are appended one after the other, and all but the
 * dearest taken off again, so that every region is walked once.
 */
#include "cost/executed.h"

#include <string.h>

#include "cost/price.h"
#include "ir/loops.h"
#include "propagation/rules.h"

typedef struct Walker {
    Arena *arena;
    const ClusterDeviceType *type;
    ExecutedStep *steps;
    int32_t count, capacity;
} Walker;

const ProgramInstruction *executed_collective(const ExecutedStep *executed) {
    const Program *program = executed->program;
    if (executed->step == program->step_count || program->steps[executed->step].fusion >= 0) return NULL;
    const ProgramInstruction *instruction =
        &program->instructions[program->steps[executed->step].instruction];
    return instruction->kind == PROGRAM_COLLECTIVE ? instruction : NULL;
}

double executed_seconds(const ExecutedStep *executed, const ClusterDeviceType *type) {
    const Program *program = executed->program;
    OperatorWork work;
    if (executed->step == program->step_count) return price_updates(program, type);
    if (executed_collective(executed)) return 0;
    operator_work(&work, program, &program->steps[executed->step]);
    return operator_seconds(&work, type);
}

static void append(Walker *self, const Program *program, int32_t step, double times) {
    ARENA_RESERVE(self->arena, self->steps, self->count, self->capacity);
    if (!self->arena->failed) self->steps[self->count++] = (ExecutedStep){program, step, times};
}

static void walk(Walker *self, const Program *program, double times);

static void walk_loop(Walker *self, const ProgramInstruction *loop, const Program *within, double times) {
    int64_t known = ir_loop_trips(within->module, loop->origin);
    double trips = known == IR_TRIPS_UNKNOWN ? 1 : (double)known;
    walk(self, loop->regions[1], times * (trips + 1));
    walk(self, loop->regions[0], times * trips);
    if (loop->regions[0]->update_count > 0)
        append(self, loop->regions[0], loop->regions[0]->step_count, times * trips);
}

static void walk_branches(Walker *self, const ProgramInstruction *conditional, double times) {
    int32_t first = self->count, kept = first;
    double most = -1;
    for (int32_t k = 0; k < conditional->region_count && !self->arena->failed; k++) {
        int32_t begin = self->count;
        double seconds = 0;
        walk(self, conditional->regions[k], times);
        if (self->arena->failed) return;
        for (int32_t s = begin; s < self->count; s++)
            seconds += self->steps[s].times * executed_seconds(&self->steps[s], self->type);
        if (seconds > most) {
            most = seconds;
            memmove(&self->steps[first], &self->steps[begin],
                    sizeof *self->steps * (size_t)(self->count - begin));
            kept = first + self->count - begin;
        }
        self->count = kept;
    }
}

static void walk(Walker *self, const Program *program, double times) {
    if (times > RULES_MOST_TIMES) times = RULES_MOST_TIMES;
    for (int32_t s = 0; s < program->step_count && !self->arena->failed; s++) {
        const ProgramStep *step = &program->steps[s];
        append(self, program, s, times);
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        if (!instruction || instruction->region_count == 0) continue;
        if (instruction->opcode == IR_WHILE) walk_loop(self, instruction, program, times);
        if (instruction->opcode == IR_CONDITIONAL) walk_branches(self, instruction, times);
    }
}

AmStatus executed_steps(ExecutedStep **steps, int32_t *count, Arena *arena, const Program *program,
                        const ClusterDeviceType *type, AmError *error) {
    Walker walker = {.arena = arena, .type = type, .capacity = program->step_count + 1};
    walker.steps = ARENA_ARRAY(arena, ExecutedStep, walker.capacity);
    if (walker.steps) walk(&walker, program, 1);
    if (arena->failed) return am_fail_memory(error, program->step_count);
    *steps = walker.steps;
    *count = walker.count;
    return AM_OK;
}
