/* Mixed precision: which values become bf16, where they are converted, and what stays f32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <string.h>

#include "base/text.h"
#include "ir/encodings.h"
#include "ir/precision/mixed_precision.h"
#include "propagation/plan/plan.h"

#define SUM     "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"
#define PRODUCT "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
#define BY_X    "lhs_contracting_dims={0}, rhs_contracting_dims={0}"

/* A rewritten module as text, and its counts. */
typedef struct Mixed {
    PlanContext *context;
    IrModule *module;
    IrPrecisionCounts counts;
    Text text;
} Mixed;

static AmStatus rewrite(Mixed *self, const char *source, AmError *error) {
    Text text = {0};
    *self = (Mixed){0};
    text_append(&text, "HloModule step\n%s", source);
    if (plan_context_parse(&self->context, "step.hlo.txt", text.data, (int64_t)text.length, error) != AM_OK)
        fail_msg("line %d: %s\n%s", (int)error->line, error->text, text.data);
    text_free(&text);
    return ir_mixed_precision(&self->module, &self->counts, self->context->module, self->context->canonical,
                              self->context->roles, error);
}

static void open_mixed(Mixed *self, const char *source) {
    AmError error = {0};
    if (rewrite(self, source, &error) != AM_OK) fail_msg("%s", error.text);
    Text text = {0};
    assert_int_equal(ir_print_text(&text, self->module->message, &error), AM_OK);
    /* Without '%' and the numbers that make names unique. */
    for (const char *at = text.data; *at; at++) {
        bool is_number = *at == '.' && isdigit((unsigned char)at[1]) && isalpha((unsigned char)at[-1]);
        if (is_number) at += strspn(at + 1, "0123456789");
        else if (*at != '%') text_append_bytes(&self->text, at, 1);
    }
    /* The text is a module, and its parameters and outputs have the types of the source. */
    PlanContext *again;
    if (plan_context_parse(&again, "mixed.hlo.txt", text.data, (int64_t)text.length, &error) != AM_OK)
        fail_msg("%s\n%s", error.text, text.data);
    text_free(&text);
    const IrModule *from = self->context->canonical, *to = again->canonical;
    assert_int_equal(again->roles->parameter_count, self->context->roles->parameter_count);
    for (int32_t p = 0; p < again->roles->parameter_count; p++)
        assert_true(
            ir_shape_equal(&to->instructions[again->roles->parameters[p].instruction].shape,
                           &from->instructions[self->context->roles->parameters[p].instruction].shape));
    assert_true(ir_shape_equal(&to->instructions[to->computations[0].root].shape,
                               &from->instructions[from->computations[0].root].shape));
    plan_context_free(again);
}

static void close_mixed(Mixed *self) {
    text_free(&self->text);
    ir_module_free(self->module);
    plan_context_free(self->context);
}

static void expect(const Mixed *self, const char *part) {
    if (!strstr(self->text.data, part)) fail_msg("expected: %s\nin\n%s", part, self->text.data);
}

static void expect_times(const Mixed *self, const char *part, int32_t times) {
    int32_t found = 0;
    for (const char *at = self->text.data; (at = strstr(at, part)); at++) found++;
    if (found != times) fail_msg("%d times, expected %d: %s\nin\n%s", found, times, part, self->text.data);
}

/* ---- straight steps ---- */

#define LINEAR                                                                     \
    SUM "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"   \
        " y = f32[8,4] dot(x, w), " PRODUCT "\n h = f32[8,4] tanh(y)\n"            \
        " z = f32[8,4] dot(h, w), " PRODUCT "\n zero = f32[] constant(0)\n"        \
        " e = f32[8,4] exponential(z)\n"                                           \
        " loss = f32[] reduce(e, zero), dimensions={0,1}, to_apply=sum\n"          \
        " dz = f32[4,4] dot(h, e), " BY_X "\n dh = f32[8,4] dot(e, w), " PRODUCT   \
        "\n h2 = f32[8,4] multiply(h, h)\n one = f32[] constant(1)\n"              \
        " ones = f32[8,4] broadcast(one), dimensions={}\n"                         \
        " slope = f32[8,4] subtract(ones, h2)\n dy = f32[8,4] multiply(dh, slope)" \
        "\n dx = f32[4,4] dot(x, dy), " BY_X "\n g = f32[4,4] add(dx, dz)\n"       \
        " rate = f32[] constant(0.1)\n"                                            \
        " rates = f32[4,4] broadcast(rate), dimensions={}\n"                       \
        " change = f32[4,4] multiply(g, rates)\n"                                  \
        " new = f32[4,4] subtract(w, change)\n"                                    \
        " ROOT out = (f32[4,4], f32[]) tuple(new, loss)\n}\n"

