/* Element programs: a list of element-wise operators compiled to loops.
 *
 * Every slot (input or operator) is a pointer in a table. Inputs point to the caller's tiles. Operators write
 * to buffers of ELEMENT_TILE elements. A buffer is used again once its last reader has run, so that a long
 * chain touches few buffers. An output is computed in its place if no later loop reads that as an input. bf16
 * and f16 inputs are widened to f32 when a tile is begun. A second loop rounds the results of their
 * operators, and outputs are narrowed at the end.
 */
#include <math.h>
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/cpu/element.h"

typedef struct ElementStep {
    ElementLoop *loop;
    int32_t out, operands[3]; /* slots, -1: none */
    const ElementParameter *parameter;
} ElementStep;

struct ElementProgram {
    int32_t input_count, output_count, slot_count, buffer_count, step_count, constant_count;
    const Dtype *input_types, *output_types;
    const int32_t *output_slots;
    const bool *direct;   /* [output] is computed in the caller's tile */
    ElementLoop **narrow; /* [output] from the type it is held in to that in memory; NULL: the same */
    const ElementParameter *narrow_parameters; /* [output] */
    const int32_t *buffers;                    /* [slot] buffer, -1 for the caller's tiles */
    const ElementStep *constants;              /* [constant_count], run once */
    const ElementStep *steps;                  /* [step_count], run per tile */
    int64_t buffer_bytes;
};

/* While a program is being built. */
typedef struct ElementProgramBuilder {
    Arena *arena;
    ElementProgram *program;
    Dtype *types;      /* [slot] as the operators see it */
    int32_t *read_as;  /* [slot] the slot that operators read: the widened one of an input */
    int32_t *buffers;  /* [slot] */
    int32_t *last_use; /* [slot] op index; INT32_MAX: to the end */
    int32_t *free_buffers, free_count;
    ElementStep *steps, *constants;
    bool failed; /* no memory */
} ElementProgramBuilder;

/* Returns the type in which a program holds values of `type`. */
static Dtype held(Dtype type) {
    if (dtype_is_16bit_float(type)) return DTYPE_F32;
    if (dtype_is_floating(type) && dtype_bits(type) <= 8) return DTYPE_F32;
    if (dtype_is_integer(type) && dtype_bits(type) < 8) return dtype_is_signed(type) ? DTYPE_S8 : DTYPE_U8;
    return type;
}

static bool is_narrow(Dtype type) {
    return held(type) != type;
}

/* Types that inputs and operators may have. */
static bool is_supported(Dtype type) {
    return scalar64_supports(type) || dtype_is_complex(type);
}

static ElementParameter *new_parameter(ElementProgramBuilder *builder, Dtype from, Dtype to) {
    ElementParameter *parameter = ARENA_ARRAY(builder->arena, ElementParameter, 1);
    static ElementParameter nothing;
    if (!parameter) {
        builder->failed = true;
        return &nothing;
    }
    parameter->from = from;
    parameter->to = to;
    return parameter;
}

static ElementStep *add_step(ElementProgramBuilder *builder, ElementLoop *loop, int32_t out, int32_t operand,
                             const ElementParameter *parameter) {
    ElementStep *step = &builder->steps[builder->program->step_count++];
    *step = (ElementStep){loop, out, {operand, -1, -1}, parameter};
    return step;
}

/* Operators that have to do with how many bits there are, on integers that do not fill their byte. */
static ElementLoop *find_narrow_loop(IrOpcode opcode, Dtype type) {
    if (!dtype_is_integer(type) || dtype_bits(type) >= 8) return NULL;
    switch (opcode) {
    case IR_COUNT_LEADING_ZEROS: return element_narrow_leading_zeros;
    case IR_POPCNT: return element_narrow_popcnt;
    case IR_SHIFT_RIGHT_LOGICAL: return element_narrow_shift_right;
    case IR_SHIFT_RIGHT_ARITHMETIC: return element_narrow_shift_arithmetic;
    case IR_MULHI: return element_narrow_mulhi;
    default: return NULL;
    }
}

