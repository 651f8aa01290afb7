/* The actors of a process's ranks: a step divided into uninterrupted groups.
 *
 * Each rank is a worker. Its program is cut at joined loops (lowering/interleave/interleave.h) into groups
 * of instructions, and each group is an actor: the part before the loops, the iterations of the
 * forward pass, those of the backward pass (and of its part that can wait), the part after them
 * with the updates. A loop's body is cut again where it receives after it has sent, so that a group
 * begins when all its inputs are there. Registers implement the schedule:
 *
 *   begin -> F0                a step's first group is done; returned after its M iterations
 *   F -> B                     `kept` of them: the lead of the forward pass (1F1B: min(M, S - s))
 *   F -> W, B -> W             ZB-H1's gradients of weights, which return their places: min(M, S),
 *                              min(M, s + 1)
 *   B -> end, F -> end         all iterations are done
 *   end -> begin               one, initially full: the weights
 *   end -> report -> begin     of every rank: the report of a step, and the decision to continue
 *   data -> begin              as many as batches are loaded ahead
 *   put -> get (channel.h)     slots of the transfers between stages
 *
 * The backward pass has priority over the forward pass, and the part that can wait comes last.
 * Devices of a stage run collectives together, so that they follow their first one's order. A
 * rank without joined loops is one actor.
 */
#ifndef EXECUTOR_RUN_ACTOR_SCHEDULE_H
#define EXECUTOR_RUN_ACTOR_SCHEDULE_H

#include "executor/program/rank.h"
#include "executor/program/stream.h"

typedef struct Schedule Schedule;

typedef struct ScheduleOptions {
    Rank *ranks; /* [rank_count], opened */
    int32_t rank_count;
    ChannelSet *channels; /* with those of the ranks' streams; or NULL */
    int64_t steps;
    double stall_seconds; /* 0: the default of actors.h */
    /* In the rank's thread, before and after each of its steps. */
    AmStatus (*begin)(void *user, Rank *rank, int64_t step, AmError *error);
    AmStatus (*end)(void *user, Rank *rank, int64_t step, AmError *error);
    /* In the first rank's thread, when all ranks have ended a step; they begin the next one after it. */
    AmStatus (*report)(void *user, int64_t step, AmError *error);
    void (*on_failure)(void *user); /* releases ranks that wait for one another */
    void *user;
    /* Prepares the inputs of the ranks' begin() of step `iteration`: an actor in a thread of its own, at
     * most `load_places` steps ahead of the last step that has ended. */
    AmStatus (*load)(void *load_user, int64_t iteration, AmError *error);
    void *load_user;
    int32_t load_places; /* 0: nothing is to be loaded */
    bool load_is_short;  /* the first rank does it between its steps: sooner than a thread is woken for it */
} ScheduleOptions;

/* Fails with AM_ERROR_USAGE: the first device of a stage with joined loops is in another process. Close it
 * whatever comes of it. */
AmStatus schedule_open(Schedule **schedule, const ScheduleOptions *options, AmError *error);
void schedule_close(Schedule *schedule);

/* Starts the thread that loads, before those of the ranks: it is free to run on any processor. */
AmStatus schedule_start(Schedule *schedule, AmError *error);
/* Runs all steps of rank r of options->ranks, in its thread. */
AmStatus schedule_run(Schedule *schedule, int32_t r, AmError *error);
/* Ends all ranks of the process: somebody elsewhere has failed. Any thread. */
void schedule_abort(Schedule *schedule, const AmError *error);
/* Stops: no step after this one; in options->report, of that step. */
void schedule_stop_after(Schedule *schedule, int64_t step);

#endif
