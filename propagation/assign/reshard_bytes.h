/* The bytes that a device sends to reshard a tensor on one axis, by ring collectives.
 *
 * Assignment decides axis by axis and without a cluster, so that bytes on one axis are all that it can
 * compare. The other two costs of a reshard have other data: lowering/spmd/reshard_path.h finds the
 * collectives on all axes, and cost/relaxation/reshard_costs.h bounds their seconds by states alone.
 */
#ifndef PROPAGATION_ASSIGN_RESHARD_BYTES_H
#define PROPAGATION_ASSIGN_RESHARD_BYTES_H

#include <stdbool.h>

#include "propagation/sharding/sbp.h"

/* Returns the bytes that a device sends to change state `have` to `want` on an axis of `parts` devices;
 * `bytes`: of the tensor before the axis splits it. Making a value partial, and slicing a replicated one,
 * send nothing. */
static inline double reshard_bytes(Sbp have, Sbp want, double bytes, double parts) {
    double ring = (parts - 1) / parts * bytes;
    if (have == want || have == SBP_B || sbp_is_partial(want)) return 0;
    if (sbp_is_partial(have)) return want == SBP_B ? 2 * ring : ring;
    return want == SBP_B ? ring : ring / parts;
}

/* Returns the bytes that a device sends to bring a partial sum of a 16-bit value to state `want`;
 * `is_f32_sum`: its addends are f32. They are added in parts, and an all-reduce gathers the rounded sums. */
static inline double reshard_sum_bytes(Sbp want, double bytes, double parts, bool is_f32_sum) {
    double ring = (parts - 1) / parts * bytes;
    if (is_f32_sum && !sbp_is_partial(want)) return want == SBP_B ? 3 * ring : 2 * ring;
    return reshard_bytes(sbp_partial(SBP_ADD), want, bytes, parts);
}

#endif
