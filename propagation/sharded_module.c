/* A canonical module with a sharding on every planned instruction, as HLO text.
 *
 * The text printer writes messages, so a message is made: every canonical
 * instruction is a shallow copy of the one it came from, under its canonical
 * name, with operands and called computations renumbered (calls are inlined, so
 * numbers of the file mean nothing here) and the state as an OpSharding.
 */
#include "ir/encodings.h"
#include "propagation/propagate.h"
#include "propagation/sharding.h"

typedef struct ModuleWriter {
    Arena arena;
    const PlanContext *context;
    const Mesh *mesh;
    const SbpState *states;
} ModuleWriter;

/* XLA's ids: the computation's above, the instruction's in the lower half. */
static int64_t instruction_id(const IrComputation *computation, int32_t number, int32_t instruction) {
    return (int64_t)number << 32 | (instruction - computation->first);
}

static int64_t *widen(Arena *arena, const int32_t *values, int32_t count) {
    int64_t *wide = ARENA_ARRAY(arena, int64_t, count);
    for (int32_t k = 0; wide && k < count; k++) wide[k] = values[k];
    return wide;
}

static Hlo__OpSharding *array_sharding(ModuleWriter *writer, SbpState state, int32_t rank) {
    Hlo__OpSharding *message = ARENA_ARRAY(&writer->arena, Hlo__OpSharding, 1);
    if (!message) return NULL;
    hlo__op_sharding__init(message);
    TiledSharding sharding = sharding_of_state(writer->mesh, state, rank);
    if (sharding.is_replicated) return message; /* type REPLICATED */
    message->type = HLO__OP_SHARDING__TYPE__OTHER;
    message->n_tile_assignment_dimensions = (size_t)sharding.tile_rank;
    message->tile_assignment_dimensions = widen(&writer->arena, sharding.tiles, sharding.tile_rank);
    message->n_iota_reshape_dims = message->n_iota_transpose_perm = (size_t)sharding.block_count;
    message->iota_reshape_dims = widen(&writer->arena, sharding.reshape, sharding.block_count);
    message->iota_transpose_perm = ARENA_ARRAY(&writer->arena, int32_t, sharding.block_count);
    message->last_tile_dims = ARENA_ARRAY(&writer->arena, Hlo__OpSharding__Type, 2);
    if (writer->arena.failed) return NULL;
    for (int32_t k = 0; k < sharding.block_count; k++) message->iota_transpose_perm[k] = sharding.order[k];
    message->replicate_on_last_tile_dim = sharding.has_whole && !sharding.has_partial;
    if (!sharding.has_partial) return message;
    message->last_tile_dims[message->n_last_tile_dims++] = HLO__OP_SHARDING__TYPE__UNREDUCED;
    if (sharding.has_whole)
        message->last_tile_dims[message->n_last_tile_dims++] = HLO__OP_SHARDING__TYPE__REPLICATED;
    return message;
}

/* The planned loop whose arrays this tuple holds: the loop itself, the parameter
 * of its body or condition, or what the body gives; or NULL. */
static const PlannedLoop *loop_of_tuple(const PlanContext *context, int32_t number, int32_t instruction) {
    const Rules *rules = context->rules;
    const IrComputation *computation = &context->canonical->computations[number];
    const PlannedLoop *loop = rules_loop(rules, instruction);
    if (loop || number == context->canonical->entry) return loop;
    for (int32_t k = 0; k < rules->loop_count; k++) {
        loop = &rules->loops[k];
        bool is_parameter =
            instruction == computation->parameters[0] && (loop->body == number || loop->condition == number);
        if (is_parameter || (loop->body == number && instruction == computation->root)) return loop;
    }
    return NULL;
}

static SbpState carried_state(const ModuleWriter *writer, const LoopLeaf *leaf) {
    int32_t speaker = rules_leaf_speaker(leaf);
    return speaker >= 0 ? writer->states[speaker] : (SbpState){.axis = {SBP_B}};
}

/* Leaves of a tuple: those of a planned loop by its arrays, those of a tuple
 * operator by its operands, others whole. */
