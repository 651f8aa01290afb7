/* Estimates: what a genome comes to by the additive model of a sample of the module (cost/additive.h), at
 * some hundredth of the time that its price takes. Seconds are computing plus boxing, which keeps the order
 * of axes that split one dimension as programs do; of memory only what parameters take is seen. Good for
 * choosing what to price, not for telling what it costs. */
#ifndef PLANNERS_ESTIMATE_H
#define PLANNERS_ESTIMATE_H

#include "planners/problem.h"

typedef struct Estimator Estimator;

/* Refers to the problem. `*estimator` NULL: the model claims nothing of such a mesh or such devices. */
AmStatus estimator_open(Estimator **estimator, const Problem *problem, AmError *error);
void estimator_close(Estimator *estimator);

/* The compute_seconds, communication_seconds, seconds and excess of `price`; other fields are 0. What was
 * asked for before is remembered. */
AmStatus estimate_genome(PlanPrice *price, Estimator *estimator, const Genome *genome, AmError *error);

#endif
