/* Asynchronous operators in HLO text.
 *
 *   %s = ((f32[4]), f32[4], s32[]) negate-start(%x), async_execution_thread="host"
 *   %u = ((f32[4]), f32[4], s32[]) negate-update(%s)
 *   %r = f32[4] negate-done(%u)
 *
 * is short for an async-start that calls a computation of the operator alone, an
 * async-update and an async-done. The computation is made here, in front of the one
 * that is being read. The operator gets the attributes that are its own and shares
 * backend_config, frontend attributes and metadata with the async-start.
 */
#include <string.h>

#include "ir/text/hlo_text.h"

/* Updates between a start and its done that are followed back. */
#define MOST_UPDATES 8

bool ir_async_form(IrWord opcode, const char **outer, IrWord *wrapped_opcode) {
    static const struct {
        const char *suffix, *outer;
    } forms[] = {{"-start", "async-start"}, {"-update", "async-update"}, {"-done", "async-done"}};
    char name[64];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        int64_t length = (int64_t)strlen(forms[i].suffix), rest = opcode.length - length;
        if (rest < 1 || opcode.length >= (int64_t)sizeof name) continue;
        if (memcmp(opcode.text + rest, forms[i].suffix, (size_t)length) != 0) continue;
        memcpy(name, opcode.text, (size_t)opcode.length);
        name[opcode.length] = '\0';
        if (ir_opcode_from_name(name) != IR_UNKNOWN) return false;
        name[rest] = '\0';
        *outer = forms[i].outer;
        *wrapped_opcode = (IrWord){opcode.text, rest};
        return ir_opcode_from_name(name) != IR_UNKNOWN;
    }
    return false;
}

static Hlo__HloInstructionProto *add_instruction(IrTextReader *reader, Hlo__HloComputationProto *computation,
                                                 const char *opcode, const char *name,
                                                 Hlo__ShapeProto *shape) {
    Arena *arena = reader->scanner.arena;
    Hlo__HloInstructionProto *instruction = ir_new_message(arena, &hlo__hlo_instruction_proto__descriptor);
    Hlo__HloInstructionProto **slot =
        ir_push(arena, &computation->instructions, &computation->n_instructions, sizeof *slot);
    if (!instruction || !slot) return NULL;
    *slot = instruction;
    instruction->id = reader->next_id++;
    instruction->shape = shape;
    instruction->opcode = arena_copy_string(arena, opcode);
    instruction->name = arena_copy_string(arena, name);
    return instruction->opcode && instruction->name ? instruction : NULL;
}

static AmStatus name_computation(IrTextReader *reader, Hlo__HloComputationProto *computation, IrWord *name) {
    do {
        computation->name =
            arena_format(reader->scanner.arena, "async_wrapped.%lld", (long long)reader->wrapped_count++);
        if (!computation->name) return ir_scan_memory(&reader->scanner);
        *name = (IrWord){computation->name, (int64_t)strlen(computation->name)};
    } while (ir_names_find(&reader->computations, *name) >= 0);
    return AM_OK;
}

AmStatus ir_async_wrap(IrTextReader *reader, Hlo__HloInstructionProto *instruction, IrWord wrapped_opcode,
                       Hlo__HloInstructionProto **wrapped) {
    IrScanner *scanner = &reader->scanner;
    *wrapped = NULL;
    if (strcmp(instruction->opcode, "async-start") != 0) return AM_OK;
    if (instruction->shape->n_tuple_shapes < 2) {
        return ir_scan_fail(scanner, scanner->at,
                            "expected the shape ((operands), result, ...) of an asynchronous start");
    }
    Hlo__HloComputationProto *computation =
        ir_new_message(scanner->arena, &hlo__hlo_computation_proto__descriptor);
    if (!computation) return ir_scan_memory(scanner);
    IrWord name;
    TRY(name_computation(reader, computation, &name));
    size_t count = instruction->n_operand_ids;
    int64_t *operands = ARENA_ARRAY(scanner->arena, int64_t, count + 1);
    if (!operands) return ir_scan_memory(scanner);
    for (size_t i = 0; i < count; i++) {
        const char *parameter_name = i ? arena_format(scanner->arena, "async_param.%zu", i) : "async_param";
        Hlo__ShapeProto *shape =
            ir_reader_instruction(reader->computation, instruction->operand_ids[i])->shape;
        Hlo__HloInstructionProto *parameter =
            parameter_name ? add_instruction(reader, computation, "parameter", parameter_name, shape) : NULL;
        if (!parameter) return ir_scan_memory(scanner);
        parameter->parameter_number = (int64_t)i;
        operands[i] = parameter->id;
    }
    const char *opcode = ir_word_copy(scanner, wrapped_opcode);
    *wrapped = opcode
                   ? add_instruction(reader, computation, opcode, opcode, instruction->shape->tuple_shapes[1])
                   : NULL;
    if (!*wrapped) return ir_scan_memory(scanner);
    (*wrapped)->operand_ids = operands;
    (*wrapped)->n_operand_ids = count;
    computation->root_id = (*wrapped)->id;
    if ((*wrapped)->id == reader->find_id) reader->found_at = scanner->at;
    TRY(ir_reader_program_shape(reader, computation, scanner->at));
    TRY(ir_reader_add_computation(reader, computation, name));
    int64_t *called = ir_push(scanner->arena, &instruction->called_computation_ids,
                              &instruction->n_called_computation_ids, sizeof *called);
    if (!called) return ir_scan_memory(scanner);
    *called = computation->id;
    return AM_OK;
}

/* Returns the operator that an update or done belongs to, or NULL. */
static Hlo__HloInstructionProto *find_wrapped(const IrTextReader *reader,
                                              const Hlo__HloInstructionProto *instruction) {
    for (int32_t step = 0; step < MOST_UPDATES && instruction && instruction->n_operand_ids == 1; step++) {
        instruction = ir_reader_instruction(reader->computation, instruction->operand_ids[0]);
        if (!instruction || instruction->n_called_computation_ids != 1) continue;
        const Hlo__HloComputationProto *computation =
            reader->module->computations[instruction->called_computation_ids[0] - 1];
        return ir_reader_instruction(computation, computation->root_id);
    }
    return NULL;
}

AmStatus ir_async_finish(IrTextReader *reader, Hlo__HloInstructionProto *instruction,
                         Hlo__HloInstructionProto *wrapped, IrWord wrapped_opcode, int64_t start) {
    if (!wrapped) { /* an update or done: its backend_config is the operator's */
        wrapped = find_wrapped(reader, instruction);
        if (wrapped && !ir_word_is(wrapped_opcode, wrapped->opcode)) {
            return ir_scan_fail(&reader->scanner, start, "this belongs to '%.80s-start', expected '%.80s-%s'",
                                wrapped->opcode, wrapped->opcode, strchr(instruction->opcode, '-') + 1);
        }
        if (wrapped && instruction->backend_config.len) wrapped->backend_config = instruction->backend_config;
        return AM_OK;
    }
    wrapped->backend_config = instruction->backend_config;
    wrapped->frontend_attributes = instruction->frontend_attributes;
    wrapped->metadata = instruction->metadata;
    int64_t called = instruction->called_computation_ids[0];
    reader->module->computations[called - 1]->execution_thread = instruction->async_execution_thread;
    return AM_OK;
}
