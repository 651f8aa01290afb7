/* The best plans of hybrid_tries.h changed: their cuts, schedules and lists, by what the simulations show.
 * Docs: docs/hybrid.md. */
#ifndef PLANNERS_HYBRID_IMPROVE_H
#define PLANNERS_HYBRID_IMPROVE_H

#include "planners/hybrid_tries.h"

/* Moves the cuts of what was found until nothing is left to move, or up to `last` tries. */
AmStatus hybrid_move_cuts(HybridTries *self, int64_t last, AmError *error);
/* Tries the `most` best pipelines under the schedules that few modules and stages gain by. */
AmStatus hybrid_try_schedules(HybridTries *self, int32_t most, AmError *error);
/* Changes the best plans of several stages up to `last` tries; those of one stage, which are simulated
 * sooner, besides, where one is near the best. */
AmStatus hybrid_improve(HybridTries *self, int64_t last, AmError *error);

#endif
