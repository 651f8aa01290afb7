/* Simulated time: picoseconds, and the event that brought a moment about.
 *
 * Durations are rounded to picoseconds once, when they are priced. Sums of integers are
 * exact in a double up to 2^53 ps (two and a half hours). A simulation may therefore add
 * several steps as one number: the result is that of adding them one by one, bit for bit.
 * Longer times lose their last digits.
 */
#ifndef COST_STEP_MOMENT_H
#define COST_STEP_MOMENT_H

#include <math.h>
#include <stdint.h>

#define TICKS_PER_SECOND 1e12

/* Whole picoseconds. */
typedef double Ticks;

static inline Ticks ticks_of_seconds(double seconds) {
    return rint(seconds * TICKS_PER_SECOND);
}
static inline double seconds_of_ticks(Ticks ticks) {
    return ticks / TICKS_PER_SECOND;
}

/* A time since the step began. */
typedef struct Moment {
    Ticks at;
    int32_t event; /* of a record (critical_path.h), ends at that time; -1: none */
} Moment;

static const Moment MOMENT_BEGIN = {0, -1};

static inline Moment moment_later(Moment a, Moment b) {
    return b.at > a.at ? b : a;
}
static inline Moment moment_after(Moment start, Ticks duration, int32_t event) {
    return (Moment){start.at + duration, event};
}

#endif
