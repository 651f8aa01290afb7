/* Constraints that every plan of a search obeys. A search passes them unchanged to its parts: to the search
 * of one stage on one mesh, to pipelines and to baselines. Example: --even --tensor 4 --memory-fraction 0.8
 * --for hlo.
 *
 * Zero is the default of every member but memory_fraction. The caller owns the arrays.
 */
#ifndef PLANNERS_PROBLEM_PLAN_CONSTRAINTS_H
#define PLANNERS_PROBLEM_PLAN_CONSTRAINTS_H

#include "planners/problem/degrees.h"
#include "planners/targets/target.h"
#include "propagation/propagate/propagate.h"

typedef struct PlanConstraints {
    double memory_fraction;     /* of a device's memory that a plan may use, 0 to 1 */
    Target target;              /* only plans that it can run; is_even is set as it needs */
    Degrees degrees;            /* only plans that have them */
    const PropagationPin *pins; /* [pin_count]: decisions that every plan keeps */
    int32_t pin_count;
    const KeptShardings *kept; /* the module's own shardings, kept by every plan; or NULL */
    bool is_even;              /* only plans with equal, contiguous shards */
    bool offloads_optimizer;   /* only plans with optimizer state in the host's memory (PlanStage) */
} PlanConstraints;

#endif
