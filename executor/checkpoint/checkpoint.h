/* Checkpoints of a run: written while the steps continue, and used to resume (docs/running.md).
 *
 * At the end of a step that is saved, every rank copies its parts into the image of its file; a
 * worker writes the files, so that training waits only for a copy. A checkpoint exists once its
 * directory has its name; everything else is on disk before. Each of several processes writes its
 * ranks' files, and process 0 puts the checkpoint in place after all have written.
 *
 * A failed write is reported at once and repeated with the next checkpoint. The run continues,
 * earlier checkpoints remain, and the run fails at its end if the last one could not be written.
 *
 * All functions accept NULL for a run without checkpoints. "Leader": one thread of every process,
 * always the same.
 */
#ifndef EXECUTOR_CHECKPOINT_CHECKPOINT_H
#define EXECUTOR_CHECKPOINT_CHECKPOINT_H

#include "base/files/disk.h"
#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/program/rank.h"
#include "executor/program/run_options.h"

typedef struct Checkpoint Checkpoint;

typedef struct CheckpointOwner {
    const PlanContext *context;
    const RunOptions *options;
    const char *plan;        /* hash, or "none" */
    ProcessGroup *processes; /* NULL: this process alone */
    Rank *ranks;             /* of this process, opened */
    int32_t rank_count, first, device_count;
} CheckpointOwner;

/* Finds the checkpoint to resume; NULL if options->checkpoints.path is. AM_ERROR_USAGE: there are
 * checkpoints and --resume is not given. AM_ERROR_INPUT: the newest belongs to another module, or
 * none is complete. All processes together; checkpoint_close() also after a failure. */
AmStatus checkpoint_open(Checkpoint **checkpoint, const CheckpointOwner *owner, AmError *error);
/* Lets a write that is in work end; for 3 s at most where another process has failed. */
void checkpoint_close(Checkpoint *checkpoint);

/* Returns the resumed state: the number of the first step (0: not resumed), the position in the data, and
 * whether parameter k is included. */
int64_t checkpoint_first_step(const Checkpoint *checkpoint);
CheckpointPosition checkpoint_position(const Checkpoint *checkpoint);
bool checkpoint_holds(const Checkpoint *checkpoint, int32_t parameter);

/* Fills the ranks' shards and lays the images out, before the first step. `is_fed` [parameter]: it comes in
 * batches and is not part of the state. */
AmStatus checkpoint_start(Checkpoint *checkpoint, const bool *is_fed, AmError *error);

/* Reports (leader, between steps, after `steps` steps) a failed write, and if these steps are saved, waits
 * for the previous write. `position`: the position in the data of the next step. */
AmStatus checkpoint_before(Checkpoint *checkpoint, int64_t steps, const CheckpointPosition *position,
                           AmError *error);
/* Copies the state of rank `r` of this process, if it is to be saved. Every rank calls it after
 * checkpoint_before() and before the next step. The last rank hands it to the worker. */
void checkpoint_take(Checkpoint *checkpoint, int32_t r, int64_t steps);
/* Saves the state after the last step or an interrupt, if that has not been done. All processes call it
 * together. AM_ERROR_RUNTIME: the last save failed. */
AmStatus checkpoint_finish(Checkpoint *checkpoint, int64_t steps, const CheckpointPosition *position,
                           AmError *error);

/* Several processes agree at every step on the next action; this process's contribution, in bits
 * (CHECKPOINT_WRITTEN: its files are written). When all have it, all call checkpoint_collect(). */
#define CHECKPOINT_WRITTEN 2
int checkpoint_news(Checkpoint *checkpoint);
AmStatus checkpoint_collect(Checkpoint *checkpoint, AmError *error);

#endif
