/* What the first device of every stage does when, for a picture.
 *
 * Operators in a row that serve one pass make one span, until the step list begins anew: that is the next
 * turn. Collectives and transfers have a lane of their own, since they may run beside operators. What is
 * shorter than a picture can show becomes part of what it follows.
 */
#include <math.h>

#include "planners/explain_parts.h"

/* Spans and pauses below this part of the step are not told apart. */
#define RESOLUTION 2000.0

enum { COMPUTE_LANE, MEETING_LANE, LANES };

typedef struct StageLine {
    int32_t last[LANES];          /* spans; -1: none yet */
    const ExecutedStep *executed; /* the last operator */
    int32_t turns[EXPLAINED_WORKS];
} StageLine;

typedef struct Timeline {
    Explainer *explainer;
    StageLine *lines; /* [stage] */
    double shortest;
    int32_t capacity;
} Timeline;

static ExplainedWork work_of_origin(const Explainer *self, int32_t origin) {
    static const ExplainedWork works[] = {[IR_PHASE_FORWARD] = EXPLAINED_FORWARD,
                                          [IR_PHASE_RECOMPUTED] = EXPLAINED_BACKWARD,
                                          [IR_PHASE_BACKWARD] = EXPLAINED_BACKWARD,
                                          [IR_PHASE_OPTIMIZER] = EXPLAINED_UPDATE,
                                          [IR_PHASE_OTHER] = EXPLAINED_FORWARD};
    if (origin < 0 || origin >= self->context->rules->count) return EXPLAINED_UPDATE;
    return works[self->context->roles->phases[origin]];
}

/* The updates that end a program are steps behind its last one. */
static ExplainedWork work_of(const Explainer *self, const ExecutedStep *executed) {
    const Program *program = executed->program;
    if (executed->step >= program->step_count) return EXPLAINED_UPDATE;
    if (executed_transfer(executed)) return EXPLAINED_TRANSFER;
    if (executed_collective(executed)) return EXPLAINED_COLLECTIVE;
    if (executed->instruction) return work_of_origin(self, executed->instruction->origin);
    const ProgramFusion *fusion = &program->fusions[program->steps[executed->step].fusion];
    return work_of_origin(self, fusion->ops[fusion->op_count - 1].origin);
}

static void add_span(Timeline *self, StageLine *line, int32_t lane, const ExplainedSpan *span) {
    Explanation *result = self->explainer->result;
    ARENA_RESERVE(self->explainer->arena, result->spans, result->span_count, self->capacity);
    if (self->explainer->arena->failed) return;
    line->last[lane] = result->span_count;
    result->spans[result->span_count++] = *span;
}

static void on_slice(void *user, const SimulatedSlice *slice) {
    Timeline *self = user;
    const Explainer *explainer = self->explainer;
    int32_t stage = plan_ranks_stage(&explainer->ranks, slice->rank);
    if (slice->rank != explainer->ranks.first_rank[stage] || slice->end <= slice->start) return;
    if (!slice->executed || explainer->arena->failed) return;
    StageLine *line = &self->lines[stage];
    ExplainedWork work = work_of(explainer, slice->executed);
    int32_t lane = work >= EXPLAINED_COLLECTIVE ? MEETING_LANE : COMPUTE_LANE;
    ExplainedSpan *last = line->last[lane] >= 0 ? &explainer->result->spans[line->last[lane]] : NULL;
    bool is_next_turn = lane == COMPUTE_LANE && last && slice->executed <= line->executed;
    if (lane == COMPUTE_LANE) line->executed = slice->executed;
    if (last && !is_next_turn) {
        bool is_near = lane == COMPUTE_LANE || slice->start - last->end < self->shortest;
        bool is_short =
            slice->end - slice->start < self->shortest && slice->start - last->end < self->shortest;
        if ((last->work == work && is_near) || is_short) {
            last->end = fmax(last->end, slice->end);
            return;
        }
    }
    const ExplainedSpan span = {
        .stage = stage, .work = work, .turn = line->turns[work]++, .start = slice->start, .end = slice->end};
    add_span(self, line, lane, &span);
}

AmStatus explain_timeline(Explainer *explainer) {
    int32_t stages = explainer->plan->stage_count;
    Timeline self = {.explainer = explainer,
                     .lines = ARENA_ARRAY(explainer->arena, StageLine, stages),
                     .shortest = explainer->simulation->step_seconds / RESOLUTION};
    const SimulationObserver observer = {on_slice, &self};
    const SimulationOptions options = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                       .observer = &observer};
    Arena scratch = {0};
    Simulation *simulation;
    if (!self.lines) return am_fail_memory(explainer->error, stages);
    for (int32_t s = 0; s < stages; s++)
        self.lines[s].last[COMPUTE_LANE] = self.lines[s].last[MEETING_LANE] = -1;
    AmStatus status = simulate_costs(&simulation, &scratch, explainer->costs, &options, explainer->error);
    arena_free(&scratch);
    return status;
}
