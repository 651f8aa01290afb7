/* The timeline of a rank: a ring of the activities of its last steps, allocated before the first step.
 *
 * count_records() estimates the records of a step, loops included, so that the ring has room for the wanted
 * number of steps. Recording neither allocates nor locks.
 */
#include "executor/program/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/integers.h"
#include "ir/analysis/loops.h"

enum { FEWEST_RECORDS = 1 << 10 };

/* Records of one run of a program; stops counting at TIMELINE_MOST_RECORDS. */
static int64_t count_records(const Program *program) {
    int64_t count = 0;
    for (int32_t s = 0; s < program->execution.step_count && count < TIMELINE_MOST_RECORDS; s++, count++) {
        const ProgramStep *step = &program->execution.steps[s];
        if (step->fusion >= 0) continue;
        const ProgramInstruction *instruction = &program->instructions[step->instruction];
        int64_t inside = 0, trips = 1;
        if (instruction->opcode == IR_WHILE && program->module)
            trips = larger_integer(ir_loop_trips(program->module, instruction->origin), 1);
        for (int32_t r = 0; r < instruction->regions.count; r++) {
            int64_t records = count_records(instruction->regions.programs[r]) + 1;
            if (instruction->opcode == IR_CONDITIONAL) inside = larger_integer(inside, records);
            else inside += records;
        }
        if (inside > 0 && trips + 1 > TIMELINE_MOST_RECORDS / inside) return TIMELINE_MOST_RECORDS;
        count += inside * (instruction->opcode == IR_WHILE ? trips + 1 : 1);
    }
    return count < TIMELINE_MOST_RECORDS ? count : TIMELINE_MOST_RECORDS;
}

AmStatus timeline_open(Timeline **result, const Program *program, int64_t steps, AmError *error) {
    enum { BESIDE_OPERATORS = 16 }; /* step, feed, updates, and other records */
    int64_t of_step = count_records(program) + BESIDE_OPERATORS, capacity = FEWEST_RECORDS;
    int64_t wanted = steps < TIMELINE_MOST_RECORDS / of_step ? steps * of_step : TIMELINE_MOST_RECORDS;
    while (capacity < wanted) capacity *= 2;
    *result = NULL;
    Timeline *self = calloc(1, sizeof *self);
    TimelineRecord *records = malloc(sizeof *records * (size_t)capacity);
    if (!self || !records) {
        free(self);
        free(records);
        return am_fail_memory(error, (int64_t)sizeof *records * capacity);
    }
    memset(records, 0, sizeof *records * (size_t)capacity); /* the pages are there before the first step */
    self->records = records;
    self->capacity = capacity;
    *result = self;
    return AM_OK;
}

void timeline_close(Timeline *timeline) {
    if (!timeline) return;
    free(timeline->records);
    free(timeline);
}

void timeline_add(Timeline *timeline, TimelineRecord record) {
    record.end = clock_seconds();
    int64_t k = atomic_fetch_add_explicit(&timeline->count, 1, memory_order_relaxed);
    timeline->records[k & (timeline->capacity - 1)] = record;
}
