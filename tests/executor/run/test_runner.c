/* Training the small models of the zoo on one device: losses and final state as
 * JAX computed them on the same state and data, over 20 steps. */
/* labels: threads */
#include "tests/support/runner_case.h"

static void check_model(const char *model, double loss_tolerance, double state_tolerance) {
    check_split(model, (Split){0}, loss_tolerance, state_tolerance);
}

static void test_mlp(void **state) {
    (void)state;
    check_model("mlp_tiny", 2e-6, 1e-4);
}

static void test_vgg(void **state) {
    (void)state;
    check_model("vgg_tiny", 2e-6, 1e-4);
}

static void test_gpt2(void **state) {
    (void)state;
    check_model("gpt2_tiny", 5e-6, 1e-4);
}

/* XLA drops roundings to bfloat16 between operators that it fuses: 2^-8 with some room. */
static void test_gpt2_mixed_precision(void **state) {
    (void)state;
    check_model("gpt2_bf16_tiny", 1e-2, 0.1);
}

static void test_t5(void **state) {
    (void)state;
    check_model("t5_tiny", 5e-6, 1e-4);
}

static void test_bert(void **state) {
    (void)state;
    check_model("bert_tiny", 5e-6, 1e-4);
}

/* Whole numbers below 2^24: bit for bit. */
static void test_exact(void **state) {
    (void)state;
    check_model("exact_linear", 0, 0);
    check_model("exact_gather", 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp),   cmocka_unit_test(test_vgg),
        cmocka_unit_test(test_gpt2),  cmocka_unit_test(test_gpt2_mixed_precision),
        cmocka_unit_test(test_t5),    cmocka_unit_test(test_bert),
        cmocka_unit_test(test_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
