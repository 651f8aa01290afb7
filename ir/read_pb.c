/* The binary encoding: protobuf's wire format, read by protobuf-c.
 *
 * The bytes are walked once before they are unpacked. That walk bounds the
 * nesting (protobuf-c recurses without limit), and finds where a cut or damaged
 * file goes wrong, so that the error names the byte and the field.
 *
 * A file holds a HloModuleProto, or one inside a HloProto (field 1), or inside a
 * HloSnapshot (field 1 of field 1). The three share field numbers, so they are
 * told apart by looking for an instruction: computations = 3, instructions = 2,
 * opcode = 2, and the opcode must be a word of lower-case letters.
 */
#include <string.h>

#include "ir/encodings.h"

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

/* One field of a message; [start, end) is its value, without tag and length. */
typedef struct WireField {
    uint32_t number;
    int32_t wire;
    int64_t start, end;
    bool cut; /* the file or the message around it ends first */
} WireField;

typedef struct Wire {
    const char *source;
    const uint8_t *data;
    AmError *error;
} Wire;

static bool read_varint(const uint8_t *data, int64_t end, int64_t *at, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 70 && *at < end; shift += 7) {
        uint8_t byte = data[(*at)++];
        if (shift < 64) *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* Reads the field at `*at` and moves past it. Returns NULL, or what is wrong;
 * where a value is cut off, the field is what there is of it. */
static const char *next_field(const uint8_t *data, int64_t end, int64_t *at, WireField *field) {
    uint64_t tag, length = 0;
    *field = (WireField){0};
    if (!read_varint(data, end, at, &tag) || tag >> 3 == 0 || tag >> 32 != 0) return "no valid field tag";
    field->number = (uint32_t)(tag >> 3);
    field->wire = (int32_t)(tag & 7);
    field->start = *at;
    switch (field->wire) {
    case WIRE_VARINT:
        if (!read_varint(data, end, at, &length)) return "a cut off integer";
        field->end = *at;
        return NULL;
    case WIRE_FIXED64: length = 8; break;
    case WIRE_FIXED32: length = 4; break;
    case WIRE_BYTES:
        if (!read_varint(data, end, at, &length)) return "a cut off length";
        field->start = *at;
        break;
    default: return "an unknown wire type";
    }
    field->cut = length > (uint64_t)(end - *at);
    *at = field->cut ? end : *at + (int64_t)length;
    field->end = *at;
    return field->cut ? "a value longer than what is left of the file or message" : NULL;
}

static bool wire_type_fits(const ProtobufCFieldDescriptor *field, int32_t wire) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return wire == WIRE_BYTES;
    default: break;
    }
    if (field->label == PROTOBUF_C_LABEL_REPEATED && wire == WIRE_BYTES) return true; /* packed */
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT: return wire == WIRE_FIXED32;
    case PROTOBUF_C_TYPE_DOUBLE: return wire == WIRE_FIXED64;
    default: return wire == WIRE_VARINT;
    }
}

/* Walks the message of `type` in data[at..end) and everything inside it. */
static AmStatus check_message(const Wire *wire, const ProtobufCMessageDescriptor *type, int64_t at,
                              int64_t end, int32_t depth) {
    if (depth > IR_MAX_MESSAGE_DEPTH) {
        return am_fail(wire->error, AM_ERROR_INPUT, wire->source,
                       "byte %lld: messages are nested more than %d deep, expected an HLO module",
                       (long long)at, IR_MAX_MESSAGE_DEPTH);
    }
    while (at < end) {
        int64_t field_at = at;
        WireField value;
        const char *problem = next_field(wire->data, end, &at, &value);
        const ProtobufCFieldDescriptor *field =
            value.number ? protobuf_c_message_descriptor_get_field(type, value.number) : NULL;
        if (problem == NULL && field != NULL && !wire_type_fits(field, value.wire)) {
            problem = "a value of another type";
        }
        if (problem != NULL) {
            return am_fail(wire->error, AM_ERROR_INPUT, wire->source,
                           "byte %lld: found %s, expected %s of %s", (long long)field_at, problem,
                           field ? field->name : "a field", type->short_name);
        }
        if (field != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE) {
            TRY(check_message(wire, field->descriptor, value.start, value.end, depth + 1));
        }
    }
    return AM_OK;
}

/* The first field `number` that holds bytes; cut off files are searched too. */
static bool find_bytes(const uint8_t *data, int64_t at, int64_t end, uint32_t number, WireField *field) {
    while (at < end) {
        const char *problem = next_field(data, end, &at, field);
        bool found = field->number == number && field->wire == WIRE_BYTES;
        if (found && (problem == NULL || field->cut)) return true;
        if (problem != NULL) return false;
    }
    return false;
}

static bool holds_module(const uint8_t *data, int64_t start, int64_t end) {
    WireField computation, instruction, opcode;
    if (!find_bytes(data, start, end, 3, &computation)) return false;
    if (!find_bytes(data, computation.start, computation.end, 2, &instruction)) return false;
    if (!find_bytes(data, instruction.start, instruction.end, 2, &opcode)) return false;
    if (opcode.start == opcode.end) return false;
    for (int64_t i = opcode.start; i < opcode.end; i++) {
        uint8_t c = data[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        if (!word) return false;
    }
    return true;
}

static void *allocate(void *arena, size_t bytes) {
    return arena_alloc(arena, bytes);
}

static void keep(void *arena, void *memory) {
    (void)arena;
    (void)memory;
}

ProtobufCAllocator ir_arena_allocator(Arena *arena) {
    return (ProtobufCAllocator){.alloc = allocate, .free = keep, .allocator_data = arena};
}

AmStatus ir_parse_pb(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                     const char *data, int64_t length, AmError *error) {
    (void)warnings;
    const Wire wire = {source, (const uint8_t *)data, error};
    WireField module = {.start = 0, .end = length};
    bool found = holds_module(wire.data, 0, length);
    for (int32_t wrapper = 0; wrapper < 2 && !found; wrapper++) {
        if (!find_bytes(wire.data, module.start, module.end, 1, &module)) break;
        found = holds_module(wire.data, module.start, module.end);
    }
    if (!found) {
        return am_fail(
            error, AM_ERROR_INPUT, source,
            "expected an HLO module: a HloModuleProto, HloProto or HloSnapshot in binary or JSON, or "
            "text that starts with HloModule");
    }
    TRY(check_message(&wire, &hlo__hlo_module_proto__descriptor, module.start, module.end, 0));
    if (module.cut) {
        return am_fail(error, AM_ERROR_INPUT, source, "byte %lld: the file ends inside the HLO module",
                       (long long)length);
    }

    /* Structures are larger than their wire form, empty messages most of all;
     * real modules stay far below this bound. */
    size_t limit_before = arena->limit;
    arena->limit = arena->used + ((size_t)64 << 20) + 64 * (size_t)length;
    ProtobufCAllocator allocator = ir_arena_allocator(arena);
    *message = hlo__hlo_module_proto__unpack(&allocator, (size_t)(module.end - module.start),
                                             wire.data + module.start);
    arena->limit = limit_before;
    if (*message == NULL) {
        return am_fail(error, AM_ERROR_INPUT, source, "expected an HLO module: the binary message %s",
                       arena->failed ? "needs memory out of proportion to its size" : "has a damaged value");
    }
    return AM_OK;
}
