/* Errors: the first wins, places in text are found, warnings are not repeated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/arena.h"
#include "base/status.h"

static AmStatus relay(AmStatus inner) {
    TRY(inner);
    return AM_OK;
}

static void first_error_wins(void **state) {
    (void)state;
    AmError error = {0};
    assert_int_equal(am_fail(&error, AM_ERROR_INPUT, "model.pb", "byte %d", 7), AM_ERROR_INPUT);
    assert_int_equal(am_fail(&error, AM_ERROR_USAGE, "other", "later"), AM_ERROR_USAGE);
    assert_int_equal(error.code, AM_ERROR_INPUT);
    assert_string_equal(error.source, "model.pb");
    assert_string_equal(error.text, "byte 7");
    assert_int_equal(error.line, 0);
    assert_int_equal(am_fail(NULL, AM_ERROR_INPUT, "x", "no error to fill"), AM_ERROR_INPUT);
    assert_int_equal(relay(AM_ERROR_INFEASIBLE), AM_ERROR_INFEASIBLE);
}

static void place_in_text(void **state) {
    (void)state;
    static const char text[] = "first\nsecond line\nthird";
    AmError error = {0};
    am_fail_at(&error, AM_ERROR_INPUT, "m.txt", text, (int64_t)strlen(text), 13, "unexpected");
    assert_int_equal(error.line, 2);
    assert_int_equal(error.column, 8);
    assert_string_equal(error.excerpt, "second line");
    error = (AmError){0};
    am_fail_at(&error, AM_ERROR_INPUT, "m.txt", text, (int64_t)strlen(text), 1000, "beyond the end");
    assert_int_equal(error.line, 3);
    assert_int_equal(error.column, 6);
}

static void long_messages_are_cut_between_characters(void **state) {
    (void)state;
    char text[3000];
    for (size_t i = 0; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    text[sizeof text - 2] = '\0';
    AmError error = {0};
    am_fail_at(&error, AM_ERROR_INPUT, "", text, (int64_t)strlen(text), 0, "x%s", text);
    assert_int_equal(strlen(error.text) % 2, 1);
    assert_true(strlen(error.text) >= sizeof error.text - 2);
    assert_int_equal(strlen(error.excerpt) % 2, 0);
}

/* Terminals and JSON take messages of any name: bytes that are not UTF-8 are escaped, others are kept. */
static void invalid_bytes_are_escaped(void **state) {
    (void)state;
    AmError error = {0};
    am_fail(&error, AM_ERROR_INPUT,
            "a\xff"
            "b.csv",
            "\"\xc3\xa9\xc3"
            "z\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82\xac\"");
    assert_string_equal(error.source, "a\\xffb.csv");
    assert_string_equal(error.text, "\"\xc3\xa9\\xc3z\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\xe2\x82\xac\"");
    am_error_prefix(&error, "\xfe: ");
    assert_memory_equal(error.text, "\\xfe: \"", 7);
    error = (AmError){0};
    am_fail_at(&error, AM_ERROR_INPUT, "m.txt",
               "ab\xff"
               "cd",
               5, 3, "unexpected");
    assert_string_equal(error.excerpt, "ab?cd");
    char many[2000] = {0};
    memset(many, 0xff, sizeof many - 1);
    error = (AmError){0};
    am_fail(&error, AM_ERROR_INPUT, many, "%s", many);
    assert_true(strlen(error.text) > sizeof error.text - 8 && strlen(error.text) % 4 == 0);
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    am_warn(&warnings, "axis %s", "\xc0");
    assert_string_equal(warnings.texts[0], "axis \\xc0");
    arena_free(&arena);
}

/* A name out of a file may hold anything; the message stays one line. */
static void messages_are_one_line(void **state) {
    (void)state;
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    AmError error = {0};
    am_fail(&error, AM_ERROR_INPUT, "a\nfile", "instruction %s", "x\n\r\x7f\033[31m");
    assert_string_equal(error.source, "a file");
    assert_string_equal(error.text, "instruction x    [31m");
    am_warn(&warnings, "%s", "two\nlines");
    assert_string_equal(warnings.texts[0], "two lines");
    arena_free(&arena);
}

/* An error that is handed on does not replace an earlier one. */
static void passed_errors_keep_the_first(void **state) {
    (void)state;
    AmError error = {0}, first = {0}, second = {0};
    am_fail(&first, AM_ERROR_INPUT, "file", "first");
    am_fail(&second, AM_ERROR_USAGE, "", "second");
    assert_int_equal(am_pass_error(AM_OK, &first, &error), AM_OK);
    assert_int_equal(error.code, AM_OK);
    assert_int_equal(am_pass_error(AM_ERROR_INPUT, &first, &error), AM_ERROR_INPUT);
    assert_int_equal(am_pass_error(AM_ERROR_USAGE, &second, &error), AM_ERROR_USAGE);
    assert_int_equal(error.code, AM_ERROR_INPUT);
    assert_string_equal(error.text, "first");
    assert_int_equal(am_pass_error(AM_ERROR_USAGE, &second, NULL), AM_ERROR_USAGE);
}

static void warnings_are_kept_once(void **state) {
    (void)state;
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    for (int i = 0; i < 40; i++) am_warn(&warnings, "warning %d", i % 20);
    assert_int_equal(warnings.count, 20);
    assert_string_equal(warnings.texts[19], "warning 19");
    am_warn(NULL, "nobody listens");
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_wins),
        cmocka_unit_test(place_in_text),
        cmocka_unit_test(long_messages_are_cut_between_characters),
        cmocka_unit_test(invalid_bytes_are_escaped),
        cmocka_unit_test(messages_are_one_line),
        cmocka_unit_test(passed_errors_keep_the_first),
        cmocka_unit_test(warnings_are_kept_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
