/* Parses HLO text into the message that binary and JSON produce as well.
 *
 * The parser is a recursive descent over the characters: the header (ir/text/text_header.c), then one
 * computation after the other. XLA prints callees first, so that every name refers to an earlier
 * definition and one pass suffices. ir/text/text_instruction.c parses instructions. A text may also be a
 * single instruction; its operands become parameters. Both spellings are accepted:
 *
 *   %add.3 (a: f32[2]) -> f32[2] {            add.3 {
 *     ROOT %r = f32[2]{0} negate(f32[2]{0} %a)    ROOT r = f32[2]{0} negate(a)
 *
 * Ids are numbered through the module, from 1 for computations and for instructions, which every
 * version of XLA accepts. The contents of the binary that the text lacks (program shapes, default
 * layouts) are derived.
 */
#include <string.h>

#include "base/lower_bound.h"
#include "ir/text/hlo_text.h"

/* Parameters by number, and the shape of the root. */
AmStatus ir_reader_program_shape(IrTextReader *reader, Hlo__HloComputationProto *computation, int64_t start) {
    IrScanner *scanner = &reader->scanner;
    Hlo__ProgramShapeProto *program = ir_new_message(scanner->arena, &hlo__program_shape_proto__descriptor);
    if (!program) return ir_scan_memory(scanner);
    computation->program_shape = program;
    size_t count = 0;
    for (size_t i = 0; i < computation->n_instructions; i++) {
        count += strcmp(computation->instructions[i]->opcode, "parameter") == 0;
    }
    program->parameters = ARENA_ARRAY(scanner->arena, Hlo__ShapeProto *, count + 1);
    program->parameter_names = ARENA_ARRAY(scanner->arena, char *, count + 1);
    if (!program->parameters || !program->parameter_names) return ir_scan_memory(scanner);
    program->n_parameters = program->n_parameter_names = count;
    for (size_t i = 0; i < computation->n_instructions; i++) {
        Hlo__HloInstructionProto *instruction = computation->instructions[i];
        if (instruction->id == computation->root_id) program->result = instruction->shape;
        if (strcmp(instruction->opcode, "parameter") != 0) continue;
        int64_t number = instruction->parameter_number;
        if (number < 0 || number >= (int64_t)count || program->parameters[number]) {
            return ir_scan_fail(scanner, start,
                                "the parameters of this computation are not numbered 0 to %zu", count - 1);
        }
        program->parameters[number] = instruction->shape;
        program->parameter_names[number] = instruction->name;
    }
    return AM_OK;
}

/* Reads (a: f32[2], b: (f32[], s32[])) -> f32[2]: `*result` is the shape after the arrow; NULL if there is
 * no arrow. */
static AmStatus read_program_shape(IrScanner *scanner, Hlo__ShapeProto **result) {
    Hlo__ShapeProto *written;
    *result = NULL;
    if (!ir_scan_accept(scanner, "(")) return AM_OK;
    while (ir_scan_peek(scanner) != ')') {
        IrWord name;
        TRY(ir_scan_name(scanner, "the name of a parameter", &name));
        ir_scan_accept(scanner, ":");
        TRY(ir_read_shape(scanner, &written));
        if (!ir_scan_accept(scanner, ",")) break;
    }
    TRY(ir_scan_expect(scanner, ")"));
    TRY(ir_scan_expect(scanner, "->"));
    return ir_read_shape(scanner, result);
}

/* Reads execution_thread="..." before or after the body. */
static AmStatus read_computation_attributes(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    while (ir_scan_accept(scanner, ",")) {
        IrWord name;
        ProtobufCBinaryData bytes;
        TRY(ir_scan_word(scanner, "the name of an attribute", &name));
        TRY(ir_scan_expect(scanner, "="));
        if (!ir_word_is(name, "execution_thread")) {
            TRY(ir_scan_skip_value(scanner));
            continue;
        }
        TRY(ir_scan_string(scanner, &bytes));
        reader->computation->execution_thread = arena_copy_bytes(scanner->arena, bytes.data, bytes.len);
        if (!reader->computation->execution_thread) return ir_scan_memory(scanner);
    }
    return AM_OK;
}

/* Sets the root: the instruction marked so, else the last one. */
static AmStatus finish_body(IrTextReader *reader, int64_t start) {
    Hlo__HloComputationProto *computation = reader->computation;
    if (computation->n_instructions == 0)
        return ir_scan_fail(&reader->scanner, start, "a computation without instructions");
    if (!computation->root_id) {
        computation->root_id = computation->instructions[computation->n_instructions - 1]->id;
    }
    return ir_reader_program_shape(reader, computation, start);
}

static AmStatus read_body(IrTextReader *reader, int64_t start) {
    IrScanner *scanner = &reader->scanner;
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) TRY(ir_read_instruction(reader, true));
    return finish_body(reader, start);
}

