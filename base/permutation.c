/* A permutation of 0 .. N - 1 without a table, by the swap-or-not shuffle.
 *
 * For r rounds and q queries, the authors' bound falls by a factor of (q + N) / 2N, to the power
 * r / 2. There are 6 log2 N rounds, and some more for small N, where they cost nothing.
 */
#include "base/permutation.h"

#include "base/random.h"

enum { LEAST_ROUNDS = 32, ROUNDS_PER_BIT = 6 };

void permutation_begin(Permutation *permutation, int64_t count, uint64_t seed, uint64_t stream) {
    int32_t bits = 0;
    while (bits < 63 && (int64_t)1 << bits < count) bits++;
    permutation->count = count;
    permutation->key = random_at(seed, stream, 0);
    permutation->rounds = LEAST_ROUNDS + ROUNDS_PER_BIT * bits;
    Random random;
    random_seed(&random, permutation->key);
    for (int32_t r = 0; r < permutation->rounds; r++) permutation->pairings[r] = random_below(&random, count);
}

int64_t permutation_at(const Permutation *permutation, int64_t index) {
    for (int32_t r = 0; r < permutation->rounds; r++) {
        int64_t partner = permutation->pairings[r] - index;
        if (partner < 0) partner += permutation->count;
        uint64_t pair = (uint64_t)(partner > index ? partner : index);
        if (random_at(permutation->key, (uint64_t)r, pair) >> 63) index = partner;
    }
    return index;
}
