/* The module in mixed precision, as a message: every canonical instruction is a shallow copy of the one it
 * came from, with new ids and with bf16 in the shapes that the choice says.
 *
 * A value that is read in its other type is converted before its first such reader. There is one conversion
 * to bf16 of each value. Conversions to f32 are one for each phase, so that the backward pass reads the bf16
 * value and does not keep a second one. The message is then read as a file is, and thus verified.
 */
#include "ir/precision/mixed_precision.h"

#include <string.h>

#include "ir/encodings.h"
#include "ir/precision/precision_choice.h"

enum { PHASES = IR_PHASE_OTHER + 1 };

/* Ids of an instruction's value in its computation; 0: not made. */
typedef struct MadeIds {
    int64_t own;             /* in the type of the choice */
    int64_t other;           /* of a constant: in f32; else converted to bf16 */
    int64_t widened[PHASES]; /* converted to f32, for readers of each phase */
} MadeIds;

typedef struct PrecisionWriter {
    Arena arena;
    const IrModule *module;
    PrecisionChoice choice;
    IrPrecisionCounts *counts;
    MadeIds *made;                   /* [instruction] */
    Hlo__HloInstructionProto **list; /* of the computation that is written */
    int32_t count, capacity;
    int32_t computation;
} PrecisionWriter;

/* Appends a message under the next id of the computation, which it returns. */
static int64_t append_message(PrecisionWriter *self, Hlo__HloInstructionProto *message) {
    ARENA_RESERVE(&self->arena, self->list, self->count, self->capacity);
    if (self->arena.failed) return 1;
    self->list[self->count++] = message;
    message->id = (int64_t)self->computation << 32 | self->count;
    return message->id;
}

/* Returns the shape with bf16 leaves for those values, from `*value` on, whose choice it is. */
static Hlo__ShapeProto *shape_of(PrecisionWriter *self, const Hlo__ShapeProto *shape, int32_t instruction,
                                 int32_t *leaf) {
    Hlo__ShapeProto *made = ARENA_ARRAY(&self->arena, Hlo__ShapeProto, 1);
    if (!made) return NULL;
    *made = *shape;
    if (shape->element_type != HLO__PRIMITIVE_TYPE__TUPLE) {
        if (self->choice.is_bf16[precision_value(&self->choice, instruction, (*leaf)++)])
            made->element_type = HLO__PRIMITIVE_TYPE__BF16;
        return made;
    }
    made->tuple_shapes = ARENA_ARRAY(&self->arena, Hlo__ShapeProto *, shape->n_tuple_shapes + 1);
    for (size_t k = 0; made->tuple_shapes && k < shape->n_tuple_shapes; k++)
        made->tuple_shapes[k] = shape_of(self, shape->tuple_shapes[k], instruction, leaf);
    return made;
}

static Hlo__ShapeProto *array_shape(PrecisionWriter *self, const Hlo__ShapeProto *shape,
                                    Hlo__PrimitiveType type) {
    Hlo__ShapeProto *made = ARENA_ARRAY(&self->arena, Hlo__ShapeProto, 1);
    if (!made) return NULL;
    *made = *shape;
    made->element_type = type;
    return made;
}

static Hlo__OpMetadata *metadata_of(PrecisionWriter *self, const IrInstruction *instruction) {
    if (!instruction->message->metadata) return NULL;
    Hlo__OpMetadata *metadata = ARENA_ARRAY(&self->arena, Hlo__OpMetadata, 1);
    if (!metadata) return NULL;
    *metadata = *instruction->message->metadata;
    metadata->op_name = (char *)(uintptr_t)instruction->op_name;
    return metadata;
}

/* Returns a copy of the message of instruction i, without its operands. */
static Hlo__HloInstructionProto *copy_of(PrecisionWriter *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    Hlo__HloInstructionProto *message = ARENA_ARRAY(&self->arena, Hlo__HloInstructionProto, 1);
    int64_t *called = ARENA_ARRAY(&self->arena, int64_t, instruction->called_count + 1);
    if (!message || !called) return NULL;
    *message = *instruction->message;
    message->name = (char *)(uintptr_t)instruction->name;
    message->metadata = metadata_of(self, instruction);
    message->n_operand_ids = message->n_control_predecessor_ids = 0;
    message->n_called_computation_ids = (size_t)instruction->called_count;
    message->called_computation_ids = called;
    for (int32_t k = 0; k < instruction->called_count; k++) called[k] = instruction->called[k];
    return message;
}

