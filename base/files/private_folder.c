/* The check is made on the open folder, and openat() with O_NOFOLLOW opens its files. So a link planted
 * between a check and its use has no effect.
 */
#define _GNU_SOURCE
#include "base/files/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char PRIVATE_FOLDER_MISSING[] = "does not exist";

/* Makes the folder and those above it; a failure shows when it is opened. */
static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

const char *private_folder_open(int *folder, char *path, bool creates) {
    struct stat facts;
    const char *problem = NULL;
    if (creates) make_folders(path);
    *folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*folder < 0)
        return errno == ENOENT                      ? PRIVATE_FOLDER_MISSING
               : errno == ELOOP || errno == ENOTDIR ? "is not a folder"
                                                    : "cannot be opened";
    if (fstat(*folder, &facts) != 0) problem = "cannot be examined";
    else if (facts.st_uid != geteuid()) problem = "belongs to another user";
    else if (facts.st_mode & (S_IWGRP | S_IWOTH)) problem = "is writable by other users";
    if (!problem) return NULL;
    close(*folder);
    *folder = -1;
    return problem;
}

const char *private_folder_make(char *path) {
    int folder;
    const char *problem = private_folder_open(&folder, path, true);
    if (folder >= 0) close(folder);
    return problem;
}

bool private_folder_cache(char *path, size_t bytes) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = cache && cache[0] == '/' ? snprintf(path, bytes, "%s", cache)
                 : home && home[0] == '/' ? snprintf(path, bytes, "%s/.cache", home)
                                          : -1;
    return length > 0 && (size_t)length < bytes;
}

const char *private_file_read(char **text, size_t *length, int folder, const char *name, int64_t most) {
    struct stat facts;
    *text = NULL;
    *length = 0;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return errno == ENOENT ? NULL : errno == ELOOP ? "is a link" : strerror(errno);
    const char *problem = NULL;
    if (fstat(file, &facts) != 0) problem = strerror(errno);
    else if (!S_ISREG(facts.st_mode)) problem = "is not a regular file";
    else if (facts.st_uid != geteuid()) problem = "belongs to another user";
    else if (facts.st_size > most) problem = "is too large";
    else if (!(*text = malloc((size_t)facts.st_size + 1))) problem = "does not fit into memory";
    while (!problem && *length < (size_t)facts.st_size) {
        ssize_t got = read(file, *text + *length, (size_t)facts.st_size - *length);
        if (got < 0 && errno != EINTR) problem = strerror(errno);
        if (got == 0) break;
        if (got > 0) *length += (size_t)got;
    }
    close(file);
    if (*text) (*text)[*length] = '\0';
    return problem;
}

int private_file_replace(int folder, const char *name, const char *text, size_t length) {
    char path[256];
    if (snprintf(path, sizeof path, "%s.%ld", name, (long)getpid()) >= (int)sizeof path) return ENAMETOOLONG;
    (void)unlinkat(folder, path, 0); /* of a process of that number that was killed */
    int file = openat(folder, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int problem = file < 0 ? errno : 0;
    for (size_t done = 0; !problem && done < length;) {
        ssize_t count = write(file, text + done, length - done);
        if (count < 0 && errno != EINTR) problem = errno;
        if (count > 0) done += (size_t)count;
    }
    if (file >= 0 && close(file) != 0 && !problem) problem = errno;
    if (!problem && renameat(folder, path, folder, name) != 0) problem = errno;
    if (problem && file >= 0) unlinkat(folder, path, 0);
    return problem;
}
