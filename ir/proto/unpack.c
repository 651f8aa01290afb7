/* Decodes protobuf's wire format into protobuf-c's structures, in one pass.
 *
 * protobuf-c's own unpacker is not used: it recurses without limit, does not report the position of
 * damage, and allocates every string and nested message separately, which makes a module many times
 * as large as its file. HLO repeats itself: a few shapes, layouts, opcodes and source positions
 * make up most of it. The last short values are therefore cached by their bytes, in a table with
 * one entry per hash; a cached value is reused and not decoded again. New strings are stored
 * consecutively.
 *
 * A repeated field is counted when its first element is read and gets an array of that size. As
 * protobuf requires, the last occurrence of a single value counts, the parts of a single message
 * are merged, and fields outside the schema are preserved.
 */
#include "ir/proto/unpack.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"
#include "ir/proto/proto_field.h"

enum {
    LONGEST_SHARED = 128,
    FEWEST_ENTRIES = 64,
    MOST_ENTRIES = 1 << 12,
    TEXT_BLOCK = 4096,
    MOST_FIELDS = 256
};

/* A value that was unpacked: its type (NULL: a string), its bytes in the file, the result. */
typedef struct Seen {
    const ProtobufCMessageDescriptor *type;
    const uint8_t *bytes;
    int64_t length;
    void *result; /* NULL: free */
} Seen;

typedef struct Unpacker {
    Arena *arena;
    const char *source;
    const uint8_t *data;
    AmError *error;
    Seen *seen;
    uint64_t seen_mask;
    char *text; /* room for strings */
    size_t text_left;
} Unpacker;

