/* Writing a checkpoint so that a crash at any moment leaves the one before; see
 * checkpoint_write.h.
 *
 * Everything is written to "step-N.part": files and manifest, each brought to the disk, then
 * the directory itself. One rename gives it its name; the folder is brought to the disk, and
 * only then old checkpoints go: renamed to "step-N.old" first, so that nothing that is half
 * removed has a checkpoint's name. A damaged checkpoint of the same step, which the run did
 * not resume from, makes room in the same way.
 */
#define _XOPEN_SOURCE 700
#include "executor/checkpoint/checkpoint_write.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/checkpoint/checkpoint_reader.h"

static const char part_suffix[] = ".part", old_suffix[] = ".old";

/* Recognises "step-00000010.part" or ".old": a checkpoint that is being written or removed. */
static bool is_unfinished(const char *name) {
    if (strncmp(name, "step-", 5) != 0) return false;
    size_t digits = strspn(name + 5, "0123456789");
    const char *suffix = name + 5 + digits;
    return digits >= 8 && (strcmp(suffix, part_suffix) == 0 || strcmp(suffix, old_suffix) == 0);
}

void checkpoint_clean(const CheckpointWriter *writer) {
    DIR *directory = opendir(writer->folder);
    if (!directory) return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *name = entry->d_name;
        if (!is_unfinished(name)) continue;
        Arena arena = {0};
        const char *path = arena_format(&arena, "%s/%s", writer->folder, name);
        if (path) disk_remove(writer->calls, path, NULL);
        arena_free(&arena);
    }
    closedir(directory);
}

AmStatus checkpoint_write_files(const CheckpointWriter *writer, const CheckpointImage *images,
                                int32_t image_count, CheckpointManifest *share, Arena *arena,
                                AmError *error) {
    const char *directory = checkpoint_directory(arena, writer->folder, share->step, part_suffix);
    if (!directory) return am_fail_memory(error, 64);
    TRY(disk_make_directory(writer->calls, directory, false, error));
    for (int32_t r = 0; r < image_count; r++) {
        const CheckpointImage *image = &images[r];
        if (!image->bytes) continue;
        char name[32];
        snprintf(name, sizeof name, "rank-%05d.safetensors", (int)image->rank->comm->rank);
        const char *path = arena_format(arena, "%s/%s", directory, name);
        if (!path) return am_fail_memory(error, 64);
        TRY(disk_write_file(writer->calls, path, image->bytes, image->byte_count, error));
        if (atomic_load(writer->is_abandoned))
            return am_fail(error, AM_ERROR_RUNTIME, path,
                           "the run has ended before the checkpoint was written");
        TRY(checkpoint_image_describe(image, share, arena, name, error));
    }
    return disk_sync_directory(writer->calls, directory, error);
}

/* Removes the checkpoint of `step` from the list, then from the disk. */
static AmStatus remove_step(const CheckpointWriter *writer, int64_t step, Arena *arena, AmError *error) {
    const char *path = checkpoint_directory(arena, writer->folder, step, "");
    const char *old = checkpoint_directory(arena, writer->folder, step, old_suffix);
    if (!path || !old) return am_fail_memory(error, 64);
    TRY(disk_remove(writer->calls, old, error));
    TRY(disk_rename(writer->calls, path, old, error));
    return disk_remove(writer->calls, old, error);
}

AmStatus checkpoint_commit(const CheckpointWriter *writer, const CheckpointManifest *manifest, Arena *arena,
                           AmError *error) {
    struct stat facts;
    Text text = {0};
    const char *part = checkpoint_directory(arena, writer->folder, manifest->step, part_suffix);
    const char *path = checkpoint_directory(arena, writer->folder, manifest->step, "");
    const char *list = arena_format(arena, "%s/%s", part ? part : "", CHECKPOINT_MANIFEST);
    if (arena->failed) return am_fail_memory(error, 64);
    /* Checks that the folder has the files of other processes: on a disk that is not shared, a folder of the
     * same name lacks them. */
    for (int32_t f = 0; f < manifest->file_count; f++) {
        struct stat of_file;
        const char *file = arena_format(arena, "%s/%s", part, manifest->files[f].name);
        if (!file) return am_fail_memory(error, 64);
        if (lstat(file, &of_file) != 0 || !S_ISREG(of_file.st_mode) ||
            of_file.st_size != manifest->files[f].bytes)
            return am_fail(
                error, AM_ERROR_RUNTIME, file,
                "is not where process 0 can read it: all processes need the same checkpoint folder");
    }
    AmStatus status = checkpoint_manifest_print(&text, manifest, error);
    if (status == AM_OK)
        status = disk_write_file(writer->calls, list, text.data, (int64_t)text.length, error);
    text_free(&text);
    TRY(status);
    TRY(disk_sync_directory(writer->calls, part, error));
    if (lstat(path, &facts) == 0) TRY(remove_step(writer, manifest->step, arena, error));
    TRY(disk_rename(writer->calls, part, path, error));
    return disk_sync_directory(writer->calls, writer->folder, error);
}

AmStatus checkpoint_remove_old(const CheckpointWriter *writer, Arena *arena, AmError *error) {
    int64_t *steps;
    int32_t count;
    AmStatus status = checkpoint_list(writer->folder, &steps, &count, error);
    for (int32_t k = writer->keep; k < count && status == AM_OK; k++)
        status = remove_step(writer, steps[k], arena, error);
    free(steps);
    return status;
}

void checkpoint_discard(const CheckpointWriter *writer, int64_t step) {
    Arena arena = {0};
    const char *part = checkpoint_directory(&arena, writer->folder, step, part_suffix);
    if (part) disk_remove(writer->calls, part, NULL);
    arena_free(&arena);
}
