/* The nodes of a program after the fusion of XLA's back end for CPUs.
 *
 * Values are visited from the outputs backwards. An operator that moves elements, or computes each by itself,
 * is part of its readers and has no buffer, if all of them can take it in:
 *
 *     h = x @ w    r = max(h + b, 0)    y = r @ v    g = select(h + b > 0, d, 0)
 *     buffers: h, r (a product reads it), g;  not h + b, which is cheap and so computed in r and in g
 *
 * An expensive operator, such as a division or a function, is part of one reader, and has a buffer if there
 * are several. The source of the rules is XLA's InstructionFusion, CpuInstructionFusion and CopyInsertion.
 * xla_rewrites.h has the operators before fusion, and the fusions of a library.
 * Merged collectives are separate nodes, as compiler_options() of automap_jax has it, and a reduce-scatter is
 * an all-reduce whose reader takes a slice.
 *
 * The new value of a parameter takes the parameter's memory. If a reader of the old value does not come
 * before the new one by their operands, XLA copies the parameter, and readers take the copy.
 */
#include "cost/step/xla_graph.h"

#include "base/int_list.h"
#include "base/integers.h"
#include "cost/step/xla_memory.h"
#include "cost/step/xla_rewrites.h"
#include "lowering/program/program_edit.h"

enum { MANY = -2, NONE = -1, SAME_ORDER = 1, GATHERED = 2, MOST_IN_A_ROW = 500 };

/* The latest copy of a value in another order of dimensions, by order_wanted(). */
typedef struct TransposedOperand {
    uint64_t number; /* 0: there is none */
    int32_t buffer;
} TransposedOperand;

typedef struct GraphBuilder {
    XlaGraph *graph;
    const Program *program;
    Arena *arena;
    int32_t *order; /* [order_count] nodes by their first result; producers first */
    int32_t order_count;
    bool *in_memory, *is_unfusible; /* [value] has a buffer; a reader cannot take it in */
    bool *is_wide;     /* [value]: a product or a sum over devices reads or makes it: 16-bit floats are f32 */
    int32_t *reader;   /* [value]: the one node that reads it, NONE or MANY */
    int32_t *in_a_row; /* [value]: operators of a fusion from it to the result */
    int32_t *library;  /* [value]: the last node of its library fusion, or NONE */
    int32_t *seen;     /* [value]: the node that has visited it last */
    TransposedOperand *known;          /* [value] */
    int32_t transposed[2];             /* the operands of the product that is added, or NONE */
    int64_t *global_bytes, *workspace; /* [value]: xla_partition() */
    int32_t *queue;                    /* operators that the present node takes in */
    bool *is_queued_in_place;
    int32_t queue_count;
    int32_t *inputs; /* of all nodes */
    bool *is_in_place;
    int32_t input_count, input_capacity, place_capacity;
} GraphBuilder;

const ProgramInstruction *xla_producer(const Program *program, int32_t value) {
    int32_t i = program->values[value].instruction;
    return i < 0 || program->instructions[i].kind == PROGRAM_TRANSFER ? NULL : &program->instructions[i];
}

int32_t xla_node_number(const Program *program, int32_t value) {
    const ProgramInstruction *instruction = xla_producer(program, value);
    return !instruction || instruction->kind == PROGRAM_COLLECTIVE ? value : instruction->first_result;
}

int32_t xla_operand_count(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COLLECTIVE ? 1 : instruction->operand_count;
}

int32_t xla_operand(const Program *program, const ProgramInstruction *instruction, int32_t node, int32_t k) {
    bool is_merged = instruction->kind == PROGRAM_COLLECTIVE;
    return program_viewed(program, instruction->operands[is_merged ? node - instruction->first_result : k]);
}

/* Lists the nodes below a value, after their operands. */
static AmStatus visit_value(GraphBuilder *self, int32_t value, int32_t *stack, int32_t *next,
                            AmError *error) {
    const Program *program = self->program;
    int32_t depth = 0;
    value = xla_node_number(program, program_viewed(program, value));
    if (self->seen[value] == 0) stack[depth++] = value, self->seen[value] = 1;
    while (depth > 0) {
        int32_t node = stack[depth - 1];
        const ProgramInstruction *instruction = xla_producer(program, node);
        if (!instruction || next[node] == xla_operand_count(instruction)) {
            self->order[self->order_count++] = node;
            depth--;
            continue;
        }
        int32_t operand = xla_node_number(program, xla_operand(program, instruction, node, next[node]++));
        if (self->seen[operand] > 0) continue;
        self->seen[operand] = 1;
        stack[depth++] = operand;
    }
    return self->arena->failed ? am_fail_memory(error, program->value_count) : AM_OK;
}

