/* Writes the module in micro-batches: before, loop, between, loop, ..., after.
 *
 * The entry's full values are written segment by segment, each as soon as the loops on which it
 * depends have ended. A loop of M iterations carries a counter, the sums and stacks that it
 * computes, and its inputs. A sum of 16-bit floating values is kept in f32. Products that are summed, and
 * operators without rounding of their own between product and sum, are computed in f32. So the sum is rounded
 * once, as on one device. Under the relaxation "rounded_sums" all of them have 16 bits.
 */
#include <string.h>

#include "ir/dataflow.h"
#include "lowering/micro_batch/emit_loops.h"
#include "propagation/rules/linearity.h"

static const MicroBatchState full_state = {.kind = TIME_FULL};

/* ---- computations that are copied unchanged ---- */

static int32_t copy_computation(MicroBatchEmitter *self, int32_t computation);

static int32_t *copy_all_called(MicroBatchEmitter *self, const IrInstruction *caller) {
    int32_t *called = ARENA_ARRAY(self->arena, int32_t, caller->called_count + 1);
    /* A plan may differ between the callers of a body, condition or branch. */
    bool is_own = caller->opcode == IR_WHILE || caller->opcode == IR_CONDITIONAL;
    for (int32_t k = 0; called && k < caller->called_count; k++) {
        int32_t *copied = &self->copied[caller->called[k]];
        if (is_own) {
            called[k] = copy_computation(self, caller->called[k]);
            continue;
        }
        if (*copied < 0) *copied = copy_computation(self, caller->called[k]);
        called[k] = *copied;
    }
    return called;
}

static int32_t copy_computation(MicroBatchEmitter *self, int32_t computation) {
    const IrModule *module = self->rewrite->module;
    const IrComputation *body = &module->computations[computation];
    int32_t made = ir_compose_computation(&self->composer, body->name);
    for (int32_t i = body->first; i < body->first + body->count && !self->arena->failed; i++) {
        IrInstruction copy = module->instructions[i];
        int32_t *operands = ARENA_ARRAY(self->arena, int32_t, copy.operand_count + 1);
        for (int32_t k = 0; operands && k < copy.operand_count; k++)
            operands[k] = copy.operands[k] - body->first;
        copy.operands = operands;
        copy.called = copy_all_called(self, &copy);
        if (!self->arena->failed) ir_compose(&self->composer, made, &copy, i);
    }
    if (!self->arena->failed) self->composer.computations[made].root = body->root - body->first;
    return made;
}

/* Returns the computation of a fusion that splits a factor: values inside have the shapes that follow from
 * the operands and results, slots[operand_count + result_count]. */
static int32_t copy_fused(MicroBatchEmitter *self, int32_t fusion, const IrShape *const *slots) {
    const IrModule *module = self->rewrite->module;
    const IrComputation *body = &module->computations[module->instructions[fusion].called[0]];
    const IrShape *shapes = rules_shapes_inside(self->arena, self->rewrite->rules, fusion, slots);
    int32_t made = copy_computation(self, module->instructions[fusion].called[0]);
    for (int32_t i = 0; shapes && i < body->count && !self->arena->failed; i++)
        if (shapes[i].type != DTYPE_TUPLE) ir_composed(&self->composer, made, i)->shape = shapes[i];
    if (self->arena->failed) return made;
    IrInstruction *root = ir_composed(&self->composer, made, body->root - body->first);
    if (root->opcode != IR_TUPLE) return made;
    IrShape *elements = ARENA_ARRAY(self->arena, IrShape, root->operand_count + 1);
    for (int32_t k = 0; elements && k < root->operand_count; k++)
        elements[k] = ir_composed(&self->composer, made, root->operands[k])->shape;
    root->shape.elements = elements;
    return made;
}

/* ---- values of a block ---- */

/* Returns a value of the entry in the body of the loop of iterations, carried there unchanged. */
static int32_t invariant(MicroBatchEmitter *self, int32_t value) {
    MicroBatchBlock entry = {.computation = 0, .origin = self->body.origin};
    if (self->arena->failed || value < 0) return 0;
    if (self->replicas) return value;
    if (value >= self->invariant_count) {
        int32_t count = 2 * value + 1;
        self->invariant =
            arena_grow(self->arena, self->invariant, sizeof(int32_t) * (size_t)self->invariant_count,
                       sizeof(int32_t) * (size_t)count);
        if (self->arena->failed) return 0;
        memset(self->invariant + self->invariant_count, -1,
               sizeof(int32_t) * (size_t)(count - self->invariant_count));
        self->invariant_count = count;
    }
    if (self->invariant[value] >= 0) return self->invariant[value];
    ARENA_RESERVE(self->arena, self->carries, self->carry_count, self->carry_capacity);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    if (self->arena->failed) return 0;
    IrShape shape = *micro_batch_shape_of(self, &entry, value);
    const int32_t tuple = 0;
    attributes->tuple_index = self->carry_count;
    int32_t inside = micro_batch_add(self, &self->body, IR_GET_TUPLE_ELEMENT, &shape, &tuple, 1, attributes);
    self->carries[self->carry_count++] =
        (MicroBatchCarry){.shape = shape, .initial = value, .inside = inside, .next = inside, .result = -1};
    self->invariant[value] = inside;
    return inside;
}

