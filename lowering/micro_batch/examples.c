/* Micro-batches of systems that run each operator of the module on one micro-batch, as JAX does.
 *
 * Loops of the own executor may compute a value whole, after the iterations or before them, and cut it up
 * again. Such a system may not: only sums over the batch pass between micro-batches. Random numbers and
 * counts that depend on no data are made whole before, and cut along the examples.
 */
#include "lowering/micro_batch/micro_batch_rewrite.h"

AmStatus micro_batch_check_operators(const MicroBatchRewrite *rewrite, AmError *error) {
    for (int32_t i = 0; i < rewrite->rules->entry_count; i++) {
        const IrInstruction *instruction = &rewrite->module->instructions[i];
        if (!micro_batch_is_written(rewrite, i)) continue;
        if (rewrite->takes_full[i])
            return micro_batch_refuse(
                rewrite, i,
                rules_conditional(rewrite->rules, i)
                    ? "has branches, which no micro-batch cuts (expected a select, such "
                      "as jax.numpy.where, or one micro-batch)"
                    : "mixes examples, and each micro-batch has only its own",
                NULL, error);
        bool is_sum = instruction->opcode == IR_DOT || instruction->opcode == IR_CONVOLUTION ||
                      instruction->opcode == IR_SCATTER || instruction->opcode == IR_RAGGED_DOT ||
                      (instruction->opcode == IR_REDUCE && instruction->shape.type != DTYPE_TUPLE);
        bool is_partial = micro_batch_state(rewrite, i, 0)->kind == TIME_PARTIAL;
        if (rewrite->factor[i] >= 0 && is_partial && !is_sum)
            return micro_batch_refuse(rewrite, i, "combines examples otherwise than by a sum", NULL, error);
    }
    return AM_OK;
}

typedef struct Examples {
    const MicroBatchRewrite *rewrite;
    int64_t batch;
    bool *has_rows;   /* [instruction]: depends on data, or on another array with a dimension of the batch's
                         size */
    bool *counts;     /* [instruction]: depends on an iota or on random numbers */
    int32_t *outside; /* [instruction]: what it reads from outside of its loop, equal in all trips, or -1 */
    const LoopLeaf **leaf_of; /* [instruction]: the array of a loop that it reads, or NULL */
} Examples;

static bool has_batch_size(const Examples *self, const IrShape *shape) {
    for (int32_t d = 0; shape->type != DTYPE_TUPLE && d < shape->rank; d++)
        if (shape->dimensions[d] == self->batch) return true;
    return false;
}

/* Returns whether a data input may hold examples: a random key or a rate for the step has no dimension for
 * them. */
static bool may_hold_examples(const Examples *self, const IrShape *shape) {
    if (shape->type == DTYPE_TUPLE) return true;
    for (int32_t d = 0; d < shape->rank; d++)
        if (shape->dimensions[d] % self->batch == 0) return true;
    return false;
}

/* Marks the inputs and constants that have rows, and the sources of numbers. */
static void mark_sources(const Examples *self) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrRoles *roles = rewrite->context->roles;
    for (int32_t i = 0; i < rewrite->count; i++) {
        IrOpcode opcode = rewrite->module->instructions[i].opcode;
        bool is_input = opcode == IR_PARAMETER || opcode == IR_CONSTANT;
        bool is_of_region = opcode == IR_PARAMETER && !micro_batch_in_entry(rewrite, i);
        self->has_rows[i] =
            is_of_region || (is_input && has_batch_size(self, &rewrite->module->instructions[i].shape));
        self->counts[i] = opcode == IR_IOTA || opcode == IR_RNG || opcode == IR_RNG_BIT_GENERATOR;
    }
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        self->has_rows[i] |= roles->parameters[p].role == IR_ROLE_DATA &&
                             may_hold_examples(self, &rewrite->module->instructions[i].shape);
    }
}

/* Marks a value if one of its sources is marked. Returns whether that changes its marks. */
static bool mark_by_sources(const Examples *self, int32_t i, const int32_t *sources, int32_t count) {
    bool has_rows = self->has_rows[i], counts = self->counts[i];
    for (int32_t k = 0; k < count; k++) {
        self->has_rows[i] |= self->has_rows[sources[k]];
        self->counts[i] |= self->counts[sources[k]];
    }
    return has_rows != self->has_rows[i] || counts != self->counts[i];
}

