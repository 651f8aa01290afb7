/* The check is made on the open folder, so that nothing can take its place between the checks. */
#define _GNU_SOURCE
#include "base/files/private_folder.h"

#include <errno.h>
#include <fcntl.h>
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
