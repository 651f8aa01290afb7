/* Training steps of image models whose positions are split: the losses and the
 * state of one device, with halos in both passes. */
/* cost: 9 seconds */
#include "lowering/spmd/lower.h"
#include "tests/support/runner_case.h"
#include "tests/support/sample.h"

static void check_model(const char *model) {
    static const char *const meshes[] = {"height=2", "height=3", "height=2,width=2"};
    for (int32_t m = sample_of(0, 2); m < 3; m++)
        check_split(model, (Split){meshes[m], choose_positions, 0}, 5e-6, 2e-4);
}

static void test_positions_are_classes(void **state) {
    (void)state;
    static const char *const models[] = {"vgg_tiny", "resnet_tiny", "unet_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char path[512];
        AmError error = {0};
        PlanContext *context;
        int32_t spatial = 0;
        join(path, sizeof path, models[m], "model.hlo.pb");
        if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
        for (int32_t c = 0; c < context->classes->count; c++) {
            const DimensionClass *class = &context->classes->classes[c];
            spatial += class->is_spatial;
            if (class->is_spatial) assert_int_equal(class->weight_count, 0);
        }
        assert_int_equal(spatial, 2);
        plan_context_free(context);
    }
}

static void test_vgg(void **state) {
    (void)state;
    check_model("vgg_tiny");
}

static void test_resnet(void **state) {
    (void)state;
    check_model("resnet_tiny");
}

static void test_unet(void **state) {
    (void)state;
    check_model("unet_tiny");
}

/* An engineer's plan: neighbours exchange halos, sums are reduced, nothing is gathered. */
static void test_nothing_is_gathered(void **state) {
    (void)state;
    int32_t counts[PROGRAM_COLLECTIVE_KINDS] = {0};
    char path[512];
    Arena arena = {0};
    AmError error = {0};
    PlanContext *context;
    Assignment *assignment;
    Program *program;
    join(path, sizeof path, "resnet_tiny", "model.hlo.pb");
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    Plan *plan = make_plan(&arena, context, "height=2", choose_positions, 0);
    if (plan_assign(&assignment, &arena, context, &plan->stages[0], &error) != AM_OK ||
        plan_lower(&program, &arena, context, assignment, 0, &error) != AM_OK)
        fail_msg("%s", error.text);
    for (int32_t k = 0; k < program->instruction_count; k++)
        if (program->instructions[k].kind == PROGRAM_COLLECTIVE)
            counts[program->instructions[k].collective->kind]++;
    assert_int_equal(counts[PROGRAM_ALL_GATHER] + counts[PROGRAM_ALL_TO_ALL], 0);
    assert_in_range(counts[PROGRAM_HALO_EXCHANGE], 5, 10);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions_are_classes),
        cmocka_unit_test(test_vgg),
        cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_unet),
        cmocka_unit_test(test_nothing_is_gathered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
