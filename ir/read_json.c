/* The JSON encoding: protobuf's JSON mapping, read by one walk over
 * protobuf-c's descriptors, so that no message has code of its own.
 *
 * Writers differ, and all are understood: keys in camelCase or snake_case,
 * defaults printed or left out, 64-bit integers as strings or numbers, enums as
 * names or numbers, bytes as base64 of either alphabet, NaN and infinities as
 * strings, null for a default. The module stands alone, or under "hloModule" (a
 * HloProto), or that under "hlo" (a HloSnapshot). Keys and enum names that the
 * schema does not have are skipped with a warning: newer writers have more.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "ir/encodings.h"
#include "ir/proto_field.h"

enum { MOST_WARNINGS = 100, LONGEST_PATH = 300 };

/* A value's place in the document, innermost first; lives on the C stack. */
typedef struct Place {
    const struct Place *outer;
    const char *key; /* NULL: an element of an array, at `index` */
    size_t index;
} Place;

typedef struct JsonWalk {
    const char *source;
    Arena *arena;
    AmWarnings *warnings;
    AmError *error;
} JsonWalk;

static AmStatus read_message(JsonWalk *walk, const Place *place, void *message,
                             const ProtobufCMessageDescriptor *type, json_t *object, int32_t depth);

static void append_place(Text *text, const Place *place) {
    if (place == NULL) {
        text_append_string(text, "$");
        return;
    }
    append_place(text, place->outer);
    if (place->key != NULL) {
        text_append(text, ".%s", place->key);
    } else {
        text_append(text, "[%zu]", place->index);
    }
}

/* A path too long to print shows its end. */
static AmStatus expected(const JsonWalk *walk, const Place *place, const char *what) {
    Text path = {0};
    append_place(&path, place);
    size_t hidden = path.length > LONGEST_PATH ? path.length - LONGEST_PATH : 0;
    AmStatus status = am_fail(walk->error, AM_ERROR_INPUT, walk->source, "%s%s: expected %s",
                              hidden ? "..." : "", path.data ? path.data + hidden : "$", what);
    text_free(&path);
    return status;
}

/* Warnings are compared with one another, so their number is bounded. */
static void warn_of_name(const JsonWalk *walk, const char *kind, const char *name, const char *type) {
    if (walk->warnings->count >= MOST_WARNINGS) return;
    am_warn(walk->warnings, "%s: unknown %s %.80s of %s is skipped", walk->source, kind, name, type);
}

static AmStatus out_of_memory(const JsonWalk *walk, size_t bytes) {
    return am_fail_memory(walk->error, (int64_t)bytes);
}

/* "entryComputationId" and "entry_computation_id" are the same field. */
static const ProtobufCFieldDescriptor *find_field(const ProtobufCMessageDescriptor *type, const char *key) {
    char snake[96];
    size_t length = 0;
    for (const char *c = key; *c != '\0'; c++) {
        if (length + 3 > sizeof snake) return NULL;
        bool upper = *c >= 'A' && *c <= 'Z';
        if (upper) snake[length++] = '_';
        snake[length++] = upper ? (char)(*c - 'A' + 'a') : *c;
    }
    snake[length] = '\0';
    return protobuf_c_message_descriptor_get_field_by_name(type, snake);
}

/* Integers come as numbers, as strings of digits, or as reals without a fraction. */
static bool parse_integer(const json_t *value, bool is_unsigned, uint64_t *bits) {
    if (json_is_integer(value)) {
        int64_t integer = json_integer_value(value);
        *bits = (uint64_t)integer;
        return !is_unsigned || integer >= 0;
    }
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        char *end;
        bool digits =
            (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
        if (!digits || (is_unsigned && text[0] == '-')) return false;
        errno = 0;
        *bits = is_unsigned ? strtoull(text, &end, 10) : (uint64_t)strtoll(text, &end, 10);
        return errno == 0 && *end == '\0';
    }
    if (!json_is_real(value)) return false;
    double real = json_real_value(value);
    if (real != floor(real) || fabs(real) >= 0x1p63 || (is_unsigned && real < 0)) return false;
    *bits = (uint64_t)(int64_t)real;
    return true;
}

static bool parse_real(const json_t *value, double *real) {
    if (json_is_number(value)) {
        *real = json_number_value(value);
        return true;
    }
    if (!json_is_string(value)) return false;
    const char *text = json_string_value(value);
    if (strcmp(text, "NaN") == 0) {
        *real = NAN;
    } else if (strcmp(text, "Infinity") == 0) {
        *real = INFINITY;
    } else if (strcmp(text, "-Infinity") == 0) {
        *real = -INFINITY;
    } else {
        char *end;
        bool number = text[0] == '-' || text[0] == '.' || (text[0] >= '0' && text[0] <= '9');
        *real = number ? strtod(text, &end) : 0;
        return number && *end == '\0' && isfinite(*real);
    }
    return true;
}

