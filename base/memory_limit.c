/* Limits on memory, read from /proc and /sys.
 *
 * /proc/self/cgroup has a line HIERARCHY:CONTROLLERS:PATH per hierarchy: "0::/a/b" is version 2, a line with
 * the controller "memory" version 1. /proc/self/mountinfo has the folder where a hierarchy is mounted, and
 * the group that is its root there: in a container the group's path may lie above that root, and the mounted
 * root is then the group itself.
 */
#define _GNU_SOURCE
#include "base/memory_limit.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LINE_ROOM = 2 * PATH_MAX, TEXT_ROOM = 64 };

typedef struct Hierarchy {
    const char *type;             /* of its file system */
    const char *controller;       /* among its options in version 1, NULL in version 2 */
    const char *const *files;     /* with limits, NULL-ended */
    char group[PATH_MAX];         /* of this process */
    char folder[PATH_MAX];        /* where it is mounted */
    char mounted_group[PATH_MAX]; /* the group that is mounted there */
} Hierarchy;

static void lower(MemoryLimit *limit, int64_t bytes, const char *name) {
    if (bytes <= 0 || (limit->bytes > 0 && bytes >= limit->bytes)) return;
    *limit = (MemoryLimit){bytes, name};
}

/* Returns true if a comma-separated list has the word. */
static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; *at;) {
        size_t count = strcspn(at, ",");
        if (count == length && strncmp(at, word, length) == 0) return true;
        at += count + (at[count] == ',');
    }
    return false;
}

static FILE *open_below(const char *root, const char *path) {
    char name[LINE_ROOM];
    int length = snprintf(name, sizeof name, "%s%s", root, path);
    return length > 0 && (size_t)length < sizeof name ? fopen(name, "re") : NULL;
}

/* "HIERARCHY:CONTROLLERS:PATH". */
static bool find_group(Hierarchy *self, const char *root) {
    char line[LINE_ROOM];
    FILE *file = open_below(root, "/proc/self/cgroup");
    bool is_found = false;
    while (file && !is_found && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *controllers++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        is_found = self->controller ? has_word(controllers, self->controller) : !*controllers;
        if (is_found) snprintf(self->group, sizeof self->group, "%s", path);
    }
    if (file) fclose(file);
    return is_found;
}

/* "ID PARENT DEVICE ROOT FOLDER OPTIONS... - TYPE SOURCE OPTIONS". */
static bool find_mount(Hierarchy *self, const char *root) {
    char line[LINE_ROOM], type[TEXT_ROOM], options[LINE_ROOM];
    FILE *file = open_below(root, "/proc/self/mountinfo");
    bool is_found = false;
    while (file && !is_found && fgets(line, sizeof line, file)) {
        const char *end = strstr(line, " - ");
        if (!end || sscanf(end, " - %63s %*s %8191s", type, options) != 2) continue;
        if (sscanf(line, "%*s %*s %*s %4095s %4095s", self->mounted_group, self->folder) != 2) continue;
        is_found =
            strcmp(type, self->type) == 0 && (!self->controller || has_word(options, self->controller));
    }
    if (file) fclose(file);
    return is_found;
}

/* Returns the number in FOLDER/FILE; 0 without a file or for "max". */
static int64_t read_limit(const char *root, const char *folder, const char *name) {
    char path[LINE_ROOM], text[TEXT_ROOM] = "";
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = length > 0 && (size_t)length < sizeof path ? open_below(root, path) : NULL;
    bool is_read = file && fgets(text, sizeof text, file);
    if (file) fclose(file);
    unsigned long long number = is_read ? strtoull(text, NULL, 10) : 0;
    return number < INT64_MAX ? (int64_t)number : 0;
}

/* The limits of the group and of all above it. */
static void apply(MemoryLimit *limit, Hierarchy *self, const char *root) {
    if (!find_group(self, root) || !find_mount(self, root)) return;
    const char *group = self->group;
    size_t above = strcmp(self->mounted_group, "/") == 0 ? 0 : strlen(self->mounted_group);
    if (above > 0 &&
        (strncmp(group, self->mounted_group, above) != 0 || (group[above] && group[above] != '/')))
        group = "/";
    else group += above;
    char folder[LINE_ROOM];
    snprintf(folder, sizeof folder, "%s%s", self->folder, group);
    size_t least = strlen(self->folder);
    for (;;) {
        for (const char *const *name = self->files; *name; name++)
            lower(limit, read_limit(root, folder, *name), "its control group");
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < least) return;
        *slash = '\0';
    }
}

MemoryLimit memory_limit(const char *root) {
    static const char *const files_1[] = {"memory.limit_in_bytes", NULL};
    static const char *const files_2[] = {"memory.max", "memory.high", NULL};
    static const int own[] = {RLIMIT_AS, RLIMIT_DATA};
    MemoryLimit limit = {.name = "this machine"};
    lower(&limit, (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE), "this machine");
    apply(&limit, &(Hierarchy){.type = "cgroup2", .files = files_2}, root);
    apply(&limit, &(Hierarchy){.type = "cgroup", .controller = "memory", .files = files_1}, root);
    for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
        struct rlimit of;
        if (getrlimit(own[k], &of) == 0 && of.rlim_cur != RLIM_INFINITY && of.rlim_cur < INT64_MAX)
            lower(&limit, (int64_t)of.rlim_cur, "the limit on address space");
    }
    return limit;
}