static bool read_varint(const uint8_t *data, int64_t end, int64_t *at, uint64_t *value) {
    if (*at < end && data[*at] < 0x80) {
        *value = data[(*at)++];
        return true;
    }
    *value = 0;
    for (int shift = 0; shift < 70 && *at < end; shift += 7) {
        uint8_t byte = data[(*at)++];
        if (shift < 64) *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

const char *ir_wire_next(const uint8_t *data, int64_t end, int64_t *at, IrWireField *field) {
    uint64_t tag, length = 0;
    *field = (IrWireField){0};
    if (!read_varint(data, end, at, &tag) || tag >> 3 == 0 || tag >> 32 != 0) return "no valid field tag";
    field->number = (uint32_t)(tag >> 3);
    field->wire = (int32_t)(tag & 7);
    field->start = *at;
    switch (field->wire) {
    case IR_WIRE_VARINT:
        if (!read_varint(data, end, at, &field->value)) return "a cut off integer";
        field->end = *at;
        return NULL;
    case IR_WIRE_FIXED64: length = 8; break;
    case IR_WIRE_FIXED32: length = 4; break;
    case IR_WIRE_BYTES:
        if (!read_varint(data, end, at, &length)) return "a cut off length";
        field->start = *at;
        break;
    default: return "an unknown wire type";
    }
    field->cut = length > (uint64_t)(end - *at);
    *at = field->cut ? end : *at + (int64_t)length;
    field->end = *at;
    return field->cut ? "a value longer than the rest of the file or message" : NULL;
}

/* Returns how a single value of the type is written. */
static int32_t wire_of(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return IR_WIRE_BYTES;
    case PROTOBUF_C_TYPE_FLOAT: return IR_WIRE_FIXED32;
    case PROTOBUF_C_TYPE_DOUBLE: return IR_WIRE_FIXED64;
    default: return IR_WIRE_VARINT;
    }
}

/* Returns whether several numbers are in one value, one after the other. */
static bool is_packed(const ProtobufCFieldDescriptor *field, int32_t wire) {
    return field_is_repeated(field) && wire == IR_WIRE_BYTES && wire_of(field->type) != IR_WIRE_BYTES;
}

static AmStatus refuse_field(const Unpacker *unpacker, const ProtobufCMessageDescriptor *type,
                             const ProtobufCFieldDescriptor *field, int64_t at, const char *problem) {
    return am_fail(unpacker->error, AM_ERROR_INPUT, unpacker->source,
                   "byte %lld: found %s, expected %s of %s", (long long)at, problem,
                   field ? field->name : "a field", type->short_name);
}

/* Fails for lack of memory. The arena has a limit: most refused allocations are out of proportion to the
 * input. */
static AmStatus out_of_memory(const Unpacker *unpacker, size_t bytes) {
    if (unpacker->arena->limit && unpacker->arena->used + bytes > unpacker->arena->limit)
        return am_fail(
            unpacker->error, AM_ERROR_INPUT, unpacker->source,
            "expected an HLO module: the binary message needs memory out of proportion to its size");
    return am_fail_memory(unpacker->error, (int64_t)bytes);
}

/* Returns the entry of the bytes; NULL for a value too long to be remembered. */
static Seen *seen_entry(const Unpacker *unpacker, const ProtobufCMessageDescriptor *type,
                        const uint8_t *bytes, int64_t length) {
    if (length > LONGEST_SHARED) return NULL;
    uint64_t hash = hash_bytes(bytes, (size_t)length, (uint64_t)(uintptr_t)type);
    return &unpacker->seen[hash & unpacker->seen_mask];
}

static bool is_seen(const Seen *entry, const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                    int64_t length) {
    return entry && entry->result && entry->type == type && entry->length == length &&
           memcmp(entry->bytes, bytes, (size_t)length) == 0;
}

static char *unpack_text(Unpacker *unpacker, const uint8_t *bytes, int64_t length) {
    size_t room = (size_t)length + 1;
    Seen *entry = seen_entry(unpacker, NULL, bytes, length);
    if (is_seen(entry, NULL, bytes, length)) return entry->result;
    char *text;
    if (room > TEXT_BLOCK / 4) {
        text = arena_alloc(unpacker->arena, room);
    } else {
        if (unpacker->text_left < room) {
            unpacker->text = arena_alloc(unpacker->arena, TEXT_BLOCK);
            unpacker->text_left = unpacker->text ? TEXT_BLOCK : 0;
        }
        text = unpacker->text;
        if (text) {
            unpacker->text += room;
            unpacker->text_left -= room;
        }
    }
    if (!text) return NULL;
    memcpy(text, bytes, (size_t)length); /* the rest of the memory is zero */
    if (entry) *entry = (Seen){NULL, bytes, length, text};
    return text;
}

static void store_number(ProtobufCType type, void *address, uint64_t value) {
    if (type == PROTOBUF_C_TYPE_INT64 || type == PROTOBUF_C_TYPE_UINT64) {
        memcpy(address, &value, sizeof value);
    } else {
        uint32_t narrow = type == PROTOBUF_C_TYPE_BOOL ? value != 0 : (uint32_t)value;
        memcpy(address, &narrow, sizeof narrow);
    }
}

static AmStatus unpack_message(Unpacker *unpacker, void *message, const ProtobufCMessageDescriptor *type,
                               int64_t at, int64_t end, int32_t depth);

/* Unpacks the message in `value`, merged into a copy of `*slot` where there is one. */
static AmStatus unpack_nested(Unpacker *unpacker, void **slot, const ProtobufCMessageDescriptor *type,
                              const IrWireField *value, int32_t depth) {
    const uint8_t *bytes = unpacker->data + value->start;
    int64_t length = value->end - value->start;
    void *before = *slot;
    Seen *entry = before ? NULL : seen_entry(unpacker, type, bytes, length);
    if (entry && is_seen(entry, type, bytes, length)) {
        *slot = entry->result;
        return AM_OK;
    }
    void *message = arena_alloc(unpacker->arena, type->sizeof_message);
    if (!message) return out_of_memory(unpacker, type->sizeof_message);
    if (before) {
        memcpy(message, before, type->sizeof_message);
    } else {
        protobuf_c_message_init(type, message);
    }
    TRY(unpack_message(unpacker, message, type, value->start, value->end, depth + 1));
    if (entry) *entry = (Seen){type, bytes, length, message};
    *slot = message;
    return AM_OK;
}

/* Unpacks one value of the field into memory of its element size. */
static AmStatus unpack_value(Unpacker *unpacker, const ProtobufCFieldDescriptor *field, void *address,
                             const IrWireField *value, int32_t depth) {
    int64_t length = value->end - value->start;
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE: {
        void *message;
        memcpy(&message, address, sizeof message);
        TRY(unpack_nested(unpacker, &message, field->descriptor, value, depth));
        memcpy(address, &message, sizeof message);
        return AM_OK;
    }
    case PROTOBUF_C_TYPE_STRING: {
        char *text = unpack_text(unpacker, unpacker->data + value->start, length);
        if (!text) return out_of_memory(unpacker, (size_t)length);
        memcpy(address, &text, sizeof text);
        return AM_OK;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        ProtobufCBinaryData bytes = {(size_t)length, NULL};
        if (length > 0) {
            bytes.data =
                (uint8_t *)arena_copy_bytes(unpacker->arena, unpacker->data + value->start, bytes.len);
            if (!bytes.data) return out_of_memory(unpacker, bytes.len);
        }
        memcpy(address, &bytes, sizeof bytes);
        return AM_OK;
    }
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE: memcpy(address, unpacker->data + value->start, (size_t)length); return AM_OK;
    default: store_number(field->type, address, value->value); return AM_OK;
    }
}

