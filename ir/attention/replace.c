/* The module with attention operators.
 *
 * Each computation becomes a list of nodes: its instructions that remain, one fusion for each
 * operator and the elements of its results. Nodes are ordered topologically, ties by the position
 * of the last instruction that a fusion replaces, and then as they were listed: equal layers have
 * their elements in the same order.
 */
#include <string.h>

#include "ir/attention/attention.h"
#include "ir/canonical/compose.h"
#include "ir/canonical/simplify.h"
#include "ir/topological_order.h"

typedef struct Fuser {
    const IrModule *from;
    const IrAttentions *found;
    IrComposer composer;
    Arena *arena;
    Arena scratch;
    int32_t *computation; /* [computation]: the one that is made, or -1 */
    int32_t *node;        /* [instruction]: its node in the list of its computation, or -1 */
    bool *needed;         /* [instruction] */
} Fuser;

/* The nodes of one computation. */
typedef struct Nodes {
    IrInstruction *instructions; /* operands are nodes */
    int64_t *positions;
    int32_t *origins, *order, *place; /* place [node]: its index in the computation that is made */
    int32_t count;
} Nodes;

static int32_t copy_computation(Fuser *self, int32_t computation);

static const int32_t *copy_called(Fuser *self, const IrInstruction *from) {
    int32_t *called = ARENA_ARRAY(self->arena, int32_t, from->called_count + 1);
    for (int32_t k = 0; called && k < from->called_count; k++)
        called[k] = copy_computation(self, from->called[k]);
    return called;
}

/* Returns whether a result is a 16-bit product of a backward operator. It leaves the fusion in f32 and is
 * rounded outside, so that parts of its sum may be added first. */
static bool is_widened(const Fuser *self, const IrAttention *row, int32_t instruction) {
    const IrInstruction *result = &self->from->instructions[instruction];
    return row->is_backward && ir_is_matrix_product(result->opcode) &&
           dtype_is_floating(result->shape.type) && dtype_bits(result->shape.type) < 32;
}

/* Returns the shape of a result of the fusion. */
static IrShape result_shape(const Fuser *self, const IrAttention *row, int32_t instruction) {
    IrShape shape = self->from->instructions[instruction].shape;
    if (is_widened(self, row, instruction)) shape.type = DTYPE_F32;
    return shape;
}

/* Copies a loop constant, and what it is made of, from outside of the loop. `copies` [instruction]: the
 * copy's index, or -1. */
static int32_t copy_constant(Fuser *self, int32_t made, int32_t *copies, int32_t i) {
    if (copies[i] >= 0 || self->arena->failed) return copies[i];
    IrInstruction copy = self->from->instructions[i];
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, copy.operand_count + 1);
    for (int32_t k = 0; operands && k < copy.operand_count; k++)
        operands[k] = copy_constant(self, made, copies, copy.operands[k]);
    copy.operands = operands;
    copies[i] = ir_compose(&self->composer, made, &copy, i);
    return copies[i];
}

/* Adds the parameter `number` of a computation, with the shape and the name of instruction `of`. */
static int32_t add_parameter(Fuser *self, int32_t computation, int32_t number, int32_t of) {
    const IrInstruction *operand = &self->from->instructions[of];
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    if (!attributes) return 0;
    attributes->parameter_number = number;
    IrInstruction parameter = {.opcode = IR_PARAMETER,
                               .opcode_name = ir_opcode_name(IR_PARAMETER),
                               .name = operand->name,
                               .shape = operand->shape,
                               .attributes = attributes,
                               .op_name = "",
                               .source_file = ""};
    return ir_compose(&self->composer, computation, &parameter, of);
}

/* Adds the tuple of an operator's results, whose values are `operands`, to its computation. */
static int32_t add_results(Fuser *self, int32_t computation, const IrAttention *row,
                           const int32_t *operands) {
    static const IrAttributes none;
    IrShape *elements = ARENA_ARRAY(self->arena, IrShape, row->result_count);
    for (int32_t k = 0; elements && k < row->result_count; k++)
        elements[k] = result_shape(self, row, row->results[k]);
    IrInstruction tuple = {.opcode = IR_TUPLE,
                           .opcode_name = ir_opcode_name(IR_TUPLE),
                           .name = "results",
                           .shape = {.type = DTYPE_TUPLE, .rank = row->result_count, .elements = elements},
                           .operand_count = row->result_count,
                           .operands = operands,
                           .attributes = &none,
                           .op_name = "",
                           .source_file = ""};
    return ir_compose(&self->composer, computation, &tuple, row->results[0]);
}

/* Makes the computation of an operator: parameters for operands, positions and repeats, members in order,
 * and a tuple of several results. */
