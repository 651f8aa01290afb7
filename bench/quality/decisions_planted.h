/* Decision problems made from a seed: a chain with a few long edges and a cap on memory. */
#ifndef BENCH_QUALITY_DECISIONS_PLANTED_H
#define BENCH_QUALITY_DECISIONS_PLANTED_H

#include "bench/quality/decisions.h"

#define PLANTED_DECISIONS  24
#define PLANTED_STRATEGIES 6

/* Makes the problem of a seed, alike on every machine. Arrays live in the arena. */
AmStatus decisions_planted(Decisions *decisions, Arena *arena, uint64_t seed, AmError *error);

#endif
