/* SpinWait: the time for which a thread polls for an event of another thread before it sleeps.
 *
 * Waking a sleeping thread takes 10 to 100 us if the processor sleeps too, as long as the
 * computation of a small model between two rendezvous; and it varies more than any other part of a
 * step. A waiting thread therefore polls for `spins` rounds, then for SPIN_WAIT_SECONDS more,
 * yielding the processor each time, and only then sleeps: after so long a wait the cost of waking
 * is small. If threads share processors `spins` is 0: the waiting thread yields at once to the
 * thread for which it waits.
 *
 *     for (SpinWait wait = spin_wait_begin(spins); spin_wait_lasts(&wait);)
 *         if (it is there) return;
 *     sleep
 */
#ifndef EXECUTOR_ACTORS_SPIN_WAIT_H
#define EXECUTOR_ACTORS_SPIN_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_WAIT_SECONDS 2e-3

typedef struct SpinWait {
    int32_t spins, rounds;
    double end; /* of offering the processor; clock_seconds() */
} SpinWait;

static inline SpinWait spin_wait_begin(int32_t spins) {
    return (SpinWait){.spins = spins};
}

/* Passes a moment, but for the first time. False: it is time to sleep. */
bool spin_wait_lasts(SpinWait *self);

#endif
