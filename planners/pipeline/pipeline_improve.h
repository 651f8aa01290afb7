/* Improves the best plans of pipeline_candidates.h: their cuts, schedules and axis priorities, by
 * simulations. Docs: docs/planning.md. */
#ifndef PLANNERS_PIPELINE_PIPELINE_IMPROVE_H
#define PLANNERS_PIPELINE_PIPELINE_IMPROVE_H

#include "planners/pipeline/pipeline_candidates.h"

/* Moves the cuts of the candidates until no move is left, or up to `last` simulations. */
AmStatus pipeline_move_cuts(PipelineCandidates *self, int64_t last, AmError *error);
/* Repeats the pipelines that do not fit, and would be the best, with more recomputation on the stages that
 * lack memory; up to `last` simulations. */
AmStatus pipeline_recompute_more(PipelineCandidates *self, int64_t last, AmError *error);
/* Raises the recomputation of a simulated pipeline's stages that lack memory. Returns false where none can.
 */
bool pipeline_recomputes_more(PipelineLayout *pipeline, const PipelineCandidates *self,
                              const PipelineCandidate *candidate);
enum { PIPELINE_SCHEDULES = 2 };
/* Adds a simulated pipeline under the other schedules to `candidates`, which has room for PIPELINE_SCHEDULES:
 * none where it does not fit or takes no schedule but its own. */
void pipeline_list_schedules(PipelineCandidate *candidates, int32_t *count, const PipelineCandidates *self,
                             const PipelineCandidate *from);
/* Tries the `most` best pipelines under the schedules that few modules and stages gain by, as far as they
 * take at most `near` times as long as the best that was tried so. */
AmStatus pipeline_price_schedules(PipelineCandidates *self, int32_t most, double near, AmError *error);
/* Tries the best pipeline of each order of the devices under these schedules, where there are several
 * orders. */
AmStatus pipeline_price_orders(PipelineCandidates *self, double near, AmError *error);
/* Changes the best multi-stage plans up to `last` simulations; and one-stage plans, whose
 * simulation is cheaper, if one is near the best. */
AmStatus pipeline_improve(PipelineCandidates *self, int64_t last, AmError *error);

#endif
