/* The characters of HLO text: white space, comments, words, numbers, strings.
 *
 * There is no token stream: what "2x3" or "b01f" means depends on the attribute,
 * so each construct reads the characters it needs. Every loop is bounded by the
 * end of the text, which need not be NUL-terminated; nesting of skipped values
 * is counted, not recursed into.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ir/text/hlo_text.h"

bool ir_word_is(IrWord word, const char *text) {
    return (size_t)word.length == strlen(text) && memcmp(word.text, text, (size_t)word.length) == 0;
}

AmStatus ir_scan_fail(const IrScanner *scanner, int64_t at, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return am_fail_at(scanner->error, AM_ERROR_INPUT, scanner->source, scanner->text, scanner->length, at,
                      "%s", message);
}

AmStatus ir_scan_memory(const IrScanner *scanner) {
    return am_fail_memory(scanner->error, scanner->length);
}

static bool starts_with(const IrScanner *scanner, const char *mark) {
    size_t length = strlen(mark);
    return scanner->length - scanner->at >= (int64_t)length &&
           memcmp(scanner->text + scanner->at, mark, length) == 0;
}

/* Moves past the next `mark`; false if there is none left. */
static bool skip_past(IrScanner *scanner, const char *mark) {
    while (scanner->at < scanner->length && !starts_with(scanner, mark)) scanner->at++;
    if (scanner->at == scanner->length) return false;
    scanner->at += (int64_t)strlen(mark);
    return true;
}

/* Returns whether a '#' at the current position begins a comment line: only blanks precede it on its line.
 * "#(" is part of a layout. */
static bool at_comment_line(const IrScanner *scanner) {
    int64_t at = scanner->at;
    if (at + 1 < scanner->length && scanner->text[at + 1] == '(') return false;
    while (at > 0 && (scanner->text[at - 1] == ' ' || scanner->text[at - 1] == '\t')) at--;
    return at == 0 || scanner->text[at - 1] == '\n' || scanner->text[at - 1] == '\r';
}

/* Skips spaces and comments. It stays at a block comment without an end, so that the reader fails there. */
void ir_scan_space(IrScanner *scanner) {
    while (scanner->at < scanner->length) {
        char next = scanner->text[scanner->at];
        if (next == ' ' || (next >= '\t' && next <= '\r')) {
            scanner->at++;
        } else if (next == '/' && starts_with(scanner, "/*")) {
            IrScanner ahead = *scanner;
            ahead.at += 2;
            if (!skip_past(&ahead, "*/")) return;
            scanner->at = ahead.at;
        } else if ((next == '/' && starts_with(scanner, "//")) || (next == '#' && at_comment_line(scanner))) {
            while (scanner->at < scanner->length && scanner->text[scanner->at] != '\n' &&
                   scanner->text[scanner->at] != '\r')
                scanner->at++;
        } else {
            return;
        }
    }
}

char ir_scan_peek(IrScanner *scanner) {
    ir_scan_space(scanner);
    return scanner->at < scanner->length ? scanner->text[scanner->at] : '\0';
}

bool ir_scan_accept(IrScanner *scanner, const char *mark) {
    ir_scan_space(scanner);
    if (!starts_with(scanner, mark)) return false;
    scanner->at += (int64_t)strlen(mark);
    return true;
}

bool ir_scan_accept_here(IrScanner *scanner, char letter) {
    if (scanner->at >= scanner->length || scanner->text[scanner->at] != letter) return false;
    scanner->at++;
    return true;
}

AmStatus ir_scan_expect(IrScanner *scanner, const char *mark) {
    if (ir_scan_accept(scanner, mark)) return AM_OK;
    if (scanner->at >= scanner->length) {
        return ir_scan_fail(scanner, scanner->at, "expected '%s', found the end of the text", mark);
    }
    return ir_scan_fail(scanner, scanner->at, "expected '%s'", mark);
}

static bool is_plain(unsigned char letter) {
    return isalnum(letter) || letter == '_' || letter == '.' || letter == '$';
}

