/* Files that must outlive a crash: written whole, brought to the disk, put in place by a rename.
 *
 * A name in a directory is on the disk only when the directory has been synchronised, and
 * a file's content only when the file has been. Every change goes through one table of
 * system calls, so that a test can make any of them fail. Errors are AM_ERROR_RUNTIME and
 * name the file and the cause.
 */
#ifndef BASE_FILES_DISK_H
#define BASE_FILES_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Calls of POSIX: a result below 0 is a failure, and errno has its cause. */
typedef struct DiskCalls {
    int (*open)(const char *path, int flags, int mode);
    int64_t (*write)(int file, const void *bytes, size_t count);
    int (*sync)(int file);
    int (*close)(int file);
    int (*rename)(const char *from, const char *to);
    int (*make_directory)(const char *path, int mode);
    int (*remove)(int folder, const char *name, bool is_directory); /* as unlinkat() */
} DiskCalls;

extern const DiskCalls disk_calls; /* the system's */

/* Creates or replaces the file, which is never one that a symbolic link names, and brings its content to the
 * disk. */
AmStatus disk_write_file(const DiskCalls *calls, const char *path, const void *bytes, int64_t count,
                         AmError *error);
/* Brings the names in a directory to the disk. */
AmStatus disk_sync_directory(const DiskCalls *calls, const char *path, AmError *error);
/* Makes a directory; an existing one is used, and a symbolic link to one only if `follows_link`. */
AmStatus disk_make_directory(const DiskCalls *calls, const char *path, bool follows_link, AmError *error);
AmStatus disk_rename(const DiskCalls *calls, const char *from, const char *to, AmError *error);
/* Removes a directory and the files in it (not directories in it), or a file or symbolic link; links are not
 * followed. A path that does not exist is removed already. */
AmStatus disk_remove(const DiskCalls *calls, const char *path, AmError *error);

#endif
