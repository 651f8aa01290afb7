/* The machine from /proc/cpuinfo, the affinity mask, sysconf() and control groups (base/system/cgroup.h).
 *
 * A limit of a group holds for all groups below it, so the least one on the way to the root counts:
 *
 *   version 2  cpu.max "150000 100000" or "max 100000"
 *   version 1  cpu.cfs_quota_us (-1: none), cpu.cfs_period_us
 */
#define _DEFAULT_SOURCE
#include "base/system/machine.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/system/cgroup.h"
#include "base/system/cpu_features.h"
#include "base/system/memory_limit.h"
#include "base/system/process.h"

enum { LONGEST_PATH = 4096, LONGEST_LINE = 4096 };

/* Lowers the processors, a double, to the quota of one group. */
static void read_quota(void *user, const char *root, const char *folder) {
    double *processors = user, quota = 0, period = 0;
    char line[LONGEST_LINE];
    bool has_quota = cgroup_read(line, sizeof line, root, folder, "cpu.max") &&
                     sscanf(line, "%lf %lf", &quota, &period) == 2;
    if (!has_quota)
        has_quota = cgroup_read(line, sizeof line, root, folder, "cpu.cfs_quota_us") &&
                    sscanf(line, "%lf", &quota) == 1 &&
                    cgroup_read(line, sizeof line, root, folder, "cpu.cfs_period_us") &&
                    sscanf(line, "%lf", &period) == 1;
    if (has_quota && quota > 0 && period > 0) *processors = fmin(*processors, quota / period);
}

/* Counts the usable processors. A quota of 1.5 processors keeps two of them busy three quarters of the
 * time. */
static int32_t count_processors(const char *root) {
    int32_t count = process_processors();
    double most = INFINITY;
    cgroup_visit(root, "cpu", read_quota, &most);
    most = ceil(most);
    return most < count ? (most < 1 ? 1 : (int32_t)most) : count;
}

static int64_t count_memory(const char *root) {
    static const int64_t unit = (int64_t)1 << 20;
    int64_t units = memory_limit_lasting(root) / unit;
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
    *machine = (Machine){.processors = count_processors(root), .memory_bytes = count_memory(root)};
    find_processor(machine->processor, root);
    snprintf(machine->vectors, sizeof machine->vectors, "%s",
             cpu_has_avx512() ? "avx512"
             : cpu_has_avx2() ? "avx2"
                              : "none");
    snprintf(machine->blas, sizeof machine->blas, "%.150s, %.80s", openblas_get_config(),
             openblas_get_corename());
}

int32_t machine_processors(void) {
    return count_processors("");
}

int64_t machine_memory(void) {
    int64_t all = count_memory(""), usable = memory_limit("").bytes;
    return usable > 0 && usable < all ? usable : all;
}
