/* States that the lists leave open, after factors are chosen. */
#ifndef PROPAGATION_SETTLE_H
#define PROPAGATION_SETTLE_H

#include "propagation/lower.h"

/* Stores as S(d) every result that the lists leave whole on an axis and that all
 * who use it want as S(d). Never dearer: what brings it there from whole is a
 * local cut, so it may as well go there at once. A partial sum is then finished
 * by a reduce_scatter in place of an all_reduce and a cut. Exceptions keep what
 * they say. AM_ERROR_INTERNAL without memory. */
AmStatus settle_wanted(Completion *completion, Arena *scratch, const PlanContext *context, AmError *error);

/* The state in which instruction i takes operand k by its factors. */
SbpState settle_operand_state(const Completion *completion, const PlanContext *context, int32_t i, int32_t k);

#endif
