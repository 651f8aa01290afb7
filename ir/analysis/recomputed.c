/* Finds recomputation, such as jax.checkpoint produces, by value.
 *
 * Value numbering: the class of a value is a hash of its operator, shape, attributes and the classes of its
 * operands, as in global value numbering. Two values of one class are equal, so that a backward instruction
 * in the class of a forward instruction repeats it; metadata is not needed. Consecutive reshapes count as
 * one, and barriers are transparent. Progressions of integers have the class of their elements
 * (progressions.h). Computations that reductions and loops call are hashed by structure, not by name.
 *
 * Classes extend into the bodies of loops. An element that the body returns unchanged has the class
 * of its initial value. A slice of such an array has the class "this loop's slice" of the array,
 * whichever counter selects it. If another loop has stacked the array, one slice per iteration, the
 * slice has the class of the stacked value. The backward loop over layers therefore repeats the
 * forward loop's work on the same layer.
 *
 * A connected group of repeated values counts as recomputation if one of them is worth storing (a
 * product, a sum, an expensive function) or is named as rematted. A square or a comparison of
 * indices that a derivative computes again is not recomputation.
 *
 * Factors of derivatives computed from recomputed values repeat no forward instruction: they are
 * backward, as without recomputation. A collision of hashes causes a wrong phase and no other
 * error.
 */
#include "ir/analysis/recomputed.h"

#include <string.h>

#include "base/hash.h"
#include "base/union_find.h"
#include "ir/analysis/progressions.h"

/* Kinds of classes that are no operator's. */
enum { CLASS_BODY = IR_OPCODE_COUNT + 1, CLASS_CARRIED, CLASS_SLICE, CLASS_SEPARATE, CLASS_PROGRESSION };

typedef struct Classes {
    const IrFlowGraph *graph;
    const IrModule *module;
    uint64_t *structures; /* per computation: of its root as a function of its parameters; 0: not yet */
    uint64_t *locals;     /* per instruction: the same of it */
    uint64_t *classes;    /* per instruction; 0: not visited */
    int32_t *origins;     /* per instruction: the origin of a chain of reshapes, or itself */
    IrProgression *progressions; /* per instruction */
} Classes;

static uint64_t mix_numbers(uint64_t hash, const int64_t *numbers, int64_t count) {
    hash = hash_combine(hash, (uint64_t)count);
    return count > 0 ? hash_bytes(numbers, (size_t)count * sizeof *numbers, hash) : hash;
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    return text ? hash_bytes(text, strlen(text), hash) : hash;
}

static uint64_t mix_shape(uint64_t hash, const IrShape *shape) {
    hash = hash_combine(hash_combine(hash, shape->type), (uint64_t)shape->rank);
    if (shape->type != DTYPE_TUPLE) return mix_numbers(hash, shape->dimensions, shape->rank);
    for (int32_t e = 0; e < shape->rank; e++) hash = mix_shape(hash, &shape->elements[e]);
    return hash;
}

static uint64_t mix_products(uint64_t hash, const IrAttributes *attributes) {
    const IrDot *dot = attributes->dot;
    const IrConvolution *convolution = attributes->convolution;
    if (dot) {
        hash = mix_numbers(hash, dot->lhs_batch, dot->batch_count);
        hash = mix_numbers(hash, dot->rhs_batch, dot->batch_count);
        hash = mix_numbers(hash, dot->lhs_contracting, dot->contracting_count);
        hash = mix_numbers(hash, dot->rhs_contracting, dot->contracting_count);
    }
    if (!convolution) return hash;
    const int64_t numbers[] = {convolution->input_batch,          convolution->input_feature,
                               convolution->kernel_input_feature, convolution->kernel_output_feature,
                               convolution->output_batch,         convolution->output_feature,
                               convolution->feature_group_count,  convolution->batch_group_count};
    hash = mix_numbers(hash, numbers, sizeof numbers / sizeof *numbers);
    hash = mix_numbers(hash, convolution->input_spatial, convolution->spatial_count);
    hash = mix_numbers(hash, convolution->kernel_spatial, convolution->spatial_count);
    return mix_numbers(hash, convolution->output_spatial, convolution->spatial_count);
}

