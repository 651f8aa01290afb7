/* The builder: makes an IrModule from a HloModuleProto.
 *
 * The builder resolves ids. A computation is identified by its full id. An instruction is
 * identified within its computation by the low 32 bits of its id, which covers both schemes in use:
 * small numbers that are unique in the module, and computation id * 2^32 + local id. Operands and
 * control predecessors must belong to the same computation and, as in XLA, precede their users;
 * this excludes cycles. Recursive computations are refused. In a compiled module with a schedule,
 * the instructions are read in the order of the schedule.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ir/build/build_parts.h"

AmStatus build_refuse(const Builder *builder, const Hlo__HloInstructionProto *message, const char *format,
                      ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    builder->module->refused = message;
    return am_fail(builder->error, AM_ERROR_INPUT, builder->module->source, "instruction %s (%s): %s",
                   message->name, message->opcode, text);
}

static AmStatus refuse_module(const Builder *builder, const char *what) {
    return am_fail(builder->error, AM_ERROR_INPUT, builder->module->source, "%s", what);
}

static int64_t local_id(int64_t id) {
    return id & 0xFFFFFFFF;
}

/* Translates ids into indices of instructions of the computation whose ids `locals` holds, all below
 * `own`. */
static AmStatus resolve_ids(const Builder *builder, const int32_t **indices, int32_t *count,
                            const int64_t *ids, size_t id_count, const char *what,
                            const Hlo__HloInstructionProto *owner, int32_t own) {
    if (id_count == 0) return AM_OK;
    int32_t *resolved = ARENA_ARRAY(builder->arena, int32_t, id_count);
    if (resolved == NULL) return am_fail_memory(builder->error, (int64_t)(id_count * sizeof *resolved));
    for (size_t i = 0; i < id_count; i++) {
        resolved[i] = id_map_find(&builder->locals, local_id(ids[i]));
        if (resolved[i] < 0) {
            return build_refuse(builder, owner,
                                "%s %zu has id %lld, which no instruction of its computation has", what, i,
                                (long long)ids[i]);
        }
        if (resolved[i] >= own) {
            return build_refuse(builder, owner,
                                "%s %zu has id %lld, which is this instruction or a later one", what, i,
                                (long long)ids[i]);
        }
    }
    *indices = resolved;
    *count = (int32_t)id_count;
    return AM_OK;
}

static AmStatus resolve_called(const Builder *builder, IrInstruction *instruction,
                               const Hlo__HloInstructionProto *message) {
    size_t count = message->n_called_computation_ids;
    if (count == 0) return AM_OK;
    int32_t *called = ARENA_ARRAY(builder->arena, int32_t, count);
    if (called == NULL) return am_fail_memory(builder->error, (int64_t)(count * sizeof *called));
    for (size_t i = 0; i < count; i++) {
        called[i] = id_map_find(&builder->computations, message->called_computation_ids[i]);
        if (called[i] < 0) {
            return build_refuse(builder, message, "it calls the computation with id %lld, which there is not",
                                (long long)message->called_computation_ids[i]);
        }
    }
    instruction->called = called;
    instruction->called_count = (int32_t)count;
    return AM_OK;
}

static AmStatus build_instruction(const Builder *builder, IrInstruction *instruction,
                                  Hlo__HloInstructionProto *message) {
    int32_t own = (int32_t)(instruction - builder->module->instructions);
    instruction->message = message;
    instruction->name = message->name;
    if (message->name[0] == '\0') {
        instruction->name =
            arena_format(builder->arena, "%s.%lld", message->opcode, (long long)local_id(message->id));
        if (instruction->name == NULL) return am_fail_memory(builder->error, 64);
    }
    if (message->opcode[0] == '\0') return build_refuse(builder, message, "it has no opcode");
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";
    if (message->opcode[strspn(message->opcode, letters)] != '\0') /* unknown opcodes of this form are kept */
        return build_refuse(builder, message, "its opcode is not a word");
    const ProtobufCBinaryData *config = ir_payload(builder->message, message->backend_config_payload);
    if (config != NULL && message->backend_config.len == 0) { /* as XLA itself does when it reads */
        message->backend_config = *config;
        message->backend_config_payload = NULL;
    }
    instruction->opcode = ir_opcode_from_name(message->opcode);
    instruction->opcode_name = message->opcode;
    TRY(build_shape(builder, &instruction->shape, message->shape, message));
    TRY(resolve_ids(builder, &instruction->operands, &instruction->operand_count, message->operand_ids,
                    message->n_operand_ids, "operand", message, own));
    TRY(resolve_ids(builder, &instruction->control, &instruction->control_count,
                    message->control_predecessor_ids, message->n_control_predecessor_ids,
                    "control predecessor", message, own));
    TRY(resolve_called(builder, instruction, message));
    TRY(build_attributes(builder, &instruction->attributes, instruction->opcode, message));
    if (instruction->opcode == IR_CONSTANT) {
        TRY(build_literal(builder, &instruction->literal, &instruction->shape, message));
    }
    build_source(builder, instruction, message->metadata);
    return AM_OK;
}

