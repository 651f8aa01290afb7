/* Places of lookups in the canonical module. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "ir/canonical/canonical.h"

/* A lookup of indices in the table of LOOKUPS. */
#define LOOKUP(name, indices)                                                                       \
    "  " name " = f32[6,4] gather(table, " indices "), offset_dims={1}, collapsed_slice_dims={0}, " \
    "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}\n"
/* The lookup of a second sequence, whose indices are v. */
#define SECOND_LOOKUP(v) v "  b = s32[6,1] reshape(v)\n" LOOKUP("right", "b")
/* Two sequences looked up in one table: the second before or behind the work on the first. */
#define LOOKUPS(before, behind)                                                                       \
    "HloModule lookups\n\nENTRY main {\n  table = f32[8,4] parameter(0)\n  x = s32[6] parameter(1)\n" \
    "  y = s32[6] parameter(2)\n  a = s32[6,1] reshape(x)\n" LOOKUP("left", "a") before               \
        "  one = f32[6,4] tanh(left)\n  two = f32[6,4] tanh(one)\n" behind                            \
        "  ROOT sum = f32[6,4] add(two, right)\n}\n"

/* Returns the number of instructions before the second lookup in the canonical module. */
static int32_t place_of_second(const char *text) {
    AmError error = {0};
    IrModule *module, *canonical;
    int32_t place = 0;
    if (ir_read_bytes(&module, "test.hlo.txt", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    if (ir_canonicalize(&canonical, module, &error) != AM_OK) fail_msg("%s", error.text);
    while (strcmp(canonical->instructions[place].name, "right") != 0) place++;
    ir_module_free(canonical);
    ir_module_free(module);
    return place;
}

/* A lookup follows the first one of its table, wherever the file has it, unless its indices need floats. */
static void lookups_of_a_table_meet(void **state) {
    (void)state;
    static const char of_data[] = LOOKUPS("", SECOND_LOOKUP("  v = s32[6] add(y, y)\n"));
    static const char early[] = LOOKUPS(SECOND_LOOKUP("  v = s32[6] add(y, y)\n"), "");
    static const char of_work[] =
        LOOKUPS("", SECOND_LOOKUP("  row = f32[6,1] slice(two), slice={[0:6], [0:1]}\n"
                                  "  f = f32[6] reshape(row)\n"
                                  "  v = s32[6] convert(f)\n"));
    assert_int_equal(place_of_second(of_data), 7);
    assert_int_equal(place_of_second(early), 7);
    assert_int_equal(place_of_second(of_work), 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lookups_of_a_table_meet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
