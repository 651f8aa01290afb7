/* Operators that JAX seldom or never makes: map, rng, stochastic-convert, bits of
 * less than a byte, sizes that are known, ragged products, tokens, and those that are refused by name. */
#include <math.h>

#include "tests/support/module_case.h"

static void test_map(void **state) {
    (void)state;
    const float x[] = {1, 2, 3}, y[] = {4, 5, 6}, expected[] = {9, 12, 15};
    check_module("HloModule m\nf { a = f32[] parameter(0) b = f32[] parameter(1) s = f32[] add(a, b)\n"
                 "  ROOT r = f32[] add(s, b) }\n"
                 "ENTRY e { x = f32[3] parameter(0) y = f32[3] parameter(1)\n"
                 "  ROOT r = f32[3] map(x, y), dimensions={0}, to_apply=f }\n",
                 (const void *[]){x, y}, expected, sizeof expected);
}

/* 4096 numbers have about the distribution that they ask for, and a second run has others. */
static void test_rng(void **state) {
    (void)state;
    static const char *const texts[] = {
        "HloModule m\nENTRY e { a = f32[] parameter(0) b = f32[] parameter(1)\n"
        "  ROOT r = f32[4096] rng(a, b), distribution=rng_uniform }\n",
        "HloModule m\nENTRY e { a = f32[] parameter(0) b = f32[] parameter(1)\n"
        "  ROOT r = f32[4096] rng(a, b), distribution=rng_normal }\n"};
    const float a = 2, b = 5;
    for (int k = 0; k < 2; k++) {
        ModuleCase c;
        double sum = 0, squares = 0;
        if (module_open(&c, texts[k]) != AM_OK) fail_msg("%s", c.error.text);
        module_run(&c, (const void *[]){&a, &b});
        const float *got = executable_output(c.entry, 0);
        float first = got[0];
        for (int i = 0; i < 4096; i++) {
            if (k == 0) assert_true(got[i] >= a && got[i] < b);
            sum += got[i];
            squares += (double)got[i] * got[i];
        }
        double mean = sum / 4096, deviation = sqrt(squares / 4096 - mean * mean);
        assert_true(fabs(mean - (k == 0 ? 3.5 : 2)) < (k == 0 ? 0.1 : 0.4));
        assert_true(fabs(deviation - (k == 0 ? 0.866 : 5)) < (k == 0 ? 0.05 : 0.3));
        module_run(&c, (const void *[]){&a, &b});
        assert_true(((const float *)executable_output(c.entry, 0))[0] != first);
        module_close(&c);
    }
}

/* 1.25 is rounded up if the bits are below a quarter of their range; values out of range saturate. */
static void test_stochastic_convert(void **state) {
    (void)state;
    const float x[] = {1.25f, 1.25f, -1.25f, -1.25f, 3e9f, NAN};
    const uint32_t bits[] = {0x3FFFFFFF, 0x40000000, 0x3FFFFFFF, 0x40000000, 7, 7};
    const int32_t expected[] = {2, 1, -2, -1, INT32_MAX, 0};
    check_module("HloModule m\nENTRY e { x = f32[6] parameter(0) b = u32[6] parameter(1)\n"
                 "  ROOT r = s32[6] stochastic-convert(x, b) }\n",
                 (const void *[]){x, bits}, expected, sizeof expected);
}

static void test_upper_half_of_a_product(void **state) {
    (void)state;
    const int8_t x[] = {-128, 127, -1}, y[] = {-128, 127, 1}, expected[] = {64, 63, -1};
    check_module("HloModule m\nENTRY e { x = s8[3] parameter(0) y = s8[3] parameter(1)\n"
                 "  ROOT r = s8[3] mulhi(x, y) }\n",
                 (const void *[]){x, y}, expected, sizeof expected);
}

