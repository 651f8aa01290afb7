/* A checkpoint as one file of whole arrays, named by path, as `run --save` writes and `--state` reads. */
#ifndef EXECUTOR_CHECKPOINT_EXPORT_H
#define EXECUTOR_CHECKPOINT_EXPORT_H

#include "base/status.h"

/* `path`: a checkpoint's own directory, or a folder of checkpoints, of which the newest that is whole is
 * taken; those that are passed over are warned of. `out`: .safetensors or .npz. AM_ERROR_INPUT: there is
 * none, or it is damaged. */
AmStatus checkpoint_export(const char *path, const char *out, AmWarnings *warnings, AmError *error);

#endif
