/* One-stage plans and one micro-batch, which belong to the hybrid space besides its pipelines.
 * Docs: docs/planning.md, hybrid plans, step 5. */
#ifndef PLANNERS_HYBRID_SINGLE_H
#define PLANNERS_HYBRID_SINGLE_H

#include "planners/pipeline/hybrid_tries.h"

HybridPipeline hybrid_single_pipeline(const HybridTries *self, const HybridRecipe *recipe);

/* Tries, of a large module, the recipes that may be the best plan by the tables and were not tried. */
AmStatus hybrid_single_try(HybridTries *self, const MicroBatching *settings, AmError *error);

/* Plans by the searcher of their own space, and the baselines beside it; not of a large module that is
 * quicker in several stages. `single`: zeroed; its pool is empty where none was searched for or found. */
AmStatus hybrid_single_search(SearchResult *single, HybridTries *self, const MicroBatching *settings,
                              AmError *error);
/* Adds the best try with overrides, where it has one stage and is better than the best plan of `single`,
 * since its lists were changed like those of pipelines. */
AmStatus hybrid_single_refine(const SearchResult *single, HybridTries *self, AmError *error);

#endif
