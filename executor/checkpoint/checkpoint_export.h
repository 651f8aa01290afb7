/* A checkpoint as one file of global arrays, named by path, as `run --save` writes and `--state` reads. */
#ifndef EXECUTOR_CHECKPOINT_CHECKPOINT_EXPORT_H
#define EXECUTOR_CHECKPOINT_CHECKPOINT_EXPORT_H

#include "base/status.h"

/* Exports a checkpoint. `path`: a checkpoint's own directory, or a folder of checkpoints, whose newest
 * complete one is taken; skipped ones cause warnings. `out`: .safetensors or .npz. AM_ERROR_INPUT: none is
 * complete, or it is damaged. */
AmStatus checkpoint_export(const char *path, const char *out, AmWarnings *warnings, AmError *error);

#endif
