/* One instruction of HLO text: name, shape, opcode, operands, attributes.
 *
 *   ROOT %r = f32[2]{0} add(f32[2]{0} %a, negate(%b)), metadata={...}
 *
 * The shape of the result may be omitted if XLA infers it (ir/text/text_infer.c). An operand is a name,
 * an element of a tuple (%t#1), or a nested instruction without attributes. In a text of one
 * instruction, an operand is a parameter: "f32[2] %a" or "f32[2]". A written operand shape must be
 * equal to the shape of its instruction.
 */
#include <stdio.h>
#include <string.h>

#include "ir/opcode_hint.h"
#include "ir/text/hlo_text.h"

/* A name for messages: at most 80 characters. */
#define SHOWN(word) (int)((word).length < 80 ? (word).length : 80), (word).text

static AmStatus read_right_side(IrTextReader *reader, IrWord name, int64_t start, bool has_attributes,
                                Hlo__HloInstructionProto **result);

/* Puts the instruction at the end of the computation and gives it the next id. */
static AmStatus append_instruction(IrTextReader *reader, Hlo__HloInstructionProto *instruction, IrWord name) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloComputationProto *computation = reader->computation;
    if (!ir_names_add(&reader->instructions, &reader->tables, name, (int32_t)computation->n_instructions))
        return ir_scan_memory(scanner);
    Hlo__HloInstructionProto **slot =
        ir_push(scanner->arena, &computation->instructions, &computation->n_instructions, sizeof *slot);
    if (!slot) return ir_scan_memory(scanner);
    *slot = instruction;
    return AM_OK;
}

/* Makes a new instruction of that opcode and name, without operands. */
static Hlo__HloInstructionProto *new_instruction(IrTextReader *reader, const char *opcode, IrWord name,
                                                 Hlo__ShapeProto *shape) {
    Hlo__HloInstructionProto *instruction =
        ir_new_message(reader->scanner.arena, &hlo__hlo_instruction_proto__descriptor);
    if (!instruction || !(instruction->name = ir_word_copy(&reader->scanner, name))) return NULL;
    instruction->opcode = arena_copy_string(reader->scanner.arena, opcode);
    instruction->shape = shape;
    instruction->id = reader->next_id++;
    return instruction->opcode ? instruction : NULL;
}

/* Makes the parameter that stands for an operand without an instruction. */
static AmStatus make_parameter(IrTextReader *reader, IrWord name, Hlo__ShapeProto *shape,
                               Hlo__HloInstructionProto **result) {
    IrScanner *scanner = &reader->scanner;
    int64_t number = reader->parameter_count++;
    if (name.length == 0) {
        name.text = arena_format(scanner->arena, "_%lld", (long long)number);
        if (!name.text) return ir_scan_memory(scanner);
        name.length = (int64_t)strlen(name.text);
    }
    *result = new_instruction(reader, "parameter", name, shape);
    if (!*result) return ir_scan_memory(scanner);
    (*result)->parameter_number = number;
    return append_instruction(reader, *result, name);
}

/* Finds element `index` of a tuple, made once for each tuple and index. */
static AmStatus read_element(IrTextReader *reader, IrWord *name, Hlo__HloInstructionProto **operand) {
    IrScanner *scanner = &reader->scanner;
    int64_t start = scanner->at, index;
    TRY(ir_scan_integer(scanner, &index));
    const Hlo__ShapeProto *tuple = (*operand)->shape;
    bool is_tuple = tuple->element_type == HLO__PRIMITIVE_TYPE__TUPLE;
    if (!is_tuple || index < 0 || index >= (int64_t)tuple->n_tuple_shapes) {
        return ir_scan_fail(scanner, start, "there is no element %lld in the operand '%.*s'",
                            (long long)index, SHOWN(*name));
    }
    const char *element =
        arena_format(scanner->arena, "%.*s_%lld", (int)(name->length < 200 ? name->length : 200), name->text,
                     (long long)index);
    const char *key = arena_format(scanner->arena, "%lld#%lld", (long long)(*operand)->id, (long long)index);
    if (!element || !key) return ir_scan_memory(scanner);
    IrWord key_word = {key, (int64_t)strlen(key)};
    *name = (IrWord){element, (int64_t)strlen(element)};
    int32_t made = ir_names_find(&reader->instructions, key_word);
    if (made >= 0) {
        *operand = reader->computation->instructions[made];
        return AM_OK;
    }
    Hlo__HloInstructionProto *instruction =
        new_instruction(reader, "get-tuple-element", *name, tuple->tuple_shapes[index]);
    if (!instruction) return ir_scan_memory(scanner);
    instruction->tuple_index = index;
    int64_t *id = ir_push(scanner->arena, &instruction->operand_ids, &instruction->n_operand_ids, sizeof *id);
    if (!id) return ir_scan_memory(scanner);
    *id = (*operand)->id;
    *operand = instruction;
    return append_instruction(reader, instruction, key_word);
}