/* Numbers in one packed value; -1 where the last one is cut off. */
static int64_t packed_count(const Unpacker *unpacker, const ProtobufCFieldDescriptor *field,
                            const IrWireField *value) {
    int64_t length = value->end - value->start;
    int32_t wire = wire_of(field->type);
    if (wire != IR_WIRE_VARINT) {
        int64_t size = wire == IR_WIRE_FIXED64 ? 8 : 4;
        return length % size ? -1 : length / size;
    }
    int64_t count = 0;
    for (int64_t at = value->start; at < value->end; at++) count += unpacker->data[at] < 0x80;
    return length == 0 || unpacker->data[value->end - 1] < 0x80 ? count : -1;
}

/* Counts the elements of the field from `value` to the end of its message; stops at an error, after
 * which no element is read. */
static int64_t count_ahead(const Unpacker *unpacker, const ProtobufCFieldDescriptor *field, IrWireField value,
                           int64_t at, int64_t end) {
    int64_t count = 0;
    for (;;) {
        if (value.number == field->id) {
            int64_t more = is_packed(field, value.wire) ? packed_count(unpacker, field, &value) : 1;
            if (more < 0) return count;
            count += more;
        }
        if (at >= end || ir_wire_next(unpacker->data, end, &at, &value)) return count;
    }
}

static AmStatus unpack_packed(Unpacker *unpacker, const ProtobufCFieldDescriptor *field, char *elements,
                              size_t *count, const IrWireField *value) {
    size_t size = field_element_size(field);
    int64_t length = value->end - value->start;
    if (wire_of(field->type) != IR_WIRE_VARINT) {
        memcpy(elements + *count * size, unpacker->data + value->start, (size_t)length);
        *count += (size_t)length / size;
        return AM_OK;
    }
    for (int64_t at = value->start; at < value->end; (*count)++) {
        uint64_t number;
        if (!read_varint(unpacker->data, value->end, &at, &number)) break;
        store_number(field->type, elements + *count * size, number);
    }
    return AM_OK;
}

/* An occurrence of a repeated field. */
typedef struct RepeatedValue {
    const ProtobufCFieldDescriptor *field;
    IrWireField value;
    int64_t at, after, end; /* bytes: of the field, after it, of the end of the message */
    bool is_first;          /* of this message */
} RepeatedValue;

/* Elements of a repeated field go after those that are there. `room` is how many
 * its array holds, 0 before the first value of this message. */
static AmStatus unpack_repeated(Unpacker *unpacker, void *message, const ProtobufCMessageDescriptor *type,
                                const RepeatedValue *self, int32_t depth) {
    const ProtobufCFieldDescriptor *field = self->field;
    const IrWireField *value = &self->value;
    size_t *count = field_count(message, field), size = field_element_size(field);
    bool packed = is_packed(field, value->wire);
    if (packed && packed_count(unpacker, field, value) < 0)
        return refuse_field(unpacker, type, field, self->at, "a cut off number");
    char *elements;
    memcpy(&elements, field_address(message, field), sizeof elements);
    if (self->is_first) {
        size_t more = (size_t)count_ahead(unpacker, field, *value, self->after, self->end);
        if (more == 0) return AM_OK;
        char *grown = arena_alloc(unpacker->arena, (*count + more) * size);
        if (!grown) return out_of_memory(unpacker, (*count + more) * size);
        if (*count) memcpy(grown, elements, *count * size);
        elements = grown;
        memcpy(field_address(message, field), &elements, sizeof elements);
    }
    if (packed) return unpack_packed(unpacker, field, elements, count, value);
    TRY(unpack_value(unpacker, field, elements + *count * size, value, depth));
    (*count)++;
    return AM_OK;
}

