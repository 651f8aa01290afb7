/* Fields of a protobuf message as part of the hash, by protobuf-c's descriptors.
 *
 * One encoding writes a default that another leaves out, so a field whose
 * members all hold their defaults adds nothing. Other fields add their name,
 * the number of members and each member; nested messages the same way.
 */
#include <stdbool.h>
#include <string.h>

#include "ir/canonical/hash_encoder.h"

/* Attributes that affect the result of an instruction and that IrAttributes does not contain:
 * fields of HloInstructionProto, by name. */
static const char *const MESSAGE_FIELDS[IR_ENCODED_FIELDS] = {
    "fusion_kind",
    "distribution",
    "epsilon",
    "feature_index",
    "fft_type",
    "fft_length",
    "rng_algorithm",
    "delta",
    "padding_type",
    "precision_config",
    "triangular_solve_options",
    "cholesky_options",
    "ragged_dot_dimension_numbers",
    "k",
    "largest",
    "backend_config",
    "infeed_config",
    "outfeed_config",
    "mesh_axes_replica_group_list",
    "result_accuracy",
    "sparsity_config",
    "source_target_pairs",
    "use_global_device_ids",
    "is_host_transfer",
    "is_reverse",
    "num_carries",
    "is_associative",
};

static bool message_is_default(const ProtobufCMessage *message);

/* The members of a field: how many, where the first is and how far apart they
 * are. A scalar or an absent message counts as one or no member. */
typedef struct Members {
    const unsigned char *data;
    size_t count, size;
} Members;

static size_t member_size(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_ENUM: return 4;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    }
    return 0;
}

static Members field_members(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
    const unsigned char *at = (const unsigned char *)message + field->offset;
    Members members = {at, 1, member_size(field->type)};
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        memcpy(&members.count, (const unsigned char *)message + field->quantifier_offset,
               sizeof members.count);
        memcpy(&members.data, at, sizeof members.data);
    } else if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        uint32_t chosen;
        memcpy(&chosen, (const unsigned char *)message + field->quantifier_offset, sizeof chosen);
        if (chosen != field->id) members.count = 0;
    }
    return members;
}

static bool member_is_default(ProtobufCType type, const unsigned char *at) {
    static const unsigned char zeros[8];
    if (type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessage *inner;
        memcpy(&inner, at, sizeof inner);
        return !inner || message_is_default(inner);
    }
    if (type == PROTOBUF_C_TYPE_STRING) {
        const char *text;
        memcpy(&text, at, sizeof text);
        return !text || !*text;
    }
    if (type == PROTOBUF_C_TYPE_BYTES) return ((const ProtobufCBinaryData *)(const void *)at)->len == 0;
    return memcmp(at, zeros, member_size(type)) == 0;
}

/* Returns whether the field has its default. A list of default scalars alone is equal to an empty list. */
static bool field_is_default(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
    Members members = field_members(message, field);
    bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
    if (is_list && field->type == PROTOBUF_C_TYPE_MESSAGE) return members.count == 0;
    for (size_t i = 0; i < members.count; i++)
        if (!member_is_default(field->type, members.data + i * members.size)) return false;
    return true;
}

static bool message_is_default(const ProtobufCMessage *message) {
    for (unsigned f = 0; f < message->descriptor->n_fields; f++)
        if (!field_is_default(message, &message->descriptor->fields[f])) return false;
    return true;
}

/* Adds a field; a field with its default adds no bytes. */
static void add_field(IrHashEncoder *encoder, const ProtobufCMessage *message,
                      const ProtobufCFieldDescriptor *field) {
    if (field_is_default(message, field)) return;
    Members members = field_members(message, field);
    ir_encode_string(encoder, field->name);
    ir_encode_integer(encoder, (int64_t)members.count);
    for (size_t i = 0; i < members.count; i++) {
        const unsigned char *at = members.data + i * members.size;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessage *inner;
            memcpy(&inner, at, sizeof inner);
            for (unsigned f = 0; f < inner->descriptor->n_fields; f++)
                add_field(encoder, inner, &inner->descriptor->fields[f]);
            ir_encode_integer(encoder, -1);
        } else if (field->type == PROTOBUF_C_TYPE_STRING) {
            const char *text;
            memcpy(&text, at, sizeof text);
            ir_encode_string(encoder, text);
        } else if (field->type == PROTOBUF_C_TYPE_BYTES) {
            const ProtobufCBinaryData *bytes = (const void *)at;
            ir_encode_bytes(encoder, bytes->data, bytes->len);
        } else {
            ir_encode_bytes(encoder, at, members.size);
        }
    }
}

/* Groups of devices: older and newer writers have different fields for the same. */
static void add_groups(IrHashEncoder *encoder, const Hlo__HloInstructionProto *message) {
    size_t count = message->n_replica_groups;
    Hlo__ReplicaGroup *const *groups = message->replica_groups;
    const Hlo__IotaReplicaGroupListProto *iota = NULL;
    if (message->replica_group_list_case ==
        HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_COLLECTIVE_DEVICE_LIST) {
        const Hlo__CollectiveDeviceListProto *list = message->collective_device_list;
        iota = list->iota_replica_group_list;
        if (count == 0) {
            count = list->n_replica_groups;
            groups = list->replica_groups;
        }
    } else if (message->replica_group_list_case ==
               HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_IOTA_COLLECTIVE_DEVICE_LIST) {
        iota = message->iota_collective_device_list;
    }
    if (iota) {
        ir_encode_string(encoder, "iota_groups");
        ir_encode_integer(encoder, iota->num_replica_groups);
        ir_encode_integer(encoder, iota->num_devices_per_group);
        ir_encode_integers(encoder, iota->iota_reshape_dims, (int64_t)iota->n_iota_reshape_dims);
        for (size_t i = 0; i < iota->n_iota_transpose_perm; i++)
            ir_encode_integer(encoder, iota->iota_transpose_perm[i]);
    } else if (count > 0) {
        ir_encode_string(encoder, "groups");
        ir_encode_integer(encoder, (int64_t)count);
        for (size_t i = 0; i < count; i++)
            ir_encode_integers(encoder, groups[i]->replica_ids, (int64_t)groups[i]->n_replica_ids);
    }
}

void ir_encode_message(IrHashEncoder *encoder, const Hlo__HloInstructionProto *message) {
    add_groups(encoder, message);
    bool looked_up = encoder->fields[0] != NULL;
    for (size_t f = 0; f < IR_ENCODED_FIELDS; f++) {
        if (!looked_up)
            encoder->fields[f] =
                protobuf_c_message_descriptor_get_field_by_name(message->base.descriptor, MESSAGE_FIELDS[f]);
        add_field(encoder, &message->base, encoder->fields[f]);
    }
}
