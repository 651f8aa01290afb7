/* Shapes in HLO text: f32[8,<=16]{1,0:T(8,128)S(1)}, (f32[2]{0}, s32[]), b(f32[4]).
 *
 * A layout lists the dimensions from minor to major, then properties of the form letter(values): T
 * tiles, L alignment of the tail, # and * types of indices and pointers, E bits of an element, S
 * memory space, SC split dimensions, M bytes before a dynamic array. Other properties are skipped.
 * An omitted layout is the default, as in XLA: the last dimension is the minor one.
 */
#include <ctype.h>
#include <string.h>

#include "base/hash.h"
#include "ir/text/hlo_text.h"

/* '*' in a tile: the dimension is combined with the next. */
#define COMBINED INT64_MIN

static AmStatus read_shape(IrScanner *scanner, Hlo__ShapeProto **shape, int depth);

static AmStatus set_default_layout(IrScanner *scanner, Hlo__ShapeProto *shape) {
    Hlo__LayoutProto *layout = ir_new_message(scanner->arena, &hlo__layout_proto__descriptor);
    size_t rank = shape->n_dimensions;
    if (layout && rank) layout->minor_to_major = ARENA_ARRAY(scanner->arena, int64_t, rank);
    if (!layout || (rank && !layout->minor_to_major)) return ir_scan_memory(scanner);
    layout->n_minor_to_major = rank;
    for (size_t i = 0; i < rank; i++) layout->minor_to_major[i] = (int64_t)(rank - 1 - i);
    layout->tail_padding_alignment_in_elements = 1;
    shape->layout = layout;
    return AM_OK;
}

static AmStatus read_dimensions(IrScanner *scanner, Hlo__ShapeProto *shape) {
    size_t flags = 0;
    TRY(ir_scan_expect(scanner, "["));
    if (ir_scan_accept(scanner, "]")) return AM_OK;
    do {
        int64_t start = scanner->at;
        if (shape->n_dimensions == IR_MAX_RANK) {
            return ir_scan_fail(scanner, start, "more than %d dimensions", IR_MAX_RANK);
        }
        int64_t *size = ir_push(scanner->arena, &shape->dimensions, &shape->n_dimensions, sizeof *size);
        protobuf_c_boolean *is_dynamic =
            ir_push(scanner->arena, &shape->is_dynamic_dimension, &flags, sizeof *is_dynamic);
        if (!size || !is_dynamic) return ir_scan_memory(scanner);
        if (ir_scan_accept(scanner, "?")) {
            *is_dynamic = true;
            *size = IR_UNBOUNDED;
            continue;
        }
        *is_dynamic = ir_scan_accept(scanner, "<=");
        TRY(ir_scan_integer(scanner, size));
        if (*size < 0) return ir_scan_fail(scanner, start, "a dimension cannot be negative");
    } while (ir_scan_accept(scanner, ","));
    shape->n_is_dynamic_dimension = flags;
    return ir_scan_expect(scanner, "]");
}

static AmStatus read_tile(IrScanner *scanner, Hlo__LayoutProto *layout) {
    Hlo__TileProto **tile = ir_push(scanner->arena, &layout->tiles, &layout->n_tiles, sizeof *tile);
    if (!tile || !(*tile = ir_new_message(scanner->arena, &hlo__tile_proto__descriptor))) {
        return ir_scan_memory(scanner);
    }
    TRY(ir_scan_expect(scanner, "("));
    do {
        int64_t *size = ir_push(scanner->arena, &(*tile)->dimensions, &(*tile)->n_dimensions, sizeof *size);
        if (!size) return ir_scan_memory(scanner);
        if (ir_scan_accept(scanner, "*")) {
            *size = COMBINED;
        } else {
            TRY(ir_scan_integer(scanner, size));
        }
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, ")");
}

/* Reads (D,C,S): dense, compressed or single, one for each dimension; with '+' not unique, with '~' not
 * ordered. */
static AmStatus read_level_types(IrScanner *scanner, const Hlo__ShapeProto *shape) {
    int64_t start = scanner->at;
    size_t count = 0;
    TRY(ir_scan_expect(scanner, "("));
    do {
        IrWord word;
        TRY(ir_scan_word(scanner, "a level type (D, C or S)", &word));
        if (!ir_word_is(word, "D") && !ir_word_is(word, "C") && !ir_word_is(word, "S"))
            return ir_scan_fail(scanner, start, "unknown level type of a dimension (expected D, C or S)");
        ir_scan_accept(scanner, "+");
        ir_scan_accept(scanner, "~");
        count++;
    } while (ir_scan_accept(scanner, ","));
    if (count != shape->n_dimensions)
        return ir_scan_fail(scanner, start, "%zu level types for %zu dimensions", count, shape->n_dimensions);
    return ir_scan_expect(scanner, ")");
}

