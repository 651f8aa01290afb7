/* The hash of a canonical module: SHA-256 over what it computes.
 *
 * Every value is fed to the digest as a 64-bit little-endian number or as a
 * length and bytes, so that no two modules share an encoding. Instructions are
 * hashed in canonical order and refer to their operands by index; computations
 * are hashed callees first, and an instruction refers to a computation by its
 * digest, so that neither names nor the order of computations matter. Layouts,
 * names, ids, metadata, shardings and front-end attributes are left out, and so
 * is whatever one encoding writes and another leaves to a default.
 */
#include <string.h>

#include "base/hash.h"
#include "ir/canonical.h"
#include "ir/hlo.pb-c.h"

typedef struct Digest {
    bool made;
    char hex[65];
} Digest;

/* Attributes that IrAttributes does not hold but that change what an
 * instruction computes: fields of HloInstructionProto, by name. */
static const char *const MESSAGE_FIELDS[] = {
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
    "replica_groups",
    "collective_device_list",
    "iota_collective_device_list",
    "mesh_axes_replica_group_list",
    "source_target_pairs",
    "use_global_device_ids",
    "is_host_transfer",
    "is_reverse",
    "num_carries",
    "is_associative",
};
#define MESSAGE_FIELD_COUNT (sizeof MESSAGE_FIELDS / sizeof *MESSAGE_FIELDS)

/* The digest fed in larger pieces: most values are eight bytes. */
typedef struct Feed {
    Sha256 sha;
    size_t used;
    unsigned char buffer[4096];
} Feed;

static void feed_begin(Feed *feed) {
    feed->used = 0;
    sha256_begin(&feed->sha);
}

static void feed_add(Feed *feed, const void *bytes, size_t count) {
    if (count > sizeof feed->buffer - feed->used) {
        sha256_add(&feed->sha, feed->buffer, feed->used);
        feed->used = 0;
    }
    if (count > sizeof feed->buffer) {
        sha256_add(&feed->sha, bytes, count);
    } else {
        memcpy(feed->buffer + feed->used, bytes, count);
        feed->used += count;
    }
}

static void feed_end(Feed *feed, char hex[65]) {
    sha256_add(&feed->sha, feed->buffer, feed->used);
    sha256_end(&feed->sha, hex);
}

static void add_integer(Feed *feed, int64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    feed_add(feed, bytes, sizeof bytes);
}

/* NULL counts as no values. */
static void add_integers(Feed *feed, const int64_t *values, int64_t count) {
    if (!values) count = 0;
    add_integer(feed, count);
    for (int64_t i = 0; i < count; i++) add_integer(feed, values[i]);
}

static void add_bytes(Feed *feed, const void *bytes, size_t count) {
    add_integer(feed, (int64_t)count);
    if (count > 0) feed_add(feed, bytes, count);
}

static void add_string(Feed *feed, const char *text) {
    add_bytes(feed, text ? text : "", text ? strlen(text) : 0);
}

static void add_shape(Feed *feed, const IrShape *shape) {
    add_integer(feed, shape->type);
    add_integer(feed, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++) {
        if (shape->type == DTYPE_TUPLE) add_shape(feed, &shape->elements[d]);
        else add_integer(feed, shape->dimensions[d]);
    }
}

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

/* A list of default members alone says as much as no list. */
static bool field_is_default(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
    Members members = field_members(message, field);
    for (size_t i = 0; i < members.count; i++)
        if (!member_is_default(field->type, members.data + i * members.size)) return false;
    return true;
}

static bool message_is_default(const ProtobufCMessage *message) {
    for (unsigned f = 0; f < message->descriptor->n_fields; f++)
        if (!field_is_default(message, &message->descriptor->fields[f])) return false;
    return true;
}

