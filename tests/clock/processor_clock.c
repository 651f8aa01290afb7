/* A module for LD_PRELOAD whose monotonic clock is the processor time of the process.
 *
 * A program with one thread then meets its time limits as on a machine of its own, however many others run
 * beside it: clock_gettime(CLOCK_MONOTONIC) gives 0.75 s after 0.75 s of work, also where that took 10 s.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock == CLOCK_MONOTONIC) clock = CLOCK_PROCESS_CPUTIME_ID;
    return (int)syscall(SYS_clock_gettime, clock, time);
}