static bool is_outside(const MicroBatchBlock *block) {
    return block->level < 0;
}

/* Returns the value outside the loops, in the entry. */
static int32_t full_outside(MicroBatchEmitter *self, int32_t producer, int32_t leaf) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = producer, .level = -1};
    int32_t value = self->full[producer];
    if (rewrite->is_averaged[producer]) value = self->average[producer];
    else if (micro_batch_state(rewrite, producer, leaf)->kind == TIME_SPLIT && rewrite->has_weight[producer])
        return self->stacked[rewrite->first_state[producer] + leaf];
    return value < 0 ? 0 : micro_batch_leaf(self, &entry, value, leaf);
}

/* Returns the copy of (producer, leaf) in `state`, in a block that already has it. Addends of a sum may be in
 * f32 instead of a 16-bit type. */
static int32_t addend_in(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t producer,
                         int32_t leaf, MicroBatchState state) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    MicroBatchState held = *micro_batch_state(rewrite, producer, leaf);
    if (is_outside(block)) return full_outside(self, producer, leaf);
    int32_t copy = micro_batch_find_copy(rewrite, producer, leaf, state);
    bool in_entry = micro_batch_in_entry(rewrite, producer);
    if (copy >= 0 && rewrite->copies[copy].levels >> (in_entry ? block->level : 0) & 1)
        return self->copy_values[copy];
    int32_t loop = rewrite->reader_loop[producer];
    bool is_read = held.kind == TIME_FULL && loop >= 0 && rewrite->is_split[loop] &&
                   (!in_entry || micro_batch_level(rewrite, producer) == block->level);
    bool is_zero = held.kind == TIME_FULL && state.kind == TIME_PARTIAL;
    if ((held.kind == state.kind && held.kind != TIME_FULL) || is_read)
        return micro_batch_leaf(self, block, self->own[producer], leaf);
    if (is_zero) return addend_in(self, block, producer, leaf, full_state);
    if (!in_entry) return micro_batch_leaf(self, block, self->full[producer], leaf);
    return invariant(self, full_outside(self, producer, leaf));
}

/* Returns the copy of (producer, leaf) in `state` with its type in the module. */
static int32_t value_in(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t producer, int32_t leaf,
                        MicroBatchState state) {
    int32_t value = addend_in(self, block, producer, leaf, state);
    if (self->arena->failed) return 0;
    const IrShape *shape = rules_leaf(&self->rewrite->module->instructions[producer].shape, leaf);
    return micro_batch_convert(self, block, value, shape->type);
}

/* Returns a tuple operand from its leaves. */
static int32_t tuple_in(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t i, int32_t k,
                        const IrShape *shape, int32_t *leaf) {
    if (shape->type != DTYPE_TUPLE) {
        int32_t producer, producer_leaf;
        micro_batch_operand(self->rewrite, i, k, *leaf, &producer, &producer_leaf);
        ++*leaf;
        return value_in(self, block, producer, producer_leaf, full_state);
    }
    int32_t *values = ARENA_ARRAY(self->arena, int32_t, shape->rank + 1);
    for (int32_t e = 0; values && e < shape->rank; e++)
        values[e] = tuple_in(self, block, i, k, &shape->elements[e], leaf);
    return values ? micro_batch_tuple(self, block, values, shape->rank) : 0;
}

/* ---- operators ---- */

/* Scales the bounds of a slice or pad along the dimensions of which the operand is a part. */
static const IrAttributes *scale_bounds(MicroBatchEmitter *self, const IrAttributes *given,
                                        const IrShape *full, const IrShape *local) {
    IrAttributes *made = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *start = ARENA_ARRAY(self->arena, int64_t, full->rank + 1);
    int64_t *limit = ARENA_ARRAY(self->arena, int64_t, full->rank + 1);
    IrPadding *padding = ARENA_ARRAY(self->arena, IrPadding, full->rank + 1);
    if (self->arena->failed) return given;
    *made = *given;
    for (int32_t d = 0; d < full->rank; d++) {
        int64_t whole = full->dimensions[d], part = local->dimensions[d];
        if (whole == 0 || whole == part) whole = part = 1;
        if (given->padding) {
            padding[d] = given->padding[d];
            padding[d].low = padding[d].low * part / whole;
            padding[d].high = padding[d].high * part / whole;
        } else {
            start[d] = given->slice_start[d] * part / whole;
            limit[d] = given->slice_limit[d] * part / whole;
        }
    }
    if (given->padding) made->padding = padding;
    made->slice_start = given->padding ? NULL : start;
    made->slice_limit = given->padding ? NULL : limit;
    return made;
}

/* Attributes that contain operand 0's sizes, rewritten for its local ones. */
static const IrAttributes *localise(MicroBatchEmitter *self, const IrInstruction *instruction,
                                    const IrShape *full, const IrShape *local) {
    const IrAttributes *given = instruction->attributes;
    if (ir_same_dimensions(full, local)) return given;
    if (instruction->opcode == IR_SLICE || instruction->opcode == IR_PAD)
        return scale_bounds(self, given, full, local);
    const int64_t *sizes = instruction->opcode == IR_GATHER          ? given->gather->slice_sizes
                           : instruction->opcode == IR_DYNAMIC_SLICE ? given->slice_sizes
                                                                     : NULL;
    if (!sizes) return given;
    IrAttributes *made = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *changed = ARENA_ARRAY(self->arena, int64_t, full->rank + 1);
    IrGather *gather = ARENA_ARRAY(self->arena, IrGather, 1);
    if (self->arena->failed) return given;
    *made = *given;
    for (int32_t d = 0; d < full->rank; d++) {
        bool is_cut = local->dimensions[d] != full->dimensions[d];
        changed[d] = is_cut ? local->dimensions[d] : sizes[d];
    }
    if (instruction->opcode == IR_DYNAMIC_SLICE) {
        made->slice_sizes = changed;
    } else {
        *gather = *given->gather;
        gather->slice_sizes = changed;
        made->gather = gather;
    }
    return made;
}

