/* SpinWait: the time for which a thread polls for an event of another thread before it sleeps. The clock is
 * read once in several rounds, since reading it takes as long as a round. */
#include "executor/actors/spin_wait.h"

#include <sched.h>

#include "base/system/clock.h"

enum { ROUNDS_A_CLOCK = 8 };

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool spin_wait_lasts(SpinWait *self) {
    int32_t round = self->rounds++;
    if (round == 0) return true;
    if (round <= self->spins) {
        pause_briefly();
        return true;
    }
    if ((round - self->spins) % ROUNDS_A_CLOCK == 1) {
        double now = clock_seconds();
        if (self->end == 0) self->end = now + SPIN_WAIT_SECONDS;
        if (now > self->end) return false;
    }
    sched_yield();
    return true;
}
