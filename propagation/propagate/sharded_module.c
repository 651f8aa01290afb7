/* A canonical module with shardings, as HLO text: on every planned instruction, or as other systems read
 * them.
 *
 * The text printer writes messages, so a message is made. Every canonical instruction is a shallow copy of
 * the one it came from, under its canonical name, with the state as an OpSharding. Operands and called
 * computations are renumbered, since calls are inlined. A constraint is a custom call "Sharding" after the
 * instruction, which all users read in its place. Its id comes after those of the computation.
 */
#include "propagation/propagate/sharded_module.h"
#include "ir/encodings.h"

#include <string.h>

#define CONSTRAINT        "Sharding"
#define RESULT_CONSTRAINT "xla.sdy.FuncResultSharding"

typedef struct ModuleWriter {
    Arena *arena;
    const PlanContext *context;
    const ShardedModule *how;
    const Mesh *mesh;
    const SbpState *states;
} ModuleWriter;

/* A computation under construction: its instructions, and those to append. */
typedef struct ComputationWriter {
    ModuleWriter *writer;
    const IrComputation *computation;
    int32_t number;
    bool *is_constrained; /* [computation->count] */
    Hlo__HloComputationProto *message;
} ComputationWriter;

/* Returns XLA's id: the computation's above, the instruction's in the lower half. */
static int64_t instruction_id(const IrComputation *computation, int32_t number, int32_t instruction) {
    return (int64_t)number << 32 | (instruction - computation->first);
}

static Hlo__OpSharding *array_sharding(ModuleWriter *writer, SbpState state, int32_t rank) {
    return sharding_message(writer->arena, writer->mesh, state, rank, writer->how->spelling);
}

/* Returns the planned loop whose arrays this tuple holds: the loop itself, the parameter of its body or
 * condition, or the body's result; or NULL. */
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

/* Finds the representative of leaf `leaf` of a tuple that is the result or an input of a planned
 * conditional or of one of its branches; false for other tuples. */
static bool find_branch_reader(const PlanContext *context, int32_t number, int32_t instruction, int32_t leaf,
                               int32_t *reader) {
    const Rules *rules = context->rules;
    const PlannedConditional *conditional = rules_conditional(rules, instruction);
    const IrComputation *computation = &context->canonical->computations[number];
    if (!conditional && rules->branch_of[number] < 0) return false;
    bool gives = conditional || instruction == computation->root;
    if (!conditional) conditional = &rules->conditionals[rules->branch_of[number]];
    if (gives) {
        *reader = conditional->afterwards[leaf];
        return true;
    }
    for (int32_t k = 0; k < conditional->branch_count; k++) {
        const PlannedBranch *branch = &conditional->branches[k];
        if (branch->computation != number || instruction != computation->parameters[0]) continue;
        *reader = branch->leaves[leaf].reader;
        return true;
    }
    return false;
}

/* Leaves of a tuple: those of a planned loop or conditional by its arrays, those of a
 * tuple operator by its operands, others are replicated. */
static Hlo__OpSharding *sharding_of(ModuleWriter *writer, int32_t number, int32_t instruction) {
    const IrInstruction *value = plan_context_instruction(writer->context, instruction);
    SbpState replicated = {.axis = {SBP_B}};
    if (value->shape.type != DTYPE_TUPLE)
        return array_sharding(writer, writer->states[instruction], value->shape.rank);
    Hlo__OpSharding *message = array_sharding(writer, replicated, 0);
    int32_t count = rules_leaf_count(&value->shape);
    if (!message || count == 0) return message;
    message->type = HLO__OP_SHARDING__TYPE__TUPLE;
    message->tuple_shardings = ARENA_ARRAY(writer->arena, Hlo__OpSharding *, count);
    if (!message->tuple_shardings) return NULL;
    const PlannedLoop *loop = loop_of_tuple(writer->context, number, instruction);
    for (int32_t leaf = 0; leaf < count; leaf++) {
        SbpState state = replicated;
        const IrInstruction *operand = value->opcode == IR_TUPLE && count == value->operand_count
                                           ? plan_context_instruction(writer->context, value->operands[leaf])
                                           : NULL;
        int32_t reader;
        if (loop) reader = loop_leaf_reader(&loop->leaves[leaf]);
        if (loop || find_branch_reader(writer->context, number, instruction, leaf, &reader))
            state = reader >= 0 ? writer->states[reader] : replicated;
        else if (operand && operand->shape.type != DTYPE_TUPLE) state = writer->states[value->operands[leaf]];
        message->tuple_shardings[message->n_tuple_shardings++] =
            array_sharding(writer, state, rules_leaf(&value->shape, leaf)->rank);
    }
    return message;
}