static void test_products_and_operators_between(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, LINEAR);
    assert_int_equal(mixed.counts.products, 5);
    assert_int_equal(mixed.counts.computed, 4); /* h, h2, slope, dy */
    expect_times(&mixed, "convert(w)", 1);
    expect(&mixed, "h = bf16[8,4]{1,0} tanh(y)");
    expect(&mixed, "slope = bf16[8,4]{1,0} subtract(ones.bf16, h2)");
    expect(&mixed, "one.bf16 = bf16[] constant(1)");
    /* The exponential, the sums and the update stay. */
    expect(&mixed, "e = f32[8,4]{1,0} exponential(z.f32)");
    expect(&mixed, "loss = f32[] reduce(e, zero)");
    expect(&mixed, "g = f32[4,4]{1,0} add(dx.f32, dz.f32)");
    expect(&mixed, "new = f32[4,4]{1,0} subtract(w, change)");
    close_mixed(&mixed);
}

static void test_moves_follow_the_smaller_type(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, SUM "ENTRY main {\n w = f32[4,2,2] parameter(0)\n x = f32[8,4] parameter(1)\n"
                           " v = f32[4,4] reshape(w)\n t = f32[4,4] transpose(v), dimensions={1,0}\n"
                           " y = f32[8,4] dot(x, v), " PRODUCT "\n z = f32[8,4] dot(y, t), " PRODUCT
                           "\n zt = f32[4,8] transpose(z), dimensions={1,0}\n zero = f32[] constant(0)\n"
                           " ROOT loss = f32[] reduce(zt, zero), dimensions={0,1}, to_apply=sum\n}\n");
    /* One conversion of the weight, before it is moved, and one of the result, after it was moved. */
    expect_times(&mixed, "convert(", 3);
    expect(&mixed, "convert(w)");
    expect(&mixed, "convert(zt)");
    close_mixed(&mixed);
}

static void test_data_is_unsafe(void **state) {
    (void)state;
    Mixed mixed;
    /* The difference from the target is of the loss, also where products read it. */
    open_mixed(&mixed,
               SUM "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"
                   " t = f32[8,4] parameter(2)\n y = f32[8,4] dot(x, w), " PRODUCT
                   "\n d = f32[8,4] subtract(y, t)\n s = f32[8,4] multiply(d, d)\n zero = f32[] constant(0)\n"
                   " loss = f32[] reduce(s, zero), dimensions={0,1}, to_apply=sum\n"
                   " g = f32[4,4] dot(x, d), " BY_X "\n new = f32[4,4] subtract(w, g)\n"
                   " ROOT out = (f32[4,4], f32[]) tuple(new, loss)\n}\n");
    expect(&mixed, "d = f32[8,4]{1,0} subtract(y.f32, t)");
    assert_int_equal(mixed.counts.computed, 0);
    close_mixed(&mixed);
}

/* Products that sum nothing, or have one result, do the work of element-wise operators. */
static void test_small_products_stay(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"
                       " t = f32[8] parameter(2)\n f = f32[4] parameter(3)\n o = f32[8] parameter(4)\n"
                       " angles = f32[8,4] dot(t, f), lhs_contracting_dims={}, rhs_contracting_dims={}\n"
                       " y = f32[8,4] dot(x, w), " PRODUCT "\n c = f32[8,4] cosine(angles)\n"
                       " z = f32[8,4] multiply(y, c)\n v = f32[8] dot(z, f), " PRODUCT "\n"
                       " ROOT loss = f32[] dot(v, o), " BY_X "\n}\n");
    expect(&mixed, "angles = f32[8,4]{1,0} dot(t, f)");
    expect(&mixed, "y = bf16[8,4]{1,0} dot(");
    expect(&mixed, "v = bf16[8]{0} dot(");
    expect(&mixed, "loss = f32[] dot(v.f32, o)");
    close_mixed(&mixed);
}