/* Nothing is added for a field that holds its default. */
static void add_field(Feed *feed, const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field) {
    if (field_is_default(message, field)) return;
    Members members = field_members(message, field);
    add_string(feed, field->name);
    add_integer(feed, (int64_t)members.count);
    for (size_t i = 0; i < members.count; i++) {
        const unsigned char *at = members.data + i * members.size;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessage *inner;
            memcpy(&inner, at, sizeof inner);
            for (unsigned f = 0; f < inner->descriptor->n_fields; f++)
                add_field(feed, inner, &inner->descriptor->fields[f]);
            add_integer(feed, -1);
        } else if (field->type == PROTOBUF_C_TYPE_STRING) {
            const char *text;
            memcpy(&text, at, sizeof text);
            add_string(feed, text);
        } else if (field->type == PROTOBUF_C_TYPE_BYTES) {
            const ProtobufCBinaryData *bytes = (const void *)at;
            add_bytes(feed, bytes->data, bytes->len);
        } else {
            add_bytes(feed, at, members.size);
        }
    }
}

/* The type of a comparison that leaves it out follows from its operands. */
static const char *comparison_type(const IrAttributes *attributes, Dtype operand) {
    if (attributes->comparison_type && *attributes->comparison_type) return attributes->comparison_type;
    if (dtype_is_floating(operand) || dtype_is_complex(operand)) return "FLOAT";
    return dtype_is_signed(operand) ? "SIGNED" : "UNSIGNED";
}

/* A large constant is hashed once, however often inlining has copied its instruction. */
#define LARGE_LITERAL 4096

typedef struct LiteralDigest {
    const IrLiteral *literal; /* NULL: free slot */
    char hex[65];
} LiteralDigest;

/* What stays the same for all computations of a module. */
typedef struct Hasher {
    const IrModule *module;
    Digest *digests;         /* per computation */
    LiteralDigest *literals; /* open-addressed by address */
    uint64_t literal_mask;   /* number of slots - 1 */
    Feed feed;               /* of the computation whose callees are done */
    const ProtobufCFieldDescriptor *fields[MESSAGE_FIELD_COUNT];
} Hasher;

static void add_large_literal(Hasher *hasher, const IrLiteral *literal) {
    uint64_t at = hash_combine(0, (uint64_t)(uintptr_t)literal) & hasher->literal_mask;
    while (hasher->literals[at].literal && hasher->literals[at].literal != literal)
        at = (at + 1) & hasher->literal_mask;
    LiteralDigest *slot = &hasher->literals[at];
    if (!slot->literal) {
        Sha256 sha;
        sha256_begin(&sha);
        sha256_add(&sha, literal->data, (size_t)literal->bytes);
        sha256_end(&sha, slot->hex);
        slot->literal = literal;
    }
    add_integer(&hasher->feed, literal->bytes);
    add_string(&hasher->feed, slot->hex);
}

static void add_literal(Hasher *hasher, const IrShape *shape, const IrLiteral *literal) {
    if (shape->type == DTYPE_TUPLE && literal->elements) {
        for (int32_t e = 0; e < shape->rank; e++)
            add_literal(hasher, &shape->elements[e], &literal->elements[e]);
    } else if (!literal->data) {
        add_string(&hasher->feed, "elided");
    } else if (literal->bytes >= LARGE_LITERAL) {
        add_large_literal(hasher, literal);
    } else {
        add_bytes(&hasher->feed, literal->data, (size_t)literal->bytes);
    }
}

static int64_t count_large_literals(const IrShape *shape, const IrLiteral *literal) {
    int64_t count = literal->bytes >= LARGE_LITERAL;
    for (int32_t e = 0; shape->type == DTYPE_TUPLE && literal->elements && e < shape->rank; e++)
        count += count_large_literals(&shape->elements[e], &literal->elements[e]);
    return count;
}

