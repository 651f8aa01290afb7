/* The plain syntaxes of attribute values: numbers, words, strings, lists, shapes,
 * and names of computations and instructions. */
#include "ir/text/text_values.h"

#include <ctype.h>
#include <string.h>

/* ------------------------------------------------------------ Single values */

static AmStatus read_integer(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    return ir_scan_integer(&reader->scanner, field);
}
static void write_integer(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                          const void *field) {
    (void)row, (void)part;
    text_append(writer->out, "%lld", (long long)*(const int64_t *)field);
}
static bool is_default_integer(const IrAttributeRow *row, const void *part, const void *field) {
    (void)part;
    return *(const int64_t *)field == 0 || *(const int64_t *)field == row->unwritten;
}
const IrSyntax IR_SYNTAX_INTEGER = {read_integer, write_integer, is_default_integer};

static AmStatus read_integer32(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    int64_t value, start = reader->scanner.at;
    TRY(ir_scan_integer(&reader->scanner, &value));
    if (value < INT32_MIN || value > INT32_MAX) {
        return ir_scan_fail(&reader->scanner, start, "integer beyond 32 bits");
    }
    *(int32_t *)field = (int32_t)value;
    return AM_OK;
}
static void write_integer32(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                            const void *field) {
    (void)row, (void)part;
    text_append(writer->out, "%d", (int)*(const int32_t *)field);
}
static bool is_default_integer32(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    return *(const int32_t *)field == 0;
}
const IrSyntax IR_SYNTAX_INTEGER32 = {read_integer32, write_integer32, is_default_integer32};

static AmStatus read_boolean(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    bool value;
    TRY(ir_scan_boolean(&reader->scanner, &value));
    *(protobuf_c_boolean *)field = value;
    return AM_OK;
}
static void write_boolean(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                          const void *field) {
    (void)row, (void)part;
    text_append_string(writer->out, *(const protobuf_c_boolean *)field ? "true" : "false");
}
static bool is_default_boolean(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    return !*(const protobuf_c_boolean *)field;
}
const IrSyntax IR_SYNTAX_BOOLEAN = {read_boolean, write_boolean, is_default_boolean};

static AmStatus read_float(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    double value;
    uint64_t payload;
    TRY(ir_scan_real(&reader->scanner, &value, &payload));
    *(float *)field = (float)value;
    return AM_OK;
}
static void write_float(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                        const void *field) {
    (void)row, (void)part;
    uint32_t bits;
    memcpy(&bits, field, sizeof bits);
    ir_float_write(writer->out, DTYPE_F32, bits);
}
const IrSyntax IR_SYNTAX_FLOAT = {read_float, write_float, NULL};

/* ---------------------------------------------------------- Words and strings */

static AmStatus read_string(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    ProtobufCBinaryData bytes;
    TRY(ir_scan_string(&reader->scanner, &bytes));
    *(char **)field = arena_copy_bytes(reader->scanner.arena, bytes.data, bytes.len);
    return *(char **)field ? AM_OK : ir_scan_memory(&reader->scanner);
}
static void write_string(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    (void)row, (void)part;
    const char *text = *(char *const *)field;
    ir_write_string(writer->out, text, strlen(text));
}
static bool is_default_string(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const char *text = *(char *const *)field;
    return !text || !*text;
}
const IrSyntax IR_SYNTAX_STRING = {read_string, write_string, is_default_string};

/* Reads a string, or a dictionary in braces that is kept as it stands. */
static AmStatus read_bytes(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    ProtobufCBinaryData *bytes = field;
    if (ir_scan_peek(scanner) != '{') return ir_scan_string(scanner, bytes);
    IrWord word;
    TRY(ir_scan_braced(scanner, &word));
    bytes->data = (uint8_t *)ir_word_copy(scanner, word);
    bytes->len = (size_t)word.length;
    return bytes->data ? AM_OK : ir_scan_memory(scanner);
}
static void write_bytes(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                        const void *field) {
    (void)row, (void)part;
    const ProtobufCBinaryData *bytes = field;
    ir_write_string(writer->out, bytes->data, bytes->len);
}
static bool is_default_bytes(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    return ((const ProtobufCBinaryData *)field)->len == 0;
}
const IrSyntax IR_SYNTAX_BYTES = {read_bytes, write_bytes, is_default_bytes};

