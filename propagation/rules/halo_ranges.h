/* Ranges that a shard of a split dimension reads (internal to lowering): slice, pad, concatenate,
 * reverse, convolution and spatial windows.
 *
 * Position j of a shard reads the elements i of an operand's dimension with
 *
 *     0 <= base i + low - step j <= span
 *
 * (a window: step is its stride, span its extent minus one, base its base dilation, low its
 * padding), so that a shard reads one range of elements. A convolution's reduction over its window
 * is the same with kernel positions for result positions. A select-and-scatter leads from its shard
 * to the windows that overlap it, and from these to all their elements. Elements outside a range
 * are outside the whole or are not read, so that padding keeps its meaning.
 */
#ifndef PROPAGATION_RULES_HALO_RANGES_H
#define PROPAGATION_RULES_HALO_RANGES_H

#include "propagation/rules/rules.h"

typedef struct HaloRange {
    int64_t start, extent;
} HaloRange;

/* One factor that is split over some axes, and the devices along them. */
typedef struct Halo {
    const IrModule *module;
    const IrInstruction *source;
    const FactorRule *rule;
    const Factor *factor;
    uint32_t axes;
    const int32_t *group; /* [count] */
    int32_t count, position;
    HaloRange *parts;  /* [count] that the members compute, of the result or of the kernel */
    HaloRange *ranges; /* [slot * count + member] that they have of each operand */
} Halo;

static inline HaloRange halo_own_part(const Halo *halo) {
    return halo->parts[halo->position];
}
static inline HaloRange halo_own_range(const Halo *halo, int32_t slot) {
    return halo->ranges[slot * halo->count + halo->position];
}

/* Attributes whose arrays of places can be changed. */
typedef struct LocalAttributes {
    IrAttributes attributes; /* points to these: */
    int64_t *slice_start, *slice_limit;
    IrPadding *padding;
    IrWindowDimension *window;
} LocalAttributes;

/* Returns whether the ranges that the operator reads are known. */
bool halo_is_known(IrOpcode opcode);
/* Returns whether operands must have exactly the elements that are read, because no attribute
 * selects them, or because no other work remains. */
bool halo_is_exact(const Halo *halo);
/* Returns whether a slice is complete once its operand has exactly the elements that are read. */
bool halo_is_slice_done(const Halo *halos, int32_t count);
/* Returns whether a convolution's window is turned round in this dimension. */
bool halo_is_reversed(const Halo *halo);
/* Returns the size of the dimension that the factor is of an operand. */
int64_t halo_operand_size(const Halo *halo, int32_t slot);
/* Computes the ranges that the shards read of operand `slot`. */
void halo_find_ranges(Halo *halo, int32_t slot);
/* Writes the attributes of the instruction on the own part and ranges. */
void halo_localise(LocalAttributes *local, const Halo *halo);

#endif
