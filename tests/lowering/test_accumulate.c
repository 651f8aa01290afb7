/* Sums that are taken into products: which are, where they lie, and the same numbers. */
#include <stdio.h>

#include "tests/support/module_case.h"

enum { TEXT = 4096 };

/* Steps that are dots of so many operands; with -1, fusions. */
static int32_t count_steps(const Program *program, int32_t operands) {
    int32_t count = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        int32_t i = program->execution.steps[s].instruction;
        if (i < 0) count += operands < 0;
        else if (program->instructions[i].opcode == IR_DOT)
            count += program->instructions[i].operand_count == operands;
        for (int32_t k = 0; i >= 0 && k < program->instructions[i].regions.count; k++)
            count += count_steps(program->instructions[i].regions.programs[k], operands);
    }
    return count;
}

/* The body of a module of a[4,3], b[4,2] and c[3,2], on one set of numbers: so many sums are taken in, and
 * the result is `expected`. */
static void check(const char *body, int32_t taken, const float *expected) {
    char text[TEXT];
    float a[12], b[8], c[6];
    ModuleCase module;
    for (int k = 0; k < 12; k++) a[k] = (float)(k * 5 % 7 - 3);
    for (int k = 0; k < 8; k++) b[k] = (float)(k * 3 % 5 - 2);
    for (int k = 0; k < 6; k++) c[k] = (float)(10 * k);
    snprintf(text, TEXT,
             "HloModule m\nENTRY e {\n  a = f32[4,3] parameter(0)\n  b = f32[4,2] parameter(1)\n"
             "  c = f32[3,2] parameter(2)\n  t = f32[2,3] transpose(c), dimensions={1,0}\n"
             "  d = f32[3,2] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n%s}\n",
             body);
    if (module_open(&module, text) != AM_OK) fail_msg("%s", module.error.text);
    if (count_steps(module.program, 3) != taken)
        fail_msg("%d of %d sums are taken in:\n%s", count_steps(module.program, 3), taken, body);
    check_run(&module, (const void *[]){a, b, c}, expected, sizeof c);
    module_close(&module);
}

/* a'b and c of above, by hand. */
static void expect(float *sum, float times, float of_c, bool transposed) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++) {
            float product = 0;
            for (int k = 0; k < 4; k++)
                product += (float)((k * 3 + i) * 5 % 7 - 3) * (float)((k * 2 + j) * 3 % 5 - 2);
            sum[transposed ? j * 3 + i : i * 2 + j] = times * product + of_c * (float)(10 * (i * 2 + j));
        }
}

static void test_what_is_taken_in(void **state) {
    static const struct {
        const char *body;
        int32_t taken;
        float times, of_c;
        bool transposed;
    } rows[] = {
        {"  ROOT r = f32[3,2] add(c, d)\n", 1, 1, 1, false},
        {"  ROOT r = f32[3,2] add(d, c)\n", 1, 1, 1, false},
        /* A transpose of the product is its own before. */
        {"  u = f32[2,3] transpose(d), dimensions={1,0}\n  ROOT r = f32[2,3] add(t, u)\n", 1, 1, 1, true},
        /* Two products: one is the other's addend. */
        {"  v = f32[3,2] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  ROOT r = f32[3,2] add(v, d)\n",
         1, 2, 0, false},
        /* Three: two sums of one group; but not beside another operator in it. */
        {"  v = f32[3,2] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  w = f32[3,2] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  s = f32[3,2] add(d, v)\n  ROOT r = f32[3,2] add(s, w)\n",
         2, 3, 0, false},
        {"  v = f32[3,2] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  s = f32[3,2] add(d, v)\n  ROOT r = f32[3,2] subtract(c, s)\n",
         0, -2, 1, false},
        /* The product itself has a user, the sum is in a fusion, the addend is computed in one, or
         * all elements are equal. */
        {"  s = f32[3,2] add(c, d)\n  u = f32[2,3] transpose(d), dimensions={1,0}\n"
         "  w = f32[2,3] transpose(s), dimensions={1,0}\n  ROOT r = f32[2,3] add(w, u)\n",
         0, 2, 1, true},
        {"  s = f32[3,2] add(c, d)\n  ROOT r = f32[3,2] multiply(s, s)\n", 0, 0, 0, false},
        {"  n = f32[3,2] negate(c)\n  ROOT r = f32[3,2] add(n, d)\n", 0, 1, -1, false},
        {"  k = f32[] constant(0)\n  n = f32[3,2] broadcast(k), dimensions={}\n"
         "  v = f32[3,2] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  ROOT r = f32[3,2] add(n, v)\n",
         0, 1, 0, false},
        {"  ROOT r = f32[3,2] add(d, d)\n", 0, 2, 0, false},
        {"  ROOT r = f32[3,2] subtract(d, c)\n", 0, 1, -1, false},
    };
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        float expected[6];
        expect(expected, rows[k].times, rows[k].of_c, rows[k].transposed);
        if (strstr(rows[k].body, "multiply")) {
            expect(expected, 1, 1, false);
            for (int i = 0; i < 6; i++) expected[i] *= expected[i];
        }
        check(rows[k].body, rows[k].taken, expected);
    }
}

