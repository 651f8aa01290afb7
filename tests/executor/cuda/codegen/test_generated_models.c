/* Every generated kernel of the zoo's small models, whole and split: compiled
 * for the host and run beside the CPU's on random values. Skipped (77) in a
 * build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_case.h"

static void check_model(const char *model, int32_t least) {
    Generated generated = {0};
    Random random;
    PlanContext *context = generated_read(model);
    random_seed(&random, 1);
    generated_add_model(&generated, context);
    assert_true(generated.count >= least);
    generated_compile(&generated);
    for (int32_t k = 0; k < generated.count; k++) generated_compare(&generated, k, false, 1, &random);
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
#include "tests/support/without_cuda.h"
#endif