static AmStatus read_named_operand(IrTextReader *reader, Hlo__ShapeProto *written, int64_t start,
                                   const char *opcode, Hlo__HloInstructionProto **operand) {
    IrScanner *scanner = &reader->scanner;
    IrWord name = {"", 0};
    char next = ir_scan_peek(scanner);
    bool is_anonymous = written && reader->makes_parameters && (next == ',' || next == ')');
    if (!is_anonymous) TRY(ir_scan_name(scanner, "the name of an operand", &name));
    int32_t index = is_anonymous ? -1 : ir_names_find(&reader->instructions, name);
    if (index < 0 && reader->makes_parameters) {
        if (!written) return ir_scan_fail(scanner, start, "expected a shape before this operand");
        TRY(make_parameter(reader, name, written, operand));
    } else if (index < 0) {
        /* In "paramter(0)" the opcode is wrong rather than its operand. */
        char hint[SUGGEST_HINT_BYTES], reason[SUGGEST_HINT_BYTES + 128] = "";
        if (*ir_opcode_hint(hint, opcode))
            snprintf(reason, sizeof reason, ", and the opcode '%.80s' is unknown%s", opcode, hint);
        return ir_scan_fail(&reader->scanner, start,
                            "no instruction '%.*s' above this line in this computation%s", SHOWN(name),
                            reason);
    } else {
        *operand = reader->computation->instructions[index];
    }
    while (ir_scan_accept(scanner, "#")) TRY(read_element(reader, &name, operand));
    if (!written || ir_shapes_match(written, (*operand)->shape)) return AM_OK;
    return ir_scan_fail(scanner, start, "the shape of this operand is not that of the instruction '%.*s'",
                        SHOWN(name));
}

/* Returns whether the next tokens are an opcode and its operands. */
static bool at_nested(const IrScanner *scanner) {
    IrScanner ahead = *scanner;
    IrWord word;
    return ir_scan_take_word(&ahead, &word) && ahead.at < ahead.length && ir_scan_peek(&ahead) == '(';
}

static AmStatus read_operand(IrTextReader *reader, Hlo__HloInstructionProto *instruction) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *operand = NULL;
    Hlo__ShapeProto *written = NULL;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    if (ir_at_shape(scanner)) TRY(ir_read_shape(scanner, &written));
    if (at_nested(scanner)) {
        if (reader->depth >= IR_MAX_NESTING)
            return ir_scan_fail(scanner, start, "instructions nested deeper than %d", IR_MAX_NESTING);
        scanner->at = start;
        reader->depth++;
        TRY(read_right_side(reader, (IrWord){"", 0}, start, false, &operand));
        reader->depth--;
    } else {
        ir_scan_space(scanner);
        TRY(read_named_operand(reader, written, scanner->at, instruction->opcode, &operand));
    }
    int64_t *id = ir_push(scanner->arena, &instruction->operand_ids, &instruction->n_operand_ids, sizeof *id);
    if (!id) return ir_scan_memory(scanner);
    *id = operand->id;
    return AM_OK;
}

/* Reads the parentheses and their contents. */
static AmStatus read_arguments(IrTextReader *reader, Hlo__HloInstructionProto *instruction) {
    IrScanner *scanner = &reader->scanner;
    TRY(ir_scan_expect(scanner, "("));
    if (strcmp(instruction->opcode, "constant") == 0) {
        TRY(ir_read_literal(scanner, instruction->shape, &instruction->literal));
    } else if (strcmp(instruction->opcode, "parameter") == 0) {
        TRY(ir_scan_integer(scanner, &instruction->parameter_number));
    } else if (ir_scan_peek(scanner) != ')') {
        do {
            TRY(read_operand(reader, instruction));
        } while (ir_scan_accept(scanner, ","));
    }
    return ir_scan_expect(scanner, ")");
}

