/* Text: numbers read back, units round sensibly, tables line up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/text.h"

typedef void Append(Text *text, double value);

typedef struct Case {
    Append *append;
    double value;
    const char *expected;
} Case;

static void numbers_and_units(void **state) {
    (void)state;
    static const Case cases[] = {
        {text_append_double, 0.1, "0.1"},
        {text_append_double, 1e300, "1e+300"},
        {text_append_double, 1.0 / 3, "0.3333333333333333"},
        {text_append_double, 5e-324, "5e-324"},
        {text_append_double, 0, "0"},
        {text_append_seconds, 1.25e-3, "1.25 ms"},
        {text_append_seconds, 0.9999, "1 s"},
        {text_append_seconds, 59.0, "59 s"},
        {text_append_seconds, 90, "1.5 min"},
        {text_append_seconds, 0, "0 s"},
        {text_append_seconds, 3e-10, "0.3 ns"},
        {text_append_bytes_size, 3.4e9, "3.4 GB"},
        {text_append_bytes_size, 999.7e6, "1 GB"},
        {text_append_bytes_size, 12, "12 B"},
        {text_append_count, 16.8e6, "16.8 M"},
        {text_append_count, 187, "187"},
        {text_append_count, -2500, "-2.5 k"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text text = {0};
        cases[i].append(&text, cases[i].value);
        assert_string_equal(text.data, cases[i].expected);
        text_free(&text);
    }
}

static void doubles_read_back_equal(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 1);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = random_bits(&random);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (value != value || value - value != 0) continue;
        Text text = {0};
        text_append_double(&text, value);
        assert_true(strtod(text.data, NULL) == value);
        text_free(&text);
    }
}

static void tables(void **state) {
    (void)state;
    Text text = {0};
    text_append_table(&text, "plan\tstep\tnote\nsearched\t1.5\tbest\ndp\t12.25\t\xc3\xa9\n");
    assert_string_equal(text.data, "plan      step   note\n"
                                   "searched    1.5  best\n"
                                   "dp        12.25  \xc3\xa9\n");
    text_free(&text);
}

static void appending_grows(void **state) {
    (void)state;
    Text text = {0};
    for (int i = 0; i < 5000; i++) text_append(&text, "%d,", i % 10);
    text_append_bytes(&text, "\0end", 4);
    assert_int_equal(text.length, 10004);
    assert_memory_equal(text.data + 9998, "9,\0end", 7);
    text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_units),
        cmocka_unit_test(doubles_read_back_equal),
        cmocka_unit_test(tables),
        cmocka_unit_test(appending_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