static AmStatus read_word(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)part;
    IrWord word;
    TRY(ir_scan_word(&reader->scanner, row->name, &word));
    *(char **)field = ir_word_copy(&reader->scanner, word);
    return *(char **)field ? AM_OK : ir_scan_memory(&reader->scanner);
}
static void write_word(IrTextWriter *writer, const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    text_append_string(writer->out, *(char *const *)field);
}
const IrSyntax IR_SYNTAX_WORD = {read_word, write_word, is_default_string};

/* Writes the name of an enumeration's value as the text spells it. */
static void spell(char spelled[64], const IrAttributeRow *row, const char *name) {
    size_t skipped = row->prefix ? strlen(row->prefix) : 0, at = 0;
    if (skipped && strncmp(name, row->prefix, skipped) != 0) skipped = 0;
    for (name += skipped; *name && at < 63; name++) {
        spelled[at++] = row->is_lower_case ? (char)tolower((unsigned char)*name) : *name;
    }
    spelled[at] = '\0';
}

static AmStatus read_value_of(IrScanner *scanner, const IrAttributeRow *row, int *value) {
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    IrWord word;
    char lower[64];
    TRY(ir_scan_word(scanner, row->name, &word));
    if (row->is_lower_case && word.length < (int64_t)sizeof lower) {
        for (int64_t i = 0; i < word.length; i++) lower[i] = (char)tolower((unsigned char)word.text[i]);
        word.text = lower;
    }
    for (unsigned i = 0; i < row->names->n_values; i++) {
        char spelled[64];
        spell(spelled, row, row->names->values[i].name);
        if (!ir_word_is(word, spelled) || (row->has_no_zero && row->names->values[i].value == 0)) continue;
        *value = row->names->values[i].value;
        return AM_OK;
    }
    return ir_scan_fail(scanner, start, "unknown value of %s", row->name);
}

static void write_value_of(Text *out, const IrAttributeRow *row, int value) {
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(row->names, value);
    if (!found) found = &row->names->values[0];
    char spelled[64];
    spell(spelled, row, found->name);
    text_append_string(out, spelled);
}

static AmStatus read_enumeration(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)part;
    return read_value_of(&reader->scanner, row, field);
}
static void write_enumeration(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                              const void *field) {
    (void)part;
    write_value_of(writer->out, row, *(const int *)field);
}
static bool is_default_enumeration(const IrAttributeRow *row, const void *part, const void *field) {
    (void)part;
    return *(const int *)field == 0 || *(const int *)field == (int)row->unwritten;
}
const IrSyntax IR_SYNTAX_ENUMERATION = {read_enumeration, write_enumeration, is_default_enumeration};

/* --------------------------------------------------------------------- Lists */

static size_t *count_of(const IrAttributeRow *row, const void *part) {
    return (size_t *)((char *)(uintptr_t)part + row->count);
}

static bool is_empty(const IrAttributeRow *row, const void *part, const void *field) {
    (void)field;
    return *count_of(row, part) == 0;
}

static AmStatus read_integers(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    return ir_scan_integers(&reader->scanner, "{", "}", count_of(row, part), field);
}
static void write_integers(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    text_append_string(writer->out, "{");
    ir_write_integers(writer->out, *count_of(row, part), *(int64_t *const *)field);
    text_append_string(writer->out, "}");
}
const IrSyntax IR_SYNTAX_INTEGERS = {read_integers, write_integers, is_empty};

/* Reads a list of one, written without braces. */
static AmStatus read_single(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    size_t *count = count_of(row, part);
    *count = 0;
    int64_t *value = ir_push(reader->scanner.arena, field, count, sizeof *value);
    return value ? ir_scan_integer(&reader->scanner, value) : ir_scan_memory(&reader->scanner);
}
static void write_single(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    bool has_value = *count_of(row, part) > 0;
    text_append(writer->out, "%lld", has_value ? (long long)(*(int64_t *const *)field)[0] : 0LL);
}
const IrSyntax IR_SYNTAX_SINGLE = {read_single, write_single, is_empty};

