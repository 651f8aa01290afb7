/* Loops of a canonical module: how often they run, and what that makes them do.
 *
 * XLA's cost analysis counts a loop's body once (ir/flops.h); a planner must not.
 * Here every `while` gets its trip count, and every `while` and `conditional` of
 * the entry a list of the work inside it, each row with the times it runs.
 */
#ifndef IR_LOOPS_H
#define IR_LOOPS_H

#include "ir/module.h"

#define IR_TRIPS_UNKNOWN (-1)

typedef struct IrLoop {
    int32_t instruction; /* the while */
    int64_t trips;       /* or IR_TRIPS_UNKNOWN: counted as one */
} IrLoop;

/* One launch inside a region: an operator, or an element-wise chain named by its last one. */
typedef struct IrRegionWork {
    int32_t instruction;
    double times;        /* that it runs in one run of the region */
    double flops, bytes; /* each time; bytes read plus written */
} IrRegionWork;

/* A while or a conditional of the entry, with all that is nested in it. */
typedef struct IrRegion {
    int32_t instruction;
    int32_t first_work, work_count; /* in IrLoops.works */
    double flops, bytes;            /* of one run: the sum of times x each */
    int64_t live_bytes;             /* the most that its temporaries hold at once */
} IrRegion;

typedef struct IrLoops {
    IrLoop *loops; /* every while, by instruction */
    int32_t loop_count;
    IrRegion *regions; /* by instruction */
    int32_t region_count;
    IrRegionWork *works;
    int32_t work_count;
} IrLoops;

/* Called by ir_canonicalize(): sets module->loops, in the module's arena, and
 * warns of every loop whose trip count is unknown, with its place in the source. */
AmStatus ir_find_loops(IrModule *module, AmError *error);

/* Trips of a while; IR_TRIPS_UNKNOWN also where the module was not canonicalized. */
int64_t ir_loop_trips(const IrModule *module, int32_t instruction);
/* The region of an entry instruction, NULL if it is none. */
const IrRegion *ir_region_of(const IrModule *module, int32_t instruction);

/* For ir_find_loops(): the trip counts, then the regions (ir/regions.c). */
AmStatus ir_find_regions(IrLoops *loops, IrModule *module, AmError *error);

#endif
