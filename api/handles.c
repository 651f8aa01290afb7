/* Parts that all calls of the API share: checks of arguments, structs with a size, and buffers. */
#include "api/handles.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "api/options.h"

void api_begin(AmError *error) {
    if (error) *error = (AmError){.code = AM_OK};
}

AmStatus api_require(const void *argument, const char *name, AmError *error) {
    if (argument) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s: NULL (expected a pointer)", name);
}

AmStatus api_check_index(int32_t k, int32_t count, const char *what, AmError *error) {
    if (k >= 0 && k < count) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s %d: expected a number below %d", what, k, count);
}

AmStatus api_copy_facts(void *facts, size_t size, const void *all, size_t all_size, AmError *error) {
    if (size < sizeof size)
        return am_fail(error, AM_ERROR_USAGE, "", "size %zu: expected sizeof of the struct", size);
    memset(facts, 0, size);
    memcpy(facts, all, size < all_size ? size : all_size);
    memcpy(facts, &size, sizeof size);
    return AM_OK;
}

AmStatus api_copy_callbacks(AmCallbacks *own, const AmCallbacks *callbacks, AmError *error) {
    *own = (AmCallbacks){0};
    if (!callbacks) return AM_OK;
    if (callbacks->size < sizeof callbacks->size)
        return am_fail(error, AM_ERROR_USAGE, "", "callbacks: size %zu (expected sizeof(AmCallbacks))",
                       callbacks->size);
    memcpy(own, callbacks, callbacks->size < sizeof *own ? callbacks->size : sizeof *own);
    own->size = sizeof *own;
    return AM_OK;
}

AmStatus api_check_options(const AmOptions *options, AmCommand command, AmError *error) {
    if (!options || options->command == command) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "options: of another command (expected %d, got %d)",
                   (int)command, (int)options->command);
}

AmStatus api_check_format(AmFormat format, bool has_html, AmError *error) {
    if (format == AM_FORMAT_TEXT || format == AM_FORMAT_JSON || format == AM_FORMAT_TERMINAL ||
        (has_html && format == AM_FORMAT_HTML))
        return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "format %d: expected text, JSON%s", (int)format,
                   has_html ? ", HTML or text for a terminal" : " or text for a terminal");
}

AmStatus api_give_text(char **buffer, size_t *bytes, Text *text, AmError *error) {
    *buffer = NULL;
    if (bytes) *bytes = 0;
    if (!text->data && !text->failed) text_append_string(text, "");
    if (text->failed) {
        AmStatus status = am_fail_memory(error, (int64_t)text->capacity);
        text_free(text);
        *text = (Text){0};
        return status;
    }
    *buffer = text->data;
    if (bytes) *bytes = text->length;
    *text = (Text){0};
    return AM_OK;
}

AmStatus api_give_json(char **buffer, size_t *bytes, json_t *root, JsonStyle style, AmError *error) {
    Text text = {0};
    *buffer = NULL;
    if (!root) return am_fail_memory(error, 0);
    json_write(&text, root, style);
    json_decref(root);
    text_append_string(&text, "\n");
    return api_give_text(buffer, bytes, &text, error);
}

void api_message(const AmCallbacks *callbacks, AmMessage kind, const char *format, ...) {
    Text text = {0};
    va_list arguments;
    if (!callbacks->on_message) return;
    va_start(arguments, format);
    text_append_arguments(&text, format, arguments);
    va_end(arguments);
    if (text.data && !text.failed) callbacks->on_message(callbacks->user, kind, text.data);
    text_free(&text);
}

const char *am_version(void) {
    return AM_VERSION;
}

void am_free(void *buffer) {
    free(buffer);
}
