/* Random fusions against one operator at a time: shapes of rank 0 to 4 with sizes around those of tiles and
 * vectors (and 0), inputs dense or broadcast along any dimensions, and several outputs, some in place of an
 * input. One thread and a team run them. Every operator is exact, so results must be equal. */
/* labels: threads */
#include "base/random.h"
#include "executor/cpu/team.h"
#include "tests/support/kernel_case.h"

enum { ROUNDS = 250, MOST_INPUTS = 4, MOST_OPS = 8, MOST_OUTPUTS = 3, MOST_ELEMENTS = 40000 };

static const int64_t sizes[] = {0, 1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 64, 100, 256, 1000, 1024, 1025, 3000};
enum { SIZES = sizeof sizes / sizeof *sizes };

static const IrOpcode binary[] = {IR_ADD, IR_SUBTRACT, IR_MULTIPLY, IR_MAXIMUM, IR_MINIMUM};

typedef struct Shape {
    int32_t rank;
    int64_t dimensions[4], elements;
} Shape;

static void draw_shape(Shape *shape, Random *random) {
    do {
        shape->rank = (int32_t)random_below(random, 5);
        shape->elements = 1;
        for (int32_t d = 0; d < shape->rank; d++) {
            int64_t first = random_below(random, 40) ? 1 : 0;
            shape->dimensions[d] = sizes[first + random_below(random, SIZES - first)];
            shape->elements *= shape->dimensions[d];
        }
    } while (shape->elements > MOST_ELEMENTS);
}

/* A value with some of the dimensions and how the index space walks it. */
static int32_t draw_input(KernelCase *c, ProgramFusionInput *input, const Shape *shape, bool dense,
                          Dtype type, Random *random) {
    int64_t own[4], *strides = ARENA_ARRAY(&c->arena, int64_t, 5), step = 1;
    int32_t rank = 0;
    bool kept[4];
    for (int32_t d = 0; d < shape->rank; d++) {
        kept[d] = dense || random_below(random, 2) == 0;
        if (kept[d]) own[rank++] = shape->dimensions[d];
    }
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        strides[d] = kept[d] && shape->dimensions[d] != 1 ? step : 0;
        if (kept[d]) step *= shape->dimensions[d];
    }
    int32_t value = case_value(c, type, rank, own);
    int64_t count = ir_shape_elements(&c->values[value].shape);
    for (int64_t i = 0; i < count; i++) {
        int64_t number = random_below(random, 15) - 7;
        if (type == DTYPE_F32) ((float *)c->memory[value])[i] = (float)number;
        else if (type == DTYPE_BF16) ((uint16_t *)c->memory[value])[i] = dtype_float_to_bf16((float)number);
        else ((uint8_t *)c->memory[value])[i] = number > 0;
    }
    *input = (ProgramFusionInput){.value = value, .strides = strides};
    return value;
}

static float round_as(Dtype type, float value) {
    return type == DTYPE_BF16 ? dtype_bf16_to_float(dtype_float_to_bf16(value)) : value;
}

static float compute(IrOpcode opcode, float a, float b, float c) {
    switch (opcode) {
    case IR_ADD: return a + b;
    case IR_SUBTRACT: return a - b;
    case IR_MULTIPLY: return a * b;
    case IR_MAXIMUM: return a > b ? a : b;
    case IR_MINIMUM: return a < b ? a : b;
    case IR_NEGATE: return -a;
    default: return a != 0 ? b : c; /* select */
    }
}

static float read_as(Dtype type, const void *data, int64_t at) {
    if (type == DTYPE_F32) return ((const float *)data)[at];
    return type == DTYPE_BF16 ? dtype_bf16_to_float(((const uint16_t *)data)[at])
                              : (float)((const uint8_t *)data)[at];
}

