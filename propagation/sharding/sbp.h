/* SBP (OneFlow section 3.1): the state of a tensor on each mesh axis.
 *
 * B: replicated on every device. S(d): split along dimension d. P(op): every device holds a partial
 * value, the operator combines them. A state has one of these per axis; several axes that split one
 * dimension split it jointly, the earlier axis major. The SbpCut of a split defines its granules:
 * heads of 64 elements are split between heads, also if their number does not divide.
 */
#ifndef PROPAGATION_SHARDING_SBP_H
#define PROPAGATION_SHARDING_SBP_H

#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "ir/module.h"
#include "propagation/sharding/mesh.h"

/* One axis: 0 is B, 1 + d is S(d), -1 - op is P(op). */
typedef int8_t Sbp;

typedef enum SbpReduction {
    SBP_ADD,
    SBP_MAX,
    SBP_MIN,
    SBP_MULTIPLY,
    SBP_AND,
    SBP_OR,
    SBP_REDUCTION_COUNT
} SbpReduction;

#define SBP_B ((Sbp)0)
static inline Sbp sbp_split(int32_t dimension) {
    return (Sbp)(1 + dimension);
}
static inline Sbp sbp_partial(SbpReduction reduction) {
    return (Sbp)(-1 - (int32_t)reduction);
}
static inline bool sbp_is_split(Sbp sbp) {
    return sbp > 0;
}
static inline bool sbp_is_partial(Sbp sbp) {
    return sbp < 0;
}
static inline int32_t sbp_dimension(Sbp sbp) {
    return sbp - 1;
}
static inline SbpReduction sbp_reduction(Sbp sbp) {
    return (SbpReduction)(-1 - sbp);
}

/* How an axis cuts the dimension of its S(d): the dimension is `outer` blocks of
 * `count` granules each, a granule is the same number of elements everywhere,
 * and a shard is its piece of every block. {0, 0} is the plain cut: one block,
 * every element a granule. Cuts of one dimension that mean the same are the same:
 * what sbp_cut() gives. */
typedef struct SbpCut {
    int32_t outer, count;
} SbpCut;

typedef struct SbpState {
    Sbp axis[MESH_MAX_AXES];   /* unused axes are B */
    SbpCut cut[MESH_MAX_AXES]; /* of axes that split; plain elsewhere */
} SbpState;

/* Returns whether both states have the same, cut alike, on an axis. */
static inline bool sbp_equal_on(SbpState a, SbpState b, int32_t axis) {
    if (a.axis[axis] != b.axis[axis]) return false;
    return !sbp_is_split(a.axis[axis]) ||
           (a.cut[axis].outer == b.cut[axis].outer && a.cut[axis].count == b.cut[axis].count);
}
static inline bool sbp_equal(SbpState a, SbpState b) {
    if (memcmp(a.axis, b.axis, sizeof a.axis) != 0) return false;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_split(a.axis[axis]) && !sbp_equal_on(a, b, axis)) return false;
    return true;
}
/* Sets one axis to B or P, or to a plain S. */
static inline void sbp_set(SbpState *state, int32_t axis, Sbp sbp) {
    state->axis[axis] = sbp;
    state->cut[axis] = (SbpCut){0, 0};
}
static inline void sbp_set_split(SbpState *state, int32_t axis, int32_t dimension, SbpCut cut) {
    state->axis[axis] = sbp_split(dimension);
    state->cut[axis] = cut;
}
/* Sets one axis to what another state has there. */
static inline void sbp_take(SbpState *state, SbpState from, int32_t axis) {
    state->axis[axis] = from.axis[axis];
    state->cut[axis] = from.cut[axis];
}
bool sbp_has_split(SbpState state);
bool sbp_has_partial(SbpState state);
const char *sbp_reduction_name(SbpReduction reduction); /* "add", "max", ... */
/* Returns the reduction of a to_apply operator (IR_ADD -> SBP_ADD); SBP_REDUCTION_COUNT if none. */
SbpReduction sbp_reduction_of(IrOpcode opcode);
IrOpcode sbp_reduction_opcode(SbpReduction reduction);

/* Writes "S(1)", "B", "P(add)"; for the state on all axes "data=S(0) model=B", and "data=S(0)/12" where cuts
 * are between 12 granules. */
void sbp_print_axis(Text *text, Sbp sbp);
void sbp_print(Text *text, const Mesh *mesh, SbpState state);
AmStatus sbp_parse_axis(Sbp *sbp, const char *text, AmError *error);

/* Returns the ways in which dimension d of a tensor is cut under `state`: product of the sizes of the axes
 * that split it. */
int32_t sbp_ways(const Mesh *mesh, SbpState state, int32_t dimension);
/* Returns whether a dimension of `size` is cut into equal parts. */
bool sbp_is_even(const Mesh *mesh, SbpState state, int32_t dimension, int64_t size);
/* Returns whether the axes so far cut the dimension into just so many equal parts. */
bool sbp_splits_into(const Mesh *mesh, SbpState state, int32_t dimension, int64_t size, int64_t parts);
/* Returns the cut of a further axis of dimension `dimension`, of `size` elements, between outer * count
 * granules: the plain cut if it is equivalent. `size` is a multiple of outer * count. */
SbpCut sbp_cut(const Mesh *mesh, SbpState state, int32_t axis, int32_t dimension, int64_t size, int64_t outer,
               int64_t count);
/* Returns whether a dimension of `size` that is a factor of `granules` equal parts may be
 * cut so: between the parts; in blocks only where every element is a part. */
bool sbp_cuts_between(const Mesh *mesh, SbpState state, int32_t dimension, int64_t size, int64_t granules);
/* Blocks that the state cuts a dimension in, each alike: 1, or more for a shard
 * that is a piece of every block (of q, k and v that one projection makes). All
 * axes that split one dimension cut the same blocks. */
int32_t sbp_blocks(SbpState state, int32_t dimension);
/* Returns the last axis that splits a dimension which an earlier one cuts in other blocks, so that there is
 * no such state; or -1. */
int32_t sbp_colliding_axis(SbpState state);
/* Finds the elements of device's shard of a dimension of `size` under `state`, and where in the dimension, or
 * in each of its blocks, the shard's piece starts. */
void sbp_shard(const Mesh *mesh, SbpState state, int32_t device, int32_t dimension, int64_t size,
               int64_t *start, int64_t *extent);
/* Returns the local shape of device's shard. Dimensions live in the arena, or are those of `shape` where it
 * is whole. */
IrShape sbp_local_shape(Arena *arena, const Mesh *mesh, SbpState state, int32_t device, const IrShape *shape);

#endif
