/* Warnings about operators without a partitioning rule: every device computes them
 * in full. One warning per opcode names its largest instruction with source line
 * and bytes, counts the others, and gives a remedy:
 *
 *   operator "while" has no partitioning rule: "jit(f)/while" (model.py:12, 1.05 MB)
 *   and 3 others are computed on every device; ...
 *
 * Known operators below RULES_TINY_BYTES are left out: the loops in which JAX
 * splits random keys carry a few bytes.
 */
#include "propagation/rules/rules_warnings.h"

#include <string.h>

#include "ir/opcode_hint.h"

enum { RULES_TINY_BYTES = 64 << 10, MOST_GROUPS = 16 };

static const char *opcode_name_of(const IrInstruction *instruction) {
    return instruction->opcode_name ? instruction->opcode_name : ir_opcode_name(instruction->opcode);
}

/* Returns the bytes of the result or of the largest operand, whichever is more. */
static int64_t bytes_of(const IrModule *module, const IrInstruction *instruction) {
    int64_t most = ir_shape_bytes(&instruction->shape);
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int64_t bytes = ir_shape_bytes(&module->instructions[instruction->operands[k]].shape);
        if (bytes > most) most = bytes;
    }
    return most;
}

static const char *remedy_of(const IrInstruction *instruction) {
    if (instruction->opcode == IR_WHILE)
        return "a loop is split where it carries one tuple and no other loop calls its body; for random "
               "numbers of JAX, jax.random.key(seed, impl=\"rbg\") makes no loop";
    if (instruction->opcode == IR_CUSTOM_CALL || instruction->opcode == IR_UNKNOWN)
        return "operators of HLO in its place can be split";
    return "operators with a rule can be split";
}

static void warn_of_opcode(IrModule *module, const IrInstruction *largest, int32_t others) {
    Text text = {0};
    char hint[SUGGEST_HINT_BYTES];
    text_append(&text, "operator \"%s\" has no partitioning rule: \"%s\" (", opcode_name_of(largest),
                *largest->op_name ? largest->op_name : largest->name);
    if (*largest->source_file) text_append(&text, "%s:%d, ", largest->source_file, (int)largest->source_line);
    text_append_bytes_size(&text, (double)bytes_of(module, largest));
    text_append_string(&text, ")");
    if (others > 0) text_append(&text, " and %d other%s", (int)others, others > 1 ? "s" : "");
    text_append(&text, " %s computed on every device; %s", others > 0 ? "are" : "is", remedy_of(largest));
    text_append_string(&text, ir_opcode_hint(hint, opcode_name_of(largest)));
    if (!text.failed) am_warn(&module->warnings, "%s", text.data);
    text_free(&text);
}

/* Instructions of one opcode. */
typedef struct WarningGroup {
    const IrInstruction *largest;
    int32_t count;
} WarningGroup;

void rules_warn(IrModule *module, const bool *is_blocked) {
    WarningGroup groups[MOST_GROUPS];
    int32_t group_count = 0, rest = 0;
    if (module->is_optimized) {
        am_warn(&module->warnings, "%s", IR_OPTIMIZED_TEXT);
        return;
    }
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        int32_t g = 0;
        if (!is_blocked[i]) continue;
        bool is_known = instruction->opcode != IR_UNKNOWN && instruction->opcode != IR_CUSTOM_CALL;
        if (is_known && bytes_of(module, instruction) < RULES_TINY_BYTES) continue;
        while (g < group_count && strcmp(opcode_name_of(groups[g].largest), opcode_name_of(instruction)) != 0)
            g++;
        if (g == MOST_GROUPS) {
            rest++;
            continue;
        }
        if (g == group_count) groups[group_count++] = (WarningGroup){instruction, 0};
        groups[g].count++;
        if (bytes_of(module, instruction) > bytes_of(module, groups[g].largest))
            groups[g].largest = instruction;
    }
    for (int32_t g = 0; g < group_count; g++) warn_of_opcode(module, groups[g].largest, groups[g].count - 1);
    if (rest > 0) am_warn(&module->warnings, "%d more instructions have no partitioning rule", (int)rest);
}
