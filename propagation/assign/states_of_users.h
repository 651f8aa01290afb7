/* Unconstrained states of values, taken from their users after factors are chosen. */
#ifndef PROPAGATION_ASSIGN_STATES_OF_USERS_H
#define PROPAGATION_ASSIGN_STATES_OF_USERS_H

#include "propagation/assign/assign.h"

/* Stores as S(d) every result that the axis priorities leave replicated on an axis and that all its users
 * need as S(d). This is never more expensive: the change from replicated to S(d) is a local slice,
 * so that the value may be computed there at once. A partial sum is then reduced by a
 * reduce_scatter instead of an all_reduce and a slice. Overrides are respected. AM_ERROR_INTERNAL
 * if memory is exhausted. */
AmStatus states_follow_users(Assignment *assignment, Arena *scratch, const PlanContext *context,
                             AmError *error);

#endif