/* Names an instruction that has no name in the text. */
static AmStatus name_nested(IrTextReader *reader, IrWord opcode, IrWord *name) {
    Arena *arena = reader->scanner.arena;
    do {
        name->text = arena_format(arena, "%.*s.anon.%lld", SHOWN(opcode), (long long)reader->nested_count++);
        if (!name->text) return ir_scan_memory(&reader->scanner);
        name->length = (int64_t)strlen(name->text);
    } while (ir_names_find(&reader->instructions, *name) >= 0);
    return AM_OK;
}

/* Reads SHAPE OPCODE(OPERANDS), ATTRIBUTES; an empty `name` stands for one that is made here. */
static AmStatus read_right_side(IrTextReader *reader, IrWord name, int64_t start, bool has_attributes,
                                Hlo__HloInstructionProto **result) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *wrapped = NULL;
    Hlo__HloInstructionProto *instruction =
        ir_new_message(scanner->arena, &hlo__hlo_instruction_proto__descriptor);
    IrWord opcode, wrapped_opcode;
    const char *outer = NULL;
    if (!instruction) return ir_scan_memory(scanner);
    *result = instruction;
    ir_scan_space(scanner);
    if (ir_at_shape(scanner)) TRY(ir_read_shape(scanner, &instruction->shape));
    else if (!at_nested(scanner))
        return ir_scan_fail(scanner, scanner->at, "expected the shape of the result");
    ir_scan_space(scanner);
    int64_t opcode_at = scanner->at;
    TRY(ir_scan_word(scanner, "an opcode", &opcode));
    bool is_async = ir_async_form(opcode, &outer, &wrapped_opcode);
    instruction->opcode = is_async ? arena_copy_string(scanner->arena, outer) : ir_word_copy(scanner, opcode);
    if (!instruction->opcode) return ir_scan_memory(scanner);
    if (!instruction->shape &&
        (is_async || !strcmp(instruction->opcode, "constant") || !strcmp(instruction->opcode, "parameter")))
        return ir_scan_fail(scanner, opcode_at, "expected the shape of the result");
    TRY(read_arguments(reader, instruction));
    instruction->id = reader->next_id++;
    if (instruction->id == reader->find_id) reader->found_at = start;
    if (name.length == 0) TRY(name_nested(reader, opcode, &name));
    if (!(instruction->name = ir_word_copy(scanner, name))) return ir_scan_memory(scanner);
    if (is_async) TRY(ir_async_wrap(reader, instruction, wrapped_opcode, &wrapped));
    TRY(ir_read_attributes(reader, instruction, wrapped, has_attributes));
    if (!instruction->shape) TRY(ir_infer_shape(reader, instruction, opcode_at));
    if (is_async) TRY(ir_async_finish(reader, instruction, wrapped, wrapped_opcode, opcode_at));
    TRY(ir_set_transfer_shape(reader, instruction));
    return append_instruction(reader, instruction, name);
}

AmStatus ir_read_instruction(IrTextReader *reader, bool has_name) {
    IrScanner *scanner = &reader->scanner;
    Hlo__HloComputationProto *computation = reader->computation;
    Hlo__HloInstructionProto *instruction;
    IrWord word = {"root", 4};
    bool is_root = false;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    if (has_name) {
        TRY(ir_scan_name(scanner, "an instruction or '}'", &word));
        if (ir_word_is(word, "ROOT") && ir_scan_peek(scanner) != '=') {
            is_root = true;
            TRY(ir_scan_name(scanner, "the name of an instruction", &word));
        }
        TRY(ir_scan_expect(scanner, "="));
    }
    if (ir_names_find(&reader->instructions, word) >= 0)
        return ir_scan_fail(scanner, start, "a second instruction of the name '%.*s'", SHOWN(word));
    if (is_root && computation->root_id) return ir_scan_fail(scanner, start, "a second ROOT");
    TRY(read_right_side(reader, word, start, true, &instruction));
    if (is_root) computation->root_id = instruction->id;
    return AM_OK;
}
