/* Improves the best plans of hybrid_tries.h: their cuts, schedules and lists, by simulations. Docs:
 * docs/planning.md. */
#ifndef PLANNERS_HYBRID_IMPROVE_H
#define PLANNERS_HYBRID_IMPROVE_H

#include "planners/pipeline/hybrid_tries.h"

/* Moves the cuts of the candidates until no move is left, or up to `last` simulations. */
AmStatus hybrid_move_cuts(HybridTries *self, int64_t last, AmError *error);
/* Repeats the pipelines that do not fit, and would be the best, with more recomputation on the stages that
 * lack memory; up to `last` simulations. */
AmStatus hybrid_recompute_more(HybridTries *self, int64_t last, AmError *error);
/* Tries the `most` best pipelines under the schedules that few modules and stages gain by. */
AmStatus hybrid_try_schedules(HybridTries *self, int32_t most, AmError *error);
/* Changes the best multi-stage plans up to `last` simulations; and one-stage plans, whose
 * simulation is cheaper, if one is near the best. */
AmStatus hybrid_improve(HybridTries *self, int64_t last, AmError *error);

#endif
