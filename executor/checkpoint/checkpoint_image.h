/* The file of one rank in memory, which a checkpoint writes while the steps continue.
 *
 * Its layout is fixed before the first step: a safetensors header, then every part that the rank
 * represents. At a step's end the rank copies its parts in; a worker writes the whole image at
 * once.
 */
#ifndef EXECUTOR_CHECKPOINT_CHECKPOINT_IMAGE_H
#define EXECUTOR_CHECKPOINT_CHECKPOINT_IMAGE_H

#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/program/rank.h"
#include "propagation/plan/plan.h"

typedef struct CheckpointSlice {
    int32_t parameter, tensor; /* tensor: in the manifest */
    int64_t offset, bytes;     /* in the image */
} CheckpointSlice;

typedef struct CheckpointImage {
    Rank *rank;
    const PlanContext *context;
    char *bytes; /* C heap; NULL: the rank writes nothing */
    int64_t header_bytes, byte_count;
    CheckpointSlice *slices;
    int32_t slice_count;
} CheckpointImage;

/* Finds the position of the rank's part of parameter k in the array of the module as read: start, extent and
 * blocks of every dimension. */
void checkpoint_part_of(const PlanContext *context, const Rank *rank, int32_t k, int64_t *start,
                        int64_t *extent, int64_t *blocks);

/* Opens an image. `tensors` [parameter]: the tensor that it is saved as, or -1. Slices live in the arena.
 * checkpoint_image_close() also after a failure of this. */
AmStatus checkpoint_image_open(CheckpointImage *image, Arena *arena, const PlanContext *context, Rank *rank,
                               const int32_t *tensors, AmError *error);
void checkpoint_image_close(CheckpointImage *image);
/* Copies the current parts; called by the rank's thread. */
void checkpoint_image_take(CheckpointImage *image);

/* Adds the file `name` and its parts, digests included, to a manifest of the same tensors. */
AmStatus checkpoint_image_describe(const CheckpointImage *image, CheckpointManifest *manifest, Arena *arena,
                                   const char *name, AmError *error);

#endif
