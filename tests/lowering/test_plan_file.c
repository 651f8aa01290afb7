/* Plan files round-trip byte for byte; what JAX cannot hold is refused. */
/* labels: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "base/files/json.h"
#include "lowering/plan_file/plan_parts.h"
#include "planners/export/export_jax.h"
#include "planners/single_stage/single_stage_search.h"
#include "planners/targets/target.h"

#define MODEL     SOURCE_DIR "/datasets/models/mlp_tiny/model.hlo.pb"
#define FILE_NAME "test_plan_file.plan.json"

typedef struct Fixture {
    PlanContext *context;
    Cluster *cluster;
    Arena arena;
    Plan *plan;
} Fixture;

static int set_up(void **state) {
    static Fixture fixture;
    AmError error = {0};
    const SearchRequest request = {.constraints.memory_fraction = 0.9, .space.mesh = "data=2,model=2"};
    SearchScope scope = {.request = &request, .limits.evaluations = 20, .seed = 3};
    SearchResult result = {0};
    assert_int_equal(plan_context_read(&fixture.context, MODEL, NULL, &error), AM_OK);
    assert_int_equal(cluster_read(&fixture.cluster, &fixture.arena, "nominal:4", &error), AM_OK);
    assert_int_equal(
        single_stage_search(&result, &fixture.arena, fixture.context, fixture.cluster, &scope, &error),
        AM_OK);
    fixture.plan = result.plan;
    *state = &fixture;
    return 0;
}

static int tear_down(void **state) {
    Fixture *fixture = *state;
    cluster_free(fixture->cluster);
    plan_context_free(fixture->context);
    arena_free(&fixture->arena);
    remove(FILE_NAME);
    return 0;
}

static void test_round_trip(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    FileBytes first, second;
    Plan *plan;
    json_t *root;
    /* An override that repeats nothing of the axis priorities: the loss's reduction stays replicated. */
    PlanOverride override = {.instruction = 40, .has_factors = true, .factors = {-1, PLAN_NO_OVERRIDE}};
    PlanStage stage = fixture->plan->stages[0];
    Plan written = *fixture->plan;
    stage.overrides = &override;
    stage.override_count = 1;
    written.stages = &stage;
    written.origin = PLAN_ORIGIN_AGENT;
    written.found_seconds[PLAN_ORIGIN_AGENT] = 0.25;
    written.found_seconds[PLAN_ORIGIN_GIVEN] = 0.5;
    assert_int_equal(plan_write(&written, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&first, FILE_NAME, &error), AM_OK);
    assert_int_equal(plan_read(&plan, &root, &fixture->arena, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(plan->stages[0].overrides[0].factors[1], PLAN_NO_OVERRIDE);
    assert_int_equal(plan->seed, 3);
    assert_int_equal(plan->origin, PLAN_ORIGIN_AGENT);
    assert_memory_equal(plan->found_seconds, written.found_seconds, sizeof written.found_seconds);
    assert_int_equal(plan_write(plan, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&second, FILE_NAME, &error), AM_OK);
    assert_string_equal(first.data, second.data);
    file_release(&first);
    file_release(&second);
    json_decref(root);
}

/* Missing overrides, reshard places and recomputation are empty. */
static void test_empty_lists_may_be_left_out(void **state) {
    static const char *const lists[] = {"overrides", "reshards", "recompute"};
    Fixture *fixture = *state;
    AmError error = {0};
    FileBytes bytes;
    Plan *plan;
    json_t *root, *read;
    Text text = {0};
    assert_int_equal(plan_write(fixture->plan, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&bytes, FILE_NAME, &error), AM_OK);
    assert_int_equal(json_parse(&root, "plan", bytes.data, (size_t)bytes.length, &error), AM_OK);
    json_t *stage = json_array_get(json_object_get(root, "stages"), 0);
    for (int32_t k = 0; k < 3; k++) assert_int_equal(json_object_del(stage, lists[k]), 0);
    json_write(&text, root, JSON_STYLE_COMPACT);
    assert_int_equal(file_write(FILE_NAME, text.data, text.length, &error), AM_OK);
    assert_int_equal(plan_read(&plan, &read, &fixture->arena, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(plan->stages[0].override_count, 0);
    text_free(&text);
    file_release(&bytes);
    json_decref(root);
    json_decref(read);
}

/* Storage entries and reshard places are read as written. */
static void test_storage_round_trip(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    FileBytes first, second;
    Plan *plan;
    json_t *root;
    PlanEntry entries[] = {{.class_index = 0},
                           {.class_index = 1, .kind = PLAN_WEIGHTS},
                           {.class_index = PLAN_ANY_CLASS, .kind = PLAN_OPTIMIZER},
                           {.class_index = PLAN_ANY_CLASS, .kind = PLAN_GRADIENTS}};
    PlanReshard reshard[] = {{.instruction = 3, .place = PLAN_REPEATED},
                             {.instruction = 5, .place = PLAN_KEPT}};
    PlanStage stage = fixture->plan->stages[0];
    Plan written = *fixture->plan;
    stage.axis_priorities[1] = (PlanAxisPriority){.count = 4, .entries = entries};
    stage.reshard = reshard;
    stage.reshard_count = 2;
    stage.is_even = stage.keeps_gathered_weights = stage.rounds_parts = true;
    stage.all_reduces_gradients = stage.reduces_in_f32 = true;
    stage.kept_bytes = 12345;
    written.stages = &stage;
    assert_int_equal(plan_write(&written, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&first, FILE_NAME, &error), AM_OK);
    assert_non_null(strstr(first.data, "\"class\": \"*\""));
    assert_int_equal(plan_read(&plan, &root, &fixture->arena, fixture->context, FILE_NAME, &error), AM_OK);
    for (int32_t k = 0; k < 4; k++) {
        assert_int_equal(plan->stages[0].axis_priorities[1].entries[k].class_index, entries[k].class_index);
        assert_int_equal(plan->stages[0].axis_priorities[1].entries[k].kind, entries[k].kind);
    }
    assert_true(plan->stages[0].is_even && plan->stages[0].keeps_gathered_weights);
    assert_true(plan->stages[0].rounds_parts && plan->stages[0].all_reduces_gradients &&
                plan->stages[0].reduces_in_f32);
    assert_int_equal(plan->stages[0].kept_bytes, 12345);
    assert_int_equal(plan->stages[0].reshard_count, 2);
    assert_int_equal(plan->stages[0].reshard[1].instruction, 5);
    assert_int_equal(plan->stages[0].reshard[1].place, PLAN_KEPT);
    assert_int_equal(plan_write(plan, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&second, FILE_NAME, &error), AM_OK);
    assert_string_equal(first.data, second.data);
    file_release(&second);
    json_decref(root);
    /* A compute entry after storage, an unknown class, an invalid place, an instruction twice. */
    static const char *const wrong[][2] = {
        {"\"optimizer\"", "\"compute\"  "},
        {"\"weights\"", "\"weighty\""},
        {"\"repeated\"", "\"whenever\""},
        {"\"even\": true", "\"even\": 1234"},
        {"\"keeps_gathered_weights\": true", "\"keeps_gathered_weights\": 1234"},
        {"\"instruction\": 5", "\"instruction\": 3"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        char *text = malloc(first.length + 1), *at;
        memcpy(text, first.data, first.length + 1);
        at = strstr(text, wrong[k][0]);
        assert_non_null(at);
        memcpy(at, wrong[k][1], strlen(wrong[k][1]));
        assert_int_equal(file_write(FILE_NAME, text, first.length, &error), AM_OK);
        error = (AmError){0};
        assert_int_equal(plan_read(&plan, &root, &fixture->arena, fixture->context, FILE_NAME, &error),
                         AM_ERROR_INPUT);
        assert_string_equal(error.source, FILE_NAME);
        assert_non_null(strstr(error.text, "$.stages[0]"));
        free(text);
    }
    file_release(&first);
}

/* Gives a key of the stage the name that it had in earlier versions. */
static void rename_key(json_t *stage, const char *now, const char *earlier) {
    json_object_set(stage, earlier, json_object_get(stage, now));
    assert_int_equal(json_object_del(stage, now), 0);
}

/* A plan with the keys of earlier versions is the same plan, and its prediction stays valid. */
static void test_earlier_keys(void **state) {
    Fixture *fixture = *state;
    AmError error = {0};
    FileBytes first, second;
    Text text = {0};
    char decided[65];
    json_t *root, *read;
    Plan *plan;
    PlanOverride override = {.instruction = 40, .has_factors = true, .factors = {-1, PLAN_NO_OVERRIDE}};
    PlanReshard reshard = {.instruction = 3, .place = PLAN_REPEATED};
    PlanStage stage = fixture->plan->stages[0];
    Plan written = *fixture->plan;
    stage.overrides = &override;
    stage.reshard = &reshard;
    stage.override_count = stage.reshard_count = 1;
    stage.keeps_gathered_weights = stage.all_reduces_gradients = stage.reduces_in_f32 = true;
    written.stages = &stage;
    assert_int_equal(plan_write(&written, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&first, FILE_NAME, &error), AM_OK);
    assert_int_equal(json_parse(&root, "plan", first.data, (size_t)first.length, &error), AM_OK);
    json_t *object = json_array_get(json_object_get(root, "stages"), 0);
    json_object_set_new(json_array_get(json_object_get(object, "reshards"), 0), "place",
                        json_string("redone"));
    rename_key(object, "axis_priorities", "lists");
    rename_key(object, "overrides", "exceptions");
    rename_key(object, "reshards", "boxing");
    rename_key(object, "keeps_gathered_weights", "keeps_gathered");
    rename_key(object, "all_reduces_gradients", "reduces_whole");
    rename_key(object, "reduces_in_f32", "reduces_wide");
    assert_int_equal(plan_decided_sha256(decided, root, &error), AM_OK);
    json_object_set_new(json_object_get(root, "predicted"), "of", json_string(decided));
    json_write(&text, root, JSON_STYLE_COMPACT);
    assert_int_equal(file_write(FILE_NAME, text.data, text.length, &error), AM_OK);
    assert_int_equal(plan_read(&plan, &read, &fixture->arena, fixture->context, FILE_NAME, &error), AM_OK);
    assert_false(plan->is_changed);
    assert_int_equal(plan_write(plan, fixture->context, FILE_NAME, &error), AM_OK);
    assert_int_equal(file_read(&second, FILE_NAME, &error), AM_OK);
    assert_string_equal(first.data, second.data);
    text_free(&text);
    file_release(&first);
    file_release(&second);
    json_decref(root);
    json_decref(read);
}

static void test_export_refuses(void **state) {
    Fixture *fixture = *state;
    static const double shares[] = {0.25, 0.75};
    PlanStage stages[2] = {fixture->plan->stages[0], fixture->plan->stages[0]};
    Plan several = *fixture->plan, batches = *fixture->plan, uneven = *fixture->plan;
    const struct {
        const Plan *plan;
        const char *reason;
    } cases[] = {{&several, "stages"}, {&batches, "micro-batches"}, {&uneven, "shares"}};
    json_t *root = NULL;
    several.stages = stages;
    several.stage_count = 2;
    batches.micro_batches = 4;
    stages[1].mesh.axes[0].shares = shares;
    uneven.stages = &stages[1];
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        AmError error = {0};
        assert_int_equal(target_check_plan(TARGET_HLO, cases[k].plan, &error), AM_ERROR_INFEASIBLE);
        assert_non_null(strstr(error.text, cases[k].reason));
    }
    AmError error = {0};
    assert_int_equal(export_jax(&root, fixture->context, fixture->plan, &error), AM_OK);
    assert_int_equal(json_array_size(json_object_get(root, "parameters")),
                     (size_t)fixture->context->roles->parameter_count);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_empty_lists_may_be_left_out),
        cmocka_unit_test(test_storage_round_trip), cmocka_unit_test(test_earlier_keys),
        cmocka_unit_test(test_export_refuses)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
