/* The groups of the process in each hierarchy of control groups: the path from the folder of its group up to
 * the folder where the hierarchy is mounted.
 */
#define _GNU_SOURCE
#include "base/system/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LINE_ROOM = 2 * PATH_MAX, TYPE_ROOM = 64 };

typedef struct Hierarchy {
    const char *type;             /* of its file system */
    const char *controller;       /* of version 1; NULL in version 2 */
    char group[PATH_MAX];         /* of this process */
    char folder[PATH_MAX];        /* where it is mounted */
    char mounted_group[PATH_MAX]; /* the group that is mounted there */
} Hierarchy;

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

/* Finds a line "HIERARCHY:CONTROLLERS:PATH". */
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

/* Finds a line "ID PARENT DEVICE ROOT FOLDER OPTIONS... - TYPE SOURCE OPTIONS". */
static void find_mount(Hierarchy *self, const char *root) {
    char line[LINE_ROOM], type[TYPE_ROOM], options[LINE_ROOM];
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
    if (is_found) return;
    snprintf(self->mounted_group, sizeof self->mounted_group, "/");
    snprintf(self->folder, sizeof self->folder, "/sys/fs/cgroup%s%s", self->controller ? "/" : "",
             self->controller ? self->controller : "");
}

/* Visits the groups of one hierarchy, the process's own first. */
static void visit_hierarchy(const char *root, Hierarchy *self, CgroupVisit *visit, void *user) {
    if (!find_group(self, root)) return;
    find_mount(self, root);
    const char *group = self->group;
    size_t above = strcmp(self->mounted_group, "/") == 0 ? 0 : strlen(self->mounted_group);
    bool is_outside = above > 0 && (strncmp(group, self->mounted_group, above) != 0 ||
                                    (group[above] && group[above] != '/'));
    if (is_outside || strstr(group, "/..")) group = "/"; /* "/../x": beside the mounted root */
    else group += above;
    char folder[LINE_ROOM];
    snprintf(folder, sizeof folder, "%s%s", self->folder, group);
    size_t least = strlen(self->folder);
    for (;;) {
        visit(user, root, folder);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < least) return;
        *slash = '\0';
    }
}

void cgroup_visit(const char *root, const char *controller, CgroupVisit *visit, void *user) {
    visit_hierarchy(root, &(Hierarchy){.type = "cgroup2"}, visit, user);
    visit_hierarchy(root, &(Hierarchy){.type = "cgroup", .controller = controller}, visit, user);
}

bool cgroup_read(char *line, size_t room, const char *root, const char *folder, const char *name) {
    char path[LINE_ROOM];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = length > 0 && (size_t)length < sizeof path ? open_below(root, path) : NULL;
    bool is_read = file && fgets(line, (int)room, file) != NULL;
    if (file) fclose(file);
    if (is_read) line[strcspn(line, "\n")] = '\0';
    return is_read;
}
