/* The orders of iterations. See pipeline_schedule.h.
 *
 * All schedules but GPipe have one form: some iterations of F, then alternately one of F and one of
 * B. Each schedule defines how many iterations of F come first, the micro-batch and chunk of the
 * k-th iteration, and the delay of W.
 */
#include "propagation/plan/pipeline_schedule.h"

#include <string.h>

static const char *const names[SCHEDULE_KINDS] = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_2p"};

const char *schedule_kind_name(ScheduleKind kind) {
    return names[kind];
}

ScheduleKind schedule_kind_find(const char *name) {
    int kind = 0;
    while (kind < SCHEDULE_KINDS && strcmp(name, names[kind]) != 0) kind++;
    return (ScheduleKind)kind;
}

typedef struct ScheduleWriter {
    ScheduleIteration *iterations;
    int32_t count;
    int32_t stages, micro_batches, chunks;
    int32_t done[SCHEDULE_PASSES]; /* iterations that are written */
} ScheduleWriter;

/* Returns the size of the last group. Micro-batches go through the chunks in groups of S; the last group
 * includes the remainder. */
static int32_t last_group(const ScheduleWriter *self) {
    return self->micro_batches >= self->stages ? self->micro_batches / self->stages - 1 : 0;
}

static int32_t group_size(const ScheduleWriter *self, int32_t group) {
    return group < last_group(self) ? self->stages : self->micro_batches - group * self->stages;
}

/* Appends the next iteration of a pass. */
static void put(ScheduleWriter *self, SchedulePass pass) {
    int32_t k = self->done[pass]++, group = k / self->chunks / self->stages;
    if (group > last_group(self)) group = last_group(self);
    int32_t size = group_size(self, group), first = group * self->stages;
    k -= first * self->chunks;
    int32_t chunk = k / size;
    self->iterations[self->count++] =
        (ScheduleIteration){.pass = pass,
                            .chunk = pass == SCHEDULE_FORWARD ? chunk : self->chunks - 1 - chunk,
                            .micro_batch = first + k % size};
}

/* Returns the number of iterations of F before the first that is followed by one of B. */
static int32_t iterations_ahead(const ScheduleWriter *self, ScheduleKind kind, int32_t stage) {
    int32_t all = self->micro_batches * self->chunks, behind = self->stages - stage - 1, ahead = behind;
    if (kind == SCHEDULE_GPIPE) ahead = all;
    if (kind == SCHEDULE_ZB_2P) ahead = 2 * behind;
    if (kind == SCHEDULE_INTERLEAVED) {
        ahead = 2 * behind + (self->chunks - 1) * group_size(self, last_group(self));
    }
    return ahead < all ? ahead : all;
}

AmStatus schedule_iterations(ScheduleIteration **iterations, int32_t *count, Arena *arena,
                             const ScheduledStage *of, AmError *error) {
    ScheduleKind kind = of->kind;
    int32_t stages = of->stages, stage = of->stage, micro_batches = of->micro_batches, chunks = of->chunks;
    int32_t passes = schedule_splits_backward(kind) ? 3 : 2;
    bool has_chunks = chunks == 1 || kind == SCHEDULE_INTERLEAVED;
    if (stages < 1 || stage < 0 || stage >= stages || micro_batches < 1 || chunks < 1 || !has_chunks)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "schedule %s has no stage %d of %d with %d micro-batches and %d chunks", names[kind],
                       stage, stages, micro_batches, chunks);
    if (chunks > INT32_MAX / passes / micro_batches || stages > INT32_MAX / 4 / chunks ||
        micro_batches > INT32_MAX / 4 / chunks)
        return am_fail_memory(error, (int64_t)micro_batches * chunks);
    int32_t all = micro_batches * chunks;
    ScheduleWriter writer = {.iterations = ARENA_ARRAY(arena, ScheduleIteration, (int64_t)all * passes),
                             .stages = stages,
                             .micro_batches = micro_batches,
                             .chunks = chunks};
    if (!writer.iterations) return am_fail_memory(error, (int64_t)sizeof *writer.iterations * all * passes);
    int32_t *done = writer.done, delay = schedule_kept_from_backward(kind, stage, micro_batches) - 1;
    for (int32_t ahead = iterations_ahead(&writer, kind, stage); ahead > 0; ahead--)
        put(&writer, SCHEDULE_FORWARD);
    while (done[SCHEDULE_BACKWARD] < all) {
        if (done[SCHEDULE_FORWARD] < all) put(&writer, SCHEDULE_FORWARD);
        put(&writer, SCHEDULE_BACKWARD);
        if (passes == 3 && done[SCHEDULE_BACKWARD] - done[SCHEDULE_WEIGHTS] > delay)
            put(&writer, SCHEDULE_WEIGHTS);
    }
    while (passes == 3 && done[SCHEDULE_WEIGHTS] < all) put(&writer, SCHEDULE_WEIGHTS);
    *iterations = writer.iterations;
    *count = writer.count;
    return AM_OK;
}

AmStatus schedule_kept_of_chunk(int32_t *kept, Arena *arena, const ScheduledStage *of, int32_t chunk,
                                AmError *error) {
    ScheduleIteration *iterations;
    int32_t count, ahead = 0;
    ArenaMark mark = arena_mark(arena);
    TRY(schedule_iterations(&iterations, &count, arena, of, error));
    *kept = 0;
    for (int32_t k = 0; k < count; k++) {
        if (iterations[k].chunk != chunk) continue;
        ahead += iterations[k].pass == SCHEDULE_FORWARD;
        if (ahead > *kept) *kept = ahead;
        ahead -= iterations[k].pass == SCHEDULE_BACKWARD;
    }
    arena_release(arena, mark);
    return AM_OK;
}
