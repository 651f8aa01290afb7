/* Medians of a timeline's records, by step of a program, in the fastest tenth of the training steps.
 *
 * A processor's core may be shared with invisible work, such as another machine's thread. Everything is then
 * slower for some 10 ms, and the median of all runs would reflect how often. Training steps are selected as a
 * whole, so that variations inside them remain in the figures.
 */
#include <math.h>
#include <stdlib.h>

#include "base/system/clock_cost.h"
#include "executor/program/timeline.h"

enum { ONE_IN = 10, FEWEST_STEPS = 3 };
static const double least = 1e-9; /* seconds */

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

/* Compares training steps by their seconds. */
static int compare_steps(const void *left, const void *right) {
    const TimelineRecord *const *a = left, *const *b = right;
    double x = (*a)->end - (*a)->start, y = (*b)->end - (*b)->start;
    return (x > y) - (x < y);
}

/* Returns whether something began in one of the chosen steps; all began so where there are no steps. */
static bool is_chosen(const TimelineRecord *const *steps, int64_t count, double start) {
    for (int64_t k = 0; k < count; k++)
        if (start >= steps[k]->start && start <= steps[k]->end) return true;
    return count == 0;
}

/* Puts the fastest steps first. Returns how many of them are chosen. */
static int64_t choose_steps(const TimelineRecord **steps, const Timeline *timeline, int64_t kept) {
    int64_t count = 0;
    for (int64_t k = 0; k < kept; k++)
        if (timeline->records[k].kind == TIMELINE_STEP) steps[count++] = &timeline->records[k];
    qsort(steps, (size_t)count, sizeof *steps, compare_steps);
    int64_t chosen = count / ONE_IN > FEWEST_STEPS ? count / ONE_IN : FEWEST_STEPS;
    return chosen < count ? chosen : count;
}

static bool is_operator(const TimelineRecord *record) {
    if (record->kind != TIMELINE_OPERATOR) return false;
    const ProgramStep *step = &record->program->execution.steps[record->step];
    return step->fusion >= 0 || record->program->instructions[step->instruction].regions.count == 0;
}

AmStatus timeline_medians(const Timeline *timeline, TimelineMedian *on_median, void *user, AmError *error) {
    int64_t made = atomic_load(&timeline->count), count = 0;
    int64_t kept = made < timeline->capacity ? made : timeline->capacity;
    Taken *taken = malloc(sizeof *taken * (size_t)(kept + 1));
    const TimelineRecord **steps = malloc(sizeof *steps * (size_t)(kept + 1));
    AmStatus status = taken && steps ? AM_OK : am_fail_memory(error, (int64_t)sizeof *taken * kept);
    double clock = clock_cost(); /* is in every record once */
    int64_t chosen = status == AM_OK ? choose_steps(steps, timeline, kept) : 0;
    for (int64_t k = 0; k < kept && status == AM_OK; k++) {
        const TimelineRecord *record = &timeline->records[k];
        if (is_operator(record) && is_chosen(steps, chosen, record->start))
            taken[count++] = (Taken){record->program, record->step, record->end - record->start};
    }
    if (count > 0) qsort(taken, (size_t)count, sizeof *taken, compare);
    for (int64_t first = 0, end; first < count && status == AM_OK; first = end) {
        for (end = first; end < count && taken[end].program == taken[first].program &&
                          taken[end].step == taken[first].step;
             end++) {}
        const Taken *middle = &taken[(first + end - 1) / 2];
        status = on_median(user, middle->program, middle->step, fmax(middle->seconds - clock, least), error);
    }
    free(taken);
    free(steps);
    return status;
}
