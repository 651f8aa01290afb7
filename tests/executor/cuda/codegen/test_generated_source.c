/* The text of generated kernels, for hand-made steps: tests/cuda/NAME.cu.txt.
 * AUTOMAP_UPDATE=1 in the environment writes those files anew. Skipped (77) in
 * a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/files/file.h"
#include "tests/support/generated_case.h"

static void compare_with_file(const char *name, const char *text) {
    char path[512];
    FileBytes expected;
    snprintf(path, sizeof path, SOURCE_DIR "/tests/cuda/%s.cu.txt", name);
    if (getenv("AUTOMAP_UPDATE")) assert_int_equal(file_write(path, text, strlen(text), NULL), AM_OK);
    assert_int_equal(file_read(&expected, path, NULL), AM_OK);
    assert_string_equal(text, expected.data);
    file_release(&expected);
}

/* Makes the source of the case's step; operands come first, then `results` results. */
static CudaSource make(KernelCase *self, const ProgramFusion *fusion, int32_t results) {
    int32_t operands = self->program.value_count - results;
    int32_t *list = ARENA_ARRAY(&self->arena, int32_t, operands + 1);
    for (int32_t k = 0; k < operands; k++) list[k] = k;
    self->instruction.operands = list;
    self->instruction.operand_count = self->instruction.first_result = operands;
    self->instruction.result_count = results;
    if (fusion) self->program.execution.fusions = (ProgramFusion *)fusion;
    ProgramStep step = {.instruction = fusion ? -1 : 0, .fusion = fusion ? 0 : -1};
    KernelCall *call;
    CudaSource source;
    assert_int_equal(
        kernel_prepare(&call, &self->arena, &kernel_device_cpu, &self->program, &step, &self->error), AM_OK);
    assert_int_equal(cuda_source_make(&source, &self->arena, call, &self->error), AM_OK);
    assert_int_equal(source.parameters, call->operand_count + call->result_count);
    return source;
}

static void check_unit(KernelCase *self, const char *name, const CudaSource *source) {
    const char *unit;
    assert_int_equal(cuda_source_unit(&unit, &self->arena, source, 1, NULL), AM_OK);
    compare_with_file(name, unit);
}

/* select(x > bias, x * scale, row + 10 + 7) over [300, 7]; an operator without readers is omitted. */
static void test_chain_with_broadcasts(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_ADD);
    int32_t x = VALUE(c, DTYPE_F32, 300, 7), bias = VALUE(c, DTYPE_F32, 7);
    int32_t scale = case_value(c, DTYPE_F32, 0, NULL), y = VALUE(c, DTYPE_F32, 300, 7);
    float seven = 7;
    IrLiteral literal = {.data = &seven, .bytes = 4};
    IrAttributes greater = {.comparison = "GT"}, rows = {.dimension_count = 1, .dimensions = LIST(c, 0)};
    ProgramFusionInput inputs[] = {{x, LIST(c, 7, 1)}, {bias, LIST(c, 0, 1)}, {scale, LIST(c, 0, 0)}};
    ProgramFusionOp ops[] = {
        {.opcode = IR_COMPARE,
         .type = DTYPE_PRED,
         .operand_count = 2,
         .operands = {0, 1},
         .attributes = &greater},
        {.opcode = IR_MULTIPLY, .type = DTYPE_F32, .operand_count = 2, .operands = {0, 2}},
        {.opcode = IR_IOTA, .type = DTYPE_S32, .attributes = &rows, .iota_start = 10},
        {.opcode = IR_CONVERT, .type = DTYPE_F32, .operand_count = 1, .operands = {5}},
        {.opcode = IR_CONSTANT, .type = DTYPE_F32, .literal = &literal},
        {.opcode = IR_ADD, .type = DTYPE_F32, .operand_count = 2, .operands = {6, 7}},
        {.opcode = IR_TANH, .type = DTYPE_F32, .operand_count = 1, .operands = {8}},
        {.opcode = IR_SELECT, .type = DTYPE_F32, .operand_count = 3, .operands = {3, 4, 8}},
    };
    int32_t output_slot = 10;
    ProgramFusion fusion = {.rank = 2,
                            .dimensions = LIST(c, 300, 7),
                            .elements = 2100,
                            .input_count = 3,
                            .op_count = 8,
                            .output_count = 1,
                            .inputs = inputs,
                            .ops = ops,
                            .output_slots = &output_slot,
                            .output_values = &y};
    CudaSource source = make(c, &fusion, 1);
    assert_int_equal(source.launches[0].blocks, 9);
    assert_int_equal(source.launches[0].threads, 256);
    check_unit(c, "chain", &source);
    case_free(c);
}

