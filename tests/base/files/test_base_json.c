/* JSON: errors name the place, numbers keep their value, hostile depth fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"

static json_t *parse(const char *text) {
    json_t *root;
    AmError error = {0};
    assert_int_equal(json_parse(&root, "f.json", text, strlen(text), &error), AM_OK);
    return root;
}

static void assert_written(const char *source, JsonStyle style, const char *expected) {
    json_t *root = parse(source);
    Text text = {0};
    json_write(&text, root, style);
    assert_string_equal(text.data, expected);
    text_free(&text);
    json_decref(root);
}

static void syntax_errors_have_a_place(void **state) {
    (void)state;
    static const char *const bad[] = {"{\n  \"a\": 1,\n  \"b\" 2\n}", "{\"a\": 1, \"a\": 2}", "[1, 2] x", "",
                                      "{\"a\": 1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *root;
        AmError error = {0};
        assert_int_equal(json_parse(&root, "f.json", bad[i], strlen(bad[i]), &error), AM_ERROR_INPUT);
        assert_null(root);
        assert_true(error.line > 0);
    }
    json_t *root;
    AmError error = {0};
    json_parse(&root, "f.json", bad[0], strlen(bad[0]), &error);
    assert_int_equal(error.line, 3);
    assert_true(error.column > 1);
    assert_string_equal(error.excerpt, ""); /* one line of message */
}

static void byte_order_marks_are_skipped(void **state) {
    (void)state;
    static const char bad[] = "\xef\xbb\xbf{\n1}";
    json_t *root = parse("\xef\xbb\xbf{\"a\": 1}");
    AmError error = {0};
    assert_int_equal(json_integer_value(json_object_get(root, "a")), 1);
    json_decref(root);
    assert_int_equal(json_parse(&root, "f.json", bad, sizeof bad - 1, &error), AM_ERROR_INPUT);
    assert_int_equal(error.line, 2);
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 1000000 };
    char *text = malloc(DEPTH);
    memset(text, '[', DEPTH);
    json_t *root;
    AmError error = {0};
    assert_int_equal(json_parse(&root, "f.json", text, DEPTH, &error), AM_ERROR_INPUT);
    free(text);
}

static void readers_name_the_path(void **state) {
    (void)state;
    json_t *root = parse("{\"name\": 3, \"size\": 12, \"bytes\": 16e9, \"half\": 0.5}");
    const char *name;
    int64_t size;
    double half;
    json_t *array;
    AmError error = {0};
    assert_int_equal(json_get_string(&name, root, "name", "f.json", "$.devices[2]", &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, "f.json");
    assert_string_equal(error.text, "$.devices[2].name: expected a string");
    error = (AmError){0};
    assert_int_equal(json_get_array(&array, root, "none", "f.json", "$", &error), AM_ERROR_INPUT);
    assert_string_equal(error.text, "$.none: missing, expected an array");
    error = (AmError){0};
    assert_int_equal(json_get_integer(&size, root, "size", 0, 10, "f.json", "$", &error), AM_ERROR_INPUT);
    assert_string_equal(error.text, "$.size: expected an integer from 0 to 10, found 12");
    error = (AmError){0};
    assert_int_equal(json_get_integer(&size, root, "half", 0, 10, "f.json", "$", &error), AM_ERROR_INPUT);
    assert_string_equal(error.text, "$.half: expected an integer from 0 to 10");
    error = (AmError){0};
    assert_int_equal(json_get_integer(&size, root, "bytes", 0, INT64_MAX, "f.json", "$", &error), AM_OK);
    assert_true(size == 16000000000);
    assert_int_equal(json_get_number(&half, root, "half", 0, 1, "f.json", "$", &error), AM_OK);
    assert_true(half == 0.5);
    assert_int_equal(json_get_number(&half, root, "half", 0.6, 1, "f.json", "$", &error), AM_ERROR_INPUT);
    json_decref(root);
}

static void unknown_keys_are_named(void **state) {
    (void)state;
    static const char *const keys[] = {"a", "b", NULL};
    json_t *good = parse("{\"b\": 1}"), *bad = parse("{\"a\": 1, \"c\": 2}");
    AmError error = {0};
    assert_int_equal(json_only_keys(good, keys, "f.json", "$", &error), AM_OK);
    assert_int_equal(json_only_keys(bad, keys, "f.json", "$", &error), AM_ERROR_INPUT);
    assert_string_equal(error.text, "$.c: unknown key, expected one of a, b");
    json_decref(good);
    json_decref(bad);
}

static void writing(void **state) {
    (void)state;
    assert_written("{\"b\":[1, 2.5, true], \"a\":{\"x\":null}}", JSON_STYLE_COMPACT,
                   "{\"b\":[1,2.5,true],\"a\":{\"x\":null}}");
    assert_written("{\"b\":[1, [2, 3]], \"a\":[{}], \"c\":[]}", JSON_STYLE_INDENTED,
                   "{\n  \"b\": [1, [2, 3]],\n  \"a\": [\n    {}\n  ],\n  \"c\": []\n}");
    assert_written("{\"b\":16e9, \"a\":0.1, \"c\":16000000000}", JSON_STYLE_CANONICAL,
                   "{\"a\":0.10000000000000001,\"b\":16000000000,\"c\":16000000000}");
    assert_written("[1.0, 1e300, -0.0]", JSON_STYLE_COMPACT, "[1.0,1e+300,-0.0]");
    assert_written("[\"a\\\"b\\\\\\u0001\\n\xc3\xa9\"]", JSON_STYLE_COMPACT,
                   "[\"a\\\"b\\\\\\u0001\\n\xc3\xa9\"]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(syntax_errors_have_a_place), cmocka_unit_test(byte_order_marks_are_skipped),
        cmocka_unit_test(deep_nesting_is_refused),    cmocka_unit_test(readers_name_the_path),
        cmocka_unit_test(unknown_keys_are_named),     cmocka_unit_test(writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