/* A residual addition to a block's input, computed by a fusion of its own: n + n (n' n) of n =
 * |a'b|. */
static void test_residual_sums_are_taken(void **state) {
    float n[6], q[4] = {0}, expected[6];
    (void)state;
    expect(n, 1, 0, false);
    for (int i = 0; i < 6; i++) n[i] = n[i] < 0 ? -n[i] : n[i];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 2; j++) q[i % 2 * 2 + j] += n[i] * n[i / 2 * 2 + j];
    for (int i = 0; i < 6; i++)
        expected[i] = n[i] + n[i / 2 * 2] * q[i % 2] + n[i / 2 * 2 + 1] * q[2 + i % 2];
    check("  n = f32[3,2] abs(d)\n"
          "  q = f32[2,2] dot(n, n), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
          "  m = f32[3,2] dot(n, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
          "  ROOT r = f32[3,2] add(n, m)\n",
          1, expected);
}

/* A product of 16 bits is rounded before it is added; integers are added in fusions. */
static void test_other_types_are_left(void **state) {
    static const char *const types[] = {"bf16", "f16", "f64", "s32"};
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        char text[TEXT];
        ModuleCase module;
        snprintf(text, TEXT,
                 "HloModule m\nENTRY e {\n  a = %s[4,3] parameter(0)\n  c = %s[3,3] parameter(1)\n"
                 "  d = %s[3,3] dot(a, a), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                 "  ROOT r = %s[3,3] add(c, d)\n}\n",
                 types[k], types[k], types[k], types[k]);
        if (module_open(&module, text) != AM_OK) fail_msg("%s", module.error.text);
        assert_int_equal(count_steps(module.program, 3), 0);
        module_close(&module);
    }
}

/* Sums of bf16 products in f32 over iterations, and of their transposes: the loop's only step
 * besides the counter is a product, which accumulates into the carried array in place. */
static void test_a_carried_sum_stays_in_its_place(void **state) {
    static const char text[] =
        "HloModule m\n"
        "more { s = (s32[], bf16[5,6], bf16[5,4], f32[4,6]) parameter(0)\n"
        "  i = s32[] get-tuple-element(s), index=0 n = s32[] constant(3)\n"
        "  ROOT c = pred[] compare(i, n), direction=LT }\n"
        "turn { s = (s32[], bf16[5,6], bf16[5,4], f32[4,6]) parameter(0)\n"
        "  i = s32[] get-tuple-element(s), index=0 one = s32[] constant(1)\n"
        "  x = bf16[5,6] get-tuple-element(s), index=1 y = bf16[5,4] get-tuple-element(s), index=2\n"
        "  g = f32[4,6] get-tuple-element(s), index=3\n"
        "  d = f32[6,4] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "  t = f32[4,6] transpose(d), dimensions={1,0} next = f32[4,6] add(g, t) j = s32[] add(i, one)\n"
        "  ROOT r = (s32[], bf16[5,6], bf16[5,4], f32[4,6]) tuple(j, x, y, next) }\n"
        "ENTRY e { x = bf16[5,6] parameter(0) y = bf16[5,4] parameter(1) g = f32[4,6] parameter(2)\n"
        "  zero = s32[] constant(0)\n"
        "  t = (s32[], bf16[5,6], bf16[5,4], f32[4,6]) tuple(zero, x, y, g)\n"
        "  w = (s32[], bf16[5,6], bf16[5,4], f32[4,6]) while(t), condition=more, body=turn\n"
        "  ROOT r = f32[4,6] get-tuple-element(w), index=3 }\n";
    uint16_t x[30], y[20];
    float g[24], expected[24];
    ModuleCase module;
    (void)state;
    for (int k = 0; k < 30; k++) x[k] = dtype_float_to_bf16((float)(k % 7 - 3));
    for (int k = 0; k < 20; k++) y[k] = dtype_float_to_bf16((float)(k % 5 - 2));
    for (int k = 0; k < 24; k++) {
        float product = 0;
        for (int r = 0; r < 5; r++)
            product += (float)((r * 6 + k % 6) % 7 - 3) * (float)((r * 4 + k / 6) % 5 - 2);
        g[k] = (float)k;
        expected[k] = g[k] + 3 * product;
    }
    if (module_open(&module, text) != AM_OK) fail_msg("%s", module.error.text);
    check_run(&module, (const void *[]){x, y, g}, expected, sizeof expected);
    const Program *body = NULL;
    for (int32_t i = 0; i < module.program->instruction_count; i++)
        if (module.program->instructions[i].opcode == IR_WHILE)
            body = module.program->instructions[i].regions.programs[0];
    assert_non_null(body);
    assert_int_equal(body->execution.step_count, 2); /* the counter and one fusion */
    assert_int_equal(count_steps(body, 3), 1);
    int32_t in_place = 0;
    for (int32_t k = 0; k < body->execution.update_count; k++)
        in_place += body->execution.updates[k].in_place;
    assert_int_equal(in_place, body->execution.update_count);
    module_close(&module);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_taken_in),
        cmocka_unit_test(test_residual_sums_are_taken),
        cmocka_unit_test(test_other_types_are_left),
        cmocka_unit_test(test_a_carried_sum_stays_in_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