static bool is_word_character(const IrScanner *scanner, int64_t at) {
    unsigned char next = (unsigned char)scanner->text[at];
    if (next == '-') return at + 1 >= scanner->length || scanner->text[at + 1] != '>';
    return is_plain(next);
}

bool ir_is_word(const char *text) {
    const char *at = text;
    while (*at && (is_plain((unsigned char)*at) || *at == '-')) at++;
    return at > text && !*at;
}

bool ir_scan_take_word(IrScanner *scanner, IrWord *word) {
    ir_scan_space(scanner);
    int64_t end = scanner->at;
    while (end < scanner->length && is_word_character(scanner, end)) end++;
    *word = (IrWord){scanner->text + scanner->at, end - scanner->at};
    scanner->at = end;
    return word->length > 0;
}

AmStatus ir_scan_word(IrScanner *scanner, const char *what, IrWord *word) {
    if (ir_scan_take_word(scanner, word)) return AM_OK;
    return ir_scan_fail(scanner, scanner->at, "expected %s", what);
}

AmStatus ir_scan_name(IrScanner *scanner, const char *what, IrWord *name) {
    ir_scan_accept(scanner, "%");
    TRY(ir_scan_word(scanner, what, name));
    ir_scan_accept_here(scanner, ':'); /* XLA's lexer takes it as the end of a name */
    return AM_OK;
}

char *ir_word_copy(IrScanner *scanner, IrWord word) {
    return arena_copy_bytes(scanner->arena, word.text, (size_t)word.length);
}

AmStatus ir_scan_integer(IrScanner *scanner, int64_t *value) {
    ir_scan_space(scanner);
    int64_t start = scanner->at, at = start;
    bool negative = at < scanner->length && scanner->text[at] == '-';
    at += negative;
    int64_t digits = at;
    uint64_t sum = 0, most = (uint64_t)INT64_MAX + negative;
    for (; at < scanner->length && isdigit((unsigned char)scanner->text[at]); at++) {
        uint64_t digit = (uint64_t)(scanner->text[at] - '0');
        if (sum > (most - digit) / 10) return ir_scan_fail(scanner, start, "integer beyond 64 bits");
        sum = sum * 10 + digit;
    }
    if (at == digits) return ir_scan_fail(scanner, start, "expected an integer");
    scanner->at = at;
    *value = (int64_t)(negative ? 0 - sum : sum);
    return AM_OK;
}

/* Reads nan(0x123): the mantissa bits of a NaN that is not the usual one. */
static AmStatus scan_payload(IrScanner *scanner, uint64_t *payload) {
    if (scanner->at >= scanner->length || scanner->text[scanner->at] != '(') return AM_OK;
    int64_t start = ++scanner->at;
    IrWord word;
    TRY(ir_scan_word(scanner, "the payload of a NaN", &word));
    char digits[24] = "";
    if (word.length < (int64_t)sizeof digits) memcpy(digits, word.text, (size_t)word.length);
    char *end;
    *payload = strtoull(digits, &end, 16);
    if (end == digits || *end != '\0' || *payload == 0) {
        return ir_scan_fail(scanner, start, "expected the payload of a NaN, such as 0x400001");
    }
    return ir_scan_expect(scanner, ")");
}

AmStatus ir_scan_real(IrScanner *scanner, double *value, uint64_t *payload) {
    ir_scan_space(scanner);
    int64_t start = scanner->at, end = start;
    char digits[512];
    while (end < scanner->length && end - start < (int64_t)sizeof digits - 1) {
        char next = scanner->text[end];
        if (!isalnum((unsigned char)next) && next != '.' && next != '-' && next != '+') break;
        digits[end - start] = next;
        end++;
    }
    digits[end - start] = '\0';
    char *stop;
    *value = strtod(digits, &stop);
    if (stop == digits || *stop != '\0') return ir_scan_fail(scanner, start, "expected a number");
    scanner->at = end;
    if (isinf(*value) && isdigit((unsigned char)digits[digits[0] == '-'])) {
        return ir_scan_fail(scanner, start, "number beyond the range of f64");
    }
    *payload = 0;
    return isnan(*value) ? scan_payload(scanner, payload) : AM_OK;
}

