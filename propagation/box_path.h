/* The cheapest sequence of collectives from one state of a tensor to another. */
#ifndef PROPAGATION_BOX_PATH_H
#define PROPAGATION_BOX_PATH_H

#include "propagation/program.h"

enum { BOX_MOST_STEPS = 12, BOX_CUT = -1 };

/* A collective over `axes`, on `dimension` (and `other`); `state` is the resulting state. */
typedef struct BoxStep {
    int32_t kind;  /* ProgramCollectiveKind, or BOX_CUT: a local cut */
    uint32_t axes; /* bits */
    SbpReduction reduction;
    int32_t dimension, other;
    SbpState state;
} BoxStep;

typedef struct BoxPath {
    int32_t count;
    BoxStep steps[BOX_MOST_STEPS];
    double weight; /* share of the whole tensor that a device receives */
} BoxPath;

/* Finds the cheapest path. Returns false if no path exists: no collective makes a value partial.
 * `global` is the whole shape. */
bool box_find_path(BoxPath *path, const Mesh *mesh, const IrShape *global, SbpState from, SbpState to);

/* Share of the whole tensor that a device receives when boxing from one state
 * to another; -1 where that is impossible. */
double box_weight(const Mesh *mesh, const IrShape *global, SbpState from, SbpState to);

#endif