/* Slots one after the other, each as a whole array of f32. */
static float **evaluate(const KernelCase *c, const ProgramFusion *fusion, Dtype type) {
    int32_t slots = fusion->input_count + fusion->op_count;
    float **all = calloc((size_t)slots, sizeof *all);
    for (int32_t s = 0; s < slots; s++) all[s] = calloc((size_t)fusion->elements + 1, sizeof(float));
    for (int32_t k = 0; k < fusion->input_count; k++) {
        const ProgramFusionInput *input = &fusion->inputs[k];
        for (int64_t i = 0; i < fusion->elements; i++) {
            int64_t left = i, at = 0;
            for (int32_t d = fusion->rank - 1; d >= 0; left /= fusion->dimensions[d], d--)
                at += left % fusion->dimensions[d] * input->strides[d];
            all[k][i] = read_as(c->values[input->value].shape.type, c->memory[input->value], at);
        }
    }
    for (int32_t k = 0; k < fusion->op_count; k++) {
        const ProgramFusionOp *op = &fusion->ops[k];
        float *out = all[fusion->input_count + k];
        for (int64_t i = 0; i < fusion->elements; i++) {
            float in[3] = {0};
            for (int32_t o = 0; o < op->operand_count; o++) in[o] = all[op->operands[o]][i];
            out[i] = round_as(type, compute(op->opcode, in[0], in[1], in[2]));
        }
    }
    return all;
}

static void run_on(KernelDevice *device, KernelCase *c, const ProgramFusion *fusion) {
    ProgramStep step = {.instruction = -1, .fusion = 0};
    KernelCall *call;
    c->program.execution.fusions = (ProgramFusion *)fusion;
    assert_int_equal(kernel_prepare(&call, &c->arena, device, &c->program, &step, &c->error), AM_OK);
    void *scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    for (int32_t k = 0; k < call->operand_count; k++) call->operands[k] = c->memory[fusion->inputs[k].value];
    for (int32_t k = 0; k < call->result_count; k++) call->results[k] = c->memory[fusion->output_values[k]];
    call->scratch = scratch;
    call->run(call);
    free(scratch);
}

static void check_fusion(KernelDevice *device, Random *random) {
    KernelCase *c = case_new(IR_ADD);
    Shape shape;
    ProgramFusionInput inputs[MOST_INPUTS + 1];
    ProgramFusionOp ops[MOST_OPS];
    int32_t output_slots[MOST_OUTPUTS], output_values[MOST_OUTPUTS];
    Dtype type = random_below(random, 3) ? DTYPE_F32 : DTYPE_BF16;
    draw_shape(&shape, random);
    int32_t input_count = 1 + (int32_t)random_below(random, MOST_INPUTS);
    for (int32_t k = 0; k < input_count; k++)
        draw_input(c, &inputs[k], &shape, k == 0 || random_below(random, 2) == 0, type, random);
    int32_t mask = input_count++; /* the last input chooses */
    draw_input(c, &inputs[mask], &shape, random_below(random, 2) == 0, DTYPE_PRED, random);
    ProgramFusion fusion = {.rank = shape.rank,
                            .dimensions = case_list(c, shape.rank, shape.dimensions),
                            .elements = shape.elements,
                            .input_count = input_count,
                            .op_count = 1 + (int32_t)random_below(random, MOST_OPS),
                            .output_count = 1 + (int32_t)random_below(random, MOST_OUTPUTS),
                            .inputs = inputs,
                            .ops = ops,
                            .output_slots = output_slots,
                            .output_values = output_values};
    for (int32_t k = 0; k < fusion.op_count; k++) {
        int64_t kind = random_below(random, 7);
        ops[k] = (ProgramFusionOp){.opcode = kind < 5    ? binary[kind]
                                             : kind == 5 ? IR_NEGATE
                                                         : IR_SELECT,
                                   .type = type,
                                   .operand_count = kind < 5    ? 2
                                                    : kind == 5 ? 1
                                                                : 3};
        for (int32_t o = 0; o < ops[k].operand_count; o++) do
                ops[k].operands[o] = (int32_t)random_below(random, input_count + k);
            while (ops[k].operands[o] == mask);
        if (kind == 6) ops[k].operands[0] = mask;
    }
    if (fusion.output_count > fusion.op_count) fusion.output_count = fusion.op_count;
    bool in_place = random_below(random, 3) == 0;
    float **expected = evaluate(c, &fusion, type);
    void *owned = NULL;
    for (int32_t k = 0; k < fusion.output_count; k++) {
        output_slots[k] = input_count + fusion.op_count - 1 - k;
        output_values[k] = case_value(c, type, shape.rank, shape.dimensions);
    }
    if (in_place) { /* the first output over the first input, which is dense */
        owned = c->memory[output_values[0]];
        c->memory[output_values[0]] = c->memory[inputs[0].value];
    }
    run_on(device, c, &fusion);
    for (int32_t k = 0; k < fusion.output_count; k++)
        for (int64_t i = 0; i < shape.elements; i++)
            assert_true(read_as(type, c->memory[output_values[k]], i) == expected[output_slots[k]][i]);
    if (in_place) c->memory[output_values[0]] = owned;
    for (int32_t s = 0; s < input_count + fusion.op_count; s++) free(expected[s]);
    free(expected);
    case_free(c);
}

