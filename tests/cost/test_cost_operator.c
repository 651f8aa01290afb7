/* Operators: FLOPs, bytes and seconds of single steps, computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "cost/operator/operator.h"

#define DIMENSIONS(...) ((const int64_t[]){__VA_ARGS__})
#define OPERANDS(...)   ((const int32_t[]){__VA_ARGS__})
#define SHAPE(type, rank, ...) \
    { DTYPE_##type, rank, DIMENSIONS(__VA_ARGS__), 0, 0 }

/* 1 GFLOP/s in f32, 4 in f16; half of it reached by dots, a quarter by convolutions; 1 GB/s; 1 us. */
static ClusterDeviceType make_device(void) {
    static const double zero[] = {0}, half[] = {0.5}, quarter[] = {0.25};
    ClusterDeviceType type = {.name = "d", .memory_bytes_per_second = 1e9, .kernel_launch_seconds = 1e-6};
    for (int32_t t = 0; t < DTYPE_COUNT; t++) type.flops_per_second[t] = 1e9;
    type.flops_per_second[DTYPE_F16] = 4e9;
    type.flops_per_second[DTYPE_F64] = 5e8;
    for (int32_t t = 0; t < DTYPE_COUNT; t++) {
        type.dot[t] = (ClusterCurve){.count = 1, .least = 1, .most = 1, .log_sizes = zero, .fractions = half};
        type.convolution[t] =
            (ClusterCurve){.count = 1, .least = 1, .most = 1, .log_sizes = zero, .fractions = quarter};
    }
    return type;
}

static void assert_close(double value, double expected) {
    if (fabs(value - expected) > 1e-12 * fabs(expected)) fail_msg("%.17g is not %.17g", value, expected);
}

/* Work of an instruction with the given operands; its result is value `first_result`. */
static OperatorWork work_of(IrOpcode opcode, ProgramKind kind, const IrAttributes *attributes,
                            const IrShape *shapes, int32_t count, const int32_t *operands,
                            int32_t operand_count) {
    ProgramValue values[4] = {{.origin = 0}};
    for (int32_t v = 0; v < count; v++) values[v] = (ProgramValue){.shape = shapes[v]};
    ProgramInstruction instruction = {.kind = kind,
                                      .opcode = opcode,
                                      .operand_count = operand_count,
                                      .result_count = 1,
                                      .operands = operands,
                                      .first_result = count - 1,
                                      .attributes = attributes,
                                      .compute.called = -1,
                                      .compute.called_second = -1};
    IrInstruction canonical = {.opcode = opcode};
    IrModule module = {.instructions = &canonical, .instruction_count = 1};
    Program program = {.module = &module, .values = values, .instructions = &instruction};
    OperatorWork work;
    operator_work(&work, &program, &(ProgramStep){.instruction = 0, .fusion = -1});
    return work;
}

static const IrDot product = {
    .contracting_count = 1, .lhs_contracting = (const int64_t[]){1}, .rhs_contracting = (const int64_t[]){0}};

static void a_dot_is_the_slower_of_arithmetic_and_memory(void **state) {
    (void)state;
    const IrShape shapes[] = {SHAPE(F32, 2, 4, 8), SHAPE(F32, 2, 8, 16), SHAPE(F32, 2, 4, 16)};
    IrAttributes attributes = {.dot = &product};
    OperatorWork work = work_of(IR_DOT, PROGRAM_COMPUTE, &attributes, shapes, 3, OPERANDS(0, 1), 2);
    assert_close(work.flops, 2 * 4 * 16 * 8);
    assert_close(work.bytes, 4 * (4 * 8 + 8 * 16 + 4 * 16));
    ClusterDeviceType type = make_device();
    assert_close(operator_seconds(&work, &type), 1e-6 + 1024 / 0.5e9);
    type.memory_bytes_per_second = 1e8;
    assert_close(operator_seconds(&work, &type), 1e-6 + 896 / 1e8);
}

static void the_operands_type_decides_the_peak(void **state) {
    (void)state;
    const IrShape shapes[] = {SHAPE(F16, 2, 64, 64), SHAPE(F16, 2, 64, 64), SHAPE(F32, 2, 64, 64)};
    IrAttributes attributes = {.dot = &product};
    OperatorWork work = work_of(IR_DOT, PROGRAM_COMPUTE, &attributes, shapes, 3, OPERANDS(0, 1), 2);
    ClusterDeviceType type = make_device();
    assert_close(operator_seconds(&work, &type), 1e-6 + 2 * 64. * 64 * 64 / (4e9 * 0.5));
    work.type = DTYPE_BF16;
    assert_close(operator_seconds(&work, &type), 1e-6 + 2 * 64. * 64 * 64 / (1e9 * 0.5));
    work.unit = OPERATOR_CONVOLUTION;
    assert_close(operator_seconds(&work, &type), 1e-6 + 2 * 64. * 64 * 64 / (1e9 * 0.25));
    /* Vector units: the narrow types' rate is that of f32. */
    work = (OperatorWork){.unit = OPERATOR_VECTOR, .type = DTYPE_F16, .flops = 1e6, .is_run = true};
    assert_close(operator_seconds(&work, &type), 1e-6 + 1e-3);
    work.type = DTYPE_F64;
    assert_close(operator_seconds(&work, &type), 1e-6 + 2e-3);
}

