/* The events of a stage's programs in a step, without costs. Works are compared by their figures, in a hash
 * table: a model repeats its layers, so that a few dozen of some thousand steps differ (the events of
 * DistSim, section 4). */
#include "cost/simulate/stage_events.h"

#include <string.h>

#include "base/hash.h"
#include "cost/collective/collective.h"
#include "propagation/plan/pipeline_schedule.h"

/* The different works of a program, found by their figures. */
typedef struct WorkTable {
    ProgramEvents *events;
    int32_t *slots; /* [mask + 1]: work + 1, 0 where free */
    uint64_t mask;
} WorkTable;

static int32_t add_work(ProgramEvents *events, const OperatorWork *work, int32_t step) {
    events->works[events->work_count] = *work;
    events->first_step[events->work_count] = step;
    return events->work_count++;
}

static int32_t find_work(WorkTable *self, const OperatorWork *work, int32_t step) {
    uint64_t flops, bytes;
    memcpy(&flops, &work->flops, sizeof flops);
    memcpy(&bytes, &work->bytes, sizeof bytes);
    uint64_t slot = hash_combine(hash_combine(flops, bytes),
                                 (uint64_t)work->unit << 16 | (uint64_t)work->type << 1 | work->is_run) &
                    self->mask;
    for (; self->slots[slot] > 0; slot = (slot + 1) & self->mask)
        if (operator_work_equals(&self->events->works[self->slots[slot] - 1], work))
            return self->slots[slot] - 1;
    int32_t found = add_work(self->events, work, step);
    self->slots[slot] = found + 1;
    return found;
}

/* Orders the iterations of joined spans: the first span that may proceed runs (InterleavedLoops). */
static AmStatus join_spans(PipelineSpan *spans, int32_t number, const ExecutedSpan *joined, Arena *arena,
                           AmError *error) {
    const int32_t members[] = {number, joined->second, joined->third};
    int64_t done[3] = {0, 0, 0}, all = 0, iterations = spans[number].iterations;
    bool has_third = joined->third >= 0;
    for (int k = 0; k < 3; k++) all += members[k] >= 0 ? iterations : 0;
    int32_t *order = ARENA_ARRAY(arena, int32_t, all + 1);
    if (!order) return am_fail_memory(error, all);
    for (int64_t n = 0; n < all; n++) {
        const bool may_go[] = {done[0] - done[1] < joined->kept &&
                                   (!has_third || done[0] - done[2] < joined->kept_until_third),
                               !has_third || done[1] - done[2] < joined->kept_from_second, true};
        int k = 0;
        while (k < 2 && (done[k] == iterations || !may_go[k])) k++;
        order[n] = members[k];
        done[k]++;
    }
    spans[number].order = order;
    spans[number].order_count = all;
    return AM_OK;
}

/* Orders the iterations of joined loops of a stage in chunks, by the schedule. */
static AmStatus join_chunks(PipelineSpan *spans, int32_t number, const ExecutedSpan *joined, Arena *arena,
                            AmError *error) {
    const InterleavedLoops *chunks = joined->chunks;
    ScheduleIteration *iterations;
    int32_t count;
    const ScheduledStage stage = {.kind = SCHEDULE_INTERLEAVED,
                                  .stages = chunks->stage_count,
                                  .stage = chunks->stage,
                                  .micro_batches = (int32_t)spans[number].iterations,
                                  .chunks = chunks->chunks};
    TRY(schedule_iterations(&iterations, &count, arena, &stage, error));
    int32_t *order = ARENA_ARRAY(arena, int32_t, count);
    if (!order) return am_fail_memory(error, count);
    for (int32_t n = 0; n < count; n++)
        order[n] = joined->joined[(int32_t)iterations[n].pass * chunks->chunks + iterations[n].chunk];
    spans[number].order = order;
    spans[number].order_count = count;
    return AM_OK;
}

