/* Bayesian linear regression of the simulator's errors, by the Cholesky factor of the precision. */
#include "planners/measure/correction.h"

#include <math.h>
#include <string.h>

#include "propagation/assign/storage.h"

static double half_log2(double value) {
    return log2(fmax(value, 1)) / 2;
}

PlanFeatures plan_features_of(const Plan *plan) {
    const PlanStage *first = &plan->stages[0];
    double compute = 0, communication = 0, idle = 0, level = 0;
    bool recomputes = false, has_overrides = false;
    for (int32_t d = 0; d < plan->device_count; d++) {
        compute += plan->predicted[d].compute_seconds;
        communication += plan->predicted[d].communication_seconds;
        idle += plan->predicted[d].idle_seconds;
    }
    for (int32_t s = 0; s < plan->stage_count; s++) {
        level = fmax(level, storage_zero_level(&plan->stages[s]));
        recomputes = recomputes || plan->stages[s].recompute.range_count > 0;
        has_overrides = has_overrides || plan->stages[s].override_count > 0;
    }
    double all = fmax(compute + communication + idle, 1e-30);
    return (PlanFeatures){{half_log2(first->mesh.axis_count > 0 ? first->mesh.axes[0].size : 1),
                           half_log2(first->mesh.axis_count > 1 ? first->mesh.axes[1].size : 1),
                           half_log2(plan->stage_count), half_log2(plan->micro_batches), communication / all,
                           idle / all, level / 3, recomputes, has_overrides, first->keeps_gathered_weights}};
}

/* ---- linear algebra ---- */

void cholesky_factorize(int32_t size, double *matrix) {
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j <= i; j++) {
            double sum = matrix[i * size + j];
            for (int32_t k = 0; k < j; k++) sum -= matrix[i * size + k] * matrix[j * size + k];
            matrix[i * size + j] = i == j ? sqrt(fmax(sum, 1e-12)) : sum / matrix[j * size + j];
        }
}

void cholesky_solve_lower(int32_t size, const double *factor, double *x) {
    for (int32_t i = 0; i < size; i++) {
        for (int32_t k = 0; k < i; k++) x[i] -= factor[i * size + k] * x[k];
        x[i] /= factor[i * size + i];
    }
}

/* Solves L' x = b in place. */
static void cholesky_solve_upper(int32_t size, const double *factor, double *x) {
    for (int32_t i = size - 1; i >= 0; i--) {
        for (int32_t k = i + 1; k < size; k++) x[i] -= factor[k * size + i] * x[k];
        x[i] /= factor[i * size + i];
    }
}

/* ---- the correction ---- */

static double term(const PlanFeatures *features, int32_t k) {
    return k < PLAN_FEATURES ? features->numbers[k] : 1;
}

Correction correction_begin(void) {
    Correction correction = {.noise = 0.01};
    for (int32_t k = 0; k < PLAN_FEATURES; k++) correction.precision[k][k] = 10;
    correction.precision[PLAN_FEATURES][PLAN_FEATURES] = 1;
    return correction;
}

void correction_add(Correction *correction, const PlanFeatures *features, double predicted, double measured) {
    double error = log(measured / predicted);
    for (int32_t i = 0; i < CORRECTION_TERMS; i++) {
        correction->moment[i] += term(features, i) * error / correction->noise;
        for (int32_t j = 0; j < CORRECTION_TERMS; j++)
            correction->precision[i][j] += term(features, i) * term(features, j) / correction->noise;
    }
}

static double normal(Random *random) {
    return sqrt(-2 * log(random_uniform(random) + 1e-300)) * cos(2 * M_PI * random_uniform(random));
}

void correction_weights(double weights[CORRECTION_TERMS], const Correction *correction, Random *random) {
    double factor[CORRECTION_TERMS * CORRECTION_TERMS], noise[CORRECTION_TERMS];
    memcpy(factor, correction->precision, sizeof factor);
    memcpy(weights, correction->moment, sizeof correction->moment);
    cholesky_factorize(CORRECTION_TERMS, factor);
    cholesky_solve_lower(CORRECTION_TERMS, factor, weights);
    cholesky_solve_upper(CORRECTION_TERMS, factor, weights);
    if (!random) return;
    for (int32_t k = 0; k < CORRECTION_TERMS; k++) noise[k] = normal(random);
    cholesky_solve_upper(CORRECTION_TERMS, factor, noise);
    for (int32_t k = 0; k < CORRECTION_TERMS; k++) weights[k] += noise[k];
}

double correction_of(const double weights[CORRECTION_TERMS], const PlanFeatures *features) {
    double sum = 0;
    for (int32_t k = 0; k < CORRECTION_TERMS; k++) sum += weights[k] * term(features, k);
    return sum;
}
