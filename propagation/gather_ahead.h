/* Gathers of stored weights begin before their users' turn, so that a device computes while they are under
 * way.
 */
#ifndef PROPAGATION_GATHER_AHEAD_H
#define PROPAGATION_GATHER_AHEAD_H

#include "propagation/order.h"

/* Of bytes that are gathered and not used yet: so many, or of all that is gathered so this part if that is
 * more (a layer of a large model), but no more than another part of all. One gather may be ahead in any case,
 * if with the one before it that is no more than the larger of the first two. */
#define GATHER_AHEAD_BYTES     ((int64_t)128 << 20)
#define GATHER_AHEAD_PART      64
#define GATHER_AHEAD_MOST_PART 8

/* Changes an order of groups (program_order(); `leader` [instruction] as there) in which what is `late`
 * [instruction] stands right before the group that first uses it: such gathers, with what they are made of,
 * go in front of the users of earlier ones. Which order does not depend on what part of a tensor a rank has.
 */
AmStatus program_gather_ahead(int32_t *order, Arena *arena, const Program *program, const ProgramGraph *graph,
                              const int32_t *leader, const bool *late, AmError *error);

#endif
