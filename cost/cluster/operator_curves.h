/* Measured seconds of classes of operators over their sizes: the key "operators" of a device type.
 *
 *   "operators": {"dot": {"sizes": [[1, 32], [2, 8, 32], [2, 8, 32], [2, 8, 32]], "seconds": [...]}, ...}
 *
 * A class has one list of ascending sizes per dimension, and a time for every combination, the last
 * dimension fastest. In between, times are linear in every size (so all sums of products of sizes are
 * exact); below the first size they stay, beyond the last they grow in proportion, or stay
 * as its row says. The classes and their dimensions are rows of operator_classes.def; those of elements are
 * costs per operator inside a fusion.
 */
#ifndef COST_CLUSTER_OPERATOR_CURVES_H
#define COST_CLUSTER_OPERATOR_CURVES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"

enum { OPERATOR_MOST_DIMENSIONS = 4, OPERATOR_MOST_POINTS = 16, OPERATOR_MOST_SECONDS = 4096 };

typedef enum OperatorClass {
#define OPERATOR_CLASS(name, text, dimensions, grows) OPERATOR_CLASS_##name,
#include "cost/cluster/operator_classes.def"
#undef OPERATOR_CLASS
    OPERATOR_CLASS_COUNT
} OperatorClass;

typedef struct OperatorCurve {
    int32_t counts[OPERATOR_MOST_DIMENSIONS];
    const double *sizes[OPERATOR_MOST_DIMENSIONS];
    const double *seconds; /* NULL: not measured */
} OperatorCurve;

typedef struct OperatorCurves {
    OperatorCurve of[OPERATOR_CLASS_COUNT];
} OperatorCurves;

/* Classes from this one on are of links ("collectives"), those before of device types ("operators"). */
enum { OPERATOR_FIRST_OF_LINKS = OPERATOR_CLASS_ALL_REDUCE };

/* Reads `object`, which is the value at the JSON path `where`; arrays live in the arena. */
AmStatus operator_curves_read(const OperatorCurves **curves, Arena *arena, json_t *object, bool of_link,
                              const char *source, const char *where, AmError *error);

/* Returns the seconds at those sizes; 0 where the class was not measured. */
double operator_curve_seconds(const OperatorCurves *curves, OperatorClass class, const double *sizes);

/* Finds the measured sizes of a dimension that the time at a size comes from: the nearest ones below and
 * above, one twice where it is that or beyond all. The class was measured. */
void operator_curve_around(const OperatorCurves *curves, OperatorClass class, int32_t dimension, double size,
                           double *below, double *above);

#endif
