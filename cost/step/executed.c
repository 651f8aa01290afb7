/* The steps that run, loops unrolled into counts.
 *
 * Regions are visited depth first, and each is appended with the number of its runs. The branches of a
 * conditional are appended one after the other. All but the most expensive are then removed, so that every
 * region is visited once.
 */
#include "cost/step/executed.h"

#include <string.h>

#include "cost/step/price.h"
#include "ir/analysis/loops.h"
#include "lowering/program/waits.h"
#include "propagation/rules/rules.h"

typedef struct StepWalker {
    Arena *arena;
    const ClusterDeviceType *type;
    ExecutedStep *steps;
    int32_t count, capacity;
    bool has_spans;
    ExecutedSpan *spans;
    int32_t span_count, span_capacity;
    int64_t iterations;   /* of the spans around, multiplied */
    int32_t first_joined; /* the last span of a loop that others are joined with */
    int32_t *joined;      /* of that span, where it is one of several chunks */
} StepWalker;

void executed_work(OperatorWork *work, const ExecutedStep *executed) {
    const Program *program = executed->program;
    *work = (OperatorWork){0};
    if (executed->step == program->execution.step_count || executed_collective(executed)) return;
    operator_work(work, program, &program->execution.steps[executed->step]);
}

double executed_work_seconds(const ExecutedStep *executed, const OperatorWork *work,
                             const ClusterDeviceType *type) {
    if (executed->step == executed->program->execution.step_count)
        return price_updates(executed->program, type);
    return operator_seconds(work, type);
}

double executed_seconds(const ExecutedStep *executed, const ClusterDeviceType *type) {
    OperatorWork work;
    executed_work(&work, executed);
    return executed_work_seconds(executed, &work, type);
}

/* Returns the layers that a step stands for. A transfer between stages is that of one layer. */
static int32_t layers_of(const Program *program, int32_t step) {
    const ProgramStep *at = &program->execution.steps[step];
    if (step == program->execution.step_count) return 1;
    if (at->fusion >= 0) {
        const ProgramFusion *fusion = &program->execution.fusions[at->fusion];
        int32_t last = fusion->op_count - 1;
        return last < 0 ? 1 : ir_layers_of(program->module, fusion->ops[last].origin);
    }
    const ProgramInstruction *instruction = &program->instructions[at->instruction];
    bool is_one = instruction->kind == PROGRAM_TRANSFER || program_has_control(instruction);
    return is_one ? 1 : ir_layers_of(program->module, instruction->origin);
}

static void append_step(StepWalker *self, const Program *program, int32_t step, double times, int32_t wait) {
    ARENA_RESERVE(self->arena, self->steps, self->count, self->capacity);
    times *= layers_of(program, step);
    bool has_instruction = step < program->execution.step_count && program->execution.steps[step].fusion < 0;
    const ProgramInstruction *instruction =
        has_instruction ? &program->instructions[program->execution.steps[step].instruction] : NULL;
    if (!self->arena->failed)
        self->steps[self->count++] = (ExecutedStep){program, step, times, instruction, wait};
}

static void walk_program(StepWalker *self, const Program *program, double times);

/* Walks a loop in whose iterations other stages participate. */
static void walk_span(StepWalker *self, const ProgramInstruction *loop, double trips, double times) {
    int64_t around = self->iterations, most = EXECUTED_MOST_ITERATIONS / around;
    int64_t iterations = trips > (double)most ? (most > 0 ? most : 1) : (int64_t)trips;
    int32_t span = self->span_count;
    ARENA_RESERVE(self->arena, self->spans, self->span_count, self->span_capacity);
    if (self->arena->failed) return;
    self->span_count++;
    self->spans[span] =
        (ExecutedSpan){.first = self->count, .iterations = iterations, .second = -1, .third = -1};
    if (loop->loop.iterations) {
        self->spans[span].kept = loop->loop.iterations->kept;
        self->spans[span].kept_until_third = loop->loop.iterations->kept_until_third;
        self->spans[span].kept_from_second = loop->loop.iterations->kept_from_second;
        if (loop->loop.iterations->chunks > 1) {
            self->joined = ARENA_ARRAY(self->arena, int32_t, 2 * loop->loop.iterations->chunks);
            self->spans[span].joined = self->joined;
            self->spans[span].chunks = loop->loop.iterations;
        }
    }
    self->iterations = around * iterations;
    walk_program(self, loop->regions.programs[1], times * (trips + 1) / (double)iterations);
    walk_program(self, loop->regions.programs[0], times * trips / (double)iterations);
    if (loop->regions.programs[0]->execution.update_count > 0)
        append_step(self, loop->regions.programs[0], loop->regions.programs[0]->execution.step_count,
                    times * trips / (double)iterations, 0);
    self->iterations = around;
    if (!self->arena->failed) self->spans[span].end = self->count;
    if (loop->loop.iterations) self->first_joined = span;
}