static ElementLoop *make_iota(ElementProgramBuilder *builder, const ProgramFusionOp *op,
                              const ElementParameter **parameter) {
    const IrAttributes *attributes = op->attributes;
    ElementParameter *iota = new_parameter(builder, held(op->type), held(op->type));
    if (!attributes || attributes->dimension_count != 1) return NULL;
    iota->iota_dimension = (int32_t)attributes->dimensions[0];
    iota->iota_start = op->iota_start;
    *parameter = iota;
    return element_iota;
}

/* Returns the loop of an operator that has to do with complex numbers. */
static ElementLoop *find_complex_loop(ElementProgramBuilder *builder, const ProgramFusionOp *op,
                                      Dtype operand, const ElementParameter **parameter) {
    Dtype from = held(operand);
    switch (op->opcode) {
    case IR_COMPARE:
        return op->attributes ? element_complex_compare_loop(op->attributes->comparison, from) : NULL;
    case IR_SELECT: return element_select_loop(op->type);
    case IR_RESHAPE:
    case IR_BROADCAST:
    case IR_BITCAST_CONVERT: return element_complex_loop(IR_COPY, from, op->type);
    case IR_CONVERT:
        *parameter = new_parameter(builder, from, op->type);
        return element_complex_loop(IR_CONVERT, from, op->type);
    case IR_IOTA: return make_iota(builder, op, parameter);
    default: return element_complex_loop(op->opcode, from, op->type);
    }
}

/* Returns the loop of an operator whose operands are held as `type`; fills in the parameter. */
static ElementLoop *find_loop(ElementProgramBuilder *builder, const ProgramFusionOp *op, Dtype operand,
                              const ElementParameter **parameter) {
    Dtype from = held(operand), to = held(op->type);
    const IrAttributes *attributes = op->attributes;
    if (dtype_is_complex(from) || dtype_is_complex(to))
        return find_complex_loop(builder, op, operand, parameter);
    switch (op->opcode) {
    case IR_COMPARE: {
        const char *kind = attributes ? attributes->comparison_type : NULL;
        return element_compare_loop(attributes ? attributes->comparison : NULL,
                                    kind && strcmp(kind, "TOTALORDER") == 0, from);
    }
    case IR_SELECT: return element_select_loop(to);
    case IR_CLAMP: return element_clamp_loop(to);
    case IR_CONVERT: /* narrow integers saturate at their own bounds; in memory they have their held form */
        *parameter = new_parameter(builder, from, dtype_is_integer(op->type) ? op->type : to);
        return element_convert_loop((*parameter)->from, (*parameter)->to);
    case IR_BITCAST_CONVERT:
        if (dtype_bits(operand) != dtype_bits(op->type)) return NULL;
        if (is_narrow(operand) && is_narrow(op->type)) {
            *parameter = new_parameter(builder, operand, op->type);
            return element_bitcast_narrow;
        }
        *parameter =
            new_parameter(builder, is_narrow(op->type) ? op->type : from, is_narrow(operand) ? operand : to);
        return is_narrow(operand) || is_narrow(op->type) ? element_convert : element_bitcast;
    case IR_STOCHASTIC_CONVERT: {
        Dtype random = builder->types[op->operands[1]];
        ElementParameter *types = new_parameter(builder, from, op->type);
        if (!dtype_is_floating(operand) || !dtype_is_integer(op->type) || !dtype_is_signed(op->type) ||
            dtype_is_signed(random) || dtype_bits(random) < 8 || !dtype_is_integer(random))
            return NULL;
        types->random = random;
        *parameter = types;
        return element_stochastic_convert;
    }
    case IR_REDUCE_PRECISION: {
        ElementParameter *bits = new_parameter(builder, from, to);
        if (!attributes || (to != DTYPE_F32 && to != DTYPE_F64) || attributes->mantissa_bits < 0 ||
            attributes->exponent_bits < 1)
            return NULL;
        bits->exponent_bits = attributes->exponent_bits;
        bits->mantissa_bits = attributes->mantissa_bits;
        *parameter = bits;
        return to == DTYPE_F32 ? element_reduce_precision_single : element_reduce_precision_double;
    }
    case IR_IOTA: return make_iota(builder, op, parameter);
    default: {
        ElementLoop *narrow = find_narrow_loop(op->opcode, operand);
        if (narrow) *parameter = new_parameter(builder, operand, op->type);
        if (narrow) return narrow;
        IrOpcode opcode = op->opcode == IR_RESHAPE || op->opcode == IR_BROADCAST ? IR_COPY : op->opcode;
        return dtype_is_floating(operand) ? element_floating_loop(opcode, from)
                                          : element_integer_loop(opcode, from);
    }
    }
}