/* bf16 is rounded after every operator; dimensions that are walked as one are one. */
static void test_half_precision(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_ADD);
    int32_t x = VALUE(c, DTYPE_BF16, 4, 5, 6), z = VALUE(c, DTYPE_BF16, 4), y = VALUE(c, DTYPE_BF16, 4, 5, 6);
    ProgramFusionInput inputs[] = {{x, LIST(c, 30, 6, 1)}, {z, LIST(c, 1, 0, 0)}};
    ProgramFusionOp ops[] = {
        {.opcode = IR_ADD, .type = DTYPE_BF16, .operand_count = 2, .operands = {0, 1}},
        {.opcode = IR_EXPONENTIAL, .type = DTYPE_BF16, .operand_count = 1, .operands = {2}},
    };
    int32_t output_slot = 3;
    ProgramFusion fusion = {.rank = 3,
                            .dimensions = LIST(c, 4, 5, 6),
                            .elements = 120,
                            .input_count = 2,
                            .op_count = 2,
                            .output_count = 1,
                            .inputs = inputs,
                            .ops = ops,
                            .output_slots = &output_slot,
                            .output_values = &y};
    CudaSource source = make(c, &fusion, 1);
    check_unit(c, "half", &source);
    case_free(c);
}

static void test_transpose_and_reverse(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_TRANSPOSE), *d = case_new(IR_REVERSE);
    VALUE(c, DTYPE_F64, 3, 4, 5);
    VALUE(c, DTYPE_F64, 5, 3, 4);
    c->attributes = (IrAttributes){.dimension_count = 3, .dimensions = LIST(c, 2, 0, 1)};
    CudaSource source = make(c, NULL, 1);
    check_unit(c, "transpose", &source);
    VALUE(d, DTYPE_S8, 3, 4);
    VALUE(d, DTYPE_S8, 3, 4);
    d->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(d, 1)};
    source = make(d, NULL, 1);
    check_unit(d, "reverse", &source);
    case_free(c);
    case_free(d);
}

/* Sums of rows (one column of 256 lanes) and maxima of columns (32 columns of 8 lanes). */
static void test_reductions(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_REDUCE), *d = case_new(IR_REDUCE);
    VALUE(c, DTYPE_F32, 100, 600);
    case_value(c, DTYPE_F32, 0, NULL);
    VALUE(c, DTYPE_F32, 100);
    c->instruction.compute.called = case_computation(c, IR_ADD, DTYPE_F32, DTYPE_F32);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    CudaSource source = make(c, NULL, 1);
    assert_int_equal(source.launches[0].blocks, 100);
    assert_int_equal(source.launches[0].threads, 256);
    check_unit(c, "reduce_rows", &source);
    VALUE(d, DTYPE_S32, 100, 50);
    case_value(d, DTYPE_S32, 0, NULL);
    VALUE(d, DTYPE_S32, 50);
    d->instruction.compute.called = case_computation(d, IR_MAXIMUM, DTYPE_S32, DTYPE_S32);
    d->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(d, 0)};
    source = make(d, NULL, 1);
    assert_int_equal(source.launches[0].blocks, 2);
    assert_int_equal(source.launches[0].threads, 256);
    check_unit(d, "reduce_columns", &source);
    case_free(c);
    case_free(d);
}

