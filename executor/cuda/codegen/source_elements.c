/* Element-wise kernels: one thread per element of an index space, or per group of
 * neighbours.
 *
 * A thread finds its index along each dimension from its number and reads every input at its strides (0
 * where it is broadcast). It computes the operators in registers and writes the outputs, which are dense.
 * All reads come before all writes, so an output may have the memory of an input that is read at the same
 * element. Operators that only move elements (broadcast, reverse, copies) are kernels without operators.
 * Dimensions through which all inputs step with one stride are joined first, which leaves few divisions. In
 * a large space a thread has a group of neighbours along the last dimension: it reads and writes dense
 * arrays in accesses of up to 16 bytes.
 */
#include <stdio.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_text.h"

enum { LARGE_SPACE = 1 << 18 }; /* elements that fill a large device, several to a thread */

typedef struct SpaceInput {
    Dtype type;
    int64_t offset, strides[IR_MAX_RANK]; /* elements */
} SpaceInput;

typedef struct Space {
    int32_t rank;
    int64_t dimensions[IR_MAX_RANK], elements;
    int32_t joined[IR_MAX_RANK]; /* where a dimension went; -1: it had size 1 */
    int32_t input_count, op_count, output_count;
    SpaceInput *inputs;
    const ProgramFusionOp *ops;
    const int32_t *output_slots;
    Dtype *types;       /* [slot] */
    bool *used;         /* [slot]: something that is written depends on it */
    const char *index;  /* C type of indices: 32 bits where they suffice */
    const char *suffix; /* of its literals */
    int32_t refused;    /* operator without an expression, or -1 */
    int32_t group;      /* elements per thread */
} Space;

static bool has_iota(const Space *space, int32_t dimension) {
    for (int32_t k = 0; k < space->op_count; k++)
        if (space->ops[k].opcode == IR_IOTA && space->ops[k].attributes &&
            space->ops[k].attributes->dimension_count == 1 &&
            space->ops[k].attributes->dimensions[0] == dimension)
            return true;
    return false;
}

static bool can_join(const Space *space, int32_t outer, int32_t outer_was, int32_t inner) {
    if (has_iota(space, outer_was) || has_iota(space, inner)) return false;
    for (int32_t k = 0; k < space->input_count; k++) {
        const int64_t *strides = space->inputs[k].strides;
        if (strides[outer] != strides[inner] * space->dimensions[inner]) return false;
    }
    return true;
}

static void join_dimensions(Space *space) {
    int32_t rank = 0, last = -1; /* the dimension that the newest joined one began with */
    for (int32_t d = 0; d < space->rank; d++) {
        int64_t size = space->dimensions[d];
        space->joined[d] = -1;
        if (size == 1) continue;
        bool joins = last >= 0 && can_join(space, rank - 1, last, d);
        if (!joins) rank++, last = d;
        space->dimensions[rank - 1] = joins ? space->dimensions[rank - 1] * size : size;
        for (int32_t k = 0; k < space->input_count; k++)
            space->inputs[k].strides[rank - 1] = space->inputs[k].strides[d];
        space->joined[d] = rank - 1;
    }
    space->rank = rank;
}

/* Chooses 32-bit indices if neither the elements nor any offset need more. */
static void choose_index_type(Space *space) {
    int64_t most = space->elements;
    for (int32_t k = 0; k < space->input_count; k++) {
        int64_t reach = space->inputs[k].offset;
        for (int32_t d = 0; d < space->rank; d++)
            if (space->inputs[k].strides[d] > 0)
                reach += (space->dimensions[d] - 1) * space->inputs[k].strides[d];
        if (reach > most) most = reach;
    }
    space->index = most < INT32_MAX - CUDA_THREADS ? "u32" : "s64";
    space->suffix = most < INT32_MAX - CUDA_THREADS ? "u" : "ll";
}

static bool is_dense(const Space *space, const SpaceInput *input) {
    int64_t dense[IR_MAX_RANK];
    strided_row_major(dense, space->dimensions, space->rank);
    return input->offset == 0 && memcmp(dense, input->strides, sizeof(int64_t) * (size_t)space->rank) == 0;
}