/* Returns whether XLA's loop fusions have the operator. */
static bool is_fusible(const ProgramInstruction *instruction) {
    if (!instruction || instruction->kind != PROGRAM_COMPUTE || instruction->result_count != 1) return false;
    switch (instruction->opcode) {
    case IR_BROADCAST:
    case IR_CONCATENATE:
    case IR_CONSTANT:
    case IR_DYNAMIC_SLICE:
    case IR_GATHER:
    case IR_IOTA:
    case IR_PAD:
    case IR_REVERSE:
    case IR_SLICE:
    case IR_TRANSPOSE: return true;
    default: return ir_is_elementwise(instruction->opcode);
    }
}

/* Returns whether a reader can take the operator in: no pad, which takes in its own producers alone. */
static bool is_taken_in(const ProgramInstruction *instruction) {
    return is_fusible(instruction) && instruction->opcode != IR_PAD;
}

/* Returns whether XLA rather stores the result than computes it twice. A division by a constant is a
 * product. */
static bool is_expensive(const Program *program, const ProgramInstruction *instruction) {
    bool divides = instruction->opcode == IR_DIVIDE || instruction->opcode == IR_REMAINDER;
    if (divides) {
        const ProgramInstruction *divisor =
            xla_producer(program, program_viewed(program, instruction->operands[1]));
        while (divisor && divisor->opcode == IR_BROADCAST)
            divisor = xla_producer(program, program_viewed(program, divisor->operands[0]));
        return !(divisor && divisor->opcode == IR_CONSTANT);
    }
    return instruction->opcode == IR_GATHER || ir_opcode_has(instruction->opcode, FACT_TRANSCENDENTAL);
}

/* Returns whether a node can take the producers of its operands in. */
static bool takes_in(const GraphBuilder *self, const ProgramInstruction *instruction) {
    if (self->library[instruction->first_result] != NONE) return false;
    if (xla_is_split_reduction(self->program, instruction)) return false;
    bool reads = instruction->opcode == IR_REDUCE || instruction->opcode == IR_DYNAMIC_UPDATE_SLICE;
    return is_fusible(instruction) || (instruction->kind == PROGRAM_COMPUTE && reads);
}

/* Writes the number of an operand of a product in each place of XLA's order of dimensions: batch, free,
 * contracted for the left one, batch, contracted, free for the right one. */
static void order_of_dot(int8_t *order, const IrDot *dot, int32_t rank, bool is_right) {
    const int64_t *batch = is_right ? dot->rhs_batch : dot->lhs_batch;
    const int64_t *contracting = is_right ? dot->rhs_contracting : dot->lhs_contracting;
    int32_t count = 0;
    for (int32_t k = 0; k < dot->batch_count; k++) order[count++] = (int8_t)batch[k];
    for (int32_t k = 0; is_right && k < dot->contracting_count; k++) order[count++] = (int8_t)contracting[k];
    for (int32_t d = 0; d < rank; d++)
        if (!int_list_contains(batch, dot->batch_count, d) &&
            !int_list_contains(contracting, dot->contracting_count, d))
            order[count++] = (int8_t)d;
    for (int32_t k = 0; !is_right && k < dot->contracting_count; k++) order[count++] = (int8_t)contracting[k];
}

/* Returns whether XLA runs a product without rewriting it: batch dimensions first, one contracted and one
 * free dimension at most (DotDecomposer). */
static bool is_canonical(const IrDot *dot, int32_t left_rank, int32_t right_rank) {
    bool is_leading = true;
    for (int32_t k = 0; k < dot->batch_count; k++)
        is_leading &= dot->lhs_batch[k] == k && dot->rhs_batch[k] == k;
    return is_leading && dot->contracting_count == 1 && left_rank <= dot->batch_count + 2 &&
           right_rank <= dot->batch_count + 2;
}

