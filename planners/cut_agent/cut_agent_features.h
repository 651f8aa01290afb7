/* The observation of the agent that cuts pipelines, of the rest of a chain: splits that only distribute work,
 * and ratios to them.
 *
 * The rest is `left` stages over the layers after `place` on the units from `unit` on. Units are allotted in
 * four ways: equal numbers; the same with boundaries moved to those of servers; all surplus units to the
 * first stage; or to the last one. On each, work is distributed by rate, then twice again minus the time of
 * the transfers and reductions of the split before. Every cut is the cheapest within an eighth of a stage.
 * With equal numbers there are also the nearest place to a balance of work, and the cheapest cuts within an
 * eighth and a quarter of a stage of it. Each split is priced by the chain's length; the shortest of those
 * that fit the memory is the estimate.
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_FEATURES_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_FEATURES_H

#include "planners/cut_agent/chain.h"

/* Returns the length of the rest on stages of equal rate if work could be shared out to the last bit, with
 * an even part of the reductions and without transfers: k w / R / (1 - (1 - 1 / M)^k). */
double features_balanced_length(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left);

/* Fills features[CUT_AGENT_FEATURES] for left >= 2; returns the estimate. */
double features_fill(const ChainProblem *problem, int32_t place, int32_t unit, int32_t left, float *features);

#endif
