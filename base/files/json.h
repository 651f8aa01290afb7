/* JSON: jansson with errors that name the path in the file.
 *
 * json_parse() reads a document; json_get_* read one key of an object and fail
 * with "FILE: $.devices[2].name: expected a string". `where` is the
 * JSON path of `object`, as text ("$", "$.links.nvlink").
 */
#ifndef BASE_FILES_JSON_H
#define BASE_FILES_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

/* Parses text[0..length): one value, duplicate keys and trailing text refused,
 * depth bounded, a byte order mark skipped. Syntax errors carry line and column. The caller json_decref()s.
 */
AmStatus json_parse(json_t **root, const char *source, const char *text, size_t length, AmError *error);

/* Reports a syntax error at byte `at`: line and column, no excerpt, so that the message is one
 * line. */
AmStatus json_fail_syntax(AmError *error, const char *source, const char *text, int64_t length, int64_t at,
                          const char *what);

/* Returns a new array of numbers. */
json_t *json_integers(const int32_t *values, int32_t count);

AmStatus json_get_object(json_t **value, json_t *object, const char *key, const char *source,
                         const char *where, AmError *error);
AmStatus json_get_array(json_t **value, json_t *object, const char *key, const char *source,
                        const char *where, AmError *error);
AmStatus json_get_string(const char **value, json_t *object, const char *key, const char *source,
                         const char *where, AmError *error);
/* Checks the member "format" of a file's root. AM_ERROR_INPUT names the expected format. */
AmStatus json_check_format(json_t *object, const char *expected, const char *source, AmError *error);
AmStatus json_get_integer(int64_t *value, json_t *object, const char *key, int64_t least, int64_t most,
                          const char *source, const char *where, AmError *error);
AmStatus json_get_number(double *value, json_t *object, const char *key, double least, double most,
                         const char *source, const char *where, AmError *error);
/* Refuses keys that are not in the NULL-ended list, naming the first. */
AmStatus json_only_keys(json_t *object, const char *const *keys, const char *source, const char *where,
                        AmError *error);

/* Compact or indented text; keys in insertion order, or sorted; reals as the
 * shortest text that reads back equal (canonical: %.17g). */
typedef enum JsonStyle { JSON_STYLE_COMPACT, JSON_STYLE_INDENTED, JSON_STYLE_CANONICAL } JsonStyle;
/* Appends a value as JSON. A NULL value (no memory) makes `text` fail. */
void json_write(Text *text, const json_t *value, JsonStyle style);

#endif