/* A table with room for every large literal of the module. */
static LiteralDigest *make_literal_table(const IrModule *module, Arena *scratch, uint64_t *mask) {
    int64_t count = 0;
    for (int32_t i = 0; i < module->instruction_count; i++)
        if (module->instructions[i].literal)
            count += count_large_literals(&module->instructions[i].shape, module->instructions[i].literal);
    *mask = 1;
    while (*mask < 2 * (uint64_t)count) *mask = *mask * 2 + 1;
    return ARENA_ARRAY(scratch, LiteralDigest, *mask + 1);
}

static void add_attributes(Feed *feed, const Hasher *hasher, const IrInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    const IrShape *shape = &instruction->shape;
    const IrShape *operand =
        instruction->operand_count > 0 ? &hasher->module->instructions[instruction->operands[0]].shape : NULL;
    add_integers(feed, attributes->dimensions, attributes->dimension_count);
    if (attributes->dot) {
        const IrDot *dot = attributes->dot;
        add_integers(feed, dot->lhs_batch, dot->batch_count);
        add_integers(feed, dot->rhs_batch, dot->batch_count);
        add_integers(feed, dot->lhs_contracting, dot->contracting_count);
        add_integers(feed, dot->rhs_contracting, dot->contracting_count);
    }
    if (attributes->convolution) {
        const IrConvolution *convolution = attributes->convolution;
        const int64_t numbers[] = {convolution->input_batch,          convolution->input_feature,
                                   convolution->kernel_input_feature, convolution->kernel_output_feature,
                                   convolution->output_batch,         convolution->output_feature,
                                   convolution->feature_group_count,  convolution->batch_group_count};
        add_integers(feed, numbers, sizeof numbers / sizeof *numbers);
        add_integers(feed, convolution->input_spatial, convolution->spatial_count);
        add_integers(feed, convolution->kernel_spatial, convolution->spatial_count);
        add_integers(feed, convolution->output_spatial, convolution->spatial_count);
    }
    add_integer(feed, attributes->window_count);
    for (int32_t d = 0; d < attributes->window_count; d++) {
        const IrWindowDimension *window = &attributes->window[d];
        const int64_t numbers[] = {window->size,         window->stride,          window->padding_low,
                                   window->padding_high, window->window_dilation, window->base_dilation,
                                   window->reversal};
        add_integers(feed, numbers, sizeof numbers / sizeof *numbers);
    }
    if (attributes->gather) {
        const IrGather *gather = attributes->gather;
        add_integers(feed, gather->offset_dimensions, gather->offset_count);
        add_integers(feed, gather->collapsed_dimensions, gather->collapsed_count);
        add_integers(feed, gather->start_index_map, gather->index_map_count);
        add_integers(feed, gather->operand_batching, gather->batching_count);
        add_integers(feed, gather->indices_batching, gather->batching_count);
        add_integer(feed, gather->index_vector_dimension);
        add_integers(feed, gather->slice_sizes, operand ? operand->rank : 0);
    }
    if (attributes->padding) {
        for (int32_t d = 0; d < shape->rank; d++) {
            const int64_t numbers[] = {attributes->padding[d].low, attributes->padding[d].high,
                                       attributes->padding[d].interior};
            add_integers(feed, numbers, sizeof numbers / sizeof *numbers);
        }
    }
    add_integers(feed, attributes->slice_start, shape->rank);
    add_integers(feed, attributes->slice_limit, shape->rank);
    add_integers(feed, attributes->slice_stride, shape->rank);
    add_integers(feed, attributes->slice_sizes, shape->rank);
    if (instruction->opcode == IR_COMPARE && operand) {
        add_string(feed, attributes->comparison);
        add_string(feed, comparison_type(attributes, operand->type));
    }
    add_integer(feed, attributes->tuple_index);
    add_integer(feed, attributes->parameter_number);
    add_string(feed, attributes->custom_call_target);
    add_integer(feed, attributes->is_stable);
    add_integer(feed, attributes->indices_are_sorted);
    add_integer(feed, attributes->unique_indices);
    add_integer(feed, attributes->exponent_bits);
    add_integer(feed, attributes->mantissa_bits);
    const ProtobufCMessage *message = instruction->message ? &instruction->message->base : NULL;
    for (size_t f = 0; message && f < MESSAGE_FIELD_COUNT; f++)
        if (hasher->fields[f]) add_field(feed, message, hasher->fields[f]);
}

