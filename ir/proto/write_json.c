/* The JSON encoding, written: protobuf's JSON mapping in its plain form, by one
 * walk over protobuf-c's descriptors: camelCase keys in the order of field
 * numbers, defaults left out, 64-bit integers as strings, enums by name, bytes
 * as base64. Down to the instructions every value has a line of its own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ir/encodings.h"
#include "ir/proto/proto_field.h"

/* Levels of nesting that are broken into lines: module, computation, instruction. */
enum { LINED_LEVELS = 4 };

typedef struct JsonOutput {
    Text *text;
    bool invalid; /* a string is not UTF-8 */
} JsonOutput;

static void append_message(JsonOutput *output, const ProtobufCMessage *message, int32_t level);

static void append_character(JsonOutput *output, char c) {
    text_append_bytes(output->text, &c, 1);
}

static void break_line(JsonOutput *output, int32_t level) {
    static const char spaces[] = "\n        ";
    if (level <= LINED_LEVELS) text_append_bytes(output->text, spaces, (size_t)level + 1);
}

/* Returns the length of the UTF-8 sequence at `text`, or 0 if it is invalid. */
static size_t sequence_length(const unsigned char *text) {
    if (text[0] < 0x80) return 1;
    size_t length = text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3 : 2;
    if (text[0] < 0xC2 || text[0] > 0xF4) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
    }
    bool overlong = (text[0] == 0xE0 && text[1] < 0xA0) || (text[0] == 0xF0 && text[1] < 0x90);
    bool surrogate = text[0] == 0xED && text[1] >= 0xA0;
    return overlong || surrogate || (text[0] == 0xF4 && text[1] >= 0x90) ? 0 : length;
}

static void append_quoted(JsonOutput *output, const char *string) {
    append_character(output, '"');
    const char *plain = string; /* start of the part without escapes */
    const char *at = string;
    while (*at != '\0') {
        size_t length = sequence_length((const unsigned char *)at);
        if (length == 0) output->invalid = true;
        if (length == 0 || *at == '"' || *at == '\\' || (unsigned char)*at < 0x20) {
            text_append_bytes(output->text, plain, (size_t)(at - plain));
            if (*at == '"' || *at == '\\') {
                append_character(output, '\\');
                append_character(output, *at);
            } else if (length > 0) {
                text_append(output->text, "\\u%04x", (unsigned)*at);
            }
            plain = ++at;
        } else {
            at += length;
        }
    }
    text_append_bytes(output->text, plain, (size_t)(at - plain));
    append_character(output, '"');
}

static void append_base64(JsonOutput *output, const ProtobufCBinaryData *bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    append_character(output, '"');
    for (size_t i = 0; i < bytes->len; i += 3) {
        size_t left = bytes->len - i;
        uint32_t bits = (uint32_t)bytes->data[i] << 16;
        if (left > 1) bits |= (uint32_t)bytes->data[i + 1] << 8;
        if (left > 2) bits |= bytes->data[i + 2];
        char group[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
                         left > 2 ? digits[bits & 63] : '='};
        text_append_bytes(output->text, group, sizeof group);
    }
    append_character(output, '"');
}

/* Appends the fewest digits that read back as the same value. */
static void append_float(JsonOutput *output, float value) {
    char digits[32];
    for (int precision = 6; precision <= 9; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, (double)value);
        if (strtof(digits, NULL) == value) break;
    }
    text_append_string(output->text, digits);
}

static void append_real(JsonOutput *output, double value, bool is_float) {
    if (isnan(value)) {
        text_append_string(output->text, "\"NaN\"");
    } else if (isinf(value)) {
        text_append_string(output->text, value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    } else if (value == 0 && signbit(value)) {
        text_append_string(output->text, "-0.0"); /* -0 would be an integer, which has no sign */
    } else if (is_float) {
        append_float(output, (float)value);
    } else {
        text_append_double(output->text, value);
    }
}

static void append_enum(JsonOutput *output, const ProtobufCEnumDescriptor *type, int32_t number) {
    const ProtobufCEnumValue *named = protobuf_c_enum_descriptor_get_value(type, number);
    if (named != NULL) {
        append_quoted(output, named->name);
    } else {
        text_append(output->text, "%d", number);
    }
}

/* Values are copied out of the message: `address` is aligned for its own type. */
static void append_value(JsonOutput *output, const ProtobufCFieldDescriptor *field, const void *address,
                         int32_t level) {
    int32_t narrow = 0;
    int64_t wide = 0;
    float single;
    double real;
    memcpy(&narrow, address, sizeof narrow);
    if (field_element_size(field) >= sizeof wide) memcpy(&wide, address, sizeof wide);
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *message = *(ProtobufCMessage *const *)address;
        if (message) append_message(output, message, level);
        else text_append_string(output->text, "{}");
    } break;
    case PROTOBUF_C_TYPE_STRING: append_quoted(output, *(char *const *)address); break;
    case PROTOBUF_C_TYPE_BYTES: append_base64(output, address); break;
    case PROTOBUF_C_TYPE_BOOL: text_append_string(output->text, narrow ? "true" : "false"); break;
    case PROTOBUF_C_TYPE_ENUM: append_enum(output, field->descriptor, narrow); break;
    case PROTOBUF_C_TYPE_FLOAT:
        memcpy(&single, address, sizeof single);
        append_real(output, (double)single, true);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(&real, address, sizeof real);
        append_real(output, real, false);
        break;
    case PROTOBUF_C_TYPE_INT64: text_append(output->text, "\"%lld\"", (long long)wide); break;
    case PROTOBUF_C_TYPE_UINT64: text_append(output->text, "\"%llu\"", (unsigned long long)wide); break;
    case PROTOBUF_C_TYPE_UINT32: text_append(output->text, "%u", (unsigned)narrow); break;
    default: text_append(output->text, "%d", narrow); break;
    }
}