#define GATED(constant, quotient)                                                      \
    SUM "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"       \
        " y = f32[8,4] dot(x, w), " PRODUCT "\n n = f32[8,4] negate(y)\n"              \
        " e = f32[8,4] exponential(n)\n one = f32[] constant(" constant ")\n"          \
        " ones = f32[8,4] broadcast(one), dimensions={}\n p = f32[8,4] add(ones, e)\n" \
        " q = f32[8,4] divide(" quotient ")\n g = f32[8,4] multiply(y, q)\n"           \
        " z = f32[8,4] dot(g, w), " PRODUCT "\n zero = f32[] constant(0)\n"            \
        " ROOT loss = f32[] reduce(z, zero), dimensions={0,1}, to_apply=sum\n}\n"

/* The logistic function as JAX writes it is safe, other exponentials are not. */
static void test_logistic_function(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, GATED("1", "ones, p"));
    expect(&mixed, "e = bf16[8,4]{1,0} exponential(n)");
    expect(&mixed, "g = bf16[8,4]{1,0} multiply(y, q)");
    close_mixed(&mixed);
    static const char *const others[] = {GATED("2", "ones, p"), GATED("1", "p, ones"), GATED("1", "p, p")};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        open_mixed(&mixed, others[k]);
        expect(&mixed, "e = f32[8,4]{1,0} exponential(n)");
        close_mixed(&mixed);
    }
}

#define CLIPPED(constant)                                                           \
    SUM "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"    \
        " y = f32[8,4] dot(x, w), " PRODUCT "\n c = f32[] constant(" constant ")\n" \
        " b = f32[8,4] broadcast(c), dimensions={}\n m = f32[8,4] maximum(y, b)\n"  \
        " z = f32[8,4] dot(m, w), " PRODUCT "\n zero = f32[] constant(0)\n"         \
        " ROOT loss = f32[] reduce(z, zero), dimensions={0,1}, to_apply=sum\n}\n"

static void test_constants_beyond_bf16(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, CLIPPED("-3e+38"));
    expect(&mixed, "m = bf16[8,4]{1,0} maximum(y, b.bf16)");
    close_mixed(&mixed);
    open_mixed(&mixed, CLIPPED("-3.4028235e+38")); /* rounded to bf16, it would be infinite */
    expect(&mixed, "m = f32[8,4]{1,0} maximum(y.f32, b)");
    close_mixed(&mixed);
}

#define LOOKUP(scores)                                                                            \
    SUM "ENTRY main {\n w = f32[16,4] parameter(0)\n i = s32[8] parameter(1)\n"                   \
        " v = f32[16,4] parameter(2)\n"                                                           \
        " x = f32[8,4] gather(w, i), offset_dims={1}, collapsed_slice_dims={0}, "                 \
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}\n"                            \
        " y = f32[8,16] dot(x, " scores "), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n" \
        " zero = f32[] constant(0)\n"                                                             \
        " ROOT loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=sum\n}\n"

static void test_tables(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, LOOKUP("v")); /* rows are converted, not the table */
    expect(&mixed, "x = f32[8,4]{1,0} gather(w, i)");
    close_mixed(&mixed);
    open_mixed(&mixed, LOOKUP("w")); /* the table has a conversion already */
    expect(&mixed, "x = bf16[8,4]{1,0} gather(w.bf16, i)");
    close_mixed(&mixed);
}

/* ---- computations ---- */

