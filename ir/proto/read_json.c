/* The JSON encoding: protobuf's JSON mapping, read in one pass over the text, led
 * by protobuf-c's descriptors, so that no message has code of its own.
 *
 * Writers differ. This reader accepts all these forms:
 *
 *     keys              camelCase or snake_case
 *     defaults          printed, left out, or null
 *     64-bit integers   strings or numbers
 *     enums             names or numbers
 *     bytes             base64 of either alphabet
 *     NaN, infinities   strings
 *
 * The module stands alone, or under "hloModule" (a
 * HloProto), or that under "hlo" (a HloSnapshot). Keys and enum names that the
 * schema does not have are skipped with a warning: newer writers have more. A key
 * that stands twice in an object is refused, in either spelling.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/files/json_scan.h"
#include "base/hash.h"
#include "ir/encodings.h"
#include "ir/proto/proto_field.h"
#include "ir/text/hlo_text.h"

enum { MOST_WARNINGS = 100, LONGEST_PATH = 300, LONGEST_KEY = 64, KEY_CACHE = 256, MOST_FIELDS = 256 };
enum { SEEN_OBJECTS = 1024, SEEN_BEGINNING = 56, LONGEST_SEEN = 512 };

/* A value's place in the document, innermost first; lives on the C stack. */
typedef struct Place {
    const struct Place *outer;
    const char *key; /* NULL: an element of an array, at `index` */
    int32_t key_length;
    size_t index;
} Place;

/* A key of a message that was looked up. */
typedef struct CachedKey {
    const ProtobufCMessageDescriptor *type; /* NULL: free */
    int64_t length;
    char key[LONGEST_KEY];
    const ProtobufCFieldDescriptor *field;
} CachedKey;

/* An object that was read, by its first bytes. If its whole text occurs again, the object is equal,
 * since an object's text determines its own end. HLO repeats shapes and layouts; each is therefore
 * read once and shares one message. */
typedef struct SeenObject {
    const ProtobufCMessageDescriptor *type; /* NULL: free */
    const char *text;
    int64_t length;
    void *message;
} SeenObject;

typedef struct JsonWalk {
    JsonScanner scanner;
    Arena *arena;
    AmWarnings *warnings;
    CachedKey keys[KEY_CACHE];     /* one entry per hash */
    SeenObject seen[SEEN_OBJECTS]; /* likewise */
} JsonWalk;

static AmStatus read_message(JsonWalk *walk, const Place *place, void *message,
                             const ProtobufCMessageDescriptor *type, int32_t depth);

static void append_place(Text *text, const Place *place) {
    if (place == NULL) {
        text_append_string(text, "$");
        return;
    }
    append_place(text, place->outer);
    if (place->key != NULL) {
        text_append(text, ".%.*s", place->key_length, place->key);
    } else {
        text_append(text, "[%zu]", place->index);
    }
}

/* Fails with the path and the expectation; a path too long to print shows its end. */
static AmStatus expected(const JsonWalk *walk, const Place *place, const char *what) {
    Text path = {0};
    if (walk->scanner.at >= walk->scanner.length)
        return json_scan_fail(&walk->scanner, walk->scanner.length, "the text ends too early");
    append_place(&path, place);
    size_t hidden = path.length > LONGEST_PATH ? path.length - LONGEST_PATH : 0;
    AmStatus status = am_fail(walk->scanner.error, AM_ERROR_INPUT, walk->scanner.source, "%s%s: expected %s",
                              hidden ? "..." : "", path.data ? path.data + hidden : "$", what);
    text_free(&path);
    return status;
}

/* Warnings are compared with one another, so their number is bounded. */
static void warn_of_name(const JsonWalk *walk, const char *kind, JsonString name, const char *type) {
    if (walk->warnings->count >= MOST_WARNINGS) return;
    am_warn(walk->warnings, "%s: unknown %s %.*s of %s is skipped", walk->scanner.source, kind,
            (int)(name.length < 80 ? name.length : 80), name.text, type);
}