static int32_t make_body(Fuser *self, const IrAttention *row) {
    const IrModule *from = self->from;
    int32_t made =
        ir_compose_computation(&self->composer, row->is_backward ? "attention_backward" : "attention");
    ArenaMark mark = arena_mark(&self->scratch);
    int32_t first = from->computations[row->computation].first;
    int32_t *value = ARENA_ARRAY(&self->scratch, int32_t, from->computations[row->computation].count + 1);
    int32_t *operands = ARENA_ARRAY(&self->scratch, int32_t, from->instruction_count + 1);
    int32_t *copies = ARENA_ARRAY(&self->scratch, int32_t, from->instruction_count + 1);
    for (int32_t i = 0; copies && i < from->instruction_count; i++) copies[i] = -1;
    for (int32_t k = 0; value && operands && copies && k < row->operand_count + row->position_count; k++) {
        bool is_position = k >= row->operand_count;
        int32_t number = is_position ? row->positions[k - row->operand_count] : row->operands[k];
        int32_t *place = is_position ? &copies[number] : &value[number - first];
        *place = add_parameter(self, made, k, number);
    }
    int32_t *repeats = ARENA_ARRAY(&self->scratch, int32_t, row->repeat_count + 1);
    for (int32_t k = 0; repeats && k < row->repeat_count; k++)
        repeats[k] = add_parameter(self, made, row->operand_count + row->position_count + k,
                                   from->instructions[row->repeats[k]].operands[0]);
    for (int32_t k = 0; value && operands && copies && repeats && k < row->member_count; k++) {
        int32_t same = self->found->same[row->members[k]];
        if (same >= 0) {
            value[row->members[k] - first] = copy_constant(self, made, copies, same);
            continue;
        }
        IrInstruction member = from->instructions[row->members[k]];
        bool is_result = false;
        for (int32_t r = 0; r < row->result_count; r++) is_result |= row->results[r] == row->members[k];
        if (is_result) member.shape = result_shape(self, row, row->members[k]);
        for (int32_t o = 0; o < member.operand_count; o++) operands[o] = value[member.operands[o] - first];
        for (int32_t r = row->repeat_count - 1; r >= 0; r--)
            if (row->repeats[r] == row->members[k]) operands[0] = repeats[r];
        member.operands = operands;
        member.called = copy_called(self, &member);
        value[row->members[k] - first] = ir_compose(&self->composer, made, &member, row->members[k]);
    }
    if (self->scratch.failed || self->arena->failed) return made;
    int32_t root = value[row->results[0] - first];
    if (row->result_count > 1) {
        for (int32_t k = 0; k < row->result_count; k++) operands[k] = value[row->results[k] - first];
        root = add_results(self, made, row, operands);
    }
    if (!self->arena->failed) self->composer.computations[made].root = root;
    arena_release(&self->scratch, mark);
    return made;
}

/* Marks what results and effects need; members of operators are not instructions of their own. */
static void mark_needed(Fuser *self, const IrComputation *body) {
    const IrAttentions *found = self->found;
    for (int32_t i = body->first + body->count - 1; i >= body->first; i--) {
        const IrInstruction *instruction = &self->from->instructions[i];
        self->needed[i] |= i == body->root || instruction->opcode == IR_PARAMETER ||
                           instruction->opcode == IR_WHILE || instruction->opcode == IR_CONDITIONAL ||
                           ir_has_effect(instruction) || found->owner[i] >= 0;
        if (!self->needed[i] || found->owner[i] >= 0) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            self->needed[instruction->operands[k]] = true;
        for (int32_t k = 0; k < instruction->control_count; k++) self->needed[instruction->control[k]] = true;
    }
}

static int32_t add_node(Nodes *nodes, const IrInstruction *instruction, int32_t origin, int64_t position) {
    nodes->instructions[nodes->count] = *instruction;
    nodes->positions[nodes->count] = position;
    nodes->origins[nodes->count] = origin;
    return nodes->count++;
}

/* Adds a result of the fusion as a node of its own: the conversion of a widened one to its type, else a view
 * of an element. A value that leaves a loop of micro-batches, as those for the backward pass do, is no
 * element. */
static void add_result(Fuser *self, Nodes *nodes, const IrAttention *row, int32_t result, int32_t last) {
    static const IrAttributes none;
    int32_t *operand = ARENA_ARRAY(self->arena, int32_t, 1);
    bool rounds = is_widened(self, row, result);
    IrOpcode opcode = rounds ? IR_CONVERT : IR_RESHAPE;
    if (!operand || (!rounds && row->result_count == 1)) return;
    operand[0] = -1 - self->node[result];
    const IrInstruction *from = &self->from->instructions[result];
    IrInstruction made = {.opcode = opcode,
                          .opcode_name = ir_opcode_name(opcode),
                          .name = from->name,
                          .shape = from->shape,
                          .operand_count = 1,
                          .operands = operand,
                          .attributes = &none,
                          .op_name = from->op_name,
                          .source_file = from->source_file,
                          .source_line = from->source_line};
    self->node[result] = add_node(nodes, &made, result, 2 * (int64_t)last + 1);
}

