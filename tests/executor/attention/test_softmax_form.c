/* The recognition of plain attention (softmax_form.h): parts, scale, mask and results of forms whose text
 * states them, and forms that are no plain attention. Iota vectors (lowering/program/iota_values.h),
 * through loops. */
#include "executor/attention/softmax_form.h"
#include "lowering/program/iota_values.h"
#include "tests/support/attention_case.h"

static void open_form(AttentionRegion *region, const AttentionForm *form) {
    attention_open(region, &kernel_device_cpu, form);
    for (int32_t k = 0; k < 2 && form->has_positions; k++) {
        ProgramValue *value = &region->region->values[region->region->parameters[3 + form->has_bias + k]];
        value->is_iota = true;
        value->iota_first = k == 0 ? 7 : 0;
    }
}

static void check_roles(const SoftmaxForm *form, bool is_backward) {
    static const SoftmaxRole roles[2][3] = {
        {SOFTMAX_OUTPUT, SOFTMAX_MAXIMUM, SOFTMAX_SUM},
        {SOFTMAX_QUERY_GRADIENT, SOFTMAX_KEY_GRADIENT, SOFTMAX_VALUE_GRADIENT},
    };
    for (int32_t k = 0; k < 3; k++) assert_int_equal(form->roles[k], roles[is_backward][k]);
}

static void test_parts(void **state) {
    static const struct {
        AttentionForm form;
        SoftmaxMask mask;
    } cases[] = {
        {{2, 2, 1, 16, 16, 8, "f32", .is_causal = false}, {0}},
        {{2, 2, 3, 16, 24, 8, "bf16", .is_causal = true}, {.has_last = true}},
        {{1, 2, 1, 16, 16, 8, "f16", .heads_first = true, .is_causal = true, .window = 5},
         {.has_last = true, .has_first = true, .first = 4}},
        {{1, 2, 1, 16, 40, 8, "f32", .is_causal = true, .has_positions = true},
         {.has_last = true, .last = 7}},
    };
    (void)state;
    for (size_t k = 0; k < 2 * (sizeof cases / sizeof *cases); k++) {
        AttentionRegion region;
        AttentionForm text = cases[k / 2].form;
        const SoftmaxMask *mask = &cases[k / 2].mask;
        SoftmaxForm form;
        AmError error = {0};
        text.is_backward = k % 2;
        open_form(&region, &text);
        if (softmax_form_find(&form, &region.arena, region.region, &error) != AM_OK)
            fail_msg("%d: %s", (int)k, error.text);
        assert_int_equal(form.is_backward, text.is_backward);
        assert_int_equal(form.queries, 0);
        assert_int_equal(form.keys, 1);
        assert_int_equal(form.values, 2);
        int32_t own = attention_operands(&text);
        assert_int_equal(form.output_gradient, text.is_backward ? own : -1);
        assert_int_equal(form.maximum, text.is_backward ? own + 1 : -1);
        assert_int_equal(form.sum, text.is_backward ? own + 2 : -1);
        assert_true(fabs(form.scale - 0.125) < 1e-6);
        assert_int_equal(form.mask.has_last, mask->has_last);
        assert_int_equal(form.mask.has_first, mask->has_first);
        if (mask->has_last) assert_int_equal(form.mask.last, mask->last);
        if (mask->has_first) assert_int_equal(form.mask.first, mask->first);
        check_roles(&form, text.is_backward);
        attention_free(&region);
    }
}

/* Other functions of the scores, and positions that are unknown. */
static void test_others(void **state) {
    static const AttentionForm forms[] = {
        {1, 2, 1, 16, 16, 8, "f32", .has_cap = true},
        {1, 2, 1, 16, 16, 8, "f32", .has_drops = true},
        {1, 2, 1, 16, 16, 8, "f32", .has_bias = true, .is_causal = true},
        {1, 2, 1, 16, 16, 8, "f32", .is_causal = true, .has_positions = true},
    };
    (void)state;
    for (size_t k = 0; k < 2 * (sizeof forms / sizeof *forms); k++) {
        AttentionRegion region;
        AttentionForm text = forms[k / 2];
        SoftmaxForm form;
        AmError error = {0};
        text.is_backward = k % 2;
        attention_open(&region, &kernel_device_cpu, &text);
        assert_int_equal(softmax_form_find(&form, &region.arena, region.region, &error), AM_ERROR_INPUT);
        attention_free(&region);
    }
}