/* Returns whether an operand has its batch dimensions first, and one contracted and one free dimension in any
 * order: XLA takes the transpose of these two into the product (TransposeFolding). */
static bool is_batch_of_matrices(const IrDot *dot, int32_t rank, bool is_right) {
    const int64_t *batch = is_right ? dot->rhs_batch : dot->lhs_batch;
    bool is_leading = dot->batch_count > 0;
    for (int32_t k = 0; k < dot->batch_count; k++) is_leading &= batch[k] == k;
    return is_leading && dot->contracting_count == 1 && rank == dot->batch_count + 2;
}

/* Returns a number of the order into which XLA brings operand o of a product before it runs: SAME_ORDER if it
 * reshapes it to a matrix alone; GATHERED: from all devices; 0: it reads the operand as it is. Products of
 * two matrices and windows of the usual order need nothing. */
static uint64_t order_wanted(const GraphBuilder *self, const ProgramInstruction *instruction, int32_t o) {
    const Program *program = self->program;
    int8_t order[IR_MAX_RANK];
    if (o > 1 || instruction->kind != PROGRAM_COMPUTE) return 0;
    int32_t rank = program->values[instruction->operands[o]].shape.rank;
    if (instruction->opcode == IR_CONVOLUTION && self->global_bytes[instruction->first_result] > 0)
        return GATHERED;
    if (instruction->opcode == IR_CONVOLUTION) {
        const IrConvolution *windows = instruction->attributes->convolution;
        bool is_usual =
            o == 0 ? windows->input_batch == 0 && windows->input_feature == rank - 1
                   : windows->kernel_input_feature == rank - 2 && windows->kernel_output_feature == rank - 1;
        int64_t first = o == 0 ? windows->input_batch : windows->kernel_input_feature;
        return is_usual ? 0 : (uint64_t)(3 + first * IR_MAX_RANK + o);
    }
    if (instruction->opcode != IR_DOT || rank < 3) return 0;
    const int64_t *sizes = program->values[instruction->operands[o]].shape.dimensions;
    if (is_batch_of_matrices(instruction->attributes->dot, rank, o == 1) ||
        is_canonical(instruction->attributes->dot, program->values[instruction->operands[0]].shape.rank,
                     program->values[instruction->operands[1]].shape.rank)) {
        for (int32_t d = 0; d < instruction->attributes->dot->batch_count; d++)
            if (sizes[d] == 1) return SAME_ORDER;
        return 0;
    }
    order_of_dot(order, instruction->attributes->dot, rank, o == 1);
    uint64_t number = 1;
    bool is_same = true;
    int32_t last = -1;
    for (int32_t k = 0; k < rank; k++) {
        if (sizes[order[k]] == 1) continue; /* XLA drops these dimensions of products */
        is_same &= order[k] > last;
        last = order[k];
        number = number * IR_MAX_RANK + (uint64_t)order[k];
    }
    return is_same ? SAME_ORDER : number;
}

/* Returns whether a cheap operator reads one array of the size of its result at most: XLA computes it again
 * in each reader that can take it in, also where others need its result in memory. */
static bool is_unary(const GraphBuilder *self, const ProgramInstruction *instruction) {
    const Program *program = self->program;
    if (self->library[instruction->first_result] != NONE) return false;
    if (!is_taken_in(instruction) || is_expensive(program, instruction)) return false;
    int64_t elements = ir_shape_elements(&program->values[instruction->first_result].shape);
    int32_t arrays = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = program_viewed(program, instruction->operands[k]);
        const ProgramInstruction *producer = xla_producer(program, operand);
        bool repeats = producer && (producer->opcode == IR_BROADCAST || producer->opcode == IR_CONSTANT);
        arrays += !repeats && ir_shape_elements(&program->values[operand].shape) >= elements;
    }
    return elements > 1 && arrays <= 1;
}

static void add_reader(GraphBuilder *self, int32_t value, int32_t reader) {
    int32_t *own = &self->reader[value];
    if (reader == NONE || *own == reader) return;
    *own = *own == NONE ? reader : MANY;
}

