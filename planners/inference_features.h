/* What the inference agent sees of the rest of a chain: splits that only share out work, and ratios to them.
 *
 * The rest is `left` stages over the layers behind `place` on the units from `unit` on, each with the same
 * number of units. Four splits are priced by the chain's length:
 *
 *   balanced     each stage has work by its rate; the nearest place
 *   cheap, near  the cheapest cut within an eighth of a stage of there
 *   cheap, wide  the same within a quarter
 *   corrected    work by rate less what the balanced split's transfers and reductions take from it; the
 * cheapest cut within an eighth
 */
#ifndef PLANNERS_INFERENCE_FEATURES_H
#define PLANNERS_INFERENCE_FEATURES_H

#include "planners/chain.h"

/* Length of the rest if work could be shared out to the last bit and transfers cost nothing. */
double features_balanced_length(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left);

/* Fills features[INFERENCE_FEATURES] for left >= 2; returns the shortest of the four splits. */
double features_fill(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left, float *features);

#endif
