/* Checkpoints of a run: written while the steps go on, and resumed from (docs/checkpoints.md).
 *
 * At the end of a step that is to be saved every rank copies its parts into the image of its
 * file; a worker writes the files, so that training waits for a copy and no more. A
 * checkpoint is there when its directory has its name: everything else has been brought to the
 * disk before. With several processes each writes its ranks' files, and process 0 puts the
 * checkpoint in place after all have.
 *
 * A write that fails is told at once and tried again with the next checkpoint; the run
 * goes on, the checkpoints before stay, and the run fails at its end if the last one could not
 * be written.
 *
 * All functions take NULL for a run without checkpoints. "Leader": one thread of every process,
 * the same one always.
 */
#ifndef EXECUTOR_CHECKPOINT_H
#define EXECUTOR_CHECKPOINT_H

#include "base/disk.h"
#include "executor/checkpoint_manifest.h"
#include "executor/rank.h"
#include "executor/run.h"

typedef struct Checkpoint Checkpoint;

typedef struct CheckpointOwner {
    const PlanContext *context;
    const AmRunOptions *options;
    const char *plan; /* hash, or "none" */
    World *world;     /* NULL: this process alone */
    Rank *ranks;      /* of this process, opened */
    int32_t rank_count, first, device_count;
} CheckpointOwner;

/* Finds what is to be resumed; NULL where options->checkpoint_path is. AM_ERROR_USAGE: there are
 * checkpoints and --resume is not given. AM_ERROR_INPUT: the newest is another module's, or none is
 * whole. All processes together; checkpoint_close() also after a failure of this. */
AmStatus checkpoint_open(Checkpoint **checkpoint, const CheckpointOwner *owner, AmError *error);
/* Lets a write that is in work end; for 3 s at most where another process has failed. */
void checkpoint_close(Checkpoint *checkpoint);

/* What is resumed: the number of the first step (0: nothing is), the place in the data, and
 * whether parameter k is in it. */
int64_t checkpoint_first_step(const Checkpoint *checkpoint);
CheckpointPosition checkpoint_position(const Checkpoint *checkpoint);
bool checkpoint_holds(const Checkpoint *checkpoint, int32_t parameter);

/* Before the first step, when it is known which parameters come in batches (`is_fed`
 * [parameter]: not part of the state): fills the ranks' parts and lays the images out. */
AmStatus checkpoint_start(Checkpoint *checkpoint, const bool *is_fed, AmError *error);

/* Leader, between steps, when `steps` are done: tells of a write that has failed, and where these steps are
 * to be saved waits for the write before. `position`: where in the data the next step begins. */
AmStatus checkpoint_before(Checkpoint *checkpoint, int64_t steps, const CheckpointPosition *position,
                           AmError *error);
/* Every rank after that and before the next step, rank `r` of this process: its part of the state, if it is
 * to be saved. The last rank hands it to the worker. */
void checkpoint_take(Checkpoint *checkpoint, int32_t r, int64_t steps);
/* After the last step, or an interrupt: saves it if that has not been done. All processes together.
 * AM_ERROR_RUNTIME: the last save failed. */
AmStatus checkpoint_finish(Checkpoint *checkpoint, int64_t steps, const CheckpointPosition *position,
                           AmError *error);

/* Several processes agree at every step on what is to be done; what this one has to say to it,
 * in bits (CHECKPOINT_WRITTEN: its files are). When all have, all call checkpoint_collect(). */
#define CHECKPOINT_WRITTEN 2
int checkpoint_news(Checkpoint *checkpoint);
AmStatus checkpoint_collect(Checkpoint *checkpoint, AmError *error);

#endif
