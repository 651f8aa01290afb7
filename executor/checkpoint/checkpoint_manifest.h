/* manifest.json of a checkpoint: its contents, the file of each part of each tensor, and a digest
 * of everything (docs/running.md).
 *
 * A part belongs to one rank: in every dimension a piece that starts at `start` in each of `blocks`
 * equal blocks, `extent` elements in all. The parts of a tensor are disjoint and cover it. The file
 * ends with the digest of all text before it, so that every changed bit is detected.
 */
#ifndef EXECUTOR_CHECKPOINT_CHECKPOINT_MANIFEST_H
#define EXECUTOR_CHECKPOINT_CHECKPOINT_MANIFEST_H

#include "base/arena.h"
#include "base/digest.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

#define CHECKPOINT_FORMAT   "automap-checkpoint-1"
#define CHECKPOINT_MANIFEST "manifest.json"

typedef struct CheckpointFile {
    const char *name; /* in the checkpoint's directory */
    int64_t bytes, header_bytes;
    char digest[DIGEST_ROOM]; /* of the header */
} CheckpointFile;

typedef struct CheckpointPart {
    int32_t file;
    int64_t offset, bytes;            /* in the file */
    int64_t *start, *extent, *blocks; /* [rank of the tensor] */
    char digest[DIGEST_ROOM];
} CheckpointPart;

typedef struct CheckpointTensor {
    const char *path;
    Dtype type;
    int32_t rank;
    const int64_t *dimensions;
    int64_t bytes;
    CheckpointPart *parts;
    int32_t part_count;
} CheckpointTensor;

/* The position in the data of the next step. */
typedef struct CheckpointPosition {
    uint64_t seed;
    int64_t epoch, batch;
    int64_t batches; /* of an epoch */
    bool shuffled;
} CheckpointPosition;

typedef struct CheckpointManifest {
    const char *source;        /* for messages */
    const char *module, *plan; /* hashes; "none": no plan */
    int64_t step;              /* steps that were done: the number of the next one */
    CheckpointPosition position;
    int32_t rank_count; /* of the plan */
    CheckpointFile *files;
    int32_t file_count;
    CheckpointTensor *tensors;
    int32_t tensor_count;
} CheckpointManifest;

/* Appends the text, with its digest at the end. */
AmStatus checkpoint_manifest_print(Text *text, const CheckpointManifest *manifest, AmError *error);

/* Parses a manifest. Everything lives in the arena. AM_ERROR_INPUT: damaged, or not a checkpoint of this
 * version; a part that lies outside of its tensor or file, tensors that are not complete. */
AmStatus checkpoint_manifest_parse(CheckpointManifest *manifest, Arena *arena, const char *source,
                                   const char *text, int64_t length, AmError *error);
AmStatus checkpoint_manifest_read(CheckpointManifest *manifest, Arena *arena, const char *path,
                                  AmError *error);

/* Adds files and parts of another process, which has the same tensors, to `manifest`.
 * AM_ERROR_INTERNAL where they do not match. */
AmStatus checkpoint_manifest_add(CheckpointManifest *manifest, Arena *arena, const CheckpointManifest *other,
                                 AmError *error);
/* Parses as checkpoint_manifest_parse() for the parts of one process: tensors need not be complete. */
AmStatus checkpoint_manifest_parse_share(CheckpointManifest *share, Arena *arena, const char *source,
                                         const char *text, int64_t length, AmError *error);

/* Returns the tensor of that path, or NULL. */
const CheckpointTensor *checkpoint_manifest_find(const CheckpointManifest *manifest, const char *path);

#endif