/* Adds the fusion of an operator and the elements of its results; operands are instructions still. */
static void add_fusion(Fuser *self, Nodes *nodes, const IrAttention *row, int32_t r) {
    static const IrAttributes none;
    const IrInstruction *instructions = self->from->instructions;
    int32_t *called = ARENA_ARRAY(self->arena, int32_t, 1), count = row->operand_count;
    int32_t *operands =
        ARENA_ARRAY(self->arena, int32_t, count + row->position_count + row->repeat_count + 1);
    IrShape *elements = ARENA_ARRAY(self->arena, IrShape, row->result_count + 1);
    if (self->arena->failed) return;
    int32_t last = row->members[0]; /* that the fusion replaces */
    for (int32_t k = 0; k < row->member_count; k++)
        if (self->found->owner[row->members[k]] == r) last = row->members[k];
    for (int32_t k = 0; k < row->result_count; k++) elements[k] = result_shape(self, row, row->results[k]);
    called[0] = make_body(self, row);
    for (int32_t k = 0; k < count; k++) operands[k] = row->operands[k];
    for (int32_t k = 0; k < row->position_count; k++) {
        int32_t number = row->positions[k];
        operands[count + k] = -1 - add_node(nodes, &instructions[number], number, 2 * (int64_t)last - 1);
    }
    for (int32_t k = 0; k < row->repeat_count; k++)
        operands[count + row->position_count + k] = instructions[row->repeats[k]].operands[0];
    const char *name = row->is_backward ? "attention_backward" : "attention";
    IrInstruction fusion = {.opcode = IR_FUSION,
                            .opcode_name = ir_opcode_name(IR_FUSION),
                            .name = name,
                            .shape = elements[0],
                            .operand_count = count + row->position_count + row->repeat_count,
                            .operands = operands,
                            .called_count = 1,
                            .called = called,
                            .attributes = &none,
                            .op_name = instructions[last].op_name,
                            .source_file = instructions[last].source_file,
                            .source_line = instructions[last].source_line};
    if (row->result_count > 1)
        fusion.shape = (IrShape){.type = DTYPE_TUPLE, .rank = row->result_count, .elements = elements};
    int32_t made = add_node(nodes, &fusion, last, 2 * (int64_t)last);
    if (row->result_count == 1) {
        self->node[row->results[0]] = made;
        add_result(self, nodes, row, row->results[0], last);
        return;
    }
    for (int32_t k = 0; k < row->result_count; k++) {
        IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
        int32_t *operand = ARENA_ARRAY(self->arena, int32_t, 1);
        if (self->arena->failed) return;
        attributes->tuple_index = k;
        operand[0] = -1 - made;
        IrInstruction element = {.opcode = IR_GET_TUPLE_ELEMENT,
                                 .opcode_name = ir_opcode_name(IR_GET_TUPLE_ELEMENT),
                                 .name = self->from->instructions[row->results[k]].name,
                                 .shape = elements[k],
                                 .operand_count = 1,
                                 .operands = operand,
                                 .attributes = attributes,
                                 .op_name = self->from->instructions[row->results[k]].op_name,
                                 .source_file = ""};
        self->node[row->results[k]] = add_node(nodes, &element, row->results[k], 2 * (int64_t)last + 1);
        add_result(self, nodes, row, row->results[k], last);
    }
}

