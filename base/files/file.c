/* Files: whole reads, transparent decompression, atomic writes.
 *
 * The first bytes identify a compressed file: 1f 8b is gzip (RFC 1952; a file may have several
 * members), 28 b5 2f fd is zstd (RFC 8878; likewise frames). Output grows by doubling only as data
 * arrives, so that memory is proportional to the decoded data, up to the limit of file.h.
 */
#define _GNU_SOURCE /* O_TMPFILE */
#include "base/files/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/files/file_format.h"
#include "base/suffix.h"
#include "base/suggest.h"

enum { SMALLEST_BUFFER = 64 << 10, NAME_BYTES = 256, NEAR_BYTES = 512 };

typedef struct Buffer {
    char *data;
    size_t length, capacity;
} Buffer;

/* Makes room for at least `free_bytes` more, and one byte for the final NUL. */
static AmStatus buffer_reserve(Buffer *buffer, size_t free_bytes, AmError *error) {
    size_t needed = buffer->length + free_bytes + 1;
    if (needed <= buffer->capacity) return AM_OK;
    size_t capacity = buffer->capacity * 2 > needed ? buffer->capacity * 2 : needed;
    char *data = realloc(buffer->data, capacity);
    if (!data) return am_fail_memory(error, (int64_t)capacity);
    buffer->data = data;
    buffer->capacity = capacity;
    return AM_OK;
}

static bool is_null_device(const struct stat *facts) {
    struct stat null;
    return stat("/dev/null", &null) == 0 && null.st_rdev == facts->st_rdev;
}

static AmStatus read_all(Buffer *buffer, int file, const char *name, AmError *error) {
    size_t expected = SMALLEST_BUFFER;
    struct stat facts;
    if (fstat(file, &facts) == 0) {
        if (S_ISDIR(facts.st_mode)) {
            return am_fail(error, AM_ERROR_INPUT, name, "is a directory, expected a file");
        }
        /* Devices may never end. */
        if (S_ISCHR(facts.st_mode) && !isatty(file) && !is_null_device(&facts))
            return am_fail(error, AM_ERROR_INPUT, name, "is a device, expected a file");
        if (S_ISREG(facts.st_mode) && facts.st_size > 0) expected = (size_t)facts.st_size + 1;
    }
    for (;;) {
        TRY(buffer_reserve(buffer, expected, error));
        /* An interrupt ends the wait of poll(); read() would go on. */
        struct pollfd polled = {.fd = file, .events = POLLIN};
        if (poll(&polled, 1, -1) < 0 && errno == EINTR)
            return am_fail(error, AM_INTERRUPTED, name, "the reading was interrupted");
        ssize_t got = read(file, buffer->data + buffer->length, buffer->capacity - buffer->length - 1);
        if (got == 0) return AM_OK;
        if (got < 0 && errno != EAGAIN)
            return am_fail(error, AM_ERROR_INPUT, name, "cannot be read: %s", strerror(errno));
        if (got > 0) buffer->length += (size_t)got;
        expected = SMALLEST_BUFFER;
    }
}

/* Returns whether two names are near up to their first dots: a common suffix makes no misspelling. */
static bool has_near_stem(const char *name, const char *other) {
    char stem[NAME_BYTES], other_stem[NAME_BYTES];
    snprintf(stem, sizeof stem, "%.*s", (int)strcspn(name, "."), name);
    snprintf(other_stem, sizeof other_stem, "%.*s", (int)strcspn(other, "."), other);
    return suggest_nearest(stem, (const char *const[]){other_stem}, 1) != NULL;
}

enum { PATH_BYTES = 4096 };

/* Writes the first missing part of `path`, "models/vg" of "models/vg/model.hlo", and its folder, "models/".
 * Returns its name in `part`; NULL if the path is too long. */
static const char *find_missing_part(char part[PATH_BYTES], char folder[PATH_BYTES], const char *path) {
    struct stat facts;
    if (strlen(path) >= PATH_BYTES) return NULL;
    for (size_t length = strcspn(path, "/");; length += 1 + strcspn(path + length + 1, "/")) {
        snprintf(part, PATH_BYTES, "%.*s", (int)length, path);
        if (!path[length] || (length > 0 && stat(part, &facts) != 0)) break;
    }
    const char *slash = strrchr(part, '/');
    snprintf(folder, PATH_BYTES, "%.*s", slash ? (int)(slash - part) + 1 : 0, part);
    return slash ? slash + 1 : part;
}