/* Appends the place of an input's element: "i", or its offset and strides by the indices d0, d1, ... */
static void append_place(Text *out, const Space *space, const SpaceInput *input) {
    if (is_dense(space, input)) {
        text_append_string(out, "i");
        return;
    }
    bool empty = input->offset == 0;
    if (!empty) text_append(out, "%lld%s", (long long)input->offset, space->suffix);
    for (int32_t d = 0; d < space->rank; d++) {
        int64_t stride = input->strides[d];
        if (stride == 0) continue;
        const char *sign = stride < 0 ? (empty ? "-" : " - ") : empty ? "" : " + ";
        text_append(out, "%sd%d", sign, d);
        if (stride < 0) stride = -stride;
        if (stride != 1) text_append(out, " * %lld%s", (long long)stride, space->suffix);
        empty = false;
    }
    if (empty) text_append_string(out, "0");
}

/* Groups of 4, or of 2 where an element has 8 bytes. Memory is aligned to more than a group. */
static void choose_group(Space *space) {
    int64_t widest = 1;
    for (int32_t k = 0; k < space->input_count; k++)
        if (dtype_bytes(space->inputs[k].type) > widest) widest = dtype_bytes(space->inputs[k].type);
    for (int32_t k = 0; k < space->output_count; k++) {
        int64_t bytes = dtype_bytes(space->types[space->output_slots[k]]);
        if (bytes > widest) widest = bytes;
    }
    int32_t group = widest <= 4 ? 4 : widest == 8 ? 2 : 1;
    if (space->elements >= LARGE_SPACE && space->dimensions[space->rank - 1] % group == 0)
        space->group = group;
}

static bool needs_index(const Space *space, int32_t d) {
    for (int32_t k = 0; k < space->input_count; k++)
        if (space->used[k] && space->inputs[k].strides[d] != 0 && !is_dense(space, &space->inputs[k]))
            return true;
    for (int32_t k = 0; k < space->op_count; k++) {
        const ProgramFusionOp *op = &space->ops[k];
        if (space->used[space->input_count + k] && op->opcode == IR_IOTA && op->attributes &&
            op->attributes->dimension_count == 1 && space->joined[op->attributes->dimensions[0]] == d)
            return true;
    }
    return false;
}

/* Appends the needed coordinates d0, d1, ... of element i. A group's last coordinate is "last" in its first
 * element. */
static void append_coordinates(Text *out, const Space *space) {
    int64_t inner = space->elements;
    for (int32_t d = 0; d < space->rank; d++) {
        inner /= space->dimensions[d];
        if (!needs_index(space, d)) continue;
        if (space->group > 1 && d == space->rank - 1) text_append(out, "    const %s last = i", space->index);
        else text_append(out, "    const %s d%d = i", space->index, d);
        if (inner != 1) text_append(out, " / %lld%s", (long long)inner, space->suffix);
        if (d > 0) text_append(out, " %% %lld%s", (long long)space->dimensions[d], space->suffix);
        text_append_string(out, ";\n");
    }
}

/* Appends the number i of this thread's element, or of the first of its group. */
static void append_indices(Text *out, const Space *space) {
    int64_t threads = space->elements / space->group;
    text_append(out, "    const %s %s = (%s)blockIdx.x * %d%s + threadIdx.x;\n", space->index,
                space->group > 1 ? "group" : "i", space->index, CUDA_THREADS, space->suffix);
    text_append(out, "    if (%s >= %lld%s) return;\n", space->group > 1 ? "group" : "i", (long long)threads,
                space->suffix);
    bool counts = false;
    for (int32_t d = 0; d < space->rank; d++) counts = counts || needs_index(space, d);
    if (space->group > 1 && counts)
        text_append(out, "    const %s i = group * %d%s;\n", space->index, space->group, space->suffix);
    append_coordinates(out, space);
}

/* Groups that are read at once, those that will be written, and the loop over a group's elements. Unrolled,
 * it has literal indices, which keep the groups in registers. */
static void append_groups(Text *out, const Space *space) {
    for (int32_t k = 0; k < space->input_count; k++)
        if (space->used[k] && is_dense(space, &space->inputs[k])) {
            const char *type = cuda_memory_type(space->inputs[k].type);
            text_append(out, "    const Group<%s, %d> group%d = ((const Group<%s, %d> *)in%d)[group];\n",
                        type, space->group, k, type, space->group, k);
        }
    for (int32_t k = 0; k < space->output_count; k++)
        text_append(out, "    Group<%s, %d> result%d;\n",
                    cuda_memory_type(space->types[space->output_slots[k]]), space->group, k);
    text_append_string(out, "#pragma unroll\n");
    text_append(out, "    for (%s k = 0; k < %d; k++) {\n", space->index, space->group);
    if (needs_index(space, space->rank - 1))
        text_append(out, "    const %s d%d = last + k;\n", space->index, space->rank - 1);
}

