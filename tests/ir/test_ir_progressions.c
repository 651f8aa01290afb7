/* Progressions of integers: by operator, and unknown where numbers wrap or differ in their steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "ir/analysis/progressions.h"

static const char text[] = "HloModule m\n"
                           "ENTRY e {\n"
                           " i = s32[4] iota(), iota_dimension=0\n"
                           " row = s32[1,4] iota(), iota_dimension=0\n"
                           " c = s32[1,4] constant({ {-3, -1, 1, 3} })\n"
                           " odd = s32[4] constant({0, 1, 2, 4})\n"
                           " two = s32[] constant(2)\n"
                           " twos = s32[4] broadcast(two), dimensions={}\n"
                           " r = s32[1,4] reshape(i)\n"
                           " sum = s32[1,4] add(r, c)\n"
                           " less = s32[4] subtract(i, twos)\n"
                           " twice = s32[4] multiply(twos, less)\n"
                           " square = s32[4] multiply(i, i)\n"
                           " large = s32[4] constant({2147483644, 2147483645, 2147483646, 2147483647})\n"
                           " wraps = s32[4] add(large, twos)\n"
                           " table = s32[4,4] broadcast(i), dimensions={0}\n"
                           " small = u8[4] iota(), iota_dimension=0\n"
                           " ROOT t = (s32[4]) tuple(i)\n"
                           "}\n";

/* The expected progressions; the others are unknown. */
static const struct {
    const char *name;
    int64_t first, step;
} rows[] = {
    {"i", 0, 1}, {"row", 0, 0},  {"c", -3, 2},    {"two", 2, 0},    {"twos", 2, 0},
    {"r", 0, 1}, {"sum", -3, 3}, {"less", -2, 1}, {"twice", -4, 2}, {"large", 2147483644, 1},
};

static void test_operators(void **state) {
    IrModule *module;
    AmError error = {0};
    IrProgression found[32];
    size_t known = 0;
    (void)state;
    if (ir_read_bytes(&module, "test", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_true(module->instruction_count <= 32);
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        const IrProgression *operands[2] = {NULL};
        for (int32_t k = 0; k < instruction->operand_count && k < 2; k++)
            operands[k] = &found[instruction->operands[k]];
        found[i] = ir_progression(instruction, operands);
        known += found[i].is_known;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            if (strcmp(rows[r].name, instruction->name) != 0) continue;
            if (!found[i].is_known || found[i].first != rows[r].first || found[i].step != rows[r].step)
                fail_msg("%s: %d, first %lld, step %lld", instruction->name, found[i].is_known,
                         (long long)found[i].first, (long long)found[i].step);
        }
    }
    assert_int_equal(known, sizeof rows / sizeof *rows);
    ir_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
