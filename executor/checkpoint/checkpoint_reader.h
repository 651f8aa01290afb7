/* Reading checkpoints: which one in a folder is the newest that is whole, and parts of it
 * for whatever layout the reader has.
 */
#ifndef EXECUTOR_CHECKPOINT_CHECKPOINT_READER_H
#define EXECUTOR_CHECKPOINT_CHECKPOINT_READER_H

#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/program/rank.h"

enum { CHECKPOINT_OPEN_FILES = 32 };

typedef struct CheckpointReader {
    Arena arena;
    const char *directory; /* of one checkpoint */
    CheckpointManifest manifest;
    int32_t numbers[CHECKPOINT_OPEN_FILES]; /* of the files that are open */
    int files[CHECKPOINT_OPEN_FILES];       /* -1: none */
    char *window;                           /* of the file that was read last, at offset window_start */
    int32_t window_file;                    /* -1: none */
    int64_t window_start, window_bytes;
} CheckpointReader;

/* Lists the steps of all checkpoints in the folder, by their names, newest first; C heap. None, or no folder:
 * *count 0. */
AmStatus checkpoint_list(const char *folder, int64_t **steps, int32_t *count, AmError *error);
/* Returns "FOLDER/step-00000010"; NULL: no memory. */
const char *checkpoint_directory(Arena *arena, const char *folder, int64_t step, const char *suffix);

/* Reads the manifest of the checkpoint in `directory`. checkpoint_reader_close() also after
 * a failure of this. */
AmStatus checkpoint_reader_open(CheckpointReader *reader, const char *directory, AmError *error);
void checkpoint_reader_close(CheckpointReader *reader);
/* Compares all bytes of the files with their digests: every `stride`-th file from `first` on.
 * AM_ERROR_INPUT names the file and the damaged part. */
AmStatus checkpoint_reader_verify(CheckpointReader *reader, int32_t first, int32_t stride, AmError *error);

/* Fills `local`, the part of the tensor that start, extent and blocks say (checkpoint_manifest.h),
 * row-major, from wherever the checkpoint has it; reads little else. */
AmStatus checkpoint_reader_get(CheckpointReader *reader, const CheckpointTensor *tensor, const int64_t *start,
                               const int64_t *extent, const int64_t *blocks, void *local, AmError *error);

#endif
