/* Writes one checkpoint: files, manifest, the name, and the removal of old ones.
 *
 * A checkpoint has its final name only when all of it is on the disk, so that a crash leaves the checkpoint
 * before. Each process writes the files of its ranks; process 0 commits.
 */
#ifndef EXECUTOR_CHECKPOINT_CHECKPOINT_WRITE_H
#define EXECUTOR_CHECKPOINT_CHECKPOINT_WRITE_H

#include <stdatomic.h>

#include "base/files/disk.h"
#include "executor/checkpoint/checkpoint_image.h"

typedef struct CheckpointWriter {
    const DiskCalls *calls;
    const char *folder; /* of all checkpoints */
    int32_t keep;       /* how many of them */
    /* Set when the files are no longer needed: afterwards only the images are accessed. */
    const atomic_bool *is_abandoned;
} CheckpointWriter;

/* Removes unfinished checkpoints. Best effort. */
void checkpoint_clean(const CheckpointWriter *writer);
/* Writes its ranks' files aside (step 1, every process). Adds them to `share`, whose tensors are all
 * there. */
AmStatus checkpoint_write_files(const CheckpointWriter *writer, const CheckpointImage *images,
                                int32_t image_count, CheckpointManifest *share, Arena *arena, AmError *error);
/* Writes the manifest, then the name (step 2, when all files are on the disk). */
AmStatus checkpoint_commit(const CheckpointWriter *writer, const CheckpointManifest *manifest, Arena *arena,
                           AmError *error);
/* Removes all but the newest `keep` (step 3). */
AmStatus checkpoint_remove_old(const CheckpointWriter *writer, Arena *arena, AmError *error);
/* Gives the room back, after a failure. */
void checkpoint_discard(const CheckpointWriter *writer, int64_t step);

#endif
