/* Reads a file part by part, by position, from any thread.
 *
 * Each read compares the length of the file with that at its opening; a difference is an error.
 * file_parts_make() opens an empty private file instead, for data that does not fit into memory.
 */
#define _GNU_SOURCE /* memfd_create */
#include "base/files/file_part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The largest temporary file in memory; larger ones go to disk. */
static const int64_t BYTES_IN_MEMORY = (int64_t)16 << 20;

AmStatus file_parts_open(FileParts *file, const char *path, AmError *error) {
    struct stat facts;
    *file = (FileParts){.descriptor = -1, .path = path};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &facts) != 0) {
        int cause = errno;
        if (descriptor >= 0) close(descriptor);
        return am_fail_system(error, AM_ERROR_INPUT, path, cause, "cannot be opened");
    }
    if (!S_ISREG(facts.st_mode)) {
        close(descriptor);
        return am_fail(error, AM_ERROR_INPUT, path, "is not a regular file");
    }
    file->descriptor = descriptor;
    file->bytes = (int64_t)facts.st_size;
    return AM_OK;
}

static int make_on_disk(void) {
    const char *folder = getenv("TMPDIR");
    char name[512];
    int length = snprintf(name, sizeof name, "%s/automap-XXXXXX", folder && *folder ? folder : "/tmp");
    if (length < 0 || (size_t)length >= sizeof name) return -1;
    int descriptor = mkostemp(name, O_CLOEXEC);
    if (descriptor >= 0) unlink(name);
    return descriptor;
}

AmStatus file_parts_make(FileParts *file, const char *path, int64_t bytes, AmError *error) {
    bool in_memory = bytes <= BYTES_IN_MEMORY;
    *file = (FileParts){.descriptor = in_memory ? memfd_create("automap", MFD_CLOEXEC) : make_on_disk(),
                        .path = path};
    if (file->descriptor >= 0) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, path, "%" PRId64 " bytes of it cannot be unpacked %s: %s", bytes,
                   in_memory ? "in memory" : "in TMPDIR or /tmp", strerror(errno));
}

AmStatus file_parts_add(FileParts *file, const void *data, int64_t bytes, AmError *error) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = write(file->descriptor, at, (size_t)bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0)
            return am_fail(error, AM_ERROR_RUNTIME, file->path, "cannot be unpacked: %s", strerror(errno));
        at += written;
        bytes -= written;
        file->bytes += written;
    }
    return AM_OK;
}

void file_parts_close(FileParts *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    file->descriptor = -1;
}

AmStatus file_parts_read(const FileParts *file, int64_t place, int64_t count, void *data, AmError *error) {
    char *at = data;
    struct stat facts;
    if (fstat(file->descriptor, &facts) == 0 && (int64_t)facts.st_size != file->bytes)
        return am_fail(error, AM_ERROR_RUNTIME, file->path,
                       "has changed while it was read: it had %" PRId64 " bytes and has %" PRId64,
                       file->bytes, (int64_t)facts.st_size);
    while (count > 0) {
        ssize_t got = pread(file->descriptor, at, (size_t)count, (off_t)place);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return am_fail(error, AM_ERROR_RUNTIME, file->path, "byte %" PRId64 ": cannot be read: %s", place,
                           got == 0 ? "the file ends here" : strerror(errno));
        at += got;
        place += got;
        count -= got;
    }
    return AM_OK;
}
