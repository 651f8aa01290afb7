/* The 1F1B schedule of a pipeline by the seconds of its stages alone.
 *
 * Stage s of S runs min(M, S - s) iterations forward, then alternately one backward and one forward. An
 * iteration begins when the one before it on the stage has ended and its input has arrived. Time: S M. The
 * other clock, pipeline_clock.h, has events of lowered programs under any schedule. Searches compare
 * thousands of pipelines before any is lowered, by seconds of tables alone, and need this one.
 */
#ifndef COST_SIMULATE_CLOCK_1F1B_H
#define COST_SIMULATE_CLOCK_1F1B_H

#include <stdbool.h>
#include <stdint.h>

/* Seconds of one iteration of a stage. */
typedef struct ClockStage {
    double forward, backward;
    double weights;              /* after the backward pass, after its result is sent */
    double to_next, to_previous; /* transfers of the forward and of the backward result */
    double end;                  /* out: of the last iteration */
} ClockStage;

/* Sets the end of every stage. `is_serial`: the transfers of two stages in one direction take place one after
 * the other. Returns false if memory is exhausted. */
bool clock_1f1b(ClockStage *stages, int32_t stage_count, int32_t micro_batches, bool is_serial);

#endif
