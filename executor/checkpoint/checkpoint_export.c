/* A checkpoint as one file of global arrays, named by path, as `run --save` writes and `--state` reads. All
 * arrays are in memory at once. */
#define _XOPEN_SOURCE 700
#include "executor/checkpoint/checkpoint_export.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "executor/checkpoint/checkpoint_reader.h"

static AmStatus open_whole(CheckpointReader *reader, const char *directory, AmError *error) {
    AmStatus status = checkpoint_reader_open(reader, directory, error);
    if (status == AM_OK) status = checkpoint_reader_verify(reader, 0, 1, error);
    if (status != AM_OK) checkpoint_reader_close(reader);
    return status;
}

/* Reports the first failure if no checkpoint is whole, and a failure that is not the input's at once. */
static AmStatus open_newest(CheckpointReader *reader, const char *folder, AmWarnings *warnings,
                            AmError *error) {
    int64_t *steps;
    int32_t count;
    Arena arena = {0};
    AmError first = {0};
    TRY(checkpoint_list(folder, &steps, &count, error));
    AmStatus status = count > 0 ? AM_OK
                                : am_fail(&first, AM_ERROR_INPUT, folder,
                                          "is neither a checkpoint nor a folder of checkpoints");
    for (int32_t k = 0; k < count; k++) {
        AmError own = {0};
        const char *directory = checkpoint_directory(&arena, folder, steps[k], "");
        status = directory ? open_whole(reader, directory, &own) : am_fail_memory(&own, 64);
        if (status != AM_ERROR_INPUT || first.code == AM_OK) first = own;
        if (status != AM_ERROR_INPUT) break;
        if (k + 1 < count) am_warn(warnings, "a checkpoint is skipped: %s: %s", own.source, own.text);
    }
    if (status != AM_OK && error && error->code == AM_OK) *error = first;
    free(steps);
    arena_free(&arena);
    return status;
}

static AmStatus read_whole(CheckpointReader *reader, const CheckpointTensor *tensor, void **data,
                           AmError *error) {
    int64_t zeros[IR_MAX_RANK] = {0}, ones[IR_MAX_RANK];
    for (int32_t d = 0; d < tensor->rank; d++) ones[d] = 1;
    *data = malloc((size_t)tensor->bytes + 1);
    if (!*data) return am_fail_memory(error, tensor->bytes);
    const CheckpointRequest request = {
        .tensor = tensor, .start = zeros, .extent = tensor->dimensions, .blocks = ones, .local = *data};
    return checkpoint_reader_get(reader, &request, error);
}

AmStatus checkpoint_export(const char *path, const char *out, AmWarnings *warnings, AmError *error) {
    static const char *const metadata[] = {"format", "automap-state-1", NULL};
    CheckpointReader reader;
    Arena arena = {0};
    TRY(array_file_check_writable(out, error));
    const char *list = arena_format(&arena, "%s/%s", path, CHECKPOINT_MANIFEST);
    AmStatus status = !list                     ? am_fail_memory(error, 64)
                      : access(list, F_OK) == 0 ? open_whole(&reader, path, error)
                                                : open_newest(&reader, path, warnings, error);
    arena_free(&arena);
    TRY(status);
    const CheckpointManifest *manifest = &reader.manifest;
    int32_t count = manifest->tensor_count;
    ArrayToWrite *arrays = ARENA_ARRAY(&reader.arena, ArrayToWrite, count + 1);
    void **data = ARENA_ARRAY(&reader.arena, void *, count + 1);
    if (!arrays || !data) {
        status = am_fail_memory(error, (int64_t)sizeof *arrays * count);
        count = 0;
    }
    for (int32_t t = 0; t < count && status == AM_OK; t++) {
        const CheckpointTensor *tensor = &manifest->tensors[t];
        status = read_whole(&reader, tensor, &data[t], error);
        arrays[t] = (ArrayToWrite){.name = tensor->path,
                                   .type = tensor->type,
                                   .rank = tensor->rank,
                                   .dimensions = tensor->dimensions,
                                   .data = data[t]};
    }
    if (status == AM_OK) status = array_file_write(out, arrays, count, metadata, error);
    for (int32_t t = 0; t < count; t++) free(data[t]);
    checkpoint_reader_close(&reader);
    return status;
}
