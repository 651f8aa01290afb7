/* The actors of a process's ranks: a step cut into what runs in one go.
 *
 * Each rank is a worker. Its program is cut at joined loops (propagation/interleave.h)
 * into groups of instructions, and each group is an actor: what comes before the loops,
 * the turns of the forward pass, those of the backward pass (and of its part that can wait), what
 * comes after them with the updates. A loop's body is cut again where it receives after it has
 * sent, so that a group begins when all that it receives is there. Registers are the schedule:
 *
 *   begin -> F0                a step's first group is done; given back after its M turns
 *   F -> B                     `kept` of them: how far the forward pass may be ahead (1F1B: min(M, S - s))
 *   F -> W, B -> W             ZB-H1's gradients of weights, which give their places back: min(M, S), min(M,
 * s + 1) B -> end, F -> end         all turns are done end -> begin               one, full at first: the
 * weights end -> report -> begin     of every rank: what is told of a step, and whether there is another one
 *   data -> begin              as many as batches are loaded ahead
 *   put -> get (channel.h)     slots of what one stage sends another
 *
 * The backward pass goes first where both may go, and what can wait last. Devices of one stage run
 * collectives together, so they follow their first one's order. A rank without joined loops is one actor.
 */
#ifndef EXECUTOR_SCHEDULE_H
#define EXECUTOR_SCHEDULE_H

#include "executor/rank.h"
#include "executor/stream.h"

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
    /* Gets ready what the ranks' begin() of step `turn` needs: an actor in a thread of its own, at most
     * `load_places` turns ahead of the last step that has ended. */
    AmStatus (*load)(void *load_user, int64_t turn, AmError *error);
    void *load_user;
    int32_t load_places; /* 0: nothing is to be loaded */
    bool load_is_short;  /* the first rank does it between its steps: sooner than a thread is woken for it */
} ScheduleOptions;

/* AM_ERROR_USAGE: the first device of a stage with joined loops is in another process. Close it whatever
 * comes of it. */
AmStatus schedule_open(Schedule **schedule, const ScheduleOptions *options, AmError *error);
void schedule_close(Schedule *schedule);

/* Starts the thread that loads, before those of the ranks: it is free to run on any processor. */
AmStatus schedule_start(Schedule *schedule, AmError *error);
/* All steps of rank r of options->ranks, in its thread. */
AmStatus schedule_run(Schedule *schedule, int32_t r, AmError *error);
/* Ends all ranks of the process: somebody elsewhere has failed. Any thread. */
void schedule_abort(Schedule *schedule, const AmError *error);
/* No step after this one; in options->report, of that step. */
void schedule_stop_after(Schedule *schedule, int64_t step);

#endif
