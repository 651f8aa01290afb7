/* Training steps of models/transformer.c beside the exports of the zoo: weights, products, all FLOPs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/analysis/flops.h"
#include "ir/analysis/roles.h"
#include "ir/canonical/canonical.h"
#include "models/transformer.h"

typedef struct Counts {
    int64_t weights, weight_elements;
    double products, flops; /* FLOPs of products, and of everything */
} Counts;

/* Frees the module. */
static Counts count(IrModule *module, const char *roles_path) {
    Counts counts = {0};
    IrModule *canonical;
    IrRoles *roles;
    Arena arena = {0};
    AmError error = {0};
    assert_int_equal(ir_canonicalize(&canonical, module, &error), AM_OK);
    assert_int_equal(ir_find_roles(&roles, &arena, canonical, roles_path, &error), AM_OK);
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        counts.weights++;
        counts.weight_elements +=
            ir_shape_elements(&canonical->instructions[roles->parameters[p].instruction].shape);
    }
    for (int32_t i = 0; i < canonical->instruction_count; i++) {
        double flops = ir_instruction_flops(canonical, i, &arena);
        counts.flops += flops;
        if (canonical->instructions[i].opcode == IR_DOT) counts.products += flops;
    }
    arena_free(&arena);
    ir_module_free(canonical);
    ir_module_free(module);
    return counts;
}

static Counts count_built(const TransformerShape *shape) {
    IrModule *module;
    AmError error = {0};
    if (transformer_module(&module, shape, &error) != AM_OK) fail_msg("%s", error.text);
    return count(module, NULL);
}

static void check_equal(const char *model, const TransformerShape *shape) {
    char path[512], roles[512];
    IrModule *module;
    AmError error = {0};
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb.zst", model);
    snprintf(roles, sizeof roles, SOURCE_DIR "/datasets/models/%s/model.roles.json", model);
    assert_int_equal(ir_read(&module, path, &error), AM_OK);
    Counts exported = count(module, roles), built = count_built(shape);
    assert_int_equal(built.weights, exported.weights);
    assert_int_equal(built.weight_elements, exported.weight_elements);
    assert_true(fabs(built.products / exported.products - 1) < 1e-12);
    assert_true(fabs(built.flops / exported.flops - 1) < 2e-3);
}

static void test_gpt(void **state) {
    (void)state;
    TransformerShape shape = {.family = TRANSFORMER_GPT,
                              .layers = 12,
                              .width = 768,
                              .heads = 12,
                              .kv_heads = 12,
                              .ffn = 3072,
                              .vocabulary = 50257,
                              .sequence = 1024,
                              .batch = 64,
                              .type = DTYPE_BF16,
                              .optimizer = TRANSFORMER_ADAM,
                              .recompute = TRANSFORMER_RECOMPUTE_NONE,
                              .fused = TRANSFORMER_FUSES_NOTHING};
    check_equal("gpt2_bf16", &shape);
    shape.type = DTYPE_F32;
    check_equal("gpt2", &shape);
}

static void test_bert(void **state) {
    (void)state;
    const TransformerShape shape = {.family = TRANSFORMER_BERT,
                                    .layers = 48,
                                    .width = 1024,
                                    .heads = 16,
                                    .kv_heads = 16,
                                    .ffn = 4096,
                                    .vocabulary = 30522,
                                    .sequence = 128,
                                    .batch = 64,
                                    .type = DTYPE_F32,
                                    .optimizer = TRANSFORMER_ADAM,
                                    .recompute = TRANSFORMER_RECOMPUTE_NONE,
                                    .fused = TRANSFORMER_FUSES_NOTHING};
    check_equal("bert48", &shape);
}

/* With grouped keys, rotary positions and recomputed layers. */
static void test_llama(void **state) {
    (void)state;
    const TransformerShape shape = {.family = TRANSFORMER_LLAMA,
                                    .layers = 32,
                                    .width = 4096,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .ffn = 14336,
                                    .vocabulary = 128256,
                                    .sequence = 8192,
                                    .batch = 8,
                                    .type = DTYPE_BF16,
                                    .optimizer = TRANSFORMER_ADAM,
                                    .recompute = TRANSFORMER_RECOMPUTE_FULL,
                                    .fused = TRANSFORMER_FUSES_NOTHING};
    check_equal("llama3_8b", &shape);
}