static uint64_t mix_gather(uint64_t hash, const IrGather *gather, int32_t operand_rank) {
    hash = mix_numbers(hash, gather->offset_dimensions, gather->offset_count);
    hash = mix_numbers(hash, gather->collapsed_dimensions, gather->collapsed_count);
    hash = mix_numbers(hash, gather->start_index_map, gather->index_map_count);
    hash = mix_numbers(hash, gather->operand_batching, gather->batching_count);
    hash = mix_numbers(hash, gather->indices_batching, gather->batching_count);
    hash = hash_combine(hash, (uint64_t)gather->index_vector_dimension);
    return gather->slice_sizes ? mix_numbers(hash, gather->slice_sizes, operand_rank) : hash;
}

/* Windows, paddings and slices: their structs are whole numbers, and a flag that is mixed by itself. */
static uint64_t mix_places(uint64_t hash, const IrInstruction *instruction, int32_t operand_rank) {
    const IrAttributes *attributes = instruction->attributes;
    for (int32_t d = 0; d < attributes->window_count; d++) {
        const IrWindowDimension *w = &attributes->window[d];
        const int64_t numbers[] = {w->size,         w->stride,          w->padding_low,
                                   w->padding_high, w->window_dilation, w->base_dilation,
                                   w->reversal};
        hash = mix_numbers(hash, numbers, sizeof numbers / sizeof *numbers);
    }
    for (int32_t d = 0; attributes->padding && d < operand_rank; d++) {
        const int64_t numbers[] = {attributes->padding[d].low, attributes->padding[d].high,
                                   attributes->padding[d].interior};
        hash = mix_numbers(hash, numbers, sizeof numbers / sizeof *numbers);
    }
    if (instruction->opcode == IR_SLICE) {
        hash = mix_numbers(hash, attributes->slice_start, operand_rank);
        hash = mix_numbers(hash, attributes->slice_limit, operand_rank);
        hash = mix_numbers(hash, attributes->slice_stride, operand_rank);
    }
    return hash;
}

static uint64_t mix_options(uint64_t hash, const IrOptions *options) {
    const int64_t numbers[] = {options->largest,       options->lower,         options->left_side,
                               options->unit_diagonal, options->is_transposed, options->adjoint,
                               options->random,        options->feature_index, options->fft_type};
    hash = mix_numbers(hash, numbers, sizeof numbers / sizeof *numbers);
    hash = hash_bytes(&options->epsilon, sizeof options->epsilon, hash);
    return mix_numbers(hash, options->fft_length, options->fft_rank);
}

/* A large constant is hashed by its size and first bytes, since inlining may have copied it often. */
#define MAX_LITERAL_BYTES 4096

static uint64_t mix_literal(uint64_t hash, const IrLiteral *literal, const IrShape *shape) {
    for (int32_t e = 0; shape->type == DTYPE_TUPLE && literal->elements && e < shape->rank; e++)
        hash = mix_literal(hash, &literal->elements[e], &shape->elements[e]);
    int64_t bytes = literal->bytes < MAX_LITERAL_BYTES ? literal->bytes : MAX_LITERAL_BYTES;
    hash = hash_combine(hash, (uint64_t)literal->bytes);
    return literal->data ? hash_bytes(literal->data, (size_t)bytes, hash) : hash;
}

static uint64_t structure_of(Classes *work, int32_t computation);

