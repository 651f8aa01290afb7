/* Files that outlive a crash: written as a whole, synchronised, and put in place by a rename.
 *
 * All changes go through DiskCalls; `disk_calls` has those of the system, and tests have tables that fail.
 */
#define _XOPEN_SOURCE 700
#include "base/files/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The system writes at most about 2 GiB at once. */
enum { MOST_AT_ONCE = 1 << 26 };

static int open_system(const char *path, int flags, int mode) {
    return open(path, flags | O_CLOEXEC, (mode_t)mode);
}

static int64_t write_system(int file, const void *bytes, size_t count) {
    return write(file, bytes, count);
}

static int make_directory_system(const char *path, int mode) {
    return mkdir(path, (mode_t)mode);
}

static int remove_system(int folder, const char *name, bool is_directory) {
    return unlinkat(folder, name, is_directory ? AT_REMOVEDIR : 0);
}

const DiskCalls disk_calls = {open_system, write_system,          fsync,        close,
                              rename,      make_directory_system, remove_system};

static AmStatus fail(AmError *error, const char *path, const char *what) {
    return am_fail(error, AM_ERROR_RUNTIME, path, "cannot be %s: %s", what, strerror(errno));
}

AmStatus disk_write_file(const DiskCalls *calls, const char *path, const void *bytes, int64_t count,
                         AmError *error) {
    enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW };
    int file = calls->open(path, FLAGS, 0666);
    if (file < 0 && errno == EEXIST && calls->remove(AT_FDCWD, path, false) == 0)
        file = calls->open(path, FLAGS, 0666);
    if (file < 0) return fail(error, path, "created");
    AmStatus status = AM_OK;
    for (int64_t done = 0; done < count;) {
        int64_t some = count - done < MOST_AT_ONCE ? count - done : MOST_AT_ONCE;
        int64_t written = calls->write(file, (const char *)bytes + done, (size_t)some);
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = EIO; /* it would be tried for ever */
        if (written <= 0) TRY_OR_FAIL(fail(error, path, "written"));
        done += written;
    }
    if (calls->sync(file) < 0) status = fail(error, path, "brought to the disk");
fail:
    if (calls->close(file) < 0 && status == AM_OK) status = fail(error, path, "written");
    return status;
}

AmStatus disk_sync_directory(const DiskCalls *calls, const char *path, AmError *error) {
    int file = calls->open(path, O_RDONLY | O_DIRECTORY, 0);
    if (file < 0) return fail(error, path, "opened");
    AmStatus status = calls->sync(file) < 0 ? fail(error, path, "brought to the disk") : AM_OK;
    if (calls->close(file) < 0 && status == AM_OK) status = fail(error, path, "brought to the disk");
    return status;
}

AmStatus disk_make_directory(const DiskCalls *calls, const char *path, bool follows_link, AmError *error) {
    struct stat facts;
    if (calls->make_directory(path, 0777) == 0) return AM_OK;
    int cause = errno;
    if ((follows_link ? stat(path, &facts) : lstat(path, &facts)) == 0 && S_ISDIR(facts.st_mode))
        return AM_OK;
    if (cause == EEXIST) return am_fail(error, AM_ERROR_RUNTIME, path, "is a file, expected a folder");
    errno = cause;
    return fail(error, path, "created");
}

AmStatus disk_rename(const DiskCalls *calls, const char *from, const char *to, AmError *error) {
    return calls->rename(from, to) < 0 ? fail(error, to, "put in place") : AM_OK;
}

/* Removes the files of an open directory, and closes it. */
static AmStatus remove_files(const DiskCalls *calls, int folder, const char *path, AmError *error) {
    AmStatus status = AM_OK;
    DIR *directory = fdopendir(folder);
    if (!directory) {
        status = fail(error, path, "removed");
        close(folder);
        return status;
    }
    for (struct dirent *entry; status == AM_OK && (entry = readdir(directory));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (calls->remove(folder, entry->d_name, false) == 0 || errno == ENOENT) continue;
        char name[4096];
        int cause = errno;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        errno = cause;
        status = fail(error, name, "removed");
    }
    closedir(directory);
    return status;
}

AmStatus disk_remove(const DiskCalls *calls, const char *path, AmError *error) {
    struct stat facts;
    if (lstat(path, &facts) != 0) return errno == ENOENT ? AM_OK : fail(error, path, "removed");
    bool is_directory = S_ISDIR(facts.st_mode);
    if (is_directory) {
        int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder < 0) return errno == ENOENT ? AM_OK : fail(error, path, "removed");
        TRY(remove_files(calls, folder, path, error));
    }
    if (calls->remove(AT_FDCWD, path, is_directory) == 0 || errno == ENOENT) return AM_OK;
    return fail(error, path, "removed");
}
