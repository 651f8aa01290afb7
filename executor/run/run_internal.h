/* Shared data of a run's parts: run.c, which opens and closes it, and run_steps.c, which makes the steps. */
#ifndef EXECUTOR_RUN_RUN_INTERNAL_H
#define EXECUTOR_RUN_RUN_INTERNAL_H

#include "executor/checkpoint/checkpoint.h"
#include "executor/data/feed.h"
#include "executor/report/results.h"
#include "executor/run/actor_schedule.h"
#include "executor/run/run.h"
#include "executor/run/validation.h"

/* Why no further step is made; of several reasons the greatest counts. */
typedef enum RunEnd { RUN_GOES_ON, RUN_INTERRUPTED, RUN_NOT_FINITE } RunEnd;

typedef struct Run {
    const PlanContext *context;
    const RunOptions *options;
    Arena *arena;
    ProcessGroup *processes;   /* NULL: one process */
    int32_t device_count;      /* of the plan */
    int32_t first, rank_count; /* this process's ranks are first .. first + rank_count - 1 */
    Rank *ranks;
    const KernelBackEnd *kernels;
    const CommBackEnd *collectives;
    KernelDevice **devices; /* [rank_count], opened */
    Comm *comms;
    bool has_comm;
    Feeds *feeds;
    ChannelSet *channels; /* of transfers with slots; or NULL */
    StreamList *streams;  /* [rank_count] */
    Schedule *schedule;
    double step_begin;      /* by the leading rank */
    Checkpoint *checkpoint; /* or NULL */
    int64_t first_step;     /* those before it were done by the run that is resumed */
    Results results;
    Validation *validation;   /* or NULL */
    RunEnd end;               /* set by the leading rank between two steps */
    int64_t examples, tokens; /* of a step */
    int64_t planned_bytes;    /* of all ranks here */
    int64_t steps_done;       /* by this run */
    int64_t not_finite_steps, first_not_finite;
    int64_t resident_bytes_early;
    double first_step_seconds, total_seconds, first_loss, last_loss;
} Run;

/* Returns the steps to do; 0 where the run that is resumed has done them all. */
static inline int64_t run_steps_to_do(const Run *run) {
    int64_t steps = run->options->steps - run->first_step;
    return steps > 0 ? steps : 0;
}

/* Returns the steps that are done, those of the run that was resumed included. */
static inline int64_t run_steps_in_all(const Run *run) {
    return run->first_step + run->steps_done;
}

/* Returns the position in the data of the step after `steps`. */
CheckpointPosition run_position_after(const Run *run, int64_t steps);

/* Builds the actors of all ranks, with the run's own actions before, after and between steps. */
AmStatus run_open_schedule(Run *run, AmError *error);
/* Runs all steps of all ranks, each in its thread; returns the first failure. */
AmStatus run_all_ranks(Run *run, AmError *error);

#endif
