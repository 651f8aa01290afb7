/* The cheapest sequence of collectives from one state of a tensor to another.
 *
 * Lowering emits this sequence, so that its cost is of all axes together and in the order of the mesh: the
 * share of the global tensor that a device receives. It needs no cluster. Assignment compares single axes
 * (propagation/assign/reshard_bytes.h), and the sharding graph needs seconds that no path falls below
 * (cost/relaxation/reshard_costs.h).
 */
#ifndef LOWERING_SPMD_RESHARD_PATH_H
#define LOWERING_SPMD_RESHARD_PATH_H

#include "lowering/program/program.h"

enum { RESHARD_MOST_STEPS = 12, RESHARD_CUT = -1 };

/* A collective over `axes`, on `dimension` (and `other`); `state` is the resulting state. */
typedef struct ReshardStep {
    int32_t kind;  /* ProgramCollectiveKind, or RESHARD_CUT: a local cut */
    uint32_t axes; /* bits */
    SbpReduction reduction;
    int32_t dimension, other;
    SbpState state;
} ReshardStep;

typedef struct ReshardPath {
    int32_t count;
    ReshardStep steps[RESHARD_MOST_STEPS];
    double weight; /* share of the global tensor that a device receives */
} ReshardPath;

/* Finds the cheapest path. Returns false if no path exists: no collective makes a value partial.
 * `global` is the global shape. */
bool reshard_find_path(ReshardPath *path, const Mesh *mesh, const IrShape *global, SbpState from,
                       SbpState to);

/* Returns the share of the global tensor that a device receives when resharding from one state to another; -1
 * where that is impossible. */
double reshard_weight(const Mesh *mesh, const IrShape *global, SbpState from, SbpState to);

#endif