/* Decides which values have buffers, readers before producers. */
static void find_buffers(GraphBuilder *self) {
    const Program *program = self->program;
    for (int32_t k = self->order_count - 1; k >= 0; k--) {
        int32_t node = self->order[k];
        const ProgramInstruction *instruction = xla_producer(program, node);
        if (!instruction) {
            self->in_memory[node] = true;
            continue;
        }
        int32_t library = instruction->result_count == 1 ? self->library[node] : NONE;
        bool fuses = is_taken_in(instruction) && !self->is_unfusible[node] && self->reader[node] != NONE;
        if (library != NONE) fuses = library != node;
        else if (fuses && is_expensive(program, instruction)) fuses = self->reader[node] != MANY;
        fuses = library != NONE ? fuses : fuses && self->in_a_row[node] < MOST_IN_A_ROW;
        for (int32_t r = 0; r < (instruction->kind == PROGRAM_COLLECTIVE ? 1 : instruction->result_count);
             r++)
            self->in_memory[node + r] = !fuses;
        bool is_wide = instruction->kind == PROGRAM_COMPUTE
                           ? ir_is_product(instruction->opcode)
                           : instruction->collective->kind == PROGRAM_ALL_REDUCE ||
                                 instruction->collective->kind == PROGRAM_REDUCE_SCATTER;
        self->is_wide[node] |= is_wide;
        for (int32_t o = 0; o < xla_operand_count(instruction); o++) {
            int32_t operand = xla_operand(program, instruction, node, o);
            self->is_wide[operand] |= is_wide;
            if (library != NONE) {
                add_reader(self, operand, library);
                self->is_unfusible[operand] |= self->library[operand] != library;
                continue;
            }
            if (fuses && self->in_a_row[operand] <= self->in_a_row[node])
                self->in_a_row[operand] = self->in_a_row[node] + 1;
            const ProgramInstruction *producer = xla_producer(program, operand);
            add_reader(self, operand, fuses ? self->reader[node] : node);
            if (!fuses && self->reader[node] == MANY && is_unary(self, instruction))
                add_reader(self, operand, MANY);
            /* A fusion that repeats elements does not take in an expensive operator. */
            bool repeats = instruction->opcode == IR_BROADCAST && producer && is_fusible(producer) &&
                           is_expensive(program, producer);
            bool is_changed = instruction->opcode == IR_DYNAMIC_UPDATE_SLICE && o == 0;
            bool is_transposed = order_wanted(self, instruction, o) != 0;
            if ((!takes_in(self, instruction) && !is_transposed) || repeats || is_changed)
                self->is_unfusible[operand] = true;
        }
    }
}

static AmStatus add_input(GraphBuilder *self, int32_t buffer, bool in_place, AmError *error) {
    ARENA_RESERVE(self->arena, self->inputs, self->input_count, self->input_capacity);
    int32_t count = self->input_count;
    ARENA_RESERVE(self->arena, self->is_in_place, count, self->place_capacity);
    if (self->arena->failed) return am_fail_memory(error, self->input_count);
    self->inputs[self->input_count] = buffer;
    self->is_in_place[self->input_count++] = in_place;
    return AM_OK;
}

/* Adds the operand o of `value` to the inputs of a node, unless it is there. If the node takes it in, it is
 * queued instead. `in_place`: all operators from `value` to the result compute element by element. */
static AmStatus add_operand(GraphBuilder *self, XlaNode *node, int32_t value, int32_t o, bool in_place,
                            AmError *error) {
    const Program *program = self->program;
    const ProgramInstruction *instruction = xla_producer(program, value);
    int32_t operand = xla_operand(program, instruction, value, o);
    bool computes = instruction->kind == PROGRAM_COMPUTE;
    bool same = in_place && computes && ir_is_elementwise(instruction->opcode) &&
                ir_shape_bytes(&program->values[operand].shape) ==
                    ir_shape_bytes(&program->values[node->value].shape);
    if (value == node->value && computes)
        same |= instruction->opcode == IR_WHILE ||
                program_changed_operand(instruction, instruction->first_result) == o;
    if (value == node->value && o < 2 && self->transposed[o] != NONE)
        return add_input(self, self->transposed[o], false, error);
    if (self->seen[operand] == node->value) {
        for (int32_t k = node->input_count; k < self->input_count; k++)
            if (self->inputs[k] == operand) self->is_in_place[k] &= same;
        return AM_OK;
    }
    self->seen[operand] = node->value;
    const ProgramInstruction *producer = xla_producer(program, operand);
    bool is_taken = takes_in(self, instruction) && producer && is_unary(self, producer);
    if (self->in_memory[operand] && !is_taken) return add_input(self, operand, same, error);
    self->queue[self->queue_count] = operand;
    self->is_queued_in_place[self->queue_count++] = same;
    return AM_OK;
}

