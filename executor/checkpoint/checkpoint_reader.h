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

/* Elements of a tensor: of every dimension d, blocks[d] pieces at equal distances, extent[d] elements in all,
 * the first from start[d] on (checkpoint_manifest.h). */
typedef struct CheckpointRequest {
    const CheckpointTensor *tensor;
    const int64_t *start, *extent, *blocks;
    void *local; /* room for the elements, row-major; the caller's */
} CheckpointRequest;

/* Reads the elements from the parts that have them, and little else. AM_ERROR_INPUT: the parts overlap or
 * leave elements out. */
AmStatus checkpoint_reader_get(CheckpointReader *reader, const CheckpointRequest *request, AmError *error);

#endif
