/* Equal operators are found by a table of hashes of their opcodes and operands, dimensions of size 1 left
 * out: XLA moves reshapes out of the way. Library fusions grow from reductions, those next to the results
 * first.
 */
#include "cost/step/xla_rewrites.h"

#include <string.h>

#include "base/hash.h"
#include "cost/step/xla_graph.h"
#include "ir/module.h"
#include "lowering/program/program_edit.h"

enum { NONE = -1, MANY = -2, LEAST_ELEMENTS = 4096, ROWS_OF_TREE = 32 };

/* ---- equal operators ---- */

static bool is_same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool is_same_list(const int64_t *a, const int64_t *b, int32_t count) {
    return a == b || (a && b && memcmp(a, b, sizeof *a * (size_t)count) == 0);
}

/* Returns whether two attributes are equal that are not those of products, windows and gathers. */
static bool is_same_attributes(const IrAttributes *a, const IrAttributes *b, int32_t rank) {
    if (a == b) return true;
    if (!a || !b || a->dimension_count != b->dimension_count) return false;
    return is_same_list(a->dimensions, b->dimensions, a->dimension_count) &&
           is_same_list(a->slice_start, b->slice_start, rank) &&
           is_same_list(a->slice_limit, b->slice_limit, rank) &&
           is_same_list(a->slice_stride, b->slice_stride, rank);
}

/* Returns whether two computations combine their two parameters by the same operator. */
static bool is_same_reducer(const IrModule *module, int32_t a, int32_t b) {
    if (a == b) return true;
    if (!module || a < 0 || b < 0 || module->computations[a].count != 3 || module->computations[b].count != 3)
        return false;
    return ir_instruction(module, module->computations[a].root)->opcode ==
           ir_instruction(module, module->computations[b].root)->opcode;
}

/* Returns whether equal operators of this kind are merged: those whose attributes are compared in full. */
static bool is_mergeable(const ProgramInstruction *instruction) {
    if (!instruction->attributes || instruction->kind != PROGRAM_COMPUTE || instruction->result_count != 1)
        return false;
    switch (instruction->opcode) {
    case IR_BROADCAST:
    case IR_IOTA:
    case IR_SLICE:
    case IR_TRANSPOSE: return instruction->compute.shard == NULL;
    case IR_CONSTANT: return instruction->compute.literal && instruction->compute.literal->data;
    case IR_REDUCE: return true;
    case IR_REDUCE_PRECISION: return false;
    default: return ir_is_elementwise(instruction->opcode);
    }
}

/* Returns whether two shapes are equal without their dimensions of size 1. */
static bool is_same_without_ones(const IrShape *a, const IrShape *b) {
    int32_t d = 0, e = 0;
    if (a->type != b->type) return false;
    for (;; d++, e++) {
        while (d < a->rank && a->dimensions[d] == 1) d++;
        while (e < b->rank && b->dimensions[e] == 1) e++;
        if (d == a->rank || e == b->rank) return d == a->rank && e == b->rank;
        if (a->dimensions[d] != b->dimensions[e]) return false;
    }
}

/* Lists the dimensions of a broadcast's result, counted without those of size 1, that its operand has. */
static int32_t list_kept(int32_t *kept, const Program *program, const ProgramInstruction *broadcast) {
    const IrShape *shape = &program->values[broadcast->first_result].shape;
    const IrShape *operand = &program->values[broadcast->operands[0]].shape;
    int32_t count = 0;
    for (int32_t k = 0; k < operand->rank; k++) {
        if (operand->dimensions[k] == 1) continue;
        kept[count] = 0;
        for (int32_t d = 0; d < broadcast->attributes->dimensions[k]; d++)
            kept[count] += shape->dimensions[d] != 1;
        count++;
    }
    return count;
}

typedef struct EqualFinder {
    const Program *program;
    int32_t *first; /* [value]: the first value that is equal, of the same shape */
    int32_t *core;  /* [value]: the first that is equal without dimensions of size 1 */
} EqualFinder;