static AmStatus read_element_type(IrScanner *scanner, Hlo__PrimitiveType *result) {
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    IrWord word;
    TRY(ir_scan_word(scanner, "an element type", &word));
    char name[24] = "";
    if (word.length < (int64_t)sizeof name) memcpy(name, word.text, (size_t)word.length);
    Dtype type = dtype_from_name(name);
    if (type == DTYPE_INVALID) {
        return ir_scan_fail(scanner, start, "unknown element type '%.*s'",
                            (int)(word.length < 64 ? word.length : 64), word.text);
    }
    *result = (Hlo__PrimitiveType)type;
    return AM_OK;
}

/* Reads #(u32) and *(u64): the types of the indices and pointers of a sparse array. */
static AmStatus read_index_type(IrScanner *scanner, Hlo__PrimitiveType *type) {
    TRY(ir_scan_expect(scanner, "("));
    TRY(read_element_type(scanner, type));
    return ir_scan_expect(scanner, ")");
}

/* Reads one property of a layout; the scanner is after its letters. */
static AmStatus read_property(IrScanner *scanner, const Hlo__ShapeProto *shape, IrWord letters) {
    Hlo__LayoutProto *layout = shape->layout;
    int64_t *number = ir_word_is(letters, "E")   ? &layout->element_size_in_bits
                      : ir_word_is(letters, "S") ? &layout->memory_space
                      : ir_word_is(letters, "M") ? &layout->dynamic_shape_metadata_prefix_bytes
                      : ir_word_is(letters, "L") ? &layout->tail_padding_alignment_in_elements
                                                 : NULL;
    if (number) {
        TRY(ir_scan_expect(scanner, "("));
        TRY(ir_scan_integer(scanner, number));
        return ir_scan_expect(scanner, ")");
    }
    if (ir_scan_peek(scanner) != '(') return ir_scan_fail(scanner, scanner->at, "expected '('");
    while (ir_scan_peek(scanner) == '(') {
        if (ir_word_is(letters, "T")) {
            TRY(read_tile(scanner, layout));
        } else if (ir_word_is(letters, "SC")) {
            Hlo__SplitConfigProto **split =
                ir_push(scanner->arena, &layout->split_configs, &layout->n_split_configs, sizeof *split);
            if (!split || !(*split = ir_new_message(scanner->arena, &hlo__split_config_proto__descriptor)))
                return ir_scan_memory(scanner);
            TRY(ir_scan_expect(scanner, "("));
            TRY(ir_scan_integer(scanner, &(*split)->dimension));
            TRY(ir_scan_integers(scanner, ":", ")", &(*split)->n_split_indices, &(*split)->split_indices));
        } else if (ir_word_is(letters, "D")) {
            TRY(read_level_types(scanner, shape));
        } else if (ir_word_is(letters, "P")) {
            return ir_scan_fail(scanner, scanner->at,
                                "physical shapes are those of sparse arrays, which "
                                "are not supported");
        } else {
            scanner->at++;
            while (ir_scan_peek(scanner) && ir_scan_peek(scanner) != ')') {
                TRY(ir_scan_skip_value(scanner));
                ir_scan_accept(scanner, ",");
                if (ir_scan_peek(scanner) == '}' || ir_scan_peek(scanner) == ']') break;
            }
            TRY(ir_scan_expect(scanner, ")"));
        }
    }
    return AM_OK;
}

static AmStatus read_layout(IrScanner *scanner, Hlo__ShapeProto *shape) {
    int64_t start = scanner->at;
    Hlo__LayoutProto *layout = shape->layout;
    TRY(ir_scan_expect(scanner, "{"));
    uint32_t seen = 0;
    size_t count = 0;
    while (ir_scan_peek(scanner) != ':' && ir_scan_peek(scanner) != '}') {
        int64_t dimension;
        TRY(ir_scan_integer(scanner, &dimension));
        bool is_new = dimension >= 0 && dimension < (int64_t)shape->n_dimensions && !(seen >> dimension & 1);
        if (!is_new)
            return ir_scan_fail(scanner, start, "this layout is not a permutation of the dimensions");
        seen |= 1u << dimension;
        layout->minor_to_major[count++] = dimension;
        if (!ir_scan_accept(scanner, ",")) break;
    }
    if (count != 0 && count != shape->n_dimensions) {
        return ir_scan_fail(scanner, start, "this layout has %zu dimensions, the shape has %zu", count,
                            shape->n_dimensions);
    }
    if (ir_scan_accept(scanner, ":")) {
        while (ir_scan_peek(scanner) != '}') {
            IrWord letters;
            if (ir_scan_accept(scanner, "#")) {
                TRY(read_index_type(scanner, &layout->index_primitive_type));
            } else if (ir_scan_accept(scanner, "*")) {
                TRY(read_index_type(scanner, &layout->pointer_primitive_type));
            } else {
                TRY(ir_scan_word(scanner, "a property of the layout", &letters));
                TRY(read_property(scanner, shape, letters));
            }
        }
    }
    return ir_scan_expect(scanner, "}");
}

