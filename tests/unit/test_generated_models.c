/* Every generated kernel of the zoo's small models, whole and split: compiled
 * for the host and run beside the CPU's on random values. Skipped (77) in a
 * build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "generated_case.h"

/* Operands of call `k` filled at random, results of both; how far they may be apart. */
static void compare(const Generated *self, int32_t k, Random *random) {
    KernelCall *call = self->calls[k];
    void *addresses[64], *expected[16];
    assert_true(call->operand_count + call->result_count <= 64 && call->result_count <= 16);
    for (int32_t o = 0; o < call->operand_count; o++) {
        const IrShape *shape = call->operand_shapes[o];
        int64_t count = ir_shape_elements(shape);
        float *values = addresses[o] = calloc((size_t)ir_shape_bytes(shape) + 1, 1);
        generated_fill(values, shape->type, count, o % 2 == 1, random);
        for (int64_t i = 0; shape->type == DTYPE_F32 && i < count; i++)
            values[i] = (float)random_normal(random); /* as in a model: no corner cases */
        call->operands[o] = values;
    }
    for (int32_t r = 0; r < call->result_count; r++) {
        size_t bytes = (size_t)ir_shape_bytes(call->result_shapes[r]) + 1;
        call->results[r] = expected[r] = calloc(bytes, 1);
        addresses[call->operand_count + r] = calloc(bytes, 1);
    }
    call->scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    call->run(call);
    generated_run(self, k, addresses);
    for (int32_t r = 0; r < call->result_count; r++) {
        const IrShape *shape = call->result_shapes[r];
        int64_t at = generated_difference(addresses[call->operand_count + r], expected[r], shape->type,
                                          ir_shape_elements(shape), generated_tolerance(shape->type));
        if (at >= 0)
            fail_msg("result %d differs at element %lld, of\n%s", r, (long long)at, generated_text(self, k));
        free(expected[r]);
    }
    for (int32_t a = 0; a < call->operand_count + call->result_count; a++) free(addresses[a]);
    free(call->scratch);
}

static void check_model(const char *model, int32_t least) {
    Generated generated = {0};
    Random random;
    PlanContext *context = generated_read(model);
    random_seed(&random, 1);
    generated_add_model(&generated, context);
    assert_true(generated.count >= least);
    generated_compile(&generated);
    for (int32_t k = 0; k < generated.count; k++) compare(&generated, k, &random);
    generated_free(&generated);
    plan_context_free(context);
}

static void test_models(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny",     "mlp_evaluate", "gpt2_tiny",
                                         "t5_tiny",      "bert_tiny",    "vgg_tiny",
                                         "exact_gather", "exact_linear", "two_swapped"};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) check_model(models[k], 5);
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: built without CUDA");
    return SKIPPED;
}
#endif
