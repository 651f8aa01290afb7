/* Complex element-wise operators on values made by hand. */
#include <math.h>

#include "tests/support/module_case.h"

static void check_near(const char *text, const float *x, const float *y, const float *expected, int count) {
    ModuleCase c;
    if (module_open(&c, text) != AM_OK) fail_msg("%s", c.error.text);
    const void *parameters[] = {x, y};
    module_run(&c, parameters);
    const float *got = executable_output(c.entry, 0);
    for (int k = 0; k < count; k++)
        if (!(fabsf(got[k] - expected[k]) <= 1e-6f))
            fail_msg("[%d] is %g, expected %g", k, got[k], expected[k]);
    module_close(&c);
}

/* (x y) / y + conj(x), and |x|. */
static void test_arithmetic(void **state) {
    (void)state;
    const float x[] = {3, 4, -5, 12}, y[] = {1, -2, 0.5f, 1}, expected[] = {6, 0, -10, 0},
                magnitude[] = {5, 13};
    check_near("HloModule m\nENTRY e { x = c64[2] parameter(0) y = c64[2] parameter(1)\n"
               "  p = c64[2] multiply(x, y) q = c64[2] divide(p, y)\n"
               "  r = f32[2] real(x) i = f32[2] imag(x) n = f32[2] negate(i) c = c64[2] complex(r, n)\n"
               "  ROOT s = c64[2] add(q, c) }\n",
               x, y, expected, 4);
    check_near("HloModule m\nENTRY e { x = c64[2] parameter(0) ROOT a = f32[2] abs(x) }\n", x, NULL,
               magnitude, 2);
}

/* An overflow of the squares does not reach the quotient. */
static void test_large_quotient(void **state) {
    (void)state;
    const float x[] = {1e30f, 1e30f}, expected[] = {1, 0};
    check_near("HloModule m\nENTRY e { x = c64[] parameter(0) ROOT q = c64[] divide(x, x) }\n", x, NULL,
               expected, 2);
}

static void test_is_refused_where_there_is_no_order(void **state) {
    (void)state;
    check_refused(
        "HloModule m\nENTRY e { x = c64[] parameter(0) ROOT q = pred[] compare(x, x), direction=LT }\n",
        "no kernel for 'compare'");
}

/* c128 too: arithmetic, a choice of 16 bytes, an iota and conversions from and to narrower types. */
static void test_doubles(void **state) {
    (void)state;
    const double x[] = {1, 2, 3, -1}, y[] = {0, 1, 2, 2}, expected[] = {-2, 1, 9, 4};
    const uint8_t chosen[] = {1, 0};
    const double picked[] = {1, 2, 2, 2};
    check_module("HloModule m\nENTRY e { x = c128[2] parameter(0) y = c128[2] parameter(1)\n"
                 "  p = c128[2] multiply(x, y) i = c128[2] iota(), iota_dimension=0\n"
                 "  ROOT r = c128[2] add(p, i) }\n",
                 (const void *[]){x, y}, expected, sizeof expected);
    check_module("HloModule m\nENTRY e { p = pred[2] parameter(0) x = c128[2] parameter(1)\n"
                 "  y = c128[2] parameter(2) ROOT r = c128[2] select(p, x, y) }\n",
                 (const void *[]){chosen, x, y}, picked, sizeof picked);
    check_module("HloModule m\nENTRY e { x = c128[2] parameter(0) n = c64[2] convert(x)\n"
                 "  ROOT r = c128[2] convert(n) }\n",
                 (const void *[]){x}, x, sizeof x);
    const int32_t whole[] = {3, -2};
    const double widened[] = {3, 0, -2, 0};
    check_module("HloModule m\nENTRY e { x = s32[2] parameter(0) ROOT r = c128[2] convert(x) }\n",
                 (const void *[]){whole}, widened, sizeof widened);
}

/* 1 / (inf + i nan) is 0 as in XLA; the absolute value of a number with a NaN is NaN. */
static void test_special_values(void **state) {
    (void)state;
    const float x[] = {1, 0, INFINITY, 0}, y[] = {INFINITY, NAN, 2, 0}, quotients[] = {0, 0};
    ModuleCase c;
    if (module_open(
            &c,
            "HloModule m\nENTRY e { x = c64[2] parameter(0) y = c64[2] parameter(1)\n"
            "  q = c64[2] divide(x, y) a = f32[2] abs(y) ROOT t = (c64[2], f32[2]) tuple(q, a) }\n") != AM_OK)
        fail_msg("%s", c.error.text);
    module_run(&c, (const void *[]){x, y});
    const float *quotient = executable_output(c.entry, 0), *size = executable_output(c.entry, 1);
    assert_true(quotient[0] == quotients[0] && quotient[1] == quotients[1] && isinf(quotient[2]));
    assert_true(isnan(size[0]) && size[1] == 2);
    module_close(&c);
}

/* x^T y, and x slid over y, with i i = -1. */
static void test_products(void **state) {
    (void)state;
    const float x[] = {1, 1, 0, 2}, y[] = {2, 0, 0, 1}, product[] = {0, 2}, slid[] = {0, 2};
    check_module("HloModule m\nENTRY e { x = c64[2] parameter(0) y = c64[2] parameter(1)\n"
                 "  ROOT r = c64[] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0} }\n",
                 (const void *[]){x, y}, product, sizeof product);
    check_module("HloModule m\nENTRY e { x = c64[1,1,2] parameter(0) y = c64[1,1,2] parameter(1)\n"
                 "  ROOT r = c64[1,1,1] convolution(x, y), window={size=2}, dim_labels=bf0_oi0->bf0 }\n",
                 (const void *[]){x, y}, slid, sizeof slid);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic),     cmocka_unit_test(test_large_quotient),
        cmocka_unit_test(test_doubles),        cmocka_unit_test(test_products),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_is_refused_where_there_is_no_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
