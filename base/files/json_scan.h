/* Reads JSON value by value from the text: for documents whose tree would take many times their
 * size in memory.
 *
 * A scanner is positioned before a value or a mark. Every function skips white space first and
 * refuses text that violates RFC 8259, with line and column. Strings must be UTF-8 without NUL.
 */
#ifndef BASE_FILES_JSON_SCAN_H
#define BASE_FILES_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct JsonScanner {
    const char *source, *text;
    int64_t length, at;
    AmError *error;
    Text decoded; /* the last string that had escapes; the caller's to free */
} JsonScanner;

/* A string without its quotes and escapes, not NUL-terminated; good until the
 * next string is read. */
typedef struct JsonString {
    const char *text;
    int64_t length;
} JsonString;

/* A number: its integer where it is one that fits, else its nearest double. */
typedef struct JsonNumber {
    bool is_integer, is_negative;
    uint64_t magnitude; /* of an integer */
    double real;
} JsonNumber;

/* Returns the next character after white space, 0 at the end. */
char json_scan_peek(JsonScanner *scanner);
/* Takes the mark ('{', ',', ...) if it is next. */
bool json_scan_accept(JsonScanner *scanner, char mark);
AmStatus json_scan_expect(JsonScanner *scanner, char mark);
/* Takes the word (true, false, null) if it is next. */
bool json_scan_word(JsonScanner *scanner, const char *word);
AmStatus json_scan_string(JsonScanner *scanner, JsonString *string);
AmStatus json_scan_number(JsonScanner *scanner, JsonNumber *number);
/* Reads a key and its ':'. */
AmStatus json_scan_key(JsonScanner *scanner, JsonString *key);
/* Skips any value, nested JSON_SCAN_DEPTH deep at most. */
AmStatus json_scan_skip(JsonScanner *scanner);
/* Fails with AM_ERROR_INPUT, "not valid JSON: ..." at byte `at`. */
AmStatus json_scan_fail(const JsonScanner *scanner, int64_t at, const char *what);

#define JSON_SCAN_DEPTH 2048

/* Parses a number in JSON's syntax; false if there is none. A complete number ends at `length`. */
bool json_parse_number(JsonNumber *number, const char *text, int64_t length, int64_t *end);

#endif