/* ---- values ---- */

/* Writes a conversion of operand `id`, whose shape instruction i has, for `reader`. */
static int64_t convert_operand(PrecisionWriter *self, int32_t i, int64_t id, bool to_bf16, int32_t reader) {
    const IrInstruction *instruction = &self->module->instructions[i];
    Hlo__HloInstructionProto *message = ARENA_ARRAY(&self->arena, Hlo__HloInstructionProto, 1);
    int64_t *operands = ARENA_ARRAY(&self->arena, int64_t, 1);
    if (!message || !operands) return 1;
    hlo__hlo_instruction_proto__init(message);
    message->name = arena_format(&self->arena, "%s.%s", instruction->name, to_bf16 ? "bf16" : "f32");
    message->opcode = (char *)(uintptr_t)ir_opcode_name(IR_CONVERT);
    message->shape = array_shape(self, instruction->message->shape,
                                 to_bf16 ? HLO__PRIMITIVE_TYPE__BF16 : HLO__PRIMITIVE_TYPE__F32);
    message->metadata = metadata_of(self, &self->module->instructions[reader]);
    operands[0] = id;
    message->operand_ids = operands;
    message->n_operand_ids = 1;
    self->counts->casts++;
    return append_message(self, message);
}

/* Writes the literal of a constant in bf16, row-major. */
static Hlo__LiteralProto *literal_of(PrecisionWriter *self, const IrInstruction *constant,
                                     Hlo__ShapeProto *shape) {
    int64_t count = ir_shape_elements(&constant->shape);
    const float *elements = constant->literal->data;
    Hlo__LiteralProto *literal = ARENA_ARRAY(&self->arena, Hlo__LiteralProto, 1);
    Hlo__ShapeProto *row_major = array_shape(self, shape, HLO__PRIMITIVE_TYPE__BF16);
    uint16_t *bits = ARENA_ARRAY_RAW(&self->arena, uint16_t, count + 1);
    if (!literal || !row_major || !bits) return NULL;
    for (int64_t k = 0; k < count; k++) bits[k] = dtype_float_to_bf16(elements[k]);
    Hlo__LayoutProto *layout = ARENA_ARRAY(&self->arena, Hlo__LayoutProto, 1);
    int64_t *order = ARENA_ARRAY(&self->arena, int64_t, constant->shape.rank + 1);
    if (!layout || !order) return NULL;
    hlo__layout_proto__init(layout);
    layout->n_minor_to_major = (size_t)constant->shape.rank;
    layout->minor_to_major = order;
    for (int32_t d = 0; d < constant->shape.rank; d++) order[d] = constant->shape.rank - 1 - d;
    hlo__literal_proto__init(literal);
    row_major->layout = layout; /* XLA refuses literals without one */
    literal->shape = row_major;
    literal->bf16s = (ProtobufCBinaryData){.len = (size_t)count * sizeof *bits, .data = (uint8_t *)bits};
    return literal;
}

/* Returns the id of a constant, or of its broadcast, in one of the types; writes it at its first use. */
static int64_t constant_id(PrecisionWriter *self, int32_t i, bool as_bf16) {
    const IrInstruction *instruction = &self->module->instructions[i];
    int64_t *id = as_bf16 ? &self->made[i].own : &self->made[i].other;
    if (*id) return *id;
    int64_t operand =
        instruction->opcode == IR_BROADCAST ? constant_id(self, instruction->operands[0], as_bf16) : 0;
    Hlo__HloInstructionProto *message = copy_of(self, i);
    int64_t *operands = ARENA_ARRAY(&self->arena, int64_t, 1);
    if (!message || !operands) return 1;
    if (as_bf16) {
        message->name = arena_format(&self->arena, "%s.bf16", instruction->name);
        message->shape = array_shape(self, message->shape, HLO__PRIMITIVE_TYPE__BF16);
        if (!message->shape) return 1;
        if (!operand) message->literal = literal_of(self, instruction, message->shape);
    }
    operands[0] = operand;
    message->operand_ids = operands;
    message->n_operand_ids = operand != 0;
    return *id = append_message(self, message);
}

/* Returns the id of instruction i's value for `reader`: a value of f32 in f32 or bf16, another value in its
 * own type. */