/* Writes the name of a file or folder that the first missing part of `path` may stand for, or "". A folder
 * has its path before it. Looks at 1000 names at most. */
static void find_near_file(char near[NEAR_BYTES], const char *path) {
    enum { MOST_NAMES = 1000 };
    char part[PATH_BYTES], folder[PATH_BYTES], *names[MOST_NAMES];
    const char *name = find_missing_part(part, folder, path);
    size_t count = 0;
    near[0] = '\0';
    if (!name) return;
    bool is_folder = strlen(part) < strlen(path);
    DIR *entries = opendir(*folder ? folder : ".");
    const struct dirent *entry;
    while (entries && count < MOST_NAMES && (entry = readdir(entries)) != NULL)
        if (entry->d_name[0] != '.' && (names[count] = strdup(entry->d_name)) != NULL) count++;
    if (entries) closedir(entries);
    const char *found = suggest_nearest(name, (const char *const *)names, count);
    if (found && has_near_stem(name, found))
        snprintf(near, NEAR_BYTES, "%.200s%.255s", is_folder ? folder : "", found);
    for (size_t k = 0; k < count; k++) free(names[k]);
}

static AmStatus fail_to_open(const char *path, int reason, AmError *error) {
    char near[NEAR_BYTES] = "";
    if (reason == ENOENT) find_near_file(near, path);
    if (!near[0]) return am_fail_system(error, AM_ERROR_INPUT, path, reason, "cannot be opened");
    return am_fail(error, AM_ERROR_INPUT, path, "cannot be opened: %s; did you mean %s?", strerror(reason),
                   near);
}

AmStatus file_check_exists(const char *path, AmError *error) {
    struct stat facts;
    if (strcmp(path, "-") == 0 || stat(path, &facts) == 0) return AM_OK;
    return fail_to_open(path, errno, error);
}

/* Returns the most bytes that a compressed file may become; a number in the environment raises the least
 * bound. */
static size_t expansion_limit(size_t stored) {
    const char *text = getenv("AUTOMAP_EXPANSION_MB");
    size_t limit = stored > SIZE_MAX / FILE_EXPANSION_RATIO ? SIZE_MAX : stored * FILE_EXPANSION_RATIO;
    size_t always = (size_t)FILE_EXPANSION_ALWAYS;
    long long raised = text ? atoll(text) : 0;
    if (raised > 0 && raised < (1LL << 40)) always = (size_t)raised << 20;
    if (limit > (size_t)FILE_EXPANSION_LIMIT) limit = (size_t)FILE_EXPANSION_LIMIT;
    return limit > always ? limit : always;
}

static AmStatus fail_too_large(size_t stored, const char *name, AmError *error) {
    return am_fail(
        error, AM_ERROR_INPUT, name,
        "expands beyond %zu bytes from %zu (expected at most %d times its size; AUTOMAP_EXPANSION_MB "
        "raises the bound)",
        expansion_limit(stored), stored, FILE_EXPANSION_RATIO);
}

static AmStatus expand_gzip(Buffer *out, const Buffer *in, const char *name, AmError *error) {
    z_stream stream = {0};
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return am_fail_memory(error, SMALLEST_BUFFER);
    AmStatus status = AM_OK;
    size_t consumed = 0, limit = expansion_limit(in->length);
    for (bool finished = false; !finished;) {
        TRY_OR_FAIL(buffer_reserve(out, SMALLEST_BUFFER, error));
        size_t room = out->capacity - out->length - 1, rest = in->length - consumed;
        stream.next_in = (unsigned char *)in->data + consumed;
        stream.avail_in = (uInt)(rest < (1u << 30) ? rest : 1u << 30);
        stream.next_out = (unsigned char *)out->data + out->length;
        stream.avail_out = (uInt)(room < (1u << 30) ? room : 1u << 30);
        int code = inflate(&stream, Z_NO_FLUSH);
        consumed = (size_t)((char *)stream.next_in - in->data);
        out->length = (size_t)((char *)stream.next_out - out->data);
        if (out->length > limit) {
            status = fail_too_large(in->length, name, error);
            goto fail;
        }
        if (code == Z_STREAM_END) {
            finished = consumed == in->length;
            if (!finished) inflateReset(&stream);
        } else if (code != Z_OK) {
            bool cut = code == Z_BUF_ERROR && consumed == in->length;
            status = am_fail(error, AM_ERROR_INPUT, name, "byte %zu: %s gzip data", consumed,
                             cut ? "truncated" : "corrupt");
            goto fail;
        }
    }
fail:
    inflateEnd(&stream);
    return status;
}