/* Marks what depends on these, in loops up to a fixed point. */
static void find_dependents(const Examples *self) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    bool changed = true;
    mark_sources(self);
    while (changed) {
        changed = false;
        for (int32_t i = 0; i < rewrite->count; i++) {
            const IrInstruction *instruction = &rewrite->module->instructions[i];
            const PlannedLoop *loop = rules_loop(rewrite->rules, i);
            const LoopLeaf *leaf = self->leaf_of[i];
            if (leaf) {
                changed |= mark_by_sources(self, i, (const int32_t[]){leaf->initial, leaf->next}, 2);
            } else if (rewrite->rules->alias[i] != i) {
                changed |= mark_by_sources(self, i, &rewrite->rules->alias[i], 1);
            } else {
                changed |= mark_by_sources(self, i, instruction->operands, instruction->operand_count);
            }
            for (int32_t l = 0; loop && l < loop->leaf_count; l++)
                changed |= mark_by_sources(self, i, &loop->leaves[l].next, 1);
        }
    }
}

static void find_leaves(const Examples *self) {
    const Rules *rules = self->rewrite->rules;
    for (int32_t i = 0; i < self->rewrite->count; i++) self->outside[i] = -1;
    for (int32_t k = 0; k < rules->loop_count; k++)
        for (int32_t l = 0; l < rules->loops[k].leaf_count; l++) {
            const LoopLeaf *leaf = &rules->loops[k].leaves[l];
            if (leaf->in_body >= 0) self->leaf_of[leaf->in_body] = leaf;
            if (leaf->in_condition >= 0) self->leaf_of[leaf->in_condition] = leaf;
            if (leaf->afterwards >= 0) self->leaf_of[leaf->afterwards] = leaf;
            if (leaf->is_invariant && leaf->in_body >= 0) self->outside[leaf->in_body] = leaf->initial;
        }
}

/* Returns whether a state has a row of the value for each example. */
static bool is_by_example(const Examples *self, MicroBatchState state, const IrShape *shape) {
    return state.unit == 1 && shape->type != DTYPE_TUPLE && shape->dimensions[state.dimension] == self->batch;
}

/* Returns whether a value depends on an iota or on random numbers, and differs along a dimension. */
static bool counts_along(const Examples *self, int32_t value, int32_t dimension) {
    const IrInstruction *instruction = &self->rewrite->module->instructions[value];
    if (!self->counts[value] || self->has_rows[value]) return false;
    if (instruction->opcode != IR_BROADCAST) return true;
    for (int32_t d = 0; d < instruction->attributes->dimension_count; d++)
        if (instruction->attributes->dimensions[d] == dimension) return true;
    return false;
}

/* Checks what an operator of a micro-batch reads: no sum of a loop of the module over the batch, which may be
 * one of a later trip, and counts and random numbers by example. */
static AmStatus check_operands(const Examples *self, int32_t i, AmError *error) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrInstruction *instruction = &rewrite->module->instructions[i];
    if (rules_loop(rewrite->rules, i) || micro_batch_is_reader(rewrite, i) ||
        !micro_batch_in_loop(rewrite, i))
        return AM_OK;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer, leaf;
        if (rewrite->module->instructions[instruction->operands[k]].shape.type == DTYPE_TUPLE) continue;
        micro_batch_operand(rewrite, i, k, 0, &producer, &leaf);
        MicroBatchState held = *micro_batch_state(rewrite, producer, leaf);
        if (rewrite->reader_loop[producer] >= 0 && held.kind == TIME_PARTIAL && !rewrite->keeps_partial[i])
            return micro_batch_refuse(rewrite, i, "needs a sum over the batch that a loop makes", NULL,
                                      error);
        MicroBatchState read =
            micro_batch_operand_state(rewrite, i, k, rewrite->factor[i], *micro_batch_state(rewrite, i, 0));
        if (read.kind == TIME_SPLIT && counts_along(self, producer, read.dimension) &&
            !is_by_example(self, read, &rewrite->module->instructions[producer].shape))
            return micro_batch_refuse(rewrite, i, "reads numbers that are not in rows by example", NULL,
                                      error);
    }
    return AM_OK;
}

/* Returns the value of the entry that i is in each trip of its loop, or i. */
static int32_t source_of(const Examples *self, int32_t i) {
    while (self->outside[i] >= 0) i = self->outside[i];
    return i;
}