AmStatus ir_reader_add_computation(IrTextReader *reader, Hlo__HloComputationProto *computation, IrWord name) {
    Hlo__HloModuleProto *module = reader->module;
    Arena *arena = reader->scanner.arena;
    bool is_named =
        ir_names_add(&reader->computations, &reader->tables, name, (int32_t)module->n_computations);
    Hlo__HloComputationProto **slot =
        ir_push(arena, &module->computations, &module->n_computations, sizeof *slot);
    if (!is_named || !slot) return ir_scan_memory(&reader->scanner);
    computation->id = (int64_t)module->n_computations;
    *slot = computation;
    return AM_OK;
}

/* Ids grow through a computation. */
/* Orders instructions by their id, which `key` is. */
static int compare_id(const void *key, const void *instruction) {
    int64_t wanted = *(const int64_t *)key, found = (*(Hlo__HloInstructionProto *const *)instruction)->id;
    return (wanted > found) - (wanted < found);
}

Hlo__HloInstructionProto *ir_reader_instruction(const Hlo__HloComputationProto *computation, int64_t id) {
    Hlo__HloInstructionProto **all = computation->instructions;
    int32_t count = (int32_t)computation->n_instructions;
    int32_t at = lower_bound(&id, all, count, sizeof *all, compare_id);
    return at < count && all[at]->id == id ? all[at] : NULL;
}

static AmStatus read_computation(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloModuleProto *module = reader->module;
    IrWord word;
    bool is_entry = false;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    TRY(ir_scan_name(scanner, "a computation", &word));
    if (ir_word_is(word, "ENTRY")) {
        is_entry = true;
        TRY(ir_scan_name(scanner, "the name of a computation", &word));
    }
    if (ir_names_find(&reader->computations, word) >= 0) {
        return ir_scan_fail(scanner, start, "a second computation of the name '%.*s'",
                            (int)(word.length < 80 ? word.length : 80), word.text);
    }
    Hlo__HloComputationProto *computation =
        ir_new_message(scanner->arena, &hlo__hlo_computation_proto__descriptor);
    if (!computation || !(computation->name = ir_word_copy(scanner, word))) return ir_scan_memory(scanner);
    reader->computation = computation;
    ir_names_clear(&reader->instructions);
    Hlo__ShapeProto *result;
    int64_t shape_start = scanner->at;
    TRY(read_program_shape(scanner, &result));
    TRY(read_computation_attributes(reader));
    TRY(read_body(reader, start));
    if (result && !ir_shapes_match(result, ir_reader_instruction(computation, computation->root_id)->shape)) {
        return ir_scan_fail(scanner, shape_start, "the result's shape is not that of the root instruction");
    }
    TRY(read_computation_attributes(reader));
    TRY(ir_reader_add_computation(reader, computation, word));
    if (is_entry && module->entry_computation_id) return ir_scan_fail(scanner, start, "a second ENTRY");
    if (is_entry) module->entry_computation_id = computation->id;
    return AM_OK;
}

AmStatus ir_read_inline_computation(IrTextReader *reader, Hlo__HloComputationProto **result) {
    IrScanner *scanner = &reader->scanner;
    int64_t start = scanner->at;
    IrWord name;
    Hlo__HloComputationProto *computation =
        ir_new_message(scanner->arena, &hlo__hlo_computation_proto__descriptor);
    if (!computation) return ir_scan_memory(scanner);
    if (reader->depth >= IR_MAX_NESTING)
        return ir_scan_fail(scanner, start, "computations nested deeper than %d", IR_MAX_NESTING);
    do {
        int64_t number = reader->inner_count++;
        computation->name = arena_format(scanner->arena, number ? "_.%lld" : "_", (long long)number);
        if (!computation->name) return ir_scan_memory(scanner);
        name = (IrWord){computation->name, (int64_t)strlen(computation->name)};
    } while (ir_names_find(&reader->computations, name) >= 0);
    Hlo__HloComputationProto *outer = reader->computation;
    IrNames outer_names = reader->instructions;
    bool makes_parameters = reader->makes_parameters;
    reader->computation = computation;
    reader->instructions = (IrNames){0};
    reader->makes_parameters = false;
    reader->depth++;
    TRY(read_body(reader, start));
    reader->depth--;
    reader->makes_parameters = makes_parameters;
    reader->computation = outer;
    reader->instructions = outer_names;
    *result = computation;
    return ir_reader_add_computation(reader, computation, name);
}

/* Reads one instruction, with its name or without, as an entry computation of it and of parameters. It runs
 * in the order of the text, as XLA says. */