static void test_loops_convert_stacks_outside(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(
        &mixed, SUM
        "body {\n c = (s32[], f32[8,4], f32[3,4,4], f32[3,8,4]) parameter(0)\n"
        " i = s32[] get-tuple-element(c), index=0\n x = f32[8,4] get-tuple-element(c), index=1\n"
        " w = f32[3,4,4] get-tuple-element(c), index=2\n s = f32[3,8,4] get-tuple-element(c), index=3\n"
        " z = s32[] constant(0)\n one = s32[] constant(1)\n"
        " r = f32[1,4,4] dynamic-slice(w, i, z, z), dynamic_slice_sizes={1,4,4}\n m = f32[4,4] reshape(r)\n"
        " y = f32[8,4] dot(x, m), " PRODUCT "\n k = f32[1,8,4] reshape(y)\n"
        " t = f32[3,8,4] dynamic-update-slice(s, k, i, z, z)\n n = s32[] add(i, one)\n"
        " ROOT o = (s32[], f32[8,4], f32[3,4,4], f32[3,8,4]) tuple(n, y, w, t)\n}\n"
        "condition {\n c = (s32[], f32[8,4], f32[3,4,4], f32[3,8,4]) parameter(0)\n"
        " i = s32[] get-tuple-element(c), index=0\n l = s32[] constant(3)\n"
        " ROOT lt = pred[] compare(i, l), direction=LT\n}\n"
        "ENTRY main {\n w = f32[3,4,4] parameter(0)\n x = f32[8,4] parameter(1)\n z = s32[] constant(0)\n"
        " zero = f32[] constant(0)\n s = f32[3,8,4] broadcast(zero), dimensions={}\n"
        " c = (s32[], f32[8,4], f32[3,4,4], f32[3,8,4]) tuple(z, x, w, s)\n"
        " l = (s32[], f32[8,4], f32[3,4,4], f32[3,8,4]) while(c), condition=condition, body=body\n"
        " t = f32[3,8,4] get-tuple-element(l), index=3\n"
        " ROOT loss = f32[] reduce(t, zero), dimensions={0,1,2}, to_apply=sum\n}\n");
    expect(&mixed, "l = (s32[], bf16[8,4]{1,0}, bf16[3,4,4]{2,1,0}, bf16[3,8,4]{2,1,0}) while(");
    expect_times(&mixed, "convert(", 3); /* w, x, and t for the loss */
    close_mixed(&mixed);
}

#define CARRIED "(s32[], f32[4,4], f32[8,4])"
#define ELEMENTS                                                                                 \
    " c = " CARRIED " parameter(0)\n i = s32[] get-tuple-element(c), index=0\n"                  \
    " w = f32[4,4] get-tuple-element(c), index=1\n x = f32[8,4] get-tuple-element(c), index=2\n" \
    " one = s32[] constant(1)\n n = s32[] add(i, one)\n"

/* Steps of SGD in a loop, and in a loop in a loop: the weight that a loop carries is a master weight. */
static void test_updates_in_loops_stay(void **state) {
    (void)state;
    static const char *const bodies[] = {"body", "outer"};
    for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
        Mixed mixed;
        Text text = {0};
        text_append(&text,
                    SUM "body {\n" ELEMENTS " y = f32[8,4] dot(x, w), " PRODUCT
                        "\n g = f32[4,4] dot(x, y), " BY_X "\n v = f32[4,4] subtract(w, g)\n"
                        " ROOT o = " CARRIED " tuple(n, v, x)\n}\n"
                        "condition {\n" ELEMENTS " l = s32[] constant(3)\n"
                        " ROOT lt = pred[] compare(i, l), direction=LT\n}\n"
                        "outer {\n" ELEMENTS " z = s32[] constant(0)\n t = " CARRIED " tuple(z, w, x)\n"
                        " l = " CARRIED " while(t), condition=condition, body=body\n"
                        " v = f32[4,4] get-tuple-element(l), index=1\n"
                        " ROOT o = " CARRIED " tuple(n, v, x)\n}\n"
                        "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"
                        " z = s32[] constant(0)\n c = " CARRIED " tuple(z, w, x)\n"
                        " l = " CARRIED " while(c), condition=condition, body=%s\n"
                        " v = f32[4,4] get-tuple-element(l), index=1\n zero = f32[] constant(0)\n"
                        " loss = f32[] reduce(v, zero), dimensions={0,1}, to_apply=sum\n"
                        " ROOT out = (f32[4,4], f32[]) tuple(v, loss)\n}\n",
                    bodies[k]);
        open_mixed(&mixed, text.data);
        expect(&mixed, "l = (s32[], f32[4,4]{1,0}, bf16[8,4]{1,0}) while(");
        expect(&mixed, "v = f32[4,4]{1,0} subtract(w, g.f32)");
        close_mixed(&mixed);
        text_free(&text);
    }
}

static void test_conditionals(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, SUM
               "double { a = (f32[8,4], f32[4,4]) parameter(0)\n x = f32[8,4] get-tuple-element(a), index=0\n"
               " w = f32[4,4] get-tuple-element(a), index=1\n"
               " ROOT y = f32[8,4] dot(x, w), " PRODUCT " }\n"
               "same { ROOT b = f32[8,4] parameter(0) }\n"
               "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"
               " p = pred[] parameter(2)\n t = (f32[8,4], f32[4,4]) tuple(x, w)\n"
               " y = f32[8,4] conditional(p, t, x), true_computation=double, false_computation=same\n"
               " z = f32[8,4] dot(y, w), " PRODUCT "\n zero = f32[] constant(0)\n"
               " ROOT loss = f32[] reduce(z, zero), dimensions={0,1}, to_apply=sum\n}\n");
    expect(&mixed, "y = f32[8,4]{1,0} conditional(p, t, x)");
    expect(&mixed, "a: (bf16[8,4], bf16[4,4])");
    expect(&mixed, "ROOT y.f32 = f32[8,4]{1,0} convert(y)");
    assert_int_equal(mixed.counts.products, 2);
    close_mixed(&mixed);
}