/* Adds the buffers that a node reads through the operators that it takes in, beginning with those that
 * `value` reads: XLA appends the operands of an operator that it fuses to those of the fusion. */
static AmStatus add_inputs(GraphBuilder *self, XlaNode *node, int32_t value, AmError *error) {
    bool in_place = value == node->value;
    self->queue_count = 0;
    for (int32_t next = 0;; next++) {
        const ProgramInstruction *instruction = xla_producer(self->program, value);
        for (int32_t o = 0; o < xla_operand_count(instruction); o++)
            TRY(add_operand(self, node, value, o, in_place, error));
        if (next == self->queue_count) return AM_OK;
        value = self->queue[next];
        in_place = self->is_queued_in_place[next];
    }
}

/* Returns the bytes of a value in memory, aligned; a reduce-scatter has those of its operand. */
static int64_t buffer_bytes(const GraphBuilder *self, int32_t value) {
    const Program *program = self->program;
    const ProgramInstruction *instruction = xla_producer(program, value);
    bool scatters = instruction && instruction->kind == PROGRAM_COLLECTIVE &&
                    instruction->collective->kind == PROGRAM_REDUCE_SCATTER;
    const IrShape *shape =
        &program->values[scatters ? xla_operand(program, instruction, value, 0) : value].shape;
    bool doubles = instruction && self->is_wide[value] && dtype_is_16bit_float(shape->type);
    int64_t own = self->global_bytes[value];
    int64_t bytes = (own > 0 ? own : ir_shape_bytes(shape)) * (doubles ? 2 : 1);
    return (bytes + XLA_ALIGNMENT - 1) / XLA_ALIGNMENT * XLA_ALIGNMENT;
}

/* Returns the bytes that the gradient of a pool has beside its operands and its result. XLA's
 * SelectAndScatterExpander finds the places of the greatest values by a reduce-window over the operand and
 * one array of s32 indices for each dimension, and scatters to them. The result comes after the indices. */
static int64_t pool_workspace(const GraphBuilder *self, const ProgramInstruction *instruction) {
    const IrShape *operand = &self->program->values[instruction->operands[0]].shape;
    const IrShape *source = &self->program->values[instruction->operands[1]].shape;
    int64_t rank = operand->rank, index_bytes = (int64_t)sizeof(int32_t);
    int64_t places = rank * ir_shape_elements(source) * index_bytes;
    int64_t indices = rank * ir_shape_elements(operand) * index_bytes;
    int64_t before =
        indices + places + ir_shape_bytes(source) - buffer_bytes(self, instruction->first_result);
    return larger_integer(before, places);
}

/* Adds the nodes that transpose the operands of a product, unless the same ones are there. They take in cheap
 * operators, which other readers compute again. */
static AmStatus add_transposes(GraphBuilder *self, const ProgramInstruction *instruction, AmError *error) {
    XlaGraph *graph = self->graph;
    for (int32_t o = 0; o < 2; o++) {
        uint64_t number = o < instruction->operand_count ? order_wanted(self, instruction, o) : 0;
        self->transposed[o] = NONE;
        if (number == 0) continue;
        int32_t operand = xla_operand(self->program, instruction, instruction->first_result, o);
        if (number == SAME_ORDER && self->in_memory[operand]) continue;
        TransposedOperand *known = &self->known[operand];
        if (known->number != number) {
            *known = (TransposedOperand){number, graph->buffer_count++};
            XlaNode *node = &graph->nodes[graph->node_count];
            *node = (XlaNode){.value = known->buffer, .result_count = 1, .input_count = self->input_count};
            graph->value_of[known->buffer] = operand;
            graph->bytes[known->buffer] =
                number == GATHERED ? xla_global_bytes(self->program, operand) : buffer_bytes(self, operand);
            graph->node_of[known->buffer] = graph->node_count++;
            const ProgramInstruction *producer = xla_producer(self->program, operand);
            bool is_taken = producer && is_unary(self, producer);
            if (self->in_memory[operand] && !is_taken) TRY(add_input(self, operand, false, error));
            else TRY(add_inputs(self, node, operand, error));
            node->input_count = self->input_count - node->input_count;
        }
        self->transposed[o] = known->buffer;
    }
    return AM_OK;
}

