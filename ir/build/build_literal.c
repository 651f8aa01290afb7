/* Converts the literals of a message to IrLiteral: one row-major array with dtype_bytes() per
 * element.
 *
 * The message keeps wide types in typed arrays and narrow types as little-endian bytes, in the
 * physical order of the literal's layout. Where type and order agree, the literal points into the
 * message. Types smaller than a byte have one byte per element, or are packed (an older form) from
 * the least significant bits; packed elements are widened to one byte with their sign. A literal
 * with a shape but no values is elided.
 */
#include <string.h>

#include "ir/build/build_parts.h"

/* The values of a message for one element type. */
typedef struct Values {
    const void *data;
    int64_t count; /* elements */
    int64_t bytes; /* per element */
} Values;

/* Types kept as raw bytes: where in LiteralProto. */
static const uint16_t bytes_fields[DTYPE_COUNT] = {
#define BYTES_FIELD(type, field) [DTYPE_##type] = offsetof(Hlo__LiteralProto, field)
    BYTES_FIELD(S1, s1s),
    BYTES_FIELD(S2, s2s),
    BYTES_FIELD(S4, s4s),
    BYTES_FIELD(S8, s8s),
    BYTES_FIELD(S16, s16s),
    BYTES_FIELD(U1, u1s),
    BYTES_FIELD(U2, u2s),
    BYTES_FIELD(U4, u4s),
    BYTES_FIELD(U8, u8s),
    BYTES_FIELD(U16, u16s),
    BYTES_FIELD(F16, f16s),
    BYTES_FIELD(BF16, bf16s),
    BYTES_FIELD(F8E5M2, f8e5m2s),
    BYTES_FIELD(F8E4M3FN, f8e4m3fns),
    BYTES_FIELD(F8E4M3B11FNUZ, f8e4m3b11fnuzs),
    BYTES_FIELD(F8E5M2FNUZ, f8e5m2fnuzs),
    BYTES_FIELD(F8E4M3FNUZ, f8e4m3fnuzs),
    BYTES_FIELD(F8E4M3, f8e4m3s),
    BYTES_FIELD(F8E3M4, f8e3m4s),
    BYTES_FIELD(F4E2M1FN, f4e2m1fns),
    BYTES_FIELD(F8E8M0FNU, f8e8m0fnus),
#undef BYTES_FIELD
};

/* Types kept in typed arrays: where in LiteralProto, numbers per element. */
typedef struct ArrayField {
    uint16_t array, count;
    uint8_t per_element;
} ArrayField;