static int32_t base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

/* Either alphabet, with or without padding. */
static AmStatus read_bytes(const JsonWalk *walk, const Place *place, ProtobufCBinaryData *bytes,
                           const json_t *value) {
    if (!json_is_string(value)) return expected(walk, place, "a string of base64");
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    while (length > 0 && text[length - 1] == '=') length--;
    bytes->data = arena_alloc(walk->arena, length / 4 * 3 + 3);
    bytes->len = 0;
    if (bytes->data == NULL) return out_of_memory(walk, length);
    uint32_t bits = 0, held = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t digit = base64_digit(text[i]);
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

static AmStatus read_integer(const JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                             void *address, const json_t *value) {
    bool is_unsigned = field->type == PROTOBUF_C_TYPE_UINT32 || field->type == PROTOBUF_C_TYPE_UINT64;
    bool is_wide = field->type == PROTOBUF_C_TYPE_INT64 || field->type == PROTOBUF_C_TYPE_UINT64;
    uint64_t bits;
    if (!parse_integer(value, is_unsigned, &bits)) {
        return expected(walk, place, is_unsigned ? "an integer of 0 or more" : "an integer");
    }
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

static AmStatus read_real(const JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                          void *address, const json_t *value) {
    double real;
    if (!parse_real(value, &real))
        return expected(walk, place, "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
    if (field->type == PROTOBUF_C_TYPE_DOUBLE) {
        memcpy(address, &real, sizeof real);
        return AM_OK;
    }
    float narrow = (float)real;
    if (isinf(narrow) && !isinf(real)) return expected(walk, place, "a number that fits 32 bits");
    memcpy(address, &narrow, sizeof narrow);
    return AM_OK;
}

static AmStatus read_enum(const JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                          void *address, const json_t *value) {
    const ProtobufCEnumDescriptor *type = field->descriptor;
    if (!json_is_string(value)) {
        uint64_t bits;
        if (!parse_integer(value, false, &bits)) return expected(walk, place, "a name or a number");
        int32_t number = (int32_t)bits;
        if (number != (int64_t)bits) return expected(walk, place, "an integer of 32 bits");
        memcpy(address, &number, sizeof number);
        return AM_OK;
    }
    const ProtobufCEnumValue *named =
        protobuf_c_enum_descriptor_get_value_by_name(type, json_string_value(value));
    int32_t number = named ? named->value : 0;
    if (named == NULL) {
        warn_of_name(walk, "value", json_string_value(value), type->short_name);
    }
    memcpy(address, &number, sizeof number);
    return AM_OK;
}

static AmStatus read_bool(const JsonWalk *walk, const Place *place, void *address, const json_t *value) {
    bool by_name = json_is_string(value) && (strcmp(json_string_value(value), "true") == 0 ||
                                             strcmp(json_string_value(value), "false") == 0);
    if (!json_is_boolean(value) && !by_name) return expected(walk, place, "true or false");
    protobuf_c_boolean flag = by_name ? json_string_value(value)[0] == 't' : json_is_true(value);
    memcpy(address, &flag, sizeof flag);
    return AM_OK;
}

/* One value, of whatever type the field has, into memory of its element size. */
static AmStatus read_value(JsonWalk *walk, const Place *place, const ProtobufCFieldDescriptor *field,
                           void *address, json_t *value, int32_t depth) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessageDescriptor *type = field->descriptor;
        void *message = arena_alloc(walk->arena, type->sizeof_message);
        if (message == NULL) return out_of_memory(walk, type->sizeof_message);
        memcpy(address, &message, sizeof message);
        return read_message(walk, place, message, type, value, depth + 1);
    }
    case PROTOBUF_C_TYPE_STRING: {
        if (!json_is_string(value)) return expected(walk, place, "a string");
        char *text = arena_copy_bytes(walk->arena, json_string_value(value), json_string_length(value));
        if (text == NULL) return out_of_memory(walk, json_string_length(value));
        memcpy(address, &text, sizeof text);
        return AM_OK;
    }
    case PROTOBUF_C_TYPE_BYTES: return read_bytes(walk, place, address, value);
    case PROTOBUF_C_TYPE_BOOL: return read_bool(walk, place, address, value);
    case PROTOBUF_C_TYPE_ENUM: return read_enum(walk, place, field, address, value);
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE: return read_real(walk, place, field, address, value);
    default: return read_integer(walk, place, field, address, value);
    }
}