/* Two conversions to f32 of one value: the backward pass does not keep that of the forward pass. */
static void test_phases_have_their_own_conversions(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed, SUM "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"
                           " y = f32[8,4] dot(x, w), " PRODUCT "\n e = f32[8,4] exponential(y)\n"
                           " zero = f32[] constant(0)\n l = f32[8,4] log(y)\n both = f32[8,4] add(e, l)\n"
                           " loss = f32[] reduce(both, zero), dimensions={0,1}, to_apply=sum\n"
                           " d = f32[8,4] cosine(y), metadata={op_name=\"transpose(jvp(f))/cos\"}\n"
                           " g = f32[4,4] dot(x, d), " BY_X "\n new = f32[4,4] subtract(w, g)\n"
                           " ROOT out = (f32[4,4], f32[]) tuple(new, loss)\n}\n");
    expect_times(&mixed, " convert(y)", 2);
    close_mixed(&mixed);
}

static void test_others_stay(void **state) {
    (void)state;
    Mixed mixed;
    open_mixed(&mixed,
               SUM "ENTRY main {\n w = f32[4,4] parameter(0)\n x = f32[8,4] parameter(1)\n"
                   " u = f64[4,4] parameter(2)\n c = c64[4,4] parameter(3)\n n = s32[4,4] parameter(4)\n"
                   " y = f32[8,4] dot(x, w), " PRODUCT "\n"
                   " k = f32[8,4] custom-call(y), custom_call_target=\"mine\"\n"
                   " z = f32[8,4] dot(k, w), " PRODUCT "\n uu = f64[4,4] dot(u, u), " PRODUCT
                   "\n cc = c64[4,4] dot(c, c), " PRODUCT "\n nn = s32[4,4] dot(n, n), " PRODUCT "\n"
                   " ROOT out = (f32[8,4], f64[4,4], c64[4,4], s32[4,4]) tuple(z, uu, cc, nn)\n}\n");
    expect(&mixed, "k = f32[8,4]{1,0} custom-call(y.f32)");
    expect(&mixed, "cc = c64[4,4]{1,0} dot(c, c)");
    assert_int_equal(mixed.counts.products, 2);
    close_mixed(&mixed);
}

static void test_nothing_to_do(void **state) {
    (void)state;
    static const char *const sources[] = {
        "ENTRY main {\n w = bf16[4,4] parameter(0)\n ROOT y = bf16[4,4] dot(w, w), " PRODUCT "\n}\n",
        "ENTRY main {\n w = s32[4,4] parameter(0)\n ROOT y = s32[4,4] dot(w, w), " PRODUCT "\n}\n",
        "ENTRY main {\n w = bf16[4,4] parameter(0)\n ROOT y = f32[4,4] dot(w, w), " PRODUCT "\n}\n",
        "ENTRY main {\n w = f32[4] parameter(0)\n ROOT y = f32[4] add(w, w)\n}\n"};
    for (size_t k = 0; k < sizeof sources / sizeof *sources; k++) {
        Mixed mixed;
        AmError error = {0};
        assert_int_equal(rewrite(&mixed, sources[k], &error), AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "nothing to do"));
        close_mixed(&mixed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products_and_operators_between),
                                       cmocka_unit_test(test_moves_follow_the_smaller_type),
                                       cmocka_unit_test(test_data_is_unsafe),
                                       cmocka_unit_test(test_small_products_stay),
                                       cmocka_unit_test(test_tables),
                                       cmocka_unit_test(test_logistic_function),
                                       cmocka_unit_test(test_constants_beyond_bf16),
                                       cmocka_unit_test(test_loops_convert_stacks_outside),
                                       cmocka_unit_test(test_updates_in_loops_stay),
                                       cmocka_unit_test(test_conditionals),
                                       cmocka_unit_test(test_phases_have_their_own_conversions),
                                       cmocka_unit_test(test_others_stay),
                                       cmocka_unit_test(test_nothing_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
