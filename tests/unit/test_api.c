/* The public C API: module, cluster, search, plan file and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "automap.h"

#define MODEL     SOURCE_DIR "/datasets/models/mlp_tiny/model.hlo.pb"
#define OTHER     SOURCE_DIR "/datasets/models/exact_linear/model.hlo.pb"
#define FILE_NAME "test_api.plan.json"

static void test_round_trip(void **state) {
    (void)state;
    AmError error = {0};
    AmModule *module, *other;
    AmCluster *cluster;
    AmPlan *plan, *again;
    AmSearchOptions options = {.evaluations = 20};
    assert_int_equal(am_module_read(&module, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_module_read(&other, OTHER, NULL, &error), AM_OK);
    assert_int_equal(strlen(am_module_sha256(module)), 64);
    assert_true(am_module_instruction_count(module) > 100);
    assert_int_equal(am_cluster_read(&cluster, "nominal:4", &error), AM_OK);
    assert_int_equal(am_cluster_device_count(cluster), 4);
    assert_int_equal(am_search(&plan, module, cluster, &options, &error), AM_OK);
    assert_true(am_plan_step_seconds(plan) > 0);
    assert_int_equal(am_plan_write(plan, FILE_NAME, &error), AM_OK);
    assert_int_equal(am_plan_read(&again, module, FILE_NAME, &error), AM_OK);
    assert_true(am_plan_step_seconds(again) == am_plan_step_seconds(plan));
    am_plan_free(again);
    assert_int_equal(am_plan_read(&again, other, FILE_NAME, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, am_module_sha256(module)));
    assert_non_null(strstr(error.text, am_module_sha256(other)));
    remove(FILE_NAME);
    am_plan_free(plan);
    am_cluster_free(cluster);
    am_module_free(module);
    am_module_free(other);
}

static void test_refusals(void **state) {
    (void)state;
    AmError error = {0};
    AmModule *module = NULL;
    AmCluster *cluster = NULL;
    assert_int_equal(am_module_read(&module, "missing.hlo.pb", NULL, &error), AM_ERROR_INPUT);
    assert_null(module);
    error = (AmError){0};
    assert_int_not_equal(am_cluster_read(&cluster, "nowhere", &error), AM_OK);
    assert_null(cluster);
    am_module_free(NULL);
    am_cluster_free(NULL);
    am_plan_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