static int64_t value_id(PrecisionWriter *self, int32_t i, bool as_bf16, int32_t reader) {
    const IrInstruction *instruction = &self->module->instructions[i];
    MadeIds *made = &self->made[i];
    if (!precision_is_f32(&instruction->shape)) return made->own;
    int32_t value = precision_value(&self->choice, i, 0);
    if (self->choice.kinds[value] == VALUE_CONSTANT) return constant_id(self, i, as_bf16);
    if (self->choice.is_bf16[value] == as_bf16) return made->own;
    int64_t *id = as_bf16 ? &made->other : &made->widened[self->choice.roles->phases[reader]];
    if (!*id) *id = convert_operand(self, i, made->own, as_bf16, reader);
    return *id;
}

/* ---- instructions ---- */

/* Returns whether instruction i reads operand k in bf16. */
static bool reads_bf16(const PrecisionWriter *self, int32_t i, int32_t k, int32_t leaf) {
    const PrecisionChoice *choice = &self->choice;
    const IrInstruction *instruction = &self->module->instructions[i];
    int32_t operand = instruction->operands[k];
    bool is_array = instruction->shape.type != DTYPE_TUPLE;
    if (!precision_is_f32(&self->module->instructions[operand].shape)) return false;
    if (instruction->opcode == IR_TUPLE) return choice->is_bf16[precision_value(choice, i, leaf)];
    if (instruction->opcode == IR_COMPARE) return choice->is_bf16_reader[i];
    if (instruction->opcode == IR_CONVERT && !precision_is_f32(&instruction->shape))
        return instruction->shape.type == DTYPE_BF16 || choice->is_bf16[precision_value(choice, operand, 0)];
    return is_array && precision_is_f32(&instruction->shape) &&
           choice->is_bf16[precision_value(choice, i, 0)];
}

/* Writes the operands of instruction i, converted where it reads the other type. */
static void set_operands(PrecisionWriter *self, Hlo__HloInstructionProto *message, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    int64_t *operands = ARENA_ARRAY(&self->arena, int64_t, instruction->operand_count + 1);
    int64_t *control = ARENA_ARRAY(&self->arena, int64_t, instruction->control_count + 1);
    int32_t leaf = 0;
    if (!operands || !control) return;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        operands[k] = value_id(self, instruction->operands[k], reads_bf16(self, i, k, leaf), i);
        leaf += precision_leaf_count(&self->module->instructions[instruction->operands[k]].shape);
    }
    message->operand_ids = operands;
    message->n_operand_ids = (size_t)instruction->operand_count;
    message->control_predecessor_ids = control;
    for (int32_t k = 0; k < instruction->control_count; k++) {
        int64_t id = self->made[instruction->control[k]].own;
        if (id) control[message->n_control_predecessor_ids++] = id;
    }
}

/* Returns the operand that a conversion hands on, as its types are equal now; -1: none. */
static int32_t handed_on(const PrecisionWriter *self, int32_t i) {
    const PrecisionChoice *choice = &self->choice;
    const IrInstruction *instruction = &self->module->instructions[i];
    if (instruction->opcode != IR_CONVERT || instruction->control_count > 0 || instruction->message->sharding)
        return -1;
    Dtype from = self->module->instructions[instruction->operands[0]].shape.type;
    bool is_narrowed = from == DTYPE_F32 && instruction->shape.type == DTYPE_BF16;
    bool is_widened = choice->kinds[precision_value(choice, i, 0)] == VALUE_WIDENED;
    return is_narrowed || is_widened ? instruction->operands[0] : -1;
}

static void write_instruction(PrecisionWriter *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    bool is_array = instruction->shape.type != DTYPE_TUPLE;
    int32_t value = is_array ? precision_value(&self->choice, i, 0) : 0, leaf = 0;
    ValueKind kind = is_array ? self->choice.kinds[value] : VALUE_MOVED;
    int32_t operand = is_array ? handed_on(self, i) : -1;
    if (kind == VALUE_CONSTANT) return; /* where it is read */
    if (operand >= 0) {
        self->made[i].own = value_id(self, operand, true, i);
        return;
    }
    Hlo__HloInstructionProto *message = copy_of(self, i);
    if (!message) return;
    set_operands(self, message, i);
    message->shape = shape_of(self, message->shape, i, &leaf);
    if (kind == VALUE_PRODUCT) {
        message->precision_config = NULL; /* it may name an algorithm of f32 */
        self->counts->products++;
    }
    self->counts->computed += kind == VALUE_COMPUTED && self->choice.is_bf16[value];
    self->counts->kept +=
        ir_is_product(instruction->opcode) && kind != VALUE_PRODUCT && precision_is_f32(&instruction->shape);
    self->made[i].own = append_message(self, message);
}

