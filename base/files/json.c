/* JSON: jansson with the project's errors, and a separate writer.
 *
 * jansson prints reals with a fixed number of digits. This writer prints the shortest decimal that
 * reads back equal, for files that people read, and a canonical form (sorted keys, no spaces, every
 * number as %.17g of its double) for hashing. Text is UTF-8 and is not changed; only quotes,
 * backslashes and control characters are escaped.
 */
#include "base/files/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/file_format.h"
#include "base/suggest.h"

AmStatus json_fail_syntax(AmError *error, const char *source, const char *text, int64_t length, int64_t at,
                          const char *what) {
    bool is_first = error && error->code == AM_OK;
    am_fail_at(error, AM_ERROR_INPUT, source, text, length, at, "not valid JSON: %s", what);
    if (is_first) error->excerpt[0] = '\0';
    return AM_ERROR_INPUT;
}

AmStatus json_parse(json_t **root, const char *source, const char *text, size_t length, AmError *error) {
    json_error_t fault;
    size_t mark = (size_t)file_mark_bytes(text, (int64_t)length);
    *root = json_loadb(text + mark, length - mark, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &fault);
    if (*root) return AM_OK;
    if (json_error_code(&fault) == json_error_out_of_memory) return am_fail_memory(error, (int64_t)length);
    int64_t at = (int64_t)mark + (fault.position > 0 ? fault.position - 1 : 0);
    return json_fail_syntax(error, source, text, (int64_t)length, at, fault.text);
}

/* Returns the member, or an error with the expected type. */
static AmStatus require(json_t **value, json_t *object, const char *key, const char *expected,
                        const char *source, const char *where, AmError *error) {
    if (!json_is_object(object)) {
        return am_fail(error, AM_ERROR_INPUT, source, "%s: expected an object", where);
    }
    *value = json_object_get(object, key);
    if (*value) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, source, "%s.%s: missing, expected %s", where, key, expected);
}

static AmStatus fail_type(const char *key, const char *expected, const char *source, const char *where,
                          AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, source, "%s.%s: expected %s", where, key, expected);
}

json_t *json_integers(const int32_t *values, int32_t count) {
    json_t *array = json_array();
    for (int32_t k = 0; k < count; k++) json_array_append_new(array, json_integer(values[k]));
    return array;
}

AmStatus json_get_object(json_t **value, json_t *object, const char *key, const char *source,
                         const char *where, AmError *error) {
    TRY(require(value, object, key, "an object", source, where, error));
    return json_is_object(*value) ? AM_OK : fail_type(key, "an object", source, where, error);
}

AmStatus json_get_array(json_t **value, json_t *object, const char *key, const char *source,
                        const char *where, AmError *error) {
    TRY(require(value, object, key, "an array", source, where, error));
    return json_is_array(*value) ? AM_OK : fail_type(key, "an array", source, where, error);
}

AmStatus json_get_string(const char **value, json_t *object, const char *key, const char *source,
                         const char *where, AmError *error) {
    json_t *member;
    TRY(require(&member, object, key, "a string", source, where, error));
    if (!json_is_string(member)) return fail_type(key, "a string", source, where, error);
    *value = json_string_value(member);
    return AM_OK;
}

AmStatus json_check_format(json_t *object, const char *expected, const char *source, AmError *error) {
    const json_t *member = json_object_get(object, "format");
    if (!json_is_object(object)) return am_fail(error, AM_ERROR_INPUT, source, "$: expected an object");
    if (!member)
        return am_fail(error, AM_ERROR_INPUT, source, "$.format: missing, expected \"%s\"", expected);
    if (!json_is_string(member))
        return am_fail(error, AM_ERROR_INPUT, source, "$.format: expected \"%s\", a string", expected);
    if (strcmp(json_string_value(member), expected) == 0) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, source, "$.format: expected \"%s\", found \"%.60s\"", expected,
                   json_string_value(member));
}

/* Describes the expected integers. */
static AmStatus fail_integer(const char *key, int64_t least, int64_t most, const char *source,
                             const char *where, AmError *error) {
    char expected[96] = "an integer";
    if (most < INT64_MAX)
        snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)least,
                 (long long)most);
    else if (least > INT64_MIN)
        snprintf(expected, sizeof expected, "an integer of at least %lld", (long long)least);
    return fail_type(key, expected, source, where, error);
}

/* Returns an integer. A real with an integral value below 2^53, such as 16e9, counts as one. */
AmStatus json_get_integer(int64_t *value, json_t *object, const char *key, int64_t least, int64_t most,
                          const char *source, const char *where, AmError *error) {
    json_t *member;
    TRY(require(&member, object, key, "an integer", source, where, error));
    if (json_is_integer(member)) {
        *value = json_integer_value(member);
    } else {
        double real = json_is_real(member) ? json_real_value(member) : NAN;
        if (!(fabs(real) <= 0x1p53) || real != floor(real))
            return fail_integer(key, least, most, source, where, error);
        *value = (int64_t)real;
    }
    if (*value >= least && *value <= most) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, source, "%s.%s: expected an integer from %lld to %lld, found %lld",
                   where, key, (long long)least, (long long)most, (long long)*value);
}