static bool is_same_operator(const EqualFinder *self, const ProgramInstruction *a,
                             const ProgramInstruction *b) {
    const Program *program = self->program;
    const IrShape *shape = &program->values[a->first_result].shape,
                  *other = &program->values[b->first_result].shape;
    if (a->kind != b->kind || a->opcode != b->opcode || a->operand_count != b->operand_count) return false;
    if (a->kind == PROGRAM_VIEW) return a->operands[0] == b->operands[0] && ir_shape_equal(shape, other);
    for (int32_t k = 0; k < a->operand_count; k++)
        if (self->core[a->operands[k]] != self->core[b->operands[k]]) return false;
    if (a->opcode == IR_BROADCAST) {
        int32_t kept[2][IR_MAX_RANK], count = list_kept(kept[0], program, a);
        return is_same_without_ones(shape, other) && count == list_kept(kept[1], program, b) &&
               memcmp(kept[0], kept[1], sizeof kept[0][0] * (size_t)count) == 0;
    }
    if (ir_is_elementwise(a->opcode))
        return is_same_without_ones(shape, other) &&
               is_same_text(a->attributes->comparison, b->attributes->comparison) &&
               is_same_text(a->attributes->comparison_type, b->attributes->comparison_type);
    if (!ir_shape_equal(shape, other)) return false;
    if (a->opcode == IR_CONSTANT)
        return a->compute.literal->bytes == b->compute.literal->bytes &&
               memcmp(a->compute.literal->data, b->compute.literal->data,
                      (size_t)a->compute.literal->bytes) == 0;
    bool has_same_operands =
        a->operand_count == 0 ||
        memcmp(a->operands, b->operands, sizeof *a->operands * (size_t)a->operand_count) == 0;
    return has_same_operands && is_same_attributes(a->attributes, b->attributes, shape->rank) &&
           is_same_reducer(program->module, a->compute.called, b->compute.called);
}

/* Makes an instruction a view of another value. */
static void become_view(ProgramInstruction *instruction, int32_t *operands, int32_t value) {
    operands[0] = value;
    instruction->kind = PROGRAM_VIEW;
    instruction->opcode = IR_RESHAPE;
    instruction->operand_count = 1;
}

/* Returns the operand that result r of a conditional is, whichever branch runs; NONE: it is none. */
static int32_t handed_on(const ProgramInstruction *conditional, int32_t r) {
    int32_t operand = NONE, first = 1;
    for (int32_t k = 0; k < conditional->regions.count; k++) {
        const Program *branch = conditional->regions.programs[k];
        int32_t count = branch->roles->parameter_count, p = 0;
        if (r >= branch->roles->output_count) return NONE;
        while (p < count && (branch->parameters[p] < 0 || branch->parameters[p] != branch->outputs[r])) p++;
        if (p == count || first + p >= conditional->operand_count) return NONE;
        int32_t own = conditional->operands[first + p];
        if (operand != NONE && operand != own) return NONE;
        operand = own;
        first += count;
    }
    return operand;
}

AmStatus xla_merge_equal(Program *merged, const Program *program, const bool *is_output, AmError *error) {
    Arena *arena = program->arena;
    int32_t count = program->instruction_count, operand_count = 0, size = 1;
    while (size < 2 * count) size *= 2;
    for (int32_t i = 0; i < count; i++) operand_count += program->instructions[i].operand_count;
    *merged = *program;
    merged->instructions = ARENA_ARRAY(arena, ProgramInstruction, count + 1);
    EqualFinder self = {.program = program,
                        .first = ARENA_ARRAY(arena, int32_t, program->value_count + 1),
                        .core = ARENA_ARRAY(arena, int32_t, program->value_count + 1)};
    int32_t *operands = ARENA_ARRAY(arena, int32_t, operand_count + 1);
    int32_t *table = ARENA_ARRAY(arena, int32_t, size), *next = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < program->value_count; v++) self.first[v] = self.core[v] = v;
    for (int32_t k = 0; k < size; k++) table[k] = NONE;
    for (int32_t i = 0; i < count; i++, operands += program->instructions[i - 1].operand_count) {
        ProgramInstruction *own = &merged->instructions[i];
        *own = program->instructions[i];
        own->operands = operands;
        uint64_t hash = (uint64_t)own->opcode;
        for (int32_t o = 0; o < own->operand_count; o++) {
            operands[o] = self.first[program->instructions[i].operands[o]];
            hash = hash_combine(hash, (uint64_t)self.core[operands[o]]);
        }
        int32_t value = own->first_result;
        const ProgramValue *result = &program->values[value];
        bool repeats = is_mergeable(own) && own->opcode == IR_BROADCAST;
        if ((repeats || own->kind == PROGRAM_VIEW) && !result->place && !is_output[value] &&
            is_same_without_ones(&result->shape, &program->values[operands[0]].shape)) {
            self.core[value] = self.core[operands[0]];
            if (repeats) become_view(own, operands, operands[0]);
            continue;
        }
        for (int32_t r = 0; own->opcode == IR_CONDITIONAL && r < own->result_count; r++) {
            int32_t operand = is_output[value + r] ? NONE : handed_on(own, r);
            if (operand != NONE) self.first[value + r] = self.core[value + r] = operand;
        }
        bool is_view = own->kind == PROGRAM_VIEW && !result->place;
        if ((!is_view && !is_mergeable(own)) || is_output[value]) continue;
        int32_t *bucket = &table[hash & (uint64_t)(size - 1)], equal = *bucket;
        while (equal >= 0 && !is_same_operator(&self, &merged->instructions[equal], own)) equal = next[equal];
        if (equal < 0) {
            next[i] = *bucket, *bucket = i;
            continue;
        }
        int32_t same = merged->instructions[equal].first_result;
        self.core[value] = same;
        if (ir_shape_equal(&result->shape, &program->values[same].shape)) self.first[value] = same;
        else become_view(own, operands, same);
    }
    return AM_OK;
}