/* Returns the result's shape where every leaf is split as `state` and the factor say. */
static IrShape result_shape(MicroBatchEmitter *self, int32_t i, int32_t factor, MicroBatchState state) {
    const IrShape *shape = &self->rewrite->module->instructions[i].shape;
    if (state.kind != TIME_SPLIT) return *shape;
    if (shape->type != DTYPE_TUPLE) return micro_batch_part_shape(self, shape, state);
    const FactorRule *rule = &self->rewrite->rules->rules[i];
    IrShape *elements = ARENA_ARRAY(self->arena, IrShape, shape->rank + 1);
    for (int32_t k = 0; elements && k < shape->rank; k++) {
        state.dimension = rule->factors[factor].dimension[rule->operand_count + k];
        elements[k] = state.dimension < 0 ? shape->elements[k]
                                          : micro_batch_part_shape(self, &shape->elements[k], state);
    }
    return (IrShape){.type = DTYPE_TUPLE, .rank = elements ? shape->rank : 0, .elements = elements};
}

bool micro_batch_sums_in_f32(const MicroBatchRewrite *rewrite, Dtype type) {
    return dtype_is_16bit_float(type) && !micro_batch_rounds_sum(rewrite, type);
}

/* Returns whether the addends of instruction i, a sum over iterations, are f32 although it is of a 16-bit
 * type: those of a product, and those that operators without rounding of their own hand on. */
static bool has_f32_addends(const MicroBatchRewrite *rewrite, int32_t i, MicroBatchState state) {
    const IrInstruction *instruction = &rewrite->module->instructions[i];
    if (state.kind != TIME_PARTIAL || !micro_batch_in_entry(rewrite, i)) return false;
    if (!micro_batch_sums_in_f32(rewrite, instruction->shape.type)) return false;
    if (!rewrite->keeps_partial[i]) return ir_is_matrix_product(instruction->opcode);
    return state.reduction == SBP_ADD && linearity_is_exact(instruction->opcode);
}

/* Emits instruction i in a block, splitting `factor` (-1 none) so that its result is `state`. */
static int32_t emit_operator(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t i, int32_t factor,
                             MicroBatchState state) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrInstruction *instruction = &rewrite->module->instructions[i];
    if (instruction->opcode == IR_IOTA && state.kind == TIME_SPLIT)
        return micro_batch_iota(self, block, instruction, state);
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, instruction->operand_count + 1);
    bool is_f32 = has_f32_addends(rewrite, i, state), adds_f32 = is_f32 && rewrite->keeps_partial[i];
    if (!operands) return 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *shape = &rewrite->module->instructions[instruction->operands[k]].shape;
        int32_t producer, leaf = 0;
        if (shape->type == DTYPE_TUPLE) {
            operands[k] = tuple_in(self, block, i, k, shape, &leaf);
            continue;
        }
        micro_batch_operand(rewrite, i, k, 0, &producer, &leaf);
        bool is_plain = is_outside(block) || (state.kind == TIME_FULL && factor < 0);
        MicroBatchState wanted =
            is_plain ? full_state : micro_batch_operand_state(rewrite, i, k, factor, state);
        operands[k] =
            adds_f32
                ? micro_batch_convert(self, block, addend_in(self, block, producer, leaf, wanted), DTYPE_F32)
                : value_in(self, block, producer, leaf, wanted);
    }
    if (self->arena->failed) return 0;
    IrInstruction made = *instruction;
    made.shape = result_shape(self, i, factor, state);
    if (is_f32) made.shape.type = DTYPE_F32;
    made.operands = operands;
    if (rewrite->rules->rules[i].inner) {
        int32_t results = rewrite->rules->rules[i].result_count;
        const IrShape **slots =
            ARENA_ARRAY(self->arena, const IrShape *, instruction->operand_count + results);
        int32_t *called = ARENA_ARRAY(self->arena, int32_t, 1);
        if (self->arena->failed) return 0;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            slots[k] = micro_batch_shape_of(self, block, operands[k]);
        for (int32_t r = 0; r < results; r++)
            slots[instruction->operand_count + r] = rules_leaf(&made.shape, r);
        called[0] = copy_fused(self, i, slots);
        made.called = called;
    } else {
        made.called = copy_all_called(self, instruction);
    }
    if (instruction->operand_count > 0)
        made.attributes =
            localise(self, instruction, &rewrite->module->instructions[instruction->operands[0]].shape,
                     micro_batch_shape_of(self, block, operands[0]));
    if (self->arena->failed) return 0;
    return ir_compose(&self->composer, block->computation, &made, i);
}

/* ---- loops of the original that run in the iterations ---- */

