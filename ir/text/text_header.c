/* The header of HLO text: the HloModule line with the module's attributes, and the tables of source
 * positions that follow it in newer texts:
 *
 *   HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) },
 *       buffer_donor={ (1, {}) }, entry_computation_layout={(f32[2]{0})->f32[2]{0}}
 *   FileNames
 *   1 "train.py"
 *   FileLocations
 *   1 {file_name_id=1 function_name_id=1 line=24 end_line=24 column=0 end_column=0}
 *   StackFrames
 *   1 {file_location_id=1 parent_frame_id=1}
 *
 * Ids count from 1. The text writes a frame's parent as one more than the binary, in which 0 means
 * no parent.
 */
#include <string.h>

#include "ir/text/hlo_text.h"

/* Attributes of a module that do not affect its computation. */
static const char *const IGNORED[] = {
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "alias_passthrough_params",
    "replica_count",
    "num_partitions",
    "is_dynamic",
    "device_type",
    "autofdo_fingerprint",
    "mpmd_layout",
    "origin_recovery_table",
};

/* ------------------------------------------------------------------ Reading */

static AmStatus read_alias(IrScanner *scanner, Hlo__HloInputOutputAliasProto *aliases) {
    Hlo__HloInputOutputAliasProto__AliasEntryProto **slot =
        ir_push(scanner->arena, &aliases->entries, &aliases->n_entries, sizeof *slot);
    if (!slot || !(*slot = ir_new_message(
                       scanner->arena, &hlo__hlo_input_output_alias_proto__alias_entry_proto__descriptor))) {
        return ir_scan_memory(scanner);
    }
    Hlo__HloInputOutputAliasProto__AliasEntryProto *entry = *slot;
    TRY(ir_scan_integers(scanner, "{", "}", &entry->n_output_shape_index, &entry->output_shape_index));
    TRY(ir_scan_expect(scanner, ":"));
    TRY(ir_scan_expect(scanner, "("));
    TRY(ir_scan_integer(scanner, &entry->parameter_number));
    TRY(ir_scan_expect(scanner, ","));
    TRY(ir_scan_integers(scanner, "{", "}", &entry->n_parameter_shape_index, &entry->parameter_shape_index));
    entry->kind = HLO__KIND__MAY_ALIAS;
    if (ir_scan_accept(scanner, ",")) {
        ir_scan_space(scanner);
        int64_t start = scanner->at;
        IrWord word;
        TRY(ir_scan_word(scanner, "may-alias or must-alias", &word));
        if (ir_word_is(word, "must-alias")) {
            entry->kind = HLO__KIND__MUST_ALIAS;
        } else if (!ir_word_is(word, "may-alias")) {
            return ir_scan_fail(scanner, start, "expected may-alias or must-alias");
        }
    }
    return ir_scan_expect(scanner, ")");
}