static AmStatus write_computation(Fuser *self, int32_t computation, int32_t made, AmError *error) {
    const IrComputation *body = &self->from->computations[computation];
    int32_t room = body->count + 1;
    for (int32_t r = 0; r < self->found->count; r++)
        if (self->found->rows[r].computation == computation)
            room += 1 + 2 * self->found->rows[r].result_count + self->found->rows[r].position_count;
    Nodes nodes = {.instructions = ARENA_ARRAY(&self->scratch, IrInstruction, room),
                   .positions = ARENA_ARRAY(&self->scratch, int64_t, room),
                   .origins = ARENA_ARRAY(&self->scratch, int32_t, room),
                   .order = ARENA_ARRAY(&self->scratch, int32_t, room),
                   .place = ARENA_ARRAY(&self->scratch, int32_t, room)};
    if (self->scratch.failed) return am_fail_memory(error, room);
    for (int32_t r = 0; r < self->found->count; r++)
        for (int32_t k = 0; k < self->found->rows[r].operand_count; k++)
            if (self->found->rows[r].computation == computation && !self->found->rows[r].reason)
                self->needed[self->found->rows[r].operands[k]] = true;
    mark_needed(self, body);
    for (int32_t i = body->first; i < body->first + body->count; i++)
        if (self->needed[i] && self->found->owner[i] < 0)
            self->node[i] = add_node(&nodes, &self->from->instructions[i], i, 2 * (int64_t)i);
    for (int32_t r = 0; r < self->found->count; r++)
        if (self->found->rows[r].computation == computation && !self->found->rows[r].reason)
            add_fusion(self, &nodes, &self->found->rows[r], r);
    for (int32_t n = 0; n < nodes.count && !self->arena->failed; n++) {
        IrInstruction *node = &nodes.instructions[n];
        /* Operands are instructions of the old module; negative ones are nodes of the new one already. */
        int32_t *operands = ARENA_ARRAY(self->arena, int32_t, node->operand_count + 1);
        for (int32_t k = 0; operands && k < node->operand_count; k++)
            operands[k] = node->operands[k] < 0 ? -1 - node->operands[k] : self->node[node->operands[k]];
        node->operands = operands;
        node->control = NULL;
        node->control_count = 0;
    }
    if (self->arena->failed || self->scratch.failed) return am_fail_memory(error, nodes.count);
    for (int32_t n = 0; n < nodes.count; n++) nodes.positions[n] = nodes.positions[n] * room + n;
    int32_t ordered = ir_topological_order(nodes.order, nodes.instructions, nodes.count, 0, nodes.positions,
                                           &self->scratch);
    if (ordered < 0) return am_fail_memory(error, nodes.count);
    if (ordered < nodes.count)
        return am_fail(error, AM_ERROR_INTERNAL, self->from->source,
                       "attention operators of computation %s depend on one another", body->name);
    for (int32_t n = 0; n < nodes.count && !self->arena->failed; n++) {
        IrInstruction instruction = nodes.instructions[nodes.order[n]];
        int32_t *operands = ARENA_ARRAY(self->arena, int32_t, instruction.operand_count + 1);
        for (int32_t k = 0; operands && k < instruction.operand_count; k++)
            operands[k] = nodes.place[instruction.operands[k]];
        instruction.operands = operands;
        if (instruction.opcode != IR_FUSION || nodes.origins[nodes.order[n]] < 0 ||
            self->found->owner[nodes.origins[nodes.order[n]]] < 0)
            instruction.called = copy_called(self, &instruction);
        nodes.place[nodes.order[n]] =
            ir_compose(&self->composer, made, &instruction, nodes.origins[nodes.order[n]]);
    }
    if (self->arena->failed) return am_fail_memory(error, nodes.count);
    self->composer.computations[made].root = nodes.place[self->node[body->root]];
    return AM_OK;
}

static int32_t copy_computation(Fuser *self, int32_t computation) {
    if (self->computation[computation] >= 0 || self->arena->failed) return self->computation[computation];
    int32_t made = ir_compose_computation(&self->composer, self->from->computations[computation].name);
    self->computation[computation] = made;
    return made;
}

AmStatus ir_fuse_attention(IrModule **module, int32_t **origins, const IrModule *canonical,
                           const IrAttentions *found, AmError *error) {
    IrModule *made = ir_module_new(canonical->source);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    Fuser self = {.from = canonical, .found = found, .composer = {.module = made}, .arena = &made->arena};
    int32_t count = canonical->instruction_count, computations = canonical->computation_count;
    AmStatus status = AM_OK;
    self.computation = ARENA_ARRAY(&self.scratch, int32_t, computations + 1);
    self.node = ARENA_ARRAY(&self.scratch, int32_t, count + 1);
    self.needed = ARENA_ARRAY(&self.scratch, bool, count + 1);
    bool *is_written = ARENA_ARRAY(&self.scratch, bool, computations + 1);
    if (self.scratch.failed) status = am_fail_memory(error, count);
    else {
        memset(self.computation, -1, sizeof(int32_t) * (size_t)computations);
        memset(self.node, -1, sizeof(int32_t) * (size_t)count);
        made->name = canonical->name;
        made->aliases = canonical->aliases;
        made->alias_count = canonical->alias_count;
        made->is_optimized = canonical->is_optimized;
        copy_computation(&self, canonical->entry);
    }
    /* Copies are discovered while others are written. */
    for (bool goes_on = true; status == AM_OK && goes_on;) {
        goes_on = false;
        for (int32_t c = 0; c < computations && status == AM_OK; c++) {
            if (self.computation[c] < 0 || is_written[c]) continue;
            is_written[c] = goes_on = true;
            ArenaMark mark = arena_mark(&self.scratch);
            status = write_computation(&self, c, self.computation[c], error);
            arena_release(&self.scratch, mark);
        }
    }
    if (status == AM_OK && made->arena.failed) status = am_fail_memory(error, count);
    if (status == AM_OK) status = ir_compose_finish(&self.composer, origins, error);
    arena_free(&self.scratch);
    if (status != AM_OK) {
        ir_module_free(made);
        return status;
    }
    *module = made;
    return AM_OK;
}