static AmStatus out_of_memory(const JsonWalk *walk, size_t bytes) {
    return am_fail_memory(walk->scanner.error, (int64_t)bytes);
}

/* Finds a field: "entryComputationId" and "entry_computation_id" are the same field. */
static const ProtobufCFieldDescriptor *search_field(const ProtobufCMessageDescriptor *type, JsonString key) {
    char snake[96];
    size_t length = 0;
    for (int64_t i = 0; i < key.length; i++) {
        char c = key.text[i];
        if (length + 3 > sizeof snake) return NULL;
        bool upper = c >= 'A' && c <= 'Z';
        if (upper) snake[length++] = '_';
        snake[length++] = upper ? (char)(c - 'A' + 'a') : c;
    }
    snake[length] = '\0';
    return protobuf_c_message_descriptor_get_field_by_name(type, snake);
}

static const ProtobufCFieldDescriptor *find_field(JsonWalk *walk, const ProtobufCMessageDescriptor *type,
                                                  JsonString key) {
    if (key.length > LONGEST_KEY) return search_field(type, key);
    uint64_t hash = hash_bytes(key.text, (size_t)key.length, (uint64_t)(uintptr_t)type);
    CachedKey *cached = &walk->keys[hash % KEY_CACHE];
    bool is_cached = cached->type == type && cached->length == key.length &&
                     memcmp(cached->key, key.text, (size_t)key.length) == 0;
    if (!is_cached) {
        *cached = (CachedKey){.type = type, .length = key.length, .field = search_field(type, key)};
        memcpy(cached->key, key.text, (size_t)key.length);
    }
    return cached->field;
}

static bool at_number(JsonWalk *walk) {
    char next = json_scan_peek(&walk->scanner);
    return next == '-' || (next >= '0' && next <= '9');
}

static bool at_string(JsonWalk *walk) {
    return json_scan_peek(&walk->scanner) == '"';
}

/* Reads a number, or a string that holds one and nothing else; `*is_number` says whether it is one. */
static AmStatus read_number(JsonWalk *walk, JsonNumber *number, bool *is_number) {
    *is_number = true;
    if (at_number(walk)) return json_scan_number(&walk->scanner, number);
    *is_number = false;
    if (!at_string(walk)) return AM_OK;
    JsonString string;
    int64_t end = 0;
    TRY(json_scan_string(&walk->scanner, &string));
    *is_number = json_parse_number(number, string.text, string.length, &end) && end == string.length;
    return AM_OK;
}

/* Integers come as numbers, as strings of digits, or as reals without a fraction. */
static bool to_integer(const JsonNumber *number, bool is_unsigned, uint64_t *bits) {
    if (!number->is_integer) {
        if (number->real != floor(number->real) || fabs(number->real) >= 0x1p63) return false;
        *bits = (uint64_t)(int64_t)number->real;
        return !is_unsigned || number->real >= 0;
    }
    *bits = number->is_negative ? -number->magnitude : number->magnitude;
    if (is_unsigned) return !number->is_negative || number->magnitude == 0;
    return number->magnitude <= (uint64_t)INT64_MAX + number->is_negative;
}

static AmStatus read_integer(JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                             void *address) {
    bool is_unsigned = field->type == PROTOBUF_C_TYPE_UINT32 || field->type == PROTOBUF_C_TYPE_UINT64;
    bool is_wide = field->type == PROTOBUF_C_TYPE_INT64 || field->type == PROTOBUF_C_TYPE_UINT64;
    bool is_number;
    JsonNumber number;
    uint64_t bits = 0;
    TRY(read_number(walk, &number, &is_number));
    if (!is_number || !to_integer(&number, is_unsigned, &bits))
        return expected(walk, place, is_unsigned ? "an integer of 0 or more" : "an integer");
    if (is_wide) {
        memcpy(address, &bits, sizeof bits);
        return AM_OK;
    }
    int64_t integer = (int64_t)bits;
    bool fits = is_unsigned ? bits <= UINT32_MAX : integer >= INT32_MIN && integer <= INT32_MAX;
    if (!fits) return expected(walk, place, "an integer of 32 bits");
    uint32_t narrow = (uint32_t)bits;
    memcpy(address, &narrow, sizeof narrow);
    return AM_OK;
}