static void emit_region_values(MicroBatchEmitter *self, const MicroBatchBlock *block,
                               const IrComputation *region);

/* Emits a body or condition, with a parameter of all arrays of the loop, then the iteration. */
static int32_t emit_region(MicroBatchEmitter *self, const MicroBatchBlock *outside, const PlannedLoop *loop,
                           bool is_body, const IrShape *carried) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    int32_t computation = is_body ? loop->body : loop->condition;
    const IrComputation *region = &rewrite->module->computations[computation];
    int32_t parameter = region->parameters[0];
    MicroBatchBlock block = {.computation = ir_compose_computation(&self->composer, region->name),
                             .origin = parameter,
                             .level = outside->level};
    int32_t tuple = micro_batch_add(self, &block, IR_PARAMETER, carried, NULL, 0, NULL);
    block.iteration = micro_batch_element(self, &block, tuple, loop->leaf_count);
    self->own[parameter] = self->full[parameter] = tuple;
    for (int32_t l = 0; l < loop->leaf_count; l++) {
        int32_t reader = is_body ? loop->leaves[l].in_body : loop->leaves[l].in_condition;
        if (reader < 0 || !rewrite->split_options->live[reader]) continue;
        self->own[reader] = self->full[reader] = micro_batch_element(self, &block, tuple, l);
    }
    emit_region_values(self, &block, region);
    int32_t *next = ARENA_ARRAY(self->arena, int32_t, loop->leaf_count + 1);
    if (!next) return block.computation;
    if (is_body) {
        for (int32_t l = 0; l < loop->leaf_count; l++)
            next[l] = value_in(self, &block, loop->leaves[l].next, loop->leaves[l].next_leaf,
                               micro_batch_leaf_state(rewrite, loop, l));
        next[loop->leaf_count] = block.iteration;
        int32_t root = micro_batch_tuple(self, &block, next, loop->leaf_count + 1);
        if (!self->arena->failed) self->composer.computations[block.computation].root = root;
    } else {
        int32_t root = value_in(self, &block, rewrite->rules->alias[region->root],
                                rewrite->rules->leaf[region->root], full_state);
        if (!self->arena->failed) self->composer.computations[block.computation].root = root;
    }
    return block.computation;
}

static void emit_loop(MicroBatchEmitter *self, const MicroBatchBlock *block, const PlannedLoop *loop) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    int32_t *initial = ARENA_ARRAY(self->arena, int32_t, loop->leaf_count + 1);
    if (!initial) return;
    for (int32_t l = 0; l < loop->leaf_count; l++)
        initial[l] = value_in(self, block, loop->leaves[l].initial, loop->leaves[l].initial_leaf,
                              micro_batch_leaf_state(rewrite, loop, l));
    initial[loop->leaf_count] = block->iteration;
    int32_t tuple = micro_batch_tuple(self, block, initial, loop->leaf_count + 1);
    if (self->arena->failed) return;
    IrInstruction made = rewrite->module->instructions[loop->instruction];
    made.shape = *micro_batch_shape_of(self, block, tuple);
    const int32_t called[] = {emit_region(self, block, loop, true, &made.shape),
                              emit_region(self, block, loop, false, &made.shape)};
    made.operands = &tuple;
    made.called = called;
    int32_t result = ir_compose(&self->composer, block->computation, &made, loop->instruction);
    self->own[loop->instruction] = result;
    for (int32_t l = 0; l < loop->leaf_count; l++) {
        int32_t reader = loop->leaves[l].afterwards;
        if (reader < 0) continue;
        self->own[reader] = micro_batch_element(self, block, result, l);
        if (!micro_batch_in_entry(rewrite, reader)) self->full[reader] = self->own[reader];
    }
}

void micro_batch_emit_inside(MicroBatchEmitter *self, MicroBatchBlock *block, int32_t i) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    uint32_t bit = micro_batch_in_entry(rewrite, i) ? 1u << block->level : 1;
    const PlannedLoop *loop = rules_loop(rewrite->rules, i);
    bool is_parameter = rewrite->module->instructions[i].opcode == IR_PARAMETER;
    block->origin = i;
    if (rewrite->in_levels[i] & bit) {
        if (loop) emit_loop(self, block, loop);
        else if (is_parameter && micro_batch_in_entry(rewrite, i))
            self->own[i] = micro_batch_cut(self, block, invariant(self, self->full[i]),
                                           *micro_batch_state(rewrite, i, 0));
        else if (!micro_batch_is_reader(rewrite, i))
            self->own[i] =
                emit_operator(self, block, i, rewrite->factor[i], *micro_batch_state(rewrite, i, 0));
    }
    if (!micro_batch_in_entry(rewrite, i) && rewrite->needs[i] & TIME_NEED_FULL &&
        !micro_batch_is_reader(rewrite, i) && !loop)
        self->full[i] = emit_operator(self, block, i, -1, full_state);
    int32_t conditional = rewrite->reader_conditional[i];
    if (!micro_batch_in_entry(rewrite, i) && conditional >= 0 && rewrite->needs[i] & TIME_NEED_FULL)
        self->full[i] = micro_batch_leaf(self, block, self->full[conditional], rewrite->reader_leaf[i]);
    for (int32_t c = rewrite->first_copy[i]; c >= 0; c = rewrite->copies[c].next) {
        const MicroBatchCopy *copy = &rewrite->copies[c];
        int32_t *value = &self->copy_values[c];
        if (!(copy->levels & bit)) continue;
        bool is_sum = micro_batch_state(rewrite, i, copy->leaf)->kind == TIME_PARTIAL;
        if (copy->state.kind == TIME_SPLIT && !copy->is_made) {
            int32_t from = micro_batch_in_entry(rewrite, i)
                               ? invariant(self, full_outside(self, i, copy->leaf))
                               : micro_batch_leaf(self, block, self->full[i], copy->leaf);
            *value = self->arena->failed ? 0 : micro_batch_cut(self, block, from, copy->state);
        } else if (is_sum) {
            /* The estimate of a sum over the batch: M times that of the micro-batch. */
            IrShape shape = rewrite->module->instructions[i].shape;
            int32_t sum = micro_batch_convert(self, block, self->own[i], shape.type);
            int32_t iterations =
                micro_batch_constant(self, block, shape.type, rewrite->settings.micro_batches);
            if (shape.rank > 0)
                iterations = micro_batch_add(self, block, IR_BROADCAST, &shape, &iterations, 1, NULL);
            const int32_t operands[] = {sum, iterations};
            *value = micro_batch_add(self, block, IR_MULTIPLY, &shape, operands, 2, NULL);
        } else {
            *value = emit_operator(self, block, i, copy->factor, copy->state);
        }
    }
}