static AmStatus read_repeated(JsonWalk *walk, const Place *place, void *message,
                              const ProtobufCFieldDescriptor *field, json_t *array, int32_t depth) {
    if (!json_is_array(array)) return expected(walk, place, "an array");
    size_t count = json_array_size(array), size = field_element_size(field);
    if (count == 0) return AM_OK;
    char *elements = arena_alloc(walk->arena, count * size);
    if (elements == NULL) return out_of_memory(walk, count * size);
    Place at = {place, NULL, 0};
    for (; at.index < count; at.index++) {
        json_t *value = json_array_get(array, at.index);
        TRY(read_value(walk, &at, field, elements + at.index * size, value, depth));
    }
    memcpy(field_address(message, field), &elements, sizeof elements);
    *field_count(message, field) = count;
    return AM_OK;
}

static AmStatus read_map(JsonWalk *walk, const Place *place, void *message,
                         const ProtobufCFieldDescriptor *field, json_t *object, int32_t depth) {
    if (!json_is_object(object)) return expected(walk, place, "an object");
    const ProtobufCMessageDescriptor *type = field->descriptor;
    size_t count = json_object_size(object), filled = 0;
    if (count == 0) return AM_OK;
    void **entries = arena_alloc(walk->arena, count * sizeof *entries);
    if (entries == NULL) return out_of_memory(walk, count * sizeof *entries);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        Place at = {place, key, 0};
        char *entry = arena_alloc(walk->arena, type->sizeof_message);
        if (entry == NULL) return out_of_memory(walk, type->sizeof_message);
        type->message_init((ProtobufCMessage *)(void *)entry);
        json_t *name = json_string(key);
        AmStatus status = name ? read_value(walk, &at, &type->fields[0],
                                            field_address(entry, &type->fields[0]), name, depth)
                               : out_of_memory(walk, strlen(key));
        json_decref(name);
        if (status != AM_OK) return status;
        TRY(read_value(walk, &at, &type->fields[1], field_address(entry, &type->fields[1]), value, depth));
        entries[filled++] = entry;
    }
    memcpy(field_address(message, field), &entries, sizeof entries);
    *field_count(message, field) = count;
    return AM_OK;
}

static AmStatus read_field(JsonWalk *walk, const Place *place, void *message,
                           const ProtobufCFieldDescriptor *field, json_t *value, int32_t depth) {
    if (json_is_null(value)) return AM_OK;
    if (field_is_map(field)) return read_map(walk, place, message, field, value, depth);
    if (field_is_repeated(field)) return read_repeated(walk, place, message, field, value, depth);
    if (field_is_oneof(field)) {
        if (*field_case(message, field) != 0)
            return expected(walk, place, "one of the fields that exclude one another");
        *field_case(message, field) = field->id;
    }
    return read_value(walk, place, field, field_address(message, field), value, depth);
}

static AmStatus read_message(JsonWalk *walk, const Place *place, void *message,
                             const ProtobufCMessageDescriptor *type, json_t *object, int32_t depth) {
    type->message_init(message);
    if (depth > IR_MAX_MESSAGE_DEPTH) return expected(walk, place, "messages nested less deeply");
    if (!json_is_object(object)) return expected(walk, place, "an object");
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        const ProtobufCFieldDescriptor *field = find_field(type, key);
        if (field == NULL) {
            warn_of_name(walk, "key", key, type->short_name);
            continue;
        }
        Place at = {place, key, 0};
        TRY(read_field(walk, &at, message, field, value, depth));
    }
    return AM_OK;
}

static json_t *get_either(json_t *object, const char *camel, const char *snake, Place *place) {
    json_t *value = json_object_get(object, camel);
    place->key = value ? camel : snake;
    return value ? value : json_object_get(object, snake);
}

static AmStatus read_root(JsonWalk *walk, Hlo__HloModuleProto **message, json_t *root) {
    Place snapshot = {NULL, NULL, 0}, wrapper = {NULL, NULL, 0};
    const Place *place = NULL;
    json_t *inner = get_either(root, "hlo", "hlo", &snapshot);
    if (json_is_object(inner)) {
        root = inner;
        place = &snapshot;
    }
    wrapper.outer = place;
    inner = get_either(root, "hloModule", "hlo_module", &wrapper);
    if (inner != NULL) {
        root = inner;
        place = &wrapper;
    }
    if (json_object_get(root, "computations") == NULL) {
        return expected(walk, place, "an HLO module: an object with the key computations or hloModule");
    }
    *message = arena_alloc(walk->arena, sizeof **message);
    if (*message == NULL) return out_of_memory(walk, sizeof **message);
    return read_message(walk, place, *message, &hlo__hlo_module_proto__descriptor, root, 0);
}

AmStatus ir_parse_json(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                       const char *data, int64_t length, AmError *error) {
    JsonWalk walk = {source, arena, warnings, error};
    json_t *root;
    TRY(json_parse(&root, source, data, (size_t)length, error));
    AmStatus status = read_root(&walk, message, root);
    json_decref(root);
    return status;
}
