/* Lowers a called computation: a loop's body or condition, a branch, a fusion.
 *
 * Such a computation is a program of its own on one device, with everything replicated. Tuples are
 * flattened: the parameters of the program are the leaves of the computation's parameters in order,
 * its outputs are the leaves of the root, and tuple, get-tuple-element and opt-barrier only forward
 * leaves. Instructions that the root does not need are omitted. If the computation is repeated,
 * output k is the next value of parameter k, exactly as a training step's outputs are the next
 * values of its state.
 */
#include "lowering/passes/passes.h"
#include "lowering/spmd/lower_internal.h"
#include "propagation/rules/rules.h"

typedef struct ComputationLowering {
    Arena *arena;
    const IrModule *module;
    const IrComputation *body;
    const IrShape *shapes; /* [instruction of the body] local ones; NULL: whole */
    Program *program;
    bool *live;          /* [instruction of the body] */
    int32_t *first_leaf; /* [instruction of the body]: where its values begin in `leaves` */
    int32_t *leaf_count; /* [instruction of the body] */
    int32_t *leaves;     /* values */
    int32_t used, capacity;
} ComputationLowering;

static void add_leaf(ComputationLowering *self, int32_t value) {
    ARENA_RESERVE(self->arena, self->leaves, self->used, self->capacity);
    if (!self->arena->failed) self->leaves[self->used++] = value;
}

/* Adds a value for every array in `shape`, made by the next instruction, each a leaf of instruction i. */
static void add_values(ComputationLowering *self, int32_t i, const IrShape *shape) {
    Program *program = self->program;
    if (shape->type == DTYPE_TUPLE) {
        for (int32_t k = 0; k < shape->rank; k++) add_values(self, i, &shape->elements[k]);
        return;
    }
    int32_t value = program->value_count;
    ARENA_RESERVE(self->arena, program->values, value, program->value_capacity);
    if (self->arena->failed) return;
    program->values[value] = (ProgramValue){.shape = *shape,
                                            .origin = i,
                                            .instruction = program->instruction_count,
                                            .kind = PROGRAM_VALUE_TEMPORARY,
                                            .storage = value,
                                            .offset = -1};
    program->value_count++;
    add_leaf(self, value);
}

/* Returns the shape of instruction i on this device. */
static const IrShape *shape_of(const ComputationLowering *self, int32_t i) {
    return self->shapes ? &self->shapes[i - self->body->first] : &self->module->instructions[i].shape;
}

static void pass_leaves(ComputationLowering *self, int32_t operand, int32_t first, int32_t count) {
    int32_t at = self->first_leaf[operand - self->body->first] + first;
    for (int32_t k = 0; k < count && !self->arena->failed; k++) add_leaf(self, self->leaves[at + k]);
}

static AmStatus add_instruction(ComputationLowering *self, int32_t i, AmError *error) {
    const IrInstruction *source = &self->module->instructions[i];
    Program *program = self->program;
    int32_t count = 0, first_result = program->value_count;
    TRY(lower_check_bitcast(self->module, i, error));
    for (int32_t k = 0; k < source->operand_count; k++)
        count += self->leaf_count[source->operands[k] - self->body->first];
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, count + 1);
    ARENA_RESERVE(self->arena, program->instructions, program->instruction_count,
                  program->instruction_capacity);
    if (self->arena->failed) return am_fail_memory(error, count);
    count = 0;
    for (int32_t k = 0; k < source->operand_count; k++) {
        int32_t operand = source->operands[k] - self->body->first;
        for (int32_t leaf = 0; leaf < self->leaf_count[operand]; leaf++)
            operands[count++] = self->leaves[self->first_leaf[operand] + leaf];
    }
    add_values(self, i, shape_of(self, i));
    ProgramInstruction *instruction = &program->instructions[program->instruction_count++];
    bool is_view = ir_opcode_has(source->opcode, FACT_VIEW);
    *instruction =
        (ProgramInstruction){.kind = is_view ? PROGRAM_VIEW : PROGRAM_COMPUTE,
                             .opcode = source->opcode,
                             .origin = i,
                             .operand_count = count,
                             .result_count = program->value_count - first_result,
                             .operands = operands,
                             .first_result = first_result,
                             .attributes = source->attributes,
                             .compute.literal = source->literal,
                             .compute.called = source->called_count > 0 ? source->called[0] : -1,
                             .compute.called_second = source->called_count > 1 ? source->called[1] : -1};
    if (!lower_has_regions(source->opcode)) return AM_OK;
    return lower_replicated_regions(instruction, self->arena, self->module, error);
}