static void append_loads(Text *out, const Space *space) {
    for (int32_t k = 0; k < space->input_count; k++) {
        Text element = {0};
        if (!space->used[k]) continue;
        if (space->group > 1 && is_dense(space, &space->inputs[k])) {
            text_append(&element, "group%d.at[k]", k);
        } else {
            text_append(&element, "in%d[", k);
            append_place(&element, space, &space->inputs[k]);
            text_append_string(&element, "]");
        }
        text_append(out, "    const %s v%d = ", cuda_value_type(space->inputs[k].type), k);
        cuda_append_load(out, space->inputs[k].type, element.failed ? "" : element.data);
        text_append_string(out, ";\n");
        out->failed = out->failed || element.failed;
        text_free(&element);
    }
}

static void append_stores(Text *out, const Space *space) {
    for (int32_t k = 0; k < space->output_count; k++) {
        char value[32];
        snprintf(value, sizeof value, "v%d", space->output_slots[k]);
        text_append(out, space->group > 1 ? "    result%d.at[k] = " : "    out%d[i] = ", k);
        int32_t slot = space->output_slots[k];
        bool is_rounded = slot >= space->input_count && space->types[slot] == DTYPE_BF16 &&
                          cuda_operator_rounds(&space->ops[slot - space->input_count]);
        if (is_rounded) text_append(out, "bf16_bits(%s)", value);
        else cuda_append_store(out, space->types[slot], value);
        text_append_string(out, ";\n");
    }
    if (space->group == 1) return;
    text_append_string(out, "    }\n");
    for (int32_t k = 0; k < space->output_count; k++)
        text_append(out, "    ((Group<%s, %d> *)out%d)[group] = result%d;\n",
                    cuda_memory_type(space->types[space->output_slots[k]]), space->group, k, k);
}

static void append_operators(Text *out, Space *space) {
    for (int32_t k = 0; k < space->op_count; k++) {
        const ProgramFusionOp *op = &space->ops[k];
        char iota[96] = "";
        if (op->opcode == IR_IOTA && op->attributes && op->attributes->dimension_count == 1) {
            int32_t d = space->joined[op->attributes->dimensions[0]];
            if (d < 0) snprintf(iota, sizeof iota, "(s64)%lldll", (long long)op->iota_start);
            else snprintf(iota, sizeof iota, "(%lldll + (s64)d%d)", (long long)op->iota_start, d);
        }
        int32_t slot = space->input_count + k;
        Text unused = {0};
        if (space->used[slot]) text_append_string(out, "    ");
        if (!cuda_append_operator(space->used[slot] ? out : &unused, op, slot, space->types,
                                  iota[0] ? iota : NULL) &&
            space->refused < 0)
            space->refused = k;
        text_free(&unused);
    }
}

/* Joins dimensions and appends the operators of a space whose inputs, operators and outputs are known. */
static AmStatus append_space(Text *statements, Arena *arena, Space *space, AmError *error) {
    int32_t slots = space->input_count + space->op_count;
    space->types = ARENA_ARRAY(arena, Dtype, slots + 1);
    space->used = ARENA_ARRAY(arena, bool, slots + 1);
    if (arena->failed) return am_fail_memory(error, slots * 8);
    space->refused = -1;
    space->elements = strided_elements(space->dimensions, space->rank);
    for (int32_t k = 0; k < space->input_count; k++) space->types[k] = space->inputs[k].type;
    if (space->elements > 0) {
        join_dimensions(space);
        choose_index_type(space);
    } else {
        space->rank = 0, space->index = "u32", space->suffix = "u";
        for (int32_t d = 0; d < IR_MAX_RANK; d++) space->joined[d] = -1;
    }
    /* The values that an output reads. */
    for (int32_t k = 0; k < space->output_count; k++) space->used[space->output_slots[k]] = true;
    for (int32_t k = space->op_count - 1; k >= 0; k--) {
        const ProgramFusionOp *op = &space->ops[k];
        if (!space->used[space->input_count + k]) continue;
        for (int32_t o = 0; o < op->operand_count && o < 3; o++)
            if (op->operands[o] >= 0 && op->operands[o] < space->input_count + k)
                space->used[op->operands[o]] = true;
    }
    for (int32_t k = 0; k < space->input_count && space->op_count > 0; k++)
        if (!cuda_has_operators(space->inputs[k].type)) space->refused = 0;
    space->group = 1;
    append_operators(statements, space);
    return AM_OK;
}

