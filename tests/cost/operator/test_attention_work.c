/* Work and price of fused attention: the figures of a Llama layer with grouped heads, and of BERT without a
 * mask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "bench/attention_regions.h"
#include "cost/cluster/operator_curves.h"
#include "cost/operator/operator.h"
#include "lowering/spmd/lower.h"
#include "models/transformer.h"

enum { BATCH = 2, HEADS = 8, KEY_HEADS = 2, LENGTH = 128, SIZE = 16 };

/* The steps of a layer's forward and backward operator. */
typedef struct Operators {
    PlanContext *whole;
    Program *program;
    const ProgramStep *forward, *backward;
} Operators;

static Operators operators_of(Arena *arena, TransformerFamily family) {
    const TransformerShape shape = {.family = family,
                                    .layers = 1,
                                    .width = (int64_t)HEADS * SIZE,
                                    .heads = HEADS,
                                    .kv_heads = family == TRANSFORMER_LLAMA ? KEY_HEADS : HEADS,
                                    .ffn = 256,
                                    .vocabulary = 64,
                                    .sequence = LENGTH,
                                    .batch = BATCH,
                                    .type = DTYPE_BF16,
                                    .optimizer = TRANSFORMER_SGD};
    AmError error = {0};
    IrModule *module;
    Operators made = {0};
    PlanContext *fused;
    if (transformer_module(&module, &shape, &error) != AM_OK ||
        plan_context_of(&made.whole, module, NULL, &error) != AM_OK ||
        plan_context_fuse(&fused, made.whole, &error) != AM_OK ||
        plan_lower_one_device(&made.program, arena, fused, &error) != AM_OK)
        fail_msg("%s", error.text);
    for (int32_t s = 0; s < made.program->execution.step_count; s++) {
        const ProgramStep *step = &made.program->execution.steps[s];
        if (step->fusion >= 0 || !made.program->instructions[step->instruction].regions.in_blocks) continue;
        if (made.forward) made.backward = step;
        else made.forward = step;
    }
    assert_non_null(made.forward);
    assert_non_null(made.backward);
    return made;
}

static void check_work(const AttentionWork *work, bool is_backward, bool is_causal) {
    double products = is_backward ? 5 : 2;
    assert_int_equal(work->type, DTYPE_BF16);
    assert_true(work->rows == BATCH * HEADS * LENGTH);
    assert_true(work->keys == LENGTH);
    assert_true(work->flops == products * 2 * work->rows * work->keys * SIZE);
    assert_int_equal(work->is_backward, is_backward);
    assert_int_equal(work->is_causal, is_causal);
}

static void work_is_that_of_the_products(void **state) {
    (void)state;
    for (int32_t masked = 0; masked < 2; masked++) {
        Arena arena = {0};
        Operators found = operators_of(&arena, masked ? TRANSFORMER_LLAMA : TRANSFORMER_BERT);
        OperatorWork forward, backward;
        operator_work(&forward, found.program, found.forward);
        operator_work(&backward, found.program, found.backward);
        check_work(&forward.attention, false, masked);
        check_work(&backward.attention, true, masked);
        const ProgramStep *steps[] = {found.forward, found.backward};
        for (int32_t k = 0; k < 2; k++) {
            AttentionWork whole;
            attention_work_unsharded(&whole, found.program->module,
                                     found.program->instructions[steps[k]->instruction].origin);
            check_work(&whole, k == 1, true);
        }
        arena_free(&arena);
        plan_context_free(found.whole);
    }
}

