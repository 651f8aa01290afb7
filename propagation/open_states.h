/* The cheapest states of what the lists leave open on an axis. */
#ifndef PROPAGATION_OPEN_STATES_H
#define PROPAGATION_OPEN_STATES_H

#include "propagation/lower.h"

/* Chooses for every result that is whole on an axis, and for every element-wise
 * operator, view or reduction that splits nothing there, the state in which least
 * is moved: exactly where open values form trees (each has one user), and never
 * dearer than leaving them whole elsewhere. Ties leave things whole. Exceptions
 * keep what they say. AM_ERROR_INTERNAL without memory. */
AmStatus open_states_choose(Completion *completion, Arena *scratch, const PlanContext *context,
                            AmError *error);

#endif
