/* The activities of the first device of every stage over time, for a picture.
 *
 * Consecutive operators of one pass form one span, until the step list starts again: that is the
 * next micro-batch. In joined loops over micro-batches all have the loop's pass, elsewhere their
 * phase determines it. Collectives and transfers have a lane of their own, since they may overlap with
 * operators. Events too short to be visible become part of their predecessor.
 */
#include <math.h>

#include "planners/explain/explain_parts.h"

/* Shorter spans and pauses than this share of the step are merged. */
#define RESOLUTION 2000.0

/* The longest pause inside an iteration, in such shares: its collectives are in flight. */
enum { MOST_PAUSE = 4 };

enum { COMPUTE_LANE, COLLECTIVE_LANE, LANES };

/* The events of one lane of a stage, in order. */
typedef struct StageLane {
    ExplainedSpan *spans;
    int32_t count, capacity;
} StageLane;

/* A loop of iterations, and where it is. */
typedef struct PassLoop {
    ExplainedWork work; /* EXPLAINED_OTHER: by the phase of each operator */
    const Program *body;
    const ExecutedStep *executed; /* the last step of the body itself */
    int32_t iteration;
} PassLoop;

/* Its body, or a region in it. */
typedef struct PassBody {
    const Program *program;
    int32_t loop;
} PassBody;

typedef struct ExplainedTimeline {
    Explainer *explainer;
    Arena arena;
    Arena of_simulation; /* which releases temporary allocations */
    StageLane *lanes;    /* [stage * LANES] */
    PassLoop *loops;     /* across stages */
    int32_t loop_count, loop_capacity;
    PassBody *bodies;
    int32_t body_count, body_capacity;
    double shortest;
} ExplainedTimeline;

/* ---- passes ---- */

static void add_body(ExplainedTimeline *self, const Program *program, int32_t loop) {
    ARENA_RESERVE(&self->arena, self->bodies, self->body_count, self->body_capacity);
    if (self->arena.failed) return;
    self->bodies[self->body_count++] = (PassBody){program, loop};
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t r = 0; r < program->instructions[i].regions.count; r++)
            add_body(self, program->instructions[i].regions.programs[r], loop);
}

static void add_loop(ExplainedTimeline *self, ExplainedWork work, const Program *body) {
    ARENA_RESERVE(&self->arena, self->loops, self->loop_count, self->loop_capacity);
    if (!self->arena.failed) self->loops[self->loop_count++] = (PassLoop){.work = work, .body = body};
}

static void add_regions(ExplainedTimeline *self, const ProgramInstruction *loop) {
    for (int32_t r = 0; r < loop->regions.count; r++)
        add_body(self, loop->regions.programs[r], self->loop_count - 1);
}

/* Finds loops over micro-batches that run one after another, as under GPipe. The slices of one-stage plans
 * have their micro-batch. */
static void find_separate_loop(ExplainedTimeline *self, const ProgramInstruction *loop) {
    const Plan *plan = self->explainer->plan;
    if (plan->stage_count == 1 || plan->micro_batches == 1) return;
    for (int32_t r = 0; r < loop->regions.count; r++) {
        if (loop->regions.programs[r]->counter.iterations != plan->micro_batches) continue;
        add_loop(self, EXPLAINED_OTHER, loop->regions.programs[r]);
        add_regions(self, loop);
        return;
    }
}

/* Finds loops over micro-batches. In joined loops those of the forward pass come first, one for each
 * chunk. */
static void find_loops(ExplainedTimeline *self, const Program *program) {
    for (int32_t first = 0, count; first < program->instruction_count; first += count) {
        const InterleavedLoops *iterations = program->instructions[first].loop.iterations;
        count = iterations ? program_joined(program, first) : 1;
        for (int32_t k = 0; iterations && k < count; k++) {
            bool is_backward = count == 1 ? iterations->is_backward : k >= iterations->chunks;
            const ProgramInstruction *loop = &program->instructions[first + k];
            add_loop(self, is_backward ? EXPLAINED_BACKWARD : EXPLAINED_FORWARD, loop->regions.programs[0]);
            add_regions(self, loop);
        }
        if (!iterations) find_separate_loop(self, &program->instructions[first]);
    }
}

