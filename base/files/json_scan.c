/* JSON read value by value: a scanner over the characters.
 *
 * The common case is cheap: a string without escapes is a stretch of the text,
 * an integer is put together digit by digit. Everything else (escapes, reals,
 * characters beyond ASCII) takes the long way.
 */
#include "base/files/json_scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "base/utf8.h"

AmStatus json_scan_fail(const JsonScanner *scanner, int64_t at, const char *what) {
    return json_fail_syntax(scanner->error, scanner->source, scanner->text, scanner->length, at, what);
}

char json_scan_peek(JsonScanner *scanner) {
    while (scanner->at < scanner->length) {
        char c = scanner->text[scanner->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
        scanner->at++;
    }
    return '\0';
}

bool json_scan_accept(JsonScanner *scanner, char mark) {
    bool is_next = json_scan_peek(scanner) == mark && scanner->at < scanner->length;
    scanner->at += is_next;
    return is_next;
}

AmStatus json_scan_expect(JsonScanner *scanner, char mark) {
    char what[] = "expected ' '";
    if (json_scan_accept(scanner, mark)) return AM_OK;
    what[10] = mark;
    return json_scan_fail(scanner, scanner->at, what);
}

bool json_scan_word(JsonScanner *scanner, const char *word) {
    int64_t length = (int64_t)strlen(word);
    json_scan_peek(scanner);
    if (scanner->length - scanner->at < length ||
        memcmp(scanner->text + scanner->at, word, (size_t)length) != 0) {
        return false;
    }
    scanner->at += length;
    return true;
}

/* Reads four hexadecimal digits; -1 if there are others. */
static int32_t read_hex(const char *text, int64_t left) {
    int32_t value = 0;
    for (int64_t i = 0; i < 4; i++) {
        char c = i < left ? text[i] : '\0';
        int32_t digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void append_character(Text *text, uint32_t code) {
    char bytes[4];
    size_t count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = count; i-- > 1; code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3F));
    bytes[0] = (char)(marks[count] | code);
    text_append_bytes(text, bytes, count);
}

/* Reads the escape after a backslash at `*at`; characters beyond the basic plane are two escapes.
 * Returns the error, or NULL. */
static const char *read_escape(JsonScanner *scanner, int64_t *at) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *text = scanner->text;
    char c = *at < scanner->length ? text[*at] : '\0';
    const char *name = c ? strchr(names, c) : NULL;
    ++*at;
    if (name) {
        text_append_bytes(&scanner->decoded, &values[name - names], 1);
        return NULL;
    }
    if (c != 'u') return "an unknown escape";
    int32_t code = read_hex(text + *at, scanner->length - *at);
    if (code < 0) return "an escape without four hexadecimal digits";
    *at += 4;
    if (code == 0) return "\\u0000 is not allowed";
    if (code >= 0xD800 && code < 0xE000) {
        bool is_pair =
            code < 0xDC00 && scanner->length - *at >= 6 && text[*at] == '\\' && text[*at + 1] == 'u';
        int32_t low = is_pair ? read_hex(text + *at + 2, 4) : -1;
        if (low < 0xDC00 || low >= 0xE000) return "half of a surrogate pair";
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        *at += 6;
    }
    append_character(&scanner->decoded, (uint32_t)code);
    return NULL;
}

AmStatus json_scan_string(JsonScanner *scanner, JsonString *string) {
    if (!json_scan_accept(scanner, '"')) return json_scan_fail(scanner, scanner->at, "expected a string");
    const char *text = scanner->text;
    int64_t start = scanner->at, at = start, plain = start;
    bool is_decoded = false;
    for (;;) {
        if (at >= scanner->length) return json_scan_fail(scanner, at, "a string without its end");
        unsigned char c = (unsigned char)text[at];
        if (c == '"') break;
        if (c < ' ') return json_scan_fail(scanner, at, "a control character in a string");
        if (c >= 0x80) {
            int64_t length = utf8_character_bytes(text + at, scanner->length - at);
            if (length == 0) return json_scan_fail(scanner, at, "a string that is not UTF-8");
            at += length;
        } else if (c != '\\') {
            at++;
        } else {
            if (!is_decoded) scanner->decoded.length = 0;
            is_decoded = true;
            text_append_bytes(&scanner->decoded, text + plain, (size_t)(at - plain));
            int64_t escape = at++;
            const char *problem = read_escape(scanner, &at);
            if (problem) return json_scan_fail(scanner, escape, problem);
            plain = at;
        }
    }
    scanner->at = at + 1;
    *string = (JsonString){text + start, at - start};
    if (!is_decoded) return AM_OK;
    text_append_bytes(&scanner->decoded, text + plain, (size_t)(at - plain));
    if (scanner->decoded.failed) return am_fail_memory(scanner->error, at - start);
    *string = (JsonString){scanner->decoded.data, (int64_t)scanner->decoded.length};
    return AM_OK;
}