static AmStatus read_precisions(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    IrScanner *scanner = &reader->scanner;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        int *value = ir_push(scanner->arena, field, count_of(row, part), sizeof *value);
        if (!value) return ir_scan_memory(scanner);
        TRY(read_value_of(scanner, row, value));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_precisions(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                             const void *field) {
    const int *values = *(int *const *)field;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < *count_of(row, part); i++) {
        if (i) text_append_string(writer->out, ",");
        write_value_of(writer->out, row, values[i]);
    }
    text_append_string(writer->out, "}");
}
static bool is_default_precisions(const IrAttributeRow *row, const void *part, const void *field) {
    const int *values = *(int *const *)field;
    for (size_t i = 0; i < *count_of(row, part); i++) {
        if (values[i] != 0) return false;
    }
    return true;
}
const IrSyntax IR_SYNTAX_PRECISIONS = {read_precisions, write_precisions, is_default_precisions};

/* -------------------------------------------------------------------- Shapes */

static AmStatus read_one_shape(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    return ir_read_shape(&reader->scanner, field);
}
static void write_one_shape(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                            const void *field) {
    (void)row, (void)part;
    ir_write_shape(writer->out, *(Hlo__ShapeProto *const *)field, true);
}
static bool is_absent(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    return !*(void *const *)field;
}
const IrSyntax IR_SYNTAX_SHAPE = {read_one_shape, write_one_shape, is_absent};

/* Reads operand_layout_constraints: its presence means that layouts are constrained. */
static AmStatus read_shapes(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    IrScanner *scanner = &reader->scanner;
    ((Hlo__HloInstructionProto *)part)->constrain_layout = true;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        Hlo__ShapeProto **shape = ir_push(scanner->arena, field, count_of(row, part), sizeof *shape);
        if (!shape) return ir_scan_memory(scanner);
        TRY(ir_read_shape(scanner, shape));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_shapes(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    Hlo__ShapeProto *const *shapes = *(Hlo__ShapeProto * *const *)field;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < *count_of(row, part); i++) {
        if (i) text_append_string(writer->out, ", ");
        ir_write_shape(writer->out, shapes[i], true);
    }
    text_append_string(writer->out, "}");
}
static bool is_unconstrained(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    return !((const Hlo__HloInstructionProto *)part)->constrain_layout;
}
const IrSyntax IR_SYNTAX_SHAPES = {read_shapes, write_shapes, is_unconstrained};

/* --------------------------------------------- Computations and predecessors */

static AmStatus read_called(IrTextReader *reader, const IrAttributeRow *row, int64_t *id) {
    IrScanner *scanner = &reader->scanner;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    IrWord name;
    if (ir_scan_peek(scanner) == '{') {
        Hlo__HloComputationProto *computation;
        TRY(ir_read_inline_computation(reader, &computation));
        *id = computation->id;
        return AM_OK;
    }
    TRY(ir_scan_name(scanner, "the name of a computation", &name));
    int32_t index = ir_names_find(&reader->computations, name);
    if (index < 0) {
        return ir_scan_fail(scanner, start, "%s: no computation '%.*s' above this line", row->name,
                            (int)(name.length < 80 ? name.length : 80), name.text);
    }
    *id = reader->module->computations[index]->id;
    return AM_OK;
}

/* Reads the name of a computation into the slot `unwritten` of called_computation_ids. */
static AmStatus read_computation(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    size_t *count = count_of(row, part);
    while (*count <= (size_t)row->unwritten) {
        int64_t *id = ir_push(reader->scanner.arena, field, count, sizeof *id);
        if (!id) return ir_scan_memory(&reader->scanner);
        *id = -1;
    }
    return read_called(reader, row, *(int64_t **)field + row->unwritten);
}
static void write_called(IrTextWriter *writer, int64_t id) {
    int32_t index = ir_writer_computation(writer, id);
    if (index < 0) {
        am_fail(writer->error, AM_ERROR_INPUT, "",
                "an instruction calls computation %lld, which is not there", (long long)id);
        return;
    }
    text_append(writer->out, "%%%s", writer->computation_names[index]);
}
static void write_computation(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                              const void *field) {
    (void)part;
    write_called(writer, (*(int64_t *const *)field)[row->unwritten]);
}
static bool has_no_slot(const IrAttributeRow *row, const void *part, const void *field) {
    (void)field;
    return *count_of(row, part) <= (size_t)row->unwritten;
}
const IrSyntax IR_SYNTAX_COMPUTATION = {read_computation, write_computation, has_no_slot};

