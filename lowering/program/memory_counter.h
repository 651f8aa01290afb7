/* The memory of a rank over the steps that it runs, as the counter "memory" of a trace.
 *
 * The total of the counter is the end of the last byte in use. Its largest value in a step is the size of the
 * allocation, and thus the predicted peak. It has the parts
 *   parameters   that live between steps
 *   temporaries  values of this step
 *   gaps         unused bytes between them
 *   transfers    slots of values that come in from other stages
 * Steps that have no slice (they take no time) count with the next one that has.
 */
#ifndef LOWERING_PROGRAM_MEMORY_COUNTER_H
#define LOWERING_PROGRAM_MEMORY_COUNTER_H

#include "base/text.h"
#include "lowering/program/program.h"

/* The program of a rank, or a region of one of its instructions. */
typedef struct MemoryRegion {
    const Program *program;
    const ProgramInstruction *instruction; /* whose region it is; NULL: the rank's program */
    int32_t parent, parent_step;           /* where the instruction is */
    int32_t last;                          /* the latest step that the counter includes; -1: none */
} MemoryRegion;

typedef struct MemoryCounter {
    Arena *arena;
    MemoryRegion *regions;
    int32_t region_count, region_capacity;
    int64_t channel_bytes;
    ProgramExtent shown; /* the latest event */
    bool has_shown;
} MemoryCounter;

/* Opens a counter. `program`: of the rank, with planned buffers. All memory is the arena's. */
AmStatus memory_counter_open(MemoryCounter *counter, Arena *arena, const Program *program,
                             int64_t channel_bytes, AmError *error);
/* Appends an event where the memory changes, at the start of a step of the rank's program or of a region in
 * it (step_count: its updates). Steps of other programs are ignored. */
void memory_counter_append(Text *text, MemoryCounter *counter, int32_t device, const Program *program,
                           int32_t step, double seconds);
/* Ends a training step: includes the steps that are left. The next one begins anew. */
void memory_counter_end(Text *text, MemoryCounter *counter, int32_t device, double seconds);

#endif