/* ---- operators that XLA does not run in shards ---- */

/* Returns the canonical instruction of a number; NULL: there is none. */
static const IrInstruction *origin_of(const Program *program, int32_t origin) {
    bool is_known = program->module && origin >= 0 && origin < program->module->instruction_count;
    return is_known ? ir_instruction(program->module, origin) : NULL;
}

/* Returns the global shape of a value that is a shard; NULL: it is not known. */
static const IrShape *global_shape(const Program *program, int32_t value) {
    const IrInstruction *origin = origin_of(program, program->values[value].origin);
    const IrShape *shape = origin ? &origin->shape : NULL, *shard = &program->values[value].shape;
    if (!shape || shape->type != shard->type || shape->rank != shard->rank) return NULL; /* part of a tuple */
    for (int32_t d = 0; d < shape->rank; d++)
        if (shard->dimensions[d] > shape->dimensions[d]) return NULL;
    return shape;
}

int64_t xla_global_bytes(const Program *program, int32_t value) {
    const IrShape *shape = global_shape(program, value);
    return ir_shape_bytes(shape ? shape : &program->values[value].shape);
}

/* Returns whether a reshape joins dimensions and one of them is split, apart from the first of size above 1.
 */
static bool joins_split(const IrShape *from, const IrShape *to, const IrShape *shard) {
    int32_t d = 0, e = 0;
    while (d < from->rank) {
        int64_t size = 1, other = 1;
        bool is_first = true, is_split = false;
        do {
            if (size <= other && d < from->rank) {
                is_split |= !is_first && shard->dimensions[d] < from->dimensions[d];
                is_first &= from->dimensions[d] == 1;
                size *= from->dimensions[d++];
            } else if (e < to->rank) {
                other *= to->dimensions[e++];
            } else {
                return is_split;
            }
        } while (size != other);
        if (is_split) return true;
    }
    return false;
}

/* Returns whether XLA runs a convolution with groups unsplit on each device. */
static bool runs_unsplit(const Program *program, const ProgramInstruction *instruction) {
    const IrInstruction *origin = origin_of(program, instruction->origin);
    if (!origin || origin->opcode != IR_CONVOLUTION) return false;
    const IrConvolution *windows = origin->attributes->convolution;
    const IrShape *global = global_shape(program, instruction->operands[0]);
    const IrShape *kernel = global_shape(program, instruction->operands[1]);
    if (windows->feature_group_count == 1 || !global || !kernel) return false;
    int64_t features = global->dimensions[windows->input_feature];
    int64_t own = program->values[instruction->operands[0]].shape.dimensions[windows->input_feature];
    int64_t own_kernel =
        program->values[instruction->operands[1]].shape.dimensions[windows->kernel_output_feature];
    bool splits = own < features || own_kernel < kernel->dimensions[windows->kernel_output_feature];
    bool by_all = features / own == program->mesh->device_count &&
                  windows->feature_group_count % program->mesh->device_count == 0;
    return splits && !by_all && windows->feature_group_count < features;
}

/* Scatters partial values in the loops that carry them, if they update parameters that are stored in
 * shards. */