static bool string_is(JsonString string, const char *text) {
    return string.length == (int64_t)strlen(text) && memcmp(string.text, text, (size_t)string.length) == 0;
}

static AmStatus read_double(JsonWalk *walk, double *real, bool *is_real) {
    static const struct {
        const char *name;
        double value;
    } words[] = {{"NaN", NAN}, {"Infinity", INFINITY}, {"-Infinity", -INFINITY}};
    JsonNumber number;
    int64_t before = walk->scanner.at;
    TRY(read_number(walk, &number, is_real));
    *real = number.real;
    if (*is_real || walk->scanner.at == before || walk->scanner.text[walk->scanner.at - 1] != '"')
        return AM_OK;
    JsonString string;
    walk->scanner.at = before;
    TRY(json_scan_string(&walk->scanner, &string));
    for (size_t i = 0; i < sizeof words / sizeof *words && !*is_real; i++) {
        *is_real = string_is(string, words[i].name);
        *real = words[i].value;
    }
    return AM_OK;
}

static AmStatus read_real(JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                          void *address) {
    bool is_real;
    double real;
    TRY(read_double(walk, &real, &is_real));
    if (!is_real) return expected(walk, place, "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
    if (field->type == PROTOBUF_C_TYPE_DOUBLE) {
        memcpy(address, &real, sizeof real);
        return AM_OK;
    }
    float narrow = (float)real;
    if (isinf(narrow) && !isinf(real)) return expected(walk, place, "a number that fits 32 bits");
    memcpy(address, &narrow, sizeof narrow);
    return AM_OK;
}

static int32_t base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

/* Reads bytes in either alphabet, with or without padding. */
static AmStatus read_bytes(JsonWalk *walk, const Place *place, ProtobufCBinaryData *bytes) {
    JsonString string;
    if (!at_string(walk)) return expected(walk, place, "a string of base64");
    TRY(json_scan_string(&walk->scanner, &string));
    size_t length = (size_t)string.length;
    while (length > 0 && string.text[length - 1] == '=') length--;
    bytes->data = arena_alloc(walk->arena, length / 4 * 3 + 3);
    bytes->len = 0;
    if (bytes->data == NULL) return out_of_memory(walk, length);
    uint32_t bits = 0, held = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t digit = base64_digit(string.text[i]);
        if (digit < 0) return expected(walk, place, "a string of base64");
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held >= 8) {
            held -= 8;
            bytes->data[bytes->len++] = (uint8_t)(bits >> held);
        }
    }
    return length % 4 == 1 ? expected(walk, place, "a string of base64") : AM_OK;
}

static AmStatus read_enum(JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                          void *address) {
    const ProtobufCEnumDescriptor *type = field->descriptor;
    int32_t number = 0;
    if (at_string(walk)) {
        char name[96] = "";
        JsonString string;
        TRY(json_scan_string(&walk->scanner, &string));
        if (string.length < (int64_t)sizeof name) memcpy(name, string.text, (size_t)string.length);
        const ProtobufCEnumValue *named = protobuf_c_enum_descriptor_get_value_by_name(type, name);
        if (named == NULL) warn_of_name(walk, "value", string, type->short_name);
        if (named != NULL) number = named->value;
    } else {
        JsonNumber value;
        uint64_t bits = 0;
        if (!at_number(walk)) return expected(walk, place, "a name or a number");
        TRY(json_scan_number(&walk->scanner, &value));
        if (!to_integer(&value, false, &bits)) return expected(walk, place, "a name or a number");
        number = (int32_t)bits;
        if (number != (int64_t)bits) return expected(walk, place, "an integer of 32 bits");
    }
    memcpy(address, &number, sizeof number);
    return AM_OK;
}

