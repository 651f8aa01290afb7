/* Targets: names and aliases, the checks of whole plans, and the table in docs/commands.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "planners/targets/target.h"

static void test_names(void **state) {
    (void)state;
    assert_string_equal(target_name(TARGET_TORCH), "torch");
    assert_string_equal(target_name(TARGET_COUNT), "dtensor");
    assert_int_equal(target_of_name(TARGET_COUNT), TARGET_TORCH);
    assert_null(target_name(TARGET_NAMES));
}

static bool runs(Target target, const Plan *plan) {
    AmError error = {0};
    AmStatus status = target_check_plan(target, plan, &error);
    assert_true(status == AM_OK || (status == AM_ERROR_INFEASIBLE && error.text[0]));
    return status == AM_OK;
}

static void test_plans(void **state) {
    (void)state;
    int32_t devices[] = {0, 1}, swapped[] = {1, 0};
    const double shares[] = {1, 3};
    PlanStage stages[2] = {
        {.devices = devices,
         .mesh = {.axis_count = 1, .axes = {{.name = "data", .size = 2}}, .device_count = 2}}};
    stages[1] = stages[0];
    Plan plan = {.stages = stages, .stage_count = 1, .micro_batches = 1, .schedule = "none"};
    for (int32_t k = 0; k < TARGET_COUNT; k++) assert_true(runs((Target)k, &plan));
    stages[0].devices = swapped;
    assert_false(runs(TARGET_HLO, &plan));
    assert_true(runs(TARGET_TORCH, &plan));
    stages[0].devices = devices;
    plan.micro_batches = 4;
    assert_false(runs(TARGET_SHARDY, &plan));
    plan.stage_count = 2;
    plan.schedule = "1f1b";
    assert_true(runs(TARGET_TORCH, &plan));
    assert_true(runs(TARGET_MEGATRON, &plan));
    assert_false(runs(TARGET_HLO, &plan));
    plan.schedule = "zb_h1";
    assert_false(runs(TARGET_TORCH, &plan));
    assert_true(runs(TARGET_AUTOMAP, &plan));
    plan.schedule = "gpipe";
    assert_false(runs(TARGET_MEGATRON, &plan));
    assert_true(runs(TARGET_TORCHTITAN, &plan));
    stages[1].mesh.axes[0].name = "model";
    assert_false(runs(TARGET_TORCH, &plan));
    stages[1].mesh.axes[0].name = "data";
    stages[1].mesh.axes[0].shares = shares;
    assert_false(runs(TARGET_TORCH, &plan));
    assert_true(runs(TARGET_AUTOMAP, &plan));
    plan = (Plan){.stages = stages, .stage_count = 1, .micro_batches = 1, .schedule = "none"};
    stages[0].offloads_optimizer = true;
    for (int32_t k = 0; k < TARGET_COUNT; k++)
        assert_int_equal(runs((Target)k, &plan),
                         k == TARGET_AUTOMAP || k == TARGET_JAX || k == TARGET_MEGATRON);
    plan.micro_batches = 2; /* JAX streams the state in one program alone */
    assert_false(runs(TARGET_JAX, &plan));
    plan.micro_batches = 1;
    stages[0].recompute.range_count = 1;
    assert_false(runs(TARGET_JAX, &plan));
    stages[0].recompute.range_count = 0;
    plan.stage_count = 2;
    plan.schedule = "1f1b";
    assert_false(runs(TARGET_JAX, &plan));
    assert_true(runs(TARGET_AUTOMAP, &plan));
}

/* One row of Markdown for each target. */
static void append_table(Text *text) {
    static const char *const stages[] = {"one", "alike", "any"};
    static const char *const offloads[] = {"no", "one program", "yes"};
    for (int32_t target = 0; target < TARGET_COUNT; target++) {
        const TargetRow *row = target_row((Target)target);
        text_append(text, "| `%s` | %s | %s | %s | ", row->name, stages[row->stages],
                    row->has_micro_batches ? "any number" : "one", row->has_equal_shards ? "equal" : "any");
        if (row->stages == TARGET_ONE_STAGE) text_append_string(text, "-");
        for (int32_t kind = 0, listed = 0; kind < SCHEDULE_KINDS && row->stages != TARGET_ONE_STAGE; kind++)
            if (row->schedules >> kind & 1)
                text_append(text, "%s%s", listed++ ? ", " : "", schedule_kind_name((ScheduleKind)kind));
        text_append(text, " | %s | %s%s |\n", offloads[row->offload],
                    row->trainer           ? "Megatron-LM's splits, whole layers, no convolution"
                    : row->has_plain_pools ? "no split of overlapping pool windows"
                                           : "-",
                    row->has_own_examples ? "; micro-batches share sums alone" : "");
    }
}

static void test_documented(void **state) {
    (void)state;
    Text table = {0};
    FileBytes page;
    AmError error = {0};
    append_table(&table);
    assert_int_equal(file_read(&page, SOURCE_DIR "/docs/commands.md", &error), AM_OK);
    assert_non_null(strstr(page.data, table.data));
    file_release(&page);
    text_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