static AmStatus scatter_in_loops(Program *merged, const bool *is_output, int64_t *bytes, AmError *error) {
    int32_t *reads = ARENA_ARRAY(merged->arena, int32_t, merged->value_count + 1);
    int32_t *carried =
        ARENA_ARRAY(merged->arena, int32_t, merged->value_count + 1); /* of a scattered value */
    bool *updates = ARENA_ARRAY(merged->arena, bool, merged->value_count + 1), is_any = false;
    if (merged->arena->failed) return am_fail_memory(error, merged->value_count);
    /* From these values element-wise operators lead to an output of their shape. */
    for (int32_t i = merged->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *own = &merged->instructions[i];
        int32_t value = own->first_result;
        if (own->kind != PROGRAM_COMPUTE || !ir_is_elementwise(own->opcode)) continue;
        if (!is_output[value] && !updates[value]) continue;
        for (int32_t o = 0; o < own->operand_count; o++)
            updates[own->operands[o]] |= ir_shape_elements(&merged->values[own->operands[o]].shape) ==
                                         ir_shape_elements(&merged->values[value].shape);
    }
    for (int32_t i = 0; i < merged->instruction_count; i++) {
        const ProgramInstruction *own = &merged->instructions[i];
        for (int32_t o = 0; o < own->operand_count; o++) reads[own->operands[o]]++;
    }
    for (int32_t v = 0; v < merged->value_count; v++) carried[v] = NONE;
    for (int32_t i = 0; i < merged->instruction_count; i++) {
        const ProgramInstruction *own = &merged->instructions[i];
        if (own->kind != PROGRAM_COLLECTIVE || own->collective->kind != PROGRAM_REDUCE_SCATTER) continue;
        for (int32_t k = 0; k < own->result_count; k++) {
            int32_t value = own->first_result + k, operand = own->operands[k];
            const ProgramInstruction *loop = xla_producer(merged, operand);
            if (!loop || loop->opcode != IR_WHILE || reads[operand] != 1 || !updates[value]) continue;
            int32_t start = program_changed_operand(loop, operand);
            if (start < 0 || is_output[value]) continue;
            carried[value] = operand;
            bytes[operand] = ir_shape_bytes(&merged->values[value].shape);
            start = loop->operands[start];
            if (xla_producer(merged, start)) bytes[start] = bytes[operand];
            is_any = true;
        }
    }
    for (int32_t i = 0; i < merged->instruction_count && is_any; i++) {
        int32_t *operands = (int32_t *)merged->instructions[i].operands;
        for (int32_t o = 0; o < merged->instructions[i].operand_count; o++)
            if (carried[operands[o]] != NONE) operands[o] = carried[operands[o]];
    }
    return AM_OK;
}

/* Returns whether all elements of a value are constant zeros. */
static bool is_zero(const Program *program, int32_t value) {
    const ProgramInstruction *producer = xla_producer(program, program_viewed(program, value));
    if (producer && producer->opcode == IR_BROADCAST)
        producer = xla_producer(program, program_viewed(program, producer->operands[0]));
    if (!producer || producer->opcode != IR_CONSTANT || !producer->compute.literal) return false;
    const unsigned char *bytes = producer->compute.literal->data;
    for (int64_t b = 0; bytes && b < producer->compute.literal->bytes; b++)
        if (bytes[b] != 0) return false;
    return bytes != NULL;
}

/* Scatters sums to the other operand of an addition where they are scattered to zeros and nothing else reads
 * the result. */
static AmStatus scatter_to_addend(Program *merged, const bool *is_output, AmError *error) {
    const IrModule *module = merged->module;
    int32_t *reads = ARENA_ARRAY(merged->arena, int32_t, merged->value_count + 1);
    if (!reads) return am_fail_memory(error, merged->value_count);
    for (int32_t i = 0; i < merged->instruction_count; i++)
        for (int32_t o = 0; o < merged->instructions[i].operand_count; o++)
            reads[merged->instructions[i].operands[o]]++;
    for (int32_t i = 0; i < merged->instruction_count; i++) {
        ProgramInstruction *own = &merged->instructions[i];
        bool adds = own->kind == PROGRAM_COMPUTE && own->opcode == IR_ADD && !is_output[own->first_result];
        for (int32_t o = 0; adds && o < 2; o++) {
            int32_t sum = own->operands[o], addend = own->operands[1 - o];
            ProgramInstruction *scatter = (ProgramInstruction *)xla_producer(merged, sum);
            int32_t called = scatter && scatter->opcode == IR_SCATTER ? scatter->compute.called : NONE;
            if (called < 0 || scatter->result_count != 1 || reads[sum] != 1 || is_output[sum]) continue;
            if (module->computations[called].count != 3 || !is_zero(merged, scatter->operands[0]) ||
                ir_instruction(module, module->computations[called].root)->opcode != IR_ADD)
                continue;
            ((int32_t *)scatter->operands)[0] = addend;
            become_view(own, (int32_t *)own->operands, sum);
            break;
        }
    }
    return AM_OK;
}