static AmStatus read_elements(IrScanner *scanner, Hlo__ShapeProto *shape, int depth) {
    if (depth >= IR_MAX_TUPLE_DEPTH) {
        return ir_scan_fail(scanner, scanner->at, "tuples nested deeper than %d", IR_MAX_TUPLE_DEPTH);
    }
    TRY(ir_scan_expect(scanner, "("));
    if (ir_scan_accept(scanner, ")")) return AM_OK;
    do {
        Hlo__ShapeProto **element =
            ir_push(scanner->arena, &shape->tuple_shapes, &shape->n_tuple_shapes, sizeof *element);
        if (!element) return ir_scan_memory(scanner);
        TRY(read_shape(scanner, element, depth + 1));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, ")");
}

static AmStatus read_shape(IrScanner *scanner, Hlo__ShapeProto **result, int depth) {
    Hlo__ShapeProto *shape = ir_new_message(scanner->arena, &hlo__shape_proto__descriptor);
    if (!shape) return ir_scan_memory(scanner);
    *result = shape;
    if (ir_scan_peek(scanner) == '(') {
        shape->element_type = HLO__PRIMITIVE_TYPE__TUPLE;
        return read_elements(scanner, shape, depth);
    }
    int64_t start = scanner->at;
    IrWord word;
    TRY(ir_scan_word(scanner, "a shape", &word));
    if (ir_word_is(word, "b") && ir_scan_peek(scanner) == '(') {
        shape->element_type = HLO__PRIMITIVE_TYPE__BUFFER;
        return read_elements(scanner, shape, depth);
    }
    scanner->at = start;
    TRY(read_element_type(scanner, &shape->element_type));
    TRY(read_dimensions(scanner, shape));
    bool is_array = dtype_bits((Dtype)shape->element_type) > 0;
    if (!is_array) return AM_OK;
    TRY(set_default_layout(scanner, shape));
    /* A number, ':' or '}' follows the '{' of a layout, and not that of the body of a computation. */
    IrScanner ahead = *scanner;
    char next = ir_scan_accept(&ahead, "{") ? ir_scan_peek(&ahead) : '\0';
    bool is_layout = (next >= '0' && next <= '9') || next == ':' || next == '}';
    return is_layout ? read_layout(scanner, shape) : AM_OK;
}

/* Returns the bytes of the array shape that begins here, where nothing but a shape can follow from them:
 * "f32[8,4]{1,0}". 0: not seen at a glance. */
static int64_t plain_length(const IrScanner *scanner) {
    enum { LONGEST_PLAIN = 64 };
    const char *text = scanner->text + scanner->at;
    int64_t most = scanner->length - scanner->at, at = 0;
    if (most > LONGEST_PLAIN) most = LONGEST_PLAIN;
    while (at < most && (isalnum((unsigned char)text[at]) || text[at] == '_')) at++;
    if (at >= most || text[at] != '[') return 0;
    while (at < most && (isdigit((unsigned char)text[at]) || text[at] == ',' || text[at] == '[')) at++;
    if (at + 1 >= most || text[at++] != ']') return 0;
    if (text[at] == '{') {
        for (at++; at < most && (isdigit((unsigned char)text[at]) || text[at] == ',');) at++;
        return at < most && text[at] == '}' ? at + 1 : 0;
    }
    /* A possible layout further on is left to the reader. */
    if (text[at] == ' ')
        return at + 1 < most && text[at + 1] != '{' && text[at + 1] != '/' &&
                       !isspace((unsigned char)text[at + 1])
                   ? at
                   : 0;
    return text[at] == ',' || text[at] == ')' ? at : 0;
}