static AmStatus read_aliases(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInputOutputAliasProto *aliases =
        ir_new_message(scanner->arena, &hlo__hlo_input_output_alias_proto__descriptor);
    if (!aliases) return ir_scan_memory(scanner);
    reader->module->input_output_alias = aliases;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        TRY(read_alias(scanner, aliases));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

static AmStatus read_donors(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloBufferDonorProto *donors =
        ir_new_message(scanner->arena, &hlo__hlo_buffer_donor_proto__descriptor);
    if (!donors) return ir_scan_memory(scanner);
    reader->module->buffer_donor = donors;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        Hlo__HloBufferDonorProto__BufferDonorEntryProto **slot =
            ir_push(scanner->arena, &donors->entries, &donors->n_entries, sizeof *slot);
        if (!slot ||
            !(*slot = ir_new_message(scanner->arena,
                                     &hlo__hlo_buffer_donor_proto__buffer_donor_entry_proto__descriptor))) {
            return ir_scan_memory(scanner);
        }
        TRY(ir_scan_expect(scanner, "("));
        TRY(ir_scan_integer(scanner, &(*slot)->parameter_number));
        TRY(ir_scan_expect(scanner, ","));
        TRY(ir_scan_integers(scanner, "{", "}", &(*slot)->n_parameter_shape_index,
                             &(*slot)->parameter_shape_index));
        TRY(ir_scan_expect(scanner, ")"));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

/* Reads {(shape, shape)->shape}. */
static AmStatus read_layout(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    Hlo__ProgramShapeProto *program = ir_new_message(scanner->arena, &hlo__program_shape_proto__descriptor);
    if (!program) return ir_scan_memory(scanner);
    reader->module->host_program_shape = program;
    TRY(ir_scan_expect(scanner, "{"));
    TRY(ir_scan_expect(scanner, "("));
    if (!ir_scan_accept(scanner, ")")) {
        do {
            Hlo__ShapeProto **shape =
                ir_push(scanner->arena, &program->parameters, &program->n_parameters, sizeof *shape);
            if (!shape) return ir_scan_memory(scanner);
            TRY(ir_read_shape(scanner, shape));
        } while (ir_scan_accept(scanner, ","));
        TRY(ir_scan_expect(scanner, ")"));
    }
    TRY(ir_scan_expect(scanner, "->"));
    TRY(ir_read_shape(scanner, &program->result));
    return ir_scan_expect(scanner, "}");
}

/* Reads {log_mode=default, callback_id=3, partitioned=true, op_id=4}: checked and dropped, since the message
 * has no place for it. */
static AmStatus read_debug_entry(IrScanner *scanner) {
    TRY(ir_scan_expect(scanner, "{"));
    do {
        IrWord key, word;
        int64_t number, start;
        bool flag;
        ir_scan_space(scanner);
        start = scanner->at;
        TRY(ir_scan_word(scanner, "the name of a debug attribute", &key));
        TRY(ir_scan_expect(scanner, "="));
        if (ir_word_is(key, "callback_id") || ir_word_is(key, "op_id")) {
            TRY(ir_scan_integer(scanner, &number));
        } else if (ir_word_is(key, "partitioned")) {
            TRY(ir_scan_boolean(scanner, &flag));
        } else if (ir_word_is(key, "log_mode")) {
            TRY(ir_scan_word(scanner, "a log mode", &word));
            if (!ir_word_is(word, "default") && !ir_word_is(word, "fusion_debugger"))
                return ir_scan_fail(scanner, start, "unknown log mode (expected default or fusion_debugger)");
        } else {
            return ir_scan_fail(scanner, start, "unknown debug attribute '%.*s'",
                                (int)(key.length < 64 ? key.length : 64), key.text);
        }
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

/* Reads { {"array" {0}}:({...}, {...}), {"other"}:{...} }. */
static AmStatus read_debug_attributes(IrScanner *scanner) {
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        ProtobufCBinaryData name;
        size_t count;
        int64_t *path;
        TRY(ir_scan_expect(scanner, "{"));
        TRY(ir_scan_string(scanner, &name));
        if (ir_scan_peek(scanner) == '{') TRY(ir_scan_integers(scanner, "{", "}", &count, &path));
        TRY(ir_scan_expect(scanner, "}"));
        TRY(ir_scan_expect(scanner, ":"));
        bool is_list = ir_scan_accept(scanner, "(");
        if (is_list && ir_scan_accept(scanner, ")")) continue;
        do {
            TRY(read_debug_entry(scanner));
        } while (is_list && ir_scan_accept(scanner, ","));
        if (is_list) TRY(ir_scan_expect(scanner, ")"));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

static AmStatus read_attribute(IrTextReader *reader, IrWord name) {
    IrScanner *scanner = &reader->scanner;
    if (ir_word_is(name, "debug_attributes")) return read_debug_attributes(scanner);
    if (ir_word_is(name, "input_output_alias")) return read_aliases(reader);
    if (ir_word_is(name, "buffer_donor")) return read_donors(reader);
    if (ir_word_is(name, "entry_computation_layout")) return read_layout(reader);
    if (ir_word_is(name, "frontend_attributes")) {
        return ir_read_frontend(scanner, &reader->module->frontend_attributes);
    }
    if (ir_word_is(name, "is_scheduled")) return ir_scan_boolean(scanner, &reader->is_scheduled);
    bool is_known = false;
    for (size_t i = 0; i < sizeof IGNORED / sizeof IGNORED[0]; i++) {
        is_known = is_known || ir_word_is(name, IGNORED[i]);
    }
    if (!is_known) {
        am_warn(reader->warnings, "%s: unknown attribute '%.*s' of the module is ignored", scanner->source,
                (int)(name.length < 64 ? name.length : 64), name.text);
    }
    return ir_scan_skip_value(scanner);
}

bool ir_at_instruction(IrScanner *scanner) {
    IrScanner ahead = *scanner;
    ahead.error = NULL;
    IrWord word;
    if (ir_at_shape(&ahead)) return true;
    if (ir_scan_name(&ahead, "", &word) != AM_OK) return false;
    if (ir_word_is(word, "ROOT") && ir_scan_peek(&ahead) != '=') return true;
    return ir_scan_peek(&ahead) == '=';
}

/* Reads the header. A text without the HloModule line begins with a computation or is one instruction. */
AmStatus ir_read_header(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner, ahead = *scanner;
    ahead.error = NULL;
    IrWord word;
    if (ir_at_instruction(scanner)) return AM_OK;
    bool has_word = ir_scan_name(&ahead, "", &word) == AM_OK;
    if (has_word && !ir_word_is(word, "HloModule")) {
        char next = ir_scan_peek(&ahead);
        if (next == '{' || next == '(' || ir_word_is(word, "ENTRY")) return AM_OK;
        has_word = false;
    }
    if (!has_word) {
        ir_scan_space(scanner);
        return ir_scan_fail(scanner, scanner->at,
                            "expected an HLO module, which begins with 'HloModule NAME'");
    }
    scanner->at = ahead.at;
    TRY(ir_scan_name(scanner, "the name of the module", &word));
    if (!(reader->module->name = ir_word_copy(scanner, word))) return ir_scan_memory(scanner);
    while (ir_scan_accept(scanner, ",")) {
        TRY(ir_scan_word(scanner, "the name of an attribute", &word));
        TRY(ir_scan_expect(scanner, "="));
        TRY(read_attribute(reader, word));
    }
    return AM_OK;
}

/* ----------------------------------------------------- Tables of positions */

static const struct {
    const char *name;
    size_t field;
} LOCATION_KEYS[] = {
    {"file_name_id", offsetof(Hlo__StackFrameIndexProto__FileLocation, file_name_id)},
    {"function_name_id", offsetof(Hlo__StackFrameIndexProto__FileLocation, function_name_id)},
    {"line", offsetof(Hlo__StackFrameIndexProto__FileLocation, line)},
    {"end_line", offsetof(Hlo__StackFrameIndexProto__FileLocation, end_line)},
    {"column", offsetof(Hlo__StackFrameIndexProto__FileLocation, column)},
    {"end_column", offsetof(Hlo__StackFrameIndexProto__FileLocation, end_column)},
};
#define LOCATION_KEY_COUNT (sizeof LOCATION_KEYS / sizeof LOCATION_KEYS[0])

static AmStatus read_small(IrScanner *scanner, int32_t *value) {
    int64_t start = scanner->at, number;
    TRY(ir_scan_integer(scanner, &number));
    if (number < INT32_MIN || number > INT32_MAX)
        return ir_scan_fail(scanner, start, "integer beyond 32 bits");
    *value = (int32_t)number;
    return AM_OK;
}

static AmStatus read_text_row(IrScanner *scanner, size_t *count, char ***texts) {
    ProtobufCBinaryData bytes;
    TRY(ir_scan_string(scanner, &bytes));
    char **text = ir_push(scanner->arena, texts, count, sizeof *text);
    if (!text || !(*text = arena_copy_bytes(scanner->arena, bytes.data, bytes.len))) {
        return ir_scan_memory(scanner);
    }
    return AM_OK;
}

static AmStatus read_location(IrScanner *scanner, Hlo__StackFrameIndexProto *index) {
    Hlo__StackFrameIndexProto__FileLocation **slot =
        ir_push(scanner->arena, &index->file_locations, &index->n_file_locations, sizeof *slot);
    if (!slot ||
        !(*slot = ir_new_message(scanner->arena, &hlo__stack_frame_index_proto__file_location__descriptor))) {
        return ir_scan_memory(scanner);
    }
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        IrWord key;
        int32_t value = 0;
        TRY(ir_scan_word(scanner, "a key of a file location", &key));
        TRY(ir_scan_expect(scanner, "="));
        TRY(read_small(scanner, &value));
        for (size_t i = 0; i < LOCATION_KEY_COUNT; i++) {
            if (ir_word_is(key, LOCATION_KEYS[i].name)) {
                *(int32_t *)(void *)((char *)*slot + LOCATION_KEYS[i].field) = value;
            }
        }
    }
    return AM_OK;
}

static AmStatus read_frame(IrScanner *scanner, Hlo__StackFrameIndexProto *index) {
    Hlo__StackFrameIndexProto__StackFrame **slot =
        ir_push(scanner->arena, &index->stack_frames, &index->n_stack_frames, sizeof *slot);
    if (!slot ||
        !(*slot = ir_new_message(scanner->arena, &hlo__stack_frame_index_proto__stack_frame__descriptor))) {
        return ir_scan_memory(scanner);
    }
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        IrWord key;
        int32_t value = 0;
        TRY(ir_scan_word(scanner, "a key of a stack frame", &key));
        TRY(ir_scan_expect(scanner, "="));
        TRY(read_small(scanner, &value));
        if (ir_word_is(key, "file_location_id")) (*slot)->file_location_id = value;
        if (ir_word_is(key, "parent_frame_id") && value > 0) (*slot)->parent_frame_id = value - 1;
    }
    return AM_OK;
}

AmStatus ir_read_tables(IrTextReader *reader) {
    static const char *const names[] = {"FileNames", "FunctionNames", "FileLocations", "StackFrames"};
    IrScanner *scanner = &reader->scanner;
    for (;;) {
        IrScanner ahead = *scanner;
        IrWord word;
        int table = 0;
        if (!ir_scan_take_word(&ahead, &word)) return AM_OK;
        while (table < 4 && !ir_word_is(word, names[table])) table++;
        if (table == 4) return AM_OK;
        scanner->at = ahead.at;
        Hlo__StackFrameIndexProto *index = reader->module->stack_frame_index;
        if (!index) index = ir_new_message(scanner->arena, &hlo__stack_frame_index_proto__descriptor);
        if (!index) return ir_scan_memory(scanner);
        reader->module->stack_frame_index = index;
        for (int64_t row = 1; ir_scan_peek(scanner) >= '0' && ir_scan_peek(scanner) <= '9'; row++) {
            int64_t id, start = scanner->at;
            TRY(ir_scan_integer(scanner, &id));
            if (id != row) return ir_scan_fail(scanner, start, "expected row %lld", (long long)row);
            if (table == 0) TRY(read_text_row(scanner, &index->n_file_names, &index->file_names));
            if (table == 1) TRY(read_text_row(scanner, &index->n_function_names, &index->function_names));
            if (table == 2) TRY(read_location(scanner, index));
            if (table == 3) TRY(read_frame(scanner, index));
        }
    }
}

/* ----------------------------------------------------------------- Printing */

static void write_aliases(Text *out, const Hlo__HloInputOutputAliasProto *aliases) {
    if (!aliases || aliases->n_entries == 0) return;
    text_append_string(out, ", input_output_alias={ ");
    for (size_t i = 0; i < aliases->n_entries; i++) {
        const Hlo__HloInputOutputAliasProto__AliasEntryProto *entry = aliases->entries[i];
        text_append_string(out, i ? ", {" : "{");
        ir_write_integers(out, entry->n_output_shape_index, entry->output_shape_index);
        text_append(out, "}: (%lld, {", (long long)entry->parameter_number);
        ir_write_integers(out, entry->n_parameter_shape_index, entry->parameter_shape_index);
        text_append_string(out, entry->kind == HLO__KIND__MUST_ALIAS ? "}, must-alias)" : "}, may-alias)");
    }
    text_append_string(out, " }");
}

static void write_donors(Text *out, const Hlo__HloBufferDonorProto *donors) {
    if (!donors || donors->n_entries == 0) return;
    text_append_string(out, ", buffer_donor={ ");
    for (size_t i = 0; i < donors->n_entries; i++) {
        const Hlo__HloBufferDonorProto__BufferDonorEntryProto *entry = donors->entries[i];
        text_append(out, i ? ", (%lld, {" : "(%lld, {", (long long)entry->parameter_number);
        ir_write_integers(out, entry->n_parameter_shape_index, entry->parameter_shape_index);
        text_append_string(out, "})");
    }
    text_append_string(out, " }");
}

/* Returns whether the program shape can be read back. It repeats information of the instructions, and no
 * reader has checked it. */
static bool is_sound(const Hlo__ShapeProto *shape, int32_t depth) {
    if (!shape || depth > IR_MAX_TUPLE_DEPTH) return false;
    if ((Dtype)shape->element_type == DTYPE_TUPLE) {
        for (size_t i = 0; i < shape->n_tuple_shapes; i++)
            if (!is_sound(shape->tuple_shapes[i], depth + 1)) return false;
        return true;
    }
    if (!strcmp(dtype_name((Dtype)shape->element_type), "invalid") || shape->n_dimensions > IR_MAX_RANK)
        return false;
    for (size_t i = 0; i < shape->n_dimensions; i++)
        if (shape->dimensions[i] < 0 && shape->dimensions[i] != IR_UNBOUNDED) return false;
    const Hlo__LayoutProto *layout = shape->layout;
    uint64_t seen = 0;
    if (layout && layout->n_minor_to_major > 0 && layout->n_minor_to_major != shape->n_dimensions)
        return false;
    for (size_t i = 0; layout && i < layout->n_minor_to_major; i++) {
        int64_t dimension = layout->minor_to_major[i];
        if (dimension < 0 || dimension >= (int64_t)shape->n_dimensions || (seen >> dimension & 1))
            return false;
        seen |= UINT64_C(1) << dimension;
    }
    return true;
}

static void write_layout(Text *out, const Hlo__ProgramShapeProto *program) {
    text_append_string(out, ", entry_computation_layout={(");
    for (size_t i = 0; i < program->n_parameters; i++) {
        if (i) text_append_string(out, ", ");
        ir_write_shape(out, program->parameters[i], true);
    }
    text_append_string(out, ")->");
    ir_write_shape(out, program->result, true);
    text_append_string(out, "}");
}

void ir_write_header(IrTextWriter *writer, const char *name) {
    Text *out = writer->out;
    const Hlo__HloModuleProto *module = writer->module;
    text_append(out, writer->is_scheduled ? "HloModule %s, is_scheduled=true" : "HloModule %s", name);
    write_aliases(out, module->input_output_alias);
    write_donors(out, module->buffer_donor);
    const Hlo__ProgramShapeProto *program = module->host_program_shape;
    bool is_whole = program && is_sound(program->result, 0);
    for (size_t i = 0; is_whole && i < program->n_parameters; i++)
        is_whole = is_sound(program->parameters[i], 0);
    if (is_whole) write_layout(out, program);
    if (module->frontend_attributes && module->frontend_attributes->n_map) {
        text_append_string(out, ", frontend_attributes=");
        ir_write_frontend(out, module->frontend_attributes);
    }
    text_append_string(out, "\n\n");
}

static void write_texts(Text *out, const char *title, size_t count, char *const *texts) {
    if (count) text_append(out, "%s\n", title);
    for (size_t i = 0; i < count; i++) {
        text_append(out, "%zu ", i + 1);
        ir_write_string(out, texts[i], strlen(texts[i]));
        text_append_string(out, "\n");
    }
    if (count) text_append_string(out, "\n");
}

void ir_write_tables(Text *out, const Hlo__StackFrameIndexProto *index) {
    if (!index || index->n_stack_frames == 0) return;
    write_texts(out, "FileNames", index->n_file_names, index->file_names);
    write_texts(out, "FunctionNames", index->n_function_names, index->function_names);
    text_append_string(out, "FileLocations\n");
    for (size_t i = 0; i < index->n_file_locations; i++) {
        const char *location = (const char *)index->file_locations[i];
        text_append(out, "%zu {", i + 1);
        for (size_t k = 0; k < LOCATION_KEY_COUNT; k++) {
            int32_t value;
            memcpy(&value, location + LOCATION_KEYS[k].field, sizeof value);
            text_append(out, k ? " %s=%d" : "%s=%d", LOCATION_KEYS[k].name, (int)value);
        }
        text_append_string(out, "}\n");
    }
    text_append_string(out, "\nStackFrames\n");
    for (size_t i = 0; i < index->n_stack_frames; i++) {
        const Hlo__StackFrameIndexProto__StackFrame *frame = index->stack_frames[i];
        text_append(out, "%zu {file_location_id=%d parent_frame_id=%d}\n", i + 1,
                    (int)frame->file_location_id, (int)frame->parent_frame_id + 1);
    }
    text_append_string(out, "\n");
}
