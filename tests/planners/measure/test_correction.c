/* Corrections of predictions: known errors are found, and samples of the weights spread as much as their
 * distribution says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "planners/measure/correction.h"

static PlanFeatures random_features(Random *random) {
    PlanFeatures features;
    for (int32_t k = 0; k < PLAN_FEATURES; k++) features.numbers[k] = random_uniform(random);
    return features;
}

/* Without measurements nothing is corrected; one of them moves the constant most. */
static void test_first(void **state) {
    (void)state;
    const PlanFeatures nothing = {{0}}, stages = {.numbers = {[2] = 1}};
    Correction correction = correction_begin();
    double weights[CORRECTION_TERMS];
    correction_weights(weights, &correction, NULL);
    assert_true(correction_of(weights, &stages) == 0);
    correction_add(&correction, &stages, 1, 2);
    correction_weights(weights, &correction, NULL);
    double here = correction_of(weights, &stages), elsewhere = correction_of(weights, &nothing);
    assert_true(here > 0.9 * log(2) && here < log(2));
    assert_true(elsewhere > 0.8 * log(2) && elsewhere < here);
}

/* Errors that are a sum of the features's numbers are found from more measurements than weights. */
static void test_known_errors(void **state) {
    (void)state;
    Correction correction = correction_begin();
    double truth[CORRECTION_TERMS], weights[CORRECTION_TERMS];
    Random random;
    random_seed(&random, 1);
    for (int32_t k = 0; k < CORRECTION_TERMS; k++) truth[k] = 0.6 * random_uniform(&random) - 0.3;
    for (int32_t k = 0; k < 4000; k++) {
        const PlanFeatures features = random_features(&random);
        double predicted = exp(random_uniform(&random));
        correction_add(&correction, &features, predicted, predicted * exp(correction_of(truth, &features)));
    }
    correction_weights(weights, &correction, NULL);
    for (int32_t k = 0; k < CORRECTION_TERMS; k++) assert_true(fabs(weights[k] - truth[k]) < 0.01);
}

/* Before any measurement a weight has the variance 1 / precision, the constant 1; measurements narrow it. */
static void test_samples(void **state) {
    (void)state;
    enum { SAMPLES = 4000 };
    Random random;
    random_seed(&random, 2);
    double before = 0, constant = 0, after = 0, weights[CORRECTION_TERMS];
    Correction first = correction_begin(), later = correction_begin();
    for (int32_t k = 0; k < 200; k++) {
        const PlanFeatures features = random_features(&random);
        correction_add(&later, &features, 1, 1);
    }
    for (int32_t k = 0; k < SAMPLES; k++) {
        correction_weights(weights, &first, &random);
        before += weights[0] * weights[0] / SAMPLES;
        constant += weights[PLAN_FEATURES] * weights[PLAN_FEATURES] / SAMPLES;
        correction_weights(weights, &later, &random);
        after += weights[0] * weights[0] / SAMPLES;
    }
    assert_true(fabs(before - 0.1) < 0.01 && fabs(constant - 1) < 0.1);
    assert_true(after < before / 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first), cmocka_unit_test(test_known_errors),
                                       cmocka_unit_test(test_samples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
