/* The check is made on the open folder, so that nothing can take its place between the checks. */
#define _GNU_SOURCE
#include "base/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *private_folder_make(char *path) {
    struct stat facts;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700); /* the last one decides */
        *slash = '/';
    }
    mkdir(path, 0700);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return errno == ELOOP || errno == ENOTDIR ? "is not a folder" : "cannot be opened";
    bool is_known = fstat(folder, &facts) == 0;
    close(folder);
    if (!is_known) return "cannot be examined";
    if (facts.st_uid != geteuid()) return "belongs to another user";
    return facts.st_mode & 077 ? "is open to other users (expected mode 0700)" : NULL;
}