static void emit_region_values(MicroBatchEmitter *self, const MicroBatchBlock *outer,
                               const IrComputation *region) {
    MicroBatchBlock block = *outer;
    for (int32_t i = region->first; i < region->first + region->count && !self->arena->failed; i++) {
        const PlannedLoop *loop = rules_loop(self->rewrite->rules, i);
        if (!micro_batch_is_written(self->rewrite, i)) continue;
        bool is_plain_loop = loop && !self->rewrite->is_split[self->rewrite->rules->loop_of[i]];
        if (is_plain_loop && self->rewrite->needs[i] & TIME_NEED_FULL) {
            block.origin = i;
            self->full[i] = emit_operator(self, &block, i, -1, full_state);
            for (int32_t l = 0; l < loop->leaf_count; l++)
                if (loop->leaves[l].afterwards >= 0)
                    self->full[loop->leaves[l].afterwards] = micro_batch_leaf(self, &block, self->full[i], l);
        }
        micro_batch_emit_inside(self, &block, i);
    }
}

/* ---- the loop of iterations ---- */

/* Adds a carried array that starts in the entry as `initial` and is `next` after an iteration. */
static MicroBatchCarry *add_carry(MicroBatchEmitter *self, int32_t initial) {
    static MicroBatchCarry nowhere;
    MicroBatchBlock entry = {.computation = 0};
    ARENA_RESERVE(self->arena, self->carries, self->carry_count, self->carry_capacity);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    if (self->arena->failed) return &nowhere;
    const int32_t tuple = 0;
    IrShape shape = *micro_batch_shape_of(self, &entry, initial);
    attributes->tuple_index = self->carry_count;
    int32_t inside = micro_batch_add(self, &self->body, IR_GET_TUPLE_ELEMENT, &shape, &tuple, 1, attributes);
    self->carries[self->carry_count] =
        (MicroBatchCarry){.shape = shape, .initial = initial, .inside = inside, .result = -1};
    return &self->carries[self->carry_count++];
}

/* Carries what a leaf of value i gives in every iteration; returns which carry it is. */
static int32_t add_result(MicroBatchEmitter *self, int32_t i, int32_t leaf, ResultKind kind) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrShape *full = rules_leaf(&rewrite->module->instructions[i].shape, leaf);
    MicroBatchState state = *micro_batch_state(rewrite, i, leaf);
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = i, .level = -1};
    self->body.origin = i;
    int32_t carry = self->carry_count;
    if (kind == RESULT_STACK) {
        IrShape shape = micro_batch_stack_shape(self, full, state);
        MicroBatchCarry *made = add_carry(self, micro_batch_filled(self, &entry, &shape, SBP_ADD));
        int32_t part = micro_batch_leaf(self, &self->body, self->own[i], leaf);
        made->next = micro_batch_stack(self, &self->body, made->inside, part, full, state);
        return carry;
    }
    IrShape shape = *full;
    SbpReduction reduction = kind == RESULT_SUM ? state.reduction : SBP_ADD;
    if (kind != RESULT_LAST && reduction == SBP_ADD && micro_batch_sums_in_f32(rewrite, shape.type))
        shape.type = DTYPE_F32;
    MicroBatchCarry *made = add_carry(self, micro_batch_filled(self, &entry, &shape, reduction));
    int32_t copy = kind == RESULT_AVERAGE ? micro_batch_find_copy(rewrite, i, 0, full_state) : -1;
    int32_t value = copy >= 0 ? self->copy_values[copy] : self->own[i];
    if (kind == RESULT_LAST) {
        made->next = value;
        return carry;
    }
    const int32_t operands[] = {made->inside, micro_batch_convert(self, &self->body, value, shape.type)};
    bool is_or = shape.type == DTYPE_PRED && reduction == SBP_ADD;
    IrOpcode opcode = is_or ? IR_OR : sbp_reduction_opcode(reduction);
    made->next = micro_batch_add(self, &self->body, opcode, &shape, operands, 2, NULL);
    return carry;
}