static ExplainedWork work_of_origin(const Explainer *self, int32_t origin) {
    static const ExplainedWork works[] = {[IR_PHASE_FORWARD] = EXPLAINED_FORWARD,
                                          [IR_PHASE_RECOMPUTED] = EXPLAINED_BACKWARD,
                                          [IR_PHASE_BACKWARD] = EXPLAINED_BACKWARD,
                                          [IR_PHASE_OPTIMIZER] = EXPLAINED_UPDATE,
                                          [IR_PHASE_OTHER] = EXPLAINED_FORWARD};
    if (origin < 0 || origin >= plan_context_count(self->context)) return EXPLAINED_UPDATE;
    if (self->context->rules->is_free[origin]) return EXPLAINED_OTHER;
    return works[self->context->roles->phases[origin]];
}

static bool reads(const Program *program, const ProgramStep *step, int32_t value) {
    const ProgramFusion *fusion = step->fusion >= 0 ? &program->execution.fusions[step->fusion] : NULL;
    const ProgramInstruction *instruction = fusion ? NULL : &program->instructions[step->instruction];
    for (int32_t k = 0; fusion && k < fusion->input_count; k++)
        if (fusion->inputs[k].value == value) return true;
    for (int32_t k = 0; instruction && k < instruction->operand_count; k++)
        if (instruction->operands[k] == value) return true;
    return false;
}

/* Returns the pass of a step outside of loops over iterations. A shard of a parameter belongs to the pass
 * that reads it. The updates that end a program are steps after its last one. A fusion belongs to the first
 * pass of its results: gradient factors beside a forward value do not move it to the backward pass. */
static ExplainedWork work_of(const Explainer *self, const ExecutedStep *executed) {
    const Program *program = executed->program;
    if (executed->step >= program->execution.step_count) return EXPLAINED_UPDATE;
    const ProgramInstruction *instruction = executed->instruction;
    int32_t step = executed->step;
    bool is_shard = instruction && instruction->origin >= 0 &&
                    plan_context_instruction(self->context, instruction->origin)->opcode == IR_PARAMETER;
    if (instruction && !is_shard) return work_of_origin(self, instruction->origin);
    while (is_shard && ++step < program->execution.step_count)
        if (reads(program, &program->execution.steps[step], instruction->first_result)) break;
    if (step == program->execution.step_count) return EXPLAINED_UPDATE;
    if (program->execution.steps[step].fusion < 0)
        return work_of_origin(self, program->instructions[program->execution.steps[step].instruction].origin);
    const ProgramFusion *fusion = &program->execution.fusions[program->execution.steps[step].fusion];
    ExplainedWork work = EXPLAINED_OTHER;
    for (int32_t k = 0; k < fusion->output_count; k++) {
        ExplainedWork made = work_of_origin(self, program->values[fusion->output_values[k]].origin);
        if (made < work) work = made;
    }
    return work;
}

/* ---- spans ---- */