/* The lowest bits come first. */
static void test_bits_of_less_than_a_byte(void **state) {
    (void)state;
    const uint8_t x[] = {0x2A, 0xF1}, halves[] = {0xA, 0x2, 0x1, 0xF};
    const int8_t signed_halves[] = {-6, 2, 1, -1};
    check_module("HloModule m\nENTRY e { x = u8[2] parameter(0)\n"
                 "  ROOT r = u4[2,2] bitcast-convert(x) }\n",
                 (const void *[]){x}, halves, sizeof halves);
    check_module("HloModule m\nENTRY e { x = u8[2] parameter(0)\n"
                 "  ROOT r = s4[2,2] bitcast-convert(x) }\n",
                 (const void *[]){x}, signed_halves, sizeof signed_halves);
    check_module("HloModule m\nENTRY e { x = s4[2,2] parameter(0)\n"
                 "  ROOT r = u8[2] bitcast-convert(x) }\n",
                 (const void *[]){signed_halves}, x, sizeof x);
}

/* For -1, 1, -8 and 0 in s4. */
static void test_operators_on_bits_of_narrow_integers(void **state) {
    (void)state;
    const int8_t x[] = {-1, 1, -8, 0}, zeros[] = {0, 3, 0, 4}, ones[] = {4, 1, 1, 0},
                 shifted[] = {7, 0, 4, 0};
    const uint8_t bits[] = {15, 1, 8, 0};
    check_module("HloModule m\nENTRY e { x = s4[4] parameter(0) ROOT r = s4[4] count-leading-zeros(x) }\n",
                 (const void *[]){x}, zeros, sizeof zeros);
    check_module("HloModule m\nENTRY e { x = s4[4] parameter(0) ROOT r = s4[4] popcnt(x) }\n",
                 (const void *[]){x}, ones, sizeof ones);
    check_module("HloModule m\nENTRY e { x = s4[4] parameter(0) o = s4[] constant(1)\n"
                 "  b = s4[4] broadcast(o), dimensions={} ROOT r = s4[4] shift-right-logical(x, b) }\n",
                 (const void *[]){x}, shifted, sizeof shifted);
    check_module("HloModule m\nENTRY e { x = s4[4] parameter(0) ROOT r = u4[4] bitcast-convert(x) }\n",
                 (const void *[]){x}, bits, sizeof bits);
}

static void test_sizes_that_are_known(void **state) {
    (void)state;
    const int32_t size = 3;
    const float x[] = {1, 2, 3};
    check_module("HloModule m\nENTRY e { x = f32[2,3] parameter(0)\n"
                 "  ROOT r = s32[] get-dimension-size(x), dimensions={1} }\n",
                 (const void *[]){(const float[6]){0}}, &size, sizeof size);
    check_module("HloModule m\nENTRY e { x = f32[3] parameter(0) n = s32[] constant(3)\n"
                 "  ROOT r = f32[3] set-dimension-size(x, n), dimensions={0} }\n",
                 (const void *[]){x}, x, sizeof x);
    check_refused("HloModule m\nENTRY e { x = f32[3] parameter(0) n = s32[] parameter(1)\n"
                  "  ROOT r = f32[3] set-dimension-size(x, n), dimensions={0} }\n",
                  "sizes that change");
}

/* f64 keeps 10 bits of fraction; 2^16 is beyond 5 bits of exponent. */
static void test_reduced_precision_of_doubles(void **state) {
    (void)state;
    const double x[] = {1 + 0x1p-11, 1 + 0x3p-11, 65536, 0x1p-15}, expected[] = {1, 1 + 0x1p-9, INFINITY, 0};
    check_module("HloModule m\nENTRY e { x = f64[4] parameter(0)\n"
                 "  ROOT r = f64[4] reduce-precision(x), exponent_bits=5, mantissa_bits=10 }\n",
                 (const void *[]){x}, expected, sizeof expected);
}

/* Rows 0 and 1 are of group 0, row 2 of group 2; row 3 is of none. */
static void test_ragged_rows(void **state) {
    (void)state;
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8}, y[] = {1, 1, 10, 10, 1, -1}, expected[] = {3, 7, -1, 0};
    const int32_t sizes[] = {2, 0, 1};
    check_module("HloModule m\nENTRY e { x = f32[4,2] parameter(0) y = f32[3,2] parameter(1)\n"
                 "  g = s32[3] parameter(2) ROOT r = f32[4] ragged-dot(x, y, g), lhs_contracting_dims={1}, "
                 "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0} }\n",
                 (const void *[]){x, y, sizes}, expected, sizeof expected);
}

