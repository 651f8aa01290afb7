/* Moves cuts by the results of a simulation.
 *
 * The tables miss costs of lowering a stage separately, a few percent that differ from stage to
 * stage. Each stage's seconds and bytes are therefore scaled by simulated over estimated, and the
 * cuts are moved, a unit or two at a time, while 1F1B's recursion gets shorter. */
#ifndef PLANNERS_PIPELINE_PIPELINE_BALANCE_H
#define PLANNERS_PIPELINE_PIPELINE_BALANCE_H

#include "planners/pipeline/stage_dp.h"

typedef struct PipelineScales {
    double seconds[PIPELINE_MOST_STAGES],
        bytes[PIPELINE_MOST_STAGES]; /* of each stage; 1: as the tables say */
} PipelineScales;

/* Finds the ratios of a simulated pipeline to the tables: busy seconds of each stage's devices, scaled so
 * that 1F1B's recursion equals the simulated `seconds`; and peak bytes. */
void pipeline_scales(PipelineScales *scales, const StageModel *model, const PipelineLayout *pipeline,
                     double seconds, const double *busy, const double *peak_bytes);

/* Moves the cuts; `pipeline->seconds` is then by the scaled tables. False where no move helps. */
bool pipeline_balance(const StageModel *model, PipelineLayout *pipeline, const PipelineScales *scales);

#endif
