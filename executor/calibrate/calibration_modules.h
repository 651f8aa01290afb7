/* Small modules that measure classes of operators: one operator of a class and a size in each, as HLO text.
 * The probe runs them with the kernels of a step, and the times become curves of the cluster file.
 */
#ifndef EXECUTOR_CALIBRATE_CALIBRATION_MODULES_H
#define EXECUTOR_CALIBRATE_CALIBRATION_MODULES_H

#include "base/text.h"

enum { PROBE_MOST_DIMENSIONS = 4, PROBE_MOST_SIZES = 8 };

/* A class: its time at sizes is (text's - less's) / divisor, or the text's own where `less` is NULL. */
typedef struct ProbeClass {
    const char *name;
    int32_t dimensions;
    int32_t
        rises; /* of the first ones: more of it takes no less time, where steps of registers do not count */
    int64_t sizes[PROBE_MOST_DIMENSIONS][PROBE_MOST_SIZES]; /* ascending, 0 ends them */
    void (*text)(Text *text, const char *operation, const int64_t *sizes);
    void (*less)(Text *text, const char *operation, const int64_t *sizes);
    const char *operation;
    double divisor;
} ProbeClass;

/* Kernels of several kinds, as they follow on one another in a step. */
extern const char probe_between[];

extern const ProbeClass probe_classes[];
extern const int32_t probe_class_count;

#endif
