/* The verifier: every instruction has the operands and the shape that its operator implies, so that
 * later passes need no checks.
 *
 * The rules are those of XLA's shape inference and verifier: one row per opcode (ir/opcodes.def) and
 * one function each, by family in verify_*.c. Unknown opcodes are accepted. A rule that is stricter
 * than XLA's, because planner and kernels rely on it, has a comment. A module that breaks such rules alone
 * is read, so that `info` and `convert` take it, and IrModule.unplanned has the first error: a rule that
 * refuses is verified again with `is_lax`.
 *
 * The builder guarantees that all operands and called computations of an instruction exist, and
 * that its tuples have bounded depth.
 */
#include <stdarg.h>
#include <stdio.h>

#include "ir/verify/verify_parts.h"

AmStatus verify_refuse(const Verifier *verifier, const IrInstruction *instruction, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *source = verifier->module->source;
    verifier->module->refused = instruction->message;
    if (instruction->source_file[0] == '\0') {
        return am_fail(verifier->error, AM_ERROR_INPUT, source, "instruction %s (%s): %s", instruction->name,
                       instruction->opcode_name, text);
    }
    return am_fail(verifier->error, AM_ERROR_INPUT, source, "instruction %s (%s, from %s:%d): %s",
                   instruction->name, instruction->opcode_name, instruction->source_file,
                   instruction->source_line, text);
}

static AmStatus verify_count(const Verifier *verifier, const IrInstruction *instruction, int32_t fewest) {
    int32_t arity = ir_opcode_arity(instruction->opcode);
    if (arity >= 0 && instruction->operand_count != arity) {
        return verify_refuse(verifier, instruction, "it has %d operands, expected %d",
                             instruction->operand_count, arity);
    }
    if (instruction->operand_count < fewest) {
        return verify_refuse(verifier, instruction, "it has %d operands, expected %d or more",
                             instruction->operand_count, fewest);
    }
    return AM_OK;
}

/* Writes the members of a set of types, in words. */
static void describe(uint8_t set, char text[static 128]) {
    static const char *const names[] = {"pred", "signed", "unsigned", "floating", "complex"};
    int length = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < 5; i++) {
        if (!(set >> i & 1)) continue;
        bool is_last = (set & (VERIFY_ARRAY & (0xFF << (i + 1)))) == 0;
        const char *between = length == 0 ? "" : is_last ? " or " : ", ";
        length += snprintf(text + length, (size_t)(128 - length), "%s%s", between, names[i]);
    }
}

/* Checks that a type is in a set. `whose` names the owner of the type in the message. */
static AmStatus verify_in_set(const Verifier *verifier, const IrInstruction *instruction, Dtype type,
                              uint8_t set, const char *whose) {
    if (verify_set_of(type) & set) return AM_OK;
    if (dtype_bits(type) == 0) return verify_refuse(verifier, instruction, "%s is not an array", whose);
    char expected[128];
    describe(set, expected);
    return verify_refuse(verifier, instruction, "%s has the type %s, expected %s", whose, dtype_name(type),
                         expected);
}

/* Returns whether the result, an operand or the signature of a called computation has a dimension without a
 * size; sizes are then not compared. */
static bool touches_unbounded(const Verifier *verifier, const IrInstruction *instruction) {
    if (ir_shape_is_unbounded(&instruction->shape)) return true;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        if (ir_shape_is_unbounded(verify_operand(verifier, instruction, k))) return true;
    for (int32_t k = 0; k < instruction->called_count; k++) {
        const IrComputation *called = verify_called(verifier, instruction, k);
        if (ir_shape_is_unbounded(verify_root_shape(verifier, called))) return true;
        for (int32_t p = 0; p < called->parameter_count; p++)
            if (ir_shape_is_unbounded(verify_parameter_shape(verifier, called, p))) return true;
    }
    return false;
}

static AmStatus verify_instruction(const Verifier *verifier, const IrInstruction *instruction) {
    const VerifyRow *row = &verify_rows[instruction->opcode];
    TRY(verify_count(verifier, instruction, row->fewest));
    for (int32_t k = 0; k < instruction->operand_count && row->operands != VERIFY_ANYTHING; k++) {
        Dtype type = verify_operand(verifier, instruction, k)->type;
        if (verify_set_of(type) & row->operands) continue;
        char whose[32];
        snprintf(whose, sizeof whose, "operand %d", k);
        return verify_in_set(verifier, instruction, type, row->operands, whose);
    }
    TRY(verify_in_set(verifier, instruction, instruction->shape.type, row->result, "its shape"));
    if (verifier->module->unbounded && touches_unbounded(verifier, instruction)) return AM_OK;
    return row->function(verifier, instruction);
}

/* Notes why no plan of the module can be made, though XLA accepts it: the first reason alone. */
static AmStatus note_unplanned(const Verifier *verifier, const AmError *reason,
                               const IrInstruction *instruction) {
    IrModule *module = verifier->module;
    if (module->unplanned) return AM_OK;
    AmError *kept = ARENA_ARRAY(&module->arena, AmError, 1);
    if (!kept) return am_fail_memory(verifier->error, sizeof *kept);
    *kept = *reason;
    module->unplanned = kept;
    module->refused = instruction->message;
    am_warn(&module->warnings, "%s (XLA accepts it; no plan can be made)", reason->text);
    return AM_OK;
}

/* Notes the first error of the module that XLA does not have; otherwise refuses the instruction. */
static AmStatus verify_as_xla(const Verifier *verifier, const IrInstruction *instruction) {
    IrModule *module = verifier->module;
    AmError strict = {0}, ignored = {0};
    Verifier first = {module, &strict, false}, second = {module, &ignored, true};
    AmStatus status = verify_instruction(&first, instruction);
    if (status == AM_OK) return AM_OK;
    bool is_accepted = status == AM_ERROR_INPUT && !ir_opcode_has(instruction->opcode, FACT_KEEPS_TYPES) &&
                       verify_instruction(&second, instruction) == AM_OK;
    if (!is_accepted) {
        module->refused = instruction->message;
        if (verifier->error && verifier->error->code == AM_OK) *verifier->error = strict;
        return status;
    }
    return note_unplanned(verifier, &strict, instruction);
}

/* Plans add up the bytes of values, with several copies of each: the sums stay below 2^63. */
#define MOST_BYTES ((int64_t)1 << 58)

/* Notes the instruction at which the values of the module have more bytes than sums of plans can hold. */
static AmStatus verify_bytes(const Verifier *verifier) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < verifier->module->instruction_count && !verifier->module->unbounded; i++) {
        const IrInstruction *instruction = &verifier->module->instructions[i];
        AmError reason = {0};
        Verifier strict = {verifier->module, &reason, false};
        if (instruction->shape.type == DTYPE_TUPLE)
            continue; /* its elements are counted where they are made */
        int64_t own = ir_shape_bytes(&instruction->shape);
        if (own <= MOST_BYTES - bytes) {
            bytes += own;
            continue;
        }
        verify_refuse(&strict, instruction, "the values up to this one have more than 2^58 bytes");
        return note_unplanned(verifier, &reason, instruction);
    }
    return AM_OK;
}

AmStatus ir_verify(IrModule *module, AmError *error) {
    Verifier verifier = {module, error, false};
    for (int32_t i = 0; i < module->instruction_count; i++) {
        TRY(verify_as_xla(&verifier, &module->instructions[i]));
    }
    TRY(verify_module(&verifier));
    TRY(verify_bytes(&verifier));
    return verify_shardings(&verifier);
}
