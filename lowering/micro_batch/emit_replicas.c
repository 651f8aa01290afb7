/* Writes the parts of replicas one beside another: every operator of a loop over micro-batches once for each
 * replica, in the module's order, without a loop.
 *
 *     y = x w, dw = x^T dy    ->    y0 = x0 w, y1 = x1 w, dw0 = x0^T dy0, dw1 = x1^T dy1, dw = dw0 + dw1
 *
 * Replica r has `parts[r]` of every settings.micro_batches rows of the batch. Sums are in the order of the
 * replicas, each directly after its last addend.
 */
#include "lowering/micro_batch/emit_loops.h"

void micro_batch_note_replica(MicroBatchEmitter *self, int32_t replica) {
    MicroBatchReplicas *replicas = self->replicas;
    while (!self->arena->failed && replicas->noted < self->composer.computations[0].count) {
        ARENA_RESERVE(self->arena, replicas->replica_of, replicas->noted, replicas->capacity);
        if (!self->arena->failed) replicas->replica_of[replicas->noted++] = replica;
    }
}

/* The tables of values that each replica has for itself, [replica]. */
typedef struct ReplicaValues {
    int32_t **own, **copies;
} ReplicaValues;

static AmStatus open_values(ReplicaValues *values, const MicroBatchEmitter *self, AmError *error) {
    int32_t count = self->replicas->count;
    *values = (ReplicaValues){.own = ARENA_ARRAY(self->arena, int32_t *, count),
                              .copies = ARENA_ARRAY(self->arena, int32_t *, count)};
    for (int32_t r = 0; r < count && !self->arena->failed; r++) {
        values->own[r] = ARENA_ARRAY(self->arena, int32_t, self->rewrite->count + 1);
        values->copies[r] = ARENA_ARRAY(self->arena, int32_t, self->rewrite->copy_count + 1);
    }
    return self->arena->failed ? am_fail_memory(error, self->rewrite->count) : AM_OK;
}

/* Combines the replicas' values of instruction i. */
static int32_t combine(MicroBatchEmitter *self, const ReplicaValues *values, int32_t i) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = i, .level = -1};
    IrShape shape = rewrite->module->instructions[i].shape;
    SbpReduction reduction = micro_batch_state(rewrite, i, 0)->reduction;
    if (reduction == SBP_ADD && micro_batch_sums_in_f32(rewrite, shape.type)) shape.type = DTYPE_F32;
    bool is_or = shape.type == DTYPE_PRED && reduction == SBP_ADD;
    int32_t sum = micro_batch_convert(self, &entry, values->own[0][i], shape.type);
    for (int32_t r = 1; r < self->replicas->count; r++) {
        const int32_t operands[] = {sum, micro_batch_convert(self, &entry, values->own[r][i], shape.type)};
        sum = micro_batch_add(self, &entry, is_or ? IR_OR : sbp_reduction_opcode(reduction), &shape, operands,
                              2, NULL);
    }
    return sum;
}

/* Puts the replicas' parts of a leaf together. */
static int32_t join(MicroBatchEmitter *self, const ReplicaValues *values, int32_t i, int32_t leaf) {
    MicroBatchBlock entry = {.computation = 0, .iteration = -1, .origin = i, .level = -1};
    int32_t *parts = ARENA_ARRAY(self->arena, int32_t, self->replicas->count);
    for (int32_t r = 0; parts && r < self->replicas->count; r++)
        parts[r] = micro_batch_leaf(self, &entry, values->own[r][i], leaf);
    if (self->arena->failed) return 0;
    return micro_batch_join(self, &entry, parts,
                            rules_leaf(&self->rewrite->module->instructions[i].shape, leaf),
                            *micro_batch_state(self->rewrite, i, leaf));
}

/* Emits the results of instruction i that later levels or the end of the step read. */
static void emit_results(MicroBatchEmitter *self, const ReplicaValues *values, int32_t level, int32_t i) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    int32_t leaves = rewrite->first_state[i + 1] - rewrite->first_state[i];
    if (micro_batch_leaves_loop(rewrite, i, 0, level, RESULT_SUM))
        micro_batch_finish_result(self, i, 0, RESULT_SUM, combine(self, values, i));
    if (micro_batch_leaves_loop(rewrite, i, 0, level, RESULT_LAST))
        micro_batch_finish_result(self, i, 0, RESULT_LAST, values->own[0][i]);
    for (int32_t leaf = 0; leaf < leaves; leaf++)
        if (micro_batch_leaves_loop(rewrite, i, leaf, level, RESULT_STACK))
            micro_batch_finish_result(self, i, leaf, RESULT_STACK, join(self, values, i, leaf));
}

/* Emits instruction i once for each replica. */
static void emit_copies(MicroBatchEmitter *self, const ReplicaValues *values, int32_t level, int32_t i) {
    const MicroBatchReplicas *replicas = self->replicas;
    self->part_first = 0;
    for (int32_t r = 0; r < replicas->count && !self->arena->failed; r++) {
        MicroBatchBlock block = {.computation = 0, .origin = i, .level = level};
        self->replica = r;
        self->own = values->own[r];
        self->copy_values = values->copies[r];
        self->part_count = replicas->parts[r];
        if (rules_loop(self->rewrite->rules, i))
            block.iteration = micro_batch_constant(self, &block, DTYPE_S32, 0);
        micro_batch_emit_inside(self, &block, i);
        micro_batch_note_replica(self, r);
        self->part_first += replicas->parts[r];
    }
}

AmStatus micro_batch_emit_replicas(MicroBatchEmitter *self, int32_t level, AmError *error) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    ReplicaValues values;
    TRY(open_values(&values, self, error));
    micro_batch_note_replica(self, -1);
    for (int32_t i = 0; i < rewrite->rules->entry_count && !self->arena->failed; i++) {
        if (!micro_batch_is_written(rewrite, i)) continue;
        bool is_tuple = rewrite->module->instructions[i].shape.type == DTYPE_TUPLE;
        if (is_tuple && micro_batch_leaves_loop(rewrite, i, 0, level, RESULT_SUM))
            return am_fail(error, AM_ERROR_INFEASIBLE, rewrite->module->source,
                           "cannot be split exactly into replicas: the results of %s are of different kinds",
                           rewrite->module->instructions[i].name);
        emit_copies(self, &values, level, i);
        emit_results(self, &values, level, i);
        micro_batch_note_replica(self, -1);
    }
    return self->arena->failed ? am_fail_memory(error, rewrite->count) : AM_OK;
}