static AmStatus add_nodes(GraphBuilder *self, AmError *error) {
    XlaGraph *graph = self->graph;
    const Program *program = self->program;
    for (int32_t v = 0; v < program->value_count; v++) self->seen[v] = NONE;
    for (int32_t k = 0; k < self->order_count; k++) {
        int32_t value = self->order[k];
        const ProgramInstruction *instruction = xla_producer(program, value);
        if (!instruction || !self->in_memory[value] || instruction->opcode == IR_CONSTANT) continue;
        TRY(add_transposes(self, instruction, error));
        XlaNode *node = &graph->nodes[graph->node_count];
        *node = (XlaNode){.value = value, .result_count = 1, .input_count = self->input_count};
        if (instruction->kind != PROGRAM_COLLECTIVE) node->result_count = instruction->result_count;
        for (int32_t r = 0; r < node->result_count; r++) {
            graph->node_of[value + r] = graph->node_count;
            bool is_unread = instruction->opcode == IR_CONDITIONAL && self->reader[value + r] == NONE &&
                             !graph->is_output[value + r];
            graph->bytes[value + r] = is_unread ? 0 : buffer_bytes(self, value + r);
        }
        TRY(add_inputs(self, node, value, error));
        node->input_count = self->input_count - node->input_count;
        TRY(xla_workspace(&node->workspace, instruction, error));
        node->workspace += self->workspace[value];
        if (ir_is_matrix_product(instruction->opcode) && instruction->operand_count > 2)
            node->workspace =
                buffer_bytes(self, value) * (sbp_has_partial(program->values[value].state) ? 2 : 1);
        if (instruction->opcode == IR_SELECT_AND_SCATTER) node->workspace = pool_workspace(self, instruction);
        graph->node_count++;
    }
    int32_t first = 0;
    for (int32_t n = 0; n < graph->node_count; n++) {
        graph->nodes[n].inputs = &self->inputs[first];
        graph->nodes[n].is_in_place = &self->is_in_place[first];
        first += graph->nodes[n].input_count;
    }
    return AM_OK;
}

/* Gives every reader of an activation that is gathered or moved a collective of its own, and all readers of a
 * parameter the same one: XLA's partitioner reshards at each use, but keeps parameters that it has gathered.
 */
static AmStatus reshard_for_readers(GraphBuilder *self, AmError *error) {
    XlaGraph *graph = self->graph;
    const Program *program = self->program;
    int32_t node_count = graph->node_count;
    int32_t *gathered = ARENA_ARRAY(self->arena, int32_t, program->value_count + 1); /* of a parameter */
    if (!gathered) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) self->seen[v] = gathered[v] = NONE;
    for (int32_t n = 0; n < node_count; n++)
        for (int32_t k = 0; k < graph->nodes[n].input_count; k++) {
            int32_t *input = (int32_t *)&graph->nodes[n].inputs[k], value = *input;
            const ProgramInstruction *producer =
                value < program->value_count ? xla_producer(program, value) : NULL;
            bool is_resharded = producer && producer->kind == PROGRAM_COLLECTIVE &&
                                producer->collective->kind != PROGRAM_ALL_REDUCE &&
                                producer->collective->kind != PROGRAM_REDUCE_SCATTER;
            if (!is_resharded || graph->is_output[value]) continue;
            int32_t operand = xla_operand(program, producer, value, 0);
            if (!xla_producer(program, operand)) {
                int32_t first = gathered[operand];
                if (first == NONE) gathered[operand] = value;
                bool is_same = first != NONE && first != value && graph->bytes[first] == graph->bytes[value];
                if (is_same) *input = first, graph->bytes[value] = 0;
                continue;
            }
            if (self->seen[value] == NONE) {
                self->seen[value] = n;
                continue;
            }
            *input = graph->buffer_count++;
            graph->value_of[*input] = value;
            graph->bytes[*input] = graph->bytes[value];
            graph->node_of[*input] = graph->node_count;
            graph->nodes[graph->node_count] = graph->nodes[graph->node_of[value]];
            graph->nodes[graph->node_count++].value = *input;
        }
    return AM_OK;
}

