/* States that the lists leave open, after factors are chosen. */
#ifndef PROPAGATION_ASSIGN_SETTLE_H
#define PROPAGATION_ASSIGN_SETTLE_H

#include "propagation/assign/assign.h"

/* Stores as S(d) every result that the lists leave replicated on an axis and that all its users
 * need as S(d). This is never more expensive: the change from replicated to S(d) is a local slice,
 * so that the value may be computed there at once. A partial sum is then reduced by a
 * reduce_scatter instead of an all_reduce and a slice. Overrides are respected. AM_ERROR_INTERNAL
 * if memory is exhausted. */
AmStatus settle_wanted(Assignment *assignment, Arena *scratch, const PlanContext *context, AmError *error);

/* The state in which instruction i takes operand k by its factors. */
SbpState settle_operand_state(const Assignment *assignment, const PlanContext *context, int32_t i, int32_t k);

#endif
