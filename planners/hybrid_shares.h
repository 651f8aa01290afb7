/* Unequal shares of the batch where a stage has devices of several types (Whale's hardware-aware balance).
 *
 * Along the first axis of such a stage that has several places each device gets examples in proportion to its
 * speed to the power of a: 0 is equal shares, 1 Whale's, and what is best lies near, since what does not
 * depend on the examples (reductions, updates, launches) does not follow speed and memory may not either.
 * Each power is simulated. */
#ifndef PLANNERS_HYBRID_SHARES_H
#define PLANNERS_HYBRID_SHARES_H

#include "planners/search.h"

/* Powers of the speeds that are tried. */
enum { HYBRID_SHARES_TRIED = 8 };

/* Whether a stage's first axis has devices of several types, and no shares yet. */
bool hybrid_shares_apply(const Plan *plan, const Cluster *cluster);

/* The quickest of the plan with such shares on all its mixed stages, or NULL where none is quicker than the
 * plan itself (or fits). `speeds` are by device type. Memory is the arena's; `*evaluations` grows. */
AmStatus hybrid_shares_find(Plan **best, int64_t *evaluations, Arena *arena, const Plan *plan,
                            const Cluster *cluster, const double *speeds, double memory_fraction,
                            AmError *error);

#endif
