/* Finds, verifies and reads checkpoints, for ranks of any layout.
 *
 * Resharding: a part covers, of every dimension, pieces at equal distances. The requested elements
 * and a part's elements intersect in runs of every dimension. Each combination of runs is a box,
 * which is read row by row; a row consists of as many of the last dimensions as are contiguous on
 * both sides. Short rows are taken from a window of the file.
 */
#define _XOPEN_SOURCE 700
#include "executor/checkpoint/checkpoint_reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/file.h"

enum { WINDOW_BYTES = 1 << 20 };

static const char step_prefix[] = "step-";

/* Returns the step of "step-00000010"; -1 for other names. */
static int64_t step_of_name(const char *name) {
    size_t length = strlen(step_prefix);
    if (strncmp(name, step_prefix, length) != 0) return -1;
    const char *digits = name + length;
    size_t count = strspn(digits, "0123456789");
    return count >= 8 && count <= 18 && !digits[count] ? strtoll(digits, NULL, 10) : -1;
}

static int compare_steps(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

AmStatus checkpoint_list(const char *folder, int64_t **steps, int32_t *count, AmError *error) {
    int32_t capacity = 0;
    *steps = NULL;
    *count = 0;
    DIR *directory = opendir(folder);
    if (!directory && errno == ENOENT) return AM_OK;
    if (!directory) return am_fail_system(error, AM_ERROR_INPUT, folder, errno, "cannot be opened");
    for (struct dirent *entry; (entry = readdir(directory));) {
        int64_t step = step_of_name(entry->d_name);
        struct stat facts;
        if (step < 0 || fstatat(dirfd(directory), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISDIR(facts.st_mode))
            continue;
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            int64_t *more = realloc(*steps, sizeof *more * (size_t)capacity);
            if (!more) {
                closedir(directory);
                free(*steps);
                *steps = NULL;
                *count = 0;
                return am_fail_memory(error, (int64_t)sizeof *more * capacity);
            }
            *steps = more;
        }
        (*steps)[(*count)++] = step;
    }
    closedir(directory);
    if (*count > 0) qsort(*steps, (size_t)*count, sizeof **steps, compare_steps);
    return AM_OK;
}

const char *checkpoint_directory(Arena *arena, const char *folder, int64_t step, const char *suffix) {
    return arena_format(arena, "%s/%s%08lld%s", folder, step_prefix, (long long)step, suffix);
}

AmStatus checkpoint_reader_open(CheckpointReader *reader, const char *directory, AmError *error) {
    *reader = (CheckpointReader){.window_file = -1};
    for (int k = 0; k < CHECKPOINT_OPEN_FILES; k++) reader->files[k] = reader->numbers[k] = -1;
    reader->directory = arena_copy_string(&reader->arena, directory);
    const char *path = arena_format(&reader->arena, "%s/%s", directory, CHECKPOINT_MANIFEST);
    reader->window = malloc(WINDOW_BYTES);
    if (!reader->directory || !path || !reader->window) return am_fail_memory(error, WINDOW_BYTES);
    return checkpoint_manifest_read(&reader->manifest, &reader->arena, path, error);
}

void checkpoint_reader_close(CheckpointReader *reader) {
    for (int k = 0; k < CHECKPOINT_OPEN_FILES && reader->window; k++)
        if (reader->files[k] >= 0) close(reader->files[k]);
    free(reader->window);
    arena_free(&reader->arena);
    *reader = (CheckpointReader){0};
}

/* Writes "DIRECTORY/NAME" for messages and for opening. */
static void file_path(char path[4096], const CheckpointReader *reader, int32_t number) {
    snprintf(path, 4096, "%s/%s", reader->directory, reader->manifest.files[number].name);
}

/* Opens a file; the reader owns the descriptor. The length must agree with the manifest. */
static AmStatus open_file(CheckpointReader *reader, int32_t number, int *file, AmError *error) {
    int slot = number % CHECKPOINT_OPEN_FILES;
    if (reader->numbers[slot] == number) {
        *file = reader->files[slot];
        return AM_OK;
    }
    char path[4096];
    struct stat facts;
    int64_t bytes = reader->manifest.files[number].bytes;
    file_path(path, reader, number);
    if (reader->files[slot] >= 0) close(reader->files[slot]);
    reader->numbers[slot] = -1;
    TRY(file_open_regular(&reader->files[slot], path, error));
    if (fstat(reader->files[slot], &facts) != 0 || facts.st_size != bytes)
        return am_fail(error, AM_ERROR_INPUT, path, "damaged: %lld bytes long, expected %lld",
                       (long long)facts.st_size, (long long)bytes);
    reader->numbers[slot] = number;
    *file = reader->files[slot];
    return AM_OK;
}

/* Bytes of a file of the checkpoint. */
typedef struct FileRange {
    int32_t file; /* its number in the manifest */
    int64_t offset, count;
} FileRange;

static AmStatus read_bytes(CheckpointReader *reader, FileRange range, void *to, AmError *error) {
    int file = -1;
    TRY(open_file(reader, range.file, &file, error));
    for (int64_t done = 0; done < range.count;) {
        ssize_t got =
            pread(file, (char *)to + done, (size_t)(range.count - done), (off_t)(range.offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            char path[4096];
            file_path(path, reader, range.file);
            return am_fail(error, AM_ERROR_INPUT, path, "cannot be read: %s",
                           got < 0 ? strerror(errno) : "the file became shorter");
        }
        done += got;
    }
    return AM_OK;
}

/* Reads a row, possibly adjacent to the next one; bytes after `end` are not needed. */
static AmStatus read_row(CheckpointReader *reader, FileRange row, int64_t end, void *to, AmError *error) {
    if (row.count >= WINDOW_BYTES / 4) return read_bytes(reader, row, to, error);
    bool is_inside = reader->window_file == row.file && row.offset >= reader->window_start &&
                     row.offset + row.count <= reader->window_start + reader->window_bytes;
    if (!is_inside) {
        reader->window_file = -1;
        reader->window_start = row.offset;
        reader->window_bytes = end - row.offset < WINDOW_BYTES ? end - row.offset : WINDOW_BYTES;
        FileRange window = {.file = row.file, .offset = row.offset, .count = reader->window_bytes};
        TRY(read_bytes(reader, window, reader->window, error));
        reader->window_file = row.file;
    }
    memcpy(to, reader->window + (row.offset - reader->window_start), (size_t)row.count);
    return AM_OK;
}

/* Compares a range with the manifest's digest of a part of the tensor; tensor NULL: of the file's header. */
static AmStatus verify_range(CheckpointReader *reader, FileRange range, const char *expected,
                             const CheckpointTensor *tensor, AmError *error) {
    char hex[DIGEST_ROOM], path[4096];
    Digest digest;
    AmStatus status = AM_OK;
    reader->window_file = -1;
    digest_begin(&digest);
    for (int64_t done = 0; done < range.count && status == AM_OK;) {
        int64_t some = range.count - done < WINDOW_BYTES ? range.count - done : WINDOW_BYTES;
        FileRange window = {.file = range.file, .offset = range.offset + done, .count = some};
        status = read_bytes(reader, window, reader->window, error);
        if (status == AM_OK) digest_add(&digest, reader->window, (size_t)some);
        done += some;
    }
    digest_end(&digest, hex);
    if (status == AM_OK && !hex[0]) return am_fail_memory(error, WINDOW_BYTES);
    TRY(status);
    if (strcmp(hex, expected) == 0) return AM_OK;
    file_path(path, reader, range.file);
    if (!tensor)
        return am_fail(error, AM_ERROR_INPUT, path,
                       "damaged: the digest of the header is not the manifest's");
    return am_fail(error, AM_ERROR_INPUT, path, "damaged: the digest of '%.300s' is not the manifest's",
                   tensor->path);
}

/* Checks that every byte of a file has a digest. */
static AmStatus check_covered(const CheckpointReader *reader, int32_t number, int64_t covered,
                              AmError *error) {
    char path[4096];
    const CheckpointFile *file = &reader->manifest.files[number];
    if (covered == file->bytes) return AM_OK;
    file_path(path, reader, number);
    return am_fail(error, AM_ERROR_INPUT, path, "%lld of its %lld bytes are in the manifest",
                   (long long)covered, (long long)file->bytes);
}

AmStatus checkpoint_reader_verify(CheckpointReader *reader, int32_t first, int32_t stride, AmError *error) {
    const CheckpointManifest *manifest = &reader->manifest;
    for (int32_t f = first; f < manifest->file_count; f += stride) {
        const CheckpointFile *file = &manifest->files[f];
        int64_t covered = file->header_bytes;
        FileRange header = {.file = f, .count = file->header_bytes};
        TRY(verify_range(reader, header, file->digest, NULL, error));
        for (int32_t t = 0; t < manifest->tensor_count; t++) {
            const CheckpointTensor *tensor = &manifest->tensors[t];
            for (int32_t p = 0; p < tensor->part_count; p++) {
                const CheckpointPart *part = &tensor->parts[p];
                if (part->file != f) continue;
                FileRange range = {.file = f, .offset = part->offset, .count = part->bytes};
                TRY(verify_range(reader, range, part->digest, tensor, error));
                covered += part->bytes;
            }
        }
        TRY(check_covered(reader, f, covered, error));
    }
    return AM_OK;
}

/* Elements of one dimension that are contiguous both in the request and in a part. */
typedef struct ElementRun {
    int64_t to, from, length; /* positions in the wanted piece and in the part */
} ElementRun;

typedef struct Runs {
    ElementRun *list;
    int64_t count;
} Runs;

/* Intersects two shards block by block, merged as two sorted lists of intervals. */
static AmStatus intersect(Runs *runs, const CheckpointRequest *request, const CheckpointPart *part, int32_t d,
                          AmError *error) {
    int64_t size = request->tensor->dimensions[d], blocks = request->blocks[d], other = part->blocks[d];
    int64_t piece = request->extent[d] / blocks, part_piece = part->extent[d] / other;
    runs->count = 0;
    runs->list = malloc(sizeof *runs->list * (size_t)(blocks + other));
    if (!runs->list) return am_fail_memory(error, (int64_t)sizeof *runs->list * (blocks + other));
    for (int64_t i = 0, j = 0; i < blocks && j < other;) {
        int64_t a = i * (size / blocks) + request->start[d], b = j * (size / other) + part->start[d];
        int64_t from = a > b ? a : b;
        int64_t to = a + piece < b + part_piece ? a + piece : b + part_piece;
        if (to > from)
            runs->list[runs->count++] =
                (ElementRun){i * piece + (from - a), j * part_piece + (from - b), to - from};
        if (a + piece < b + part_piece) i++;
        else j++;
    }
    return AM_OK;
}

/* A box that one part has for the reader. */
typedef struct Box {
    int32_t rank, row_dimension; /* dimensions from row_dimension on are one row */
    int64_t to[IR_MAX_RANK], from[IR_MAX_RANK], length[IR_MAX_RANK];
} Box;

static AmStatus read_box(CheckpointReader *reader, const CheckpointRequest *request,
                         const CheckpointPart *part, const Box *box, AmError *error) {
    int64_t index[IR_MAX_RANK] = {0}, width = dtype_bytes(request->tensor->type), row = width;
    for (int32_t d = box->row_dimension; d < box->rank; d++) row *= box->length[d];
    for (;;) {
        int64_t to = 0, from = 0;
        for (int32_t d = 0; d < box->rank; d++) {
            to = to * request->extent[d] + box->to[d] + index[d];
            from = from * part->extent[d] + box->from[d] + index[d];
        }
        FileRange range = {.file = part->file, .offset = part->offset + from * width, .count = row};
        TRY(read_row(reader, range, part->offset + part->bytes, (char *)request->local + to * width, error));
        int32_t d = box->row_dimension - 1;
        while (d >= 0 && ++index[d] == box->length[d]) index[d--] = 0;
        if (d < 0) return AM_OK;
    }
}

/* Reads the intersection of one part with the request; adds its elements to *found. */
static AmStatus read_part(CheckpointReader *reader, const CheckpointRequest *request,
                          const CheckpointPart *part, const Runs *runs, int64_t *found, AmError *error) {
    int64_t at[IR_MAX_RANK] = {0};
    const int64_t *extent = request->extent;
    Box box = {.rank = request->tensor->rank};
    for (;;) {
        int64_t elements = 1;
        for (int32_t d = 0; d < box.rank; d++) {
            const ElementRun *run = &runs[d].list[at[d]];
            box.to[d] = run->to;
            box.from[d] = run->from;
            box.length[d] = run->length;
            elements *= run->length;
        }
        /* The last dimensions that are whole on both sides, and one more, are one row. */
        int32_t row = box.rank > 0 ? box.rank - 1 : 0;
        while (row > 0 && box.length[row] == extent[row] && box.length[row] == part->extent[row]) row--;
        box.row_dimension = row;
        TRY(read_box(reader, request, part, &box, error));
        *found += elements;
        int32_t d = box.rank - 1;
        while (d >= 0 && ++at[d] == runs[d].count) at[d--] = 0;
        if (d < 0) return AM_OK;
    }
}

AmStatus checkpoint_reader_get(CheckpointReader *reader, const CheckpointRequest *request, AmError *error) {
    const CheckpointTensor *tensor = request->tensor;
    int64_t wanted = 1, found = 0;
    AmStatus status = AM_OK;
    for (int32_t d = 0; d < tensor->rank; d++) wanted *= request->extent[d];
    if (wanted == 0) return AM_OK;
    for (int32_t p = 0; p < tensor->part_count && status == AM_OK; p++) {
        const CheckpointPart *part = &tensor->parts[p];
        Runs runs[IR_MAX_RANK + 1] = {{0}};
        bool intersects = true;
        for (int32_t d = 0; d < tensor->rank && intersects && status == AM_OK; d++) {
            status = intersect(&runs[d], request, part, d, error);
            intersects = runs[d].count > 0;
        }
        if (status == AM_OK && intersects) status = read_part(reader, request, part, runs, &found, error);
        for (int32_t d = 0; d < tensor->rank; d++) free(runs[d].list);
    }
    if (status == AM_OK && found != wanted)
        return am_fail(error, AM_ERROR_INPUT, reader->manifest.source,
                       "tensor '%.200s': its parts overlap or leave elements out", tensor->path);
    return status;
}