AmStatus ir_read_shape(IrScanner *scanner, Hlo__ShapeProto **shape) {
    ir_scan_space(scanner);
    int64_t length = scanner->seen ? plain_length(scanner) : 0, start = scanner->at;
    if (length == 0) return read_shape(scanner, shape, 0);
    const char *text = scanner->text + start;
    IrSeenShape *seen = &scanner->seen[hash_bytes(text, (size_t)length, 0) % IR_SEEN_SHAPES];
    if (seen->shape && seen->length == length && memcmp(seen->text, text, (size_t)length) == 0) {
        *shape = seen->shape;
        scanner->at += length;
        return AM_OK;
    }
    TRY(read_shape(scanner, shape, 0));
    if (scanner->at == start + length) *seen = (IrSeenShape){text, length, *shape};
    return AM_OK;
}

bool ir_at_shape(IrScanner *scanner) {
    ir_scan_space(scanner);
    IrScanner ahead = *scanner;
    if (ir_scan_peek(&ahead) == '(') return true;
    IrWord word;
    if (!ir_scan_take_word(&ahead, &word) || ahead.at >= ahead.length) return false;
    char next = ahead.text[ahead.at];
    if (next == ' ' && ir_scan_peek(&ahead) == '[') return true; /* f32 [2] */
    return next == '[' || (next == '(' && ir_word_is(word, "b"));
}

Hlo__ShapeProto *ir_new_array_shape(Arena *arena, Dtype type, size_t rank, const int64_t *dimensions,
                                    const bool *is_dynamic) {
    IrScanner scanner = {.arena = arena};
    Hlo__ShapeProto *shape = ir_new_message(arena, &hlo__shape_proto__descriptor);
    if (!shape) return NULL;
    shape->element_type = (Hlo__PrimitiveType)type;
    shape->dimensions = ARENA_ARRAY(arena, int64_t, rank + 1);
    shape->is_dynamic_dimension = ARENA_ARRAY(arena, protobuf_c_boolean, rank + 1);
    if (!shape->dimensions || !shape->is_dynamic_dimension) return NULL;
    shape->n_dimensions = shape->n_is_dynamic_dimension = rank;
    for (size_t i = 0; i < rank; i++) {
        shape->dimensions[i] = dimensions[i];
        shape->is_dynamic_dimension[i] = is_dynamic && is_dynamic[i];
    }
    return set_default_layout(&scanner, shape) == AM_OK ? shape : NULL;
}

bool ir_shapes_match(const Hlo__ShapeProto *a, const Hlo__ShapeProto *b) {
    if (a == b) return true;
    if (!a || !b || a->element_type != b->element_type || a->n_dimensions != b->n_dimensions ||
        a->n_tuple_shapes != b->n_tuple_shapes)
        return false;
    for (size_t i = 0; i < a->n_dimensions; i++)
        if (a->dimensions[i] != b->dimensions[i]) return false;
    for (size_t i = 0; i < a->n_tuple_shapes; i++)
        if (!ir_shapes_match(a->tuple_shapes[i], b->tuple_shapes[i])) return false;
    return true;
}

Hlo__ShapeProto *ir_plain_layout(Arena *arena, const Hlo__ShapeProto *shape) {
    Hlo__ShapeProto *copy = ir_new_message(arena, &hlo__shape_proto__descriptor);
    if (!copy) return NULL;
    ProtobufCMessage base = copy->base;
    *copy = *shape;
    copy->base = base;
    if (shape->layout) {
        copy->layout = ir_new_message(arena, &hlo__layout_proto__descriptor);
        if (!copy->layout) return NULL;
        copy->layout->n_minor_to_major = shape->layout->n_minor_to_major;
        copy->layout->minor_to_major = shape->layout->minor_to_major;
        copy->layout->tail_padding_alignment_in_elements = 1;
    }
    if (shape->n_tuple_shapes == 0) return copy;
    copy->tuple_shapes = ARENA_ARRAY(arena, Hlo__ShapeProto *, shape->n_tuple_shapes);
    if (!copy->tuple_shapes) return NULL;
    for (size_t i = 0; i < shape->n_tuple_shapes; i++) {
        copy->tuple_shapes[i] = ir_plain_layout(arena, shape->tuple_shapes[i]);
        if (!copy->tuple_shapes[i]) return NULL;
    }
    return copy;
}

int64_t ir_text_elements(const Hlo__ShapeProto *shape) {
    int64_t elements = 1;
    for (size_t i = 0; i < shape->n_dimensions; i++) {
        if (shape->dimensions[i] < 0 || __builtin_mul_overflow(elements, shape->dimensions[i], &elements)) {
            return -1;
        }
    }
    return elements;
}

