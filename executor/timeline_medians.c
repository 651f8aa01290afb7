/* Medians of what a timeline recorded: sorted by step and time, the middle of each run of equal steps. */
#include <stdlib.h>

#include "executor/timeline.h"

typedef struct Taken {
    const Program *program;
    int32_t step;
    double seconds;
} Taken;

static int compare(const void *left, const void *right) {
    const Taken *a = left, *b = right;
    if (a->program != b->program) return a->program < b->program ? -1 : 1;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

static bool is_operator(const TimelineRecord *record) {
    if (record->kind != TIMELINE_OPERATOR) return false;
    const ProgramStep *step = &record->program->steps[record->step];
    return step->fusion >= 0 || record->program->instructions[step->instruction].region_count == 0;
}

AmStatus timeline_medians(const Timeline *timeline, TimelineMedian *tell, void *user, AmError *error) {
    int64_t made = atomic_load(&timeline->count), count = 0;
    int64_t kept = made < timeline->capacity ? made : timeline->capacity;
    Taken *taken = malloc(sizeof *taken * (size_t)(kept + 1));
    if (!taken) return am_fail_memory(error, (int64_t)sizeof *taken * kept);
    for (int64_t k = 0; k < kept; k++) {
        const TimelineRecord *record = &timeline->records[k];
        if (is_operator(record))
            taken[count++] = (Taken){record->program, record->step, record->end - record->start};
    }
    qsort(taken, (size_t)count, sizeof *taken, compare);
    AmStatus status = AM_OK;
    for (int64_t first = 0, end; first < count && status == AM_OK; first = end) {
        for (end = first; end < count && taken[end].program == taken[first].program &&
                          taken[end].step == taken[first].step;
             end++) {}
        const Taken *middle = &taken[(first + end - 1) / 2];
        status = tell(user, middle->program, middle->step, middle->seconds, error);
    }
    free(taken);
    return status;
}