/* 16-bit types have the time of measured kernels, others the roofline of the products. */
static void price_is_measured(void **state) {
    (void)state;
    Arena arena = {0};
    Operators found = operators_of(&arena, TRANSFORMER_LLAMA);
    OperatorWork work;
    operator_work(&work, found.program, found.backward);
    ClusterDeviceType type = {.memory_bytes_per_second = 1e15, .kernel_launch_seconds = 1e-6};
    type.flops_per_second[DTYPE_BF16] = 312e12;
    const AttentionSize size = {.batch = BATCH,
                                .heads = HEADS,
                                .rows = LENGTH,
                                .keys = LENGTH,
                                .key_size = SIZE,
                                .value_size = SIZE,
                                .is_causal = true};
    double expected =
        measured_attention_seconds(measured_device_find("A100"), ATTENTION_BACKWARD, &size, 312e12);
    assert_true(fabs(operator_seconds(&work, &type) - 1e-6 - expected) < 1e-9 * expected);
    type.memory_bytes_per_second = 1e6;
    assert_true(fabs(operator_seconds(&work, &type) - 1e-6 - work.bytes / 1e6) < 1e-9);
    arena_free(&arena);
    plan_context_free(found.whole);
}

/* On a host whose classes are not measured the kernel by blocks takes the time of its steps, and a launch of
 * each for every block. */
static void blocks_take_the_time_of_their_steps(void **state) {
    (void)state;
    Arena arena = {0};
    Operators found = operators_of(&arena, TRANSFORMER_BERT);
    const OperatorCurves curves = {0};
    ClusterDeviceType type = {.memory_bytes_per_second = 1e10, .kernel_launch_seconds = 1e-6};
    type.flops_per_second[DTYPE_F32] = type.flops_per_second[DTYPE_BF16] = 1e10;
    const ProgramStep *steps[] = {found.forward, found.backward};
    for (int32_t k = 0; k < 2; k++) {
        OperatorWork work;
        const Program *region = found.program->instructions[steps[k]->instruction].regions.programs[0];
        const double blocks = BATCH * HEADS; /* of 128 rows */
        double expected = 0;
        for (int32_t s = 0; s < region->execution.step_count; s++) {
            OperatorWork inside;
            type.operators = NULL;
            operator_work(&inside, region, &region->execution.steps[s]);
            if (!inside.is_run) continue;
            expected += operator_seconds(&inside, &type) + (blocks - 1) * type.kernel_launch_seconds;
        }
        type.operators = &curves;
        operator_work(&work, found.program, steps[k]);
        double priced = operator_seconds(&work, &type);
        assert_true(fabs(priced - expected) < 1e-9 * expected);
    }
    arena_free(&arena);
    plan_context_free(found.whole);
}

/* The elements of an operator are in the order of its results, also where nothing else is ready to be
 * placed. */
static void elements_are_in_order(void **state) {
    (void)state;
    const AttentionForm form = {.batch = BATCH,
                                .heads = HEADS,
                                .groups = 1,
                                .rows = LENGTH,
                                .keys = LENGTH,
                                .width = SIZE,
                                .type = "f32",
                                .is_backward = true,
                                .has_bias = true,
                                .heads_first = true};
    Text text = attention_text(&form);
    PlanContext *whole, *fused;
    AmError error = {0};
    int32_t elements = 0, operator= - 1, next = 0;
    if (plan_context_parse(&whole, "m.hlo.txt", text.data, (int64_t)text.length, &error) != AM_OK ||
        plan_context_fuse(&fused, whole, &error) != AM_OK)
        fail_msg("%s", error.text);
    for (int32_t i = 0; i < fused->canonical->instruction_count; i++) {
        const IrInstruction *element = &fused->canonical->instructions[i];
        if (element->opcode != IR_GET_TUPLE_ELEMENT) continue;
        if (element->operands[0] != operator) next = 0;
        operator= element->operands[0];
        assert_int_equal(element->attributes->tuple_index, next++);
        elements++;
    }
    assert_true(elements >= 3);
    plan_context_free(whole);
    text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_that_of_the_products),
        cmocka_unit_test(price_is_measured),
        cmocka_unit_test(blocks_take_the_time_of_their_steps),
        cmocka_unit_test(elements_are_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
