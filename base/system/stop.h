/* When a search is to come to an end: the user interrupts it, or its time is up. */
#ifndef BASE_SYSTEM_STOP_H
#define BASE_SYSTEM_STOP_H

#include <signal.h>
#include <stdbool.h>

#include "base/system/clock.h"

typedef struct StopSignal {
    const volatile sig_atomic_t *interrupted; /* or NULL */
    double deadline;                          /* clock_seconds(), or 0 */
} StopSignal;

/* Returns whether a flag is set, which a signal handler or any thread may set; NULL: never. */
static inline bool stop_flag_is_set(const volatile sig_atomic_t *flag) {
    return flag && __atomic_load_n(flag, __ATOMIC_RELAXED);
}

static inline void stop_flag_set(volatile sig_atomic_t *flag) {
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}

static inline bool stop_wanted(const StopSignal *stop) {
    if (stop_flag_is_set(stop->interrupted)) return true;
    return stop->deadline > 0 && clock_seconds() > stop->deadline;
}

#endif
