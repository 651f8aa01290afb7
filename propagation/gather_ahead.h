/* Gathers of stored weights begin before their users' turn, so that a device computes while they are under
 * way.
 */
#ifndef PROPAGATION_GATHER_AHEAD_H
#define PROPAGATION_GATHER_AHEAD_H

#include "propagation/order.h"

/* What is gathered and not used yet takes so many bytes at most, and no more than this part of all that is
 * gathered so; one gather may be ahead in any case, if with the one before it takes no more than the first.
 */
#define GATHER_AHEAD_BYTES ((int64_t)128 << 20)
#define GATHER_AHEAD_PART  8

/* Changes an order of groups (program_order()) in which what is `late` [instruction] stands right before the
 * group that first uses it: such gathers, with what they are made of, go in front of the users of earlier
 * ones. Which order does not depend on what part of a tensor a rank has. */
AmStatus program_gather_ahead(int32_t *order, Arena *arena, const Program *program, const ProgramGraph *graph,
                              const bool *late, AmError *error);

#endif
