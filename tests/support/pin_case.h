/* Pins spread into the axis priorities of a stage, as `automap propagate` does it.
 *
 * The pins are seeds of one propagation, whose result becomes entries of `stage->axis_priorities` and
 * overrides. The stage's mesh is set; entries are the arena's.
 */
#ifndef TESTS_SUPPORT_PIN_CASE_H
#define TESTS_SUPPORT_PIN_CASE_H

#include "propagation/propagate/incremental.h"
#include "propagation/propagate/propagate.h"

static AmStatus pin_stage(PlanStage *stage, Arena *arena, const PlanContext *context,
                          const PropagationPin *pins, int32_t count, AmError *error) {
    Incremental *incremental;
    TRY(incremental_create(&incremental, arena, context, &stage->mesh, error));
    TRY(propagation_pin_seeds(incremental, context, &stage->mesh, pins, count, error));
    return incremental_to_stage(stage, arena, incremental, error);
}

#endif
