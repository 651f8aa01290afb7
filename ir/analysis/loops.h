/* Loops of a canonical module: how often they run.
 *
 * XLA's cost analysis counts a loop's body once (ir/analysis/flops.h); a planner must not.
 */
#ifndef IR_ANALYSIS_LOOPS_H
#define IR_ANALYSIS_LOOPS_H

#include "ir/module.h"

#define IR_TRIPS_UNKNOWN (-1)
#define IR_NO_COUNTER    (-2)

typedef struct IrLoop {
    int32_t instruction; /* the while */
    int64_t trips;       /* or IR_TRIPS_UNKNOWN: counted as one */
    /* If the trips follow from a counter: the element of the carried tuple (-1: the carried value
     * is an array) that equals start + step * k in iteration k = 0, 1, ...; else IR_NO_COUNTER. */
    int32_t counter;
    int64_t start, step;
} IrLoop;

typedef struct IrLoops {
    IrLoop *loops; /* every while, by instruction */
    int32_t loop_count;
} IrLoops;

/* Called by ir_canonicalize(): sets module->loops, in the module's arena, and
 * warns of every loop whose trip count is unknown, with its place in the source. */
AmStatus ir_find_loops(IrModule *module, AmError *error);

/* Returns the analysis of a while loop; NULL if the module was not canonicalized. */
const IrLoop *ir_loop(const IrModule *module, int32_t instruction);
/* Trips of a while; IR_TRIPS_UNKNOWN also where the module was not canonicalized. */
int64_t ir_loop_trips(const IrModule *module, int32_t instruction);

#endif