/* Keeps a field that the schema does not have, as its bytes after the tag. */
static AmStatus keep_unknown(Unpacker *unpacker, ProtobufCMessage *message, const IrWireField *value,
                             int64_t tag_at, int64_t after) {
    ProtobufCMessageUnknownField *fields = message->unknown_fields;
    unsigned count = message->n_unknown_fields;
    if ((count & (count - 1)) == 0) { /* room doubles at 1, 2, 4, ... */
        size_t room = count ? 2 * (size_t)count : 1;
        fields = arena_alloc(unpacker->arena, room * sizeof *fields);
        if (!fields) return out_of_memory(unpacker, room * sizeof *fields);
        if (count) memcpy(fields, message->unknown_fields, count * sizeof *fields);
        message->unknown_fields = fields;
    }
    uint64_t tag;
    read_varint(unpacker->data, after, &tag_at, &tag);
    ProtobufCMessageUnknownField *field = &fields[count];
    *field = (ProtobufCMessageUnknownField){
        .tag = value->number, .wire_type = (ProtobufCWireType)value->wire, .len = (size_t)(after - tag_at)};
    field->data = (uint8_t *)arena_copy_bytes(unpacker->arena, unpacker->data + tag_at, field->len);
    if (!field->data) return out_of_memory(unpacker, field->len);
    message->n_unknown_fields = count + 1;
    return AM_OK;
}

/* Writers order fields by number, so that the next field is tried first. */
static const ProtobufCFieldDescriptor *find_field(const ProtobufCMessageDescriptor *type, unsigned *next,
                                                  uint32_t number) {
    while (*next < type->n_fields && type->fields[*next].id < number) ++*next;
    if (*next < type->n_fields && type->fields[*next].id == number) return &type->fields[*next];
    return protobuf_c_message_descriptor_get_field(type, number);
}

static AmStatus unpack_message(Unpacker *unpacker, void *message, const ProtobufCMessageDescriptor *type,
                               int64_t at, int64_t end, int32_t depth) {
    if (depth > IR_MAX_MESSAGE_DEPTH) {
        return am_fail(unpacker->error, AM_ERROR_INPUT, unpacker->source,
                       "byte %lld: messages are nested more than %d deep, expected an HLO module",
                       (long long)at, IR_MAX_MESSAGE_DEPTH);
    }
    unsigned next = 0;
    uint64_t begun[MOST_FIELDS / 64] = {0}; /* repeated fields that have their array, by position */
    assert(type->n_fields <= MOST_FIELDS);
    while (at < end) {
        int64_t field_at = at;
        IrWireField value;
        const char *problem = ir_wire_next(unpacker->data, end, &at, &value);
        const ProtobufCFieldDescriptor *field = value.number ? find_field(type, &next, value.number) : NULL;
        if (problem == NULL && field != NULL && value.wire != wire_of(field->type) &&
            !is_packed(field, value.wire)) {
            problem = "a value of another type";
        }
        if (problem != NULL) return refuse_field(unpacker, type, field, field_at, problem);
        if (field == NULL) {
            TRY(keep_unknown(unpacker, message, &value, field_at, at));
        } else if (field_is_repeated(field)) {
            size_t position = (size_t)(field - type->fields);
            bool is_first = !(begun[position / 64] >> position % 64 & 1);
            begun[position / 64] |= UINT64_C(1) << position % 64;
            const RepeatedValue repeated = {field, value, field_at, at, end, is_first};
            TRY(unpack_repeated(unpacker, message, type, &repeated, depth));
        } else {
            if (field_is_oneof(field) && *field_case(message, field) != field->id) {
                *field_case(message, field) = field->id; /* in the place of the member before */
                memset(field_address(message, field), 0, field_element_size(field));
            }
            TRY(unpack_value(unpacker, field, field_address(message, field), &value, depth));
        }
    }
    return AM_OK;
}

AmStatus ir_unpack(void **message, Arena *arena, const ProtobufCMessageDescriptor *type, const char *source,
                   const uint8_t *data, int64_t start, int64_t end, AmError *error) {
    Arena scratch = {0};
    uint64_t entries = FEWEST_ENTRIES;
    while (entries < MOST_ENTRIES && entries < (uint64_t)(end - start) / 64) entries *= 2;
    Unpacker unpacker = {.arena = arena,
                         .source = source,
                         .data = data,
                         .error = error,
                         .seen = ARENA_ARRAY(&scratch, Seen, entries),
                         .seen_mask = entries - 1};
    const IrWireField whole = {.start = start, .end = end};
    void *unpacked = NULL;
    AmStatus status = unpacker.seen ? unpack_nested(&unpacker, &unpacked, type, &whole, -1)
                                    : am_fail_memory(error, (int64_t)(entries * sizeof(Seen)));
    arena_free(&scratch);
    *message = unpacked;
    return status;
}