static AmStatus write_kernel(CudaSource *source, const KernelCall *call, Space *space, const char *kind,
                             AmError *error) {
    Text body = {0}, statements = {0};
    TRY(append_space(&statements, source->arena, space, error));
    if (space->refused < 0) {
        if (space->elements > 1) choose_group(space);
        cuda_append_signature(&body, call, source, NULL, false);
        append_indices(&body, space);
        if (space->group > 1) append_groups(&body, space);
        append_loads(&body, space);
        text_append_string(&body, statements.length > 0 ? statements.data : "");
        append_stores(&body, space);
        text_append_string(&body, "}\n");
    }
    body.failed = body.failed || statements.failed;
    text_free(&statements);
    if (space->refused >= 0) return AM_OK; /* the caller knows the instruction */
    return cuda_source_launch(source, kind, &body, cuda_blocks(space->elements / space->group), CUDA_THREADS,
                              error);
}

static void copy_list(int64_t *to, const int64_t *from, int32_t count) {
    for (int32_t k = 0; k < count; k++) to[k] = from[k];
}

static void describe_fusion(Space *space, const ProgramFusion *fusion) {
    space->rank = fusion->rank;
    copy_list(space->dimensions, fusion->dimensions, fusion->rank);
    for (int32_t k = 0; k < fusion->input_count; k++)
        copy_list(space->inputs[k].strides, fusion->inputs[k].strides, fusion->rank);
    space->op_count = fusion->op_count;
    space->ops = fusion->ops;
    space->output_slots = fusion->output_slots;
}

static AmStatus check_fusion(const KernelCall *call, const Space *space, AmError *error) {
    if (space->refused < 0) return AM_OK;
    const ProgramFusionOp *op = &call->fusion->ops[space->refused];
    return kernel_refuse(call->program, op->origin, op->opcode, "not on this element type", error);
}

static AmStatus write_fusion(CudaSource *source, const KernelCall *call, Space *space, AmError *error) {
    describe_fusion(space, call->fusion);
    TRY(write_kernel(source, call, space, "fusion", error));
    return check_fusion(call, space, error);
}

/* Describes the offset and strides with which the result's index space walks operand 0. */
static void describe_move(SpaceInput *input, const KernelCall *call) {
    const IrAttributes *attributes = call->attributes;
    const IrShape *operand = call->operand_shapes[0];
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, operand->dimensions, operand->rank);
    switch (call->instruction->opcode) {
    case IR_BROADCAST:
        for (int32_t d = 0; d < operand->rank; d++) input->strides[attributes->dimensions[d]] = strides[d];
        break;
    case IR_REVERSE:
        copy_list(input->strides, strides, operand->rank);
        for (int32_t k = 0; k < attributes->dimension_count; k++) {
            int64_t d = attributes->dimensions[k];
            input->offset += (operand->dimensions[d] - 1) * strides[d];
            input->strides[d] = -strides[d];
        }
        break;
    default: /* reshape, bitcast, opt-barrier, domain, add-dependency: the same elements in the same order */
        strided_row_major(input->strides, call->result_shapes[0]->dimensions, call->result_shapes[0]->rank);
    }
}

static const struct {
    IrOpcode opcode;
    const char *kind;
} moves[] = {
    {IR_ADD_DEPENDENCY, "copy"}, {IR_BITCAST, "copy"}, {IR_BROADCAST, "broadcast"}, {IR_DOMAIN, "copy"},
    {IR_OPT_BARRIER, "copy"},    {IR_RESHAPE, "copy"}, {IR_REVERSE, "reverse"},
};

static const char *kind_of_move(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof moves / sizeof *moves; k++)
        if (moves[k].opcode == opcode) return moves[k].kind;
    return NULL;
}

bool cuda_source_is_element_wise(IrOpcode opcode) {
    return opcode == IR_IOTA || opcode == IR_MAP || ir_is_elementwise(opcode) || kind_of_move(opcode);
}

