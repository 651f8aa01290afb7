/* Files that must outlive a crash: written whole, brought to the disk, put in place by a rename.
 *
 * A name in a directory is on the disk only when the directory has been synchronised, and
 * a file's content only when the file has been. Every change goes through one table of
 * system calls, so that a test can make any of them fail. Errors are AM_ERROR_RUNTIME and
 * name the file and the cause.
 */
#ifndef BASE_DISK_H
#define BASE_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* As POSIX has them: below 0 is a failure, errno its cause. */
typedef struct DiskCalls {
    int (*open)(const char *path, int flags, int mode);
    int64_t (*write)(int file, const void *bytes, size_t count);
    int (*sync)(int file);
    int (*close)(int file);
    int (*rename)(const char *from, const char *to);
    int (*make_directory)(const char *path, int mode);
    int (*remove_file)(const char *path);
    int (*remove_directory)(const char *path);
} DiskCalls;

extern const DiskCalls disk_calls; /* the system's */

/* Creates or replaces the file and brings its content to the disk. */
AmStatus disk_write_file(const DiskCalls *calls, const char *path, const void *bytes, int64_t count,
                         AmError *error);
/* Brings the names in a directory to the disk. */
AmStatus disk_sync_directory(const DiskCalls *calls, const char *path, AmError *error);
/* One that is there already is taken as it is. */
AmStatus disk_make_directory(const DiskCalls *calls, const char *path, AmError *error);
AmStatus disk_rename(const DiskCalls *calls, const char *from, const char *to, AmError *error);
/* A directory and the files in it (not directories in it). What is not there is removed already. */
AmStatus disk_remove(const DiskCalls *calls, const char *path, AmError *error);

#endif
