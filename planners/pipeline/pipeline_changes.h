/* Changes of the best simulated pipelines beyond the tables.
 *
 * Axis priorities: a stage's storage level, an entry inserted into one of them, removed or replaced, one
 * change at a time; each gives another plan, which is simulated in full. The busiest stages are
 * changed first, and candidates with the largest split first.
 *
 * Chunks: for interleaved 1F1B a stage's share of the work is distributed over several parts of the
 * model. These are cut between layers alone: inside a layer a part would need values of an earlier
 * part.
 */
#ifndef PLANNERS_PIPELINE_PIPELINE_CHANGES_H
#define PLANNERS_PIPELINE_PIPELINE_CHANGES_H

#include "planners/pipeline/pipeline_plans.h"

/* The changed split of a stage of a candidate. */
typedef struct PipelineChange {
    int32_t stage;
    AxisPlan axis_plan;
} PipelineChange;

/* Lists the first `most` changes of a candidate that has a plan. */
AmStatus pipeline_changes_list(PipelineChange *changes, int32_t most, int32_t *count, PipelinePlans *plans,
                               const PipelineCandidate *candidate, AmError *error);

/* Divides the pipeline's stages into `count` chunks each. Returns false where there are too few places to
 * cut. */
bool pipeline_chunks_find(PipelineChunks *chunks, const StageModel *model, const PipelineLayout *pipeline,
                          int32_t count);

#endif