/* Decodes one frame after the output so far. Its output is its window, so that no other memory is needed,
 * whatever window the frame names. */
static AmStatus expand_frame(Buffer *out, ZSTD_DCtx *context, const char *frame, size_t bytes, size_t limit,
                             size_t *code, AmError *error) {
    unsigned long long known = ZSTD_getFrameContentSize(frame, bytes);
    size_t room = bytes > SIZE_MAX / 8 ? SIZE_MAX / 2 : 4 * bytes + SMALLEST_BUFFER;
    if (known != ZSTD_CONTENTSIZE_UNKNOWN && known != ZSTD_CONTENTSIZE_ERROR && known < SIZE_MAX)
        room = (size_t)known;
    for (;;) {
        size_t most = limit - out->length;
        if (room > most) room = most;
        TRY(buffer_reserve(out, room, error));
        *code = ZSTD_decompressDCtx(context, out->data + out->length, room, frame, bytes);
        if (ZSTD_getErrorCode(*code) != ZSTD_error_dstSize_tooSmall || room == most) return AM_OK;
        room = room > most / 2 ? most : 2 * room + SMALLEST_BUFFER; /* a frame may state size 0 */
    }
}

static AmStatus expand_zstd(Buffer *out, const Buffer *in, const char *name, AmError *error) {
    ZSTD_DCtx *context = ZSTD_createDCtx();
    if (!context) return am_fail_memory(error, SMALLEST_BUFFER);
    AmStatus status = AM_OK;
    size_t limit = expansion_limit(in->length);
    for (size_t at = 0; at < in->length;) {
        size_t bytes = ZSTD_findFrameCompressedSize(in->data + at, in->length - at), code = bytes;
        if (!ZSTD_isError(bytes))
            TRY_OR_FAIL(expand_frame(out, context, in->data + at, bytes, limit, &code, error));
        switch (ZSTD_isError(code) ? ZSTD_getErrorCode(code) : ZSTD_error_no_error) {
        case ZSTD_error_no_error: break;
        case ZSTD_error_dstSize_tooSmall: status = fail_too_large(in->length, name, error); goto fail;
        case ZSTD_error_memory_allocation: status = am_fail_memory(error, SMALLEST_BUFFER); goto fail;
        case ZSTD_error_srcSize_wrong:
            status = am_fail(error, AM_ERROR_INPUT, name, "byte %zu: truncated zstd data", in->length);
            goto fail;
        default:
            status = am_fail(error, AM_ERROR_INPUT, name, "byte %zu: corrupt zstd data: %s", at,
                             ZSTD_getErrorName(code));
            goto fail;
        }
        out->length += code;
        at += bytes;
    }
    TRY_OR_FAIL(buffer_reserve(out, 0, error));
fail:
    ZSTD_freeDCtx(context);
    return status;
}

typedef struct Compression {
    const char *magic;
    size_t magic_length;
    AmStatus (*expand)(Buffer *out, const Buffer *in, const char *name, AmError *error);
} Compression;

static const Compression COMPRESSIONS[] = {{"\x1f\x8b", 2, expand_gzip},
                                           {"\x28\xb5\x2f\xfd", 4, expand_zstd}};
enum { COMPRESSION_COUNT = sizeof COMPRESSIONS / sizeof *COMPRESSIONS };

/* Reads and expands an open file. */
static AmStatus read_and_expand(FileBytes *bytes, int file, const char *name, AmError *error) {
    Buffer stored = {0}, expanded = {0};
    AmStatus status = AM_OK;
    TRY_OR_FAIL(read_all(&stored, file, name, error));
    bytes->stored_length = (int64_t)stored.length;
    for (int i = 0; i < COMPRESSION_COUNT; i++) {
        const Compression *row = &COMPRESSIONS[i];
        if (stored.length < row->magic_length || memcmp(stored.data, row->magic, row->magic_length)) continue;
        TRY_OR_FAIL(row->expand(&expanded, &stored, name, error));
        free(stored.data);
        stored = expanded;
        expanded = (Buffer){0};
        break;
    }
    bytes->data = stored.data;
    bytes->length = (int64_t)stored.length;
    bytes->data[bytes->length] = '\0';
    stored = (Buffer){0};
fail:
    free(stored.data);
    free(expanded.data);
    return status;
}