/* Gradients that differ from a softmax's in one sign or factor. */
static void test_altered(void **state) {
    static const char *const changes[][2] = {
        {"dpd = f32[1,2,16,16] subtract(", "dpd = f32[1,2,16,16] add("},
        {"ds0 = f32[1,2,16,16] multiply(dpd, p_wide)", "ds0 = f32[1,2,16,16] multiply(dpd, e)"},
        {"ds3 = f32[1,2,16,16] multiply(ds0, b_scale)", "ds3 = f32[1,2,16,16] multiply(ds0, e)"},
    };
    AttentionForm form = {1, 2, 1, 16, 16, 8, "f32", .is_backward = true};
    (void)state;
    for (size_t k = 0; k < sizeof changes / sizeof *changes; k++) {
        AttentionRegion region;
        SoftmaxForm found;
        AmError error = {0};
        Text text = attention_text(&form), altered = {0};
        const char *place = strstr(text.data, changes[k][0]);
        assert_non_null(place);
        text_append(&altered, "%.*s%s%s", (int)(place - text.data), text.data, changes[k][1],
                    place + strlen(changes[k][0]));
        if (attention_prepare(&region, &kernel_device_cpu, altered.data, altered.length, &error) != AM_OK)
            fail_msg("%s\n%s", error.text, altered.data);
        assert_int_equal(softmax_form_find(&found, &region.arena, region.region, &error), AM_ERROR_INPUT);
        attention_free(&region);
        text_free(&altered);
        text_free(&text);
    }
}

/* A loop passes one vector on and changes the other. */
static void test_counted(void **state) {
    static const char text[] =
        "HloModule m\n"
        "body { s = (s32[], s32[4], s32[4]) parameter(0) i = s32[] get-tuple-element(s), index=0\n"
        " a = s32[4] get-tuple-element(s), index=1 b = s32[4] get-tuple-element(s), index=2\n"
        " one = s32[] constant(1) j = s32[] add(i, one) c = s32[4] add(a, b)\n"
        " ROOT r = (s32[], s32[4], s32[4]) tuple(j, a, c) }\n"
        "less { s = (s32[], s32[4], s32[4]) parameter(0) i = s32[] get-tuple-element(s), index=0\n"
        " n = s32[] constant(3) ROOT c = pred[] compare(i, n), direction=LT }\n"
        "ENTRY e { zero = s32[] constant(0) a = s32[4] iota(), iota_dimension=0\n"
        " t = (s32[], s32[4], s32[4]) tuple(zero, a, a)\n"
        " w = (s32[], s32[4], s32[4]) while(t), condition=less, body=body\n"
        " ROOT r = s32[4] get-tuple-element(w), index=2 }\n";
    Arena arena = {0};
    IrModule *module, *canonical;
    Program *program;
    AmError error = {0};
    int32_t counted = 0, vectors = 0;
    (void)state;
    if (ir_read_bytes(&module, "test", text, (int64_t)strlen(text), &error) != AM_OK ||
        ir_canonicalize(&canonical, module, &error) != AM_OK ||
        program_from_computation(&program, &arena, canonical, canonical->entry, false, &error) != AM_OK)
        fail_msg("%s", error.text);
    program_find_iotas(program);
    for (int32_t i = 0; i < program->instruction_count; i++) {
        if (program->instructions[i].opcode != IR_WHILE) continue;
        const Program *body = program->instructions[i].regions.programs[0];
        for (int32_t k = 0; k < body->roles->parameter_count; k++) {
            const ProgramValue *value = &body->values[body->parameters[k]];
            vectors += value->shape.rank == 1;
            counted += value->is_iota;
            if (value->is_iota) assert_int_equal(value->iota_first, 0);
        }
    }
    assert_int_equal(vectors, 2);
    assert_int_equal(counted, 1);
    arena_free(&arena);
    ir_module_free(canonical);
    ir_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_others),
                                       cmocka_unit_test(test_altered), cmocka_unit_test(test_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
