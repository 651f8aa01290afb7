/* The least of the limits of the machine, of the process's control groups and of the process itself.
 *
 * find_limit_of_system() keeps the limit of the files for some time, since each allocation of a rank needs
 * it.
 */
#define _DEFAULT_SOURCE
#include "base/system/memory_limit.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/system/cgroup.h"
#include "base/system/clock.h"

/* Seconds for which limits of the running system count as known. */
#define KNOWN_SECONDS 1.0

typedef struct LimitSearch {
    MemoryLimit limit;
    bool with_high; /* limits that stop a process for a time, too */
} LimitSearch;

static void lower(MemoryLimit *limit, int64_t bytes, const char *name) {
    if (bytes <= 0 || (limit->bytes > 0 && bytes >= limit->bytes)) return;
    *limit = (MemoryLimit){bytes, name};
}

/* Lowers the limit to those of one group; "max" is none. */
static void read_group(void *user, const char *root, const char *folder) {
    static const char *const names[] = {"memory.max", "memory.limit_in_bytes", "memory.high"};
    LimitSearch *search = user;
    char text[64];
    for (int k = 0; k < (search->with_high ? 3 : 2); k++) {
        unsigned long long bytes =
            cgroup_read(text, sizeof text, root, folder, names[k]) ? strtoull(text, NULL, 10) : 0;
        if (bytes < INT64_MAX) lower(&search->limit, (int64_t)bytes, "its control group");
    }
}

static MemoryLimit find_limit(const char *root, bool with_high) {
    LimitSearch search = {.limit = {.name = "this machine"}, .with_high = with_high};
    lower(&search.limit, (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE), "this machine");
    cgroup_visit(root, "memory", read_group, &search);
    return search.limit;
}

/* Finds the limit, or returns a recent one: each allocation of a rank needs it, and reading a dozen files
 * takes longer than a small step. */
static MemoryLimit find_limit_of_system(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static MemoryLimit known;
    static double since;
    pthread_mutex_lock(&mutex);
    double now = clock_seconds();
    if (!known.name || now > since + KNOWN_SECONDS) {
        known = find_limit("", true);
        since = now;
    }
    MemoryLimit limit = known;
    pthread_mutex_unlock(&mutex);
    return limit;
}

MemoryLimit memory_limit(const char *root) {
    static const int own[] = {RLIMIT_AS, RLIMIT_DATA};
    MemoryLimit limit = *root ? find_limit(root, true) : find_limit_of_system();
    for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
        struct rlimit of;
        if (getrlimit(own[k], &of) == 0 && of.rlim_cur != RLIM_INFINITY && of.rlim_cur < INT64_MAX)
            lower(&limit, (int64_t)of.rlim_cur, "the limit on address space");
    }
    return limit;
}

int64_t memory_limit_lasting(const char *root) {
    return find_limit(root, false).bytes;
}
