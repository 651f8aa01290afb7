/* Attention regions as generated kernels, compiled for the host: as exact as the CPU's operators, which run
 * one after the other. Skipped (77) in a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/codegen/attention/source_region.h"
#include "tests/support/attention_case.h"
#include "tests/support/generated_case.h"

/* A region and its exact results. */
typedef struct Case {
    AttentionForm form;
    AttentionRegion region, exact;
    int32_t source;
} Case;

static void add(Generated *generated, Case *self) {
    AmError error = {0};
    CudaSource source;
    AttentionForm of_exact = self->form;
    of_exact.type = "f64";
    attention_load(&self->exact, &kernel_device_cpu, &of_exact);
    attention_load(&self->region, &kernel_device_cpu, &self->form);
    if (cuda_source_region(&source, &generated->arena, self->region.blocked, &error) != AM_OK)
        fail_msg("%s", error.text);
    generated_add_source(generated, source, self->region.blocked);
    self->source = generated_find(generated, &source);
}

/* Sums in another order may be twice as far from the exact ones. */
static void compare(const Generated *generated, Case *self) {
    void *addresses[2 * REGION_MOST_ARRAYS];
    AttentionRegion *region = &self->region;
    const char *type = self->form.type;
    for (int32_t k = 0; k < region->input_count; k++) addresses[k] = region->inputs[k];
    for (int32_t k = 0; k < region->output_count; k++) {
        addresses[region->input_count + k] = region->outputs[k];
        memset(region->outputs[k], 0x7f, (size_t)ir_shape_bytes(attention_output(region, k)));
    }
    generated_run(generated, self->source, addresses);
    for (int32_t k = 0; k < region->output_count; k++) {
        double errors[2], noise = strcmp(type, "f64") == 0 ? 1e-15 : 1e-8;
        attention_find_errors(errors, region, &self->exact, k);
        if (!(errors[1] <= 2 * errors[0] + noise))
            fail_msg("%s %s, output %d: error %g, %g instruction by instruction, of\n%s", type,
                     self->form.is_backward ? "backward" : "forward", k, errors[1], errors[0],
                     generated_text(generated, self->source));
    }
}

/* Both passes of each form. */
static void check(const AttentionForm *forms, int32_t count) {
    Generated generated = {0};
    Case *cases = calloc((size_t)count * 2, sizeof *cases);
    for (int32_t k = 0; k < 2 * count; k++) {
        cases[k].form = forms[k / 2];
        cases[k].form.is_backward = k % 2;
        add(&generated, &cases[k]);
    }
    generated_compile(&generated);
    if (getenv("AUTOMAP_FULL")) generated_check_devices(&generated, "attention", true);
    for (int32_t k = 0; k < 2 * count; k++) {
        compare(&generated, &cases[k]);
        attention_free(&cases[k].region);
        attention_free(&cases[k].exact);
    }
    free(cases);
    generated_free(&generated);
}

/* Types, masks, groups of queries, and sizes that tiles do not divide. */
static void test_forms(void **state) {
    static const AttentionForm forms[] = {
        {2, 2, 1, 70, 70, 8, "f32", .is_causal = true, .has_drops = true},
        {1, 2, 2, 34, 70, 24, "bf16", .heads_first = true, .is_causal = true, .has_positions = true},
        {1, 2, 3, 20, 33, 8, "f32", .has_bias = true, .has_cap = true, .is_causal = true},
        {1, 1, 1, 18, 5, 24, "f64", .has_bias = true},
        {2, 1, 2, 40, 24, 8, "f16", .is_causal = true, .window = 9},
    };
    (void)state;
    check(forms, sizeof forms / sizeof *forms);
}

/* Kernels of full tiles have no local memory; those of one gradient unless AUTOMAP_FULL is set. */
static void test_large_tiles(void **state) {
    static const AttentionForm forms[] = {
        {1, 2, 4, 1024, 1024, 128, "bf16", .is_causal = true, .has_cap = true},
        {1, 2, 1, 1024, 1024, 64, "f32", .has_bias = true},
        {1, 1, 1, 256, 256, 256, "f32", .is_causal = false},
    };
    Generated generated = {0};
    AttentionRegion regions[6];
    AmError error = {0};
    (void)state;
    int32_t first = getenv("AUTOMAP_FULL") ? 0 : 1, count = getenv("AUTOMAP_FULL") ? 6 : 2;
    for (int32_t k = first; k < count; k++) {
        AttentionForm form = forms[k / 2];
        CudaSource source;
        form.is_backward = k % 2;
        Text text = attention_text(&form);
        if (attention_prepare(&regions[k], &kernel_device_cpu, text.data, text.length, &error) != AM_OK ||
            cuda_source_region(&source, &generated.arena, regions[k].blocked, &error) != AM_OK)
            fail_msg("%s", error.text);
        text_free(&text);
        generated_add_source(&generated, source, regions[k].blocked);
    }
    generated_check_devices(&generated, "attention", getenv("AUTOMAP_FULL"));
    for (int32_t k = first; k < count; k++) attention_free(&regions[k]);
    generated_free(&generated);
}

/* Refuses forms that have no kernels, with a reason. */
static void test_refusals(void **state) {
    static const char scores[] =
        " s = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n";
    static const char *const texts[][3] = {
        {"4",
         " c = f32[8] constant({1, 2, 3, 4, 5, 6, 7, 8})\n w = f32[8,8] broadcast(c), dimensions={1}\n"
         " t = f32[8,8] multiply(s, w)\n",
         "it has an array of constants"},
        {"1024", " t = f32[8,8] exponential(s)\n", "its widths are larger than a tile"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        AttentionRegion region;
        AmError error = {0};
        CudaSource source;
        Text text = {0};
        text_append(&text,
                    "HloModule m\nENTRY e {\n a = f32[8,%s] parameter(0)\n b = f32[8,%s] parameter(1)\n%s%s"
                    " ROOT o = f32[8,%s] dot(t, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n",
                    texts[k][0], texts[k][0], scores, texts[k][1], texts[k][0]);
        if (attention_prepare(&region, &kernel_device_cpu, text.data, text.length, &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_int_equal(cuda_source_region(&source, &region.arena, region.blocked, &error), AM_ERROR_INPUT);
        if (!strstr(error.text, texts[k][2])) fail_msg("\"%s\" in place of \"%s\"", error.text, texts[k][2]);
        attention_free(&region);
        text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_large_tiles),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
