/* The public C API: reports of files, conversions, clusters, agents, and plans as a summary. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "automap.h"

#define AGENT SOURCE_DIR "/datasets/agents/pipeline.safetensors"
#define MODEL SOURCE_DIR "/datasets/models/mlp_tiny/model.hlo.pb"

/* The report of a command on a model with one option (key NULL: none). The caller frees it. */
static char *report_of(AmCommand command, const char *key, const char *value, AmFormat format) {
    const char *const files[] = {MODEL};
    AmOptions *options;
    AmError error;
    char *text = NULL;
    assert_int_equal(am_options_new(&options, command, &error), AM_OK);
    if (key && am_options_set(options, key, value, &error) != AM_OK) fail_msg("%s", error.text);
    if (am_report(command, files, 1, format, options, NULL, &text, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_non_null(text);
    am_options_free(options);
    return text;
}

static void test_reports_of_a_module(void **state) {
    (void)state;
    static const struct {
        AmCommand command;
        const char *key, *value, *text, *json;
    } cases[] = {{AM_COMMAND_INFO, NULL, NULL, "module        ", "{\"format\":\"automap-info-1\","},
                 {AM_COMMAND_GROUPS, "axis_size", "4", "group", "{"},
                 {AM_COMMAND_LOWER, "plan", "none", "dot", "\"allocation_bytes\":"},
                 {AM_COMMAND_PROPAGATE, "mesh", "data=2", "HloModule", "\"conflicts\":"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char *text = report_of(cases[k].command, cases[k].key, cases[k].value, AM_FORMAT_TEXT);
        char *json = report_of(cases[k].command, cases[k].key, cases[k].value, AM_FORMAT_JSON);
        assert_non_null(strstr(text, cases[k].text));
        assert_non_null(strstr(json, cases[k].json));
        assert_int_equal(json[0], '{');
        assert_null(strchr(text, '\033'));
        am_free(text);
        am_free(json);
    }
}

typedef struct Seen {
    pthread_t thread;
    bool is_elsewhere, is_over; /* a call in another thread; the last progress */
    int messages;
    char message[256];
} Seen;

static int see_progress(void *user, const AmProgress *progress) {
    Seen *seen = user;
    seen->is_elsewhere |= !pthread_equal(seen->thread, pthread_self());
    seen->is_over |= progress->is_last;
    return 0;
}

static void see_message(void *user, AmMessage kind, const char *text) {
    Seen *seen = user;
    seen->is_elsewhere |= kind != AM_WARNING || seen->is_over || !pthread_equal(seen->thread, pthread_self());
    seen->messages++;
    snprintf(seen->message, sizeof seen->message, "%s", text);
}

/* The work of a report warns in its own thread. Its messages arrive in the caller's thread, in order. */
static void test_messages_of_a_thread(void **state) {
    (void)state;
    static const char text[] = "HloModule two, first_unknown=1, second_unknown=2\n\n"
                               "ENTRY main {\n  ROOT x = f32[4] parameter(0)\n}\n";
    char path[] = "/tmp/automap_test_XXXXXX", *report;
    const char *files[] = {path};
    int file = mkstemp(path);
    AmError error;
    Seen seen = {.thread = pthread_self()};
    const AmCallbacks callbacks = {
        .size = sizeof callbacks, .user = &seen, .on_progress = see_progress, .on_message = see_message};
    assert_true(file >= 0);
    assert_int_equal(write(file, text, sizeof text - 1), (ssize_t)(sizeof text - 1));
    close(file);
    AmStatus status =
        am_report(AM_COMMAND_INFO, files, 1, AM_FORMAT_TEXT, NULL, &callbacks, &report, NULL, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    am_free(report);
    assert_int_equal(seen.messages, 2);
    assert_non_null(strstr(seen.message, "second_unknown"));
    assert_true(seen.is_over);
    assert_false(seen.is_elsewhere);
    assert_int_equal(unlink(path), 0);
}

static void test_refusals(void **state) {
    (void)state;
    const char *const files[] = {MODEL, "none.hlo"};
    AmOptions *options;
    AmError error;
    char *text;
    assert_int_equal(am_report(AM_COMMAND_RUN, files, 1, AM_FORMAT_TEXT, NULL, NULL, &text, NULL, &error),
                     AM_ERROR_USAGE);
    assert_int_equal(am_report(AM_COMMAND_INFO, files, 2, AM_FORMAT_TEXT, NULL, NULL, &text, NULL, &error),
                     AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "file_count 2"));
    assert_int_equal(
        am_report(AM_COMMAND_INFO, files + 1, 1, AM_FORMAT_TEXT, NULL, NULL, &text, NULL, &error),
        AM_ERROR_INPUT);
    assert_null(text);
    assert_int_equal(am_report(AM_COMMAND_INFO, files, 1, AM_FORMAT_HTML, NULL, NULL, &text, NULL, &error),
                     AM_ERROR_USAGE);
    assert_int_equal(am_options_new(&options, AM_COMMAND_GROUPS, &error), AM_OK);
    assert_int_equal(am_report(AM_COMMAND_INFO, files, 1, AM_FORMAT_TEXT, options, NULL, &text, NULL, &error),
                     AM_ERROR_USAGE);
    assert_string_equal(error.text,
                        "options: expected those of AM_COMMAND_INFO, got those of AM_COMMAND_GROUPS");
    assert_int_equal(am_options_set(options, "--order", "x", &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "--order x"));
    assert_int_equal(am_options_set(options, "order", "x", &error), AM_ERROR_USAGE);
    assert_string_equal(error.text, "order x: expected one of member, size, impact");
    am_options_free(options);
    assert_int_equal(am_options_new(&options, AM_COMMAND_SEARCH, &error), AM_OK);
    assert_int_equal(am_options_set(options, "policy", "untrained", &error), AM_OK);
    assert_int_equal(am_options_check(options, &error), AM_OK);
    assert_int_equal(am_options_set(options, "searcher", "greedy", &error), AM_OK);
    assert_int_equal(am_options_check(options, &error), AM_ERROR_USAGE);
    am_options_free(options);
}

static void test_conversion(void **state) {
    (void)state;
    char folder[] = "/tmp/automap-api-XXXXXX", path[64];
    AmError error;
    AmModule *first, *second;
    char *roles;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/step.hlo.txt", folder);
    assert_int_equal(am_convert(MODEL, path, NULL, NULL, &error), AM_OK);
    assert_int_equal(am_roles_path(path, &roles, &error), AM_OK);
    assert_null(roles);
    assert_int_equal(am_roles_path(MODEL, &roles, &error), AM_OK);
    assert_non_null(strstr(roles, "mlp_tiny/model.roles.json"));
    assert_int_equal(am_module_read(&first, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_module_read(&second, path, roles, &error), AM_OK);
    assert_string_equal(am_module_sha256(first), am_module_sha256(second));
    am_module_free(first);
    am_module_free(second);
    am_free(roles);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/step.unknown", folder);
    assert_int_not_equal(am_convert(MODEL, path, NULL, NULL, &error), AM_OK);
    assert_int_equal(rmdir(folder), 0);
}

/* The module in mixed precision is another module; its roles go with it. */
static void test_mixed_precision(void **state) {
    (void)state;
    char folder[] = "/tmp/automap-api-XXXXXX", path[64];
    AmError error;
    AmModule *first, *second;
    AmOptions *options, *others;
    char *roles;
    AmParameter parameter = {.size = sizeof parameter};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.hlo.pb", folder);
    assert_int_equal(am_options_new(&options, AM_COMMAND_CONVERT, &error), AM_OK);
    assert_int_equal(am_options_set(options, "mixed_precision", "f16", &error), AM_ERROR_USAGE);
    assert_int_equal(am_options_set(options, "mixed_precision", "bf16", &error), AM_OK);
    assert_int_equal(am_options_new(&others, AM_COMMAND_INFO, &error), AM_OK);
    assert_int_equal(am_convert(MODEL, path, others, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_convert(MODEL, path, options, NULL, &error), AM_OK);
    assert_int_equal(am_roles_path(path, &roles, &error), AM_OK);
    assert_non_null(roles);
    assert_int_equal(am_module_read(&first, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_module_read(&second, path, NULL, &error), AM_OK);
    assert_string_not_equal(am_module_sha256(first), am_module_sha256(second));
    for (int32_t p = 0; p < am_module_parameter_count(second); p++) {
        assert_int_equal(am_module_parameter(second, p, &parameter, &error), AM_OK);
        assert_string_not_equal(parameter.type, "bf16");
    }
    assert_int_equal(am_convert(path, path, options, NULL, &error), AM_ERROR_INPUT);
    assert_int_equal(unlink(path) + unlink(roles) + rmdir(folder), 0);
    am_free(roles);
    am_module_free(first);
    am_module_free(second);
    am_options_free(options);
    am_options_free(others);
}

static void test_clusters(void **state) {
    (void)state;
    AmCluster *cluster, *again;
    AmOptions *options;
    AmError error;
    char *text;
    size_t bytes;
    assert_int_equal(am_cluster_open(&cluster, "h100:4", NULL, NULL, &error), AM_OK);
    assert_int_equal(am_cluster_print(cluster, AM_FORMAT_JSON, &text, &bytes, &error), AM_OK);
    assert_int_equal(am_cluster_parse(&again, text, bytes, "copy", &error), AM_OK);
    assert_int_equal(am_cluster_device_count(again), am_cluster_device_count(cluster));
    am_free(text);
    am_cluster_free(again);
    am_cluster_free(cluster);
    assert_int_equal(am_cluster_open(&cluster, NULL, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_options_new(&options, AM_COMMAND_CLUSTER, &error), AM_OK);
    assert_int_equal(am_options_set(options, "between", "x", &error), AM_OK);
    assert_int_equal(am_cluster_open(&cluster, "C", options, NULL, &error), AM_ERROR_USAGE);
    am_options_free(options);
    assert_int_equal(am_report(AM_COMMAND_CLUSTER, NULL, 0, AM_FORMAT_TEXT, NULL, NULL, &text, NULL, &error),
                     AM_OK);
    assert_non_null(strstr(text, "h100:N"));
    am_free(text);
    assert_int_equal(am_features(&text, &bytes, &error), AM_OK);
    assert_true(bytes > 1 && text[bytes - 1] == '\n');
    am_free(text);
}

static void test_plan_summary(void **state) {
    (void)state;
    AmModule *module;
    AmCluster *cluster;
    AmOptions *options;
    AmPlan *plan, *copy;
    AmError error;
    char *text, *json;
    size_t bytes;
    assert_int_equal(am_module_read(&module, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_cluster_read(&cluster, "nominal:2", &error), AM_OK);
    assert_int_equal(am_options_new(&options, AM_COMMAND_SEARCH, &error), AM_OK);
    assert_int_equal(am_options_set(options, "baseline", "data_parallel", &error), AM_OK);
    assert_int_equal(am_search(&plan, module, cluster, options, NULL, &error), AM_OK);
    assert_int_equal(am_plan_print(plan, AM_FORMAT_TEXT, 0, &text, NULL, &error), AM_OK);
    assert_non_null(strstr(text, "data_parallel"));
    am_free(text);
    assert_int_equal(am_plan_print(plan, AM_FORMAT_TERMINAL, 0, &text, NULL, &error), AM_OK);
    assert_non_null(strchr(text, '\033'));
    am_free(text);
    assert_int_equal(am_plan_print(plan, AM_FORMAT_JSON, 1, &text, NULL, &error), AM_OK);
    assert_non_null(strstr(text, "\"baselines\":{\"data_parallel\":"));
    am_free(text);
    assert_int_equal(am_plan_write_for(plan, "nobody", "x.json", &error), AM_ERROR_USAGE);
    assert_int_equal(am_module_check_target(module, "nobody", &error), AM_ERROR_USAGE);
    assert_int_equal(am_module_check_target(module, "jax", &error), AM_OK);
    assert_int_equal(am_module_check_target(module, "megatron", &error), AM_ERROR_INFEASIBLE);
    /* A plan from a file has no baselines. */
    assert_int_equal(am_plan_to_json(plan, &json, &bytes, &error), AM_OK);
    assert_int_equal(am_plan_parse(&copy, module, json, bytes, NULL, &error), AM_OK);
    assert_int_equal(am_plan_write_for(copy, "jax", "x.json", &error), AM_ERROR_INFEASIBLE);
    assert_int_equal(am_plan_print(copy, AM_FORMAT_TEXT, 0, &text, NULL, &error), AM_OK);
    assert_non_null(strstr(text, "memory  "));
    assert_null(strstr(text, "relative"));
    am_free(text);
    assert_int_equal(am_plan_print(copy, AM_FORMAT_JSON, 0, &text, NULL, &error), AM_OK);
    am_free(text);
    am_free(json);
    am_plan_free(copy);
    am_plan_free(plan);
    am_options_free(options);
    am_cluster_free(cluster);
    am_module_free(module);
}

/* Trainings take longer than a unit test may; tests/e2e/test_agent_search.py has one. */
static void test_agents(void **state) {
    (void)state;
    char folder[] = "/tmp/automap-api-XXXXXX", path[64];
    AmOptions *options;
    AmError error;
    const char *const files[] = {AGENT, path};
    char *text;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/arrays.npz", folder);
    assert_int_equal(am_options_new(&options, AM_COMMAND_AGENT_TRAIN, &error), AM_OK);
    assert_int_equal(am_agent_write(files, 1, path, options, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_agent_write(NULL, 0, "agent.txt", options, NULL, &error), AM_ERROR_USAGE);
    am_options_free(options);
    assert_int_equal(am_options_new(&options, AM_COMMAND_AGENT_GENERATE, &error), AM_OK);
    assert_int_equal(am_options_set(options, "count", "1", &error), AM_OK);
    if (am_agent_write(NULL, 0, path, options, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    am_options_free(options);
    assert_int_equal(am_options_new(&options, AM_COMMAND_AGENT_EVALUATE, &error), AM_OK);
    assert_int_equal(am_options_set(options, "width", "1", &error), AM_OK);
    if (am_report(AM_COMMAND_AGENT_EVALUATE, files, 2, AM_FORMAT_JSON, options, NULL, &text, NULL, &error) !=
        AM_OK)
        fail_msg("%s", error.text);
    assert_non_null(strstr(text, "\"space\":\"chain\""));
    am_free(text);
    assert_int_equal(am_agent_write(NULL, 0, path, options, NULL, &error), AM_ERROR_USAGE);
    am_options_free(options);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reports_of_a_module),
        cmocka_unit_test(test_messages_of_a_thread),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_conversion),
        cmocka_unit_test(test_mixed_precision),
        cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_plan_summary),
        cmocka_unit_test(test_agents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