/* Adds a constant: a buffer of its own, filled once. False: not a scalar literal. */
static bool add_constant(ElementProgramBuilder *builder, const ProgramFusionOp *op, int32_t slot) {
    ElementParameter *parameter = new_parameter(builder, op->type, held(op->type));
    if (!op->literal || !op->literal->data || op->literal->bytes < dtype_bytes(op->type)) return false;
    void *value = arena_alloc(builder->arena, 16);
    if (!value) {
        builder->failed = true;
        return true;
    }
    if (is_narrow(op->type)) element_convert(value, op->literal->data, NULL, NULL, 1, parameter, NULL);
    else memcpy(value, op->literal->data, (size_t)dtype_bytes(op->type));
    parameter->constant = value;
    builder->buffers[slot] = builder->program->buffer_count++;
    builder->constants[builder->program->constant_count++] =
        (ElementStep){element_constant, slot, {-1, -1, -1}, parameter};
    return true;
}

/* Returns the literal of 1 / x, where x is a power of two and both are normal f32 numbers; else NULL. */
static const IrLiteral *reciprocal(Arena *arena, const ProgramFusionOp *constant) {
    float number;
    int exponent;
    if (constant->type != DTYPE_F32 || !constant->literal || !constant->literal->data ||
        constant->literal->bytes < (int64_t)sizeof number)
        return NULL;
    memcpy(&number, constant->literal->data, sizeof number);
    if (!isnormal(number) || fabsf(frexpf(number, &exponent)) != 0.5f || !isnormal(1 / number)) return NULL;
    IrLiteral *literal = ARENA_ARRAY(arena, IrLiteral, 1);
    float *data = ARENA_ARRAY(arena, float, 1);
    if (arena->failed) return NULL;
    *data = 1 / number;
    *literal = (IrLiteral){.data = data, .bytes = sizeof number};
    return literal;
}

/* Returns the operators with x * 2^-k in place of x / 2^k, which has the same bits and takes a fraction of
 * the time, where nothing else reads the constant. */
static const ProgramFusionOp *multiply_by_reciprocals(ElementProgramBuilder *builder,
                                                      const ProgramFusionOp *ops, int32_t op_count,
                                                      const int32_t *output_slots, int32_t output_count) {
    int32_t inputs = builder->program->input_count;
    ProgramFusionOp *own = ARENA_ARRAY(builder->arena, ProgramFusionOp, op_count + 1);
    int32_t *others = ARENA_ARRAY(builder->arena, int32_t, op_count + 1); /* reads that are no divisors */
    if (builder->arena->failed) return ops;
    for (int32_t i = 0; i < op_count; i++) own[i] = ops[i];
    for (int32_t k = 0; k < output_count; k++)
        if (output_slots[k] >= inputs) others[output_slots[k] - inputs]++;
    for (int32_t i = 0; i < op_count; i++)
        for (int32_t k = 0; k < ops[i].operand_count && k < 3; k++) {
            int32_t made = ops[i].operands[k] - inputs;
            bool is_divisor = ops[i].opcode == IR_DIVIDE && ops[i].type == DTYPE_F32 && k == 1;
            if (made >= 0 && made < i && !is_divisor) others[made]++;
        }
    for (int32_t i = 0; i < op_count; i++) {
        if (ops[i].opcode == IR_CONSTANT && others[i] == 0) {
            const IrLiteral *literal = reciprocal(builder->arena, &ops[i]);
            if (literal) own[i].literal = literal;
        }
        int32_t divisor =
            ops[i].opcode == IR_DIVIDE && ops[i].type == DTYPE_F32 ? ops[i].operands[1] - inputs : -1;
        if (divisor >= 0 && divisor < i && own[divisor].literal != ops[divisor].literal)
            own[i].opcode = IR_MULTIPLY;
    }
    return own;
}