/* Equal steps have one kernel, different ones two; a step without elements is not launched. */
static void test_names(void **state) {
    (void)state;
    CudaSource sources[4];
    KernelCase *cases[4];
    static const int64_t sizes[4] = {5, 5, 6, 0};
    for (int32_t k = 0; k < 4; k++) {
        cases[k] = case_new(IR_NEGATE);
        VALUE(cases[k], DTYPE_F32, sizes[k]);
        VALUE(cases[k], DTYPE_F32, sizes[k]);
        sources[k] = make(cases[k], NULL, 1);
    }
    assert_string_equal(sources[0].launches[0].name, sources[1].launches[0].name);
    assert_string_not_equal(sources[0].launches[0].name, sources[2].launches[0].name);
    assert_int_equal(sources[2].launches[0].blocks, 1);
    assert_int_equal(sources[3].launch_count, 0);
    const char *unit;
    assert_int_equal(cuda_source_unit(&unit, &cases[0]->arena, sources, 3, NULL), AM_OK);
    const char *first = strstr(unit, sources[0].launches[0].name);
    assert_non_null(first);
    assert_null(strstr(first + 1, sources[0].launches[0].name));
    assert_non_null(strstr(unit, sources[2].launches[0].name));
    for (int32_t k = 0; k < 4; k++) case_free(cases[k]);
}

/* Every kernel is in the one unit that its name gives, whatever the order of the steps. */
static void test_units(void **state) {
    (void)state;
    enum { COUNT = 60 };
    CudaSource sources[COUNT], turned[COUNT];
    KernelCase *cases[COUNT];
    const char **units, **again;
    int32_t count, same, filled = 0;
    for (int32_t k = 0; k < COUNT; k++) {
        cases[k] = case_new(IR_NEGATE);
        VALUE(cases[k], DTYPE_F32, k + 1);
        VALUE(cases[k], DTYPE_F32, k + 1);
        sources[k] = turned[COUNT - 1 - k] = make(cases[k], NULL, 1);
    }
    Arena *arena = &cases[0]->arena;
    assert_int_equal(cuda_source_units(&units, &count, arena, sources, COUNT, NULL), AM_OK);
    assert_int_equal(cuda_source_units(&again, &same, arena, turned, COUNT, NULL), AM_OK);
    assert_true(count > 2 && count < COUNT);
    assert_int_equal(count, same);
    for (int32_t u = 0; u < count; u++) {
        filled += units[u] != NULL;
        assert_true(!units[u] == !again[u]);
        if (units[u]) assert_int_equal(strlen(units[u]), strlen(again[u]));
    }
    assert_true(filled > 2);
    for (int32_t k = 0; k < COUNT; k++)
        for (int32_t u = 0; u < count; u++) {
            const char *name = sources[k].launches[0].name;
            bool holds = units[u] && strstr(units[u], name);
            assert_int_equal(holds, u == cuda_source_unit_of(name, count));
        }
    for (int32_t k = 0; k < COUNT; k++) case_free(cases[k]);
}

/* Operators without generated kernels are exactly those of libraries and of the host. */
static void test_coverage(void **state) {
    (void)state;
    static const IrOpcode others[] = {IR_DOT,  IR_CONVOLUTION, IR_WHILE, IR_CONDITIONAL,
                                      IR_CALL, IR_CUSTOM_CALL, IR_FUSION};
    static const IrOpcode covered[] = {IR_BATCH_NORM_GRAD,
                                       IR_BATCH_NORM_INFERENCE,
                                       IR_BATCH_NORM_TRAINING,
                                       IR_BITCAST,
                                       IR_BITCAST_CONVERT,
                                       IR_BROADCAST,
                                       IR_CHOLESKY,
                                       IR_CONCATENATE,
                                       IR_CONSTANT,
                                       IR_DYNAMIC_SLICE,
                                       IR_DYNAMIC_UPDATE_SLICE,
                                       IR_GATHER,
                                       IR_IOTA,
                                       IR_OPT_BARRIER,
                                       IR_PAD,
                                       IR_REDUCE,
                                       IR_REDUCE_WINDOW,
                                       IR_RESHAPE,
                                       IR_REVERSE,
                                       IR_RNG_BIT_GENERATOR,
                                       IR_SCATTER,
                                       IR_SELECT_AND_SCATTER,
                                       IR_SLICE,
                                       IR_SORT,
                                       IR_TOPK,
                                       IR_TRANSPOSE,
                                       IR_TRIANGULAR_SOLVE,
                                       IR_ADD};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) assert_false(cuda_source_covers(others[k]));
    for (size_t k = 0; k < sizeof covered / sizeof *covered; k++)
        if (!cuda_source_covers(covered[k])) fail_msg("%s", ir_opcode_name(covered[k]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain_with_broadcasts),
        cmocka_unit_test(test_half_precision),
        cmocka_unit_test(test_transpose_and_reverse),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