/* Removes a byte order mark of UTF-8, so that no reader has to; refuses text in UTF-16. */
static AmStatus check_encoding(FileBytes *bytes, AmError *error) {
    int64_t mark = file_mark_bytes(bytes->data, bytes->length);
    bool is_utf16 = bytes->length >= 2 &&
                    (memcmp(bytes->data, "\xff\xfe", 2) == 0 || memcmp(bytes->data, "\xfe\xff", 2) == 0);
    if (is_utf16) {
        am_fail(error, AM_ERROR_INPUT, bytes->name, "this is UTF-16 text (expected UTF-8)");
        file_release(bytes);
        return AM_ERROR_INPUT;
    }
    bytes->length -= mark;
    if (mark > 0) memmove(bytes->data, bytes->data + mark, (size_t)bytes->length + 1);
    return AM_OK;
}

AmStatus file_read(FileBytes *bytes, const char *path, AmError *error) {
    bool standard_input = strcmp(path, "-") == 0;
    const char *name = standard_input ? "<stdin>" : path;
    *bytes = (FileBytes){.name = name};
    if (!*path)
        return am_fail(error, AM_ERROR_INPUT, "", "expected the name of a file to read, found an empty one");
    /* A pipe without a writer opens at once: its reading waits, and hears an interrupt. */
    int file = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return fail_to_open(path, errno, error);
    AmStatus status = read_and_expand(bytes, file, name, error);
    if (!standard_input) close(file);
    return status == AM_OK ? check_encoding(bytes, error) : status;
}

AmStatus file_open_regular(int *file, const char *path, AmError *error) {
    struct stat facts;
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*file < 0 && errno == ELOOP)
        return am_fail(error, AM_ERROR_INPUT, path, "is a symbolic link, expected a regular file");
    if (*file < 0) return am_fail_system(error, AM_ERROR_INPUT, path, errno, "cannot be opened");
    if (fstat(*file, &facts) == 0 && S_ISREG(facts.st_mode)) return AM_OK;
    close(*file);
    *file = -1;
    return am_fail(error, AM_ERROR_INPUT, path, "is not a regular file");
}

AmStatus file_read_regular(FileBytes *bytes, const char *path, AmError *error) {
    int file;
    *bytes = (FileBytes){.name = path};
    TRY(file_open_regular(&file, path, error));
    AmStatus status = read_and_expand(bytes, file, path, error);
    close(file);
    return status;
}

void file_release(FileBytes *bytes) {
    free(bytes->data);
    *bytes = (FileBytes){0};
}

enum { NAME_TRIES = 100, SUFFIX_ROOM = 32, PIPE_TRIES = 500 };

/* Writes a name beside the target that cannot be predicted into writer->part, which has room for it. */
static bool draw_name(FileWriter *writer) {
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return false;
    snprintf(writer->part, strlen(writer->path) + SUFFIX_ROOM, "%s.part-%016llx", writer->path,
             (unsigned long long)number);
    return true;
}

/* Opens a file without a name in the target's folder, which vanishes with the process. Returns -1 if the
 * file system has none, or no /proc, by which the file gets its name. */