static AmStatus read_computations(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    IrScanner *scanner = &reader->scanner;
    bool has_braces = ir_scan_accept(scanner, "{");
    if (has_braces && ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        int64_t called;
        TRY(read_called(reader, row, &called));
        int64_t *id = ir_push(scanner->arena, field, count_of(row, part), sizeof *id);
        if (!id) return ir_scan_memory(scanner);
        *id = called;
    } while (has_braces && ir_scan_accept(scanner, ","));
    return has_braces ? ir_scan_expect(scanner, "}") : AM_OK;
}
static void write_computations(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                               const void *field) {
    const int64_t *ids = *(int64_t *const *)field;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < *count_of(row, part); i++) {
        if (i) text_append_string(writer->out, ", ");
        write_called(writer, ids[i]);
    }
    text_append_string(writer->out, "}");
}
const IrSyntax IR_SYNTAX_COMPUTATIONS = {read_computations, write_computations, is_empty};

static AmStatus read_predecessors(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    IrScanner *scanner = &reader->scanner;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        ir_scan_space(scanner);
        int64_t start = scanner->at;
        IrWord name;
        TRY(ir_scan_name(scanner, "the name of an instruction", &name));
        int32_t index = ir_names_find(&reader->instructions, name);
        if (index < 0) return ir_scan_fail(scanner, start, "no instruction of that name above this line");
        int64_t *id = ir_push(scanner->arena, field, count_of(row, part), sizeof *id);
        if (!id) return ir_scan_memory(scanner);
        *id = reader->computation->instructions[index]->id;
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_predecessors(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                               const void *field) {
    const int64_t *ids = *(int64_t *const *)field;
    bool has_any = false;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < *count_of(row, part); i++) {
        int32_t index = ir_writer_instruction(writer, ids[i]);
        if (index < 0) continue;
        text_append(writer->out, has_any ? ", %%%s" : "%%%s", writer->instruction_names[index]);
        has_any = true;
    }
    text_append_string(writer->out, "}");
}
const IrSyntax IR_SYNTAX_PREDECESSORS = {read_predecessors, write_predecessors, is_empty};

/* -------------------------------------------------------- Whole structures */

static AmStatus read_sharding(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    return ir_read_sharding(&reader->scanner, field);
}
static void write_sharding(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    (void)row, (void)part;
    ir_write_sharding(writer->out, *(Hlo__OpSharding *const *)field);
}
const IrSyntax IR_SYNTAX_SHARDING = {read_sharding, write_sharding, is_absent};

static AmStatus read_metadata(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    return ir_read_metadata(&reader->scanner, field);
}
static void write_metadata(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    (void)row, (void)part;
    text_append_string(writer->out, "{");
    ir_write_metadata(writer->out, *(Hlo__OpMetadata *const *)field, writer->module);
    text_append_string(writer->out, "}");
}
/* Returns whether the metadata would be printed as {}. */
static bool has_no_metadata(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const Hlo__OpMetadata *metadata = *(Hlo__OpMetadata *const *)field;
    return !metadata || ir_metadata_is_empty(metadata);
}
const IrSyntax IR_SYNTAX_METADATA = {read_metadata, write_metadata, has_no_metadata};

static AmStatus read_frontend(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    return ir_read_frontend(&reader->scanner, field);
}
static void write_frontend(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    (void)row, (void)part;
    ir_write_frontend(writer->out, *(Hlo__FrontendAttributes *const *)field);
}
static bool has_no_frontend(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const Hlo__FrontendAttributes *attributes = *(Hlo__FrontendAttributes *const *)field;
    return !attributes || attributes->n_map == 0;
}
const IrSyntax IR_SYNTAX_FRONTEND = {read_frontend, write_frontend, has_no_frontend};

/* Reads an attribute without meaning and drops it silently. */
static AmStatus read_ignored(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part, (void)field;
    return ir_scan_skip_value(&reader->scanner);
}
static bool is_never_printed(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part, (void)field;
    return true;
}
const IrSyntax IR_SYNTAX_IGNORED = {read_ignored, NULL, is_never_printed};
