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

static inline bool stop_wanted(const StopSignal *stop) {
    if (stop->interrupted && *stop->interrupted) return true;
    return stop->deadline > 0 && clock_seconds() > stop->deadline;
}

#endif