AmStatus xla_partition(Program *merged, const bool *is_output, int64_t *bytes, int64_t *workspace,
                       AmError *error) {
    static const ProgramCollective gather = {.kind = PROGRAM_ALL_GATHER};
    TRY(scatter_to_addend(merged, is_output, error));
    for (int32_t i = 0; i < merged->instruction_count; i++) {
        ProgramInstruction *own = &merged->instructions[i];
        int32_t value = own->first_result;
        if (own->kind == PROGRAM_VIEW && !merged->values[value].place) {
            const IrShape *from = global_shape(merged, own->operands[0]), *to = global_shape(merged, value);
            if (!from || !to || ir_shape_elements(from) != ir_shape_elements(to)) continue;
            if (!joins_split(from, to, &merged->values[own->operands[0]].shape)) continue;
            own->kind = PROGRAM_COLLECTIVE;
            own->collective = &gather;
            bytes[value] = workspace[value] = ir_shape_bytes(to);
        } else if (program_gathers(own) && own->collective->movements) {
            for (int32_t k = 0; k < own->result_count; k++) {
                const IrShape *shape = &merged->values[value + k].shape;
                bool is_first = true;
                for (int32_t d = 0; d < own->collective->movements[k].dimension; d++)
                    is_first &= shape->dimensions[d] == 1;
                if (!is_first) workspace[value + k] = ir_shape_bytes(shape);
            }
        } else if (own->kind == PROGRAM_COMPUTE && own->opcode == IR_CONVOLUTION &&
                   runs_unsplit(merged, own)) {
            bytes[value] = ir_shape_bytes(&origin_of(merged, own->origin)->shape);
        } else if (own->kind == PROGRAM_COMPUTE && own->opcode == IR_DOT && own->operand_count == 2 &&
                   own->attributes->dot->contracting_count == 0) {
            own->opcode = IR_MULTIPLY;
        }
    }
    return scatter_in_loops(merged, is_output, bytes, error);
}

/* ---- fusions of a library ---- */

typedef struct LibraryFinder {
    const Program *program;
    int32_t *fusion;     /* [value] */
    int32_t *reader;     /* [value]: the one node that reads it, NONE or MANY */
    int32_t *reads;      /* [value]: operands that it is */
    int32_t *reads_seen; /* [value]: those of them in the fusion `of` */
    int32_t *of;         /* [value] */
    int32_t *stack;
} LibraryFinder;

static bool is_large(const Program *program, int32_t value) {
    return ir_shape_elements(&program->values[value].shape) >= LEAST_ELEMENTS;
}

static bool is_library_type(const Program *program, int32_t value) {
    Dtype type = program->values[value].shape.type;
    return type == DTYPE_F32 || type == DTYPE_F64 || type == DTYPE_BF16;
}

/* Returns whether the library has the element-wise operator. */
static bool is_library_operator(IrOpcode opcode) {
    switch (opcode) {
    case IR_ABS:
    case IR_ADD:
    case IR_CBRT:
    case IR_CEIL:
    case IR_CONVERT:
    case IR_COSINE:
    case IR_DIVIDE:
    case IR_ERF:
    case IR_EXPONENTIAL:
    case IR_EXPONENTIAL_MINUS_ONE:
    case IR_FLOOR:
    case IR_LOG:
    case IR_LOG_PLUS_ONE:
    case IR_LOGISTIC:
    case IR_MAXIMUM:
    case IR_MINIMUM:
    case IR_MULTIPLY:
    case IR_NEGATE:
    case IR_POWER:
    case IR_ROUND_NEAREST_EVEN:
    case IR_RSQRT:
    case IR_SIGN:
    case IR_SINE:
    case IR_SQRT:
    case IR_SUBTRACT:
    case IR_TAN:
    case IR_TANH: return true;
    default: return false;
    }
}

static bool is_single_reduction(const ProgramInstruction *instruction) {
    return instruction && instruction->kind == PROGRAM_COMPUTE && instruction->opcode == IR_REDUCE &&
           instruction->operand_count == 2 && instruction->attributes->dimension_count > 0;
}