static Hlo__OpSharding *sharding_of(ModuleWriter *writer, int32_t number, int32_t instruction) {
    const IrInstruction *value = &writer->context->canonical->instructions[instruction];
    SbpState whole = {.axis = {SBP_B}};
    if (value->shape.type != DTYPE_TUPLE)
        return array_sharding(writer, writer->states[instruction], value->shape.rank);
    Hlo__OpSharding *message = array_sharding(writer, whole, 0);
    int32_t count = rules_leaf_count(&value->shape);
    if (!message || count == 0) return message;
    message->type = HLO__OP_SHARDING__TYPE__TUPLE;
    message->tuple_shardings = ARENA_ARRAY(&writer->arena, Hlo__OpSharding *, count);
    if (!message->tuple_shardings) return NULL;
    const PlannedLoop *loop = loop_of_tuple(writer->context, number, instruction);
    for (int32_t leaf = 0; leaf < count; leaf++) {
        SbpState state = whole;
        const IrInstruction *operand = value->opcode == IR_TUPLE && count == value->operand_count
                                           ? &writer->context->canonical->instructions[value->operands[leaf]]
                                           : NULL;
        if (loop) state = carried_state(writer, &loop->leaves[leaf]);
        else if (operand && operand->shape.type != DTYPE_TUPLE) state = writer->states[value->operands[leaf]];
        message->tuple_shardings[message->n_tuple_shardings++] =
            array_sharding(writer, state, rules_leaf(&value->shape, leaf)->rank);
    }
    return message;
}

static Hlo__OpMetadata *metadata_of(ModuleWriter *writer, const IrInstruction *instruction) {
    const Hlo__OpMetadata *from = instruction->message->metadata;
    if (!from) return NULL;
    Hlo__OpMetadata *metadata = ARENA_ARRAY(&writer->arena, Hlo__OpMetadata, 1);
    if (!metadata) return NULL;
    *metadata = *from;
    metadata->op_name = (char *)instruction->op_name;
    return metadata;
}

static Hlo__HloInstructionProto *make_instruction(ModuleWriter *writer, int32_t number, int32_t index) {
    const IrModule *module = writer->context->canonical;
    const IrComputation *computation = &module->computations[number];
    const IrInstruction *instruction = &module->instructions[index];
    Hlo__HloInstructionProto *message = ARENA_ARRAY(&writer->arena, Hlo__HloInstructionProto, 1);
    if (!message) return NULL;
    *message = *instruction->message;
    message->name = (char *)instruction->name;
    message->metadata = metadata_of(writer, instruction);
    message->id = instruction_id(computation, number, index);
    message->n_operand_ids = (size_t)instruction->operand_count;
    message->operand_ids = widen(&writer->arena, instruction->operands, instruction->operand_count);
    message->n_control_predecessor_ids = (size_t)instruction->control_count;
    message->control_predecessor_ids =
        widen(&writer->arena, instruction->control, instruction->control_count);
    message->n_called_computation_ids = (size_t)instruction->called_count;
    message->called_computation_ids = widen(&writer->arena, instruction->called, instruction->called_count);
    if (writer->arena.failed) return NULL;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        message->operand_ids[k] = instruction_id(computation, number, instruction->operands[k]);
    for (int32_t k = 0; k < instruction->control_count; k++)
        message->control_predecessor_ids[k] = instruction_id(computation, number, instruction->control[k]);
    if (writer->context->rules->is_planned[number]) message->sharding = sharding_of(writer, number, index);
    return message;
}

static Hlo__HloComputationProto *make_computation(ModuleWriter *writer, int32_t number) {
    const IrComputation *computation = &writer->context->canonical->computations[number];
    Hlo__HloComputationProto *message = ARENA_ARRAY(&writer->arena, Hlo__HloComputationProto, 1);
    if (!message) return NULL;
    hlo__hlo_computation_proto__init(message);
    message->name = (char *)computation->name;
    message->id = number;
    message->root_id = instruction_id(computation, number, computation->root);
    message->n_instructions = (size_t)computation->count;
    message->instructions = ARENA_ARRAY(&writer->arena, Hlo__HloInstructionProto *, computation->count);
    for (int32_t k = 0; message->instructions && k < computation->count; k++)
        message->instructions[k] = make_instruction(writer, number, computation->first + k);
    return message;
}

AmStatus propagation_module_text(Text *text, const PlanContext *context, const Mesh *mesh,
                                 const SbpState *states, AmError *error) {
    const IrModule *module = context->canonical;
    ModuleWriter writer = {.context = context, .mesh = mesh, .states = states};
    Hlo__HloModuleProto message = *context->module->message;
    message.schedule = NULL; /* of instructions that may be gone */
    message.entry_computation_id = module->entry;
    message.n_computations = (size_t)module->computation_count;
    message.computations = ARENA_ARRAY(&writer.arena, Hlo__HloComputationProto *, module->computation_count);
    /* Called computations come before their callers: the entry is first here, and last in the file. */
    for (int32_t k = 0; message.computations && k < module->computation_count; k++)
        message.computations[module->computation_count - 1 - k] = make_computation(&writer, k);
    AmStatus status = writer.arena.failed ? am_fail_memory(error, (int64_t)writer.arena.used)
                                          : ir_print_text(text, &message, error);
    arena_free(&writer.arena);
    return status;
}
