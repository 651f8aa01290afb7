/* The public C API: module, cluster, search, plan file and back. */
#include <math.h>
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
    char digits[2][13];
    snprintf(digits[0], sizeof digits[0], "%.12s", am_module_sha256(module));
    snprintf(digits[1], sizeof digits[1], "%.12s", am_module_sha256(other));
    assert_non_null(strstr(error.text, digits[0]));
    assert_non_null(strstr(error.text, digits[1]));
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
    assert_int_not_equal(am_cluster_read(&cluster, "nowhere", &error), AM_OK);
    assert_null(cluster);
    am_module_free(NULL);
    am_cluster_free(NULL);
    am_plan_free(NULL);
}

/* Fills an error with arbitrary stack contents. */
static AmError dirty_error(void) {
    AmError error;
    memset(&error, '%', sizeof error);
    return error;
}

static void assert_error(const AmError *error, AmStatus status, const char *text) {
    assert_int_equal(error->code, status);
    assert_non_null(memchr(error->text, '\0', sizeof error->text));
    assert_non_null(memchr(error->source, '\0', sizeof error->source));
    assert_non_null(memchr(error->excerpt, '\0', sizeof error->excerpt));
    assert_non_null(strstr(error->text, text));
}

static void test_errors_need_no_initialisation(void **state) {
    (void)state;
    AmModule *module = NULL;
    AmCluster *cluster = NULL;
    AmPlan *plan = NULL;
    AmError error = dirty_error();
    assert_int_equal(am_module_read(&module, MODEL, NULL, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    error = dirty_error();
    assert_int_equal(am_cluster_read(&cluster, "nominal:4", &error), AM_OK);
    assert_error(&error, AM_OK, "");
    AmCluster *none = cluster;
    error = dirty_error();
    assert_int_equal(am_cluster_read(&none, "nowhere", &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "nowhere");
    assert_null(none);
    error = dirty_error();
    assert_int_equal(am_plan_read(&plan, module, "missing.plan.json", &error), AM_ERROR_INPUT);
    assert_error(&error, AM_ERROR_INPUT, "");
    assert_non_null(strstr(error.source, "missing.plan.json"));
    error = dirty_error();
    AmSearchOptions options = {.mesh = "data=3", .evaluations = 4};
    assert_int_equal(am_search(&plan, module, cluster, &options, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "data=3");
    options = (AmSearchOptions){.mesh = "data=4", .evaluations = 4};
    error = dirty_error();
    assert_int_equal(am_search(&plan, module, cluster, &options, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    error = dirty_error();
    assert_int_equal(am_plan_write(plan, "/nonexistent/p.json", &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "");
    am_plan_free(plan);
    am_cluster_free(cluster);
    am_module_free(module);
}

static void test_the_last_error_is_reported(void **state) {
    (void)state;
    AmError error = {0};
    AmModule *module = NULL;
    AmCluster *cluster = NULL;
    assert_int_equal(am_module_read(&module, "first.hlo.pb", NULL, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.source, "first.hlo.pb"));
    assert_int_equal(am_module_read(&module, "second.hlo.pb", NULL, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.source, "second.hlo.pb"));
    assert_int_equal(am_cluster_read(&cluster, "third", &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "third");
    assert_int_equal(am_cluster_read(&cluster, "nominal:2", &error), AM_OK);
    assert_error(&error, AM_OK, "");
    assert_string_equal(error.text, "");
    am_cluster_free(cluster);
}

static void test_bad_arguments_are_usage_errors(void **state) {
    (void)state;
    static const AmSearchOptions bad[] = {{.evaluations = -1},      {.seconds = -1},
                                          {.seconds = NAN},         {.seconds = INFINITY},
                                          {.memory_fraction = 1.5}, {.memory_fraction = NAN}};
    AmModule *module = NULL;
    AmCluster *cluster = NULL;
    AmPlan *plan = NULL;
    AmError error;
    assert_int_equal(am_module_read(&module, MODEL, NULL, NULL), AM_OK);
    assert_int_equal(am_cluster_read(&cluster, "nominal:2", NULL), AM_OK);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        assert_int_equal(am_search(&plan, module, cluster, &bad[k], &error), AM_ERROR_USAGE);
        assert_error(&error, AM_ERROR_USAGE, "expected a number");
    }
    assert_int_equal(am_search(&plan, NULL, cluster, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "module");
    assert_int_equal(am_search(&plan, module, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "cluster");
    assert_int_equal(am_module_read(NULL, MODEL, NULL, &error), AM_ERROR_USAGE);
    AmModule *no_module = module;
    AmCluster *no_cluster = cluster;
    assert_int_equal(am_module_read(&no_module, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_null(no_module);
    assert_int_equal(am_cluster_read(&no_cluster, NULL, &error), AM_ERROR_USAGE);
    assert_null(no_cluster);
    assert_int_equal(am_plan_read(&plan, NULL, "p.json", &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_write(NULL, "p.json", &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "plan");
    am_cluster_free(cluster);
    am_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_errors_need_no_initialisation),
        cmocka_unit_test(test_the_last_error_is_reported),
        cmocka_unit_test(test_bad_arguments_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