static int open_nameless(FileWriter *writer) {
    char link_name[SUFFIX_ROOM];
    struct stat facts;
    const char *slash = strrchr(writer->path, '/');
    size_t length = slash ? (size_t)(slash - writer->path) + 1 : 0;
    memcpy(writer->part, writer->path, length);
    memcpy(writer->part + length, ".", 2);
    int file = open(writer->part, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    writer->part[0] = '\0';
    if (file < 0) return -1;
    snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", file);
    if (lstat(link_name, &facts) == 0) return file;
    close(file);
    return -1;
}

/* Opens a new file beside the target, under a name that cannot be predicted; -1 and errno. */
static int open_beside(FileWriter *writer) {
    int file = -1;
    for (int k = 0; k < NAME_TRIES && file < 0; k++) {
        if (!draw_name(writer)) return -1;
        file = open(writer->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (file < 0 && errno != EEXIST) return -1;
    }
    return file;
}

/* Opens the file that replaces the target; `replaced` describes the target; NULL: a new file. */
static FILE *open_part(FileWriter *writer, const struct stat *replaced) {
    int file = open_nameless(writer);
    writer->is_nameless = file >= 0;
    if (file < 0) file = open_beside(writer);
    if (file < 0) return NULL;
    if (replaced && fchmod(file, replaced->st_mode & 0777) != 0 && errno != EPERM && errno != ENOTSUP) {
        close(file);
        return NULL;
    }
    FILE *stream = fdopen(file, "wb");
    if (!stream) close(file);
    return stream;
}

FILE *file_open_in_place(const char *path) {
    const struct timespec pause = {0, 10000000};
    struct stat facts;
    bool is_pipe = stat(path, &facts) == 0 && S_ISFIFO(facts.st_mode);
    if (!is_pipe) return fopen(path, "wb");
    int file = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    for (int k = 0; file < 0 && errno == ENXIO && k < PIPE_TRIES; k++) {
        nanosleep(&pause, NULL);
        file = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (file >= 0) fcntl(file, F_SETFL, O_WRONLY);
    FILE *stream = file >= 0 ? fdopen(file, "wb") : NULL;
    if (!stream && file >= 0) close(file);
    if (!stream && errno == ENXIO) errno = EPIPE;
    return stream;
}

/* Begins a file. A rename replaces a regular file or nothing; a device or pipe is written in place, a
 * symbolic link is followed to the file that it names. */
AmStatus file_writer_begin(FileWriter *writer, const char *path, AmError *error) {
    *writer = (FileWriter){0};
    if (strcmp(path, "-") == 0) {
        writer->stream = stdout;
        writer->path = strdup("<stdout>");
        return writer->path ? AM_OK : am_fail_memory(error, 16);
    }
    if (!*path)
        return am_fail(error, AM_ERROR_USAGE, "", "expected the name of a file to write, found an empty one");
    struct stat facts;
    bool exists = stat(path, &facts) == 0;
    bool in_place = exists && !S_ISREG(facts.st_mode);
    writer->path = exists && !in_place ? realpath(path, NULL) : strdup(path);
    if (!writer->path) return am_fail_memory(error, (int64_t)strlen(path));
    if (!in_place) {
        size_t room = strlen(writer->path) + SUFFIX_ROOM;
        writer->part = malloc(room);
        if (!writer->part) {
            file_writer_abandon(writer);
            return am_fail_memory(error, (int64_t)room);
        }
        writer->part[0] = '\0';
    }
    writer->stream = in_place ? file_open_in_place(writer->path) : open_part(writer, exists ? &facts : NULL);
    if (!writer->stream) {
        AmStatus status = am_fail_system(error, AM_ERROR_USAGE, path, errno, "cannot be written");
        file_writer_abandon(writer);
        return status;
    }
    return AM_OK;
}

/* Gives a nameless file its temporary name; false and errno. */
static bool name_part(FileWriter *writer) {
    char link_name[SUFFIX_ROOM];
    snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", fileno(writer->stream));
    for (int k = 0; k < NAME_TRIES; k++) {
        if (!draw_name(writer)) return false;
        if (linkat(AT_FDCWD, link_name, AT_FDCWD, writer->part, AT_SYMLINK_FOLLOW) == 0) return true;
        if (errno != EEXIST) break;
    }
    writer->part[0] = '\0';
    return false;
}

/* Examines a failed write, whose cause it keeps. Returns true if the reader of stdout has closed the pipe,
 * and drops the buffered output. */
static bool notes_closed_pipe(FileWriter *writer) {
    if (!writer->cause) writer->cause = errno;
    if (errno != EPIPE || writer->stream != stdout) return false;
    writer->is_closed = true;
    __fpurge(stdout);
    clearerr(stdout);
    return true;
}

AmStatus file_writer_add(FileWriter *writer, const void *data, size_t length, AmError *error) {
    if (length == 0 || fwrite(data, 1, length, writer->stream) == length) return AM_OK;
    if (writer->is_closed || notes_closed_pipe(writer)) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, writer->path, "writing failed: %s", strerror(errno));
}

AmStatus file_writer_commit(FileWriter *writer, AmError *error) {
    errno = 0;
    bool written = fflush(writer->stream) == 0 && !ferror(writer->stream);
    if (writer->is_closed || (!written && notes_closed_pipe(writer))) written = true;
    if (written && writer->is_nameless) written = name_part(writer);
    if (writer->stream != stdout) written = fclose(writer->stream) == 0 && written;
    writer->stream = NULL;
    if (written && writer->part) written = rename(writer->part, writer->path) == 0;
    AmStatus status = AM_OK;
    if (!written) {
        status = am_fail(error, AM_ERROR_RUNTIME, writer->path, "writing failed: %s",
                         strerror(writer->cause ? writer->cause : errno));
    } else {
        free(writer->part);
        writer->part = NULL;
    }
    file_writer_abandon(writer);
    return status;
}

bool file_writer_flush(FileWriter *writer) {
    if (writer->stream && fflush(writer->stream) != 0) notes_closed_pipe(writer);
    return !writer->is_closed;
}

void file_writer_abandon(FileWriter *writer) {
    if (writer->stream && writer->stream != stdout) fclose(writer->stream);
    if (writer->part && writer->part[0]) unlink(writer->part);
    free(writer->part);
    free(writer->path);
    *writer = (FileWriter){0};
}

/* Checks whether a file can be written. A device or pipe is not opened: that could wait for its reader. */
AmStatus file_check_writable(const char *path, AmError *error) {
    struct stat facts;
    FileWriter writer = {0};
    if (strcmp(path, "-") == 0) return AM_OK;
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        if (!S_ISDIR(facts.st_mode) && access(path, W_OK) == 0) return AM_OK;
        return am_fail(error, AM_ERROR_USAGE, path, "cannot be written: %s",
                       strerror(S_ISDIR(facts.st_mode) ? EISDIR : errno));
    }
    AmStatus status = file_writer_begin(&writer, path, error);
    file_writer_abandon(&writer);
    return status;
}

/* Compresses to one gzip member without a time stamp, so that equal content is equal bytes. */
static AmStatus compress_gzip(Buffer *out, const void *data, size_t length, AmError *error) {
    z_stream stream = {0};
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) !=
        Z_OK) {
        return am_fail_memory(error, SMALLEST_BUFFER);
    }
    AmStatus status = AM_OK;
    const unsigned char *next = data;
    size_t left = length;
    for (int code = Z_OK; code != Z_STREAM_END;) {
        TRY_OR_FAIL(buffer_reserve(out, SMALLEST_BUFFER, error));
        uInt part = (uInt)(left < (1u << 30) ? left : 1u << 30);
        size_t room = out->capacity - out->length - 1;
        stream.next_in = (unsigned char *)(uintptr_t)next;
        stream.avail_in = part;
        stream.next_out = (unsigned char *)out->data + out->length;
        stream.avail_out = (uInt)(room < (1u << 30) ? room : 1u << 30);
        code = deflate(&stream, part == left ? Z_FINISH : Z_NO_FLUSH);
        left -= part - stream.avail_in;
        next += part - stream.avail_in;
        out->length = (size_t)((char *)stream.next_out - out->data);
    }