void micro_batch_finish_result(MicroBatchEmitter *self, int32_t i, int32_t leaf, ResultKind kind,
                               int32_t result) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrShape *full = rules_leaf(&rewrite->module->instructions[i].shape, leaf);
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = i, .level = -1};
    if (kind == RESULT_STACK) {
        self->stacked[rewrite->first_state[i] + leaf] =
            micro_batch_add(self, &entry, IR_RESHAPE, full, &result, 1, NULL);
    } else if (kind == RESULT_AVERAGE) {
        IrShape shape = *micro_batch_shape_of(self, &entry, result);
        int32_t share = micro_batch_constant(self, &entry, shape.type, 1.0 / rewrite->settings.micro_batches);
        if (shape.rank > 0) share = micro_batch_add(self, &entry, IR_BROADCAST, &shape, &share, 1, NULL);
        const int32_t operands[] = {result, share};
        result = micro_batch_add(self, &entry, IR_MULTIPLY, &shape, operands, 2, NULL);
        self->average[i] = micro_batch_convert(self, &entry, result, full->type);
    } else {
        self->full[i] = micro_batch_convert(self, &entry, result, full->type);
    }
}

bool micro_batch_leaves_loop(const MicroBatchRewrite *rewrite, int32_t i, int32_t leaf, int32_t level,
                             ResultKind kind) {
    MicroBatchKind held = micro_batch_state(rewrite, i, 0)->kind;
    int32_t loop = rewrite->reader_loop[i];
    if (kind != RESULT_STACK && leaf > 0) return false;
    if (kind == RESULT_AVERAGE)
        return rewrite->needs[i] & TIME_NEED_AVERAGE && rewrite->level[rewrite->estimating] == level;
    if (!(rewrite->in_levels[i] >> level & 1) || micro_batch_level(rewrite, i) != level) return false;
    if (kind == RESULT_STACK) return rewrite->is_stacked[rewrite->first_state[i] + leaf];
    if (!(rewrite->needs[i] & TIME_NEED_FULL)) return false;
    if (kind == RESULT_SUM) return held == TIME_PARTIAL;
    return held == TIME_FULL && loop >= 0 && rewrite->is_split[loop];
}

/* Emits the condition of the iterations: "counter < M". */
static int32_t emit_condition(MicroBatchEmitter *self, const IrShape *carried, int32_t origin) {
    MicroBatchBlock block = {.computation = ir_compose_computation(&self->composer, "condition"),
                             .origin = origin};
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    if (!attributes) return 0;
    *attributes = (IrAttributes){.comparison = "LT", .comparison_type = "SIGNED"};
    int32_t tuple = micro_batch_add(self, &block, IR_PARAMETER, carried, NULL, 0, NULL);
    const int32_t operands[] = {
        micro_batch_element(self, &block, tuple, 0),
        micro_batch_constant(self, &block, DTYPE_S32, self->rewrite->settings.micro_batches)};
    const IrShape answer = {.type = DTYPE_PRED};
    int32_t root = micro_batch_add(self, &block, IR_COMPARE, &answer, operands, 2, attributes);
    if (!self->arena->failed) self->composer.computations[block.computation].root = root;
    return block.computation;
}

/* Begins the body of a loop: its parameter, and the counter of its iterations, which is carry 0. */
static AmStatus begin_body(MicroBatchEmitter *self, const MicroBatchBlock *entry, int32_t level,
                           AmError *error) {
    const IrShape scalar = {.type = DTYPE_S32};
    int32_t zero = micro_batch_constant(self, entry, DTYPE_S32, 0);
    self->invariant_count = self->composer.computations[0].count;
    self->invariant = ARENA_ARRAY(self->arena, int32_t, self->invariant_count + 1);
    if (self->arena->failed) return am_fail_memory(error, self->invariant_count);
    memset(self->invariant, -1, sizeof(int32_t) * (size_t)self->invariant_count);
    self->carry_count = 0;
    self->body = (MicroBatchBlock){.computation = ir_compose_computation(&self->composer, "micro_batch"),
                                   .origin = entry->origin,
                                   .level = level};
    micro_batch_add(self, &self->body, IR_PARAMETER, &scalar, NULL, 0,
                    NULL); /* its shape is known at the end */
    MicroBatchCarry *counter = add_carry(self, zero);
    if (self->arena->failed) return am_fail_memory(error, self->carry_count);
    self->body.iteration = counter->inside;
    const int32_t step[] = {counter->inside, micro_batch_constant(self, &self->body, DTYPE_S32, 1)};
    if (self->arena->failed) return am_fail_memory(error, self->carry_count);
    self->carries[0].next = micro_batch_add(self, &self->body, IR_ADD, &scalar, step, 2, NULL);
    return AM_OK;
}

/* Returns the number of a result among those of a loop. */
static int64_t result_number(const MicroBatchRewrite *rewrite, int32_t i, int32_t leaf, ResultKind kind) {
    return (int64_t)(rewrite->first_state[i] + leaf) * RESULT_KINDS + (int64_t)kind;
}

static int64_t result_count(const MicroBatchRewrite *rewrite) {
    return result_number(rewrite, rewrite->rules->entry_count, 0, RESULT_SUM);
}