static bool is_default(const ProtobufCFieldDescriptor *field, const void *address) {
    static const char zeros[16];
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE: return *(void *const *)address == NULL;
    case PROTOBUF_C_TYPE_STRING: return *(char *const *)address == NULL || **(char *const *)address == '\0';
    case PROTOBUF_C_TYPE_BYTES: return ((const ProtobufCBinaryData *)address)->len == 0;
    default: return memcmp(address, zeros, field_element_size(field)) == 0;
    }
}

static bool is_absent(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
    if (field_is_repeated(field)) return *field_count(message, field) == 0;
    if (field_is_oneof(field)) return *field_case(message, field) != field->id;
    return is_default(field, field_address(message, field));
}

static void append_key(JsonOutput *output, const char *name) {
    char camel[96];
    size_t length = 0;
    for (const char *c = name; *c != '\0' && length < sizeof camel; c++) {
        bool capital = *c == '_' && c[1] >= 'a' && c[1] <= 'z';
        if (capital) c++;
        camel[length++] = capital ? (char)(*c - 'a' + 'A') : *c;
    }
    append_character(output, '"');
    text_append_bytes(output->text, camel, length);
    text_append_bytes(output->text, "\": ", 3);
}

static void append_repeated(JsonOutput *output, const ProtobufCMessage *message,
                            const ProtobufCFieldDescriptor *field, int32_t level) {
    const char *elements = *(const char *const *)field_address(message, field);
    size_t count = *field_count(message, field), size = field_element_size(field);
    bool is_map = field_is_map(field), lined = field->type == PROTOBUF_C_TYPE_MESSAGE && level < LINED_LEVELS;
    append_character(output, is_map ? '{' : '[');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) text_append_bytes(output->text, ", ", lined ? 1 : 2);
        if (lined) break_line(output, level + 1);
        if (is_map) {
            const ProtobufCMessage *entry = *(ProtobufCMessage *const *)(const void *)(elements + i * size);
            const ProtobufCFieldDescriptor *fields = entry->descriptor->fields;
            /* Keys of a JSON object are strings, whatever the map's keys are. */
            bool is_quoted = fields[0].type == PROTOBUF_C_TYPE_STRING || field_element_size(&fields[0]) == 8;
            if (!is_quoted) append_character(output, '"');
            append_value(output, &fields[0], field_address(entry, &fields[0]), 0);
            if (!is_quoted) append_character(output, '"');
            text_append_bytes(output->text, ": ", 2);
            append_value(output, &fields[1], field_address(entry, &fields[1]), level + 1);
        } else {
            append_value(output, field, elements + i * size, level + 1);
        }
    }
    if (lined) break_line(output, level);
    append_character(output, is_map ? '}' : ']');
}

/* Appends a message. Level 0 is the module, 2 a computation, 4 an instruction. */
static void append_message(JsonOutput *output, const ProtobufCMessage *message, int32_t level) {
    bool first = true, lined = level < LINED_LEVELS;
    append_character(output, '{');
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (is_absent(message, field)) continue;
        if (!first) text_append_bytes(output->text, ", ", lined ? 1 : 2);
        if (lined) break_line(output, level + 1);
        first = false;
        append_key(output, field->name);
        if (field_is_repeated(field)) {
            append_repeated(output, message, field, level + 1);
        } else {
            append_value(output, field, field_address(message, field), level + 1);
        }
    }
    if (lined && !first) break_line(output, level);
    append_character(output, '}');
}

AmStatus ir_print_json(Text *out, const Hlo__HloModuleProto *message, AmError *error) {
    JsonOutput output = {out, false};
    append_message(&output, &message->base, 0);
    append_character(&output, '\n');
    if (out->failed) return am_fail_memory(error, (int64_t)out->length);
    if (output.invalid) {
        return am_fail(error, AM_ERROR_INPUT, "", "module %s: a name is not valid UTF-8, which JSON needs",
                       message->name);
    }
    return AM_OK;
}
