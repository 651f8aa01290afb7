/* Two kinds of random numbers, equal on every machine.
 *
 * Random is a sequential generator (xoshiro256++ seeded by splitmix64) for searches. random_at() is
 * counter-based: the value of element `index` of stream `stream` under `seed`, independent of the
 * order of calls, so that a sharded tensor draws the same values as an unsharded one.
 */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

typedef struct Random {
    uint64_t state[4];
} Random;

/* Begins a generator with a state (xoshiro256). */
void random_seed(Random *random, uint64_t seed);
uint64_t random_bits(Random *random);
double random_uniform(Random *random);               /* [0, 1) */
int64_t random_below(Random *random, int64_t bound); /* [0, bound), unbiased */
double random_normal(Random *random);                /* mean 0, deviation 1 */
double random_gumbel(Random *random);                /* standard Gumbel distribution */

/* Returns number `index` of a stream, without a state: equal arguments give equal numbers on any thread. */
uint64_t random_at(uint64_t seed, uint64_t stream, uint64_t index);
double random_uniform_at(uint64_t seed, uint64_t stream, uint64_t index);
double random_normal_at(uint64_t seed, uint64_t stream, uint64_t index);

#endif
