/* Hand-made moves, pads and folds: the generated kernel, compiled for the host,
 * beside the CPU's. Skipped (77) in a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "generated_case.h"

/* Fills all operands, runs both kernels and compares every result. */
static void check(KernelCase *self, int32_t results) {
    Generated generated = {0};
    Random random;
    int32_t operands = self->program.value_count - results;
    int32_t *list = ARENA_ARRAY(&self->arena, int32_t, operands + 1);
    void *addresses[CASE_VALUES], *scratch;
    random_seed(&random, 3);
    for (int32_t k = 0; k < operands; k++) {
        const IrShape *shape = &self->values[k].shape;
        list[k] = k;
        generated_fill(self->memory[k], shape->type, ir_shape_elements(shape), k % 2 == 1, &random);
    }
    self->instruction.operands = list;
    self->instruction.operand_count = self->instruction.first_result = operands;
    self->instruction.result_count = results;
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    assert_int_equal(kernel_prepare(&call, &self->arena, &kernel_device_cpu, &self->program, &step, &self->error),
                     AM_OK);
    generated_add(&generated, call);
    generated_compile(&generated);
    for (int32_t k = 0; k < operands; k++) addresses[k] = call->operands[k] = self->memory[k];
    for (int32_t k = 0; k < results; k++) {
        call->results[k] = self->memory[operands + k];
        addresses[operands + k] = calloc((size_t)ir_shape_bytes(call->result_shapes[k]) + 1, 1);
    }
    scratch = call->scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    call->run(call);
    generated_run(&generated, 0, addresses);
    for (int32_t k = 0; k < results; k++) {
        const IrShape *shape = call->result_shapes[k];
        int64_t at = generated_difference(addresses[operands + k], call->results[k], shape->type,
                                          ir_shape_elements(shape), 0);
        if (at >= 0)
            fail_msg("result %d differs at element %lld, of\n%s", k, (long long)at,
                     generated_text(&generated, 0));
        free(addresses[operands + k]);
    }
    free(scratch);
    generated_free(&generated);
    case_free(self);
}

/* Negative, interior and high padding. */
static void test_pad(void **state) {
    (void)state;
    static const IrPadding padding[] = {{.low = -1, .high = 2, .interior = 2}, {.low = 3, .high = -2}};
    KernelCase *c = case_new(IR_PAD);
    VALUE(c, DTYPE_F32, 5, 7);
    case_value(c, DTYPE_F32, 0, NULL);
    VALUE(c, DTYPE_F32, 14, 8);
    c->attributes = (IrAttributes){.padding = padding};
    check(c, 1);
}

static void test_concatenate(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_CONCATENATE);
    VALUE(c, DTYPE_BF16, 4, 3, 5);
    VALUE(c, DTYPE_BF16, 4, 1, 5);
    VALUE(c, DTYPE_BF16, 4, 0, 5);
    VALUE(c, DTYPE_BF16, 4, 6, 5);
    VALUE(c, DTYPE_BF16, 4, 10, 5);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    check(c, 1);
}

static void test_slice_and_transpose(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_SLICE), *d = case_new(IR_TRANSPOSE);
    VALUE(c, DTYPE_S16, 9, 8);
    VALUE(c, DTYPE_S16, 3, 5);
    c->attributes = (IrAttributes){
        .slice_start = LIST(c, 1, 2), .slice_limit = LIST(c, 9, 7), .slice_stride = LIST(c, 3, 1)};
    check(c, 1);
    VALUE(d, DTYPE_U64, 3, 4, 5, 6);
    VALUE(d, DTYPE_U64, 5, 3, 6, 4);
    d->attributes = (IrAttributes){.dimension_count = 4, .dimensions = LIST(d, 2, 0, 3, 1)};
    check(d, 1);
}

/* Every operator that is folded in lanes, by columns and by rows in turn, and a fold of no elements. */
static void test_reductions(void **state) {
    (void)state;
    static const IrOpcode opcodes[] = {IR_ADD, IR_MULTIPLY, IR_MAXIMUM, IR_MINIMUM, IR_AND, IR_OR};
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; k++) {
        int64_t dimension = (int64_t)k % 2;
        KernelCase *c = case_new(IR_REDUCE);
        VALUE(c, DTYPE_S8, 45, 70);
        case_value(c, DTYPE_S8, 0, NULL);
        VALUE(c, DTYPE_S8, dimension == 0 ? 70 : 45);
        c->instruction.called = case_computation(c, opcodes[k], DTYPE_S8, DTYPE_S8);
        c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, dimension)};
        check(c, 1);
    }
    KernelCase *c = case_new(IR_REDUCE);
    VALUE(c, DTYPE_F64, 5, 0);
    case_value(c, DTYPE_F64, 0, NULL);
    VALUE(c, DTYPE_F64, 5);
    c->instruction.called = case_computation(c, IR_ADD, DTYPE_F64, DTYPE_F64);
    c->attributes = (IrAttributes){.dimension_count = 1, .dimensions = LIST(c, 1)};
    check(c, 1);
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pad),
        cmocka_unit_test(test_concatenate),
        cmocka_unit_test(test_slice_and_transpose),
        cmocka_unit_test(test_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
