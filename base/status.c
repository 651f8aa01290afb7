/* Errors: filling an AmError, and collecting warnings.
 *
 * The first error wins: the report is the cause, not a consequence on the way up. Messages that do
 * not fit are cut at a character boundary, never in the middle of a UTF-8 sequence. Bytes that are no
 * UTF-8 are escaped.
 */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/utf8.h"

enum { ESCAPE_BYTES = 4 }; /* of "\\xff" */

/* Copies as much of `from` to to[0..size) as has room. Names come from files: one that breaks the line must
 * not break the message, and a byte that is no UTF-8 is written as \xff. */
static void copy_printable(char *to, size_t size, const char *from) {
    size_t length = 0;
    for (; *from; from++) {
        size_t bytes = (size_t)utf8_character_bytes(from, 4);
        if (length + (bytes > 0 ? bytes : ESCAPE_BYTES) >= size) break;
        if (bytes == 0) {
            snprintf(to + length, size - length, "\\x%02x", (unsigned char)*from);
            length += ESCAPE_BYTES;
        } else {
            memcpy(to + length, from, bytes);
            if ((unsigned char)*from < ' ' || *from == 0x7F) to[length] = ' ';
            length += bytes;
            from += bytes - 1;
        }
    }
    to[length] = '\0';
}

/* Ends text[0..length) before a UTF-8 sequence that the cut left incomplete. */
static void trim_partial_character(char *text) {
    size_t length = strlen(text);
    size_t start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t expected = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (length - (start - 1) < expected) text[start - 1] = '\0';
}

static void fill(AmError *error, AmStatus code, const char *source, const char *format, va_list arguments) {
    memset(error, 0, sizeof *error);
    error->code = code;
    char text[sizeof error->text];
    int needed = vsnprintf(text, sizeof text, format, arguments);
    if (needed >= (int)sizeof text) trim_partial_character(text);
    copy_printable(error->source, sizeof error->source, source ? source : "");
    copy_printable(error->text, sizeof error->text, text);
}

AmStatus am_fail(AmError *error, AmStatus code, const char *source, const char *format, ...) {
    if (!error || error->code != AM_OK) return code;
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, source, format, arguments);
    va_end(arguments);
    return code;
}

/* Copies the line around byte `at` as the excerpt. Only a window of a long line is kept; `column`
 * is the column in the file, so that the window starts at the line's beginning if the position
 * still fits. */
static void locate(AmError *error, const char *text, int64_t length, int64_t at) {
    if (at > length) at = length;
    if (at < 0) at = 0;
    int64_t line_start = at, line_end = at;
    while (line_start > 0 && text[line_start - 1] != '\n') line_start--;
    while (line_end < length && text[line_end] != '\n') line_end++;
    error->line = 1;
    for (int64_t i = 0; i < line_start; i++) error->line += text[i] == '\n';
    error->column = at - line_start + 1;

    int64_t room = (int64_t)sizeof error->excerpt - 1;
    int64_t count = line_end - line_start < room ? line_end - line_start : room;
    for (int64_t i = 0; i < count; i++) {
        char c = text[line_start + i];
        error->excerpt[i] = (unsigned char)c < ' ' ? ' ' : c;
    }
    error->excerpt[count] = '\0';
    if (count == room) trim_partial_character(error->excerpt);
    /* The position below stays at its place. */
    for (int64_t i = 0, bytes; error->excerpt[i]; i += bytes > 0 ? bytes : 1) {
        bytes = utf8_character_bytes(error->excerpt + i, 4);
        if (bytes == 0) error->excerpt[i] = '?';
    }
}

AmStatus am_fail_at(AmError *error, AmStatus code, const char *source, const char *text, int64_t length,
                    int64_t at, const char *format, ...) {
    if (!error || error->code != AM_OK) return code;
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, source, format, arguments);
    va_end(arguments);
    if (text) locate(error, text, length, at);
    return code;
}

void am_error_locate(AmError *error, const char *text, int64_t length, int64_t at) {
    if (error && error->code != AM_OK && error->line == 0) locate(error, text, length, at);
}

void am_error_source(AmError *error, const char *source) {
    if (!error || error->code != AM_ERROR_INPUT || error->source[0] || !source) return;
    copy_printable(error->source, sizeof error->source, source);
}

void am_error_prefix(AmError *error, const char *format, ...) {
    char before[sizeof error->text], raw[sizeof error->text];
    if (!error || error->code == AM_OK) return;
    va_list arguments;
    va_start(arguments, format);
    int needed = vsnprintf(raw, sizeof raw, format, arguments);
    va_end(arguments);
    if (needed < 0 || (size_t)needed >= sizeof raw) return;
    copy_printable(before, sizeof before, raw);
    size_t room = sizeof error->text - 1, kept = strlen(error->text), length = strlen(before);
    if (kept > room - length) kept = room - length;
    bool is_cut = error->text[kept] != '\0';
    memmove(error->text + length, error->text, kept);
    memcpy(error->text, before, length);
    error->text[length + kept] = '\0';
    if (is_cut) trim_partial_character(error->text);
}

AmStatus am_pass_error(AmStatus status, const AmError *from, AmError *error) {
    if (status != AM_OK && error && error->code == AM_OK) *error = *from;
    return status;
}

AmStatus am_fail_memory(AmError *error, int64_t bytes) {
    return am_fail(error, AM_ERROR_INTERNAL, "", "out of memory: cannot allocate %lld bytes",
                   (long long)bytes);
}

AmStatus am_fail_system(AmError *error, AmStatus code, const char *source, int cause, const char *what) {
    if (cause == ENOMEM) code = AM_ERROR_INTERNAL;
    else if (cause == EMFILE || cause == ENFILE) code = AM_ERROR_RUNTIME;
    return am_fail(error, code, source, "%s: %s", what, strerror(cause));
}

void am_warn(AmWarnings *warnings, const char *format, ...) {
    if (!warnings || !warnings->arena) return;
    va_list arguments;
    va_start(arguments, format);
    char *text = arena_vformat(warnings->arena, format, arguments);
    va_end(arguments);
    size_t size = text ? ESCAPE_BYTES * strlen(text) + 1 : 0;
    char *printable = text ? arena_alloc(warnings->arena, size) : NULL;
    if (!printable) return;
    copy_printable(printable, size, text);
    text = printable;
    for (int32_t i = 0; i < warnings->count; i++) {
        if (strcmp(warnings->texts[i], text) == 0) return;
    }
    ARENA_RESERVE(warnings->arena, warnings->texts, warnings->count, warnings->capacity);
    if (warnings->texts) warnings->texts[warnings->count++] = text;
}
