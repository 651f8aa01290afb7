/* The differences of two plans of one module: predictions, decisions, parameters and collectives, with the
 * cost of each decision. */
#ifndef PLANNERS_EXPLAIN_PLAN_DIFFERENCE_H
#define PLANNERS_EXPLAIN_PLAN_DIFFERENCE_H

#include "planners/explain/explain_plan.h"

/* One of the two plans. */
typedef struct DifferenceSide {
    const char *name; /* for the heads of tables */
    const Plan *plan;
    PlanContext *primary; /* of the module as the plan rewrites it */
    json_t *document;     /* plan_to_json() of it */
    const Cluster *cluster;
} DifferenceSide;

typedef enum DifferenceUnit { DIFFERENCE_SECONDS, DIFFERENCE_BYTES } DifferenceUnit;

/* A prediction of both plans. Compute, communication and idle time are means over the devices of a plan:
 * step = compute + communication - hidden + idle. */
typedef struct DifferenceFigure {
    const char *name;
    DifferenceUnit unit;
    double values[2];
} DifferenceFigure;

/* A decision that is not the same in both plans. */
typedef struct DifferenceDecision {
    const char *name;
    const char *values[2];
    ExplainedChange change; /* the first plan with this decision of the second */
} DifferenceDecision;

/* Parameters whose stage or sharding is not the same, alike in repeated layers. */
typedef struct DifferenceParameters {
    const char *path, *role;
    int32_t count;
    int64_t bytes;         /* of the global tensors */
    const char *values[2]; /* "stage 0 [data,-]" */
} DifferenceParameters;

/* Collectives of one kind over the same axes, of the first device of each stage, added. */
typedef struct DifferenceCollectives {
    const char *kind, *axes;
    int64_t counts[2];
    double bytes[2], seconds[2];
} DifferenceCollectives;

typedef struct PlanDifference {
    const char *names[2], *module;
    bool fits[2];
    DifferenceFigure *figures;
    int32_t figure_count;
    DifferenceDecision *decisions;
    int32_t decision_count;
    DifferenceParameters *parameters;
    int32_t parameter_count;
    int32_t parameter_total; /* parameters of the module that differ, each counted */
    DifferenceCollectives *collectives;
    int32_t collective_count;
} PlanDifference;

/* Simulates both plans, each on its cluster, and the first plan with each differing decision of the second.
 * Both are of one module that was read, with the same parameters (AM_ERROR_INPUT: only one of them splits
 * layers). All memory is the arena's. AM_INTERRUPTED: `stop`, which may be NULL, was set. */
AmStatus plan_difference(PlanDifference **difference, Arena *arena, const DifferenceSide sides[2],
                         const StopSignal *stop, AmError *error);

/* Returns the caller's reference; NULL: no memory. */
json_t *plan_difference_to_json(const PlanDifference *difference);
void plan_difference_print(Text *text, const PlanDifference *difference);

#endif