static void walk_loop(StepWalker *self, const ProgramInstruction *loop, const Program *within, bool is_joined,
                      double times) {
    int64_t known = ir_loop_trips(within->module, loop->origin);
    double trips = known == IR_TRIPS_UNKNOWN ? 1 : (double)known;
    if (self->has_spans && trips > 1 &&
        (is_joined || program_communicates(loop->regions.programs[0], false))) {
        walk_span(self, loop, trips, times);
        return;
    }
    walk_program(self, loop->regions.programs[1], times * (trips + 1));
    walk_program(self, loop->regions.programs[0], times * trips);
    if (loop->regions.programs[0]->execution.update_count > 0)
        append_step(self, loop->regions.programs[0], loop->regions.programs[0]->execution.step_count,
                    times * trips, 0);
}

static void walk_branches(StepWalker *self, const ProgramInstruction *conditional, double times) {
    int32_t first = self->count, kept = first;
    double most = -1;
    bool has_spans = self->has_spans;
    self->has_spans = false; /* branches are moved about */
    for (int32_t k = 0; k < conditional->regions.count && !self->arena->failed; k++) {
        int32_t begin = self->count;
        double seconds = 0;
        walk_program(self, conditional->regions.programs[k], times);
        if (self->arena->failed) break;
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
    self->has_spans = has_spans;
}

/* Appends the steps of a program, with those of its loops and branches. */
static void walk_program(StepWalker *self, const Program *program, double times) {
    int32_t *waits;
    if (times > RULES_MOST_TIMES) times = RULES_MOST_TIMES;
    if (program_find_waits(&waits, self->arena, program, NULL) != AM_OK) return; /* the arena has failed */
    for (int32_t s = 0; s < program->execution.step_count && !self->arena->failed; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        /* No region lies between a collective and the step that waits for it. */
        append_step(self, program, s, times, waits[s] < 0 ? 0 : s - waits[s]);
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        if (!instruction || instruction->regions.count == 0) continue;
        int32_t span = self->span_count;
        int32_t place = s - program_first_together(program, s);
        bool is_joined = instruction->loop.iterations || place > 0;
        if (instruction->opcode == IR_WHILE) walk_loop(self, instruction, program, is_joined, times);
        if (self->has_spans && is_joined && !self->arena->failed) {
            /* `span` belongs to the loop at `place` of the joined ones. */
            ExecutedSpan *first = &self->spans[self->first_joined];
            if (first->chunks) self->joined[place] = span;
            else if (place == 1) first->second = span;
            else if (place == 2) first->third = span;
        }
        if (instruction->opcode == IR_CONDITIONAL) walk_branches(self, instruction, times);
    }
}

AmStatus executed_stage(ExecutedStep **steps, int32_t *count, ExecutedSpan **spans, int32_t *span_count,
                        Arena *arena, const Program *program, const ClusterDeviceType *type, AmError *error) {
    StepWalker walker = {.arena = arena,
                         .type = type,
                         .capacity = program->execution.step_count + 1,
                         .has_spans = spans,
                         .iterations = 1};
    walker.steps = ARENA_ARRAY(arena, ExecutedStep, walker.capacity);
    if (walker.steps) walk_program(&walker, program, 1);
    if (spans) append_step(&walker, program, program->execution.step_count, 1, 0);
    if (arena->failed) return am_fail_memory(error, program->execution.step_count);
    *steps = walker.steps;
    *count = walker.count;
    if (spans) *spans = walker.spans;
    if (span_count) *span_count = walker.span_count;
    return AM_OK;
}

AmStatus executed_steps(ExecutedStep **steps, int32_t *count, Arena *arena, const Program *program,
                        const ClusterDeviceType *type, AmError *error) {
    return executed_stage(steps, count, NULL, NULL, arena, program, type, error);
}

int32_t executed_origin(const ExecutedStep *executed) {
    const Program *program = executed->program;
    if (executed->instruction) return executed->instruction->origin;
    if (executed->step == program->execution.step_count) return -1;
    const ProgramFusion *fusion =
        &program->execution.fusions[program->execution.steps[executed->step].fusion];
    return fusion->op_count > 0 ? fusion->ops[fusion->op_count - 1].origin : -1;
}