static AmStatus read_bool(JsonWalk *walk, const Place *place, void *address) {
    protobuf_c_boolean flag = 0;
    if (at_string(walk)) {
        JsonString string;
        TRY(json_scan_string(&walk->scanner, &string));
        flag = string_is(string, "true");
        if (!flag && !string_is(string, "false")) return expected(walk, place, "true or false");
    } else {
        flag = json_scan_word(&walk->scanner, "true");
        if (!flag && !json_scan_word(&walk->scanner, "false")) return expected(walk, place, "true or false");
    }
    memcpy(address, &flag, sizeof flag);
    return AM_OK;
}

static AmStatus read_nested(JsonWalk *walk, const Place *place, const ProtobufCMessageDescriptor *type,
                            void **message, int32_t depth) {
    json_scan_peek(&walk->scanner);
    const char *text = walk->scanner.text + walk->scanner.at;
    int64_t left = walk->scanner.length - walk->scanner.at;
    size_t beginning = left < SEEN_BEGINNING ? (size_t)left : SEEN_BEGINNING;
    SeenObject *seen = &walk->seen[hash_bytes(text, beginning, (uint64_t)(uintptr_t)type) % SEEN_OBJECTS];
    if (seen->type == type && seen->length <= left && memcmp(seen->text, text, (size_t)seen->length) == 0) {
        *message = seen->message;
        walk->scanner.at += seen->length;
        return AM_OK;
    }
    *message = arena_alloc(walk->arena, type->sizeof_message);
    if (*message == NULL) return out_of_memory(walk, type->sizeof_message);
    TRY(read_message(walk, place, *message, type, depth + 1));
    int64_t length = walk->scanner.text + walk->scanner.at - text;
    if (length <= LONGEST_SEEN) *seen = (SeenObject){type, text, length, *message};
    return AM_OK;
}

/* Reads one value, of the field's type, into memory of its element size. */
static AmStatus read_value(JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                           void *address, int32_t depth) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE: {
        void *message = NULL;
        TRY(read_nested(walk, place, field->descriptor, &message, depth));
        memcpy(address, &message, sizeof message);
        return AM_OK;
    }
    case PROTOBUF_C_TYPE_STRING: {
        JsonString string;
        if (!at_string(walk)) return expected(walk, place, "a string");
        TRY(json_scan_string(&walk->scanner, &string));
        char *text = arena_copy_bytes(walk->arena, string.text, (size_t)string.length);
        if (text == NULL) return out_of_memory(walk, (size_t)string.length);
        memcpy(address, &text, sizeof text);
        return AM_OK;
    }
    case PROTOBUF_C_TYPE_BYTES: return read_bytes(walk, place, address);
    case PROTOBUF_C_TYPE_BOOL: return read_bool(walk, place, address);
    case PROTOBUF_C_TYPE_ENUM: return read_enum(walk, place, field, address);
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE: return read_real(walk, place, field, address);
    default: return read_integer(walk, place, field, address);
    }
}

static AmStatus read_repeated(JsonWalk *walk, const Place *place, void *message,
                              const ProtobufCFieldDescriptor *field, int32_t depth) {
    size_t size = field_element_size(field);
    if (!json_scan_accept(&walk->scanner, '[')) return expected(walk, place, "an array");
    if (json_scan_accept(&walk->scanner, ']')) return AM_OK;
    Place at = {place, NULL, 0, 0};
    do {
        void *element =
            ir_push(walk->arena, field_address(message, field), field_count(message, field), size);
        if (element == NULL) return out_of_memory(walk, size);
        TRY(read_value(walk, &at, field, element, depth));
        at.index++;
    } while (json_scan_accept(&walk->scanner, ','));
    return json_scan_expect(&walk->scanner, ']');
}

