/* Micro-batches: modules rewritten to run in parts of the batch. All numbers are small integers, so
 * that every number of micro-batches, on any mesh, equals the original module bit for bit; modules
 * that cannot be split exactly are refused. */
/* labels: threads */
/* cost: 4 seconds */
#include "lowering/micro_batch/micro_batches.h"
#include "tests/support/loop_case.h"
#include "tests/support/micro_batch_case.h"

typedef struct BatchCase {
    const char *name, *text;
    int32_t numbers[4]; /* of micro-batches; 0 ends */
} BatchCase;

static const BatchCase cases[] = {
    {"dense", batch_dense, {2, 4, 8, 0}},
    {"16-bit gradient", batch_16bit, {2, 4, 8, 0}},
    {"masked mean", batch_masked_mean, {2, 4, 8, 0}},
    {"clipping", batch_clipping, {2, 8, 0}},
    {"loss scale", batch_loss_scale, {2, 4, 0}},
    {"maximum", batch_maximum, {2, 4, 0}},
    {"counters", batch_counters, {2, 4, 8, 0}},
    {"per example", batch_per_example, {2, 4, 8, 0}},
    {"embedding", batch_embedding, {2, 4, 0}},
    {"positions", batch_positions, {2, 4, 8, 0}},
    {"two passes", batch_two_passes, {2, 4, 0}},
    {"sorted", batch_sorted, {2, 4, 0}},
    {"regrouped", batch_regrouped, {2, 4, 0}},
    {"branches", batch_branches, {2, 4, 0}},
    {"layers", loop_layers, {2, 4, 0}},
    {"scaled layers", loop_scaled, {2, 4, 0}},
    {"recurrent", loop_recurrent, {2, 4, 0}},
    {"accumulated", loop_accumulated, {2, 4, 0}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void write_module(char *path, const char *text) {
    int file = mkstemp(path);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
}

static PlanContext *read_module(const char *text) {
    char path[] = "/tmp/automap_batch_XXXXXX";
    AmError error = {0};
    PlanContext *context;
    write_module(path, text);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    unlink(path);
    return context;
}

static void run_steps(const PlanContext *context, const Plan *plan, const char *outputs, const char *name) {
    AmError error = {0};
    Arena arena = {0};
    RunReport report;
    RunOptions options = {.steps = 2,
                          .device = "cpu",
                          .state_path = "random",
                          .seed = 5,
                          .outputs_path = outputs,
                          .plan = plan};
    if (run_module(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s: %s", name, error.text);
    arena_free(&arena);
}

static void test_equal_to_one_batch(void **state) {
    (void)state;
    static const char *const meshes[] = {NULL, "data=2", "data=2,model=2"};
    char expected[64], outputs[64];
    snprintf(expected, sizeof expected, "/tmp/automap_batch_%d_one.npz", (int)getpid());
    snprintf(outputs, sizeof outputs, "/tmp/automap_batch_%d_split.npz", (int)getpid());
    for (int32_t k = 0; k < CASES; k++) {
        PlanContext *primary = read_module(cases[k].text);
        run_steps(primary, NULL, expected, cases[k].name);
        for (int32_t n = 0; cases[k].numbers[n]; n++) {
            MicroBatchSettings settings = {.micro_batches = cases[k].numbers[n]};
            const PlanContext *split;
            AmError error = {0};
            if (plan_context_for(&split, primary, &settings, &error) != AM_OK)
                fail_msg("%s, %d: %s", cases[k].name, settings.micro_batches, error.text);
            for (int32_t m = 0; m < 3; m++) {
                Arena arena = {0};
                Plan *plan = NULL;
                if (meshes[m])
                    plan = make_plan(&arena, split, meshes[m], m == 1 ? choose_batch : choose_some, 1);
                run_steps(split, plan, outputs, cases[k].name);
                compare_states(outputs, expected, 0);
                arena_free(&arena);
            }
        }
        plan_context_free(primary);
    }
    unlink(expected);
    unlink(outputs);
}

/* The loops that run as often as there are micro-batches, outside of others. */
static int32_t count_iterations(const PlanContext *split) {
    int32_t count = 0;
    for (int32_t k = 0; k < split->rules->loop_count; k++) {
        int32_t loop = split->rules->loops[k].instruction;
        count += loop < split->rules->entry_count &&
                 strcmp(split->canonical->computations[split->rules->loops[k].body].name, "micro_batch") == 0;
    }
    return count;
}

static void test_number_of_loops(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t loops;
    } rows[] = {{batch_dense, 1},
                {batch_masked_mean, 2},
                {batch_two_passes, 2},
                {batch_clipping, 1},
                {loop_scaled, 1}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        PlanContext *primary = read_module(rows[k].text);
        const PlanContext *split;
        const MicroBatchSettings settings = {.micro_batches = 2};
        assert_int_equal(plan_context_for(&split, primary, &settings, NULL), AM_OK);
        assert_int_equal(count_iterations(split), rows[k].loops);
        assert_string_equal(split->sha256, primary->sha256);
        assert_int_equal(split->roles->parameter_count, primary->roles->parameter_count);
        plan_context_free(primary);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t micro_batches;
        const char *reason;
    } rows[] = {
        {batch_normalized, 2, "batch_statistics_per_micro_batch"},
        {batch_normalized, 2, "\"model/mean\" (net.py:7)"},
        {batch_ranked, 2, "needs all examples of the batch at once"},
        {batch_ranked, 2, "(net.py:9)"},
        {batch_regrouped, 8, "needs all examples of the batch at once"},
        {batch_dense, 3, "a batch of 8 cannot be split into 3 equal micro-batches"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        PlanContext *primary = read_module(rows[k].text);
        const PlanContext *split;
        const MicroBatchSettings settings = {.micro_batches = rows[k].micro_batches};
        AmError error = {0};
        assert_int_equal(plan_context_for(&split, primary, &settings, &error), AM_ERROR_INFEASIBLE);
        if (!strstr(error.text, rows[k].reason))
            fail_msg("'%s' does not say '%s'", error.text, rows[k].reason);
        plan_context_free(primary);
    }
}

/* With the relaxation each micro-batch has statistics of its own. If they are equal in all micro-batches, the
 * result is that of the whole batch. */
static void test_relaxed(void **state) {
    (void)state;
    char expected[64], outputs[64];
    snprintf(expected, sizeof expected, "/tmp/automap_batch_%d_one.npz", (int)getpid());
    snprintf(outputs, sizeof outputs, "/tmp/automap_batch_%d_relaxed.npz", (int)getpid());
    PlanContext *primary = read_module(batch_normalized);
    run_steps(primary, NULL, expected, "normalized");
    for (int32_t iterations = 2; iterations <= 4; iterations *= 2) {
        const MicroBatchSettings settings = {
            .micro_batches = iterations, .relaxations = 1u << RELAXATION_BATCH_STATISTICS_PER_MICRO_BATCH};
        const PlanContext *split;
        AmError error = {0};
        if (plan_context_for(&split, primary, &settings, &error) != AM_OK) fail_msg("%s", error.text);
        assert_int_equal(split->relaxations, settings.relaxations);
        run_steps(split, NULL, outputs, "normalized");
        compare_states(outputs, expected, 0);
    }
    plan_context_free(primary);
    unlink(expected);
    unlink(outputs);
}

/* A relaxation that a module does not need is not stated. */
static void test_not_relaxed_without_need(void **state) {
    (void)state;
    PlanContext *primary = read_module(batch_dense);
    const MicroBatchSettings settings = {.micro_batches = 2,
                                         .relaxations = 1u << RELAXATION_BATCH_STATISTICS_PER_MICRO_BATCH};
    const PlanContext *split;
    assert_int_equal(plan_context_for(&split, primary, &settings, NULL), AM_OK);
    assert_int_equal(split->relaxations, 0);
    plan_context_free(primary);
}

/* Returns the number of sums of shape [1, 1] and this type that the loops carry. */
static int32_t count_carried(const PlanContext *split, Dtype type) {
    const IrModule *module = split->canonical;
    int32_t count = 0;
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        for (int32_t k = 0; instruction->opcode == IR_WHILE && k < instruction->shape.rank; k++)
            count += instruction->shape.elements[k].type == type &&
                     instruction->shape.elements[k].rank == 2 &&
                     ir_shape_elements(&instruction->shape.elements[k]) == 1;
    }
    return count;
}

/* Sums of 16-bit gradients stay in f32, and have 16 bits under the relaxation. Micro-batches have one example
 * with one element, so that the rounded sum of 256, 1 and 1 in bf16 is 256 and not 258. */
static void test_rounded_sums(void **state) {
    (void)state;
    PlanContext *primary =
        read_module("HloModule m, input_output_alias={ {0}: (0, {}, must-alias) }\n\nENTRY e {\n"
                    "  w = f32[1,1] parameter(0), metadata={op_name=\"state['w']\"}\n"
                    "  x = bf16[4,1] parameter(1), metadata={op_name=\"x\"}\n"
                    "  y = bf16[4,1] parameter(2), metadata={op_name=\"y\"}\n"
                    "  d = bf16[1,1] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                    "  g = f32[1,1] convert(d)\n  n = f32[1,1] subtract(w, g)\n"
                    "  ROOT r = (f32[1,1]) tuple(n)\n}\n");
    for (int32_t k = 0; k < 2; k++) {
        const MicroBatchSettings settings = {.micro_batches = 4,
                                             .relaxations = k ? 1u << RELAXATION_ROUNDED_SUMS : 0};
        const PlanContext *split, *again;
        AmError error = {0};
        if (plan_context_for(&split, primary, &settings, &error) != AM_OK) fail_msg("%s", error.text);
        assert_int_equal(split->relaxations, settings.relaxations);
        assert_int_equal(plan_context_for(&again, primary, &settings, &error), AM_OK);
        assert_ptr_equal(again, split);
        assert_int_equal(count_carried(split, DTYPE_F32) > count_carried(split, DTYPE_BF16), k == 0);
    }
    plan_context_free(primary);
}

/* A rewrite that is interrupted ends, and can be repeated later. */
static void test_stopped(void **state) {
    (void)state;
    PlanContext *primary = read_module(batch_dense);
    volatile sig_atomic_t flag = 1;
    const StopSignal interrupt = {.interrupted = &flag};
    const MicroBatchSettings settings = {.micro_batches = 2, .stop = &interrupt};
    const PlanContext *split;
    AmError error = {0};
    assert_int_equal(plan_context_for(&split, primary, &settings, &error), AM_INTERRUPTED);
    assert_string_equal(error.text, "interrupted while a module was rewritten");
    assert_null(primary->splits);
    flag = 0;
    assert_int_equal(plan_context_for(&split, primary, &settings, NULL), AM_OK);
    plan_context_free(primary);
}

/* Contexts that are adopted later leave, apart from the used ones and their bases. */
static void test_kept_contexts(void **state) {
    (void)state;
    PlanContext *primary = read_module(batch_dense);
    const PlanContext *splits[4];
    for (int32_t k = 0; k < 4; k++) {
        const MicroBatchSettings settings = {.micro_batches = 2 + 2 * (k / 2), .separate_backward = k % 2};
        assert_int_equal(plan_context_for(&splits[k], primary, &settings, NULL), AM_OK);
    }
    plan_context_keep_only(primary, splits[1], &splits[2], 1);
    assert_ptr_equal(primary->splits, splits[2]);
    assert_ptr_equal(primary->splits->next_split, splits[1]);
    assert_ptr_equal(primary->splits->next_split->next_split, splits[0]);
    plan_context_keep_only(primary, NULL, &splits[0], 1);
    assert_ptr_equal(primary->splits, splits[0]);
    assert_null(primary->splits->next_split);
    plan_context_free(primary);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_to_one_batch),
        cmocka_unit_test(test_number_of_loops),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_relaxed),
        cmocka_unit_test(test_not_relaxed_without_need),
        cmocka_unit_test(test_rounded_sums),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_kept_contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