/* Cuts the executed steps at transfers and at the borders of spans. */
static AmStatus cut_pieces(StagePieces *self, Arena *arena, const ProgramEvents *events,
                           const ExecutedSpan *spans, int32_t span_count, AmError *error) {
    int32_t count = events->step_count;
    bool *is_border = ARENA_ARRAY(arena, bool, count + 1);
    int32_t *piece_of = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < span_count; k++) is_border[spans[k].first] = is_border[spans[k].end] = true;
    for (int32_t s = 0; s < count; s++)
        if (events->work_of[s] == EVENT_TRANSFER) is_border[s] = is_border[s + 1] = true;
    self->pieces = ARENA_ARRAY(arena, StagePiece, count + 1);
    self->spans = ARENA_ARRAY(arena, PipelineSpan, span_count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    int32_t collectives = 0;
    for (int32_t s = 0; s < count; s++) {
        if (s == 0 || is_border[s]) {
            bool is_transfer = events->work_of[s] == EVENT_TRANSFER;
            self->pieces[self->piece_count++] = (StagePiece){
                .first = s, .transfer = is_transfer ? events->steps[s].instruction->transfer : NULL};
            collectives = 0;
        }
        collectives += events->work_of[s] == EVENT_COLLECTIVE;
        if (collectives > self->most_collectives) self->most_collectives = collectives;
        piece_of[s] = self->piece_count - 1;
        self->pieces[self->piece_count - 1].end = s + 1;
    }
    piece_of[count] = self->piece_count;
    self->span_count = span_count;
    for (int32_t k = 0; k < span_count; k++)
        self->spans[k] = (PipelineSpan){.first = piece_of[spans[k].first],
                                        .end = piece_of[spans[k].end],
                                        .iterations = spans[k].iterations};
    for (int32_t k = 0; k < span_count; k++)
        if (spans[k].chunks) TRY(join_chunks(self->spans, k, &spans[k], arena, error));
        else if (spans[k].second >= 0) TRY(join_spans(self->spans, k, &spans[k], arena, error));
    return AM_OK;
}

AmStatus stage_events_list(ProgramEvents *self, StagePieces *pieces, Arena *arena, const Program *program,
                           const ClusterDeviceType *type, const uint8_t *gradients, AmError *error) {
    ExecutedSpan *spans;
    int32_t span_count;
    *self = (ProgramEvents){.is_even = !program->is_uneven};
    TRY(executed_stage(&self->steps, &self->step_count, &spans, &span_count, arena, program, type, error));
    /* A step runs as often as the product of the trips of the spans around it. */
    double *iterations = ARENA_ARRAY(arena, double, self->step_count + 1);
    for (int32_t s = 0; iterations && s < self->step_count; s++) iterations[s] = 1;
    for (int32_t k = 0; iterations && k < span_count; k++)
        for (int32_t s = spans[k].first; s < spans[k].end; s++) iterations[s] *= (double)spans[k].iterations;
    self->iterations = iterations;
    if (!self->iterations) return am_fail_memory(error, self->step_count);
    WorkTable table = {.events = self, .mask = 63};
    while (table.mask < 2 * (uint64_t)self->step_count) table.mask = 2 * table.mask + 1;
    self->work_of = ARENA_ARRAY(arena, int32_t, self->step_count + 1);
    self->works = ARENA_ARRAY(arena, OperatorWork, self->step_count + 1);
    self->first_step = ARENA_ARRAY(arena, int32_t, self->step_count + 1);
    self->tensor_bytes = ARENA_ARRAY(arena, double, self->step_count + 1);
    table.slots = ARENA_ARRAY(arena, int32_t, table.mask + 1);
    if (arena->failed) return am_fail_memory(error, self->step_count);
    for (int32_t s = 0; s < self->step_count; s++) {
        const ExecutedStep *executed = &self->steps[s];
        const ProgramInstruction *collective = executed_collective(executed);
        OperatorWork work;
        if (collective) {
            self->work_of[s] = EVENT_COLLECTIVE;
            self->tensor_bytes[s] = collective_tensor_bytes(executed->program, collective);
            continue;
        }
        if (executed_transfer(executed)) {
            self->work_of[s] = EVENT_TRANSFER;
            continue;
        }
        executed_work(&work, executed);
        bool is_update =
            executed->step == executed->program->execution.step_count; /* of no work, but of a price */
        self->work_of[s] = is_update ? add_work(self, &work, s) : find_work(&table, &work, s);
        self->flops += self->iterations[s] * executed->times * work.flops;
    }
    if (pieces) TRY(cut_pieces(pieces, arena, self, spans, span_count, error));
    return memory_use(&self->memory, program, gradients, error);
}