AmStatus ir_scan_boolean(IrScanner *scanner, bool *value) {
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    IrWord word;
    if (ir_scan_take_word(scanner, &word)) {
        *value = ir_word_is(word, "true") || ir_word_is(word, "1");
        if (*value || ir_word_is(word, "false") || ir_word_is(word, "0")) return AM_OK;
    }
    return ir_scan_fail(scanner, start, "expected true or false");
}

static int hexadecimal(char digit) {
    if (isdigit((unsigned char)digit)) return digit - '0';
    return isxdigit((unsigned char)digit) ? tolower((unsigned char)digit) - 'a' + 10 : -1;
}

/* Decodes the character after a backslash, which is at text[*at]; moves *at past it. */
static uint8_t unescape(const char *text, int64_t end, int64_t *at) {
    static const char letters[] = "abfnrtv", values[] = "\a\b\f\n\r\t\v";
    char letter = text[(*at)++];
    if (letter >= '0' && letter <= '7') {
        int value = letter - '0';
        for (int i = 0; i < 2 && *at < end && text[*at] >= '0' && text[*at] <= '7'; i++) {
            value = value * 8 + (text[(*at)++] - '0');
        }
        return (uint8_t)value;
    }
    if (letter == 'x' && *at < end && hexadecimal(text[*at]) >= 0) {
        int value = 0;
        for (int i = 0; i < 2 && *at < end && hexadecimal(text[*at]) >= 0; i++) {
            value = value * 16 + hexadecimal(text[(*at)++]);
        }
        return (uint8_t)value;
    }
    const char *found = letter ? strchr(letters, letter) : NULL;
    return (uint8_t)(found ? values[found - letters] : letter);
}

AmStatus ir_scan_string(IrScanner *scanner, ProtobufCBinaryData *bytes) {
    ir_scan_space(scanner);
    int64_t start = scanner->at, end = start + 1;
    char quote = start < scanner->length ? scanner->text[start] : '\0';
    if (quote != '"' && quote != '\'') return ir_scan_fail(scanner, start, "expected a string in quotes");
    while (end < scanner->length && scanner->text[end] != quote) {
        end += scanner->text[end] == '\\' ? 2 : 1;
    }
    if (end >= scanner->length) return ir_scan_fail(scanner, start, "this string does not end");
    bytes->data = arena_alloc(scanner->arena, (size_t)(end - start));
    if (!bytes->data) return ir_scan_memory(scanner);
    bytes->len = 0;
    for (int64_t at = start + 1; at < end;) {
        char next = scanner->text[at++];
        bytes->data[bytes->len++] = next == '\\' ? unescape(scanner->text, end, &at) : (uint8_t)next;
    }
    scanner->at = end + 1;
    return AM_OK;
}

/* Moves past the string that starts at text[at]. */
static int64_t behind_string(const IrScanner *scanner, int64_t at) {
    for (at++; at < scanner->length && scanner->text[at] != '"'; at++) {
        if (scanner->text[at] == '\\') at++;
    }
    return at < scanner->length ? at + 1 : scanner->length;
}

AmStatus ir_scan_braced(IrScanner *scanner, IrWord *word) {
    ir_scan_space(scanner);
    int64_t start = scanner->at, depth = 0;
    TRY(ir_scan_expect(scanner, "{"));
    for (int64_t at = start; at < scanner->length;) {
        char next = scanner->text[at];
        depth += next == '{';
        depth -= next == '}';
        at = next == '"' ? behind_string(scanner, at) : at + 1;
        if (depth == 0) {
            *word = (IrWord){scanner->text + start, at - start};
            scanner->at = at;
            return AM_OK;
        }
    }
    return ir_scan_fail(scanner, start, "this '{' is never closed");
}