static int64_t skip_digits(const char *text, int64_t length, int64_t at) {
    while (at < length && text[at] >= '0' && text[at] <= '9') at++;
    return at;
}

bool json_parse_number(JsonNumber *number, const char *text, int64_t length, int64_t *end) {
    enum { LONGEST_NUMBER = 400 };
    int64_t start = length > 0 && text[0] == '-', at = skip_digits(text, length, start);
    bool has_zero = at > start && text[start] == '0' && at - start > 1, is_integer = true;
    *number = (JsonNumber){.is_negative = start == 1};
    if (at == start || has_zero) return false;
    for (int64_t i = start; i < at && is_integer; i++) {
        is_integer =
            !__builtin_mul_overflow(number->magnitude, 10, &number->magnitude) &&
            !__builtin_add_overflow(number->magnitude, (uint64_t)(text[i] - '0'), &number->magnitude);
    }
    if (at < length && text[at] == '.') {
        int64_t fraction = at + 1;
        at = skip_digits(text, length, fraction);
        if (at == fraction) return false;
        is_integer = false;
    }
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        int64_t exponent = at + 1;
        if (exponent < length && (text[exponent] == '+' || text[exponent] == '-')) exponent++;
        at = skip_digits(text, length, exponent);
        if (at == exponent) return false;
        is_integer = false;
    }
    *end = at;
    number->is_integer = is_integer;
    if (is_integer) {
        number->real = number->is_negative ? -(double)number->magnitude : (double)number->magnitude;
        return true;
    }
    char digits[LONGEST_NUMBER + 1];
    if (at > LONGEST_NUMBER) return false;
    memcpy(digits, text, (size_t)at);
    digits[at] = '\0';
    number->real = strtod(digits, NULL);
    return isfinite(number->real);
}

AmStatus json_scan_number(JsonScanner *scanner, JsonNumber *number) {
    int64_t used;
    json_scan_peek(scanner);
    if (!json_parse_number(number, scanner->text + scanner->at, scanner->length - scanner->at, &used))
        return json_scan_fail(scanner, scanner->at, "no number that a double can hold");
    scanner->at += used;
    return AM_OK;
}

AmStatus json_scan_key(JsonScanner *scanner, JsonString *key) {
    TRY(json_scan_string(scanner, key));
    return json_scan_expect(scanner, ':');
}

static AmStatus skip(JsonScanner *scanner, int32_t depth) {
    JsonString string;
    JsonNumber number;
    char next = json_scan_peek(scanner);
    if (depth > JSON_SCAN_DEPTH) return json_scan_fail(scanner, scanner->at, "nested too deeply");
    if (next == '"') return json_scan_string(scanner, &string);
    if (next == '-' || (next >= '0' && next <= '9')) return json_scan_number(scanner, &number);
    if (next != '{' && next != '[') {
        bool is_word = json_scan_word(scanner, "true") || json_scan_word(scanner, "false") ||
                       json_scan_word(scanner, "null");
        return is_word ? AM_OK : json_scan_fail(scanner, scanner->at, "expected a value");
    }
    char close = next == '{' ? '}' : ']';
    scanner->at++;
    if (json_scan_accept(scanner, close)) return AM_OK;
    do {
        if (next == '{') TRY(json_scan_key(scanner, &string));
        TRY(skip(scanner, depth + 1));
    } while (json_scan_accept(scanner, ','));
    return json_scan_expect(scanner, close);
}

AmStatus json_scan_skip(JsonScanner *scanner) {
    return skip(scanner, 0);
}
