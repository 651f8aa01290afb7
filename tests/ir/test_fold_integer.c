/* Folded scalars keep the range of their type, and an unknown operator or comparison stays unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ir/analysis/fold_integer.h"

static void test_operators(void **state) {
    (void)state;
    static const struct {
        IrOpcode opcode;
        const char *comparison;
        Dtype type;
        int64_t operands[3];
        bool is_known;
        int64_t result;
    } cases[] = {{IR_ADD, NULL, DTYPE_S8, {100, 27}, true, 127},
                 {IR_ADD, NULL, DTYPE_S8, {100, 28}, false, 0},
                 {IR_SUBTRACT, NULL, DTYPE_U32, {1, 2}, false, 0},
                 {IR_MULTIPLY, NULL, DTYPE_S64, {INT64_MAX, 2}, false, 0},
                 {IR_NEGATE, NULL, DTYPE_S32, {5}, true, -5},
                 {IR_REMAINDER, NULL, DTYPE_S32, {7, 4}, true, 3},
                 {IR_REMAINDER, NULL, DTYPE_S32, {7, 0}, false, 0},
                 {IR_CLAMP, NULL, DTYPE_S32, {0, 9, 4}, true, 4},
                 {IR_SELECT, NULL, DTYPE_S32, {0, 9, 4}, true, 4},
                 {IR_CONVERT, NULL, DTYPE_PRED, {2}, false, 0},
                 {IR_COMPARE, "GE", DTYPE_PRED, {2, 2}, true, 1},
                 {IR_COMPARE, "LT", DTYPE_PRED, {2, 2}, true, 0},
                 {IR_COMPARE, "GX", DTYPE_PRED, {2, 1}, false, 0},
                 {IR_COMPARE, NULL, DTYPE_PRED, {2, 1}, false, 0},
                 {IR_AND, NULL, DTYPE_PRED, {1, 0}, true, 0},
                 {IR_NOT, NULL, DTYPE_S32, {1}, false, 0},
                 {IR_DIVIDE, NULL, DTYPE_S32, {4, 2}, false, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int64_t result = 0;
        bool is_known =
            ir_fold_integer(&result, cases[k].opcode, cases[k].comparison, cases[k].type, cases[k].operands);
        assert_int_equal(is_known, cases[k].is_known);
        if (is_known) assert_int_equal(result, cases[k].result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
