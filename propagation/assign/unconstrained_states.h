/* Finds the cheapest states of values that axis priorities leave unconstrained. */
#ifndef PROPAGATION_ASSIGN_UNCONSTRAINED_STATES_H
#define PROPAGATION_ASSIGN_UNCONSTRAINED_STATES_H

#include "propagation/assign/assign.h"

/* Chooses the state with the fewest moved bytes for every result that is replicated on an axis, and
 * for every element-wise operator, view or reduction that splits nothing there. The choice is exact
 * if unconstrained values form trees (each has one user), and elsewhere never more expensive than
 * replication. Ties keep values replicated. Overrides are respected. AM_ERROR_INTERNAL if memory is
 * exhausted. */
AmStatus unconstrained_states_choose(Assignment *assignment, Arena *scratch, const PlanContext *context,
                                     AmError *error);

#endif