static Hlo__OpMetadata *metadata_of(ModuleWriter *writer, const IrInstruction *instruction) {
    const Hlo__OpMetadata *from = instruction->message->metadata;
    if (!from) return NULL;
    Hlo__OpMetadata *metadata = ARENA_ARRAY(writer->arena, Hlo__OpMetadata, 1);
    if (!metadata) return NULL;
    *metadata = *from;
    metadata->op_name = (char *)instruction->op_name;
    return metadata;
}

/* Returns whether the module as read says here how a value lies. */
static bool is_marker(const IrInstruction *instruction) {
    const char *target = instruction->message->custom_call_target;
    return instruction->opcode == IR_CUSTOM_CALL && instruction->operand_count == 1 && target &&
           (strcmp(target, CONSTRAINT) == 0 || strcmp(target, RESULT_CONSTRAINT) == 0);
}

/* Returns the id that stands for an instruction's value where it is used. */
static int64_t value_id(const ComputationWriter *self, int32_t index) {
    int32_t place = index - self->computation->first;
    int64_t id = instruction_id(self->computation, self->number, index);
    return self->is_constrained[place] ? id + self->computation->count : id;
}

/* Adds the shardings that other systems read to parameters, outputs and annotated instructions. */
static void annotate(ComputationWriter *self, Hlo__HloInstructionProto *message, int32_t index) {
    ModuleWriter *writer = self->writer;
    const IrInstruction *instruction = plan_context_instruction(writer->context, index);
    bool is_entry = self->number == writer->context->canonical->entry, is_array;
    is_array = instruction->shape.type != DTYPE_TUPLE;
    const char *shardy = NULL;
    message->sharding = NULL;
    if (is_marker(instruction)) {
        message->custom_call_target = CONSTRAINT;
        message->custom_call_has_side_effect = false;
    }
    bool is_annotated =
        is_marker(instruction) ||
        (is_entry && (instruction->opcode == IR_PARAMETER || index == self->computation->root));
    if (is_annotated) message->sharding = sharding_of(writer, self->number, index);
    if (is_annotated && is_array && sharding_is_shardy(writer->how->spelling))
        shardy = sharding_shardy(writer->arena, writer->mesh, writer->states[index], instruction->shape.rank,
                                 instruction->opcode != IR_PARAMETER, false);
    message->frontend_attributes = sharding_frontend(writer->arena, message->frontend_attributes,
                                                     shardy ? "xla.sdy.sharding" : NULL, shardy);
}

static Hlo__HloInstructionProto *make_instruction(ComputationWriter *self, int32_t index) {
    ModuleWriter *writer = self->writer;
    const IrInstruction *instruction = plan_context_instruction(writer->context, index);
    Hlo__HloInstructionProto *message = ARENA_ARRAY(writer->arena, Hlo__HloInstructionProto, 1);
    if (!message) return NULL;
    *message = *instruction->message;
    message->name = (char *)instruction->name;
    message->metadata = metadata_of(writer, instruction);
    message->id = instruction_id(self->computation, self->number, index);
    message->n_operand_ids = (size_t)instruction->operand_count;
    message->operand_ids =
        sharding_copy_int64(writer->arena, instruction->operands, instruction->operand_count);
    message->n_control_predecessor_ids = (size_t)instruction->control_count;
    message->control_predecessor_ids =
        sharding_copy_int64(writer->arena, instruction->control, instruction->control_count);
    message->n_called_computation_ids = (size_t)instruction->called_count;
    message->called_computation_ids =
        sharding_copy_int64(writer->arena, instruction->called, instruction->called_count);
    if (writer->arena->failed) return NULL;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        message->operand_ids[k] = value_id(self, instruction->operands[k]);
    for (int32_t k = 0; k < instruction->control_count; k++)
        message->control_predecessor_ids[k] =
            instruction_id(self->computation, self->number, instruction->control[k]);
    if (writer->how->is_constrained) annotate(self, message, index);
    else if (writer->context->rules->is_planned[self->number])
        message->sharding = sharding_of(writer, self->number, index);
    return message;
}

