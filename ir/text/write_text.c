/* A message as HLO text, in XLA's spelling with '%' before names.
 *
 * Computations and instructions keep their order where operands and callees come
 * first, or take that of the schedule (ir/text/text_order.c). Names are made fit for the text
 * (other characters become '_') and unique, in the module for computations and in
 * their computation for instructions; operands are found by id in sorted arrays.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ir/build/schedule.h"
#include "ir/text/hlo_text.h"

typedef struct IrIdEntry {
    uint64_t id;
    int32_t index;
} IrIdEntry;

static int compare_ids(const void *a, const void *b) {
    uint64_t left = ((const IrIdEntry *)a)->id, right = ((const IrIdEntry *)b)->id;
    return left < right ? -1 : left > right;
}

static int32_t find_id(const IrIdEntry *entries, size_t count, uint64_t id) {
    IrIdEntry key = {id, 0};
    const IrIdEntry *found = count ? bsearch(&key, entries, count, sizeof key, compare_ids) : NULL;
    return found ? found->index : -1;
}

int32_t ir_writer_computation(const IrTextWriter *writer, int64_t id) {
    return find_id(writer->computation_ids, writer->module->n_computations, (uint64_t)id);
}

int32_t ir_writer_instruction(const IrTextWriter *writer, int64_t id) {
    return find_id(writer->instruction_ids, writer->computation->n_instructions, (uint32_t)id);
}

/* Returns a valid form of the name that is not yet in `names`. */
static const char *fit_name(Arena *arena, IrNames *names, const char *name, int32_t index) {
    size_t length = strlen(name);
    char *fitted = length ? arena_copy_bytes(arena, name, length) : arena_copy_string(arena, "unnamed");
    if (!fitted) return NULL;
    for (char *at = fitted; *at; at++) {
        bool is_fit = isalnum((unsigned char)*at) || *at == '_' || *at == '.' || (*at == '-' && at > fitted);
        if (!is_fit) *at = '_';
    }
    if (isdigit((unsigned char)*fitted) || *fitted == '.') *fitted = '_';
    IrWord word = {fitted, (int64_t)strlen(fitted)};
    while (ir_names_find(names, word) >= 0) {
        fitted = arena_format(arena, "%s.%d", fitted, index);
        if (!fitted) return NULL;
        word = (IrWord){fitted, (int64_t)strlen(fitted)};
    }
    return ir_names_add(names, arena, word, index) ? fitted : NULL;
}

static AmStatus name_computations(IrTextWriter *writer) {
    const Hlo__HloModuleProto *module = writer->module;
    size_t count = module->n_computations;
    IrNames names = {0};
    writer->computation_names = ARENA_ARRAY(&writer->arena, const char *, count + 1);
    writer->computation_ids = ARENA_ARRAY(&writer->arena, IrIdEntry, count + 1);
    if (!writer->computation_names || !writer->computation_ids) return am_fail_memory(writer->error, 0);
    for (size_t i = 0; i < count; i++) {
        writer->computation_ids[i] = (IrIdEntry){(uint64_t)module->computations[i]->id, (int32_t)i};
        writer->computation_names[i] =
            fit_name(&writer->arena, &names, module->computations[i]->name, (int32_t)i);
        if (!writer->computation_names[i]) return am_fail_memory(writer->error, 0);
    }
    qsort(writer->computation_ids, count, sizeof(IrIdEntry), compare_ids);
    return AM_OK;
}

static AmStatus name_instructions(IrTextWriter *writer) {
    const Hlo__HloComputationProto *computation = writer->computation;
    size_t count = computation->n_instructions;
    IrNames names = {0};
    writer->instruction_names = ARENA_ARRAY(&writer->arena, const char *, count + 1);
    writer->instruction_ids = ARENA_ARRAY(&writer->arena, IrIdEntry, count + 1);
    if (!writer->instruction_names || !writer->instruction_ids) return am_fail_memory(writer->error, 0);
    for (size_t i = 0; i < count; i++) {
        const Hlo__HloInstructionProto *instruction = computation->instructions[i];
        writer->instruction_ids[i] = (IrIdEntry){(uint32_t)instruction->id, (int32_t)i};
        writer->instruction_names[i] = fit_name(&writer->arena, &names, instruction->name, (int32_t)i);
        if (!writer->instruction_names[i]) return am_fail_memory(writer->error, 0);
    }
    qsort(writer->instruction_ids, count, sizeof(IrIdEntry), compare_ids);
    return AM_OK;
}

