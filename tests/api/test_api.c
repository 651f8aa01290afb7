/* The public C API: modules, options, search with callbacks, plans, simulation, explanation, export
 * and run; errors of each call, repeated use, and two threads on two modules. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "automap.h"

#define MODEL     SOURCE_DIR "/datasets/models/mlp_tiny/model.hlo.pb"
#define OTHER     SOURCE_DIR "/datasets/models/exact_linear/model.hlo.pb"
#define FILE_NAME "test_api.plan.json"

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
    if (!strstr(error->text, text)) fail_msg("expected \"%s\" in \"%s\"", text, error->text);
}

/* A module, a cluster of four devices, and a plan by 20 evaluations. */
typedef struct Case {
    AmModule *module;
    AmCluster *cluster;
    AmPlan *plan;
} Case;

static AmOptions *new_options(AmCommand command, const char *key, const char *value) {
    AmOptions *options;
    AmError error;
    assert_int_equal(am_options_new(&options, command, &error), AM_OK);
    if (key && am_options_set(options, key, value, &error) != AM_OK) fail_msg("%s", error.text);
    return options;
}

static void open_case(Case *self) {
    AmError error;
    AmOptions *options = new_options(AM_COMMAND_SEARCH, "evaluations", "20");
    assert_int_equal(am_module_read(&self->module, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_cluster_read(&self->cluster, "nominal:4", &error), AM_OK);
    if (am_search(&self->plan, self->module, self->cluster, options, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_error(&error, AM_OK, "");
    am_options_free(options);
}

static void close_case(Case *self) {
    am_plan_free(self->plan);
    am_cluster_free(self->cluster);
    am_module_free(self->module);
}

/* Reads a file; the caller frees it. */
static char *read_bytes(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *data = malloc(1 << 22);
    *bytes = fread(data, 1, 1 << 22, file);
    fclose(file);
    return data;
}

/* ---- modules and clusters ---- */

static void test_modules(void **state) {
    (void)state;
    AmModule *module, *parsed;
    AmError error = dirty_error();
    size_t bytes;
    char *data = read_bytes(MODEL, &bytes);
    assert_int_equal(am_module_read(&module, MODEL, NULL, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    error = dirty_error();
    assert_int_equal(am_module_parse(&parsed, data, bytes, "mlp", &error), AM_OK);
    assert_error(&error, AM_OK, "");
    memset(data, 0, bytes); /* the module does not keep it */
    assert_string_equal(am_module_sha256(parsed), am_module_sha256(module));
    assert_int_equal(strlen(am_module_sha256(module)), 64);
    assert_string_equal(am_module_name(parsed), am_module_name(module));
    assert_true(am_module_instruction_count(module) > 100);
    int32_t weights = 0, count = am_module_parameter_count(module);
    for (int32_t p = 0; p < count; p++) {
        AmParameter facts = {.size = sizeof facts};
        assert_int_equal(am_module_parameter(parsed, p, &facts, &error), AM_OK);
        assert_int_equal(facts.number, p);
        assert_int_equal(facts.size, sizeof facts);
        assert_true(strlen(facts.path) > 0 && strlen(facts.type) > 0);
        for (int32_t d = 0; d < facts.rank; d++) assert_true(facts.dimensions[d] > 0);
        bool is_weight = strcmp(facts.role, "weight") == 0;
        if (is_weight) assert_true(facts.output >= 0 && facts.output < am_module_output_count(module));
        weights += is_weight;
    }
    assert_true(weights > 0 && weights < count);
    assert_true(am_module_loss(module) >= 0);
    assert_null(am_module_warning(module, am_module_warning_count(module)));
    AmParameter none = {.size = sizeof none}, sizeless = {0};
    assert_int_equal(am_module_parameter(module, count, &none, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "parameter");
    assert_int_equal(am_module_parameter(module, -1, &none, &error), AM_ERROR_USAGE);
    assert_int_equal(am_module_parameter(module, 0, &sizeless, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "size");
    am_module_free(parsed);
    am_module_free(module);
    free(data);
}

/* A struct of an older header has fewer bytes; later bytes are unchanged. */
static void test_structs_of_other_sizes(void **state) {
    (void)state;
    AmModule *module;
    AmError error;
    struct {
        AmParameter facts;
        char behind[16];
    } newer;
    AmParameter older;
    assert_int_equal(am_module_read(&module, MODEL, NULL, &error), AM_OK);
    memset(&older, '%', sizeof older);
    older.size = offsetof(AmParameter, type);
    assert_int_equal(am_module_parameter(module, 1, &older, &error), AM_OK);
    assert_int_equal(older.number, 1);
    assert_int_equal(older.rank, 0x25252525);
    memset(&newer, '%', sizeof newer);
    newer.facts.size = sizeof newer;
    assert_int_equal(am_module_parameter(module, 1, &newer.facts, &error), AM_OK);
    assert_int_equal(newer.facts.size, sizeof newer);
    assert_int_equal(newer.behind[0], 0);
    am_module_free(module);
}

static void test_bad_modules_and_clusters(void **state) {
    (void)state;
    AmModule *module;
    AmCluster *cluster;
    AmError error = dirty_error();
    assert_int_equal(am_module_read(&module, "missing.hlo.pb", NULL, &error), AM_ERROR_INPUT);
    assert_null(module);
    assert_non_null(strstr(error.source, "missing.hlo.pb"));
    error = dirty_error();
    assert_int_equal(am_module_parse(&module, "HloModule m\nENTRY e { x = }", 26, NULL, &error),
                     AM_ERROR_INPUT);
    assert_null(module);
    assert_string_equal(error.source, "<memory>");
    assert_int_equal(error.line, 2);
    assert_int_equal(am_module_parse(&module, "", 0, "empty", &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, "empty");
    assert_int_equal(am_module_read(NULL, MODEL, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_module_read(&module, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_module_parse(&module, NULL, 4, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "data");
    error = dirty_error();
    assert_int_equal(am_cluster_read(&cluster, "nowhere", &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "nowhere");
    assert_null(cluster);
    assert_int_equal(am_cluster_parse(&cluster, "{\"format\": 3}", 13, "c.json", &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, "c.json");
    assert_null(cluster);
    assert_int_equal(am_cluster_read(&cluster, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_cluster_parse(&cluster, NULL, 1, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_cluster_read(&cluster, "nominal:2", &error), AM_OK);
    assert_error(&error, AM_OK, "");
    assert_string_equal(error.text, "");
    assert_string_equal(am_cluster_name(cluster), "nominal:2");
    assert_int_equal(am_cluster_device_count(cluster), 2);
    am_cluster_free(cluster);
    am_module_free(NULL);
    am_cluster_free(NULL);
    am_plan_free(NULL);
    am_options_free(NULL);
    am_simulation_free(NULL);
    am_explanation_free(NULL);
    am_free(NULL);
}

/* ---- options ---- */

static void test_options(void **state) {
    (void)state;
    AmError error = dirty_error();
    AmOptions *options;
    assert_int_equal(am_options_new(&options, AM_COMMAND_SEARCH, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    assert_null(am_options_get(options, "mesh"));
    assert_int_equal(am_options_set(options, "memory_fraction", "0.5", &error), AM_OK);
    assert_string_equal(am_options_get(options, "memory-fraction"), "0.5");
    assert_int_equal(am_options_set(options, "memory-fraction", "0.75", &error), AM_OK);
    assert_string_equal(am_options_get(options, "memory_fraction"), "0.75");
    assert_int_equal(am_options_set(options, "memory-fraction", NULL, &error), AM_OK);
    assert_null(am_options_get(options, "memory-fraction"));
    assert_int_equal(am_options_set(options, "even", NULL, &error), AM_OK);
    assert_string_equal(am_options_get(options, "even"), "true");
    assert_int_equal(am_options_set(options, "even", "false", &error), AM_OK);
    assert_null(am_options_get(options, "even"));
    static const struct {
        const char *key, *value, *text;
    } bad[] = {{"mehs", "data=4", "unknown option mehs; did you mean mesh?"},
               {"evaluations", "0", "evaluations 0: expected an integer from 1"},
               {"evaluations", "-1", "expected an integer"},
               {"evaluations", "3.5", "expected an integer"},
               {"seconds", "nan", "seconds nan: expected a number"},
               {"seconds", "inf", "expected a number"},
               {"memory-fraction", "1.5", "expected a number from 1e-06 to 1"},
               {"memory-fraction", "", "the value is empty"},
               {"searcher", "anneel", "did you mean anneal?"},
               {"even", "yes", "expected true or false"},
               {"micro-batches", "some", "expected auto or an integer"},
               {"pin", "kernel", "kernel"},
               {"", "1", "unknown option (empty)"}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        error = dirty_error();
        assert_int_equal(am_options_set(options, bad[k].key, bad[k].value, &error), AM_ERROR_USAGE);
        assert_error(&error, AM_ERROR_USAGE, bad[k].text);
        assert_null(am_options_get(options, bad[k].key));
    }
    assert_int_equal(am_options_set(NULL, "mesh", "data=4", &error), AM_ERROR_USAGE);
    assert_int_equal(am_options_set(options, NULL, "data=4", &error), AM_ERROR_USAGE);
    am_options_free(options);
    assert_int_equal(am_options_new(&options, (AmCommand)99, &error), AM_ERROR_USAGE);
    assert_null(options);
    assert_int_equal(am_options_new(NULL, AM_COMMAND_RUN, &error), AM_ERROR_USAGE);
}

static void test_option_lists(void **state) {
    (void)state;
    AmError error;
    for (int command = AM_COMMAND_SEARCH; command <= AM_COMMAND_RUN; command++) {
        int32_t count = am_option_count((AmCommand)command);
        assert_true(count > 0);
        for (int32_t k = 0; k < count; k++) {
            AmOptionFacts facts = {.size = sizeof facts};
            assert_int_equal(am_option((AmCommand)command, k, &facts, &error), AM_OK);
            assert_true(strlen(facts.key) > 0 && strlen(facts.help) > 0);
        }
        AmOptionFacts none = {.size = sizeof none};
        assert_int_equal(am_option((AmCommand)command, count, &none, &error), AM_ERROR_USAGE);
    }
    assert_int_equal(am_option_count((AmCommand)99), 0);
}

/* ---- search ---- */

static void test_search_errors(void **state) {
    (void)state;
    AmModule *module, *frozen;
    AmCluster *cluster;
    AmPlan *plan;
    AmError error = dirty_error();
    static const char text[] =
        "HloModule m\nENTRY e { x = f32[8] parameter(0) ROOT y = f32[4] slice(x), slice={[0:4]} }";
    assert_int_equal(am_module_read(&module, MODEL, NULL, NULL), AM_OK);
    assert_int_equal(am_module_parse(&frozen, text, strlen(text), NULL, NULL), AM_OK);
    assert_int_equal(am_cluster_read(&cluster, "nominal:2", NULL), AM_OK);
    assert_int_equal(am_search(&plan, NULL, cluster, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "module");
    assert_int_equal(am_search(&plan, module, NULL, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "cluster");
    assert_int_equal(am_search(NULL, module, cluster, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_search(&plan, frozen, cluster, NULL, NULL, &error), AM_ERROR_INPUT);
    assert_error(&error, AM_ERROR_INPUT, "trains nothing");
    assert_null(plan);
    AmOptions *options = new_options(AM_COMMAND_SEARCH, "mesh", "data=3");
    error = dirty_error();
    assert_int_equal(am_search(&plan, module, cluster, options, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "data=3");
    assert_null(plan);
    am_options_free(options);
    options = new_options(AM_COMMAND_SEARCH, "chunks", "2");
    assert_int_equal(am_search(&plan, module, cluster, options, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "only --schedule interleaved_1f1b has chunks");
    am_options_free(options);
    options = new_options(AM_COMMAND_RUN, NULL, NULL);
    assert_int_equal(am_search(&plan, module, cluster, options, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "expected those of AM_COMMAND_SEARCH, got those of AM_COMMAND_RUN");
    am_options_free(options);
    AmCallbacks sizeless = {0};
    assert_int_equal(am_search(&plan, module, cluster, NULL, &sizeless, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "sizeof(AmCallbacks)");
    am_cluster_free(cluster);
    am_module_free(frozen);
    am_module_free(module);
}

/* Counts callbacks, in the thread of the caller. */
typedef struct Seen {
    pthread_t thread;
    int progress, last, messages, episodes, infeasible, steps;
    int stop_at; /* step or progress at which to stop; 0: never */
    double best_seconds;
    char message[512], json[64];
} Seen;

static int see_progress(void *user, const AmProgress *progress) {
    Seen *seen = user;
    assert_true(pthread_equal(seen->thread, pthread_self()));
    assert_true(progress->size >= sizeof *progress);
    seen->progress++;
    seen->last += progress->is_last;
    seen->best_seconds = progress->best_seconds;
    return seen->stop_at > 0 && seen->progress >= seen->stop_at;
}

static void see_message(void *user, AmMessage kind, const char *text) {
    Seen *seen = user;
    (void)kind;
    assert_true(pthread_equal(seen->thread, pthread_self()));
    seen->messages++;
    snprintf(seen->message, sizeof seen->message, "%s", text);
}

static void see_episode(void *user, const char *json) {
    Seen *seen = user;
    seen->episodes++;
    assert_int_equal(json[0], '{');
}

static void see_infeasible(void *user, const char *json) {
    Seen *seen = user;
    assert_true(pthread_equal(seen->thread, pthread_self()));
    seen->infeasible++;
    snprintf(seen->json, sizeof seen->json, "%s", json);
}

static void test_callbacks_of_a_search(void **state) {
    (void)state;
    AmModule *module;
    AmCluster *cluster;
    AmPlan *plan, *same;
    AmError error;
    Seen seen = {.thread = pthread_self()};
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .user = &seen,
                                   .on_progress = see_progress,
                                   .on_message = see_message,
                                   .on_episode = see_episode,
                                   .on_infeasible = see_infeasible};
    assert_int_equal(am_module_read(&module, MODEL, NULL, NULL), AM_OK);
    assert_int_equal(am_cluster_read(&cluster, "nominal:4", NULL), AM_OK);
    AmOptions *options = new_options(AM_COMMAND_SEARCH, "mesh", "data=4");
    assert_int_equal(am_options_set(options, "evaluations", "12", &error), AM_OK);
    assert_int_equal(am_options_set(options, "searcher", "dqn", &error), AM_OK);
    assert_int_equal(am_search(&plan, module, cluster, options, &callbacks, &error), AM_OK);
    assert_true(seen.progress >= 1);
    assert_int_equal(seen.last, 1);
    assert_true(seen.best_seconds >= am_plan_step_seconds(plan));
    assert_int_equal(seen.messages, 1);
    assert_non_null(strstr(seen.message, "--mesh applies to one-stage plans"));
    assert_int_equal(seen.infeasible, 0);
    assert_true(seen.episodes > 0);
    assert_int_equal(am_search(&same, module, cluster, options, NULL, &error), AM_OK);
    assert_true(am_plan_step_seconds(same) == am_plan_step_seconds(plan));
    am_plan_free(same);
    am_plan_free(plan);
    assert_int_equal(am_options_set(options, "memory-fraction", "1e-6", &error), AM_OK);
    assert_int_equal(am_search(&plan, module, cluster, options, &callbacks, &error), AM_ERROR_INFEASIBLE);
    assert_int_equal(error.code, AM_ERROR_INFEASIBLE);
    assert_null(plan);
    assert_int_equal(seen.infeasible, 1);
    assert_int_equal(seen.json[0], '{');
    am_options_free(options);
    am_cluster_free(cluster);
    am_module_free(module);
}

static void test_a_search_is_cancelled(void **state) {
    (void)state;
    AmModule *module;
    AmCluster *cluster;
    AmPlan *plan;
    AmError error = dirty_error();
    volatile sig_atomic_t flag = 1;
    Seen seen = {.thread = pthread_self(), .stop_at = 1};
    AmCallbacks callbacks = {.size = sizeof callbacks, .user = &seen, .on_progress = see_progress};
    assert_int_equal(am_module_read(&module, MODEL, NULL, NULL), AM_OK);
    assert_int_equal(am_cluster_read(&cluster, "nominal:4", NULL), AM_OK);
    AmOptions *options = new_options(AM_COMMAND_SEARCH, "evaluations", "1000000000");
    assert_int_equal(am_options_set(options, "seconds", "100", &error), AM_OK);
    assert_int_equal(am_search(&plan, module, cluster, options, &callbacks, &error), AM_INTERRUPTED);
    assert_error(&error, AM_INTERRUPTED, "interrupted");
    assert_true(am_plan_step_seconds(plan) > 0);
    am_plan_free(plan);
    callbacks = (AmCallbacks){.size = sizeof callbacks, .cancel = &flag};
    assert_int_equal(am_search(&plan, module, cluster, options, &callbacks, &error), AM_INTERRUPTED);
    assert_int_equal(error.code, AM_INTERRUPTED);
    am_plan_free(plan);
    am_options_free(options);
    am_cluster_free(cluster);
    am_module_free(module);
}

typedef struct Searching {
    const char *model;
    double seconds;
    char *json;
} Searching;

static void *search_in_thread(void *user) {
    Searching *self = user;
    AmModule *module;
    AmCluster *cluster;
    AmPlan *plan;
    AmError error;
    AmOptions *options;
    AmStatus status = am_options_new(&options, AM_COMMAND_SEARCH, &error);
    if (status == AM_OK) status = am_options_set(options, "evaluations", "30", &error);
    if (status == AM_OK) status = am_module_read(&module, self->model, NULL, &error);
    if (status == AM_OK) status = am_cluster_read(&cluster, "nominal:4", &error);
    if (status == AM_OK) status = am_search(&plan, module, cluster, options, NULL, &error);
    if (status == AM_OK) status = am_plan_to_json(plan, &self->json, NULL, &error);
    if (status != AM_OK) return self;
    self->seconds = am_plan_step_seconds(plan);
    am_plan_free(plan);
    am_cluster_free(cluster);
    am_module_free(module);
    am_options_free(options);
    return NULL;
}

/* Two modules in two threads get the plans that they get alone. */
static void test_two_threads(void **state) {
    (void)state;
    Searching alone[2] = {{.model = MODEL}, {.model = OTHER}},
              beside[2] = {{.model = MODEL}, {.model = OTHER}};
    pthread_t threads[2];
    for (int k = 0; k < 2; k++) assert_null(search_in_thread(&alone[k]));
    for (int k = 0; k < 2; k++) pthread_create(&threads[k], NULL, search_in_thread, &beside[k]);
    for (int k = 0; k < 2; k++) {
        void *failed;
        pthread_join(threads[k], &failed);
        assert_null(failed);
        assert_true(beside[k].seconds > 0);
        assert_string_equal(beside[k].json, alone[k].json);
        am_free(beside[k].json);
        am_free(alone[k].json);
    }
}

/* ---- plans ---- */

static void test_plan_files(void **state) {
    (void)state;
    Case self;
    AmModule *other;
    AmPlan *again;
    AmError error = dirty_error();
    char *json, *same;
    size_t bytes;
    open_case(&self);
    assert_int_equal(am_plan_write(self.plan, FILE_NAME, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    assert_int_equal(am_plan_read(&again, self.module, FILE_NAME, &error), AM_OK);
    assert_true(am_plan_step_seconds(again) == am_plan_step_seconds(self.plan));
    am_plan_free(again);
    assert_int_equal(am_plan_to_json(self.plan, &json, &bytes, &error), AM_OK);
    assert_int_equal(strlen(json), bytes);
    assert_int_equal(am_plan_parse(&again, self.module, json, bytes, "p", &error), AM_OK);
    assert_int_equal(am_plan_to_json(again, &same, NULL, &error), AM_OK);
    assert_string_equal(same, json);
    assert_int_equal(am_plan_baseline_count(again), 0);
    am_plan_free(again);
    am_free(same);
    am_free(json);
    assert_int_equal(am_module_read(&other, OTHER, NULL, &error), AM_OK);
    assert_int_equal(am_plan_read(&again, other, FILE_NAME, &error), AM_ERROR_INPUT);
    char digits[2][13];
    snprintf(digits[0], sizeof digits[0], "%.12s", am_module_sha256(self.module));
    snprintf(digits[1], sizeof digits[1], "%.12s", am_module_sha256(other));
    assert_error(&error, AM_ERROR_INPUT, digits[0]);
    assert_error(&error, AM_ERROR_INPUT, digits[1]);
    assert_null(again);
    remove(FILE_NAME);
    error = dirty_error();
    assert_int_equal(am_plan_read(&again, other, "missing.plan.json", &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.source, "missing.plan.json"));
    assert_int_equal(am_plan_parse(&again, other, "{}", 2, "p", &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, "p");
    assert_int_equal(am_plan_write(self.plan, "/nonexistent/p.json", &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_write(NULL, "p.json", &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "plan");
    assert_int_equal(am_plan_read(&again, NULL, "p.json", &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_read(&again, other, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_parse(&again, other, NULL, 0, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_to_json(self.plan, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_to_json(NULL, &json, NULL, &error), AM_ERROR_USAGE);
    am_module_free(other);
    close_case(&self);
}

static void test_plan_accessors(void **state) {
    (void)state;
    Case self;
    AmError error;
    int32_t devices = 0, split = 0;
    open_case(&self);
    assert_true(am_plan_step_seconds(self.plan) > 0);
    assert_true(am_plan_bound_seconds(self.plan) > 0);
    assert_true(am_plan_bound_seconds(self.plan) <= am_plan_step_seconds(self.plan));
    double gap = am_plan_step_seconds(self.plan) / am_plan_bound_seconds(self.plan) - 1;
    assert_true(fabs(am_plan_gap(self.plan) - gap) < 1e-12);
    assert_true(am_plan_evaluations(self.plan) > 0);
    assert_true(am_plan_micro_batches(self.plan) >= 1);
    assert_string_equal(am_plan_searcher(self.plan), "auto");
    assert_true(strlen(am_plan_schedule(self.plan)) > 0 && strlen(am_plan_space(self.plan)) > 0);
    for (int32_t s = 0; s < am_plan_stage_count(self.plan); s++) {
        AmStage stage = {.size = sizeof stage};
        int32_t product = 1;
        assert_int_equal(am_plan_stage(self.plan, s, &stage, &error), AM_OK);
        assert_int_equal(stage.first, devices);
        for (int32_t axis = 0; axis < stage.axis_count; axis++) {
            assert_true(strlen(stage.axis_names[axis]) > 0);
            product *= stage.axis_sizes[axis];
        }
        assert_int_equal(product, stage.device_count);
        for (int32_t d = 0; d < stage.device_count; d++) {
            AmDevice device = {.size = sizeof device};
            assert_int_equal(am_plan_device(self.plan, devices + d, &device, &error), AM_OK);
            assert_int_equal(device.stage, s);
            assert_int_equal(device.device, stage.devices[d]);
            assert_true(device.peak_bytes > 0 && device.peak_bytes <= am_plan_peak_bytes(self.plan));
            assert_true(device.compute_seconds > 0);
        }
        devices += stage.device_count;
    }
    assert_int_equal(devices, am_plan_device_count(self.plan));
    int32_t count = am_plan_parameter_count(self.plan);
    assert_int_equal(count, am_module_parameter_count(self.module));
    for (int32_t p = 0; p < count; p++) {
        AmPlanParameter row = {.size = sizeof row};
        AmParameter facts = {.size = sizeof facts};
        assert_int_equal(am_plan_parameter(self.plan, p, &row, &error), AM_OK);
        assert_int_equal(am_module_parameter(self.module, p, &facts, &error), AM_OK);
        assert_string_equal(row.path, facts.path);
        assert_int_equal(row.rank, facts.rank);
        for (int32_t d = 0; d < row.rank; d++) {
            assert_int_equal(row.dimensions[d], facts.dimensions[d]);
            assert_non_null(strstr(row.sharding, *row.axes[d] ? row.axes[d] : "-"));
            split += *row.axes[d] != '\0';
        }
    }
    assert_true(split > 0);
    assert_true(am_plan_baseline_count(self.plan) > 5);
    AmBaseline baseline = {.size = sizeof baseline};
    assert_int_equal(am_plan_baseline(self.plan, 0, &baseline, &error), AM_OK);
    assert_string_equal(baseline.name, "data_parallel");
    assert_true(baseline.seconds >= am_plan_step_seconds(self.plan));
    AmStage stage = {.size = sizeof stage};
    AmDevice device = {.size = sizeof device};
    AmPlanParameter row = {.size = sizeof row};
    assert_int_equal(am_plan_stage(self.plan, am_plan_stage_count(self.plan), &stage, &error),
                     AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "stage");
    assert_int_equal(am_plan_device(self.plan, -1, &device, &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_parameter(self.plan, count, &row, &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_baseline(self.plan, 1000, &baseline, &error), AM_ERROR_USAGE);
    assert_int_equal(am_plan_stage(self.plan, 0, NULL, &error), AM_ERROR_USAGE);
    close_case(&self);
}

/* ---- simulation, explanation, export ---- */

static void test_simulation(void **state) {
    (void)state;
    Case self;
    AmCluster *slower;
    AmSimulation *simulation, *slowed;
    AmError error = dirty_error();
    char *text;
    size_t bytes;
    open_case(&self);
    assert_int_equal(am_simulate(&simulation, self.plan, NULL, NULL, NULL, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    double seconds = am_simulation_step_seconds(simulation);
    assert_true(fabs(seconds / am_plan_step_seconds(self.plan) - 1) < 1e-9);
    assert_int_equal(am_simulation_fits(simulation), 1);
    assert_int_equal(am_simulation_device_count(simulation), am_plan_device_count(self.plan));
    AmDevice device = {.size = sizeof device};
    assert_int_equal(am_simulation_device(simulation, 0, &device, &error), AM_OK);
    assert_true(device.peak_bytes > 0);
    assert_int_equal(am_simulation_device(simulation, 99, &device, &error), AM_ERROR_USAGE);
    assert_int_equal(am_simulation_print(simulation, AM_FORMAT_TEXT, &text, &bytes, &error), AM_OK);
    assert_int_equal(strlen(text), bytes);
    am_free(text);
    assert_int_equal(am_simulation_print(simulation, AM_FORMAT_JSON, &text, NULL, &error), AM_OK);
    assert_int_equal(text[0], '{');
    assert_null(strstr(text, "derivation"));
    am_free(text);
    assert_int_equal(am_simulation_print(simulation, AM_FORMAT_HTML, &text, NULL, &error), AM_ERROR_USAGE);
    am_simulation_free(simulation);
    AmOptions *options = new_options(AM_COMMAND_SIMULATE, "slow", "0=4");
    assert_int_equal(am_options_set(options, "verbose", "true", &error), AM_OK);
    assert_int_equal(am_cluster_read(&slower, "nominal:8", &error), AM_OK);
    assert_int_equal(am_simulate(&slowed, self.plan, slower, options, NULL, &error), AM_OK);
    assert_true(am_simulation_step_seconds(slowed) > seconds);
    assert_int_equal(am_simulation_print(slowed, AM_FORMAT_JSON, &text, NULL, &error), AM_OK);
    assert_non_null(strstr(text, "derivation"));
    am_free(text);
    am_simulation_free(slowed);
    am_cluster_free(slower);
    assert_int_equal(am_options_set(options, "slow", "0=4,0=4", &error), AM_OK);
    assert_int_equal(am_simulate(&slowed, self.plan, NULL, options, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "slow 0=4,0=4: device 0 is named twice");
    assert_null(slowed);
    am_options_free(options);
    assert_int_equal(am_cluster_read(&slower, "nominal:1", &error), AM_OK);
    assert_int_equal(am_simulate(&slowed, self.plan, slower, NULL, NULL, &error), AM_ERROR_INPUT);
    assert_int_equal(am_simulate(&slowed, NULL, slower, NULL, NULL, &error), AM_ERROR_USAGE);
    am_cluster_free(slower);
    close_case(&self);
}

static void test_explanation(void **state) {
    (void)state;
    Case self;
    AmExplanation *explanation;
    AmError error = dirty_error();
    Seen seen = {.thread = pthread_self()};
    volatile sig_atomic_t flag = 1;
    AmCallbacks callbacks = {.size = sizeof callbacks, .user = &seen, .on_progress = see_progress};
    static const char *const begins[] = {[AM_FORMAT_TEXT] = "on cluster nominal:4",
                                         [AM_FORMAT_JSON] = "\"decisions\"",
                                         [AM_FORMAT_HTML] = "<html"};
    char *text;
    open_case(&self);
    AmOptions *options = new_options(AM_COMMAND_EXPLAIN, "evaluations", "2");
    assert_int_equal(am_options_set(options, "timeline", NULL, &error), AM_OK);
    assert_int_equal(am_explain(&explanation, self.plan, options, &callbacks, &error), AM_OK);
    assert_error(&error, AM_OK, "");
    assert_int_equal(seen.last, 1);
    for (int format = AM_FORMAT_TEXT; format <= AM_FORMAT_HTML; format++) {
        assert_int_equal(am_explanation_print(explanation, (AmFormat)format, &text, NULL, &error), AM_OK);
        assert_non_null(strstr(text, begins[format]));
        am_free(text);
    }
    assert_int_equal(am_explanation_print(explanation, (AmFormat)9, &text, NULL, &error), AM_ERROR_USAGE);
    assert_null(text);
    am_explanation_free(explanation);
    callbacks = (AmCallbacks){.size = sizeof callbacks, .cancel = &flag};
    assert_int_equal(am_explain(&explanation, self.plan, NULL, &callbacks, &error), AM_INTERRUPTED);
    assert_error(&error, AM_INTERRUPTED, "interrupted");
    assert_null(explanation);
    assert_int_equal(am_explain(&explanation, NULL, NULL, NULL, &error), AM_ERROR_USAGE);
    am_options_free(options);
    close_case(&self);
}

static void test_diff(void **state) {
    (void)state;
    Case self;
    AmPlan *other;
    volatile sig_atomic_t flag = 1;
    const AmCallbacks stop = {.size = sizeof stop, .cancel = &flag};
    char *text, *json;
    size_t bytes;
    open_case(&self);
    assert_int_equal(am_plan_to_json(self.plan, &json, &bytes, NULL), AM_OK);
    assert_int_equal(am_plan_parse(&other, self.module, json, bytes, "other.json", NULL), AM_OK);
    assert_int_equal(am_diff(self.plan, other, AM_FORMAT_TEXT, NULL, &text, &bytes, NULL), AM_OK);
    assert_non_null(strstr(text, "B = other.json\nthe plans have the same decisions"));
    am_free(text);
    assert_int_equal(am_diff(self.plan, other, AM_FORMAT_TEXT, &stop, &text, NULL, NULL), AM_INTERRUPTED);
    am_plan_free(other);
    am_free(json);
    close_case(&self);
}

static void test_export(void **state) {
    (void)state;
    Case self;
    AmError error = dirty_error();
    AmPlan *plan;
    Seen seen = {.thread = pthread_self()};
    const AmCallbacks callbacks = {.size = sizeof callbacks, .user = &seen, .on_message = see_message};
    static const char *const formats[] = {"jax", "hlo", "shardy", "dtensor"};
    static const char *const contents[] = {"automap-jax-1", "HloModule", "HloModule", "automap-dtensor-1"};
    char *text;
    size_t bytes;
    open_case(&self);
    AmOptions *search = new_options(AM_COMMAND_SEARCH, "baseline", "data_parallel");
    assert_int_equal(am_search(&plan, self.module, self.cluster, search, NULL, &error), AM_OK);
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        AmStatus status = am_export(plan, formats[k], NULL, &callbacks, &text, &bytes, &error);
        if (status != AM_OK) fail_msg("%s: %s", formats[k], error.text);
        assert_non_null(strstr(text, contents[k]));
        assert_int_equal(strlen(text), bytes);
        am_free(text);
    }
    assert_int_equal(seen.messages, 4);
    AmOptions *options = new_options(AM_COMMAND_EXPORT, "json", NULL);
    assert_int_equal(am_export(plan, "hlo", options, NULL, &text, NULL, &error), AM_OK);
    assert_int_equal(text[0], '{');
    am_free(text);
    assert_int_equal(am_options_set(options, "spelling", "named", &error), AM_OK);
    assert_int_equal(am_export(plan, "jax", options, NULL, &text, NULL, &error), AM_ERROR_USAGE);
    assert_null(text);
    error = dirty_error();
    assert_int_equal(am_export(plan, "jaxx", NULL, NULL, &text, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "did you mean jax?");
    am_plan_free(plan);
    assert_int_equal(am_options_set(search, "baseline", "even_pipeline", &error), AM_OK);
    assert_int_equal(am_search(&plan, self.module, self.cluster, search, NULL, &error), AM_OK);
    assert_true(am_plan_stage_count(plan) > 1);
    assert_int_equal(am_export(plan, "hlo", NULL, NULL, &text, NULL, &error), AM_ERROR_INFEASIBLE);
    assert_error(&error, AM_ERROR_INFEASIBLE, "stages");
    assert_null(text);
    assert_int_equal(am_export(NULL, "jax", NULL, NULL, &text, NULL, &error), AM_ERROR_USAGE);
    assert_int_equal(am_export(plan, NULL, NULL, NULL, &text, NULL, &error), AM_ERROR_USAGE);
    am_options_free(options);
    am_options_free(search);
    am_plan_free(plan);
    close_case(&self);
}

/* ---- run ---- */

static int see_step(void *user, const AmStep *step) {
    Seen *seen = user;
    assert_int_equal(step->step, seen->steps);
    assert_true(isfinite(step->loss));
    seen->steps++;
    return seen->stop_at > 0 && seen->steps >= seen->stop_at;
}

static void test_run(void **state) {
    (void)state;
    Case self;
    AmError error = dirty_error();
    Seen seen = {0};
    AmRunResult result = {.size = sizeof result}, alone = {.size = sizeof alone};
    const AmCallbacks callbacks = {.size = sizeof callbacks, .user = &seen, .on_step = see_step};
    AmOptions *options = new_options(AM_COMMAND_RUN, "state", "random");
    assert_int_equal(am_options_set(options, "steps", "4", &error), AM_OK);
    assert_int_equal(am_options_set(options, "data", SOURCE_DIR "/datasets/models/mlp_tiny/data.npz", &error),
                     AM_OK);
    open_case(&self);
    if (am_run(self.module, self.plan, options, &callbacks, &result, &error) != AM_OK)
        fail_msg("%s: %s", error.source, error.text);
    assert_error(&error, AM_OK, "");
    assert_int_equal(seen.steps, 4);
    assert_int_equal(result.steps, 4);
    assert_true(result.seconds_per_step > 0 && result.peak_bytes > 0);
    assert_int_equal(am_run(self.module, NULL, options, NULL, &alone, &error), AM_OK);
    assert_true(fabs(alone.last_loss - result.last_loss) < 1e-3 * fabs(alone.last_loss));
    assert_true(result.last_loss != result.first_loss);
    seen = (Seen){.stop_at = 2};
    error = dirty_error();
    assert_int_equal(am_run(self.module, self.plan, options, &callbacks, &result, &error), AM_INTERRUPTED);
    assert_error(&error, AM_INTERRUPTED, "interrupted");
    assert_int_equal(result.steps, 2);
    assert_int_equal(am_options_set(options, "data", "missing.npz", &error), AM_OK);
    assert_int_equal(am_run(self.module, self.plan, options, NULL, NULL, &error), AM_ERROR_INPUT);
    assert_int_equal(am_options_set(options, "trace-steps", "2", &error), AM_OK);
    assert_int_equal(am_run(self.module, self.plan, options, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "--trace-steps needs --trace");
    assert_int_equal(am_run(NULL, NULL, NULL, NULL, NULL, &error), AM_ERROR_USAGE);
    AmModule *twin;
    assert_int_equal(am_module_read(&twin, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_run(twin, self.plan, options, NULL, NULL, &error), AM_ERROR_USAGE);
    assert_error(&error, AM_ERROR_USAGE, "another module");
    am_module_free(twin);
    am_options_free(options);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_structs_of_other_sizes),
        cmocka_unit_test(test_bad_modules_and_clusters),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_option_lists),
        cmocka_unit_test(test_search_errors),
        cmocka_unit_test(test_callbacks_of_a_search),
        cmocka_unit_test(test_a_search_is_cancelled),
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_plan_files),
        cmocka_unit_test(test_plan_accessors),
        cmocka_unit_test(test_simulation),
        cmocka_unit_test(test_explanation),
        cmocka_unit_test(test_diff),
        cmocka_unit_test(test_export),
        cmocka_unit_test(test_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
