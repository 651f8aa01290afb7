/* Pins of values inside the step: `PATTERN=value(-,model)`.
 *
 * The pattern is the name of an instruction, a scope or a source line (scopes.h). The pin holds
 * for every forward operator there whose result has as many dimensions: each plan stores this result so.
 * Constants, broadcasts and values made on demand are no such results.
 */
#ifndef PLANNERS_PROBLEM_VALUE_PINS_H
#define PLANNERS_PROBLEM_VALUE_PINS_H

#include "propagation/propagate/pins.h"

typedef struct PinnedValue {
    int32_t instruction;
    SbpState state;
    const PropagationPin *pin;
} PinnedValue;

/* Finds these for all pins of values, in the order of the instructions and in the arena. AM_ERROR_USAGE, or
 * AM_ERROR_INPUT in a file, names a pin without a value, an unknown axis, or two pins that contradict each
 * other; AM_ERROR_INFEASIBLE: fused attention does not have the value. */
AmStatus value_pins_find(PinnedValue **values, int32_t *count, Arena *arena, const PlanContext *context,
                         const Mesh *mesh, const PropagationPin *pins, int32_t pin_count, AmError *error);

/* Checks a pin. AM_ERROR_INFEASIBLE names a value that cannot have the state on the mesh: an axis of one
 * device, or fewer elements than devices, and with `is_even` a number of elements that these do not
 * divide. */
AmStatus value_pin_check(const PinnedValue *value, const PlanContext *context, const Mesh *mesh, bool is_even,
                         AmError *error);

#endif