/* Reads an entry's key, in the form that the entry's message has for it. */
static AmStatus read_map_key(JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                             void *address, IrNames *names, Arena *scratch) {
    int64_t start = walk->scanner.at;
    JsonString key;
    TRY(json_scan_string(&walk->scanner, &key));
    char *copy = arena_copy_bytes(scratch, key.text, (size_t)key.length);
    if (copy == NULL) return out_of_memory(walk, (size_t)key.length);
    IrWord word = {copy, key.length};
    if (ir_names_find(names, word) >= 0) return json_scan_fail(&walk->scanner, start, "a duplicate key");
    if (!ir_names_add(names, scratch, word, 0)) return out_of_memory(walk, (size_t)key.length);
    walk->scanner.at = start;
    TRY(read_value(walk, place, field, address, 0));
    return json_scan_expect(&walk->scanner, ':');
}

static AmStatus read_entries(JsonWalk *walk, const Place *place, void *message,
                             const ProtobufCFieldDescriptor *field, int32_t depth, Arena *scratch) {
    const ProtobufCMessageDescriptor *type = field->descriptor;
    IrNames names = {0};
    if (!json_scan_accept(&walk->scanner, '{')) return expected(walk, place, "an object");
    if (json_scan_accept(&walk->scanner, '}')) return AM_OK;
    Place at = {place, NULL, 0, 0};
    do {
        void **slot =
            ir_push(walk->arena, field_address(message, field), field_count(message, field), sizeof *slot);
        char *entry = arena_alloc(walk->arena, type->sizeof_message);
        if (slot == NULL || entry == NULL) return out_of_memory(walk, type->sizeof_message);
        *slot = entry;
        type->message_init((ProtobufCMessage *)(void *)entry);
        TRY(read_map_key(walk, &at, &type->fields[0], field_address(entry, &type->fields[0]), &names,
                         scratch));
        TRY(read_value(walk, &at, &type->fields[1], field_address(entry, &type->fields[1]), depth));
        at.index++;
    } while (json_scan_accept(&walk->scanner, ','));
    return json_scan_expect(&walk->scanner, '}');
}

static AmStatus read_field(JsonWalk *walk, const Place *place, void *message,
                           const ProtobufCFieldDescriptor *field, int32_t depth) {
    if (json_scan_word(&walk->scanner, "null")) return AM_OK;
    if (field_is_map(field)) {
        Arena scratch = {0};
        AmStatus status = read_entries(walk, place, message, field, depth, &scratch);
        arena_free(&scratch);
        return status;
    }
    if (field_is_repeated(field)) return read_repeated(walk, place, message, field, depth);
    if (field_is_oneof(field)) {
        if (*field_case(message, field) != 0)
            return expected(walk, place, "one of the fields that exclude one another");
        *field_case(message, field) = field->id;
    }
    return read_value(walk, place, field, field_address(message, field), depth);
}

static AmStatus read_member(JsonWalk *walk, const Place *place, void *message,
                            const ProtobufCMessageDescriptor *type, uint64_t *seen, int32_t depth) {
    JsonString key;
    json_scan_peek(&walk->scanner);
    int64_t start = walk->scanner.at;
    TRY(json_scan_key(&walk->scanner, &key));
    const ProtobufCFieldDescriptor *field = find_field(walk, type, key);
    if (field == NULL) {
        warn_of_name(walk, "key", key, type->short_name);
        return json_scan_skip(&walk->scanner);
    }
    size_t position = (size_t)(field - type->fields);
    if (seen[position / 64] >> position % 64 & 1)
        return json_scan_fail(&walk->scanner, start, "a duplicate key");
    seen[position / 64] |= UINT64_C(1) << position % 64;
    Place at = {place, field->name, (int32_t)strlen(field->name), 0};
    if (key.text != walk->scanner.decoded.data) at = (Place){place, key.text, (int32_t)key.length, 0};
    return read_field(walk, &at, message, field, depth);
}

