/* Statistics of predictions: quantiles, pairs beside a count of all of them, and a summary by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "published/summary.h"

static void test_quantile(void **state) {
    (void)state;
    double values[] = {5, 1, 3, 2};
    assert_true(isnan(published_quantile(values, 0, 0.5)));
    assert_true(published_quantile(values, 4, 0) == 1);
    assert_true(published_quantile(values, 4, 0.5) == 2.5);
    assert_true(published_quantile(values, 4, 1) == 5);
    assert_true(fabs(published_quantile(values, 4, 0.9) - 4.4) < 1e-12);
    assert_true(published_quantile(values, 1, 0.9) == 1);
}

/* Few different values, so that there are ties. */
static void test_pairs(void **state) {
    (void)state;
    enum { MOST = 40 };
    uint32_t seed = 1;
    for (int32_t count = 0; count <= MOST; count++)
        for (int32_t range = 2; range <= 64; range *= 2) {
            double x[MOST + 1], y[MOST + 1];
            int64_t same = 0, opposite = 0, unequal = 0, found[3] = {0};
            AmError error = {0};
            for (int32_t k = 0; k < count; k++) {
                x[k] = (seed = seed * 1664525u + 1013904223u) >> 16 & (uint32_t)(range - 1);
                y[k] = (seed = seed * 1664525u + 1013904223u) >> 16 & (uint32_t)(range - 1);
            }
            for (int32_t a = 0; a < count; a++)
                for (int32_t b = 0; b < a; b++) {
                    double product = (x[a] - x[b]) * (y[a] - y[b]);
                    same += product > 0;
                    opposite += product < 0;
                    unequal += x[a] != x[b];
                }
            assert_int_equal(published_pairs(x, y, count, &found[0], &found[1], &found[2], &error), AM_OK);
            assert_int_equal(found[0], same);
            assert_int_equal(found[1], opposite);
            assert_int_equal(found[2], unequal);
        }
}

static void test_summary(void **state) {
    (void)state;
    const PublishedPair pairs[] = {
        {"a", 1.0, 1.1, false, true, true, true},  {"b", 2.0, 1.0, false, true, true, false},
        {"a", 2.0, 1.0, false, true, true, true},  {"b", 4.0, 4.4, false, true, true, true},
        {"a", 3.0, NAN, false, true, false, true}, {"b", NAN, 1.0, true, false, true, false},
        {"b", NAN, 2.0, true, false, true, true},  {"b", NAN, NAN, true, false, false, false},
        {"c", 1.0, 1.0, false, false, true, true},
    };
    PublishedSummary summary;
    AmError error = {0};
    assert_int_equal(published_summarize(&summary, pairs, sizeof pairs / sizeof *pairs, &error), AM_OK);
    assert_int_equal(summary.rows, 6);
    assert_int_equal(summary.compared, 5);
    assert_int_equal(summary.failed, 2);
    assert_true(fabs(summary.median - 0.1) < 1e-12); /* of 0, 0.1, 0.1, 0.5, 0.5 */
    assert_true(fabs(summary.mean - 0.24) < 1e-12);
    assert_true(fabs(summary.bias + 0.16) < 1e-12);
    assert_true(fabs(summary.percentile_90 - 0.5) < 1e-12);
    assert_int_equal(summary.groups, 2);
    assert_int_equal(summary.concordant, 1);
    assert_int_equal(summary.discordant, 1);
    assert_true(summary.tau == 0);
    assert_true(summary.regret == 0.5); /* of 1 in group a, 0 in group b */
    assert_int_equal(summary.oom_found, 1);
    assert_int_equal(summary.oom_missed, 1);
    assert_int_equal(summary.ok_found, 3);
    assert_int_equal(summary.ok_refused, 1);
    assert_int_equal(published_summarize(&summary, pairs, 0, &error), AM_OK);
    assert_true(isnan(summary.median) && isnan(summary.tau) && isnan(summary.regret));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantile), cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_summary)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