static void on_slice(void *user, const SimulatedSlice *slice) {
    ExplainedTimeline *self = user;
    const Explainer *explainer = self->explainer;
    int32_t stage = plan_ranks_stage(&explainer->ranks, slice->rank);
    if (slice->rank != explainer->ranks.first_rank[stage] || slice->end <= slice->start) return;
    if (!slice->executed || self->arena.failed) return;
    /* The span of a slice. */
    ExplainedSpan span = {
        .stage = stage, .start = slice->start, .end = slice->end, .iteration = slice->micro_batch};
    PassLoop *loop = NULL; /* the one that the step is in */
    for (int32_t k = 0; k < self->body_count && !loop; k++)
        if (self->bodies[k].program == slice->executed->program) loop = &self->loops[self->bodies[k].loop];
    if (executed_transfer(slice->executed)) span.work = EXPLAINED_TRANSFER;
    else if (executed_collective(slice->executed)) span.work = EXPLAINED_COLLECTIVE;
    else if (!loop) span.work = work_of(self->explainer, slice->executed);
    else {
        bool is_body = slice->executed->program == loop->body;
        if (is_body && loop->executed && slice->executed <= loop->executed) loop->iteration++;
        if (is_body) loop->executed = slice->executed;
        bool has_phases = loop->work == EXPLAINED_OTHER;
        span.work = has_phases ? work_of(self->explainer, slice->executed) : loop->work;
        span.iteration = loop->iteration;
    }
    bool is_collective = span.work >= EXPLAINED_COLLECTIVE;
    StageLane *lane = &self->lanes[stage * LANES + (is_collective ? COLLECTIVE_LANE : COMPUTE_LANE)];
    ExplainedSpan *last = lane->count > 0 ? &lane->spans[lane->count - 1] : NULL;
    double most_pause = (is_collective ? 1 : MOST_PAUSE) * self->shortest;
    if (last && last->work == span.work && last->iteration == span.iteration &&
        span.start - last->end < most_pause) {
        last->end = fmax(last->end, span.end);
        return;
    }
    ARENA_RESERVE(&self->arena, lane->spans, lane->count, lane->capacity);
    if (!self->arena.failed) lane->spans[lane->count++] = span;
}

/* Adds a lane's spans to the result: invisible ones join their predecessor, and a continuation
 * after one is the same span. */
static void add_lane(const ExplainedTimeline *self, const StageLane *lane) {
    Explanation *result = self->explainer->result;
    int32_t first = result->spans.count;
    bool was_short = false;
    for (int32_t k = 0; k < lane->count; k++) {
        const ExplainedSpan *span = &lane->spans[k];
        ExplainedSpan *last = result->spans.count > first ? &result->spans.of[result->spans.count - 1] : NULL;
        bool is_near = last && span->start - last->end < self->shortest;
        bool is_short = is_near && span->end - span->start < self->shortest;
        bool goes_on = is_near && was_short && last->work == span->work && last->iteration == span->iteration;
        if (is_short || goes_on) last->end = fmax(last->end, span->end);
        else result->spans.of[result->spans.count++] = *span;
        was_short = is_short;
    }
}

AmStatus explain_timeline(Explainer *explainer) {
    ExplainedTimeline self = {.explainer = explainer,
                              .shortest = explainer->simulation->step_seconds / RESOLUTION};
    const SimulationObserver observer = {on_slice, &self};
    const SimulationOptions options = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                       .observer = &observer};
    int32_t lanes = explainer->plan->stage_count * LANES, most = 0;
    Simulation *simulation;
    AmStatus status;
    self.lanes = ARENA_ARRAY(&self.arena, StageLane, lanes);
    if (!self.lanes) TRY_OR_FAIL(am_fail_memory(explainer->error, lanes));
    for (int32_t s = 0; s < explainer->plan->stage_count; s++)
        find_loops(&self, plan_costs_program(explainer->costs, explainer->ranks.first_rank[s]));
    TRY_OR_FAIL(
        simulate_costs(&simulation, &self.of_simulation, explainer->costs, &options, explainer->error));
    for (int32_t k = 0; k < lanes; k++) most += self.lanes[k].count;
    explainer->result->spans.of = ARENA_ARRAY(explainer->arena, ExplainedSpan, most + 1);
    if (self.arena.failed || explainer->arena->failed) TRY_OR_FAIL(am_fail_memory(explainer->error, most));
    for (int32_t k = 0; k < lanes; k++) add_lane(&self, &self.lanes[k]);
fail:
    arena_free(&self.of_simulation);
    arena_free(&self.arena);
    return status;
}
