/* Time: CLOCK_MONOTONIC never jumps, so differences of it are durations. */
#define _POSIX_C_SOURCE 200809L
#include "base/system/clock.h"

#include <time.h>

static double seconds_of(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now) != 0) return 0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double clock_seconds(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

double clock_cpu_seconds(void) {
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

double clock_thread_seconds(void) {
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}