/* Checks that the parts of counts and random numbers are rows of examples. */
static AmStatus check_counts(const Examples *self, int32_t i, AmError *error) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    const IrInstruction *instruction = &rewrite->module->instructions[i];
    int32_t source = source_of(self, i);
    bool is_iota = instruction->opcode == IR_IOTA;
    if (instruction->shape.type == DTYPE_TUPLE) return AM_OK;
    for (int32_t c = rewrite->first_copy[i]; c >= 0; c = rewrite->copies[c].next) {
        const MicroBatchCopy *copy = &rewrite->copies[c];
        bool is_cut = copy->state.kind == TIME_SPLIT && (is_iota || !copy->is_made);
        bool is_count = is_iota || counts_along(self, source, copy->state.dimension);
        if (is_cut && is_count && !is_by_example(self, copy->state, &instruction->shape))
            return micro_batch_refuse(rewrite, source, "has numbers that are not in rows by example", NULL,
                                      error);
    }
    return AM_OK;
}

/* Checks the parts that are cut out of a full value: of data or of what no input gives. *dimension becomes
 * that of the examples of data. */
static AmStatus check_cuts(const Examples *self, int32_t i, int32_t *dimension, AmError *error) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    int32_t source = source_of(self, i);
    TRY(check_counts(self, i, error));
    bool is_of_loop = !micro_batch_in_entry(rewrite, source) || self->leaf_of[source];
    if (!self->has_rows[source] && (!is_of_loop || self->counts[source])) return AM_OK;
    for (int32_t c = rewrite->first_copy[i]; c >= 0; c = rewrite->copies[c].next) {
        const MicroBatchCopy *copy = &rewrite->copies[c];
        if (copy->state.kind != TIME_SPLIT || copy->is_made) continue;
        if (micro_batch_state(rewrite, i, copy->leaf)->kind != TIME_FULL) continue;
        bool is_other = !dimension || rewrite->reads_whole[i] || copy->state.unit != 1 ||
                        (*dimension >= 0 && *dimension != copy->state.dimension);
        if (is_other)
            return micro_batch_refuse(rewrite, source,
                                      rewrite->module->instructions[source].opcode == IR_CONSTANT
                                          ? "has rows for the examples (expected an argument of the step)"
                                          : "has rows for the examples, and is no data cut by example",
                                      NULL, error);
        *dimension = copy->state.dimension;
    }
    return AM_OK;
}

AmStatus micro_batch_check_examples(int32_t *dimensions, const MicroBatchRewrite *rewrite, AmError *error) {
    const IrRoles *roles = rewrite->context->roles;
    int32_t count = rewrite->rules->entry_count;
    int32_t *parameter_of = ARENA_ARRAY(rewrite->arena, int32_t, count + 1);
    const Examples self = {.rewrite = rewrite,
                           .batch = micro_batches_limit(rewrite->context),
                           .has_rows = ARENA_ARRAY(rewrite->arena, bool, rewrite->count + 1),
                           .counts = ARENA_ARRAY(rewrite->arena, bool, rewrite->count + 1),
                           .leaf_of = ARENA_ARRAY(rewrite->arena, const LoopLeaf *, rewrite->count + 1),
                           .outside = ARENA_ARRAY(rewrite->arena, int32_t, rewrite->count + 1)};
    if (rewrite->arena->failed) return am_fail_memory(error, count);
    find_leaves(&self);
    find_dependents(&self);
    for (int32_t i = 0; i < count; i++) parameter_of[i] = -1;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        MicroBatchState state = *micro_batch_state(rewrite, i, 0);
        dimensions[p] = state.kind == TIME_SPLIT ? state.dimension : -1;
        if (roles->parameters[p].role == IR_ROLE_DATA) parameter_of[i] = p;
    }
    for (int32_t i = 0; i < count; i++) {
        if (!micro_batch_is_written(rewrite, i)) continue;
        int32_t p = parameter_of[i];
        TRY(check_operands(&self, i, error));
        TRY(check_cuts(&self, i, p >= 0 ? &dimensions[p] : NULL, error));
    }
    for (int32_t i = count; i < rewrite->count; i++)
        if (rewrite->split_options->live[i]) TRY(check_cuts(&self, i, NULL, error));
    for (int32_t k = 0; k < roles->output_count; k++) {
        int32_t output = rewrite->rules->alias[roles->outputs[k]];
        MicroBatchState state = *micro_batch_state(rewrite, output, rewrite->rules->leaf[roles->outputs[k]]);
        if (state.kind == TIME_SPLIT &&
            !is_by_example(&self, state, &rewrite->module->instructions[roles->outputs[k]].shape))
            return micro_batch_refuse(rewrite, output, "is a result that is not in rows by example", NULL,
                                      error);
    }
    return AM_OK;
}