/* Returns the operator without its operands. */
static uint64_t operator_class(Classes *work, int32_t value) {
    const IrInstruction *instruction = &work->module->instructions[value];
    const IrAttributes *attributes = instruction->attributes;
    const IrShape *operand =
        instruction->operand_count > 0 ? &work->module->instructions[instruction->operands[0]].shape : NULL;
    int32_t operand_rank = operand && operand->type != DTYPE_TUPLE ? operand->rank : 0;
    uint64_t hash = mix_shape(hash_combine(1, (uint64_t)instruction->opcode), &instruction->shape);
    hash = mix_numbers(hash, attributes->dimensions, attributes->dimension_count);
    hash = mix_products(hash, attributes);
    if (attributes->gather) hash = mix_gather(hash, attributes->gather, operand_rank);
    hash = mix_places(hash, instruction, operand_rank);
    hash = mix_text(mix_text(hash, attributes->comparison), attributes->comparison_type);
    hash = mix_text(hash, attributes->custom_call_target);
    const int64_t numbers[] = {attributes->tuple_index, attributes->parameter_number,
                               attributes->exponent_bits, attributes->mantissa_bits};
    hash = mix_numbers(hash, numbers, sizeof numbers / sizeof *numbers);
    if (attributes->options) hash = mix_options(hash, attributes->options);
    if (instruction->literal) hash = mix_literal(hash, instruction->literal, &instruction->shape);
    if (instruction->opcode == IR_UNKNOWN) hash = mix_text(hash, instruction->opcode_name);
    for (int32_t k = 0; k < instruction->called_count; k++)
        hash = hash_combine(hash, structure_of(work, instruction->called[k]));
    return hash;
}

/* Returns the hash of a computation's structure. The canonical module bounds the nesting, and every
 * computation is entered once. */
static uint64_t structure_of(Classes *work, int32_t computation) {
    const IrComputation *body = &work->module->computations[computation];
    if (work->structures[computation]) return work->structures[computation];
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &work->module->instructions[i];
        uint64_t hash = operator_class(work, i);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            hash = hash_combine(hash, work->locals[instruction->operands[k]]);
        work->locals[i] = hash;
    }
    work->structures[computation] = work->locals[body->root] | 1;
    return work->structures[computation];
}

static void take_class(Classes *work, int32_t value, int32_t other) {
    work->classes[value] = work->classes[other];
    work->origins[value] = work->origins[other];
    work->progressions[value] = work->progressions[other];
}

/* Returns the value that another loop has stacked, a slice per iteration, into the array `stack`; or -1. */
static int32_t stacked_value(const Classes *work, int32_t stack) {
    int32_t made = ir_flow_value_in_body(work->graph, stack);
    if (made < 0) return -1;
    const IrInstruction *update = &work->module->instructions[made];
    if (update->opcode != IR_DYNAMIC_UPDATE_SLICE) return -1;
    int32_t before = ir_dataflow_operand(work->graph->flow, update, 0);
    if (ir_flow_next_value(work->graph, before) != made) return -1;
    return ir_dataflow_operand(work->graph->flow, update, 1);
}

/* Classifies slices of loop-invariant arrays; returns false for other values. */
static bool classify_slice(Classes *work, int32_t value) {
    const IrInstruction *slice = &work->module->instructions[value];
    if (slice->opcode != IR_DYNAMIC_SLICE) return false;
    int32_t array = ir_dataflow_operand(work->graph->flow, slice, 0);
    int32_t stack = ir_flow_start_value(work->graph, array);
    if (stack < 0 || ir_flow_next_value(work->graph, array) != array) return false;
    int32_t stacked = stacked_value(work, stack);
    if (stacked >= 0 && ir_shape_equal(&work->module->instructions[stacked].shape, &slice->shape) &&
        work->classes[stacked]) {
        take_class(work, value, stacked);
        return true;
    }
    work->classes[value] =
        mix_shape(hash_combine(hash_combine(CLASS_SLICE, work->classes[array]), 0), &slice->shape);
    return true;
}

/* Elements that a loop carries, seen in its body; false for anything else. */
static bool classify_carried(Classes *work, int32_t value) {
    int32_t start = ir_flow_start_value(work->graph, value);
    if (start < 0) return false;
    if (ir_flow_next_value(work->graph, value) == value) {
        take_class(work, value, start);
        return true;
    }
    const IrInstruction *element = &work->module->instructions[value];
    uint64_t loop = work->classes[ir_dataflow_operand(work->graph->flow, element, 0)];
    work->classes[value] =
        hash_combine(hash_combine(CLASS_CARRIED, loop), (uint64_t)element->attributes->tuple_index);
    return true;
}