/* Adds the loops of operator `index`; false if unsupported. */
static bool add_op(ElementProgramBuilder *builder, const ProgramFusionOp *op, int32_t index) {
    int32_t slot = builder->program->input_count + index;
    if (op->operand_count < 0 || op->operand_count > 3 || !is_supported(op->type)) return false;
    builder->types[slot] = op->type;
    builder->read_as[slot] = slot;
    if (op->opcode == IR_CONSTANT) return add_constant(builder, op, slot);
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] < 0 || op->operands[k] >= slot) return false;
    Dtype operand = op->operand_count > 0 ? builder->types[op->operands[0]] : op->type;
    const ElementParameter *parameter = NULL;
    ElementLoop *loop = find_loop(builder, op, operand, &parameter);
    if (!loop) return false;
    builder->buffers[slot] = builder->free_count > 0 ? builder->free_buffers[--builder->free_count]
                                                     : builder->program->buffer_count++;
    ElementStep *step = add_step(builder, loop, slot, -1, parameter);
    for (int32_t k = 0; k < op->operand_count; k++) step->operands[k] = builder->read_as[op->operands[k]];
    bool exact = op->opcode == IR_SELECT || op->opcode == IR_COPY || op->opcode == IR_BITCAST_CONVERT;
    if (is_narrow(op->type) && !exact)
        add_step(builder, element_round_loop(op->type), slot, slot,
                 new_parameter(builder, held(op->type), op->type));
    return true;
}

/* Hands on the buffers of operands that `index` was the last to read. */
static void release_buffers(ElementProgramBuilder *builder, const ProgramFusionOp *op, int32_t index) {
    for (int32_t k = 0; k < op->operand_count; k++) {
        int32_t slot = op->operands[k];
        if (builder->last_use[slot] != index || slot < builder->program->input_count) continue;
        builder->last_use[slot] = INT32_MAX; /* once, though it may be read twice */
        builder->free_buffers[builder->free_count++] = builder->buffers[slot];
    }
}

static void widen_inputs(ElementProgramBuilder *builder, int32_t op_count) {
    ElementProgram *program = builder->program;
    for (int32_t k = 0; k < program->input_count; k++) {
        builder->types[k] = program->input_types[k];
        builder->read_as[k] = k;
        builder->buffers[k] = -1;
        if (!is_narrow(program->input_types[k])) continue;
        int32_t slot = program->input_count + op_count + k;
        builder->read_as[k] = slot;
        builder->buffers[slot] = program->buffer_count++;
        add_step(builder, element_convert_loop(program->input_types[k], held(program->input_types[k])), slot,
                 k, new_parameter(builder, program->input_types[k], held(program->input_types[k])));
    }
}

static void find_last_uses(ElementProgramBuilder *builder, const ProgramFusionOp *ops, int32_t op_count,
                           const int32_t *output_slots, int32_t output_count) {
    int32_t inputs = builder->program->input_count;
    for (int32_t i = 0; i < op_count; i++)
        for (int32_t k = 0; k < ops[i].operand_count && k < 3; k++)
            if (ops[i].operands[k] >= 0 && ops[i].operands[k] < inputs + i)
                builder->last_use[ops[i].operands[k]] = i;
    for (int32_t i = 0; i < op_count; i++)
        if (ops[i].opcode == IR_CONSTANT) builder->last_use[inputs + i] = INT32_MAX;
    for (int32_t k = 0; k < output_count; k++) builder->last_use[output_slots[k]] = INT32_MAX;
}