static bool is_library_reduction(const Program *program, const ProgramInstruction *instruction) {
    if (!is_single_reduction(instruction)) return false;
    Dtype type = program->values[instruction->first_result].shape.type;
    return (type == DTYPE_F32 || type == DTYPE_F64) && is_large(program, instruction->operands[0]);
}

bool xla_is_split_reduction(const Program *program, const ProgramInstruction *instruction) {
    if (!is_single_reduction(instruction) || is_library_reduction(program, instruction)) return false;
    const IrAttributes *attributes = instruction->attributes;
    const IrShape *shape = &program->values[instruction->operands[0]].shape;
    for (int32_t k = 0; k < attributes->dimension_count; k++)
        if (shape->dimensions[attributes->dimensions[k]] > ROWS_OF_TREE) return true;
    return false;
}

/* Returns whether a fusion takes in the operator. */
static bool is_taken(const Program *program, const ProgramInstruction *instruction) {
    if (!instruction || instruction->kind != PROGRAM_COMPUTE || instruction->result_count != 1) return false;
    if (!is_library_type(program, instruction->first_result)) return false;
    if (instruction->opcode == IR_BROADCAST) return true;
    if (is_library_reduction(program, instruction)) return true;
    if (!is_library_operator(instruction->opcode)) return false;
    bool is_one_large = is_large(program, instruction->first_result);
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        if (!is_library_type(program, instruction->operands[k])) return false;
        is_one_large |= is_large(program, instruction->operands[k]);
    }
    return is_one_large;
}

/* Takes the operators above the nodes of the stack in. */
static void grow_upwards(LibraryFinder *self, int32_t root, int32_t depth) {
    const Program *program = self->program;
    while (depth > 0) {
        int32_t node = self->stack[--depth];
        const ProgramInstruction *instruction = xla_producer(program, node);
        for (int32_t o = 0; o < xla_operand_count(instruction); o++) {
            int32_t operand = xla_operand(program, instruction, node, o);
            if (self->of[operand] != root) self->of[operand] = root, self->reads_seen[operand] = 0;
            bool is_inside = ++self->reads_seen[operand] == self->reads[operand];
            if (!is_inside || self->fusion[operand] != NONE) continue;
            if (!is_taken(program, xla_producer(program, operand))) continue;
            self->fusion[operand] = root;
            self->stack[depth++] = operand;
        }
    }
}

AmStatus xla_library_fusions(int32_t *fusion, const Program *program, const int32_t *order,
                             int32_t order_count, const bool *is_output, AmError *error) {
    int32_t count = program->value_count + 1;
    Arena *arena = program->arena;
    LibraryFinder self = {.program = program,
                          .fusion = fusion,
                          .reader = ARENA_ARRAY(arena, int32_t, count),
                          .reads = ARENA_ARRAY(arena, int32_t, count),
                          .reads_seen = ARENA_ARRAY(arena, int32_t, count),
                          .of = ARENA_ARRAY(arena, int32_t, count),
                          .stack = ARENA_ARRAY(arena, int32_t, count)};
    if (arena->failed) return am_fail_memory(error, program->value_count);
    for (int32_t v = 0; v < count; v++) fusion[v] = self.reader[v] = self.of[v] = NONE;
    for (int32_t k = 0; k < order_count; k++) {
        int32_t node = order[k];
        const ProgramInstruction *instruction = xla_producer(self.program, node);
        if (is_output[node]) self.reads[node]++, self.reader[node] = MANY;
        for (int32_t o = 0; instruction && o < xla_operand_count(instruction); o++) {
            int32_t operand = xla_operand(self.program, instruction, node, o);
            self.reads[operand]++;
            if (self.reader[operand] != node)
                self.reader[operand] = self.reader[operand] == NONE ? node : MANY;
        }
    }
    for (int32_t k = order_count - 1; k >= 0; k--) {
        int32_t last = order[k], depth = 0;
        if (fusion[last] != NONE || !is_library_reduction(program, xla_producer(program, last))) continue;
        self.stack[depth++] = last;
        for (int32_t next = self.reader[last]; next >= 0; next = self.reader[next]) {
            if (fusion[next] != NONE || !is_taken(program, xla_producer(program, next))) break;
            self.stack[depth++] = last = next;
        }
        for (int32_t d = 0; d < depth; d++) fusion[self.stack[d]] = last;
        grow_upwards(&self, last, depth);
    }
    return AM_OK;
}