/* Classifies reshapes by the origin of their chain; a chain may restore the origin's shape. */
static bool classify_reshape(Classes *work, int32_t value) {
    const IrInstruction *instruction = &work->module->instructions[value];
    if (instruction->opcode != IR_RESHAPE) return false;
    int32_t origin = work->origins[ir_dataflow_operand(work->graph->flow, instruction, 0)];
    if (ir_shape_equal(&instruction->shape, &work->module->instructions[origin].shape)) {
        take_class(work, value, origin);
        return true;
    }
    work->classes[value] =
        mix_shape(hash_combine(hash_combine(1, IR_RESHAPE), work->classes[origin]), &instruction->shape);
    work->origins[value] = origin;
    return true;
}

/* Classifies arrays of integers by their elements, where these are a progression. */
static bool classify_progression(Classes *work, int32_t value) {
    const IrInstruction *instruction = &work->module->instructions[value];
    const IrProgression *operands[2] = {NULL};
    IrProgression *made = &work->progressions[value];
    for (int32_t k = 0; k < instruction->operand_count && k < 2; k++)
        operands[k] = &work->progressions[ir_dataflow_operand(work->graph->flow, instruction, k)];
    *made = ir_progression(instruction, operands);
    if (!made->is_known) return false;
    const int64_t numbers[] = {made->first, made->step};
    work->classes[value] =
        mix_numbers(mix_shape(hash_combine(1, CLASS_PROGRESSION), &instruction->shape), numbers, 2) | 1;
    return true;
}

static void classify_computation(Classes *work, int32_t computation);

/* Sets the class of a value: equal values have equal classes, whatever slices and loops make them. */
static void classify(Classes *work, int32_t value) {
    const IrInstruction *instruction = &work->module->instructions[value];
    const IrFlowGraph *graph = work->graph;
    if (work->classes[value]) return; /* the parameter of a body, which its loop has classified */
    if (classify_progression(work, value)) return;
    if (classify_reshape(work, value) || classify_carried(work, value) || classify_slice(work, value)) return;
    uint64_t hash = operator_class(work, value);
    if (instruction->opcode == IR_RNG) hash = hash_combine(CLASS_SEPARATE, (uint64_t)value);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        hash = hash_combine(hash, work->classes[ir_dataflow_operand(graph->flow, instruction, k)]);
    work->classes[value] = hash | 1;
    if (instruction->opcode != IR_WHILE || instruction->called_count != 2) return;
    int32_t body = instruction->called[0];
    if (graph->first_caller[body + 1] - graph->first_caller[body] != 1) return;
    work->classes[work->module->computations[body].parameters[0]] = hash_combine(CLASS_BODY, hash) | 1;
    classify_computation(work, body);
}

static void classify_computation(Classes *work, int32_t computation) {
    const IrComputation *body = &work->module->computations[computation];
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        /* An instruction that only forwards a value has the class of that value, computed before. */
        int32_t source = work->graph->flow->sources[i];
        if (source != i) take_class(work, i, source);
        else classify(work, i);
    }
}

/* A set of classes by open addressing; 0 is a free slot. */
typedef struct ClassSet {
    uint64_t *slots, mask;
    int32_t *first; /* [slot]: the first value of the class */
} ClassSet;

static uint64_t slot_of(const ClassSet *set, uint64_t class) {
    uint64_t at = class & set->mask;
    while (set->slots[at] && set->slots[at] != class) at = (at + 1) & set->mask;
    return at;
}

static AmStatus collect_forward(ClassSet *set, const Classes *work, const IrPhase *phases, Arena *scratch,
                                AmError *error) {
    for (set->mask = 1; set->mask < 2 * (uint64_t)work->graph->count;) set->mask = set->mask * 2 + 1;
    set->slots = ARENA_ARRAY(scratch, uint64_t, set->mask + 1);
    set->first = ARENA_ARRAY(scratch, int32_t, set->mask + 1);
    if (scratch->failed) return am_fail_memory(error, (int64_t)set->mask * 12);
    for (int32_t i = 0; i < work->graph->count; i++) {
        if (phases[i] != IR_PHASE_FORWARD || !work->classes[i]) continue;
        uint64_t slot = slot_of(set, work->classes[i]);
        if (!set->slots[slot]) set->first[slot] = i;
        set->slots[slot] = work->classes[i];
    }
    return AM_OK;
}