/* Numbers must be 0, 1, ..., each once. */
static AmStatus find_parameters(const Builder *builder, IrComputation *computation) {
    const IrInstruction *instructions = builder->module->instructions;
    int32_t end = computation->first + computation->count;
    for (int32_t i = computation->first; i < end; i++) {
        computation->parameter_count += instructions[i].opcode == IR_PARAMETER;
    }
    int32_t *parameters = ARENA_ARRAY(builder->arena, int32_t, computation->parameter_count);
    if (parameters == NULL) return am_fail_memory(builder->error, computation->parameter_count * 4L);
    for (int32_t i = 0; i < computation->parameter_count; i++) parameters[i] = -1;
    for (int32_t i = computation->first; i < end; i++) {
        if (instructions[i].opcode != IR_PARAMETER) continue;
        int64_t number = instructions[i].attributes->parameter_number;
        if (number < 0 || number >= computation->parameter_count || parameters[number] >= 0) {
            return build_refuse(
                builder, instructions[i].message,
                "its parameter number %lld is taken or not below %d, the number of parameters",
                (long long)number, computation->parameter_count);
        }
        parameters[number] = i;
    }
    computation->parameters = parameters;
    return AM_OK;
}

/* Fills the map of ids. order[k], if given, is the position in the message of the
 * instruction that comes k-th; else they come as in the message, from 0. */
static AmStatus number_instructions(Builder *builder, const Hlo__HloComputationProto *message,
                                    const int32_t *order, int32_t first) {
    int32_t count = (int32_t)message->n_instructions;
    id_map_clear(&builder->locals, count);
    for (int32_t k = 0; k < count; k++) {
        const Hlo__HloInstructionProto *instruction = message->instructions[order ? order[k] : k];
        if (!id_map_add(&builder->locals, local_id(instruction->id), first + k)) {
            return build_refuse(builder, instruction, "its id %lld is already taken",
                                (long long)instruction->id);
        }
    }
    return AM_OK;
}

static AmStatus build_computation(Builder *builder, IrComputation *computation,
                                  const Hlo__HloComputationProto *message) {
    IrModule *module = builder->module;
    int32_t *order = NULL;
    if (builder->schedule.message != NULL) {
        TRY(number_instructions(builder, message, NULL, 0));
        order = ARENA_ARRAY(builder->arena, int32_t, computation->count);
        if (order == NULL) return am_fail_memory(builder->error, computation->count * 4L);
        if (!ir_schedule_order(order, &builder->schedule, message, &builder->locals)) order = NULL;
    }
    TRY(number_instructions(builder, message, order, computation->first));
    for (int32_t k = 0; k < computation->count; k++) {
        TRY(build_instruction(builder, &module->instructions[computation->first + k],
                              message->instructions[order ? order[k] : k]));
    }
    computation->root = id_map_find(&builder->locals, local_id(message->root_id));
    if (computation->root < 0) {
        return am_fail(builder->error, AM_ERROR_INPUT, module->source,
                       "computation %s: its root has id %lld, which none of its instructions has",
                       message->name, (long long)message->root_id);
    }
    return find_parameters(builder, computation);
}

static AmStatus place_computations(Builder *builder) {
    IrModule *module = builder->module;
    const Hlo__HloModuleProto *message = builder->message;
    if (message->n_computations == 0) return refuse_module(builder, "the module has no computations");
    int64_t total = 0, largest = 0, count = (int64_t)message->n_computations;
    for (int64_t i = 0; i < count; i++) {
        int64_t size = (int64_t)message->computations[i]->n_instructions;
        total += size;
        largest = size > largest ? size : largest;
    }
    if (total > INT32_MAX || count > INT32_MAX) return refuse_module(builder, "more than 2^31 instructions");
    module->instruction_count = (int32_t)total;
    module->computation_count = (int32_t)count;
    module->instructions = ARENA_ARRAY(builder->arena, IrInstruction, total);
    module->computations = ARENA_ARRAY(builder->arena, IrComputation, count);
    bool have_maps = id_map_create(&builder->computations, builder->arena, count) &&
                     id_map_create(&builder->locals, builder->arena, largest);
    if (!have_maps || module->instructions == NULL || module->computations == NULL) {
        return am_fail_memory(builder->error, total * (int64_t)sizeof *module->instructions);
    }
    int32_t first = 0;
    for (int32_t i = 0; i < module->computation_count; i++) {
        const Hlo__HloComputationProto *from = message->computations[i];
        module->computations[i] =
            (IrComputation){.name = from->name, .first = first, .count = (int32_t)from->n_instructions};
        first += (int32_t)from->n_instructions;
        if (!id_map_add(&builder->computations, from->id, i)) {
            return am_fail(builder->error, AM_ERROR_INPUT, module->source,
                           "computation %s: its id %lld is already taken", from->name, (long long)from->id);
        }
    }
    return AM_OK;
}

