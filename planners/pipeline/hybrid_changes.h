/* Changes of the best simulated pipelines beyond the tables.
 *
 * Lists: a stage's storage level, an entry inserted into one of its lists, removed or replaced, one
 * change at a time; each gives another plan, which is simulated in full. The busiest stages are
 * changed first, and candidates with the largest split first.
 *
 * Chunks: for interleaved 1F1B a stage's share of the work is distributed over several parts of the
 * model, which are cut between layers alone, since inside a layer a part would need values of an
 * earlier part.
 */
#ifndef PLANNERS_PIPELINE_HYBRID_CHANGES_H
#define PLANNERS_PIPELINE_HYBRID_CHANGES_H

#include "planners/pipeline/hybrid_plan.h"

/* The changed split of a stage of a candidate. */
typedef struct HybridChange {
    int32_t stage;
    AxisPlan axis_plan;
} HybridChange;

/* The first `most` changes of a try that has a plan. */
AmStatus hybrid_changes_list(HybridChange *changes, int32_t most, int32_t *count, HybridPlans *plans,
                             const HybridTry *try, AmError *error);

/* The pipeline's stages in so many chunks each; false where there are too few places to cut. */
bool hybrid_chunks_find(HybridChunks *chunks, const HybridModel *model, const HybridPipeline *pipeline,
                        int32_t count);

#endif
