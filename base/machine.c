/* The machine from /proc/cpuinfo, the affinity mask, sysconf() and control groups.
 *
 * /proc/self/cgroup has one line per hierarchy: "0::/a/b" (version 2), "4:cpu,cpuacct:/a/b" (version 1). A
 * limit of a group holds for all groups below it, so the least one on the way to the root counts:
 *
 *   version 2  cpu.max "150000 100000" or "max 100000", memory.max "4294967296" or "max"
 *   version 1  cpu.cfs_quota_us (-1: none), cpu.cfs_period_us, memory.limit_in_bytes
 */
#define _DEFAULT_SOURCE
#include "base/machine.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cpu_features.h"
#include "base/memory_limit.h"
#include "base/process.h"

enum { LONGEST_PATH = 4096, LONGEST_LINE = 4096 };

typedef struct Limits {
    double processors;
    double memory_bytes;
} Limits;

/* Reads the first line of a file below `root`. Returns false where it is missing or empty. */
static bool read_line(char line[LONGEST_LINE], const char *root, const char *path) {
    char full[2 * LONGEST_PATH];
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *file = fopen(full, "re");
    if (!file) return false;
    bool found = fgets(line, LONGEST_LINE, file) != NULL;
    fclose(file);
    return found;
}

/* Lowers the limits to those of one group; `folder` is a group's own. */
static void read_group(Limits *limits, const char *root, const char *folder) {
    char path[LONGEST_PATH + 32], line[LONGEST_LINE];
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    bool has_quota = read_line(line, root, path) && sscanf(line, "%lf %lf", &quota, &period) == 2;
    if (!has_quota) {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        has_quota = read_line(line, root, path) && sscanf(line, "%lf", &quota) == 1;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        has_quota = has_quota && read_line(line, root, path) && sscanf(line, "%lf", &period) == 1;
    }
    if (has_quota && quota > 0 && period > 0) limits->processors = fmin(limits->processors, quota / period);
    static const char *const memory[] = {"memory.max", "memory.limit_in_bytes"};
    for (int k = 0; k < 2; k++) {
        double bytes;
        snprintf(path, sizeof path, "%s/%s", folder, memory[k]);
        if (read_line(line, root, path) && sscanf(line, "%lf", &bytes) == 1 && bytes > 0)
            limits->memory_bytes = fmin(limits->memory_bytes, bytes);
    }
}

/* Returns true if a list such as "cpu,cpuacct" has the name. */
static bool has_controller(const char *list, const char *name) {
    size_t length = strlen(name);
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strncmp(list, name, length) == 0 && (list[length] == ',' || list[length] == '\0')) return true;
    return false;
}

/* Reads one line of /proc/self/cgroup and the limits of that group and of all above it. */
static void read_hierarchy(Limits *limits, const char *root, char *line) {
    line[strcspn(line, "\n")] = '\0';
    char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
    if (!group) return;
    *group++ = '\0';
    list++;
    const char *mount = *list == '\0'                    ? "/sys/fs/cgroup"
                        : has_controller(list, "cpu")    ? "/sys/fs/cgroup/cpu"
                        : has_controller(list, "memory") ? "/sys/fs/cgroup/memory"
                                                         : NULL;
    if (!mount || strstr(group, "..")) return;
    char folder[LONGEST_PATH];
    int length = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (length < 0 || (size_t)length >= sizeof folder) return;
    while (strlen(folder) >= strlen(mount)) {
        read_group(limits, root, folder);
        char *slash = strrchr(folder, '/');
        if (!slash) break;
        *slash = '\0';
    }
}

static Limits find_limits(const char *root) {
    Limits limits = {.processors = INFINITY, .memory_bytes = INFINITY};
    char path[LONGEST_PATH], line[LONGEST_LINE];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) read_hierarchy(&limits, root, line);
    if (file) fclose(file);
    return limits;
}

/* A quota of 1.5 processors keeps two of them busy three quarters of the time. */
static int32_t count_processors(const Limits *limits) {
    int32_t count = process_processors();
    double most = ceil(limits->processors);
    return most < count ? (most < 1 ? 1 : (int32_t)most) : count;
}

static int64_t count_memory(const Limits *limits) {
    static const int64_t unit = (int64_t)1 << 20;
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    int64_t units = (int64_t)(fmin(bytes, limits->memory_bytes) / (double)unit);
    return (units < 1 ? 1 : units) * unit;
}

static void find_processor(char name[128], const char *root) {
    char path[LONGEST_PATH], line[LONGEST_LINE];
    struct utsname system;
    snprintf(name, 128, "%s", uname(&system) == 0 ? system.machine : "unknown");
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(name, 128, "%.*s", (int)strcspn(value, "\r\n"), value);
        break;
    }
    if (file) fclose(file);
    for (char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~') *c = '?';
}

void machine_find(Machine *machine, const char *root) {
    Limits limits = find_limits(root);
    *machine = (Machine){.processors = count_processors(&limits), .memory_bytes = count_memory(&limits)};
    find_processor(machine->processor, root);
    snprintf(machine->vectors, sizeof machine->vectors, "%s",
             cpu_has_avx512() ? "avx512"
             : cpu_has_avx2() ? "avx2"
                              : "none");
    snprintf(machine->blas, sizeof machine->blas, "%.150s, %.80s", openblas_get_config(),
             openblas_get_corename());
}

int32_t machine_processors(void) {
    Limits limits = find_limits("");
    return count_processors(&limits);
}

int64_t machine_memory(void) {
    Limits limits = find_limits("");
    int64_t all = count_memory(&limits), usable = memory_limit("").bytes;
    return usable > 0 && usable < all ? usable : all;
}