/* Copies an instruction of a computation that keeps its types. */
static void copy_instruction(PrecisionWriter *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    Hlo__HloInstructionProto *message = copy_of(self, i);
    int64_t *operands = ARENA_ARRAY(&self->arena, int64_t, instruction->operand_count + 1);
    int64_t *control = ARENA_ARRAY(&self->arena, int64_t, instruction->control_count + 1);
    if (!message || !operands || !control) return;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        operands[k] = self->made[instruction->operands[k]].own;
    for (int32_t k = 0; k < instruction->control_count; k++)
        control[k] = self->made[instruction->control[k]].own;
    message->operand_ids = operands;
    message->n_operand_ids = (size_t)instruction->operand_count;
    message->control_predecessor_ids = control;
    message->n_control_predecessor_ids = (size_t)instruction->control_count;
    self->made[i].own = append_message(self, message);
}

static Hlo__HloComputationProto *write_computation(PrecisionWriter *self, int32_t number) {
    const IrComputation *computation = &self->module->computations[number];
    Hlo__HloComputationProto *message = ARENA_ARRAY(&self->arena, Hlo__HloComputationProto, 1);
    if (!message) return NULL;
    hlo__hlo_computation_proto__init(message);
    self->list = NULL;
    self->count = self->capacity = 0;
    self->computation = number;
    bool is_rewritten = self->choice.is_rewritten[number];
    for (int32_t k = 0; k < computation->count && !self->arena.failed; k++)
        if (is_rewritten) write_instruction(self, computation->first + k);
        else copy_instruction(self, computation->first + k);
    message->name = (char *)(uintptr_t)computation->name;
    message->id = number;
    message->root_id = is_rewritten ? value_id(self, computation->root, false, computation->root)
                                    : self->made[computation->root].own;
    message->instructions = self->list;
    message->n_instructions = (size_t)self->count;
    return message;
}

static AmStatus write_module(PrecisionWriter *self, IrModule **mixed, const IrModule *read, AmError *error) {
    const IrModule *module = self->module;
    Hlo__HloModuleProto message = *read->message;
    message.schedule = NULL; /* of instructions that may be gone */
    message.entry_computation_id = module->entry;
    message.n_computations = (size_t)module->computation_count;
    message.computations =
        ARENA_ARRAY(&self->arena, Hlo__HloComputationProto *, module->computation_count + 1);
    /* Called computations come before their callers: the entry is first here, and last in the file. */
    for (int32_t c = module->computation_count - 1; message.computations && c >= 0; c--)
        message.computations[module->computation_count - 1 - c] = write_computation(self, c);
    if (self->arena.failed) return am_fail_memory(error, (int64_t)self->arena.used);
    Text text = {0};
    AmStatus status = ir_print_pb(&text, &message, error);
    if (status == AM_OK) status = ir_read_bytes(mixed, read->source, text.data, (int64_t)text.length, error);
    text_free(&text);
    return status;
}

AmStatus ir_mixed_precision(IrModule **mixed, IrPrecisionCounts *counts, const IrModule *read,
                            const IrModule *canonical, const IrRoles *roles, AmError *error) {
    PrecisionWriter self = {.module = canonical, .counts = counts};
    *mixed = NULL;
    *counts = (IrPrecisionCounts){0};
    AmStatus status = precision_choose(&self.choice, &self.arena, canonical, roles, error);
    bool has_product = false;
    for (int32_t c = 0; status == AM_OK && c < canonical->computation_count; c++)
        for (int32_t n = 0; self.choice.is_rewritten[c] && n < canonical->computations[c].count; n++)
            has_product |= precision_is_product(&self.choice, canonical->computations[c].first + n);
    if (status == AM_OK && !has_product)
        status = am_fail(error, AM_ERROR_INPUT, read->source,
                         "nothing to do for mixed precision (expected a product or convolution of f32 "
                         "outside the optimizer)");
    if (status == AM_OK) {
        self.made = ARENA_ARRAY(&self.arena, MadeIds, canonical->instruction_count + 1);
        status = self.made ? write_module(&self, mixed, read, error)
                           : am_fail_memory(error, canonical->instruction_count);
    }
    arena_free(&self.arena);
    return status;
}