static AmStatus write_instruction(CudaSource *source, const KernelCall *call, Space *space, AmError *error) {
    const ProgramInstruction *instruction = call->instruction;
    const IrShape *shape = call->result_shapes[0];
    const char *move = kind_of_move(instruction->opcode);
    ProgramFusionOp op = {.opcode = instruction->opcode,
                          .type = shape->type,
                          .operand_count = call->operand_count,
                          .operands = {0, 1, 2},
                          .attributes = instruction->attributes,
                          .origin = instruction->origin};
    int32_t output_slot = move ? 0 : call->operand_count;
    if (call->operand_count > 3 || call->result_count != 1 || (move && call->operand_count != 1))
        return kernel_call_refuse(call, "an unusual number of operands", error);
    if (instruction->opcode == IR_IOTA && instruction->compute.shard)
        op.iota_start = instruction->compute.shard->start[instruction->attributes->dimensions[0]];
    space->rank = shape->rank;
    copy_list(space->dimensions, shape->dimensions, shape->rank);
    space->ops = &op;
    space->op_count = move ? 0 : 1;
    space->output_slots = &output_slot;
    if (move) describe_move(&space->inputs[0], call);
    /* A scalar beside an array (clamp's bounds, select's predicate) is the same everywhere. */
    for (int32_t k = 0; k < call->operand_count && !move; k++)
        if (call->operand_shapes[k]->rank == shape->rank)
            strided_row_major(space->inputs[k].strides, shape->dimensions, shape->rank);
    TRY(write_kernel(source, call, space, move ? move : "element", error));
    return space->refused < 0 ? AM_OK : kernel_call_refuse(call, "not on this element type", error);
}

/* Writes map: a computation of scalars on elements at the same place of every operand. */
static AmStatus write_map(CudaSource *source, const KernelCall *call, Space *space, AmError *error) {
    const IrShape *shape = call->result_shapes[0];
    Dtype *types = ARENA_ARRAY(source->arena, Dtype, call->operand_count + 1);
    ElementComputation body;
    if (!types) return am_fail_memory(error, call->operand_count * 4);
    for (int32_t k = 0; k < call->operand_count; k++) {
        types[k] = call->operand_shapes[k]->type;
        if (ir_shape_elements(call->operand_shapes[k]) != ir_shape_elements(shape))
            return kernel_call_refuse(call, "its operands differ in size", error);
        strided_row_major(space->inputs[k].strides, shape->dimensions, shape->rank);
    }
    TRY(cuda_computation_read(&body, source->arena, call, call->instruction->compute.called, types,
                              call->operand_count, shape->type, error));
    space->rank = shape->rank;
    copy_list(space->dimensions, shape->dimensions, shape->rank);
    space->ops = body.ops;
    space->op_count = body.op_count;
    space->output_slots = body.output_slots;
    TRY(write_kernel(source, call, space, "map", error));
    return space->refused < 0
               ? AM_OK
               : kernel_call_refuse(call, "its computation has an operator without a kernel", error);
}

static AmStatus new_space(Space **space, Arena *arena, const KernelCall *call, AmError *error) {
    SpaceInput *inputs = ARENA_ARRAY(arena, SpaceInput, call->operand_count + 1);
    *space = ARENA_ARRAY(arena, Space, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *inputs * call->operand_count);
    (*space)->inputs = inputs;
    (*space)->input_count = call->operand_count;
    (*space)->output_count = call->result_count;
    for (int32_t k = 0; k < call->operand_count; k++) inputs[k].type = call->operand_shapes[k]->type;
    return AM_OK;
}

AmStatus cuda_source_elements(CudaSource *source, const KernelCall *call, AmError *error) {
    Space *space;
    TRY(new_space(&space, source->arena, call, error));
    if (call->instruction && call->instruction->opcode == IR_MAP)
        return write_map(source, call, space, error);
    return call->fusion ? write_fusion(source, call, space, error)
                        : write_instruction(source, call, space, error);
}

AmStatus cuda_append_fusion_rows(Text *out, Arena *arena, const KernelCall *call, int64_t rows,
                                 AmError *error) {
    Text statements = {0};
    Space *space;
    long long row = (long long)(call->fusion->elements / rows);
    TRY(new_space(&space, arena, call, error));
    describe_fusion(space, call->fusion);
    TRY(append_space(&statements, arena, space, error));
    text_append(out,
                "    for (%s i = (%s)(first * %lldll) + threadIdx.x; i < (%s)(end * %lldll); i += %d) {\n",
                space->index, space->index, row, space->index, row, CUDA_THREADS);
    append_coordinates(out, space);
    append_loads(out, space);
    text_append_string(out, statements.length > 0 ? statements.data : "");
    append_stores(out, space);
    text_append_string(out, "    }\n");
    out->failed = out->failed || statements.failed;
    text_free(&statements);
    return check_fusion(call, space, error);
}