static AmStatus find_entry(const Builder *builder) {
    IrModule *module = builder->module;
    const Hlo__HloModuleProto *message = builder->message;
    module->entry = id_map_find(&builder->computations, message->entry_computation_id);
    for (int32_t i = 0; i < module->computation_count && module->entry < 0; i++) {
        if (strcmp(module->computations[i].name, message->entry_computation_name) == 0) module->entry = i;
    }
    if (module->entry >= 0) return AM_OK;
    return am_fail(builder->error, AM_ERROR_INPUT, module->source,
                   "the entry computation has id %lld, which no computation has",
                   (long long)message->entry_computation_id);
}

/* Computations in an order in which callees come first; a call graph with a
 * cycle leaves some unplaced. */
static AmStatus refuse_recursion(const Builder *builder) {
    const IrModule *module = builder->module;
    int32_t count = module->computation_count, placed = 0;
    int32_t *callers = ARENA_ARRAY(builder->arena, int32_t, count); /* call sites of it that are left */
    int32_t *ready = ARENA_ARRAY(builder->arena, int32_t, count);
    if (callers == NULL || ready == NULL) return am_fail_memory(builder->error, count * 8L);
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        for (int32_t k = 0; k < instruction->called_count; k++) callers[instruction->called[k]]++;
    }
    for (int32_t i = 0; i < count; i++) {
        if (callers[i] == 0) ready[placed++] = i;
    }
    for (int32_t at = 0; at < placed; at++) {
        const IrComputation *computation = &module->computations[ready[at]];
        for (int32_t i = computation->first; i < computation->first + computation->count; i++) {
            const IrInstruction *instruction = &module->instructions[i];
            for (int32_t k = 0; k < instruction->called_count; k++) {
                if (--callers[instruction->called[k]] == 0) ready[placed++] = instruction->called[k];
            }
        }
    }
    for (int32_t i = 0; i < count && placed < count; i++) {
        if (callers[i] == 0) continue;
        return am_fail(builder->error, AM_ERROR_INPUT, module->source, "computation %s: it calls itself",
                       module->computations[i].name);
    }
    return AM_OK;
}

static AmStatus build_aliases(const Builder *builder) {
    IrModule *module = builder->module;
    const Hlo__HloInputOutputAliasProto *message = builder->message->input_output_alias;
    if (message == NULL || message->n_entries == 0) return AM_OK;
    const IrComputation *entry = &module->computations[module->entry];
    const IrShape *result = &module->instructions[entry->root].shape;
    module->aliases = ARENA_ARRAY(builder->arena, IrAlias, message->n_entries);
    if (module->aliases == NULL)
        return am_fail_memory(builder->error, (int64_t)(message->n_entries * sizeof(IrAlias)));
    for (size_t i = 0; i < message->n_entries; i++) {
        const Hlo__HloInputOutputAliasProto__AliasEntryProto *from = message->entries[i];
        if (from->n_output_shape_index > 1 || from->n_parameter_shape_index > 0) {
            am_warn(&module->warnings, "%s: aliases of parts of nested tuples are ignored", module->source);
            continue;
        }
        int64_t output = from->n_output_shape_index == 0 ? -1 : from->output_shape_index[0];
        bool output_exists =
            output == -1 || (output >= 0 && result->type == DTYPE_TUPLE && output < result->rank);
        bool parameter_exists =
            from->parameter_number >= 0 && from->parameter_number < entry->parameter_count;
        if (!output_exists || !parameter_exists) {
            return am_fail(builder->error, AM_ERROR_INPUT, module->source,
                           "alias %zu: there is no output %lld or no parameter %lld", i, (long long)output,
                           (long long)from->parameter_number);
        }
        module->aliases[module->alias_count++] = (IrAlias){(int32_t)output, (int32_t)from->parameter_number};
    }
    return AM_OK;
}

AmStatus ir_build(IrModule *module, Hlo__HloModuleProto *message, AmError *error) {
    Builder builder = {.module = module, .arena = &module->arena, .message = message, .error = error};
    module->message = message;
    module->name = message->name;
    builder.shared_metadata = ARENA_ARRAY(builder.arena, const Hlo__OpMetadata *, message->n_payloads);
    if (builder.shared_metadata == NULL) return am_fail_memory(error, (int64_t)message->n_payloads * 8);
    if (!ir_schedule_index(&builder.schedule, message, builder.arena))
        return am_fail_memory(error, (int64_t)message->schedule->n_sequences * 16);
    TRY(place_computations(&builder));
    TRY(find_entry(&builder));
    for (int32_t i = 0; i < module->computation_count; i++) {
        TRY(build_computation(&builder, &module->computations[i], message->computations[i]));
    }
    TRY(refuse_recursion(&builder));
    module->is_optimized = builder.schedule.message != NULL;
    for (int32_t i = 0; i < module->instruction_count; i++)
        module->is_optimized |= module->instructions[i].opcode == IR_FUSION;
    return build_aliases(&builder);
}

const char *ir_frontend_attribute(const Hlo__FrontendAttributes *attributes, const char *key) {
    for (size_t k = 0; attributes && k < attributes->n_map; k++)
        if (strcmp(attributes->map[k]->key, key) == 0) return attributes->map[k]->value;
    return NULL;
}