/* Returns a custom call `target` that hands on the value of `operand`, an array in `state`. */
static Hlo__HloInstructionProto *make_constraint(ComputationWriter *self,
                                                 const Hlo__HloInstructionProto *operand, const char *name,
                                                 int64_t id, const char *target, SbpState state) {
    ModuleWriter *writer = self->writer;
    Hlo__HloInstructionProto *message = ARENA_ARRAY(writer->arena, Hlo__HloInstructionProto, 1);
    int64_t *operands = ARENA_ARRAY(writer->arena, int64_t, 1);
    if (!message || !operands) return NULL;
    int32_t rank = (int32_t)operand->shape->n_dimensions;
    hlo__hlo_instruction_proto__init(message);
    message->name = (char *)name;
    message->opcode = "custom-call";
    message->custom_call_target = (char *)target;
    message->custom_call_has_side_effect = strcmp(target, RESULT_CONSTRAINT) == 0;
    message->shape = operand->shape;
    message->metadata = operand->metadata;
    message->id = id;
    operands[0] = operand->id;
    message->n_operand_ids = 1;
    message->operand_ids = operands;
    message->sharding = array_sharding(writer, state, rank);
    bool is_open = writer->how->spelling == SHARDING_SHARDY_OPEN && strcmp(target, RESULT_CONSTRAINT) != 0;
    if (sharding_is_shardy(writer->how->spelling))
        message->frontend_attributes =
            sharding_frontend(writer->arena, NULL, "xla.sdy.sharding",
                              sharding_shardy(writer->arena, writer->mesh, state, rank, true, is_open));
    return writer->arena->failed ? NULL : message;
}

static void append(ComputationWriter *self, Hlo__HloInstructionProto *message) {
    self->message->instructions[self->message->n_instructions++] = message;
}

/* Appends a marker before the root for each output, from which Shardy reads its sharding. */
static void append_result_markers(ComputationWriter *self, Hlo__HloInstructionProto *root) {
    ModuleWriter *writer = self->writer;
    const IrModule *module = writer->context->canonical;
    const IrInstruction *tuple = &module->instructions[self->computation->root];
    for (int32_t k = 0; k < tuple->operand_count; k++) {
        const IrInstruction *value = &module->instructions[tuple->operands[k]];
        if (value->shape.type == DTYPE_TUPLE) continue;
        Hlo__HloInstructionProto operand = *value->message;
        operand.id = root->operand_ids[k];
        int64_t id = instruction_id(self->computation, self->number,
                                    self->computation->first + 2 * self->computation->count + k);
        Hlo__HloInstructionProto *marker =
            make_constraint(self, &operand, arena_format(writer->arena, "result_sharding.%d", k), id,
                            RESULT_CONSTRAINT, writer->how->outputs[k]);
        append(self, marker);
        root->operand_ids[k] = id;
    }
}

static Hlo__OpSharding *outputs_sharding(ModuleWriter *writer, const IrInstruction *root) {
    Hlo__OpSharding *message = array_sharding(writer, (SbpState){.axis = {SBP_B}}, 0);
    if (!message) return NULL;
    message->type = HLO__OP_SHARDING__TYPE__TUPLE;
    message->named_sharding = NULL;
    message->tuple_shardings = ARENA_ARRAY(writer->arena, Hlo__OpSharding *, root->operand_count);
    for (int32_t k = 0; message->tuple_shardings && k < root->operand_count; k++)
        message->tuple_shardings[message->n_tuple_shardings++] =
            array_sharding(writer, writer->how->outputs[k], root->shape.elements[k].rank);
    return message;
}

