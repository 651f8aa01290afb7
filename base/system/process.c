/* Resident memory from /proc/self/statm, whose second number counts pages, and
 * its greatest value from getrusage(). Without stdio, which would allocate. */
#define _GNU_SOURCE
#include "base/system/process.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int64_t process_resident_bytes(void) {
    char text[128], *end;
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = '\0';
    strtoll(text, &end, 10);
    return (int64_t)strtoll(end, NULL, 10) * (int64_t)sysconf(_SC_PAGESIZE);
}

int64_t process_peak_resident_bytes(void) {
    struct rusage usage;
    int64_t peak = getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
    int64_t now = process_resident_bytes(); /* the system notes the peak now and then */
    return peak > now ? peak : now;
}

int32_t process_processors(void) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    int32_t count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
    if (count > 0) return count;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}
