/* Options of runs: columns over notes over sources over defaults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "published/conventions.h"

/* A run of empty fields. */
static PublishedRun make_run(const char *source, const char *attention, const char *note) {
    return (PublishedRun){.source = source,
                          .model = "gpt",
                          .type = "f16",
                          .attention = attention,
                          .kernels = "",
                          .norms = "",
                          .eager = "",
                          .dropout = "",
                          .gradients = "",
                          .reductions = "",
                          .gradient_sum = "",
                          .cuts = "",
                          .logits = "",
                          .outputs = "",
                          .head = "",
                          .lengths = "",
                          .loss = "",
                          .qkv = "",
                          .overlap = "",
                          .note = note};
}

static PublishedConventions conventions_of(const PublishedRun *run) {
    PublishedConventions conventions;
    AmError error = {0};
    if (published_conventions(&conventions, run, &error) != AM_OK) fail_msg("%s", error.text);
    return conventions;
}

static void test_defaults(void **state) {
    (void)state;
    PublishedRun run = make_run("paper", "", "");
    PublishedConventions told = conventions_of(&run);
    assert_true(told.fuses_norms && told.fuses_softmax && told.has_dropout);
    assert_false(told.overlaps || told.has_f32_gradients || told.is_flash || told.is_eager);
    run.attention = "flash";
    run.type = "bf16";
    told = conventions_of(&run);
    assert_true(told.is_flash && told.overlaps && told.has_f32_gradients);
    assert_false(told.has_dropout || told.uses_flash_1);
}

static void test_notes_and_columns(void **state) {
    (void)state;
    PublishedRun run = make_run("AlephAlpha", "flash", "kernel flash_attentionv1.0.8; x");
    PublishedConventions told = conventions_of(&run);
    assert_true(told.uses_flash_1 && told.is_eager);
    assert_false(told.fuses_norms || told.overlaps);
    run.note = "kernel flash_attention2 + RMS kernel";
    told = conventions_of(&run);
    assert_true(told.fuses_norms);
    assert_false(told.uses_flash_1);
    run.norms = "unfused";
    run.overlap = "yes";
    run.attention = "flash1";
    told = conventions_of(&run);
    assert_true(told.overlaps && told.is_flash && told.uses_flash_1);
    assert_false(told.fuses_norms);
}

/* 16 heads over 8 devices make two matrices of one sequence, which Megatron-LM's kernel does not take. */
static void test_softmax_kernel(void **state) {
    (void)state;
    PublishedRun run = make_run("paper", "", "");
    run.heads = 16;
    run.tensor = 8;
    run.micro_batch = 1;
    assert_false(conventions_of(&run).fuses_softmax);
    run.micro_batch = 2;
    assert_true(conventions_of(&run).fuses_softmax);
    run.micro_batch = 1;
    run.kernels = "fused";
    assert_true(conventions_of(&run).fuses_softmax);
}

/* Sums of gradients, stages and the loss of two frameworks. */
static void test_sources(void **state) {
    (void)state;
    PublishedRun run = make_run("AlephAlpha", "flash", "");
    run.type = "bf16";
    PublishedConventions told = conventions_of(&run);
    assert_true(told.all_reduces_gradients && told.has_f32_reductions && told.counts_tables &&
                told.gathers_logits);
    assert_true(told.keeps_outputs && told.recomputes_head && told.reads_lengths);
    assert_false(told.has_f32_gradients || told.joins_loss);
    run.gradients = "f32";
    run.reductions = "bf16";
    run.gradient_sum = "reduce_scatter";
    run.cuts = "layers";
    run.logits = "split";
    run.outputs = "freed";
    run.head = "kept";
    run.lengths = "known";
    run.qkv = "separate";
    told = conventions_of(&run);
    assert_true(told.has_f32_gradients);
    assert_false(told.all_reduces_gradients || told.has_f32_reductions || told.counts_tables);
    assert_false(told.reads_lengths);
    assert_false(told.gathers_logits || told.joins_products || told.keeps_outputs || told.recomputes_head);
    run = make_run("llm-foundry", "flash", "");
    assert_true(conventions_of(&run).joins_loss && conventions_of(&run).joins_products);
    run.loss = "unfused";
    assert_false(conventions_of(&run).joins_loss);
}

static void test_unknown_value(void **state) {
    (void)state;
    PublishedConventions conventions;
    PublishedRun run = make_run("paper", "", "");
    AmError error = {0};
    run.gradients = "f64";
    assert_int_equal(published_conventions(&conventions, &run, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "unknown gradients f64 (expected f32 or f16)"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_notes_and_columns),
        cmocka_unit_test(test_softmax_kernel), cmocka_unit_test(test_sources),
        cmocka_unit_test(test_unknown_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
