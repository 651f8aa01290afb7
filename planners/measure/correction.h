/* Corrections of the simulator by measured steps.
 *
 * The logarithm of measured over predicted seconds is modelled as a weighted sum of the features of a plan
 * and a constant:
 *
 *     log(measured / predicted) = w . (features, 1) + noise,    w ~ N(0, 1 / precision)
 *
 * Bayesian linear regression gives the mean of the weights after any number of measurements, and samples of
 * them. With no measurement the correction is 0.
 */
#ifndef PLANNERS_MEASURE_CORRECTION_H
#define PLANNERS_MEASURE_CORRECTION_H

#include <stdbool.h>

#include "base/random.h"
#include "propagation/plan/plan.h"

enum { PLAN_FEATURES = 10, CORRECTION_TERMS = PLAN_FEATURES + 1 };

/* A plan as numbers of about one unit each. */
typedef struct PlanFeatures {
    double numbers[PLAN_FEATURES];
} PlanFeatures;

/* Returns the numbers of a plan with its prediction: degrees and micro-batches as logarithms, shares of
 * communication and of idle time, storage in shards, and whether it recomputes, has overrides or unequal
 * shards. */
PlanFeatures plan_features_of(const Plan *plan);

typedef struct Correction {
    double precision[CORRECTION_TERMS][CORRECTION_TERMS], moment[CORRECTION_TERMS];
    double noise; /* variance of the logarithm */
} Correction;

/* Returns the correction before any measurement: weights of features have the standard deviation 0.3, the
 * constant 1. */
Correction correction_begin(void);
void correction_add(Correction *correction, const PlanFeatures *features, double predicted, double measured);
/* Writes the mean weights, with noise of their distribution if `random` is not NULL. */
void correction_weights(double weights[CORRECTION_TERMS], const Correction *correction, Random *random);
/* Returns the logarithm of measured over predicted seconds by the weights. */
double correction_of(const double weights[CORRECTION_TERMS], const PlanFeatures *features);

/* Replaces a positive matrix of size x size numbers by the lower triangle of its Cholesky factor. */
void cholesky_factorize(int32_t size, double *matrix);
/* Solves L x = b in place, L being the lower triangle. */
void cholesky_solve_lower(int32_t size, const double *factor, double *x);

#endif
