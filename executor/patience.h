/* Patience: the time for which a thread polls for an event of another thread before it sleeps.
 *
 * Waking a sleeping thread takes 10 to 100 us if the processor sleeps too, as long as the
 * computation of a small model between two meetings; and it varies more than any other part of a
 * step. A waiting thread therefore polls for `spins` rounds, then for PATIENCE_SECONDS more,
 * yielding the processor each time, and only then sleeps: after so long a wait the cost of waking
 * is small. If threads share processors `spins` is 0: the waiting thread yields at once to the
 * thread for which it waits.
 *
 *     for (Patience patience = patience_begin(spins); patience_lasts(&patience);)
 *         if (it is there) return;
 *     sleep
 */
#ifndef EXECUTOR_PATIENCE_H
#define EXECUTOR_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#define PATIENCE_SECONDS 2e-3

typedef struct Patience {
    int32_t spins, rounds;
    double end; /* of offering the processor; clock_seconds() */
} Patience;

static inline Patience patience_begin(int32_t spins) {
    return (Patience){.spins = spins};
}

/* Passes a moment, but for the first time. False: it is time to sleep. */
bool patience_lasts(Patience *self);

#endif