static const ArrayField array_fields[DTYPE_COUNT] = {
#define ARRAY_FIELD(type, field, each) \
    [DTYPE_##type] = {offsetof(Hlo__LiteralProto, field), offsetof(Hlo__LiteralProto, n_##field), each}
    ARRAY_FIELD(PRED, preds, 1), ARRAY_FIELD(S32, s32s, 1), ARRAY_FIELD(S64, s64s, 1),
    ARRAY_FIELD(U32, u32s, 1),   ARRAY_FIELD(U64, u64s, 1), ARRAY_FIELD(F32, f32s, 1),
    ARRAY_FIELD(F64, f64s, 1),   ARRAY_FIELD(C64, c64s, 2), ARRAY_FIELD(C128, c128s, 2),
#undef ARRAY_FIELD
};

/* Unpacks `count` elements of `bits` bits into one byte per element. */
static uint8_t *unpack(Arena *arena, const uint8_t *packed, int64_t count, int32_t bits) {
    uint8_t *values = ARENA_ARRAY(arena, uint8_t, count);
    if (values == NULL) return NULL;
    int32_t per_byte = 8 / bits;
    for (int64_t i = 0; i < count; i++) {
        values[i] = (uint8_t)(packed[i / per_byte] >> (i % per_byte * bits));
    }
    return values;
}

/* Masks elements below a byte to their bits, and extends the sign. */
static uint8_t *widen(Arena *arena, const uint8_t *narrow, int64_t count, Dtype type) {
    uint8_t *values = ARENA_ARRAY(arena, uint8_t, count);
    if (values == NULL) return NULL;
    uint8_t mask = (uint8_t)((1 << dtype_bits(type)) - 1);
    uint8_t sign = dtype_is_integer(type) && dtype_is_signed(type) ? (uint8_t)((mask >> 1) + 1) : 0;
    for (int64_t i = 0; i < count; i++) {
        uint8_t bits = narrow[i] & mask;
        values[i] = (bits & sign) ? (uint8_t)(bits | ~mask) : bits;
    }
    return values;
}

static AmStatus raw_bytes(const Builder *builder, Values *values, Dtype type,
                          const Hlo__LiteralProto *message, int64_t expected) {
    const ProtobufCBinaryData *bytes =
        (const ProtobufCBinaryData *)(const void *)((const char *)message + bytes_fields[type]);
    values->bytes = dtype_bytes(type);
    values->data = bytes->data;
    values->count = (int64_t)bytes->len % values->bytes ? -1 : (int64_t)bytes->len / values->bytes;
    int32_t bits = dtype_bits(type);
    if (bits >= 8 || bytes->len == 0) return AM_OK;
    int64_t packed_length = expected / (8 / bits) + (expected % (8 / bits) != 0);
    const uint8_t *narrow = bytes->data;
    if (values->count != expected && values->count == packed_length) {
        narrow = unpack(builder->arena, narrow, expected, bits);
        values->count = expected;
    }
    values->data = narrow ? widen(builder->arena, narrow, values->count, type) : NULL;
    return values->data ? AM_OK : am_fail_memory(builder->error, expected);
}

static AmStatus typed_array(const Builder *builder, Values *values, Dtype type,
                            const Hlo__LiteralProto *message) {
    const ArrayField *field = &array_fields[type];
    size_t count;
    const void *array;
    memcpy(&count, (const char *)message + field->count, sizeof count);
    memcpy(&array, (const char *)message + field->array, sizeof array);
    values->bytes = dtype_bytes(type);
    values->count = count % field->per_element ? -1 : (int64_t)(count / field->per_element);
    values->data = array;
    if (type != DTYPE_PRED || count == 0) return AM_OK;
    const protobuf_c_boolean *flags = array;
    uint8_t *bytes = ARENA_ARRAY(builder->arena, uint8_t, count);
    if (bytes == NULL) return am_fail_memory(builder->error, (int64_t)count);
    for (size_t i = 0; i < count; i++) bytes[i] = flags[i] != 0;
    values->data = bytes;
    return AM_OK;
}

/* Copies values from physical to row-major order: walks the logical index in row-major order and keeps the
 * physical offset of it, strides from `minor_to_major`. */
static void *reorder(Arena *arena, const Values *values, const IrShape *shape,
                     const int64_t *minor_to_major) {
    char *ordered = arena_alloc(arena, (size_t)(values->count * values->bytes));
    if (ordered == NULL) return NULL;
    int64_t stride[IR_MAX_RANK], index[IR_MAX_RANK] = {0}, step = values->bytes;
    for (int32_t i = 0; i < shape->rank; i++) {
        stride[minor_to_major[i]] = step;
        step *= shape->dimensions[minor_to_major[i]];
    }
    const char *from = values->data;
    for (int64_t i = 0; i < values->count; i++) {
        memcpy(ordered + i * values->bytes, from, (size_t)values->bytes);
        for (int32_t d = shape->rank - 1; d >= 0; d--) {
            from += stride[d];
            if (++index[d] < shape->dimensions[d]) break;
            from -= stride[d] * shape->dimensions[d];
            index[d] = 0;
        }
    }
    return ordered;
}

static AmStatus build_array(const Builder *builder, IrLiteral *literal, const IrShape *shape,
                            const Hlo__LiteralProto *message, const Hlo__HloInstructionProto *owner) {
    const int64_t *order = shape->minor_to_major;
    if (message->shape != NULL) {
        IrShape own = {0};
        TRY(build_shape(builder, &own, message->shape, owner));
        if (!ir_shape_equal(&own, shape)) {
            return build_refuse(builder, owner, "its literal has another shape than the instruction");
        }
        order = own.minor_to_major;
    }
    if (ir_shape_is_unbounded(shape))
        return build_refuse(builder, owner, "its literal has a dimension of no size");
    int64_t expected = ir_shape_elements(shape);
    Values values;
    if (array_fields[shape->type].per_element > 0) {
        TRY(typed_array(builder, &values, shape->type, message));
    } else {
        TRY(raw_bytes(builder, &values, shape->type, message, expected));
    }
    if (values.count == 0 && expected > 0) return AM_OK; /* elided */
    if (values.count != expected) {
        return build_refuse(builder, owner, "its literal has %lld values of type %s, expected %lld",
                            (long long)values.count, dtype_name(shape->type), (long long)expected);
    }
    if (values.data == NULL && expected > 0) return build_refuse(builder, owner, "its literal has no values");
    if (order != NULL && expected > 1) {
        values.data = reorder(builder->arena, &values, shape, order);
        if (values.data == NULL) return am_fail_memory(builder->error, expected * values.bytes);
    }
    literal->data = expected > 0 ? values.data : "";
    literal->bytes = expected * values.bytes;
    return AM_OK;
}

static AmStatus build_nested(const Builder *builder, IrLiteral *literal, const IrShape *shape,
                             const Hlo__LiteralProto *message, const Hlo__HloInstructionProto *owner) {
    if (message == NULL) return AM_OK;
    if (dtype_bits(shape->type) > 0) return build_array(builder, literal, shape, message, owner);
    if (shape->type != DTYPE_TUPLE) return AM_OK;
    if (message->n_tuple_literals != (size_t)shape->rank) {
        return build_refuse(builder, owner, "its literal has %zu elements, expected a tuple of %d",
                            message->n_tuple_literals, shape->rank);
    }
    IrLiteral *elements = ARENA_ARRAY(builder->arena, IrLiteral, shape->rank);
    if (elements == NULL) return am_fail_memory(builder->error, shape->rank * (int64_t)sizeof *elements);
    literal->elements = elements;
    for (int32_t i = 0; i < shape->rank; i++) {
        TRY(build_nested(builder, &elements[i], &shape->elements[i], message->tuple_literals[i], owner));
    }
    return AM_OK;
}

AmStatus build_literal(const Builder *builder, const IrLiteral **literal, const IrShape *shape,
                       const Hlo__HloInstructionProto *owner) {
    IrLiteral *built = ARENA_ARRAY(builder->arena, IrLiteral, 1);
    if (built == NULL) return am_fail_memory(builder->error, sizeof *built);
    *literal = built;
    return build_nested(builder, built, shape, owner->literal, owner);
}
