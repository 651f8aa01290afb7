/* Cuts moved by what a simulation showed.
 *
 * The tables miss what lowering a stage by itself adds or saves, a few percent that differ from stage to
 * stage. So each stage's seconds and bytes are scaled by simulated over told, and the cuts are moved, a unit
 * or two at a time, as long as 1F1B's recursion gets shorter. */
#ifndef PLANNERS_HYBRID_BALANCE_H
#define PLANNERS_HYBRID_BALANCE_H

#include "planners/hybrid_stages.h"

typedef struct HybridScales {
    double seconds[HYBRID_MOST_STAGES], bytes[HYBRID_MOST_STAGES]; /* of each stage; 1: as the tables say */
} HybridScales;

/* What was simulated of a pipeline over what the tables say: seconds that each stage's devices are busy, in
 * proportion, so that 1F1B's recursion comes to the simulated `seconds`; and bytes at their peaks. */
void hybrid_scales(HybridScales *scales, const HybridModel *model, const HybridPipeline *pipeline,
                   double seconds, const double *busy, const double *peak_bytes);

/* Moves the cuts; `pipeline->seconds` is then by the scaled tables. False where no move helps. */
bool hybrid_balance(const HybridModel *model, HybridPipeline *pipeline, const HybridScales *scales);

#endif