/* The last group reaches over the end and is cut off. */
static void test_ragged_sums(void **state) {
    (void)state;
    const int32_t x[] = {1, 2, 3, 4}, y[] = {5, 6, 7, 8}, sizes[] = {1, 9}, expected[] = {5, 65};
    check_module("HloModule m\nENTRY e { x = s32[4] parameter(0) y = s32[4] parameter(1)\n"
                 "  g = s32[2] parameter(2) ROOT r = s32[2] ragged-dot(x, y, g), lhs_contracting_dims={0}, "
                 "rhs_contracting_dims={0}, lhs_ragged_dims={0} }\n",
                 (const void *[]){x, y, sizes}, expected, sizeof expected);
}

/* bf16: 1 2 3 slid along 2 3, one result per place, rounded once. */
static void test_convolution_of_narrow_floats(void **state) {
    (void)state;
    const uint16_t x[] = {0x3F80, 0x4000, 0x4040}, w[] = {0x4000, 0x4040}, expected[] = {0x4100, 0x4150};
    check_module("HloModule m\nENTRY e { x = bf16[1,1,3] parameter(0) w = bf16[1,1,2] parameter(1)\n"
                 "  ROOT r = bf16[1,1,2] convolution(x, w), window={size=2}, dim_labels=bf0_oi0->bf0 }\n",
                 (const void *[]){x, w}, expected, sizeof expected);
}

/* f8e8m0fnu has no sign, f4 has it in bit 3. */
static void test_topk_of_narrow_floats(void **state) {
    (void)state;
    const uint8_t x[] = {0x7F, 0x81, 0x03}, largest[] = {0x81, 0x7F}, y[] = {0x2, 0xB, 0x4},
                  small[] = {0x4, 0x2};
    check_module("HloModule m\nENTRY e { x = f8e8m0fnu[3] parameter(0)\n"
                 "  t = (f8e8m0fnu[2], s32[2]) topk(x), k=2, largest=true\n"
                 "  ROOT r = f8e8m0fnu[2] get-tuple-element(t), index=0 }\n",
                 (const void *[]){x}, largest, sizeof largest);
    check_module("HloModule m\nENTRY e { x = f4e2m1fn[3] parameter(0)\n"
                 "  t = (f4e2m1fn[2], s32[2]) topk(x), k=2, largest=true\n"
                 "  ROOT r = f4e2m1fn[2] get-tuple-element(t), index=0 }\n",
                 (const void *[]){y}, small, sizeof small);
}

static void test_tokens(void **state) {
    (void)state;
    const float x[] = {1, 2}, expected[] = {2, 4};
    check_module("HloModule m\nENTRY e { x = f32[2] parameter(0) t = token[] after-all()\n"
                 "  y = f32[2] add-dependency(x, t) ROOT r = f32[2] add(y, y) }\n",
                 (const void *[]){x}, expected, sizeof expected);
}

static void test_refused_by_name(void **state) {
    (void)state;
    check_refused("HloModule m\nENTRY e { ROOT r = u32[] partition-id() }\n",
                  "divided among devices already");
    check_refused("HloModule m\nENTRY e { ROOT r = u64[2] rng-get-and-update-state(), delta=1 }\n",
                  "belongs to a compiled program");
    check_refused("HloModule m\nENTRY e { x = f32[4] parameter(0) t = token[] after-all()\n"
                  "  i = (f32[4], token[]) infeed(t) g = f32[4] get-tuple-element(i), index=0\n"
                  "  ROOT r = f32[4] add(x, g) }\n",
                  "no channel to the running program");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_rng),
        cmocka_unit_test(test_stochastic_convert),
        cmocka_unit_test(test_upper_half_of_a_product),
        cmocka_unit_test(test_bits_of_less_than_a_byte),
        cmocka_unit_test(test_operators_on_bits_of_narrow_integers),
        cmocka_unit_test(test_sizes_that_are_known),
        cmocka_unit_test(test_reduced_precision_of_doubles),
        cmocka_unit_test(test_ragged_rows),
        cmocka_unit_test(test_ragged_sums),
        cmocka_unit_test(test_convolution_of_narrow_floats),
        cmocka_unit_test(test_topk_of_narrow_floats),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