static void test_t5(void **state) {
    (void)state;
    TransformerShape shape = {.family = TRANSFORMER_T5,
                              .layers = 6,
                              .width = 512,
                              .heads = 8,
                              .kv_heads = 8,
                              .head_width = 64,
                              .ffn = 2048,
                              .vocabulary = 32128,
                              .sequence = 128,
                              .target_sequence = 64,
                              .batch = 64,
                              .type = DTYPE_F32,
                              .optimizer = TRANSFORMER_ADAM,
                              .recompute = TRANSFORMER_RECOMPUTE_NONE,
                              .fused = TRANSFORMER_FUSES_NOTHING};
    check_equal("t5_paper_6", &shape);
    shape = (TransformerShape){.family = TRANSFORMER_T5,
                               .layers = 24,
                               .width = 1024,
                               .heads = 128,
                               .kv_heads = 128,
                               .head_width = 128,
                               .ffn = 65536,
                               .vocabulary = 32100,
                               .sequence = 128,
                               .target_sequence = 64,
                               .batch = 64,
                               .type = DTYPE_F32,
                               .optimizer = TRANSFORMER_SGD,
                               .recompute = TRANSFORMER_RECOMPUTE_NONE,
                               .fused = TRANSFORMER_FUSES_NOTHING};
    check_equal("t5_paper_24_11b", &shape);
}

/* Selective recomputation repeats the first product of the attention and its means; full, the whole layer. */
static void test_recomputed(void **state) {
    (void)state;
    TransformerShape shape = {.family = TRANSFORMER_GPT,
                              .layers = 3,
                              .width = 64,
                              .heads = 4,
                              .kv_heads = 4,
                              .ffn = 256,
                              .vocabulary = 512,
                              .sequence = 32,
                              .batch = 8,
                              .type = DTYPE_F16,
                              .optimizer = TRANSFORMER_ADAM,
                              .recompute = TRANSFORMER_RECOMPUTE_NONE,
                              .fused = TRANSFORMER_FUSES_NOTHING};
    double tokens = 8 * 32, core = 3 * 2 * 2 * tokens * 32 * 64, linear = 3 * 2 * tokens * (4 + 8) * 64 * 64;
    Counts none = count_built(&shape);
    shape.recompute = TRANSFORMER_RECOMPUTE_SELECTIVE;
    Counts selective = count_built(&shape);
    shape.recompute = TRANSFORMER_RECOMPUTE_FULL;
    Counts full = count_built(&shape);
    double head = 3 * 2 * tokens * 512 * 64;
    assert_true(none.products == 3 * (core + linear) + head);
    /* means of the values and results of a layer have no second reader */
    double unread = 3 * 2 * tokens * 4 * 64 * 64;
    assert_true(selective.products == none.products + core / 2);
    assert_true(full.products == none.products + core + linear - unread);
    assert_int_equal(none.weight_elements, full.weight_elements);
}

static void check_refused(TransformerShape shape, const char *word) {
    IrModule *module;
    AmError error = {0};
    assert_int_equal(transformer_module(&module, &shape, &error), AM_ERROR_INPUT);
    if (!strstr(error.text, word)) fail_msg("%s: no %s", error.text, word);
}

static void test_refused(void **state) {
    (void)state;
    const TransformerShape good = {.family = TRANSFORMER_LLAMA,
                                   .layers = 2,
                                   .width = 64,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .ffn = 256,
                                   .vocabulary = 512,
                                   .sequence = 32,
                                   .batch = 8,
                                   .type = DTYPE_F16,
                                   .optimizer = TRANSFORMER_ADAM,
                                   .recompute = TRANSFORMER_RECOMPUTE_NONE,
                                   .fused = TRANSFORMER_FUSES_NOTHING};
    TransformerShape shape = good;
    shape.layers = 0;
    check_refused(shape, "layers");
    shape = good;
    shape.layers = 1LL << 40;
    check_refused(shape, "layers");
    shape = good;
    shape.heads = 5;
    check_refused(shape, "heads");
    shape = good;
    shape.kv_heads = 3;
    check_refused(shape, "kv_heads");
    shape = good;
    shape.width = 4;
    check_refused(shape, "even");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt), cmocka_unit_test(test_bert),       cmocka_unit_test(test_llama),
        cmocka_unit_test(test_t5),  cmocka_unit_test(test_recomputed), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