/* Returns whether output k can be computed where the caller requests it: it is as in memory, its operator is
 * the first to write there, and no input, which may lie there too, is read later. */
static bool is_direct(const ElementProgramBuilder *builder, int32_t k, const int32_t *slots) {
    const ElementProgram *program = builder->program;
    int32_t slot = slots[k], first = 0;
    if (is_narrow(program->output_types[k])) return false;
    for (int32_t other = 0; other < k; other++)
        if (slots[other] == slot) return false;
    while (first < program->step_count && builder->steps[first].out != slot) first++;
    if (first == program->step_count) return false;
    for (int32_t s = first + 1; s < program->step_count; s++)
        for (int32_t o = 0; o < 3; o++) {
            int32_t read = builder->steps[s].operands[o];
            if (read >= 0 && read < program->input_count) return false;
        }
    return true;
}

/* Sets the program's outputs: where they are, and how tiles are converted to their types. */
static AmStatus finish_outputs(ElementProgramBuilder *builder, Dtype *types, const int32_t *output_slots,
                               AmError *error) {
    ElementProgram *program = builder->program;
    int32_t count = program->output_count;
    int32_t *outputs = ARENA_ARRAY(builder->arena, int32_t, count + 1);
    bool *direct = ARENA_ARRAY(builder->arena, bool, count + 1);
    ElementLoop **narrow = ARENA_ARRAY(builder->arena, ElementLoop *, count + 1);
    ElementParameter *parameters = ARENA_ARRAY(builder->arena, ElementParameter, count + 1);
    if (builder->arena->failed || builder->failed) return am_fail_memory(error, 64);
    for (int32_t k = 0; k < count; k++) {
        types[k] = builder->types[output_slots[k]];
        outputs[k] = builder->read_as[output_slots[k]];
    }
    /* The way of the outputs to the caller's tiles. */
    for (int32_t k = 0; k < program->output_count; k++) {
        Dtype type = program->output_types[k];
        direct[k] = is_direct(builder, k, outputs);
        if (is_narrow(type)) narrow[k] = element_convert_loop(held(type), type);
        parameters[k].from = held(type);
        parameters[k].to = type;
    }
    program->direct = direct;
    program->narrow = narrow;
    program->narrow_parameters = parameters;
    program->output_slots = outputs;
    return AM_OK;
}