/* Copies the parameters whose old value XLA may read after the new one is there. Readers of such parameters
 * have a bit each; a new value must have those of all readers of its parameter below it. */
static AmStatus copy_parameters(GraphBuilder *self, AmError *error) {
    XlaGraph *graph = self->graph;
    const Program *program = self->program;
    int32_t *bit = ARENA_ARRAY(self->arena, int32_t, graph->node_count + 1), bits = 0;
    for (int32_t n = 0; n < graph->node_count && bit; n++) {
        bit[n] = NONE;
        for (int32_t k = 0; k < graph->nodes[n].input_count && bit[n] == NONE; k++)
            if (graph->updated_by[graph->nodes[n].inputs[k]] != NONE) bit[n] = bits++;
    }
    size_t words = (size_t)(bits + 63) / 64;
    uint64_t *below = ARENA_ARRAY(self->arena, uint64_t, (size_t)graph->node_count * words + 1);
    if (self->arena->failed) return am_fail_memory(error, graph->node_count);
    for (int32_t n = 0; n < graph->node_count; n++) {
        uint64_t *own = &below[(size_t)n * words];
        for (int32_t k = 0; k < graph->nodes[n].input_count; k++) {
            int32_t producer = graph->node_of[graph->nodes[n].inputs[k]];
            for (size_t w = 0; producer >= 0 && w < words; w++) own[w] |= below[(size_t)producer * words + w];
        }
        if (bit[n] >= 0) own[bit[n] / 64] |= UINT64_C(1) << (bit[n] % 64);
    }
    for (int32_t n = 0; n < graph->node_count; n++)
        for (int32_t k = 0; k < graph->nodes[n].input_count; k++) {
            int32_t parameter = graph->nodes[n].inputs[k], update = graph->updated_by[parameter];
            if (update == NONE) continue;
            const uint64_t *under = &below[(size_t)graph->node_of[update] * words];
            if (under[bit[n] / 64] >> (bit[n] % 64) & 1) continue;
            graph->copy_of[parameter] = program->value_count + parameter;
        }
    return AM_OK;
}

/* Gives copies to the readers of their parameters, and adds the nodes that make them. */
static void read_copies(GraphBuilder *self) {
    XlaGraph *graph = self->graph;
    int32_t count = self->program->value_count;
    for (int32_t k = 0; k < self->input_count; k++)
        if (graph->copy_of[self->inputs[k]] != NONE) self->inputs[k] = graph->copy_of[self->inputs[k]];
    for (int32_t v = 0; v < count; v++) {
        if (graph->copy_of[v] == NONE) continue;
        graph->bytes[count + v] = buffer_bytes(self, v);
        graph->node_of[count + v] = graph->node_count;
        graph->nodes[graph->node_count++] = (XlaNode){.value = count + v, .result_count = 1};
    }
}

int32_t xla_most_buffers(const Program *program) {
    int32_t buffers = 2 * (program->value_count + 1);
    for (int32_t i = 0; i < program->instruction_count; i++)
        buffers += program->instructions[i].operand_count;
    return buffers;
}

