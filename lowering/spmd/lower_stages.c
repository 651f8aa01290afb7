/* The values that one stage of several holds, sends and receives.
 *
 * A value that another stage needs is sent before its first user there is computed, together with
 * all values computed until then: a stage that has to wait in a transfer has finished its own part
 * by then, and waits once. All stages walk over the module in the same way and find the same
 * positions, so that all ranks reach transfers in one order and sends may wait. Both ends are the
 * states in which the stages store the value; resharding inside a stage uses collectives of that
 * stage.
 */
#include "lowering/spmd/lower_internal.h"
#include "lowering/spmd/transfer.h"

bool lower_holds(const Lowering *self, int32_t i) {
    return !self->stages || stage_in(self->stages->map->held[i], self->stages->stage);
}

bool lower_holds_parameter(const Lowering *self, int32_t k) {
    return !self->stages || self->stages->map->owner[k] == self->stages->stage;
}

bool lower_holds_output(const Lowering *self, int32_t k) {
    return !self->stages || self->stages->map->output[k] == self->stages->stage;
}

bool lower_needs_leaf(const Lowering *self, const LoopLeaf *leaf) {
    const SplitOptions *options = self->split_options;
    if (!leaf->is_invariant || (leaf->in_condition >= 0 && options->live[leaf->in_condition])) return true;
    return leaf->in_body >= 0 &&
           options->uses[leaf->in_body] > 1; /* the first use is as its own next value */
}

AmStatus lower_list_carried(const Lowering *self, const PlannedLoop *loop, int32_t **leaves, int32_t *count,
                            AmError *error) {
    *leaves = ARENA_ARRAY(self->arena, int32_t, loop->leaf_count + 1);
    *count = 0;
    if (!*leaves) return am_fail_memory(error, loop->leaf_count);
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        bool is_carried = self->stages ? stage_in(self->stages->map->carried[loop - self->rules->loops][k],
                                                  self->stages->stage)
                                       : lower_needs_leaf(self, &loop->leaves[k]);
        if (is_carried) (*leaves)[(*count)++] = k;
    }
    return AM_OK;
}

static TransferEnd end_of(const LoweredStages *stages, int32_t stage, int32_t i) {
    const Assignment *assignment = stages->assignments[stage];
    return (TransferEnd){.mesh = &assignment->stage->mesh,
                         .first_rank = stages->map->first_rank[stage],
                         .state = assignment->stored[i]};
}

AmStatus lower_transfers(Lowering *self, AmError *error) {
    const LoweredStages *stages = self->stages;
    for (int32_t k = 0; k < self->put_off_count; k++) {
        int32_t i = self->put_off[k];
        stages->awaited[i] = 0;
        /* To all stages that need the value and do not hold it. */
        StageSet held = stages->map->held[i], missing = stages->map->needed[i] & ~held;
        int32_t sender = stage_first(held), leaves = rules_leaf_count(&self->module->instructions[i].shape);
        for (int32_t leaf = 0; leaf < leaves; leaf++) {
            for (int32_t receiver = 0; receiver < stages->map->stage_count; receiver++) {
                if (!stage_in(missing, receiver)) continue;
                self->transfers++;
                self->sender = sender;
                self->receiver = receiver;
                TransferEnd source = end_of(stages, sender, i), target = end_of(stages, receiver, i);
                if (sender == stages->stage) TRY(lower_send(self, i, leaf, source.state, &target, error));
                else if (receiver == stages->stage)
                    TRY(lower_receive(self, i, leaf, &source, target.state, error));
            }
        }
    }
    self->put_off_count = 0;
    return AM_OK;
}

AmStatus lower_value_defined(Lowering *self, int32_t i, AmError *error) {
    if (!self->stages) return AM_OK;
    const StageMap *map = self->stages->map;
    StageSet missing = map->needed[i] & ~map->held[i];
    if (missing == 0) return AM_OK;
    if (map->held[i] == 0)
        return am_fail(error, AM_ERROR_INTERNAL, self->module->source, "no stage computes %s",
                       self->module->instructions[i].name);
    ARENA_RESERVE(self->arena, self->put_off, self->put_off_count, self->put_off_capacity);
    if (self->arena->failed) return am_fail_memory(error, self->put_off_count);
    self->put_off[self->put_off_count++] = i;
    self->stages->awaited[i] = missing;
    return AM_OK;
}

/* Returns the stages that wait for a value, or for the forward one that stands in for it. */
static StageSet awaited(const LoweredStages *stages, int32_t i) {
    int32_t forward = stages_repeated(stages->context, i);
    return stages->awaited[i] | (forward < 0 ? 0 : stages->awaited[forward]);
}

AmStatus lower_flush_transfers(Lowering *self, int32_t i, AmError *error) {
    const LoweredStages *stages = self->stages;
    if (!stages || !self->split_options->live[i]) return AM_OK;
    StageSet taken = 0;
    const PlannedLoop *loop = rules_loop(self->rules, i);
    for (int32_t k = 0; loop && k < loop->leaf_count; k++) taken |= awaited(stages, loop->leaves[k].initial);
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++)
        taken |= awaited(stages, self->split_options->operands[k]);
    if (stages_is_transparent(stages->context, i)) stages->awaited[i] = taken;
    return taken & stages->map->held[i] ? lower_transfers(self, error) : AM_OK;
}
