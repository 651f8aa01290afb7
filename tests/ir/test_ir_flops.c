/* FLOPs against values worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/text.h"
#include "cost/operator/model_flops.h"
#include "ir/analysis/flops.h"
#include "ir/canonical/canonical.h"

/* Instructions are made here, not read: only the fields that the count uses are filled. */
static const IrShape scalar = {.type = DTYPE_F32};

static IrShape shape_of(int32_t rank, const int64_t *dimensions) {
    return (IrShape){.type = DTYPE_F32, .rank = rank, .dimensions = dimensions};
}

#define SHAPE(...) \
    shape_of((int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

/* Computation 0 is the scalar sum p0 + p1, computation 1 is p0 * p1 + p1. */
static const IrAttributes plain;
static const IrComputationWork scalar_work[] = {{.work.flops = 1}, {.work.flops = 2}};
static const IrModule module = {.computation_count = 2, .called_work = scalar_work};
static const int32_t sum_only[] = {0}, fused_only[] = {1}, both[] = {0, 1};

static void dot_counts_two_per_multiply_add(void **state) {
    (void)state;
    const int64_t zero[] = {0}, one[] = {1}, two[] = {2};
    const IrDot plain_dot = {.contracting_count = 1, .lhs_contracting = one, .rhs_contracting = zero};
    const IrDot batched = {1, 1, zero, zero, two, one};
    IrAttributes attributes = {.dot = &plain_dot};
    IrInstruction dot = {.opcode = IR_DOT, .operand_count = 2, .attributes = &attributes};
    IrShape operands[] = {SHAPE(4, 5), SHAPE(5, 6)}, result = SHAPE(4, 6);
    assert_float_equal(ir_flops(&module, &dot, operands, &result), 2 * 4 * 5 * 6, 0);
    attributes.dot = &batched;
    IrShape batched_operands[] = {SHAPE(3, 4, 5), SHAPE(3, 5, 6)}, batched_result = SHAPE(3, 4, 6);
    assert_float_equal(ir_flops(&module, &dot, batched_operands, &batched_result), 2 * 3 * 4 * 5 * 6, 0);
    /* Half of the contracted dimension, as on a shard: half the work. */
    IrShape shard[] = {SHAPE(3, 4, 2), SHAPE(3, 2, 6)};
    assert_float_equal(ir_flops(&module, &dot, shard, &batched_result), 2 * 3 * 4 * 2 * 6, 0);
}

static double convolve(IrWindowDimension window, int64_t input, int64_t output, int64_t groups) {
    const int64_t spatial[] = {2}, kernel_spatial[] = {0};
    const IrConvolution numbers = {.input_batch = 0,
                                   .input_feature = 1,
                                   .kernel_input_feature = 1,
                                   .kernel_output_feature = 2,
                                   .output_batch = 0,
                                   .output_feature = 1,
                                   .spatial_count = 1,
                                   .input_spatial = spatial,
                                   .kernel_spatial = kernel_spatial,
                                   .output_spatial = spatial,
                                   .feature_group_count = groups,
                                   .batch_group_count = 1};
    const IrAttributes attributes = {.convolution = &numbers, .window_count = 1, .window = &window};
    IrInstruction convolution = {.opcode = IR_CONVOLUTION, .operand_count = 2, .attributes = &attributes};
    IrShape operands[] = {SHAPE(2, 4, input), SHAPE(window.size, 4 / groups, 8)},
            result = SHAPE(2, 8, output);
    return ir_flops(&module, &convolution, operands, &result);
}

static void convolution_counts_valid_positions(void **state) {
    (void)state;
    const double per_position = 2.0 * 2 * 4 * 8; /* batch 2, features 4 -> 8 */
    IrWindowDimension window = {.size = 3, .stride = 1, .window_dilation = 1, .base_dilation = 1};
    assert_float_equal(convolve(window, 10, 8, 1), per_position * 24, 0);
    /* Padding 1: ten outputs, the first and the last see two places. */
    window.padding_low = window.padding_high = 1;
    assert_float_equal(convolve(window, 10, 10, 1), per_position * 28, 0);
    /* Stride 2: outputs at -1, 1, 3, 5, 7: the first sees two places. */
    window.stride = 2;
    assert_float_equal(convolve(window, 10, 5, 1), per_position * 14, 0);
    /* A dilated input 0 _ 1 _ 2 (span 5): three kernel places on it find 2, 1, 2 elements. */
    window = (IrWindowDimension){.size = 3, .stride = 1, .window_dilation = 1, .base_dilation = 2};
    assert_float_equal(convolve(window, 3, 3, 1), per_position * 5, 0);
    /* Two feature groups: each output sees half of the inputs. */
    window = (IrWindowDimension){.size = 1, .stride = 1, .window_dilation = 1, .base_dilation = 1};
    assert_float_equal(convolve(window, 10, 10, 2), per_position * 10 / 2, 0);
}

static void elementwise_counts_results(void **state) {
    (void)state;
    IrShape shape = SHAPE(7, 3), operands[] = {shape, shape};
    IrInstruction instruction = {.opcode = IR_TANH, .operand_count = 1, .attributes = &plain};
    assert_float_equal(ir_flops(&module, &instruction, operands, &shape), 21, 0);
    instruction.opcode = IR_COPY;
    assert_float_equal(ir_flops(&module, &instruction, operands, &shape), 0, 0);
    instruction.opcode = IR_TRANSPOSE;
    assert_float_equal(ir_flops(&module, &instruction, operands, &shape), 0, 0);
    instruction.opcode = IR_UNKNOWN;
    assert_float_equal(ir_flops(&module, &instruction, operands, &shape), 0, 0);
}

static void reductions_count_their_computation(void **state) {
    (void)state;
    IrInstruction reduce = {
        .opcode = IR_REDUCE, .operand_count = 2, .called_count = 1, .called = sum_only, .attributes = &plain};
    IrShape operands[] = {SHAPE(4, 5), scalar}, result = SHAPE(4);
    assert_float_equal(ir_flops(&module, &reduce, operands, &result), 16, 0);
    reduce.called = fused_only; /* a multiply and an add each */
    assert_float_equal(ir_flops(&module, &reduce, operands, &result), 32, 0);

    IrWindowDimension window[] = {{.size = 1, .stride = 1}, {.size = 2, .stride = 2}};
    IrAttributes pooling = {.window_count = 2, .window = window};
    IrInstruction pool = {.opcode = IR_REDUCE_WINDOW,
                          .operand_count = 2,
                          .called_count = 1,
                          .called = sum_only,
                          .attributes = &pooling};
    IrShape pool_operands[] = {SHAPE(4, 6), scalar}, pooled = SHAPE(4, 3);
    assert_float_equal(ir_flops(&module, &pool, pool_operands, &pooled), 12, 0);

    IrInstruction select = {.opcode = IR_SELECT_AND_SCATTER,
                            .operand_count = 3,
                            .called_count = 2,
                            .called = both,
                            .attributes = &pooling};
    IrShape select_operands[] = {SHAPE(4, 6), SHAPE(4, 3), scalar}, scattered = SHAPE(4, 6);
    assert_float_equal(ir_flops(&module, &select, select_operands, &scattered), 12 * (1 + 2), 0);

    IrInstruction scatter = {.opcode = IR_SCATTER,
                             .operand_count = 3,
                             .called_count = 1,
                             .called = sum_only,
                             .attributes = &plain};
    IrShape scatter_operands[] = {SHAPE(100, 8), SHAPE(5, 1), SHAPE(5, 8)}, table = SHAPE(100, 8);
    assert_float_equal(ir_flops(&module, &scatter, scatter_operands, &table), 40, 0);
}

static IrModule *read_text(const char *text) {
    AmError error = {0};
    IrModule *read;
    if (ir_read_bytes(&read, "test.hlo.txt", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    return read;
}

static void assert_work(const char *text, double flops, double transcendentals, double bytes) {
    IrModule *read = read_text(text);
    AmError error = {0};
    IrWork work;
    assert_int_equal(ir_module_work(&work, read, &error), AM_OK);
    assert_float_equal(work.flops, flops, 0);
    assert_float_equal(work.transcendentals, transcendentals, 0);
    assert_float_equal(work.bytes, bytes, 0);
    ir_module_free(read);
}

/* exp of f32[8] is 8 transcendentals and 64 bytes; the counter adds 4 + 4 + 4 bytes, the tuple 16. */
static const char loop[] = "HloModule loop\n"
                           "body {\n"
                           "  t = (s32[], f32[8]) parameter(0)\n"
                           "  i = s32[] get-tuple-element(t), index=0\n"
                           "  x = f32[8] get-tuple-element(t), index=1\n"
                           "  one = s32[] constant(1)\n"
                           "  next = s32[] add(i, one)\n"
                           "  y = f32[8] exponential(x)\n"
                           "  ROOT r = (s32[], f32[8]) tuple(next, y)\n"
                           "}\n"
                           "below {\n"
                           "  t = (s32[], f32[8]) parameter(0)\n"
                           "  i = s32[] get-tuple-element(t), index=0\n"
                           "  ten = s32[] constant(10)\n"
                           "  ROOT c = pred[] compare(i, ten), direction=LT\n"
                           "}\n"
                           "ENTRY entry {\n"
                           "  x = f32[8] parameter(0)\n"
                           "  zero = s32[] constant(0)\n"
                           "  unused = f32[8] negate(x)\n"
                           "  start = (s32[], f32[8]) tuple(zero, x)\n"
                           "  ROOT w = (s32[], f32[8]) while(start), condition=below, body=body\n"
                           "}\n";

/* XLA's convention counts a loop once and dead code too; the planner's its trips. */
static void conventions_are_apart(void **state) {
    (void)state;
    assert_work(loop, 1 + 1 + 8, 8, 12 + 64 + 16 + 9 + 16 + 64);
    IrModule *read = read_text(loop), *canonical;
    AmError error = {0};
    assert_int_equal(ir_canonicalize(&canonical, read, &error), AM_OK);
    Arena arena = {0};
    Rules *rules;
    ModelFlops useful;
    assert_int_equal(rules_build(&rules, &arena, canonical, &error), AM_OK);
    assert_int_equal(model_flops(&useful, rules, &error), AM_OK);
    /* Adding one and the sine ten times, the comparison once more than that. */
    assert_float_equal(useful.flops, 10 * (1 + 8) + 11, 0);
    arena_free(&arena);
    ir_module_free(canonical);
    ir_module_free(read);
}

/* Values inside a fusion move no bytes; a slice reads a part. */
static void fusions_move_their_ends(void **state) {
    (void)state;
    assert_work("HloModule fused\n"
                "f {\n"
                "  x = f32[8,6] parameter(0)\n"
                "  u = f32[1,6] parameter(1)\n"
                "  i = s32[] parameter(2)\n"
                "  z = s32[] constant(0)\n"
                "  s = f32[1,6] dynamic-slice(x, i, z), dynamic_slice_sizes={1,6}\n"
                "  v = f32[1,6] add(s, u)\n"
                "  ROOT w = f32[8,6] dynamic-update-slice(x, v, i, z)\n"
                "}\n"
                "ENTRY entry {\n"
                "  x = f32[8,6] parameter(0)\n"
                "  u = f32[1,6] parameter(1)\n"
                "  i = s32[] parameter(2)\n"
                "  ROOT r = f32[8,6] fusion(x, u, i), kind=kLoop, calls=f\n"
                "}\n",
                6, 0, 24 + 24 + 24 + 4);
}

static void branches_count_the_most(void **state) {
    (void)state;
    assert_work("HloModule branches\n"
                "a {\n"
                "  x = f32[8] parameter(0)\n"
                "  ROOT y = f32[8] tanh(x)\n"
                "}\n"
                "b {\n"
                "  x = f32[8] parameter(0)\n"
                "  y = f32[8] add(x, x)\n"
                "  ROOT z = f32[8] add(x, y)\n"
                "}\n"
                "ENTRY entry {\n"
                "  p = pred[] parameter(0)\n"
                "  x = f32[8] parameter(1)\n"
                "  ROOT r = f32[8] conditional(p, x, x), true_computation=a, false_computation=b\n"
                "}\n",
                16, 8, 192);
}

/* Each of 200 computations calls the one before 40 times, by loops or by fusions: no number is infinite. */
static void deep_nests_stay_finite(void **state) {
    (void)state;
    static const char *const calls[] = {"while(x), condition=forever, body=",
                                        "fusion(x), kind=kLoop, calls="};
    for (size_t kind = 0; kind < sizeof calls / sizeof *calls; kind++) {
        Text text = {0};
        text_append_string(&text, "HloModule deep\n\nforever {\n  x = f32[8] parameter(0)\n"
                                  "  ROOT go = pred[] constant(true)\n}\n\n"
                                  "f0 {\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] tanh(x)\n}\n\n");
        for (int32_t d = 1; d <= 200; d++) {
            text_append(&text, "f%d {\n  x = f32[8] parameter(0)\n", d);
            for (int32_t k = 0; k < 40; k++)
                text_append(&text, "  %sy%d = f32[8] %sf%d\n", k == 39 ? "ROOT " : "", k, calls[kind], d - 1);
            text_append_string(&text, "}\n\n");
        }
        text_append(&text, "ENTRY main {\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] %sf200\n}\n",
                    calls[kind]);
        IrModule *read = read_text(text.data);
        AmError error = {0};
        IrWork work;
        assert_int_equal(ir_module_work(&work, read, &error), AM_OK);
        assert_true(work.transcendentals > 1e29 && work.transcendentals <= 1e30);
        assert_true(work.bytes > 1e29 && work.bytes <= 1e30);
        ir_module_free(read);
        text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_counts_two_per_multiply_add),
        cmocka_unit_test(convolution_counts_valid_positions),
        cmocka_unit_test(elementwise_counts_results),
        cmocka_unit_test(reductions_count_their_computation),
        cmocka_unit_test(conventions_are_apart),
        cmocka_unit_test(fusions_move_their_ends),
        cmocka_unit_test(branches_count_the_most),
        cmocka_unit_test(deep_nests_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
