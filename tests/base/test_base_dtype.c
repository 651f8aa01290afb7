/* Element types: names both ways, kinds, and rounding to 16 bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/dtype.h"

static void names_and_sizes(void **state) {
    (void)state;
    for (int i = 1; i < DTYPE_COUNT; i++) assert_int_equal(dtype_from_name(dtype_name((Dtype)i)), i);
    assert_int_equal(dtype_from_name("float32"), DTYPE_INVALID);
    assert_string_equal(dtype_name((Dtype)99), "invalid");
    assert_int_equal(dtype_bytes(DTYPE_C128), 16);
    assert_int_equal(dtype_bytes(DTYPE_S4), 1);
    assert_int_equal(dtype_bits(DTYPE_S4), 4);
    assert_int_equal(dtype_bytes(DTYPE_TUPLE), 0);
}

static void kinds(void **state) {
    (void)state;
    assert_true(dtype_is_floating(DTYPE_BF16) && dtype_is_floating(DTYPE_F8E8M0FNU) &&
                dtype_is_floating(DTYPE_F64));
    assert_false(dtype_is_floating(DTYPE_S32) || dtype_is_floating(DTYPE_BUFFER) ||
                 dtype_is_floating(DTYPE_C64));
    assert_true(dtype_is_integer(DTYPE_U4) && dtype_is_integer(DTYPE_S64));
    assert_false(dtype_is_integer(DTYPE_PRED) || dtype_is_integer(DTYPE_TUPLE));
    assert_true(dtype_is_signed(DTYPE_S8) && dtype_is_signed(DTYPE_F32));
    assert_false(dtype_is_signed(DTYPE_U8) || dtype_is_signed(DTYPE_PRED) ||
                 dtype_is_signed(DTYPE_F8E8M0FNU));
    assert_true(dtype_is_complex(DTYPE_C64));
}

/* Every 16-bit value survives the way through float. */
static void every_value_round_trips(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float half = dtype_f16_to_float((uint16_t)bits), brain = dtype_bf16_to_float((uint16_t)bits);
        if (isnan(half)) assert_true(isnan(dtype_f16_to_float(dtype_float_to_f16(half))));
        else assert_int_equal(dtype_float_to_f16(half), bits);
        if (isnan(brain)) assert_true(isnan(dtype_bf16_to_float(dtype_float_to_bf16(brain))));
        else assert_int_equal(dtype_float_to_bf16(brain), bits);
    }
}

/* Between two neighbours the nearer one is chosen, half-way the even one. */
static void rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7BFF; bits++) {
        float low = dtype_f16_to_float((uint16_t)bits), high = dtype_f16_to_float((uint16_t)(bits + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(dtype_float_to_f16(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(dtype_float_to_f16(nextafterf(middle, 0)), bits);
        assert_int_equal(dtype_float_to_f16(nextafterf(middle, INFINITY)), bits + 1);
    }
    for (uint32_t bits = 0x0080; bits < 0x7F7F; bits++) {
        float low = dtype_bf16_to_float((uint16_t)bits), high = dtype_bf16_to_float((uint16_t)(bits + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(dtype_float_to_bf16(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(dtype_float_to_bf16(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_int_equal(dtype_float_to_f16(65519.0f), 0x7BFF);
    assert_int_equal(dtype_float_to_f16(65520.0f), 0x7C00);
    assert_int_equal(dtype_float_to_f16(-1e30f), 0xFC00);
    assert_int_equal(dtype_float_to_f16(1e-10f), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes),
        cmocka_unit_test(kinds),
        cmocka_unit_test(every_value_round_trips),
        cmocka_unit_test(rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
