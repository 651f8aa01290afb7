/* SBP (OneFlow section 3.1): how a tensor lies on each mesh axis.
 *
 * B: whole on every device. S(d): cut along dimension d. P(op): every device
 * holds a partial value, the operator combines them. A state has one of these
 * per axis; several axes that split one dimension cut it jointly, the earlier
 * axis major.
 */
#ifndef PROPAGATION_SBP_H
#define PROPAGATION_SBP_H

#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "ir/module.h"
#include "propagation/mesh.h"

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

typedef struct SbpState {
    Sbp axis[MESH_MAX_AXES]; /* unused axes are B */
} SbpState;

static inline bool sbp_equal(SbpState a, SbpState b) {
    return memcmp(a.axis, b.axis, sizeof a.axis) == 0;
}
bool sbp_has_split(SbpState state);
bool sbp_has_partial(SbpState state);
const char *sbp_reduction_name(SbpReduction reduction); /* "add", "max", ... */
/* The reduction of a to_apply operator (IR_ADD -> SBP_ADD); SBP_REDUCTION_COUNT if none. */
SbpReduction sbp_reduction_of(IrOpcode opcode);
IrOpcode sbp_reduction_opcode(SbpReduction reduction);

/* "S(1)", "B", "P(add)"; for a whole state "data=S(0) model=B". */
void sbp_print_axis(Text *text, Sbp sbp);
void sbp_print(Text *text, const Mesh *mesh, SbpState state);
AmStatus sbp_parse_axis(Sbp *sbp, const char *text, AmError *error);

/* Ways in which dimension d of a tensor is cut under `state`: product of the
 * sizes of the axes that split it. */
int32_t sbp_ways(const Mesh *mesh, SbpState state, int32_t dimension);
/* Size and start of device's shard of a dimension of `size` under `state`. */
void sbp_shard(const Mesh *mesh, SbpState state, int32_t device, int32_t dimension, int64_t size,
               int64_t *start, int64_t *extent);
/* Local shape of device's shard. Dimensions live in the arena, or are those of `shape` where it is whole. */
IrShape sbp_local_shape(Arena *arena, const Mesh *mesh, SbpState state, int32_t device, const IrShape *shape);

#endif
