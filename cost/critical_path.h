/* The critical path of a simulated step: the chain of events, each of which began when the one before
 * it ended, that leads from the beginning of the step to its end. What is on it decides how long
 * the step takes; what is not could be slower for nothing. */
#ifndef COST_CRITICAL_PATH_H
#define COST_CRITICAL_PATH_H

#include "base/arena.h"
#include "cost/executed.h"
#include "cost/moment.h"

typedef struct RecordedEvent {
    const ExecutedStep *executed;
    int32_t rank;
    int32_t cause; /* the event that it waited for, or -1 */
    Ticks ticks;
} RecordedEvent;

/* Events in any order, causes before what they cause. Beyond `most` nothing more is recorded. */
typedef struct SimulationRecord {
    Arena *arena;
    RecordedEvent *events;
    int32_t count, capacity, most;
    bool is_full;
} SimulationRecord;

/* Returns the event's number; -1: it is not recorded. */
int32_t record_event(SimulationRecord *record, const RecordedEvent *event);

/* What the events of one operator on one rank take of the path. */
typedef struct CriticalItem {
    const Program *program;
    int32_t step; /* program->step_count: the updates */
    int32_t rank;
    int32_t met; /* events of the path behind the last one of these */
    int64_t count;
    double seconds;
} CriticalItem;

typedef struct CriticalPath {
    CriticalItem *items; /* most seconds first */
    int32_t item_count;
    double compute_seconds, collective_seconds, transfer_seconds;
} CriticalPath;

/* Of the chain that ends with event `last`; in the arena, the record is free to go. NULL: the record was
 * full. */
AmStatus critical_path_find(CriticalPath **path, Arena *arena, const SimulationRecord *record, int32_t last,
                            AmError *error);

#endif
