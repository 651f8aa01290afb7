/* Constants in HLO text: 1, {1, 2}, { { 1, 2 }, { 3, 4 } }, (1, 2), {...}.
 *
 * Values are written in logical row-major order with one pair of braces per dimension; complex
 * numbers and tuples are in parentheses. "{...}" represents omitted values. In the message, values
 * follow the literal's own layout, which is the instruction's when read; the printer addresses them
 * by the strides of the layout. Memory grows with the number of values in the text, not with the declared
 * shape; but one number for an array, its first value, has zeros after it, up to 64 MiB in a module.
 */
#include <math.h>
#include <string.h>

#include "base/float_format.h"
#include "ir/text/hlo_text.h"

/* The storage of a type's values: offsets of count and array (for `bytes` fields of length and
 * data), numbers per element, bytes per number; `is_bytes` counts bytes. */
typedef struct Storage {
    size_t count, items;
    int32_t numbers, width;
    bool is_bytes;
} Storage;

#define REPEATED(field, numbers, width) \
    { offsetof(Hlo__LiteralProto, n_##field), offsetof(Hlo__LiteralProto, field), numbers, width, false }
#define BYTES(field, width)                                                                          \
    {                                                                                                \
        offsetof(Hlo__LiteralProto, field) + offsetof(ProtobufCBinaryData, len),                     \
            offsetof(Hlo__LiteralProto, field) + offsetof(ProtobufCBinaryData, data), 1, width, true \
    }

static const Storage STORAGE[DTYPE_COUNT] = {
    [DTYPE_PRED] = REPEATED(preds, 1, sizeof(protobuf_c_boolean)),
    [DTYPE_S32] = REPEATED(s32s, 1, 4),
    [DTYPE_S64] = REPEATED(s64s, 1, 8),
    [DTYPE_U32] = REPEATED(u32s, 1, 4),
    [DTYPE_U64] = REPEATED(u64s, 1, 8),
    [DTYPE_F32] = REPEATED(f32s, 1, 4),
    [DTYPE_F64] = REPEATED(f64s, 1, 8),
    [DTYPE_C64] = REPEATED(c64s, 2, 4),
    [DTYPE_C128] = REPEATED(c128s, 2, 8),
    [DTYPE_S1] = BYTES(s1s, 1),
    [DTYPE_U1] = BYTES(u1s, 1),
    [DTYPE_S2] = BYTES(s2s, 1),
    [DTYPE_U2] = BYTES(u2s, 1),
    [DTYPE_S4] = BYTES(s4s, 1),
    [DTYPE_U4] = BYTES(u4s, 1),
    [DTYPE_S8] = BYTES(s8s, 1),
    [DTYPE_U8] = BYTES(u8s, 1),
    [DTYPE_S16] = BYTES(s16s, 2),
    [DTYPE_U16] = BYTES(u16s, 2),
    [DTYPE_F16] = BYTES(f16s, 2),
    [DTYPE_BF16] = BYTES(bf16s, 2),
    [DTYPE_F8E5M2] = BYTES(f8e5m2s, 1),
    [DTYPE_F8E4M3] = BYTES(f8e4m3s, 1),
    [DTYPE_F8E3M4] = BYTES(f8e3m4s, 1),
    [DTYPE_F8E4M3FN] = BYTES(f8e4m3fns, 1),
    [DTYPE_F8E4M3B11FNUZ] = BYTES(f8e4m3b11fnuzs, 1),
    [DTYPE_F8E5M2FNUZ] = BYTES(f8e5m2fnuzs, 1),
    [DTYPE_F8E4M3FNUZ] = BYTES(f8e4m3fnuzs, 1),
    [DTYPE_F4E2M1FN] = BYTES(f4e2m1fns, 1),
    [DTYPE_F8E8M0FNU] = BYTES(f8e8m0fnus, 1),
};

static const Storage *storage_of(const Hlo__ShapeProto *shape) {
    int type = (int)shape->element_type;
    return type >= 0 && type < DTYPE_COUNT && STORAGE[type].width ? &STORAGE[type] : NULL;
}

/* ------------------------------------------------------------------ Reading */

enum { MOST_FILLED = 64 << 20 };

typedef struct Values {
    IrScanner *scanner;
    const Hlo__ShapeProto *shape;
    const Storage *storage;
    Dtype type; /* of one number: f32 for c64 */
    char *data;
    int64_t length, capacity; /* bytes */
} Values;

static AmStatus append_bits(Values *values, uint64_t bits) {
    int32_t width = values->storage->width;
    if (values->length + width > values->capacity) {
        int64_t capacity = values->capacity ? values->capacity * 2 : 64;
        values->data =
            arena_grow(values->scanner->arena, values->data, (size_t)values->length, (size_t)capacity);
        if (!values->data) return ir_scan_memory(values->scanner);
        values->capacity = capacity;
    }
    for (int32_t i = 0; i < width; i++) values->data[values->length++] = (char)(bits >> (8 * i));
    return AM_OK;
}

static AmStatus read_integer(Values *values) {
    IrScanner *scanner = values->scanner;
    int32_t width = dtype_bits(values->type);
    ir_scan_space(scanner);
    int64_t start = scanner->at, value;
    bool is_negative = values->type == DTYPE_U64 && ir_scan_peek(scanner) == '-';
    if (values->type == DTYPE_U64 && !is_negative) { /* XLA wraps a negative one */
        uint64_t sum = 0;
        while (scanner->at < scanner->length) {
            unsigned digit = (unsigned)(scanner->text[scanner->at] - '0');
            if (digit > 9) break;
            if (sum > (UINT64_MAX - digit) / 10)
                return ir_scan_fail(scanner, start, "value out of range of u64");
            sum = sum * 10 + digit;
            scanner->at++;
        }
        if (scanner->at == start) return ir_scan_fail(scanner, start, "expected a value of type u64");
        return append_bits(values, sum);
    }
    TRY(ir_scan_integer(scanner, &value));
    if (is_negative) return append_bits(values, (uint64_t)value);
    bool is_signed = dtype_is_signed(values->type);
    int64_t most = (int64_t)(((uint64_t)1 << (is_signed ? width - 1 : width)) - 1);
    if (value > most || value < (is_signed ? -most - 1 : 0)) {
        return ir_scan_fail(scanner, start, "value out of range of %s", dtype_name(values->type));
    }
    if (width < 8) value &= (1 << width) - 1;
    return append_bits(values, (uint64_t)value);
}

static AmStatus read_number(Values *values) {
    IrScanner *scanner = values->scanner;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    if (values->type == DTYPE_PRED) {
        bool value;
        TRY(ir_scan_boolean(scanner, &value));
        return append_bits(values, value);
    }
    if (!dtype_is_floating(values->type)) return read_integer(values);
    double value;
    uint64_t payload, bits;
    TRY(ir_scan_real(scanner, &value, &payload));
    if (!float_format_encode(values->type, value, payload, &bits)) {
        return ir_scan_fail(scanner, start, "value out of range of %s", dtype_name(values->type));
    }
    return append_bits(values, bits);
}

static AmStatus read_element(Values *values) {
    if (values->storage->numbers == 1) return read_number(values);
    TRY(ir_scan_expect(values->scanner, "("));
    TRY(read_number(values));
    TRY(ir_scan_expect(values->scanner, ","));
    TRY(read_number(values));
    return ir_scan_expect(values->scanner, ")");
}

static AmStatus read_dimension(Values *values, size_t level) {
    IrScanner *scanner = values->scanner;
    if (level == values->shape->n_dimensions) return read_element(values);
    TRY(ir_scan_expect(scanner, "{"));
    for (int64_t i = 0; i < values->shape->dimensions[level]; i++) {
        if ((i && !ir_scan_accept(scanner, ",")) || ir_scan_peek(scanner) == '}') {
            return ir_scan_fail(scanner, scanner->at, "expected %lld values in dimension %zu, found %lld",
                                (long long)values->shape->dimensions[level], level, (long long)i);
        }
        TRY(read_dimension(values, level + 1));
    }
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    return ir_scan_fail(scanner, scanner->at, "expected '}' after %lld values of dimension %zu",
                        (long long)values->shape->dimensions[level], level);
}

/* Reads one number for an array as XLA does: it is the first value, and the others are zero. */
static AmStatus read_first_value(Values *values) {
    const Hlo__ShapeProto *shape = values->shape;
    IrScanner *scanner = values->scanner;
    int64_t start = scanner->at, bytes = values->storage->width;
    for (size_t i = 0; i < shape->n_dimensions; i++) {
        if (shape->dimensions[i] < 1) return ir_scan_fail(scanner, start, "expected '{', found one number");
        if (shape->dimensions[i] > (MOST_FILLED - scanner->filled) / bytes)
            return ir_scan_fail(
                scanner, start,
                "arrays of one number and zeros have more than %d bytes (expected all values)", MOST_FILLED);
        bytes *= shape->dimensions[i];
    }
    scanner->filled += bytes;
    TRY(read_number(values));
    char *all = arena_alloc(scanner->arena, (size_t)bytes);
    if (!all) return ir_scan_memory(scanner);
    memset(all, 0, (size_t)bytes);
    memcpy(all, values->data, (size_t)values->length);
    values->data = all;
    values->length = bytes;
    return AM_OK;
}

/* Takes "{...}", the mark of values left out. */
static bool accept_elided(IrScanner *scanner) {
    IrScanner ahead = *scanner;
    if (!ir_scan_accept(&ahead, "{") || !ir_scan_accept(&ahead, "...") || !ir_scan_accept(&ahead, "}")) {
        return false;
    }
    scanner->at = ahead.at;
    return true;
}

/* Moves elements from logical order into that of the layout. */
static AmStatus put_in_layout(Values *values) {
    const Hlo__ShapeProto *shape = values->shape;
    const Hlo__LayoutProto *layout = shape->layout;
    size_t rank = shape->n_dimensions, element = (size_t)(values->storage->width * values->storage->numbers);
    bool is_row_major = true;
    if (!layout || layout->n_minor_to_major != rank || values->length == 0) return AM_OK;
    for (size_t i = 0; i < rank; i++) is_row_major &= layout->minor_to_major[i] == (int64_t)(rank - 1 - i);
    if (is_row_major) return AM_OK;
    char *placed = arena_alloc(values->scanner->arena, (size_t)values->length);
    if (!placed) return ir_scan_memory(values->scanner);
    int64_t strides[IR_MAX_RANK], index[IR_MAX_RANK] = {0}, to = 0, stride = (int64_t)element;
    for (size_t i = 0; i < rank; i++) {
        strides[layout->minor_to_major[i]] = stride;
        stride *= shape->dimensions[layout->minor_to_major[i]];
    }
    for (int64_t from = 0; from < values->length; from += (int64_t)element) {
        memcpy(placed + to, values->data + from, element);
        for (size_t d = rank; d-- > 0;) {
            to += strides[d];
            if (++index[d] < shape->dimensions[d]) break;
            to -= strides[d] * shape->dimensions[d];
            index[d] = 0;
        }
    }
    values->data = placed;
    return AM_OK;
}

static AmStatus read_array(IrScanner *scanner, Hlo__LiteralProto *literal) {
    const Storage *storage = storage_of(literal->shape);
    Dtype type = (Dtype)literal->shape->element_type;
    if (!storage) return ir_scan_fail(scanner, scanner->at, "a constant cannot have this type");
    Values values = {scanner, literal->shape, storage, type, NULL, 0, 0};
    if (type == DTYPE_C64) values.type = DTYPE_F32;
    if (type == DTYPE_C128) values.type = DTYPE_F64;
    bool is_alone = values.shape->n_dimensions > 0 && storage->numbers == 1 && ir_scan_peek(scanner) != '{';
    TRY(is_alone ? read_first_value(&values) : read_dimension(&values, 0));
    TRY(put_in_layout(&values));
    size_t count = (size_t)(storage->is_bytes ? values.length : values.length / storage->width);
    memcpy((char *)literal + storage->count, &count, sizeof count);
    memcpy((char *)literal + storage->items, &values.data, sizeof values.data);
    return AM_OK;
}

static AmStatus read_tuple(IrScanner *scanner, const Hlo__ShapeProto *shape, Hlo__LiteralProto *literal) {
    TRY(ir_scan_expect(scanner, "("));
    for (size_t i = 0; i < shape->n_tuple_shapes; i++) {
        if (i) TRY(ir_scan_expect(scanner, ","));
        Hlo__ShapeProto *written;
        if (ir_scan_peek(scanner) != '(' && ir_at_shape(scanner)) TRY(ir_read_shape(scanner, &written));
        Hlo__LiteralProto **element =
            ir_push(scanner->arena, &literal->tuple_literals, &literal->n_tuple_literals, sizeof *element);
        if (!element) return ir_scan_memory(scanner);
        TRY(ir_read_literal(scanner, shape->tuple_shapes[i], element));
    }
    return ir_scan_expect(scanner, ")");
}

AmStatus ir_read_literal(IrScanner *scanner, const Hlo__ShapeProto *shape, Hlo__LiteralProto **result) {
    Hlo__LiteralProto *literal = ir_new_message(scanner->arena, &hlo__literal_proto__descriptor);
    if (literal) literal->shape = ir_plain_layout(scanner->arena, shape);
    if (!literal || !literal->shape) return ir_scan_memory(scanner);
    *result = literal;
    if (accept_elided(scanner)) return AM_OK;
    if (shape->element_type == HLO__PRIMITIVE_TYPE__TUPLE) return read_tuple(scanner, shape, literal);
    return read_array(scanner, literal);
}

/* ----------------------------------------------------------------- Printing */

typedef struct Source {
    const Hlo__ShapeProto *shape;
    const Storage *storage;
    Dtype type;
    const char *data;
    int64_t strides[IR_MAX_RANK]; /* in elements of the stored order */
} Source;

static void write_number(Text *out, const Source *source, int64_t number) {
    int32_t width = source->storage->width, bits = dtype_bits(source->type);
    uint64_t raw = 0;
    for (int32_t i = 0; i < width; i++) {
        raw |= (uint64_t)(unsigned char)source->data[number * width + i] << (8 * i);
    }
    if (source->type == DTYPE_PRED) {
        text_append_string(out, raw ? "true" : "false");
    } else if (dtype_is_floating(source->type)) {
        ir_float_write(out, source->type, raw);
    } else if (dtype_is_signed(source->type)) {
        int64_t value = (int64_t)(raw << (64 - bits)) >> (64 - bits);
        text_append(out, "%lld", (long long)value);
    } else {
        text_append(out, "%llu", (unsigned long long)(bits < 8 ? raw & (((uint64_t)1 << bits) - 1) : raw));
    }
}

static void write_element(Text *out, const Source *source, int64_t element) {
    if (source->storage->numbers == 1) {
        write_number(out, source, element);
        return;
    }
    text_append_string(out, "(");
    write_number(out, source, 2 * element);
    text_append_string(out, ", ");
    write_number(out, source, 2 * element + 1);
    text_append_string(out, ")");
}

static void write_dimension(Text *out, const Source *source, size_t level, int64_t element) {
    if (level == source->shape->n_dimensions) {
        write_element(out, source, element);
        return;
    }
    bool is_inner = level + 1 == source->shape->n_dimensions;
    text_append_string(out, is_inner ? "{" : "{ ");
    for (int64_t i = 0; i < source->shape->dimensions[level] && !out->failed; i++) {
        if (i) text_append_string(out, ", ");
        write_dimension(out, source, level + 1, element + i * source->strides[level]);
    }
    text_append_string(out, is_inner ? "}" : " }");
}

/* Computes the strides of the literal's own layout; false if the layout is no permutation. */
static bool find_strides(Source *source, const Hlo__LayoutProto *layout) {
    size_t rank = source->shape->n_dimensions;
    bool has_layout = layout && layout->n_minor_to_major == rank;
    int64_t stride = 1;
    uint32_t seen = 0;
    for (size_t i = 0; i < rank; i++) {
        int64_t dimension = has_layout ? layout->minor_to_major[i] : (int64_t)(rank - 1 - i);
        if (dimension < 0 || dimension >= (int64_t)rank || seen >> dimension & 1) return false;
        seen |= 1u << dimension;
        source->strides[dimension] = stride;
        stride *= source->shape->dimensions[dimension];
    }
    return true;
}

static AmStatus write_array(Text *out, const Hlo__ShapeProto *shape, const Hlo__LiteralProto *literal,
                            AmError *error) {
    Source source = {.shape = shape, .storage = storage_of(shape), .type = (Dtype)shape->element_type};
    int64_t elements = ir_text_elements(shape);
    if (!source.storage || elements < 0 || shape->n_dimensions > IR_MAX_RANK) {
        return am_fail(error, AM_ERROR_INPUT, "", "a constant has a shape that cannot be written");
    }
    size_t count;
    memcpy(&count, (const char *)literal + source.storage->count, sizeof count);
    memcpy(&source.data, (const char *)literal + source.storage->items, sizeof source.data);
    if (source.storage->is_bytes) count /= (size_t)source.storage->width;
    if (count != (size_t)elements * (size_t)source.storage->numbers) {
        if (count == 0) {
            text_append_string(out, "{...}");
            return AM_OK;
        }
        return am_fail(error, AM_ERROR_INPUT, "", "a constant holds %zu numbers, its shape %lld elements",
                       count, (long long)elements);
    }
    if (source.type == DTYPE_C64) source.type = DTYPE_F32;
    if (source.type == DTYPE_C128) source.type = DTYPE_F64;
    if (!find_strides(&source, literal->shape ? literal->shape->layout : NULL)) {
        return am_fail(error, AM_ERROR_INPUT, "", "the layout of a constant is not a permutation");
    }
    write_dimension(out, &source, 0, 0);
    return AM_OK;
}

AmStatus ir_write_literal(Text *out, const Hlo__ShapeProto *shape, const Hlo__LiteralProto *literal,
                          AmError *error) {
    if (!literal || !shape) {
        text_append_string(out, "{...}");
        return AM_OK;
    }
    if (shape->element_type != HLO__PRIMITIVE_TYPE__TUPLE) return write_array(out, shape, literal, error);
    if (literal->n_tuple_literals != shape->n_tuple_shapes) {
        text_append_string(out, "{...}");
        return AM_OK;
    }
    text_append_string(out, "(");
    for (size_t i = 0; i < shape->n_tuple_shapes; i++) {
        if (i) text_append_string(out, ", ");
        TRY(ir_write_literal(out, shape->tuple_shapes[i], literal->tuple_literals[i], error));
    }
    text_append_string(out, ")");
    return AM_OK;
}
