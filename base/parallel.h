/* Running independent tasks on several threads. */
#ifndef BASE_PARALLEL_H
#define BASE_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

/* How many threads work at most: what the environment variable AUTOMAP_THREADS says, else one per processor.
 */
int32_t parallel_threads(void);
/* Returns whether AUTOMAP_THREADS is a number of threads, or not set; what is neither is as if it were not
 * set. */
bool parallel_threads_are_valid(void);

/* Calls task(user, k) for every k in [0, count), each once, on at most
 * `threads` threads (0: parallel_threads()). Tasks are taken in order. What a
 * task does must not depend on which thread does it. Where no thread can be
 * had, the caller does all. Returns when all are done. */
void parallel_for(int32_t count, int32_t threads, void (*task)(void *user, int32_t k), void *user);

#endif
