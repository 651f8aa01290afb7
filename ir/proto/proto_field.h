/* Fields of protobuf-c messages by descriptor, shared by the JSON reader and
 * writer: where a value lies, how large it is, which fields are maps. */
#ifndef IR_PROTO_PROTO_FIELD_H
#define IR_PROTO_PROTO_FIELD_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline void *field_address(const void *message, const ProtobufCFieldDescriptor *field) {
    return (char *)(uintptr_t)message + field->offset;
}

/* Returns the number of elements of a repeated field, or the case of a oneof. */
static inline size_t *field_count(const void *message, const ProtobufCFieldDescriptor *field) {
    return (size_t *)(void *)((char *)(uintptr_t)message + field->quantifier_offset);
}

static inline uint32_t *field_case(const void *message, const ProtobufCFieldDescriptor *field) {
    return (uint32_t *)(void *)((char *)(uintptr_t)message + field->quantifier_offset);
}

static inline bool field_is_repeated(const ProtobufCFieldDescriptor *field) {
    return field->label == PROTOBUF_C_LABEL_REPEATED;
}

static inline bool field_is_oneof(const ProtobufCFieldDescriptor *field) {
    return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

/* Returns whether a field is a map: a repeated message NAMEEntry of a key and a value. */
static inline bool field_is_map(const ProtobufCFieldDescriptor *field) {
    if (!field_is_repeated(field) || field->type != PROTOBUF_C_TYPE_MESSAGE) return false;
    const ProtobufCMessageDescriptor *entry = field->descriptor;
    size_t length = strlen(entry->short_name);
    return entry->n_fields == 2 && length > 5 && strcmp(entry->short_name + length - 5, "Entry") == 0 &&
           strcmp(entry->fields[0].name, "key") == 0 && strcmp(entry->fields[1].name, "value") == 0;
}

static inline size_t field_element_size(const ProtobufCFieldDescriptor *field) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    default: return 4;
    }
}

#endif