static AmStatus write_instruction(IrTextWriter *writer, size_t index, bool is_root) {
    const Hlo__HloInstructionProto *instruction = writer->computation->instructions[index];
    Text *out = writer->out;
    text_append(out, "  %s%%%s = ", is_root ? "ROOT " : "", writer->instruction_names[index]);
    ir_write_shape(out, instruction->shape, true);
    text_append(out, " %s(", instruction->opcode);
    if (strcmp(instruction->opcode, "constant") == 0) {
        TRY(ir_write_literal(out, instruction->shape, instruction->literal, writer->error));
    } else if (strcmp(instruction->opcode, "parameter") == 0) {
        text_append(out, "%lld", (long long)instruction->parameter_number);
    } else {
        for (size_t i = 0; i < instruction->n_operand_ids; i++) {
            int32_t operand = ir_writer_instruction(writer, instruction->operand_ids[i]);
            if (operand < 0) {
                return am_fail(writer->error, AM_ERROR_INPUT, "", "instruction '%s': no operand of id %lld",
                               instruction->name, (long long)instruction->operand_ids[i]);
            }
            if (i) text_append_string(writer->out, ", ");
            if (i && i % 5 == 0) text_append(writer->out, "/*index=%zu*/", i);
            text_append(writer->out, "%%%s", writer->instruction_names[operand]);
        }
    }
    text_append_string(out, ")");
    TRY(ir_write_attributes(writer, instruction));
    text_append_string(out, "\n");
    return AM_OK;
}

/* Writes (a: f32[2], b: s32[]) -> f32[2], parameters by number. */
static AmStatus write_program_shape(IrTextWriter *writer, const Hlo__ShapeProto *result) {
    const Hlo__HloComputationProto *computation = writer->computation;
    size_t count = computation->n_instructions;
    int32_t *by_number = ARENA_ARRAY(&writer->arena, int32_t, count + 1);
    if (!by_number) return am_fail_memory(writer->error, (int64_t)(count * sizeof *by_number));
    for (size_t i = 0; i < count; i++) {
        const Hlo__HloInstructionProto *instruction = computation->instructions[i];
        int64_t number = instruction->parameter_number;
        bool is_parameter = strcmp(instruction->opcode, "parameter") == 0;
        if (is_parameter && number >= 0 && number < (int64_t)count) by_number[number] = (int32_t)i + 1;
    }
    text_append_string(writer->out, " (");
    for (size_t number = 0; by_number[number]; number++) {
        int32_t index = by_number[number] - 1;
        text_append(writer->out, number ? ", %s: " : "%s: ", writer->instruction_names[index]);
        ir_write_shape(writer->out, computation->instructions[index]->shape, false);
    }
    text_append_string(writer->out, ") -> ");
    ir_write_shape(writer->out, result, false);
    return AM_OK;
}

static AmStatus write_computation(IrTextWriter *writer, size_t index, bool is_entry) {
    const Hlo__HloComputationProto *computation = writer->module->computations[index];
    ArenaMark mark = arena_mark(&writer->arena);
    writer->computation = computation;
    TRY(name_instructions(writer));
    int32_t root = ir_writer_instruction(writer, computation->root_id);
    if (computation->n_instructions == 0 || root < 0) {
        return am_fail(writer->error, AM_ERROR_INPUT, "", "computation '%s' has no root", computation->name);
    }
    text_append(writer->out, "%s%%%s", is_entry ? "ENTRY " : "", writer->computation_names[index]);
    TRY(write_program_shape(writer, computation->instructions[root]->shape));
    text_append_string(writer->out, " {\n");
    const int32_t *order;
    TRY(ir_order_instructions(writer, &order));
    for (size_t i = 0; i < computation->n_instructions; i++) {
        TRY(write_instruction(writer, (size_t)order[i], order[i] == root));
    }
    text_append_string(writer->out, "}");
    if (*computation->execution_thread) {
        text_append_string(writer->out, ", execution_thread=");
        ir_write_string(writer->out, computation->execution_thread, strlen(computation->execution_thread));
    }
    text_append_string(writer->out, "\n\n");
    arena_release(&writer->arena, mark);
    return AM_OK;
}

AmStatus ir_print_text(Text *out, const Hlo__HloModuleProto *message, AmError *error) {
    AmError own = {0};
    IrSchedule schedule = {0};
    IrTextWriter writer = {
        .out = out, .module = message, .error = error ? error : &own, .schedule = &schedule};
    AmStatus status = AM_OK;
    IrNames none = {0};
    const char *name = fit_name(&writer.arena, &none, message->name, 0);
    if (!name) TRY_OR_FAIL(am_fail_memory(writer.error, 0));
    TRY_OR_FAIL(name_computations(&writer));
    int32_t entry = ir_writer_computation(&writer, message->entry_computation_id);
    if (entry < 0)
        TRY_OR_FAIL(am_fail(writer.error, AM_ERROR_INPUT, "", "the module has no entry computation"));
    if (!ir_schedule_index(&schedule, message, &writer.arena)) TRY_OR_FAIL(am_fail_memory(writer.error, 0));
    writer.is_scheduled = schedule.message != NULL;
    ir_write_header(&writer, name);
    ir_write_tables(out, message->stack_frame_index);
    const int32_t *order;
    TRY_OR_FAIL(ir_order_computations(&writer, &order));
    for (size_t i = 0; i < message->n_computations; i++)
        TRY_OR_FAIL(write_computation(&writer, (size_t)order[i], order[i] == entry));
    status = out->failed ? am_fail_memory(writer.error, (int64_t)out->length) : AM_OK;
fail:
    arena_free(&writer.arena);
    return status;
}
