/* Patience: how long a thread looks again and again for what another one is about to do,
 * before it sleeps.
 *
 * To wake a thread that sleeps takes 10 to 100 us where the processor has gone to
 * sleep too, as long as what a step of a small model computes between two meetings; and it
 * varies more than anything else in a step. So who waits looks first for `spins` rounds, while
 * its processor does nothing else, then for PATIENCE_SECONDS more, offering the processor to
 * others each time, and only then sleeps: who has waited for so long loses little
 * by being woken. Where threads share processors `spins` is 0: the one that waits makes room
 * at once for the one that it waits for.
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