static void append_instructions(ComputationWriter *self) {
    ModuleWriter *writer = self->writer;
    const IrModule *module = writer->context->canonical;
    for (int32_t k = 0; k < self->computation->count && !writer->arena->failed; k++) {
        int32_t index = self->computation->first + k;
        const IrInstruction *instruction = &module->instructions[index];
        Hlo__HloInstructionProto *message = make_instruction(self, index);
        if (!message) return;
        bool is_entry_root = self->number == module->entry && index == self->computation->root &&
                             instruction->opcode == IR_TUPLE && writer->how->outputs;
        if (is_entry_root) {
            message->sharding = outputs_sharding(writer, instruction);
            if (sharding_is_shardy(writer->how->spelling)) append_result_markers(self, message);
        }
        append(self, message);
        if (self->is_constrained[k])
            append(self,
                   make_constraint(self, message, arena_format(writer->arena, "%s.sharding", message->name),
                                   value_id(self, index), CONSTRAINT, writer->states[index]));
    }
}

static Hlo__HloComputationProto *make_computation(ModuleWriter *writer, int32_t number) {
    const IrModule *module = writer->context->canonical;
    const IrComputation *computation = &module->computations[number];
    Hlo__HloComputationProto *message = ARENA_ARRAY(writer->arena, Hlo__HloComputationProto, 1);
    int32_t outputs = module->instructions[computation->root].operand_count;
    ComputationWriter self = {.writer = writer,
                              .computation = computation,
                              .number = number,
                              .message = message,
                              .is_constrained = ARENA_ARRAY(writer->arena, bool, computation->count)};
    if (writer->arena->failed) return NULL;
    hlo__hlo_computation_proto__init(message);
    for (int32_t k = 0; writer->how->is_constrained && k < computation->count; k++)
        self.is_constrained[k] = writer->how->is_constrained[computation->first + k];
    message->name = (char *)computation->name;
    message->id = number;
    message->root_id = value_id(&self, computation->root);
    message->instructions = ARENA_ARRAY(writer->arena, Hlo__HloInstructionProto *,
                                        2 * (size_t)computation->count + (size_t)outputs);
    if (message->instructions) append_instructions(&self);
    return message;
}

AmStatus propagation_sharded_text(Text *text, const PlanContext *context, const ShardedModule *how,
                                  AmError *error) {
    const IrModule *module = context->canonical;
    Arena arena = {0};
    ModuleWriter writer = {
        .arena = &arena, .context = context, .how = how, .mesh = how->mesh, .states = how->states};
    Hlo__HloModuleProto message = *context->module->message;
    bool is_shardy = sharding_is_shardy(how->spelling);
    message.schedule = NULL; /* of instructions that may be gone */
    message.entry_computation_id = module->entry;
    if (how->is_constrained)
        message.frontend_attributes =
            sharding_frontend(&arena, message.frontend_attributes, is_shardy ? "xla.sdy.meshes" : NULL,
                              is_shardy ? sharding_shardy_meshes(&arena, how->mesh) : NULL);
    message.n_computations = (size_t)module->computation_count;
    message.computations = ARENA_ARRAY(&arena, Hlo__HloComputationProto *, module->computation_count);
    /* Called computations come before their callers: the entry is first here, and last in the file. */
    for (int32_t k = 0; message.computations && k < module->computation_count; k++)
        message.computations[module->computation_count - 1 - k] = make_computation(&writer, k);
    AmStatus status =
        arena.failed ? am_fail_memory(error, (int64_t)arena.used) : ir_print_text(text, &message, error);
    arena_free(&arena);
    return status;
}

AmStatus propagation_value_shardings(Hlo__OpSharding ***shardings, Arena *arena, const PlanContext *context,
                                     const Mesh *mesh, const SbpState *states, AmError *error) {
    const IrModule *module = context->canonical;
    ShardedModule how = {.spelling = SHARDING_TILES, .mesh = mesh, .states = states};
    ModuleWriter writer = {.arena = arena, .context = context, .how = &how, .mesh = mesh, .states = states};
    Hlo__OpSharding **list = ARENA_ARRAY(arena, Hlo__OpSharding *, module->instruction_count + 1);
    for (int32_t c = 0; list && c < module->computation_count; c++) {
        const IrComputation *computation = &module->computations[c];
        if (!context->rules->is_planned[c]) continue;
        for (int32_t i = computation->first; i < computation->first + computation->count; i++)
            list[i] = sharding_of(&writer, c, i);
    }
    *shardings = list;
    return arena->failed ? am_fail_memory(error, (int64_t)arena->used) : AM_OK;
}
