/* Text: a growable string, the one way output is put together.
 * Memory comes from the C heap; text_free releases it. On allocation failure
 * `failed` is set and later appends do nothing. A NULL string or table, as one Text without
 * memory or an arena without memory gives it, makes the Text that it is added to fail, too. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Text {
    char *data; /* NUL-terminated, never NULL after the first append */
    size_t length, capacity;
    bool failed;
    bool is_styled; /* for a terminal with colours: styles are appended, the heads of tables are bold */
} Text;

typedef enum TextStyle { TEXT_PLAIN, TEXT_BOLD, TEXT_RED, TEXT_GREEN } TextStyle;

/* Begins a style of terminals, up to TEXT_PLAIN; nothing unless the text is styled. */
void text_append_style(Text *text, TextStyle style);

void text_append(Text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_append_arguments(Text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
void text_append_bytes(Text *text, const char *bytes, size_t count);
void text_append_string(Text *text, const char *string);
/* Appends the shortest decimal that reads back to the same double ("0.1", "1e+300"). */
void text_append_double(Text *text, double value);
/* Append human units: "1.25 ms", "3.4 GB" (powers of 1000), "16.8 M". */
void text_append_seconds(Text *text, double seconds);
void text_append_bytes_size(Text *text, double bytes);
void text_append_count(Text *text, double count);
/* Appends aligned columns: rows of cells separated by '\t' in `rows` (lines end in '\n') are padded to common
 * widths; a cell that starts with a digit, '-' or '+' is right-aligned. The first row is the head. */
void text_append_table(Text *text, const char *rows);
void text_free(Text *text);

#endif
