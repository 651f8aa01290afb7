/* Permutations that are computed, not stored: where place `index` of 0 .. count-1 goes.
 *
 * Swap-or-not (Hoang, Morris and Rogaway, "An enciphering scheme based on a card
 * shuffle", CRYPTO 2012): a round draws K below count and pairs every x with
 * K - x mod count; one random bit for each pair says whether its two members
 * change places. It works on any count, not on powers of two alone. The bits come
 * from a counter (random.h), so the same key gives the same permutation everywhere.
 */
#ifndef BASE_PERMUTATION_H
#define BASE_PERMUTATION_H

#include <stdint.h>

enum { PERMUTATION_MAX_ROUNDS = 410 };

typedef struct Permutation {
    int64_t count;
    uint64_t key;
    int32_t rounds;
    int64_t pairings[PERMUTATION_MAX_ROUNDS]; /* K of each round */
} Permutation;

/* Creates the permutation number `stream` under `seed`; count >= 0. */
void permutation_begin(Permutation *permutation, int64_t count, uint64_t seed, uint64_t stream);
/* Returns the number at a place; index in [0, count). */
int64_t permutation_at(const Permutation *permutation, int64_t index);

#endif