static bool is_default_layout(const Hlo__LayoutProto *layout) {
    return layout->n_tiles == 0 && layout->element_size_in_bits == 0 && layout->memory_space == 0 &&
           layout->tail_padding_alignment_in_elements <= 1 && layout->index_primitive_type == 0 &&
           layout->pointer_primitive_type == 0 && layout->dynamic_shape_metadata_prefix_bytes == 0 &&
           layout->n_split_configs == 0;
}

static void write_tiles(Text *out, const Hlo__LayoutProto *layout) {
    if (layout->n_tiles) text_append_string(out, "T");
    for (size_t i = 0; i < layout->n_tiles; i++) {
        const Hlo__TileProto *tile = layout->tiles[i];
        for (size_t k = 0; k < tile->n_dimensions; k++) {
            text_append_string(out, k ? "," : "(");
            if (tile->dimensions[k] == COMBINED) {
                text_append_string(out, "*");
            } else {
                text_append(out, "%lld", (long long)tile->dimensions[k]);
            }
        }
        text_append_string(out, tile->n_dimensions ? ")" : "()");
    }
}

static void write_index_type(Text *out, char mark, Hlo__PrimitiveType type) {
    if (type) text_append(out, "%c(%s)", mark, dtype_name((Dtype)type));
}

static void write_layout(Text *out, const Hlo__ShapeProto *shape) {
    const Hlo__LayoutProto *layout = shape->layout;
    if (!layout || layout->n_minor_to_major != shape->n_dimensions) return;
    if (shape->n_dimensions == 0 && is_default_layout(layout)) return;
    text_append_string(out, "{");
    for (size_t i = 0; i < layout->n_minor_to_major; i++) {
        text_append(out, i ? ",%lld" : "%lld", (long long)layout->minor_to_major[i]);
    }
    if (!is_default_layout(layout)) text_append_string(out, ":");
    write_tiles(out, layout);
    if (layout->tail_padding_alignment_in_elements > 1) {
        text_append(out, "L(%lld)", (long long)layout->tail_padding_alignment_in_elements);
    }
    write_index_type(out, '#', layout->index_primitive_type);
    write_index_type(out, '*', layout->pointer_primitive_type);
    if (layout->element_size_in_bits) {
        text_append(out, "E(%lld)", (long long)layout->element_size_in_bits);
    }
    if (layout->memory_space) text_append(out, "S(%lld)", (long long)layout->memory_space);
    if (layout->n_split_configs) text_append_string(out, "SC");
    for (size_t i = 0; i < layout->n_split_configs; i++) {
        const Hlo__SplitConfigProto *split = layout->split_configs[i];
        text_append(out, "(%lld:", (long long)split->dimension);
        ir_write_integers(out, split->n_split_indices, split->split_indices);
        text_append_string(out, ")");
    }
    if (layout->dynamic_shape_metadata_prefix_bytes) {
        text_append(out, "M(%lld)", (long long)layout->dynamic_shape_metadata_prefix_bytes);
    }
    text_append_string(out, "}");
}

void ir_write_shape(Text *out, const Hlo__ShapeProto *shape, bool with_layout) {
    if (!shape) {
        text_append_string(out, "()");
        return;
    }
    bool is_buffer = shape->element_type == HLO__PRIMITIVE_TYPE__BUFFER;
    if (is_buffer || shape->element_type == HLO__PRIMITIVE_TYPE__TUPLE) {
        text_append_string(out, is_buffer ? "b(" : "(");
        for (size_t i = 0; i < shape->n_tuple_shapes; i++) {
            if (i) text_append_string(out, ", ");
            if (i && i % 5 == 0) text_append(out, "/*index=%zu*/", i);
            ir_write_shape(out, shape->tuple_shapes[i], with_layout);
        }
        text_append_string(out, ")");
        return;
    }
    bool is_array = dtype_bits((Dtype)shape->element_type) > 0; /* a token's dimensions have no meaning */
    text_append(out, "%s[", dtype_name((Dtype)shape->element_type));
    for (size_t i = 0; is_array && i < shape->n_dimensions; i++) {
        bool is_dynamic = i < shape->n_is_dynamic_dimension && shape->is_dynamic_dimension[i];
        if (i) text_append_string(out, ",");
        if (is_dynamic) text_append_string(out, shape->dimensions[i] == IR_UNBOUNDED ? "?" : "<=");
        if (shape->dimensions[i] != IR_UNBOUNDED) text_append(out, "%lld", (long long)shape->dimensions[i]);
    }
    text_append_string(out, "]");
    if (with_layout && is_array) write_layout(out, shape);
}