static AmStatus read_single_instruction(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    IrWord name = {"_", 1};
    Hlo__HloComputationProto *computation =
        ir_new_message(scanner->arena, &hlo__hlo_computation_proto__descriptor);
    if (!computation || !(computation->name = ir_word_copy(scanner, name))) return ir_scan_memory(scanner);
    reader->computation = computation;
    reader->makes_parameters = true;
    reader->inner_count = 1;
    reader->is_scheduled = true;
    TRY(ir_read_instruction(reader, !ir_at_shape(scanner)));
    if (ir_scan_peek(scanner)) {
        return ir_scan_fail(
            scanner, scanner->at,
            "expected the end of the text after one instruction; a module begins with 'HloModule NAME'");
    }
    TRY(finish_body(reader, 0));
    return ir_reader_add_computation(reader, computation, name);
}

/* Sets the entry: the computation marked so, else the last one. */
static void finish_module(Hlo__HloModuleProto *module) {
    if (!module->entry_computation_id) module->entry_computation_id = (int64_t)module->n_computations;
    const Hlo__HloComputationProto *entry = module->computations[module->entry_computation_id - 1];
    Hlo__ProgramShapeProto *program = entry->program_shape;
    module->entry_computation_name = entry->name;
    if (!module->host_program_shape || module->host_program_shape->n_parameters != program->n_parameters) {
        module->host_program_shape = program;
    }
    module->host_program_shape->n_parameter_names = program->n_parameter_names;
    module->host_program_shape->parameter_names = program->parameter_names;
}

/* Makes the schedule of is_scheduled=true: computations outside fusions run in the order of the text. */
static AmStatus make_schedule(IrTextReader *reader) {
    Arena *arena = reader->scanner.arena;
    Hlo__HloModuleProto *module = reader->module;
    Hlo__HloScheduleProto *schedule = ir_new_message(arena, &hlo__hlo_schedule_proto__descriptor);
    if (!schedule) return ir_scan_memory(&reader->scanner);
    module->schedule = schedule;
    for (size_t c = 0; c < module->n_computations; c++) {
        const Hlo__HloComputationProto *computation = module->computations[c];
        if (computation->is_fusion_computation) continue;
        Hlo__HloScheduleProto__SequencesEntry **entry =
            ir_push(arena, &schedule->sequences, &schedule->n_sequences, sizeof *entry);
        if (!entry ||
            !(*entry = ir_new_message(arena, &hlo__hlo_schedule_proto__sequences_entry__descriptor)))
            return ir_scan_memory(&reader->scanner);
        Hlo__HloScheduleProto__InstructionSequence *sequence =
            ir_new_message(arena, &hlo__hlo_schedule_proto__instruction_sequence__descriptor);
        size_t count = computation->n_instructions;
        if (sequence) sequence->instruction_ids = ARENA_ARRAY(arena, int64_t, count);
        if (!sequence || !sequence->instruction_ids) return ir_scan_memory(&reader->scanner);
        sequence->n_instruction_ids = count;
        for (size_t i = 0; i < count; i++) sequence->instruction_ids[i] = computation->instructions[i]->id;
        (*entry)->key = computation->id;
        (*entry)->value = sequence;
    }
    return AM_OK;
}

static AmStatus read_module(IrTextReader *reader) {
    IrScanner *scanner = &reader->scanner;
    reader->module = ir_new_message(scanner->arena, &hlo__hlo_module_proto__descriptor);
    reader->next_id = 1;
    if (!reader->module) return ir_scan_memory(scanner);
    TRY(ir_attributes_index(reader));
    TRY(ir_read_header(reader));
    TRY(ir_read_tables(reader));
    if (!*reader->module->name && ir_at_instruction(scanner)) TRY(read_single_instruction(reader));
    while (ir_scan_peek(scanner)) TRY(read_computation(reader));
    if (scanner->at < scanner->length) return ir_scan_fail(scanner, scanner->at, "unexpected NUL byte");
    if (reader->module->n_computations == 0)
        return ir_scan_fail(scanner, scanner->length, "expected a computation, found the end of the text");
    finish_module(reader->module);
    return reader->is_scheduled ? make_schedule(reader) : AM_OK;
}

AmStatus ir_parse_text(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                       const char *data, int64_t length, AmError *error) {
    IrSeenShape seen[IR_SEEN_SHAPES] = {{0}};
    IrTextReader reader = {.scanner = {source, data, length, 0, arena, error, seen, 0}, .warnings = warnings};
    AmStatus status = read_module(&reader);
    arena_free(&reader.tables);
    *message = reader.module;
    return status;
}

int64_t ir_find_in_text(const char *data, int64_t length, int64_t id) {
    Arena arena = {0};
    IrTextReader reader = {
        .scanner = {"", data, length, 0, &arena, NULL, NULL, 0}, .find_id = id, .found_at = -1};
    AmStatus status = read_module(&reader);
    arena_free(&reader.tables);
    arena_free(&arena);
    return status == AM_OK ? reader.found_at : -1;
}