/* Makes room for the graph of a program, and marks its outputs and those of the pairs. */
static AmStatus open_graph(GraphBuilder *self, XlaGraph *graph, const Program *program,
                           const Program *original, const XlaPair *pairs, int32_t pair_count,
                           AmError *error) {
    Arena *arena = original->arena;
    int32_t count = original->value_count + 1, buffers = xla_most_buffers(original);
    *self = (GraphBuilder){.graph = graph,
                           .program = program,
                           .arena = arena,
                           .order = ARENA_ARRAY(arena, int32_t, count),
                           .in_memory = ARENA_ARRAY(arena, bool, count),
                           .known = ARENA_ARRAY(arena, TransposedOperand, count),
                           .is_wide = ARENA_ARRAY(arena, bool, count),
                           .is_unfusible = ARENA_ARRAY(arena, bool, count),
                           .in_a_row = ARENA_ARRAY(arena, int32_t, count),
                           .reader = ARENA_ARRAY(arena, int32_t, count),
                           .library = ARENA_ARRAY(arena, int32_t, count),
                           .global_bytes = ARENA_ARRAY(arena, int64_t, count),
                           .workspace = ARENA_ARRAY(arena, int64_t, count),
                           .queue = ARENA_ARRAY(arena, int32_t, count),
                           .is_queued_in_place = ARENA_ARRAY(arena, bool, count),
                           .seen = ARENA_ARRAY(arena, int32_t, count)};
    *graph = (XlaGraph){.program = program,
                        .buffer_count = 2 * original->value_count,
                        .nodes = ARENA_ARRAY(arena, XlaNode, buffers),
                        .node_of = ARENA_ARRAY(arena, int32_t, buffers),
                        .value_of = ARENA_ARRAY(arena, int32_t, buffers),
                        .bytes = ARENA_ARRAY(arena, int64_t, buffers),
                        .is_output = ARENA_ARRAY(arena, bool, buffers),
                        .updated_by = ARENA_ARRAY(arena, int32_t, buffers),
                        .is_update = ARENA_ARRAY(arena, bool, buffers),
                        .copy_of = ARENA_ARRAY(arena, int32_t, buffers)};
    if (arena->failed) return am_fail_memory(error, original->value_count);
    for (int32_t v = 0; v < buffers; v++) graph->node_of[v] = graph->updated_by[v] = graph->copy_of[v] = NONE;
    for (int32_t v = 0; v < original->value_count; v++)
        graph->value_of[v] = graph->value_of[original->value_count + v] = v;
    for (int32_t v = 0; v < count; v++) self->reader[v] = NONE;
    for (int32_t k = 0; k < original->roles->output_count; k++)
        if (original->outputs[k] >= 0)
            graph->is_output[program_viewed(original, original->outputs[k])] = true;
    for (int32_t k = 0; k < pair_count; k++)
        graph->is_output[program_viewed(original, pairs[k].value)] = true;
    return AM_OK;
}

/* Lets new values of parameters take the memory of the old ones, where both are as large. */
static void update_parameters(GraphBuilder *self, const XlaPair *pairs, int32_t pair_count) {
    XlaGraph *graph = self->graph;
    const Program *program = self->program;
    for (int32_t k = 0; k < pair_count; k++) {
        int32_t parameter = pairs[k].parameter, value = program_viewed(program, pairs[k].value);
        bool is_new = graph->node_of[value] >= 0 && ir_shape_bytes(&program->values[value].shape) ==
                                                        ir_shape_bytes(&program->values[parameter].shape);
        if (!is_new || graph->is_update[value]) continue;
        graph->updated_by[parameter] = value;
        graph->is_update[value] = true;
    }
}

AmStatus xla_graph(XlaGraph *graph, const Program *original, const XlaPair *pairs, int32_t pair_count,
                   AmError *error) {
    Arena *arena = original->arena;
    GraphBuilder self;
    Program *program = ARENA_ARRAY(arena, Program, 1);
    TRY(open_graph(&self, graph, program, original, pairs, pair_count, error));
    int32_t *stack = ARENA_ARRAY(arena, int32_t, original->value_count + 1);
    int32_t *next = ARENA_ARRAY(arena, int32_t, original->value_count + 1);
    if (arena->failed) return am_fail_memory(error, original->value_count);
    TRY(xla_merge_equal(program, original, graph->is_output, error));
    TRY(xla_partition(program, graph->is_output, self.global_bytes, self.workspace, error));
    for (int32_t k = 0; k < program->roles->output_count + pair_count; k++) {
        bool is_pair = k >= program->roles->output_count;
        int32_t value = is_pair ? pairs[k - program->roles->output_count].value : program->outputs[k];
        if (value < 0) continue;
        value = program_viewed(program, value);
        self.is_unfusible[value] = graph->is_output[value] = true;
        TRY(visit_value(&self, value, stack, next, error));
    }
    TRY(xla_library_fusions(self.library, program, self.order, self.order_count, graph->is_output, error));
    find_buffers(&self);
    TRY(add_nodes(&self, error));
    update_parameters(&self, pairs, pair_count);
    TRY(reshard_for_readers(&self, error));
    TRY(copy_parameters(&self, error));
    read_copies(&self);
    return AM_OK;
}