/* Lowers one instruction: tuples and barriers only pass leaves on. */
static AmStatus lower_instruction(ComputationLowering *self, int32_t i, AmError *error) {
    const IrInstruction *instruction = &self->module->instructions[i];
    int32_t at = i - self->body->first;
    self->first_leaf[at] = self->used;
    switch (instruction->opcode) {
    case IR_TUPLE:
        for (int32_t k = 0; k < instruction->operand_count; k++)
            pass_leaves(self, instruction->operands[k], 0,
                        self->leaf_count[instruction->operands[k] - self->body->first]);
        break;
    case IR_GET_TUPLE_ELEMENT: {
        const IrShape *tuple = &self->module->instructions[instruction->operands[0]].shape;
        int32_t first = 0, index = (int32_t)instruction->attributes->tuple_index;
        for (int32_t e = 0; e < index; e++) first += rules_leaf_count(&tuple->elements[e]);
        pass_leaves(self, instruction->operands[0], first, rules_leaf_count(&instruction->shape));
    } break;
    case IR_OPT_BARRIER:
    case IR_ADD_DEPENDENCY:
    case IR_DOMAIN:
        pass_leaves(self, instruction->operands[0], 0,
                    self->leaf_count[instruction->operands[0] - self->body->first]);
        break;
    default:
        if (instruction->opcode == IR_COPY && instruction->shape.type == DTYPE_TUPLE)
            pass_leaves(self, instruction->operands[0], 0, rules_leaf_count(&instruction->shape));
        else TRY(add_instruction(self, i, error));
    }
    self->leaf_count[at] = self->used - self->first_leaf[at];
    return AM_OK;
}

static AmStatus lower_root(ComputationLowering *self, IrRoles *roles, bool repeats, AmError *error) {
    Program *program = self->program;
    int32_t root = self->body->root - self->body->first;
    roles->output_count = self->leaf_count[root];
    program->outputs = ARENA_ARRAY(self->arena, int32_t, roles->output_count + 1);
    program->execution.updates = ARENA_ARRAY(self->arena, ProgramUpdate, roles->output_count + 1);
    if (self->arena->failed) return am_fail_memory(error, roles->output_count);
    for (int32_t k = 0; k < roles->output_count; k++)
        program->outputs[k] = self->leaves[self->first_leaf[root] + k];
    if (!repeats) return AM_OK;
    if (roles->output_count != roles->parameter_count)
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "computation %s is repeated and gives %d arrays for the %d that it takes",
                       self->body->name, roles->output_count, roles->parameter_count);
    for (int32_t k = 0; k < roles->output_count; k++)
        if (program->outputs[k] != program->parameters[k])
            program->execution.updates[program->execution.update_count++] =
                (ProgramUpdate){.parameter = k, .value = program->outputs[k]};
    return AM_OK;
}

static AmStatus make_program(Program **result, Arena *arena, const IrModule *module, int32_t computation,
                             const IrShape *shapes, bool repeats, AmError *error) {
    if (computation < 0 || computation >= module->computation_count)
        return am_fail(error, AM_ERROR_INPUT, module->source, "an operator lacks its computation");
    const IrComputation *body = &module->computations[computation];
    Program *program = ARENA_ARRAY(arena, Program, 1);
    IrRoles *roles = ARENA_ARRAY(arena, IrRoles, 1);
    ComputationLowering self = {.arena = arena,
                                .module = module,
                                .body = body,
                                .shapes = shapes,
                                .program = program,
                                .live = ARENA_ARRAY(arena, bool, body->count + 1),
                                .first_leaf = ARENA_ARRAY(arena, int32_t, body->count + 1),
                                .leaf_count = ARENA_ARRAY(arena, int32_t, body->count + 1)};
    if (arena->failed) return am_fail_memory(error, body->count);
    *roles = (IrRoles){.loss = -1};
    *program = (Program){.arena = arena, .module = module, .roles = roles};
    self.live[body->root - body->first] = true;
    for (int32_t i = body->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &self.module->instructions[body->first + i];
        if (!self.live[i]) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            self.live[instruction->operands[k] - body->first] = true;
    }
    /* Parameters come first, in their order, whatever their order in the file. */
    for (int32_t k = 0; k < self.body->parameter_count; k++) {
        int32_t i = self.body->parameters[k], at = i - self.body->first;
        self.first_leaf[at] = self.used;
        add_values(&self, i, shape_of(&self, i));
        self.leaf_count[at] = self.used - self.first_leaf[at];
    }
    roles->parameter_count = program->value_count;
    program->parameters = ARENA_ARRAY(self.arena, int32_t, program->value_count + 1);
    if (self.arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) {
        program->parameters[v] = v;
        program->values[v].kind = PROGRAM_VALUE_PARAMETER;
        program->values[v].instruction = -1;
    }
    for (int32_t i = 0; i < body->count && !arena->failed; i++)
        if (self.live[i] && module->instructions[body->first + i].opcode != IR_PARAMETER)
            TRY(lower_instruction(&self, body->first + i, error));
    if (arena->failed) return am_fail_memory(error, body->count);
    TRY(lower_root(&self, roles, repeats, error));
    *result = program;
    return AM_OK;
}

AmStatus program_from_computation(Program **result, Arena *arena, const IrModule *module, int32_t computation,
                                  bool repeats, AmError *error) {
    TRY(make_program(result, arena, module, computation, NULL, repeats, error));
    TRY(program_absorb_transposes(*result, error));
    TRY(program_fuse(*result, error));
    return program_plan_buffers(*result, error);
}

AmStatus program_from_local_computation(Program **result, Arena *arena, const IrModule *module,
                                        int32_t computation, const IrShape *shapes, AmError *error) {
    return make_program(result, arena, module, computation, shapes, false, error);
}
