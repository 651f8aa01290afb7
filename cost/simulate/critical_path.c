/* The critical path of a simulated step: from the last event back along causes. Events of one step of one
 * program are one item, whatever the iteration. */
#include "cost/simulate/critical_path.h"

#include <stdlib.h>

int32_t record_event(SimulationRecord *record, const RecordedEvent *event) {
    if (record->count == record->most) record->is_full = true;
    if (record->is_full || record->arena->failed) return -1;
    ARENA_RESERVE(record->arena, record->events, record->count, record->capacity);
    if (record->arena->failed) return -1;
    record->events[record->count] = *event;
    return record->count++;
}

static int by_place(const void *a, const void *b) {
    const CriticalItem *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->program != y->program) return x->program < y->program ? -1 : 1;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (x->events_after > y->events_after) - (x->events_after < y->events_after);
}

/* Compares for sorting: most seconds first; of equal ones the later one in the step. */
static int by_seconds(const void *a, const void *b) {
    const CriticalItem *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return (x->events_after > y->events_after) - (x->events_after < y->events_after);
}

AmStatus critical_path_find(CriticalPath **result, Arena *arena, const SimulationRecord *record, int32_t last,
                            AmError *error) {
    int32_t count = 0, merged = 0;
    *result = NULL;
    if (record->is_full) return AM_OK;
    for (int32_t e = last; e >= 0; e = record->events[e].cause) count++;
    CriticalPath *path = ARENA_ARRAY(arena, CriticalPath, 1);
    CriticalItem *items = ARENA_ARRAY(arena, CriticalItem, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    count = 0;
    for (int32_t e = last; e >= 0; e = record->events[e].cause) {
        const RecordedEvent *event = &record->events[e];
        double seconds = seconds_of_ticks(event->ticks);
        items[count] = (CriticalItem){.program = event->executed->program,
                                      .step = event->executed->step,
                                      .rank = event->rank,
                                      .events_after = count,
                                      .count = 1,
                                      .seconds = seconds};
        count++;
        double *kind = &path->compute_seconds;
        if (executed_collective(event->executed)) kind = &path->collective_seconds;
        else if (executed_transfer(event->executed)) kind = &path->transfer_seconds;
        *kind += seconds;
    }
    qsort(items, (size_t)count, sizeof *items, by_place);
    for (int32_t k = 0; k < count; k++) {
        const CriticalItem *before = merged > 0 ? &items[merged - 1] : NULL, *item = &items[k];
        if (!before || before->rank != item->rank || before->program != item->program ||
            before->step != item->step) {
            items[merged++] = items[k];
            continue;
        }
        items[merged - 1].count++;
        items[merged - 1].seconds += items[k].seconds;
    }
    qsort(items, (size_t)merged, sizeof *items, by_seconds);
    path->items = items;
    path->item_count = merged;
    *result = path;
    return AM_OK;
}
