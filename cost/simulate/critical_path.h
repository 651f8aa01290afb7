/* The critical path of a simulated step: the chain of events from the beginning of the step to its
 * end, in which each event began when its predecessor ended. Events on the path determine the
 * length of the step; other events have slack. */
#ifndef COST_SIMULATE_CRITICAL_PATH_H
#define COST_SIMULATE_CRITICAL_PATH_H

#include "base/arena.h"
#include "cost/step/executed.h"
#include "cost/step/moment.h"

typedef struct RecordedEvent {
    const ExecutedStep *executed;
    int32_t rank;
    int32_t cause; /* the event that it waited for, or -1 */
    Ticks ticks;
} RecordedEvent;

/* Events in any order, causes before effects. Recording stops after `most` events. */
typedef struct SimulationRecord {
    Arena *arena;
    RecordedEvent *events;
    int32_t count, capacity, most;
    bool is_full;
} SimulationRecord;

/* Returns the event's number; -1: it is not recorded. */
int32_t record_event(SimulationRecord *record, const RecordedEvent *event);

/* The contribution of one operator's events on one rank to the path. */
typedef struct CriticalItem {
    const Program *program;
    int32_t step; /* program->execution.step_count: the updates */
    int32_t rank;
    int32_t events_after; /* events of the path after the last one of these */
    int64_t count;
    double seconds;
} CriticalItem;

typedef struct CriticalPath {
    CriticalItem *items; /* most seconds first */
    int32_t item_count;
    double compute_seconds, collective_seconds, transfer_seconds;
} CriticalPath;

/* Finds the chain that ends with event `last`; it is allocated in the arena and does not refer to
 * the record. NULL: the record was full. */
AmStatus critical_path_find(CriticalPath **path, Arena *arena, const SimulationRecord *record, int32_t last,
                            AmError *error);

#endif
