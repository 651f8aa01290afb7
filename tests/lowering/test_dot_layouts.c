/* Transposes beside products: none is left where a product can take it, and the numbers are the same. */
#include <stdio.h>

#include "tests/support/module_case.h"

enum { TEXT = 4096, MOST = 6 };

static int32_t count_steps(const Program *program, IrOpcode opcode) {
    int32_t count = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++)
        count += program->execution.steps[s].instruction >= 0 &&
                 program->instructions[program->execution.steps[s].instruction].opcode == opcode;
    return count;
}

/* Permutation number `n` of three. */
static void permute(int64_t *out, int n) {
    static const int64_t orders[MOST][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    memcpy(out, orders[n], sizeof orders[n]);
}

/* a' = [2,3,4] and b' = [2,4,5] are transposes of the parameters, the result one of a'b' = [2,3,5].
 * `apart`: something stands between that no product takes. */
static void write_module(char *text, const char *type, int left, int right, int result, bool apart) {
    static const int64_t a[3] = {2, 3, 4}, b[3] = {2, 4, 5}, c[3] = {2, 3, 5};
    int64_t p[3], q[3], r[3], x[3], y[3], z[3];
    permute(p, left);
    permute(q, right);
    permute(r, result);
    for (int d = 0; d < 3; d++) {
        x[p[d]] = a[d];
        y[q[d]] = b[d];
        z[d] = c[r[d]];
    }
    const char *between = apart ? "negate" : "copy";
    snprintf(text, TEXT,
             "HloModule m\nENTRY e {\n"
             "  a = %s[%d,%d,%d] parameter(0)\n  b = %s[%d,%d,%d] parameter(1)\n"
             "  s = %s[2,3,4] transpose(a), dimensions={%d,%d,%d}\n"
             "  t = %s[2,4,5] transpose(b), dimensions={%d,%d,%d}\n"
             "  u = %s[2,3,4] %s(s)\n  v = %s[2,4,5] %s(t)\n"
             "  c = %s[2,3,5] dot(u, v), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
             "rhs_contracting_dims={1}\n  d = %s[2,3,5] %s(c)\n"
             "  %s w = %s[%d,%d,%d] transpose(d), dimensions={%d,%d,%d}\n}\n",
             type, (int)x[0], (int)x[1], (int)x[2], type, (int)y[0], (int)y[1], (int)y[2], type, (int)p[0],
             (int)p[1], (int)p[2], type, (int)q[0], (int)q[1], (int)q[2], type, between, type, between, type,
             type, between, apart ? "" : "ROOT", type, (int)z[0], (int)z[1], (int)z[2], (int)r[0], (int)r[1],
             (int)r[2]);
    if (!apart) return;
    snprintf(text + strlen(text) - 2, TEXT - strlen(text), "  ROOT o = %s[%d,%d,%d] negate(w)\n}\n", type,
             (int)z[0], (int)z[1], (int)z[2]);
}

static void check(const char *type, bool takes_all, int left, int right, int result) {
    char text[TEXT];
    int32_t a[24], b[40], expected[30];
    ModuleCase plain, absorbed;
    bool is_float = strcmp(type, "f32") == 0;
    for (int k = 0; k < 24; k++) a[k] = k * 7 % 11 - 5;
    for (int k = 0; k < 40; k++) b[k] = k * 5 % 9 - 4;
    for (int k = 0; k < 24 && is_float; k++) memcpy(&a[k], &(float){(float)a[k]}, 4);
    for (int k = 0; k < 40 && is_float; k++) memcpy(&b[k], &(float){(float)b[k]}, 4);
    write_module(text, type, left, right, result, true);
    if (module_open(&plain, text) != AM_OK) fail_msg("%s", plain.error.text);
    module_run(&plain, (const void *[]){a, b});
    memcpy(expected, executable_output(plain.entry, 0), sizeof expected);
    write_module(text, type, left, right, result, false);
    if (module_open(&absorbed, text) != AM_OK) fail_msg("%s", absorbed.error.text);
    assert_int_equal(count_steps(absorbed.program, IR_DOT), 1);
    if (takes_all) assert_int_equal(count_steps(absorbed.program, IR_TRANSPOSE), 0);
    check_run(&absorbed, (const void *[]){a, b}, expected, sizeof expected);
    module_close(&plain);
    module_close(&absorbed);
}

static void test_every_order(void **state) {
    (void)state;
    for (int left = 0; left < MOST; left++)
        for (int right = 0; right < MOST; right++)
            for (int result = 0; result < MOST; result++) {
                check("f32", true, left, right, result);
                check("s32", false, left, right, result);
            }
}

/* Values with other users do not change. */
static void test_other_users(void **state) {
    (void)state;
    const char *text = "HloModule m\nENTRY e {\n"
                       "  a = f32[2,2] parameter(0)\n"
                       "  b = f32[2,2] parameter(1)\n"
                       "  c = f32[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                       "  t = f32[2,2] transpose(c), dimensions={1,0}\n"
                       "  s = f32[2,2] transpose(b), dimensions={1,0}\n"
                       "  d = f32[2,2] dot(s, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                       "  e = f32[2,2] add(d, c)\n"
                       "  f = f32[2,2] add(e, s)\n"
                       "  ROOT g = f32[2,2] add(f, t)\n}\n";
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, expected[] = {292, 637, 361, 766};
    check_module(text, (const void *[]){a, b}, expected, sizeof expected);
}

/* A product with itself, whose operand is transposed once. */
static void test_same_operand_twice(void **state) {
    (void)state;
    const char *text =
        "HloModule m\nENTRY e {\n"
        "  a = f32[2,2] parameter(0)\n"
        "  t = f32[2,2] transpose(a), dimensions={1,0}\n"
        "  ROOT d = f32[2,2] dot(t, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";
    const float a[] = {1, 2, 3, 4}, expected[] = {7, 15, 10, 22};
    check_module(text, (const void *[]){a}, expected, sizeof expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_order),
        cmocka_unit_test(test_other_users),
        cmocka_unit_test(test_same_operand_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