AmStatus element_program_build(ElementProgram **result, Arena *arena, const ElementComputation *computation,
                               int32_t *refused, AmError *error) {
    int32_t input_count = computation->input_count, op_count = computation->op_count;
    int32_t output_count = computation->output_count, slots = 2 * input_count + op_count;
    const int32_t *output_slots = computation->output_slots;
    ElementProgram *program = ARENA_ARRAY(arena, ElementProgram, 1);
    ElementProgramBuilder builder = {.arena = arena, .program = program};
    builder.types = ARENA_ARRAY(arena, Dtype, slots + 1);
    builder.read_as = ARENA_ARRAY(arena, int32_t, slots + 1);
    builder.buffers = ARENA_ARRAY(arena, int32_t, slots + 1);
    builder.last_use = ARENA_ARRAY(arena, int32_t, slots + 1);
    builder.free_buffers = ARENA_ARRAY(arena, int32_t, slots + 1);
    builder.steps = ARENA_ARRAY(arena, ElementStep, 2 * op_count + input_count + 1);
    builder.constants = ARENA_ARRAY(arena, ElementStep, op_count + 1);
    Dtype *types = ARENA_ARRAY(arena, Dtype, input_count + output_count + 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)slots * 64);
    *refused = 0;
    for (int32_t k = 0; k < input_count; k++) {
        if (!is_supported(computation->input_types[k]))
            return am_fail(error, AM_ERROR_INPUT, "", "no kernel for this type");
        types[k] = computation->input_types[k];
    }
    program->input_count = input_count;
    program->slot_count = slots;
    program->input_types = types;
    program->output_types = types + input_count;
    program->output_count = output_count;
    program->output_slots = output_slots;
    program->buffers = builder.buffers;
    const ProgramFusionOp *ops =
        multiply_by_reciprocals(&builder, computation->ops, op_count, output_slots, output_count);
    find_last_uses(&builder, ops, op_count, output_slots, output_count);
    widen_inputs(&builder, op_count);
    for (int32_t i = 0; i < op_count; i++) {
        *refused = i;
        if (!add_op(&builder, &ops[i], i))
            return am_fail(error, AM_ERROR_INPUT, "", "no kernel for this type");
        release_buffers(&builder, &ops[i], i);
    }
    *refused = -1;
    int64_t widest = 1;
    for (int32_t s = 0; s < slots; s++) {
        int64_t bytes = s < input_count + op_count ? dtype_bytes(held(builder.types[s])) : 4;
        if (bytes > widest) widest = bytes;
    }
    TRY(finish_outputs(&builder, types + input_count, output_slots, error));
    program->constants = builder.constants;
    program->steps = builder.steps;
    program->buffer_bytes = widest * ELEMENT_TILE;
    *result = program;
    return AM_OK;
}

AmStatus element_computation_read(ElementComputation *result, Arena *arena, const IrModule *module,
                                  int32_t computation, AmError *error) {
    if (computation < 0 || computation >= module->computation_count)
        return am_fail(error, AM_ERROR_INPUT, module->source, "an operator lacks its computation");
    const IrComputation *body = &module->computations[computation];
    ProgramFusionOp *ops = ARENA_ARRAY(arena, ProgramFusionOp, body->count + 1);
    int32_t *slots = ARENA_ARRAY(arena, int32_t, body->count + 1);
    Dtype *inputs = ARENA_ARRAY(arena, Dtype, body->parameter_count + 1);
    if (arena->failed) return am_fail_memory(error, body->count * 64);
    for (int32_t k = 0; k < body->parameter_count; k++) {
        inputs[k] = module->instructions[body->parameters[k]].shape.type;
        slots[body->parameters[k] - body->first] = k;
    }
    int32_t op_count = 0, output_count = 1;
    const int32_t *roots = &body->root;
    for (int32_t i = 0; i < body->count; i++) {
        const IrInstruction *instruction = &module->instructions[body->first + i];
        if (instruction->opcode == IR_PARAMETER) continue;
        if (instruction->opcode == IR_TUPLE && body->root == body->first + i) {
            roots = instruction->operands;
            output_count = instruction->operand_count;
            continue;
        }
        ProgramFusionOp *op = &ops[op_count];
        if (instruction->shape.type == DTYPE_TUPLE || instruction->shape.rank != 0 ||
            instruction->operand_count > 3 || instruction->called_count > 0)
            return am_fail(error, AM_ERROR_INPUT, module->source,
                           "no kernel for '%s' in the computation %s (instruction %s)",
                           instruction->opcode_name, body->name, instruction->name);
        /* A bitcast of a scalar is a bitcast-convert. */
        *op = (ProgramFusionOp){.opcode = instruction->opcode == IR_BITCAST ? IR_BITCAST_CONVERT
                                                                            : instruction->opcode,
                                .type = instruction->shape.type,
                                .operand_count = instruction->operand_count,
                                .attributes = instruction->attributes,
                                .literal = instruction->literal,
                                .origin = body->first + i};
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t at = instruction->operands[k] - body->first;
            if (at < 0 || at >= i)
                return am_fail(error, AM_ERROR_INPUT, module->source,
                               "instruction %s comes before its operand", instruction->name);
            op->operands[k] = slots[at];
        }
        slots[i] = body->parameter_count + op_count++;
    }
    int32_t *outputs = ARENA_ARRAY(arena, int32_t, output_count + 1);
    if (!outputs) return am_fail_memory(error, output_count * 4);
    for (int32_t k = 0; k < output_count; k++) outputs[k] = slots[roots[k] - body->first];
    *result = (ElementComputation){.input_count = body->parameter_count,
                                   .op_count = op_count,
                                   .output_count = output_count,
                                   .input_types = inputs,
                                   .ops = ops,
                                   .output_slots = outputs};
    return AM_OK;
}

