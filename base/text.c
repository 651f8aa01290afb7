/* Text: a growable string with the few formats that reports need.
 *
 * Numbers are written for a reader (three significant digits with a unit) or
 * for a program (the shortest decimal that reads back to the same double).
 */
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/out_of_memory.h"

/* Makes room for `more` bytes and the NUL; false once memory has run out. */
static bool reserve(Text *text, size_t more) {
    if (text->failed) return false;
    size_t needed = text->length + more + 1;
    if (needed <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity * 2 : 128;
    if (capacity < needed) capacity = needed;
    char *data = needed > more ? realloc(text->data, capacity) : NULL;
    if (!data) {
        out_of_memory((int64_t)capacity);
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void text_append_bytes(Text *text, const char *bytes, size_t count) {
    if (!reserve(text, count)) return;
    if (count) memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = '\0';
}

void text_append_string(Text *text, const char *string) {
    if (!string) text->failed = true;
    if (!string) return;
    text_append_bytes(text, string, strlen(string));
}

void text_append_arguments(Text *text, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, arguments);
        text->length += (size_t)length;
    }
}

void text_append(Text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_append_arguments(text, format, arguments);
    va_end(arguments);
}

/* Appends the shortest digits that reproduce a double: 15 for normal doubles, if they do. Subnormal numbers
 * hold fewer digits, so for them all lengths are tried. */
void text_append_double(Text *text, double value) {
    char buffer[40];
    int digits = fabs(value) < 2.2250738585072014e-308 ? 1 : 15;
    for (; digits <= 17; digits++) {
        snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) break;
    }
    char *comma = strchr(buffer, ','); /* a decimal comma of the caller's locale */
    if (comma) *comma = '.';
    text_append_string(text, buffer);
}

/* Appends three significant digits without an exponent: "1.25", "12.5", "125". */
static void append_three_digits(Text *text, double value, const char *unit) {
    double size = fabs(value);
    int decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    char buffer[64];
    int length = snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
    if (strchr(buffer, '.')) {
        while (buffer[length - 1] == '0') buffer[--length] = '\0';
        if (buffer[length - 1] == '.') buffer[--length] = '\0';
    }
    text_append(text, *unit ? "%s %s" : "%s%s", buffer, unit);
}

typedef struct Unit {
    double size;
    const char *name;
} Unit;

/* Selects the largest unit in which the rounded value is at least 1; the table is in descending
 * order, and its last row covers smaller values. */
static void append_in_units(Text *text, double value, const Unit *units, int count) {
    if (!isfinite(value)) {
        text_append_string(text, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    int row = 0;
    while (row + 1 < count && fabs(value) < units[row].size * 0.9995) row++;
    append_three_digits(text, value / units[row].size, units[row].name);
}

void text_append_seconds(Text *text, double seconds) {
    static const Unit units[] = {{3600, "h"},  {60, "min"},  {1, "s"},
                                 {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
    static const Unit zero = {1, "s"};
    if (seconds == 0) append_in_units(text, 0, &zero, 1);
    else append_in_units(text, seconds, units, sizeof units / sizeof *units);
}

void text_append_bytes_size(Text *text, double bytes) {
    static const Unit units[] = {{1e18, "EB"}, {1e15, "PB"}, {1e12, "TB"}, {1e9, "GB"},
                                 {1e6, "MB"},  {1e3, "kB"},  {1, "B"}};
    append_in_units(text, bytes, units, sizeof units / sizeof *units);
}

void text_append_count(Text *text, double count) {
    static const Unit units[] = {{1e18, "E"}, {1e15, "P"}, {1e12, "T"}, {1e9, "G"},
                                 {1e6, "M"},  {1e3, "k"},  {1, ""}};
    append_in_units(text, count, units, sizeof units / sizeof *units);
}

/* Appends escape sequences of ECMA-48. */
void text_append_style(Text *text, TextStyle style) {
    static const char *const codes[] = {[TEXT_PLAIN] = "\033[0m",
                                        [TEXT_BOLD] = "\033[1m",
                                        [TEXT_RED] = "\033[1;31m",
                                        [TEXT_GREEN] = "\033[1;32m"};
    if (text->is_styled) text_append_string(text, codes[style]);
}

/* Returns the bytes of the escape sequence at the beginning of the cell, 0: none. */
static size_t style_length(const char *cell, size_t bytes) {
    size_t length = 2;
    if (bytes < 3 || cell[0] != '\033' || cell[1] != '[') return 0;
    while (length < bytes && cell[length] != 'm') length++;
    return length < bytes ? length + 1 : 0;
}

/* Columns a cell takes on a terminal: its characters, not its bytes, nor its styles. */
static size_t display_width(const char *cell, size_t bytes) {
    size_t width = 0;
    for (size_t i = 0; i < bytes; i++) {
        size_t style = style_length(cell + i, bytes - i);
        if (style > 0) i += style - 1;
        else width += ((unsigned char)cell[i] & 0xC0) != 0x80;
    }
    return width;
}

static void append_spaces(Text *text, size_t count) {
    while (count--) text_append_bytes(text, " ", 1);
}

void text_append_table(Text *text, const char *rows) {
    enum { MOST_COLUMNS = 64 };
    if (!rows) text->failed = true;
    if (!rows) return;
    size_t widths[MOST_COLUMNS] = {0};
    int column = 0;
    for (const char *cell = rows; *cell;) {
        size_t bytes = strcspn(cell, "\t\n");
        size_t width = display_width(cell, bytes);
        if (column < MOST_COLUMNS && width > widths[column]) widths[column] = width;
        column = cell[bytes] == '\t' ? column + 1 : 0;
        cell += bytes + (cell[bytes] != '\0');
    }
    column = 0;
    bool is_head = true;
    if (*rows) text_append_style(text, TEXT_BOLD);
    for (const char *cell = rows; *cell;) {
        size_t bytes = strcspn(cell, "\t\n");
        bool last = cell[bytes] != '\t';
        size_t width = display_width(cell, bytes);
        size_t padding = column < MOST_COLUMNS && widths[column] > width ? widths[column] - width : 0;
        size_t at = style_length(cell, bytes);
        bool right =
            at < bytes && ((cell[at] >= '0' && cell[at] <= '9') || cell[at] == '-' || cell[at] == '+');
        if (right) append_spaces(text, padding);
        text_append_bytes(text, cell, bytes);
        if (last && is_head) text_append_style(text, TEXT_PLAIN);
        is_head = is_head && !last;
        if (!last) append_spaces(text, (right ? 0 : padding) + 2);
        else text_append_bytes(text, "\n", 1);
        column = last ? 0 : column + 1;
        cell += bytes + (cell[bytes] != '\0');
    }
}

void text_free(Text *text) {
    free(text->data);
    *text = (Text){0};
}