AmStatus ir_scan_skip_value(IrScanner *scanner) {
    int64_t start = scanner->at, depth = 0;
    while (scanner->at < scanner->length) {
        char next = scanner->text[scanner->at];
        bool closes = next == '}' || next == ')' || next == ']';
        if (depth == 0 && (next == ',' || next == '\n' || closes)) return AM_OK;
        depth += next == '{' || next == '(' || next == '[';
        depth -= closes;
        scanner->at = next == '"' ? behind_string(scanner, scanner->at) : scanner->at + 1;
    }
    return depth ? ir_scan_fail(scanner, start, "this value has a bracket that is never closed") : AM_OK;
}

AmStatus ir_scan_integers(IrScanner *scanner, const char *open, const char *close, size_t *count,
                          int64_t **values) {
    *count = 0;
    *values = NULL;
    TRY(ir_scan_expect(scanner, open));
    if (ir_scan_accept(scanner, close)) return AM_OK;
    do {
        int64_t *value = ir_push(scanner->arena, values, count, sizeof *value);
        if (!value) return ir_scan_memory(scanner);
        TRY(ir_scan_integer(scanner, value));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, close);
}

void *ir_push(Arena *arena, void *array, size_t *count, size_t size) {
    char *items;
    memcpy(&items, array, sizeof items);
    if (*count == 0 || (*count >= 4 && (*count & (*count - 1)) == 0)) {
        size_t room = *count == 0 ? 4 : *count * 2;
        items = *count == 0 ? arena_alloc(arena, room * size)
                            : arena_grow(arena, items, *count * size, room * size);
        if (!items) return NULL;
        memcpy(array, &items, sizeof items);
    }
    return items + size * (*count)++;
}

void *ir_new_message(Arena *arena, const ProtobufCMessageDescriptor *type) {
    void *message = arena_alloc(arena, type->sizeof_message);
    if (message) protobuf_c_message_init(type, message);
    return message;
}

typedef struct IrNameEntry {
    const char *text; /* NULL: free */
    int64_t length;
    int32_t value;
} IrNameEntry;

/* Returns the entry that holds `name`, or the free one where it belongs. */
static IrNameEntry *name_entry(const IrNames *names, IrWord name) {
    uint32_t mask = (uint32_t)names->capacity - 1;
    uint32_t at = (uint32_t)hash_bytes(name.text, (size_t)name.length, 0) & mask;
    for (;; at = (at + 1) & mask) {
        IrNameEntry *entry = &names->entries[at];
        if (!entry->text) return entry;
        if (entry->length == name.length && memcmp(entry->text, name.text, (size_t)name.length) == 0) {
            return entry;
        }
    }
}

int32_t ir_names_find(const IrNames *names, IrWord name) {
    if (names->count == 0) return -1;
    const IrNameEntry *entry = name_entry(names, name);
    return entry->text ? entry->value : -1;
}

static bool names_grow(IrNames *names, Arena *arena) {
    int32_t capacity = names->capacity ? names->capacity * 2 : 64;
    IrNames grown = {ARENA_ARRAY(arena, IrNameEntry, capacity), names->count, capacity};
    if (!grown.entries) return false;
    for (int32_t i = 0; i < names->capacity; i++) {
        const IrNameEntry *entry = &names->entries[i];
        if (entry->text) *name_entry(&grown, (IrWord){entry->text, entry->length}) = *entry;
    }
    *names = grown;
    return true;
}

bool ir_names_add(IrNames *names, Arena *arena, IrWord name, int32_t value) {
    if (names->count * 2 >= names->capacity && !names_grow(names, arena)) return false;
    IrNameEntry *entry = name_entry(names, name);
    names->count += !entry->text;
    *entry = (IrNameEntry){name.text, name.length, value};
    return true;
}

/* Frees a table that is much larger than its contents, so that clearing never costs more than
 * filling. */
void ir_names_clear(IrNames *names) {
    if (names->capacity > 64 + 16 * names->count) *names = (IrNames){0};
    if (names->count) memset(names->entries, 0, sizeof *names->entries * (size_t)names->capacity);
    names->count = 0;
}
