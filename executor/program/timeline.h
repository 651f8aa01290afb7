/* Timeline: the activities of one rank over time, for the last steps of a run.
 *
 * Records go into a ring that is allocated before the first step; when it is full, the oldest are
 * overwritten. A rank without a timeline measures nothing: the functions accept NULL. Several
 * threads of a rank may record concurrently. Times are those of clock_seconds(), which threads of
 * one machine share.
 */
#ifndef EXECUTOR_PROGRAM_TIMELINE_H
#define EXECUTOR_PROGRAM_TIMELINE_H

#include <stdatomic.h>

#include "base/system/clock.h"
#include "lowering/program/program.h"

typedef enum TimelineKind {
    TIMELINE_STEP,      /* a training step; `number`: which */
    TIMELINE_FEED,      /* the step's batch is brought in */
    TIMELINE_OPERATOR,  /* step `step` of `program`: a kernel, a collective or control flow */
    TIMELINE_ITERATION, /* of a loop's body; `number`: which, from 0 */
    TIMELINE_UPDATE,    /* parameters take their new values */
    TIMELINE_OTHER      /* named by `name`, such as an actor; `number`: its iteration */
} TimelineKind;

typedef struct TimelineRecord {
    double start, end;
    const Program *program; /* TIMELINE_OPERATOR */
    const char *name;       /* TIMELINE_OTHER */
    int64_t number;
    int32_t step;
    int32_t micro_batch; /* plus 1; 0: outside of the loops over micro-batches */
    TimelineKind kind;
} TimelineRecord;

typedef struct Timeline {
    TimelineRecord *records; /* [capacity] */
    int64_t capacity;
    _Atomic int64_t count; /* of records ever made: number k is at k modulo capacity */
} Timeline;

/* Makes room for what `program` does in `steps` steps, as far as the trips of its loops are known, and at
 * most TIMELINE_MOST_RECORDS. Release with timeline_close(); NULL is fine there. */
AmStatus timeline_open(Timeline **timeline, const Program *program, int64_t steps, AmError *error);
void timeline_close(Timeline *timeline);

enum { TIMELINE_MOST_RECORDS = 1 << 18 };

/* Reports the median seconds of each step of each program, except control flow, from the remaining
 * records of the fastest tenth of their training steps. After the run. */
typedef AmStatus TimelineMedian(void *user, const Program *program, int32_t step, double seconds,
                                AmError *error);
AmStatus timeline_medians(const Timeline *timeline, TimelineMedian *on_median, void *user, AmError *error);

/* Returns the time at which something begins. */
static inline double timeline_start(const Timeline *timeline) {
    return timeline ? clock_seconds() : 0;
}

/* Adds a record that ends now; `record` holds all but the end. */
void timeline_add(Timeline *timeline, TimelineRecord record);

static inline void timeline_mark(Timeline *timeline, TimelineKind kind, int64_t number, double start) {
    if (timeline) timeline_add(timeline, (TimelineRecord){.start = start, .kind = kind, .number = number});
}

#endif