/* Emits the operators of a loop's body, and a carry for each result that leaves the loop: results
 * [result_number()] is its number, -1: the result does not leave the loop. */
static void emit_body(MicroBatchEmitter *self, int32_t level, int32_t *results) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    int32_t entry_count = rewrite->rules->entry_count;
    for (int64_t k = 0; k < result_count(rewrite); k++) results[k] = -1;
    for (int32_t i = 0; i < entry_count; i++) {
        if (!micro_batch_is_written(rewrite, i)) continue;
        micro_batch_emit_inside(self, &self->body, i);
        /* A sum that rounds follows its addend at once, which then need not be kept until the end of the
         * iteration. Products in f32 add in place, wherever their sum is. */
        if (micro_batch_rounds_sum(rewrite, rewrite->module->instructions[i].shape.type) &&
            micro_batch_leaves_loop(rewrite, i, 0, level, RESULT_SUM))
            results[result_number(rewrite, i, 0, RESULT_SUM)] = add_result(self, i, 0, RESULT_SUM);
    }
    for (int32_t i = 0; i < entry_count; i++) {
        if (!micro_batch_is_written(rewrite, i)) continue;
        for (int32_t leaf = 0; leaf < rewrite->first_state[i + 1] - rewrite->first_state[i]; leaf++)
            for (ResultKind kind = 0; kind < RESULT_KINDS; kind++) {
                int32_t *result = &results[result_number(rewrite, i, leaf, kind)];
                if (*result < 0 && micro_batch_leaves_loop(rewrite, i, leaf, level, kind))
                    *result = add_result(self, i, leaf, kind);
            }
    }
}

/* Ends the body and adds the loop to the entry; *loop is its instruction there. */
static AmStatus add_loop(MicroBatchEmitter *self, const MicroBatchBlock *entry, int32_t *loop,
                         AmError *error) {
    int32_t *values = ARENA_ARRAY(self->arena, int32_t, self->carry_count + 1);
    if (self->arena->failed) return am_fail_memory(error, self->carry_count);
    for (int32_t c = 0; c < self->carry_count; c++) values[c] = self->carries[c].next;
    self->body.origin = entry->origin;
    int32_t root = micro_batch_tuple(self, &self->body, values, self->carry_count);
    for (int32_t c = 0; c < self->carry_count; c++) values[c] = self->carries[c].initial;
    int32_t tuple = micro_batch_tuple(self, entry, values, self->carry_count);
    if (self->arena->failed) return am_fail_memory(error, self->carry_count);
    IrShape carried = *micro_batch_shape_of(self, entry, tuple);
    ir_composed(&self->composer, self->body.computation, 0)->shape = carried;
    self->composer.computations[self->body.computation].root = root;
    int32_t condition = emit_condition(self, &carried, entry->origin);
    *loop = micro_batch_add(self, entry, IR_WHILE, &carried, &tuple, 1, NULL);
    int32_t *called = ARENA_ARRAY(self->arena, int32_t, 2);
    if (self->arena->failed) return am_fail_memory(error, self->carry_count);
    called[0] = self->body.computation;
    called[1] = condition;
    IrInstruction *made = ir_composed(&self->composer, 0, *loop);
    made->called = called;
    made->called_count = 2;
    return AM_OK;
}

static AmStatus emit_iterations(MicroBatchEmitter *self, int32_t level, AmError *error) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    int32_t entry_count = rewrite->rules->entry_count, loop = -1;
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = 0, .level = -1};
    while (entry.origin < entry_count - 1 && !(rewrite->in_levels[entry.origin] >> level & 1)) entry.origin++;
    int32_t *results = ARENA_ARRAY(self->arena, int32_t, result_count(rewrite) + 1);
    if (self->arena->failed) return am_fail_memory(error, entry_count);
    TRY(begin_body(self, &entry, level, error));
    /* Operators whose sums leave the loop of a level have one result. */
    for (int32_t i = 0; i < rewrite->rules->entry_count; i++) {
        const IrInstruction *instruction = &rewrite->module->instructions[i];
        if (instruction->shape.type != DTYPE_TUPLE || !micro_batch_is_written(rewrite, i)) continue;
        for (ResultKind kind = RESULT_SUM; kind < RESULT_KINDS; kind++)
            if (kind != RESULT_STACK && micro_batch_leaves_loop(rewrite, i, 0, level, kind))
                return am_fail(
                    error, AM_ERROR_INFEASIBLE, rewrite->module->source,
                    "cannot be split exactly into %d micro-batches: the results of %s are of different kinds",
                    rewrite->settings.micro_batches, instruction->name);
    }
    emit_body(self, level, results);
    TRY(add_loop(self, &entry, &loop, error));
    for (int32_t i = 0; i < entry_count; i++)
        for (int32_t leaf = 0; leaf < rewrite->first_state[i + 1] - rewrite->first_state[i]; leaf++)
            for (ResultKind kind = 0; kind < RESULT_KINDS; kind++) {
                int32_t carry = results[result_number(rewrite, i, leaf, kind)];
                if (carry < 0 || self->arena->failed) continue;
                entry.origin = i;
                micro_batch_finish_result(self, i, leaf, kind,
                                          micro_batch_element(self, &entry, loop, carry));
            }
    return self->arena->failed ? am_fail_memory(error, self->carry_count) : AM_OK;
}

/* ---- the entry ---- */

