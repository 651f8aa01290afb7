/* How the collectives of a stage come by their seconds, in words. */
#ifndef COST_SIMULATE_COLLECTIVE_REPORT_H
#define COST_SIMULATE_COLLECTIVE_REPORT_H

#include "base/text.h"
#include "cost/simulate/stage_costs.h"

/* Adds the stage's different collectives, by kind, axes and size, those first that take most of a step, with
 * the choice of algorithm and its derivation. Scratch memory is taken from the arena and given back. */
AmStatus collective_report(Text *text, Arena *arena, const StageCosts *stage, int32_t stage_number,
                           AmError *error);

#endif
