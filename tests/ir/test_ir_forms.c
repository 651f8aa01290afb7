/* The forms of module texts: every text of tests/data/verify/texts.txt is read or refused as its
 * first line says. A text that is read is printed and read again to the same print; a
 * refusal holds the message of the file and, but for rules of the whole module, a place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "ir/canonical/canonical.h"
#include "ir/encodings.h"

static void check_printed(const char *title, const IrModule *module) {
    Text once = {0}, twice = {0};
    AmError error = {0};
    IrModule *again;
    assert_int_equal(ir_print_text(&once, module->message, &error), AM_OK);
    if (ir_read_bytes(&again, "again", once.data, (int64_t)once.length, &error) != AM_OK)
        fail_msg("%s: %s\n%s", title, error.text, once.data);
    assert_int_equal(ir_print_text(&twice, again->message, &error), AM_OK);
    if (strcmp(once.data, twice.data) != 0) fail_msg("%s:\n%s\nis read as\n%s", title, once.data, twice.data);
    ir_module_free(again);
    text_free(&once);
    text_free(&twice);
}

/* `head` is the line of the case after its mark. */
static void check_text(const char *head, const char *text, int64_t length) {
    const char *message = strstr(head, " | ");
    IrModule *module;
    AmError error = {0};
    AmStatus status = ir_read_bytes(&module, "case", text, length, &error);
    if (strncmp(head, "accepted", 8) == 0) {
        if (status != AM_OK) fail_msg("%s: %d:%d: %s", head, error.line, error.column, error.text);
        check_printed(head, module);
        ir_module_free(module);
        return;
    }
    if (status == AM_OK) fail_msg("%s: it is read", head);
    assert_int_equal(status, AM_ERROR_INPUT);
    assert_non_null(message);
    if (!strstr(error.text, message + 3)) fail_msg("%s: the message is '%s'", head, error.text);
    if (error.line < 1 || error.column < 1) fail_msg("%s: the error has no place: %s", head, error.text);
}

static void every_text(void **state) {
    (void)state;
    FileBytes file;
    AmError error = {0};
    assert_int_equal(file_read(&file, SOURCE_DIR "/tests/data/verify/texts.txt", &error), AM_OK);
    const char mark[] = "\n>>> ";
    char *data = test_malloc((size_t)file.length + 1);
    memcpy(data, file.data, (size_t)file.length);
    data[file.length] = '\0';
    int32_t count = 0;
    for (char *at = strstr(data, mark), *next; at; at = next, count++) {
        char *head = at + strlen(mark), *text = strchr(head, '\n');
        next = strstr(head, mark);
        assert_non_null(text);
        *text++ = '\0';
        char *end = next ? next + 1 : data + file.length;
        bool has_returns = strncmp(head, "accepted CR", 11) == 0;
        for (char *c = text; has_returns && c < end; c++)
            if (*c == '\n') *c = '\r';
        check_text(head, text, end - text);
    }
    assert_true(count > 80);
    test_free(data);
    file_release(&file);
}

/* Sizes are needed from the canonical module on: the refusal names the instruction. */
static void unbounded_modules_are_not_planned(void **state) {
    (void)state;
    static const char text[] =
        "HloModule m\nENTRY e {\n  p = f32[?,10] parameter(0)\n  ROOT r = negate(p)\n}\n";
    IrModule *module, *canonical;
    AmError error = {0};
    assert_int_equal(ir_read_bytes(&module, "case", text, sizeof text - 1, &error), AM_OK);
    assert_string_equal(module->unbounded, "p");
    assert_int_equal(ir_canonicalize(&canonical, module, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "instruction p"));
    ir_module_free(module);
}

/* Nesting is bounded, in operands as in computations. */
static void deep_nesting_is_refused(void **state) {
    (void)state;
    static const char *const parts[][2] = {{"f32[] add(f32[] a, ", "f32[] b"},
                                           {"f32[] call(), to_apply={ ROOT r = ", "f32[] constant(0)"}};
    for (size_t k = 0; k < 2; k++) {
        Text text = {0};
        IrModule *module;
        AmError error = {0};
        for (int i = 0; i < 100000; i++) text_append_string(&text, parts[k][0]);
        text_append_string(&text, parts[k][1]);
        assert_int_equal(ir_read_bytes(&module, "case", text.data, (int64_t)text.length, &error),
                         AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "nested deeper than"));
        text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_text),
                                       cmocka_unit_test(unbounded_modules_are_not_planned),
                                       cmocka_unit_test(deep_nesting_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