/* Returns whether the entry itself makes the full value, rather than a loop. */
static bool is_made_outside(const MicroBatchRewrite *rewrite, int32_t i) {
    if (!(rewrite->needs[i] & TIME_NEED_FULL) || rewrite->module->instructions[i].opcode == IR_PARAMETER)
        return false;
    return micro_batch_state(rewrite, i, 0)->kind != TIME_PARTIAL || rules_loop(rewrite->rules, i);
}

static void emit_segment(MicroBatchEmitter *self, int32_t segment) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    for (int32_t i = 0; i < rewrite->rules->entry_count && !self->arena->failed; i++) {
        if (!micro_batch_is_written(rewrite, i) || !is_made_outside(rewrite, i)) continue;
        int32_t own_segment =
            micro_batch_in_loop(rewrite, i) ? micro_batch_level(rewrite, i) : rewrite->loops_before[i];
        if (own_segment != segment) continue;
        MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = i, .level = -1};
        if (!micro_batch_is_reader(rewrite, i)) {
            self->full[i] = emit_operator(self, &entry, i, -1, full_state);
            continue;
        }
        int32_t loop = rewrite->reader_loop[i];
        int32_t from = loop >= 0 ? rewrite->rules->loops[loop].instruction : rewrite->reader_conditional[i];
        if (from < 0 || self->full[from] < 0) continue;
        self->full[i] = micro_batch_leaf(self, &entry, self->full[from], rewrite->reader_leaf[i]);
    }
}

static void emit_outputs(MicroBatchEmitter *self) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrRoles *roles = rewrite->context->roles;
    int32_t root = rewrite->module->computations[rewrite->module->entry].root;
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = root, .level = -1};
    int32_t *values = ARENA_ARRAY(self->arena, int32_t, roles->output_count + 1);
    if (!values) return;
    for (int32_t k = 0; k < roles->output_count; k++)
        values[k] = full_outside(self, rewrite->rules->alias[roles->outputs[k]],
                                 rewrite->rules->leaf[roles->outputs[k]]);
    bool is_tuple = rewrite->module->instructions[root].shape.type == DTYPE_TUPLE;
    int32_t made = is_tuple ? micro_batch_tuple(self, &entry, values, roles->output_count) : values[0];
    if (!self->arena->failed) self->composer.computations[0].root = made;
}

/* Allocates the tables of the emitter, and begins the new entry. */
static AmStatus begin_entry(MicroBatchEmitter *self, AmError *error) {
    int32_t count = self->rewrite->count, computations = self->rewrite->module->computation_count;
    int32_t states = self->rewrite->first_state[count];
    int32_t **arrays[] = {&self->full, &self->own, &self->average};
    for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
        *arrays[k] = ARENA_ARRAY(self->arena, int32_t, count + 1);
        if (*arrays[k]) memset(*arrays[k], -1, sizeof(int32_t) * (size_t)count);
    }
    self->stacked = ARENA_ARRAY(self->arena, int32_t, states + 1);
    if (self->stacked) memset(self->stacked, -1, sizeof(int32_t) * (size_t)states);
    self->copied = ARENA_ARRAY(self->arena, int32_t, computations + 1);
    self->copy_values = ARENA_ARRAY(self->arena, int32_t, self->rewrite->copy_count + 1);
    if (self->arena->failed) return am_fail_memory(error, count);
    memset(self->copied, -1, sizeof(int32_t) * (size_t)computations);
    ir_compose_computation(&self->composer,
                           self->rewrite->module->computations[self->rewrite->module->entry].name);
    return AM_OK;
}

AmStatus micro_batch_emit(IrModule **split, int32_t **origins, MicroBatchRewrite *rewrite,
                          MicroBatchReplicas *replicas, AmError *error) {
    IrModule *made = ir_module_new(rewrite->module->source);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    MicroBatchEmitter self = {.rewrite = rewrite,
                              .composer = {.module = made},
                              .arena = &made->arena,
                              .replicas = replicas,
                              .part_count = 1};
    AmStatus status = AM_OK;
    const IrModule *module = rewrite->module;
    TRY_OR_FAIL(begin_entry(&self, error));
    made->name = module->name;
    made->aliases = module->aliases;
    made->alias_count = module->alias_count;
    const IrComputation *entry = &module->computations[module->entry];
    for (int32_t p = 0; p < entry->parameter_count && !self.arena->failed; p++) {
        int32_t i = entry->parameters[p];
        self.full[i] = ir_compose(&self.composer, 0, &module->instructions[i], i);
    }
    for (int32_t level = 0; level < rewrite->level_count; level++) {
        emit_segment(&self, level);
        TRY_OR_FAIL(replicas ? micro_batch_emit_replicas(&self, level, error)
                             : emit_iterations(&self, level, error));
    }
    for (int32_t segment = rewrite->level_count; segment <= TIME_MOST_LEVELS + 1; segment++)
        emit_segment(&self, segment);
    emit_outputs(&self);
    if (replicas) micro_batch_note_replica(&self, -1);
    if (self.arena->failed) TRY_OR_FAIL(am_fail_memory(error, module->instruction_count));
    status = ir_compose_finish(&self.composer, origins, error);
fail:
    if (status != AM_OK) {
        ir_module_free(made);
        return status;
    }
    *split = made;
    return AM_OK;
}
