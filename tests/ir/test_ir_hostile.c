/* Damaged modules, byte by byte: cut at every length, and every byte set to 0, to
 * 255 and to its complement, as binary, JSON and text. Whatever comes of it must
 * be a module, or a refusal of one line; never a crash, which the sanitizers of
 * the other build see best. With AUTOMAP_FULL=1 larger modules are tried too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "ir/canonical/canonical.h"
#include "ir/encodings.h"

enum { FORM_COUNT = 3, SLOWEST_SECONDS = 1 };
static const char *const FORM_NAMES[] = {"binary", "JSON", "text"};

/* Reads and canonicalizes; returns whether both succeeded. A refusal must have one line with the
 * reason. */
static bool is_taken(const char *bytes, size_t length, const char *form, const char *what, size_t at) {
    IrModule *module = NULL, *canonical = NULL;
    AmError error = {0};
    double begin = clock_cpu_seconds();
    AmStatus status = ir_read_bytes(&module, "m", bytes, (int64_t)length, &error);
    if (status == AM_OK) status = ir_canonicalize(&canonical, module, &error);
    double seconds = clock_cpu_seconds() - begin;
    bool is_clear = error.code == AM_ERROR_INPUT && error.text[0] && !strchr(error.text, '\n');
    if (status != AM_OK && !is_clear)
        fail_msg("%s, %s %zu: status %d, \"%s\"", form, what, at, (int)status, error.text);
    if (seconds > SLOWEST_SECONDS) fail_msg("%s, %s %zu: %g s", form, what, at, seconds);
    ir_module_free(canonical);
    ir_module_free(module);
    return status == AM_OK;
}

/* Every beginning of it. As JSON only the whole is a module, as text what ends with a computation. */
static void cut(const Text *printed, const char *form) {
    for (size_t length = 0; length < printed->length; length++) {
        bool taken = is_taken(printed->data, length, form, "cut at", length);
        bool has_end =
            length > 2 && (printed->data[length - 1] == '}' || strchr("\n\"", printed->data[length - 1]));
        if (taken && !has_end && form != FORM_NAMES[0]) fail_msg("%s, cut at %zu: taken", form, length);
    }
}

static void change(const Text *printed, const char *form) {
    char *bytes = malloc(printed->length + 1);
    assert_non_null(bytes);
    memcpy(bytes, printed->data, printed->length + 1);
    for (size_t at = 0; at < printed->length; at++) {
        const char values[] = {'\0', '\xff', (char)~bytes[at]};
        char before = bytes[at];
        for (size_t v = 0; v < sizeof values; v++) {
            bytes[at] = values[v];
            is_taken(bytes, printed->length, form, "changed byte", at);
        }
        bytes[at] = before;
    }
    free(bytes);
}

static void damage(const char *path) {
    static AmStatus (*const printers[])(Text *, const Hlo__HloModuleProto *,
                                        AmError *) = {ir_print_pb, ir_print_json, ir_print_text};
    IrModule *module;
    AmError error = {0};
    if (ir_read(&module, path, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t form = 0; form < FORM_COUNT; form++) {
        Text printed = {0};
        assert_int_equal(printers[form](&printed, module->message, &error), AM_OK);
        assert_true(is_taken(printed.data, printed.length, FORM_NAMES[form], "whole", 0));
        cut(&printed, FORM_NAMES[form]);
        change(&printed, FORM_NAMES[form]);
        text_free(&printed);
    }
    ir_module_free(module);
}

static void test_small(void **state) {
    (void)state;
    damage(SOURCE_DIR "/tests/data/text/half_product.hlo.txt");
    damage(SOURCE_DIR "/tests/data/text/old_style.hlo.txt");
}

static void test_larger(void **state) {
    (void)state;
    if (!getenv("AUTOMAP_FULL")) skip();
    damage(SOURCE_DIR "/tests/data/text/new_style.hlo.txt");
    damage(SOURCE_DIR "/tests/data/text/literals.hlo.txt");
    damage(SOURCE_DIR "/tests/data/text/while_carried.hlo.txt");
    damage(SOURCE_DIR "/tests/data/text/attributes.hlo.txt");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small), cmocka_unit_test(test_larger)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
