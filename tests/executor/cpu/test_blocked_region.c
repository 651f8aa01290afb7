/* Attention by blocks: as exact as instruction by instruction against f64, and the same bits from teams of
 * any size. */
#include "tests/support/attention_case.h"

static KernelDevice *open_team(int32_t threads) {
    KernelDevice *device;
    AmError error = {0};
    KernelOptions options = {.threads = threads};
    assert_int_equal(kernels_cpu.open(&device, &options, &error), AM_OK);
    assert_int_equal(kernels_cpu.finish(device, &error), AM_OK);
    return device;
}

/* Blocks give at most the error of instructions, but for chance; f64 has no reference but those. */
static void check(AttentionForm form) {
    for (int32_t pass = 0; pass < 2; pass++) {
        KernelDevice *device = open_team(1);
        AttentionRegion exact, regions[3];
        AttentionForm of_exact = form;
        form.is_backward = of_exact.is_backward = pass == 1;
        of_exact.type = "f64";
        attention_load(&exact, device, &of_exact);
        attention_load(&regions[0], device, &form);
        for (int32_t k = 0; k < exact.output_count; k++) {
            double errors[2], noise = strcmp(form.type, "f64") == 0 ? 1e-15 : 1e-8;
            attention_find_errors(errors, &regions[0], &exact, k);
            if (!(errors[1] <= 1.05 * errors[0] + noise))
                fail_msg("%s %s, output %d: error %g, %g instruction by instruction", form.type,
                         pass ? "backward" : "forward", k, errors[1], errors[0]);
        }
        for (int32_t threads = 2; threads < 4; threads++) {
            KernelDevice *team = open_team(threads);
            AttentionRegion *other = &regions[threads - 1];
            attention_load(other, team, &form);
            for (int32_t k = 0; k < exact.output_count; k++)
                assert_memory_equal(other->outputs[k], regions[0].outputs[k],
                                    (size_t)ir_shape_bytes(attention_output(other, k)));
            attention_free(other);
            kernels_cpu.close(team);
        }
        attention_free(&regions[0]);
        attention_free(&exact);
        kernels_cpu.close(device);
    }
}

static void test_causal(void **state) {
    (void)state;
    check((AttentionForm){2, 3, 1, 150, 150, 16, "f32", .is_causal = true});
    check((AttentionForm){2, 3, 1, 150, 150, 16, "f32", .is_causal = true, .heads_first = true});
    check((AttentionForm){1, 1, 1, 300, 40, 8, "f32", .is_causal = true});
}

static void test_types(void **state) {
    static const char *const types[] = {"f64", "bf16", "f16"};
    (void)state;
    for (size_t t = 0; t < 3; t++)
        check((AttentionForm){2, 2, 1, 140, 70, 16, types[t], .is_causal = true, .heads_first = t == 1});
}

static void test_groups_of_queries(void **state) {
    (void)state;
    check((AttentionForm){2, 2, 3, 140, 70, 16, "f32", .is_causal = true});
    check((AttentionForm){1, 2, 2, 140, 70, 16, "bf16", .heads_first = true});
    check((AttentionForm){1, 1, 4, 140, 70, 16, "f64", .is_causal = true});
}

static void test_bias_and_cap(void **state) {
    (void)state;
    check((AttentionForm){2, 2, 1, 140, 70, 16, "f32", .has_bias = true});
    check((AttentionForm){3, 2, 2, 140, 33, 8, "f32", .has_bias = true, .has_cap = true, .is_causal = true});
    check((AttentionForm){1, 2, 1, 200, 200, 8, "f32", .has_bias = true, .is_causal = true});
    check((AttentionForm){1, 2, 1, 140, 70, 16, "bf16", .has_cap = true});
}

static void test_masks(void **state) {
    (void)state;
    check((AttentionForm){1, 2, 1, 140, 150, 8, "f32", .is_causal = true, .has_positions = true});
    check((AttentionForm){1, 2, 2, 140, 150, 8, "f32", .is_causal = true, .has_drops = true});
    check((AttentionForm){1, 2, 1, 140, 70, 8, "f32", .is_causal = true, .window = 20});
}

static void test_small_sizes(void **state) {
    (void)state;
    check((AttentionForm){2, 3, 2, 1, 5, 4, "f32", .is_causal = false});
    check((AttentionForm){2, 2, 1, 3, 1, 4, "f32", .is_causal = false});
    check((AttentionForm){2, 2, 1, 129, 5, 4, "f32", .is_causal = true});
    check((AttentionForm){1, 1, 1, 257, 3, 1, "f32", .is_causal = false});
}

/* A block has several heads, and the queries of several examples. */
static void test_short_sequences(void **state) {
    (void)state;
    check((AttentionForm){3, 3, 1, 20, 20, 8, "f32", .is_causal = true});
    check((AttentionForm){13, 3, 1, 40, 40, 8, "f32", .is_causal = true});
    check((AttentionForm){13, 3, 1, 40, 24, 8, "f32", .heads_first = true, .has_bias = true});
    check((AttentionForm){11, 2, 2, 33, 33, 8, "bf16", .is_causal = true});
}

/* Refuses regions that it does not divide, with one reason: sums over rows that scores need, no products, no
 * elements. */
static void test_refusals(void **state) {
    static const char *const texts[][2] = {
        {"ENTRY e {\n a = f32[8,4] parameter(0)\n b = f32[8,4] parameter(1)\n z = f32[] constant(0)\n"
         " s = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
         " r = f32[] reduce(s, z), dimensions={0,1}, to_apply=plus\n w = f32[8,8] broadcast(r), "
         "dimensions={}\n"
         " t = f32[8,8] divide(s, w)\n"
         " ROOT o = f32[8,4] dot(t, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n",
         "no dimension of the products can be divided"},
        {"ENTRY e {\n a = f32[8,4] parameter(0)\n ROOT b = f32[8,4] exponential(a)\n}\n",
         "no product depends on another"},
        {"ENTRY e {\n a = f32[0,4] parameter(0)\n b = f32[8,4] parameter(1)\n"
         " ROOT s = f32[0,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n}\n",
         "a value has no elements"},
        {"ENTRY e {\n a = f32[8,4] parameter(0)\n b = f32[8,4] parameter(1)\n"
         " s = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
         " ROOT t = f32[8,8] reverse(s), dimensions={0}\n}\n",
         "'reverse' is not computed by blocks"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        AttentionRegion region;
        AmError error = {0};
        Text text = {0};
        text_append(
            &text,
            "HloModule m\n\nplus {\n x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT z = f32[] add(x, "
            "y)\n}\n\n%s",
            texts[k][0]);
        assert_int_equal(attention_prepare(&region, &kernel_device_cpu, text.data, text.length, &error),
                         AM_ERROR_INPUT);
        if (!strstr(error.text, texts[k][1])) fail_msg("\"%s\" in place of \"%s\"", error.text, texts[k][1]);
        attention_free(&region);
        text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_groups_of_queries),
        cmocka_unit_test(test_bias_and_cap),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_small_sizes),
        cmocka_unit_test(test_short_sequences),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