static void add_instruction(Hasher *hasher, const IrInstruction *instruction, int32_t first) {
    Feed *feed = &hasher->feed;
    add_string(feed, instruction->opcode_name);
    add_shape(feed, &instruction->shape);
    add_integer(feed, instruction->operand_count);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        add_integer(feed, instruction->operands[k] - first);
    add_integer(feed, instruction->control_count);
    for (int32_t k = 0; k < instruction->control_count; k++)
        add_integer(feed, instruction->control[k] - first);
    add_integer(feed, instruction->called_count);
    for (int32_t k = 0; k < instruction->called_count; k++)
        add_string(feed, hasher->digests[instruction->called[k]].hex);
    add_attributes(feed, hasher, instruction);
    if (instruction->literal) add_literal(hasher, &instruction->shape, instruction->literal);
}

/* Makes the digest of a computation, callees first. A canonical module has no
 * recursion and bounded nesting. */
static void hash_computation(Hasher *hasher, int32_t computation) {
    const IrModule *module = hasher->module;
    const IrComputation *body = &module->computations[computation];
    Digest *digest = &hasher->digests[computation];
    digest->made = true;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        for (int32_t k = 0; k < instruction->called_count; k++)
            if (!hasher->digests[instruction->called[k]].made)
                hash_computation(hasher, instruction->called[k]);
    }
    feed_begin(&hasher->feed);
    add_integer(&hasher->feed, body->count);
    add_integer(&hasher->feed, body->root - body->first);
    for (int32_t i = body->first; i < body->first + body->count; i++)
        add_instruction(hasher, &module->instructions[i], body->first);
    feed_end(&hasher->feed, digest->hex);
}

/* Donations in order of output and parameter, whatever their order in the file. */
static void add_aliases(Feed *feed, const IrModule *module, Arena *scratch) {
    const IrShape *result = &module->instructions[module->computations[module->entry].root].shape;
    int32_t outputs = result->type == DTYPE_TUPLE ? result->rank : 0;
    int32_t *parameters = ARENA_ARRAY(scratch, int32_t, (int64_t)outputs + 1);
    if (!parameters) return;
    for (int32_t a = 0; a < module->alias_count; a++) {
        int32_t output = module->aliases[a].output;
        if (output >= -1 && output < outputs) parameters[output + 1] = module->aliases[a].parameter + 1;
    }
    for (int32_t o = 0; o <= outputs; o++) {
        if (!parameters[o]) continue;
        add_integer(feed, o - 1);
        add_integer(feed, parameters[o] - 1);
    }
}

void ir_hash(const IrModule *canonical, char hex[65]) {
    Arena scratch = {0};
    Hasher hasher = {.module = canonical,
                     .digests = ARENA_ARRAY(&scratch, Digest, canonical->computation_count)};
    for (size_t f = 0; f < MESSAGE_FIELD_COUNT; f++)
        hasher.fields[f] = protobuf_c_message_descriptor_get_field_by_name(
            &hlo__hlo_instruction_proto__descriptor, MESSAGE_FIELDS[f]);
    hex[0] = '\0';
    hasher.literals = make_literal_table(canonical, &scratch, &hasher.literal_mask);
    if (hasher.digests && hasher.literals) {
        hash_computation(&hasher, canonical->entry);
        feed_begin(&hasher.feed);
        add_string(&hasher.feed, "automap-hlo-1");
        add_string(&hasher.feed, hasher.digests[canonical->entry].hex);
        add_aliases(&hasher.feed, canonical, &scratch);
        feed_end(&hasher.feed, hex);
    }
    arena_free(&scratch);
}
