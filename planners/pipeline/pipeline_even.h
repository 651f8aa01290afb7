/* Multi-stage baselines by the tables: stages of equal FLOPs on equally many devices each,
 * the batch over all devices of a stage, or over servers with Megatron-LM's axis priorities inside them.
 *
 * The dynamic program of stage_dp.h may rank them below others because of errors of the
 * tables. A search must not lose to them, so that the best are simulated for any rank, with the
 * exact cuts of even_pipeline.h. Their units end nearest to such a cut, for the tables and for
 * later moves of cuts.
 */
#ifndef PLANNERS_PIPELINE_PIPELINE_EVEN_H
#define PLANNERS_PIPELINE_PIPELINE_EVEN_H

#include "planners/pipeline/stage_dp.h"
#include "planners/problem/search_result.h"

typedef struct PipelineEven {
    PipelineLayout pipeline;
    int32_t cuts[PIPELINE_MOST_STAGES + 1]; /* [stage_count + 1] instructions at which stages begin */
} PipelineEven;

/* Lists the best `most` pipelines that fit by the tables, fastest first, one of each number of stages and
 * tensor degree, with as little of ZeRO as fits. `*count` may be 0. */
AmStatus pipeline_even_list(PipelineEven *pipelines, int32_t most, int32_t *count, const StageModel *model,
                            AmError *error);

/* Estimates the baselines with recomputation by the tables, each with its fastest number of micro-batches.
 * Memory may exceed the limit a little. Selective recomputation takes no time, and the memory of the level
 * that saves the most. So the estimate of a baseline that is fast enough is rarely too slow. */
AmStatus pipeline_estimate_recomputed(BaselineEstimate estimates[BASELINE_COUNT], const StageModel *model,
                                      AmError *error);

#endif