/* Makes `is_repeated` [count] true for backward values that repeat a forward one together with
 * something dear; false for the others of them. */
static void find_costly(const IrFlowGraph *graph, bool *is_repeated, int32_t *groups, bool *is_worth) {
    union_find_begin(groups, graph->count);
    for (int32_t i = 0; i < graph->count; i++) {
        const IrInstruction *instruction = &graph->module->instructions[i];
        for (int32_t k = 0; is_repeated[i] && k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(graph->flow, instruction, k);
            if (is_repeated[operand]) groups[union_find_root(groups, operand)] = union_find_root(groups, i);
        }
    }
    for (int32_t i = 0; i < graph->count; i++) {
        const IrInstruction *instruction = &graph->module->instructions[i];
        Dtype type = instruction->shape.type;
        bool is_costly = ir_opcode_has(instruction->opcode, FACT_COSTLY) &&
                         (dtype_is_floating(type) || dtype_is_complex(type)); /* rather stored */
        if (is_repeated[i] && (is_costly || strstr(instruction->op_name, "rematted_computation")))
            is_worth[union_find_root(groups, i)] = true;
    }
    for (int32_t i = 0; i < graph->count; i++) is_repeated[i] &= is_worth[union_find_root(groups, i)];
}

AmStatus ir_find_recomputed(IrPhase *phases, int32_t *repeats, Arena *scratch, const IrFlowGraph *graph,
                            const bool *free, AmError *error) {
    const IrModule *module = graph->module;
    Classes work = {.graph = graph,
                    .module = module,
                    .structures = ARENA_ARRAY(scratch, uint64_t, module->computation_count),
                    .locals = ARENA_ARRAY(scratch, uint64_t, graph->count),
                    .classes = ARENA_ARRAY(scratch, uint64_t, graph->count),
                    .origins = ARENA_ARRAY(scratch, int32_t, graph->count),
                    .progressions = ARENA_ARRAY(scratch, IrProgression, graph->count)};
    int32_t *groups = ARENA_ARRAY(scratch, int32_t, graph->count);
    bool *is_repeated = ARENA_ARRAY(scratch, bool, graph->count);
    bool *is_worth = ARENA_ARRAY(scratch, bool, graph->count);
    if (scratch->failed) return am_fail_memory(error, (int64_t)graph->count * 50);
    for (int32_t i = 0; i < graph->count; i++) work.origins[i] = i;
    classify_computation(&work, module->entry);
    ClassSet forward;
    TRY(collect_forward(&forward, &work, phases, scratch, error));
    for (int32_t i = 0; i < graph->count; i++)
        is_repeated[i] = phases[i] == IR_PHASE_BACKWARD && !free[i] && work.classes[i] &&
                         forward.slots[slot_of(&forward, work.classes[i])];
    find_costly(graph, is_repeated, groups, is_worth);
    for (int32_t i = 0; i < graph->count; i++) {
        repeats[i] = -1;
        if (!is_repeated[i] || ir_opcode_has(module->instructions[i].opcode, FACT_MOVES)) continue;
        phases[i] = IR_PHASE_RECOMPUTED;
        repeats[i] = forward.first[slot_of(&forward, work.classes[i])];
    }
    /* The phase includes the sources of moved recomputed values, and operands without parameters. */
    for (int32_t i = graph->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &graph->module->instructions[i];
        for (int32_t k = 0; phases[i] == IR_PHASE_RECOMPUTED && k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(graph->flow, instruction, k);
            bool is_moved =
                ir_opcode_has(graph->module->instructions[operand].opcode, FACT_MOVES) || free[operand];
            if (phases[operand] == IR_PHASE_BACKWARD && is_moved) phases[operand] = IR_PHASE_RECOMPUTED;
        }
    }
    return AM_OK;
}