fail:
    deflateEnd(&stream);
    return status;
}

static AmStatus compress_zstd(Buffer *out, const void *data, size_t length, AmError *error) {
    enum { LEVEL = 9 };
    TRY(buffer_reserve(out, ZSTD_compressBound(length), error));
    size_t written = ZSTD_compress(out->data, out->capacity - 1, data, length, LEVEL);
    if (ZSTD_isError(written)) return am_fail_memory(error, (int64_t)length);
    out->length = written;
    return AM_OK;
}

AmStatus file_write(const char *path, const void *data, size_t length, AmError *error) {
    Buffer packed = {0};
    FileWriter writer = {0};
    AmStatus status = AM_OK;
    if (has_suffix(path, ".gz")) TRY_OR_FAIL(compress_gzip(&packed, data, length, error));
    else if (has_suffix(path, ".zst")) TRY_OR_FAIL(compress_zstd(&packed, data, length, error));
    TRY_OR_FAIL(file_writer_begin(&writer, path, error));
    if (packed.data) TRY_OR_FAIL(file_writer_add(&writer, packed.data, packed.length, error));
    else TRY_OR_FAIL(file_writer_add(&writer, data, length, error));
    status = file_writer_commit(&writer, error);
fail:
    file_writer_abandon(&writer);
    free(packed.data);
    return status;
}