static void data_movement_is_priced_by_what_it_touches(void **state) {
    (void)state;
    const IrAttributes none = {0};
    const IrShape transposed[] = {SHAPE(F32, 2, 10, 20), SHAPE(F32, 2, 20, 10)};
    OperatorWork work = work_of(IR_TRANSPOSE, PROGRAM_COMPUTE, &none, transposed, 2, OPERANDS(0), 1);
    assert_close(work.bytes, 2 * 800);
    assert_true(work.flops == 0);
    /* 3 rows of a table of 1000, with their s32 indices. */
    const IrShape gathered[] = {SHAPE(F32, 2, 1000, 8), SHAPE(S32, 1, 3), SHAPE(F32, 2, 3, 8)};
    work = work_of(IR_GATHER, PROGRAM_COMPUTE, &none, gathered, 3, OPERANDS(0, 1), 2);
    assert_close(work.bytes, 2 * 96 + 12);
    const IrShape sliced[] = {SHAPE(F32, 1, 1000), SHAPE(F32, 1, 10)};
    work = work_of(IR_SLICE, PROGRAM_COMPUTE, &none, sliced, 2, OPERANDS(0), 1);
    assert_close(work.bytes, 80);
    ClusterDeviceType type = make_device();
    assert_close(operator_seconds(&work, &type), 1e-6 + 80e-9);
}

static void views_cost_nothing(void **state) {
    (void)state;
    const IrAttributes none = {0};
    const IrShape shapes[] = {SHAPE(F32, 2, 10, 20), SHAPE(F32, 1, 200)};
    OperatorWork work = work_of(IR_RESHAPE, PROGRAM_VIEW, &none, shapes, 2, OPERANDS(0), 1);
    ClusterDeviceType type = make_device();
    assert_true(operator_seconds(&work, &type) == 0);
}

/* x * w + c over f32[8,16], w of 16 broadcast, c a scalar value, 2 a constant. */
static void a_fusion_reads_inputs_once(void **state) {
    (void)state;
    ProgramValue values[] = {{.shape = SHAPE(F32, 2, 8, 16)},
                             {.shape = SHAPE(F32, 1, 16)},
                             {.shape = {DTYPE_F32, 0, NULL, NULL, NULL}},
                             {.shape = SHAPE(F32, 2, 8, 16)}};
    const ProgramFusionInput inputs[] = {{.value = 0, .strides = DIMENSIONS(16, 1)},
                                         {.value = 1, .strides = DIMENSIONS(0, 1)},
                                         {.value = 2, .strides = DIMENSIONS(0, 0)}};
    const ProgramFusionOp ops[] = {
        {.opcode = IR_MULTIPLY, .type = DTYPE_F32, .operand_count = 2, .operands = {0, 1}},
        {.opcode = IR_CONSTANT, .type = DTYPE_F32},
        {.opcode = IR_ADD, .type = DTYPE_F32, .operand_count = 2, .operands = {3, 2}}};
    ProgramFusion fusion = {.rank = 2,
                            .dimensions = DIMENSIONS(8, 16),
                            .elements = 128,
                            .input_count = 3,
                            .op_count = 3,
                            .output_count = 1,
                            .inputs = inputs,
                            .ops = ops,
                            .output_slots = OPERANDS(5),
                            .output_values = OPERANDS(3)};
    Program program = {.values = values, .execution.fusions = &fusion};
    OperatorWork work;
    operator_work(&work, &program, &(ProgramStep){.instruction = -1, .fusion = 0});
    assert_close(work.bytes, 512 + 64 + 4 + 512);
    assert_close(work.flops, 2 * 128);
    ClusterDeviceType type = make_device();
    assert_close(operator_seconds(&work, &type), 1e-6 + 1092e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dot_is_the_slower_of_arithmetic_and_memory),
        cmocka_unit_test(the_operands_type_decides_the_peak),
        cmocka_unit_test(data_movement_is_priced_by_what_it_touches),
        cmocka_unit_test(views_cost_nothing),
        cmocka_unit_test(a_fusion_reads_inputs_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