AmStatus element_program_from_computation(ElementProgram **program, Arena *arena, const IrModule *module,
                                          int32_t computation, AmError *error) {
    ElementComputation body;
    int32_t refused = -1;
    TRY(element_computation_read(&body, arena, module, computation, error));
    AmStatus status = element_program_build(program, arena, &body, &refused, NULL);
    if (status == AM_OK) return AM_OK;
    const char *name =
        body.op_count > 0 && refused >= 0 ? ir_opcode_name(body.ops[refused].opcode) : "parameter";
    return am_fail(error, status, module->source, "no kernel for '%s' in the computation %s", name,
                   module->computations[computation].name);
}

int32_t element_program_inputs(const ElementProgram *program) {
    return program->input_count;
}

int32_t element_program_outputs(const ElementProgram *program) {
    return program->output_count;
}

Dtype element_program_input_type(const ElementProgram *program, int32_t k) {
    return program->input_types[k];
}

Dtype element_program_output_type(const ElementProgram *program, int32_t k) {
    return program->output_types[k];
}

/* Returns the bytes of the pointer table, rounded up to 64; the buffers follow it. */
static int64_t table_bytes(const ElementProgram *program) {
    return ((int64_t)sizeof(void *) * program->slot_count + 63) / 64 * 64;
}

int64_t element_program_scratch(const ElementProgram *program) {
    return table_bytes(program) + program->buffer_count * program->buffer_bytes;
}

void element_program_begin(const ElementProgram *program, int64_t count, void *scratch) {
    void **table = scratch;
    char *buffers = (char *)scratch + table_bytes(program);
    for (int32_t s = 0; s < program->slot_count; s++)
        table[s] = program->buffers[s] >= 0 ? buffers + program->buffers[s] * program->buffer_bytes : NULL;
    for (int32_t k = 0; k < program->constant_count; k++) {
        const ElementStep *step = &program->constants[k];
        step->loop(table[step->out], NULL, NULL, NULL, count, step->parameter, NULL);
    }
}

void element_program_run(const ElementProgram *program, const void *const *inputs, void *const *outputs,
                         int64_t count, const ElementTile *tile, void *scratch) {
    const void **table = scratch;
    for (int32_t k = 0; k < program->input_count; k++) table[k] = inputs[k];
    for (int32_t k = 0; k < program->output_count; k++)
        if (program->direct[k]) table[program->output_slots[k]] = outputs[k];
    for (int32_t k = 0; k < program->step_count; k++) {
        const ElementStep *step = &program->steps[k];
        const int32_t *operands = step->operands;
        step->loop((void *)table[step->out], operands[0] >= 0 ? table[operands[0]] : NULL,
                   operands[1] >= 0 ? table[operands[1]] : NULL, operands[2] >= 0 ? table[operands[2]] : NULL,
                   count, step->parameter, tile);
    }
    for (int32_t k = 0; k < program->output_count; k++) {
        const void *value = table[program->output_slots[k]];
        if (program->narrow[k])
            program->narrow[k](outputs[k], value, NULL, NULL, count, &program->narrow_parameters[k], NULL);
        else if (outputs[k] != value)
            memcpy(outputs[k], value, (size_t)(count * dtype_bytes(program->output_types[k])));
    }
}
