/* What the best simulated pipelines are changed by, beyond what the tables know of.
 *
 * Lists: a stage's storage level, an entry put into one of its lists, taken out or replaced, one change at a
 * time; each comes to another plan, which is simulated in full. Stages that are busiest are changed first,
 * and of candidates those that split most.
 *
 * Chunks: for interleaved 1F1B a stage's share of the work is dealt to several parts of the model, which are
 * cut between layers alone, since in the middle of one a part would need what an earlier part makes.
 */
#ifndef PLANNERS_HYBRID_CHANGES_H
#define PLANNERS_HYBRID_CHANGES_H

#include "planners/hybrid_plan.h"

/* What one stage of a try splits instead. */
typedef struct HybridChange {
    int32_t stage;
    Genome genome;
} HybridChange;

/* The first `most` changes of a try that has a plan. */
AmStatus hybrid_changes_list(HybridChange *changes, int32_t most, int32_t *count, HybridPlans *plans,
                             const HybridTry *try, AmError *error);

/* The pipeline's stages in so many chunks each; false where there are too few places to cut. */
bool hybrid_chunks_find(HybridChunks *chunks, const HybridModel *model, const HybridPipeline *pipeline,
                        int32_t count);

#endif