AmStatus json_get_number(double *value, json_t *object, const char *key, double least, double most,
                         const char *source, const char *where, AmError *error) {
    json_t *member;
    TRY(require(&member, object, key, "a number", source, where, error));
    if (!json_is_number(member)) return fail_type(key, "a number", source, where, error);
    *value = json_number_value(member);
    if (*value >= least && *value <= most) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, source, "%s.%s: expected a number from %g to %g, found %g", where,
                   key, least, most, *value);
}

AmStatus json_only_keys(json_t *object, const char *const *keys, const char *source, const char *where,
                        AmError *error) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0) known++;
        if (*known) continue;
        Text expected = {0};
        for (known = keys; *known; known++) text_append(&expected, "%s%s", known == keys ? "" : ", ", *known);
        char hint[SUGGEST_HINT_BYTES];
        suggest_hint(hint, key, keys, (size_t)(known - keys));
        AmStatus status = am_fail(error, AM_ERROR_INPUT, source, "%s.%s: unknown key, expected one of %s%s",
                                  where, key, expected.data ? expected.data : "none", hint);
        text_free(&expected);
        return status;
    }
    return AM_OK;
}

static void write_string(Text *text, const char *string, size_t length) {
    text_append_string(text, "\"");
    size_t plain = 0; /* start of the unwritten part */
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)string[i];
        if (c >= ' ' && c != '"' && c != '\\') continue;
        text_append_bytes(text, string + plain, i - plain);
        plain = i + 1;
        if (c == '\n') text_append_string(text, "\\n");
        else if (c == '\t') text_append_string(text, "\\t");
        else if (c < ' ') text_append(text, "\\u%04x", c);
        else text_append(text, "\\%c", c);
    }
    text_append_bytes(text, string + plain, length - plain);
    text_append_string(text, "\"");
}

/* Writes a number. A real keeps a point or an exponent, so that it reads back as a real. */
static void write_number(Text *text, const json_t *value, JsonStyle style) {
    if (style == JSON_STYLE_CANONICAL) {
        text_append(text, "%.17g", json_number_value(value));
    } else if (json_is_integer(value)) {
        text_append(text, "%lld", (long long)json_integer_value(value));
    } else {
        size_t start = text->length;
        text_append_double(text, json_real_value(value));
        if (text->data && !strpbrk(text->data + start, ".e")) text_append_string(text, ".0");
    }
}

static void new_line(Text *text, JsonStyle style, int depth) {
    if (style != JSON_STYLE_INDENTED) return;
    text_append(text, "\n%*s", 2 * depth, "");
}

static int compare_keys(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Returns the keys in the order of the style; NULL for none or without memory. */
static const char **keys_in_order(const json_t *object, JsonStyle style) {
    size_t count = json_object_size(object), i = 0;
    const char **keys = count ? malloc(count * sizeof *keys) : NULL;
    if (!keys) return NULL;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)object, key, member) keys[i++] = key;
    if (style == JSON_STYLE_CANONICAL) qsort(keys, count, sizeof *keys, compare_keys);
    return keys;
}

static void write_value(Text *text, const json_t *value, JsonStyle style, int depth);

static void write_object(Text *text, const json_t *value, JsonStyle style, int depth) {
    size_t count = json_object_size(value);
    const char **keys = keys_in_order(value, style);
    if (count && !keys) text->failed = true;
    text_append_string(text, "{");
    for (size_t i = 0; keys && i < count; i++) {
        if (i) text_append_string(text, ",");
        new_line(text, style, depth + 1);
        write_string(text, keys[i], strlen(keys[i]));
        text_append_string(text, style == JSON_STYLE_INDENTED ? ": " : ":");
        write_value(text, json_object_get(value, keys[i]), style, depth + 1);
    }
    if (count) new_line(text, style, depth);
    text_append_string(text, "}");
    free(keys);
}

/* Returns whether an array stays on one line, also when indented: it has a few plain values, or a few such
 * arrays, at most `levels` deep. */
static bool is_short(const json_t *array, int levels) {
    enum { MOST_ON_A_LINE = 16 };
    size_t count = json_array_size(array);
    if (count > MOST_ON_A_LINE || levels < 0) return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *element = json_array_get(array, i);
        if (json_is_object(element) || (json_is_array(element) && !is_short(element, levels - 1)))
            return false;
    }
    return true;
}

static void write_array(Text *text, const json_t *value, JsonStyle style, int depth) {
    bool one_line = style != JSON_STYLE_INDENTED || is_short(value, 1);
    text_append_string(text, "[");
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i) text_append_string(text, one_line && style == JSON_STYLE_INDENTED ? ", " : ",");
        if (!one_line) new_line(text, style, depth + 1);
        write_value(text, json_array_get(value, i), style, depth + 1);
    }
    if (!one_line) new_line(text, style, depth);
    text_append_string(text, "]");
}

static void write_value(Text *text, const json_t *value, JsonStyle style, int depth) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: write_object(text, value, style, depth); break;
    case JSON_ARRAY: write_array(text, value, style, depth); break;
    case JSON_STRING: write_string(text, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER:
    case JSON_REAL: write_number(text, value, style); break;
    case JSON_TRUE: text_append_string(text, "true"); break;
    case JSON_FALSE: text_append_string(text, "false"); break;
    case JSON_NULL: text_append_string(text, "null"); break;
    }
}

void json_write(Text *text, const json_t *value, JsonStyle style) {
    if (!value) text->failed = true;
    if (!value) return;
    write_value(text, value, style, 0);
}