static void test_by_one_thread(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 11);
    for (int32_t round = 0; round < ROUNDS; round++) check_fusion(&kernel_device_cpu, &random);
}

static void test_by_a_team(void **state) {
    (void)state;
    KernelDevice *device;
    AmError error = {0};
    KernelOptions options = {.threads = 3};
    assert_int_equal(team_open(&device, &options, &error), AM_OK);
    assert_int_equal(team_start(device, &error), AM_OK);
    Random random;
    random_seed(&random, 12);
    for (int32_t round = 0; round < ROUNDS; round++) check_fusion(device, &random);
    team_close(device);
}

/* Results that are written past the caches, at an address that no vector begins at. */
static void test_large_results(void **state) {
    (void)state;
    enum { ROWS = 9001, WIDTH = 1000 };
    KernelCase *c = case_new(IR_ADD);
    int32_t x = VALUE(c, DTYPE_F32, ROWS, WIDTH), bias = VALUE(c, DTYPE_F32, WIDTH);
    int32_t y = VALUE(c, DTYPE_F32, ROWS, WIDTH);
    case_fill(c, x, 1);
    case_fill(c, bias, 2);
    ProgramFusionInput inputs[] = {{x, LIST(c, WIDTH, 1)}, {bias, LIST(c, 0, 1)}};
    ProgramFusionOp op = {.opcode = IR_ADD, .type = DTYPE_F32, .operand_count = 2, .operands = {0, 1}};
    int32_t output_slot = 2;
    ProgramFusion fusion = {.rank = 2,
                            .dimensions = LIST(c, ROWS, WIDTH),
                            .elements = (int64_t)ROWS * WIDTH,
                            .input_count = 2,
                            .op_count = 1,
                            .output_count = 1,
                            .inputs = inputs,
                            .ops = &op,
                            .output_slots = &output_slot,
                            .output_values = &y};
    float *memory = malloc(sizeof(float) * (ROWS * WIDTH + 2)), *results = memory + 1;
    free(c->memory[y]);
    c->memory[y] = results;
    memory[0] = results[ROWS * WIDTH] = 77;
    run_on(&kernel_device_cpu, c, &fusion);
    for (int64_t i = 0; i < (int64_t)ROWS * WIDTH; i++)
        assert_true(results[i] == case_floats(c, x)[i] + case_floats(c, bias)[i % WIDTH]);
    assert_true(memory[0] == 77 && results[ROWS * WIDTH] == 77);
    c->memory[y] = NULL;
    free(memory);
    case_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_one_thread), cmocka_unit_test(test_by_a_team),
                                       cmocka_unit_test(test_large_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
