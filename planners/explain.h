/* Why a plan is what it is: its decisions against the next best, its collectives. */
#ifndef PLANNERS_EXPLAIN_H
#define PLANNERS_EXPLAIN_H

#include <jansson.h>

#include "base/text.h"
#include "cost/cluster.h"
#include "propagation/plan.h"

/* Entries of one axis's list that repeated layers share: decided as one. */
typedef struct ExplainedDecision {
    const char *axis;
    const PlanEntry *entry; /* the first of them */
    int32_t class_count;
    const char *path;             /* a weight that it splits, else what names the class; "" for any */
    int32_t dimension;            /* of that */
    const char *op_name, *source; /* of what names the class; "file:line" or "" */
    double seconds_without;       /* step time if they were taken out of the list */
    int64_t peak_bytes_without;
} ExplainedDecision;

/* Collectives of one kind over the same axes that serve operators of one name.
 * A merged collective serves several: each has its tensors and, by their bytes,
 * its share of the time. */
typedef struct ExplainedCollective {
    const char *kind, *axes;
    const char *op_name, *source; /* of the first operator */
    int64_t count;                /* collectives with tensors of these operators */
    int64_t tensors;
    double bytes, seconds; /* all together */
    int32_t last_step;     /* of the program that was counted; keeps a collective from counting twice */
} ExplainedCollective;

typedef struct Explanation {
    double step_seconds;
    int64_t peak_bytes;
    ExplainedDecision *decisions; /* in the plan's order */
    int32_t decision_count;
    ExplainedCollective *collectives; /* most time first */
    int32_t collective_count;
} Explanation;

/* Prices the plan of one stage and each of its decisions taken out. All memory
 * is the arena's. */
AmStatus explain_plan(Explanation **explanation, Arena *arena, const PlanContext *context, const Plan *plan,
                      const Cluster *cluster, AmError *error);

/* The caller's reference. */
json_t *explanation_to_json(const Explanation *explanation, const Classes *classes);
void explanation_print(Text *text, const Explanation *explanation);

#endif