static AmStatus read_message(JsonWalk *walk, const Place *place, void *message,
                             const ProtobufCMessageDescriptor *type, int32_t depth) {
    uint64_t seen[MOST_FIELDS / 64] = {0}; /* fields, by position */
    assert(type->n_fields <= MOST_FIELDS);
    type->message_init(message);
    if (depth > IR_MAX_MESSAGE_DEPTH) return expected(walk, place, "messages nested less deeply");
    if (!json_scan_accept(&walk->scanner, '{')) return expected(walk, place, "an object");
    if (json_scan_accept(&walk->scanner, '}')) return AM_OK;
    do {
        TRY(read_member(walk, place, message, type, seen, depth));
    } while (json_scan_accept(&walk->scanner, ','));
    return json_scan_expect(&walk->scanner, '}');
}

/* Finds the module, or the object that contains it, among the members of an object; `*at` is the
 * start of its value, -1 if it is missing. */
static AmStatus find_inner(const JsonWalk *walk, JsonString *found, int64_t *at) {
    static const char *const keys[] = {"computations", "hloModule", "hlo_module", "hlo"};
    JsonScanner ahead = walk->scanner;
    AmStatus status = AM_OK;
    ahead.decoded = (Text){0};
    *at = -1;
    if (json_scan_accept(&ahead, '{') && json_scan_peek(&ahead) != '}') {
        do {
            TRY_OR_FAIL(json_scan_key(&ahead, found));
            for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
                bool is_inner = i == 0 || json_scan_peek(&ahead) == '{';
                if (string_is(*found, keys[i]) && is_inner) *at = ahead.at;
                if (*at >= 0) *found = (JsonString){keys[i], (int64_t)strlen(keys[i])};
                if (*at >= 0) goto fail;
            }
            TRY_OR_FAIL(json_scan_skip(&ahead));
        } while (json_scan_accept(&ahead, ','));
        status = json_scan_expect(&ahead, '}');
    }
fail:
    text_free(&ahead.decoded);
    return status;
}

AmStatus ir_parse_json(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                       const char *data, int64_t length, AmError *error) {
    JsonWalk *walk = calloc(1, sizeof *walk);
    if (walk == NULL) return am_fail_memory(error, sizeof *walk);
    walk->scanner = (JsonScanner){.source = source, .text = data, .length = length, .error = error};
    walk->arena = arena;
    walk->warnings = warnings;
    AmStatus status = AM_OK;
    enum { MOST_WRAPPERS = 2 };
    Place places[MOST_WRAPPERS];
    const Place *place = NULL;
    int32_t wrappers = 0;
    for (;;) {
        JsonString key;
        int64_t at;
        TRY_OR_FAIL(find_inner(walk, &key, &at));
        if (at >= 0 && string_is(key, "computations")) break;
        if (at < 0 || wrappers == MOST_WRAPPERS)
            TRY_OR_FAIL(
                expected(walk, place, "an HLO module: an object with the key computations or hloModule"));
        places[wrappers] = (Place){place, key.text, (int32_t)key.length, 0};
        place = &places[wrappers++];
        walk->scanner.at = at;
    }
    *message = arena_alloc(walk->arena, sizeof **message);
    if (*message == NULL) TRY_OR_FAIL(out_of_memory(walk, sizeof **message));
    TRY_OR_FAIL(read_message(walk, place, *message, &hlo__hlo_module_proto__descriptor, 0));
    for (; wrappers > 0; wrappers--) {
        JsonString key;
        while (json_scan_accept(&walk->scanner, ',')) {
            TRY_OR_FAIL(json_scan_key(&walk->scanner, &key));
            TRY_OR_FAIL(json_scan_skip(&walk->scanner));
        }
        TRY_OR_FAIL(json_scan_expect(&walk->scanner, '}'));
    }
    json_scan_peek(&walk->scanner);
    status = walk->scanner.at == walk->scanner.length
                 ? AM_OK
                 : json_scan_fail(&walk->scanner, walk->scanner.at, "expected the end of the file");
fail:
    text_free(&walk->scanner.decoded);
    free(walk);
    return status;
}
