/* Prices of a stage's programs; see stage_costs.h.
 *
 * With equal shares all devices run the program of the stage's first device, so it is
 * lowered once; unequal shares are lowered for each device. Steps inside a loop that meets no other
 * stage count all their times at once: a loop's turns take equally long, and at its borders everything
 * is waited for, so that times a turn is what the turns take.
 */
#include "cost/stage_costs.h"

/* Turns of the spans around each step, multiplied; in the arena. */
static double *count_turns(Arena *arena, const ExecutedSpan *spans, int32_t span_count, int32_t step_count) {
    double *turns = ARENA_ARRAY(arena, double, step_count + 1);
    for (int32_t s = 0; turns && s < step_count; s++) turns[s] = 1;
    for (int32_t k = 0; turns && k < span_count; k++)
        for (int32_t s = spans[k].first; s < spans[k].end; s++) turns[s] *= (double)spans[k].turns;
    return turns;
}

static AmStatus price_steps_of(ProgramCosts *self, Arena *arena, const StageCosts *stage, AmError *error) {
    const Cluster *cluster = stage->cluster;
    size_t row = (size_t)self->step_count;
    self->ticks = ARENA_ARRAY(arena, Ticks, row * (size_t)cluster->type_count + 1);
    self->tensor_bytes = ARENA_ARRAY(arena, double, row + 1);
    bool *used = ARENA_ARRAY(arena, bool, cluster->type_count);
    if (arena->failed) return am_fail_memory(error, (int64_t)row);
    for (int32_t d = 0; d < stage->stage->mesh.device_count; d++)
        used[cluster_device_type(cluster, stage->stage->devices[d]) - cluster->types] = true;
    for (int32_t s = 0; s < self->step_count; s++) {
        const ExecutedStep *executed = &self->steps[s];
        const ProgramInstruction *collective = executed_collective(executed);
        if (collective) self->tensor_bytes[s] = collective_tensor_bytes(executed->program, collective);
        if (collective || executed_transfer(executed)) continue;
        OperatorWork work;
        executed_work(&work, executed);
        self->flops += self->turns[s] * executed->times * work.flops;
        for (int32_t t = 0; t < cluster->type_count; t++) {
            if (!used[t]) continue;
            double seconds = executed_work_seconds(executed, &work, &cluster->types[t]);
            self->ticks[(size_t)t * row + (size_t)s] = ticks_of_seconds(executed->times * seconds);
        }
    }
    return AM_OK;
}

/* The turns of joined spans in their order: of those that may go on the first one does (ProgramTurns). */
static AmStatus join_spans(PipelineSpan *spans, int32_t number, const ExecutedSpan *joined, Arena *arena,
                           AmError *error) {
    const int32_t members[] = {number, joined->second, joined->third};
    int64_t done[3] = {0, 0, 0}, all = 0, turns = spans[number].turns;
    bool has_third = joined->third >= 0;
    for (int k = 0; k < 3; k++) all += members[k] >= 0 ? turns : 0;
    int32_t *order = ARENA_ARRAY(arena, int32_t, all + 1);
    if (!order) return am_fail_memory(error, all);
    for (int64_t n = 0; n < all; n++) {
        const bool may_go[] = {done[0] - done[1] < joined->kept &&
                                   (!has_third || done[0] - done[2] < joined->kept_until_third),
                               !has_third || done[1] - done[2] < joined->kept_from_second, true};
        int k = 0;
        while (k < 2 && (done[k] == turns || !may_go[k])) k++;
        order[n] = members[k];
        done[k]++;
    }
    spans[number].order = order;
    spans[number].order_count = all;
    return AM_OK;
}

/* The same where the stage is in chunks: as the schedule has it. */
static AmStatus join_chunks(PipelineSpan *spans, int32_t number, const ExecutedSpan *joined, Arena *arena,
                            AmError *error) {
    const ProgramTurns *chunks = joined->chunks;
    ScheduleTurn *turns;
    int32_t count;
    TRY(schedule_turns(&turns, &count, arena, SCHEDULE_INTERLEAVED, chunks->stage_count, chunks->stage,
                       (int32_t)spans[number].turns, chunks->chunks, error));
    int32_t *order = ARENA_ARRAY(arena, int32_t, count);
    if (!order) return am_fail_memory(error, count);
    for (int32_t n = 0; n < count; n++)
        order[n] = joined->joined[(int32_t)turns[n].pass * chunks->chunks + turns[n].chunk];
    spans[number].order = order;
    spans[number].order_count = count;
    return AM_OK;
}

/* Cuts the executed steps at transfers and at the borders of spans. */
static AmStatus cut_pieces(StageCosts *self, Arena *arena, const ExecutedSpan *spans, int32_t span_count,
                           AmError *error) {
    const ProgramCosts *costs = &self->programs[0];
    int32_t count = costs->step_count;
    bool *is_border = ARENA_ARRAY(arena, bool, count + 1);
    int32_t *piece_of = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < span_count; k++) is_border[spans[k].first] = is_border[spans[k].end] = true;
    for (int32_t s = 0; s < count; s++)
        if (executed_transfer(&costs->steps[s])) is_border[s] = is_border[s + 1] = true;
    self->pieces = ARENA_ARRAY(arena, StagePiece, count + 1);
    self->spans = ARENA_ARRAY(arena, PipelineSpan, span_count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    int32_t collectives = 0;
    for (int32_t s = 0; s < count; s++) {
        if (s == 0 || is_border[s]) {
            const ProgramInstruction *transfer = executed_transfer(&costs->steps[s]);
            self->pieces[self->piece_count++] =
                (StagePiece){.first = s, .transfer = transfer ? transfer->transfer : NULL};
            collectives = 0;
        }
        collectives += executed_collective(&costs->steps[s]) != NULL;
        if (collectives > self->most_collectives) self->most_collectives = collectives;
        piece_of[s] = self->piece_count - 1;
        self->pieces[self->piece_count - 1].end = s + 1;
    }
    piece_of[count] = self->piece_count;
    self->span_count = span_count;
    for (int32_t k = 0; k < span_count; k++)
        self->spans[k] = (PipelineSpan){
            .first = piece_of[spans[k].first], .end = piece_of[spans[k].end], .turns = spans[k].turns};
    for (int32_t k = 0; k < span_count; k++)
        if (spans[k].chunks) TRY(join_chunks(self->spans, k, &spans[k], arena, error));
        else if (spans[k].second >= 0) TRY(join_spans(self->spans, k, &spans[k], arena, error));
    return AM_OK;
}

static AmStatus cost_program(StageCosts *self, Arena *arena, int32_t device, const Program *program,
                             const uint8_t *gradients, AmError *error) {
    ProgramCosts *costs = &self->programs[device];
    const ClusterDeviceType *type = cluster_device_type(self->cluster, self->stage->devices[0]);
    ExecutedSpan *spans;
    int32_t span_count;
    TRY(executed_stage(&costs->steps, &costs->step_count, &spans, &span_count, arena, program, type, error));
    costs->turns = count_turns(arena, spans, span_count, costs->step_count);
    if (!costs->turns) return am_fail_memory(error, costs->step_count);
    TRY(price_steps_of(costs, arena, self, error));
    if (device == 0) TRY(cut_pieces(self, arena, spans, span_count, error));
    return memory_use(&costs->memory, program, gradients, error);
}

/* How the groups lie of every set of axes that a collective spans. */
static AmStatus find_partitions(StageCosts *self, Arena *arena, AmError *error) {
    const ProgramCosts *costs = &self->programs[0];
    for (int32_t s = 0; s < costs->step_count; s++) {
        const ProgramInstruction *collective = executed_collective(&costs->steps[s]);
        uint32_t axes = collective ? collective->collective->axes : 0;
        if (!collective || self->partitions[axes].group_count > 0) continue;
        TRY(collective_partition(&self->partitions[axes], arena, self->cluster, &self->stage->mesh,
                                 self->stage->devices, axes, error));
        self->axes_used[self->axes_count++] = axes;
    }
    return AM_OK;
}

/* Whether a transfer has something of every device of the stage. */
static bool has_all_devices(const StageCosts *self, const ProgramTransfer *transfer) {
    int32_t count = 0, end = self->first_rank + self->stage->mesh.device_count;
    for (int32_t k = 0; k < transfer->rank_count; k++)
        count += transfer->ranks[k] >= self->first_rank && transfer->ranks[k] < end;
    return count == self->stage->mesh.device_count;
}

/* Equal programs and device types, groups that lie alike in the cluster, and transfers of all. */
static bool is_uniform(const StageCosts *self) {
    if (!self->is_equal) return false;
    for (int32_t p = 0; p < self->piece_count; p++)
        if (self->pieces[p].transfer && !has_all_devices(self, self->pieces[p].transfer)) return false;
    const int32_t *devices = self->stage->devices;
    for (int32_t d = 1; d < self->stage->mesh.device_count; d++)
        if (cluster_device_type(self->cluster, devices[d]) != cluster_device_type(self->cluster, devices[0]))
            return false;
    for (int32_t k = 0; k < self->axes_count; k++)
        if (self->partitions[self->axes_used[k]].distinct_count > 1) return false;
    return true;
}

/* The most that a member of a group moves. */
static double group_bytes(const StageCosts *self, const CollectivePartition *partition, int32_t step,
                          int32_t group) {
    const int32_t *members = &partition->members[group * partition->group_size];
    double bytes = 0;
    for (int32_t k = 0; k < (self->is_equal ? 1 : partition->group_size); k++) {
        double wanted = stage_costs_of(self, members[k])->tensor_bytes[step];
        if (wanted > bytes) bytes = wanted;
    }
    return bytes;
}

static AmStatus price_collectives(StageCosts *self, Arena *arena, AmError *error) {
    const ProgramCosts *costs = &self->programs[0];
    self->collectives = ARENA_ARRAY(arena, Ticks *, costs->step_count + 1);
    if (!self->collectives) return am_fail_memory(error, costs->step_count);
    for (int32_t s = 0; s < costs->step_count; s++) {
        const ProgramInstruction *instruction = executed_collective(&costs->steps[s]);
        if (!instruction) continue;
        const CollectivePartition *partition = &self->partitions[instruction->collective->axes];
        int32_t groups = self->is_uniform ? 1 : partition->group_count;
        Ticks *ticks = self->collectives[s] = ARENA_ARRAY(arena, Ticks, groups);
        if (!ticks) return am_fail_memory(error, groups);
        for (int32_t g = 0; g < groups; g++)
            ticks[g] = ticks_of_seconds(costs->steps[s].times *
                                        collective_seconds(instruction->collective->kind,
                                                           group_bytes(self, partition, s, g),
                                                           &partition->topologies[g], self->cluster));
    }
    return AM_OK;
}

AmStatus stage_costs_lower(StageCosts *self, Arena *arena, const PlanRanks *ranks, int32_t stage,
                           const Cluster *cluster, AmError *error) {
    const PlanStage *of_plan = &ranks->plan->stages[stage];
    *self = (StageCosts){.stage = of_plan,
                         .cluster = cluster,
                         .first_rank = ranks->first_rank[stage],
                         .is_equal = mesh_has_equal_shares(&of_plan->mesh)};
    int32_t programs = self->is_equal ? 1 : of_plan->mesh.device_count;
    self->lowered = ARENA_ARRAY(arena, Program *, programs);
    if (arena->failed) return am_fail_memory(error, programs);
    for (int32_t device = 0; device < programs; device++)
        TRY(plan_ranks_lower(&self->lowered[device], arena, ranks, self->first_rank + device, error));
    return AM_OK;
}

AmStatus stage_costs_price(StageCosts *self, Arena *arena, const uint8_t *gradients, AmError *error) {
    int32_t programs = self->is_equal ? 1 : self->stage->mesh.device_count;
    self->programs = ARENA_ARRAY(arena, ProgramCosts, programs);
    if (arena->failed) return am_fail_memory(error, programs);
    for (int32_t device = 0; device < programs; device++) {
        TRY(cost_program(self, arena, device, self->lowered[device], gradients, error));
        if (self->programs[device].step_count != self->programs[0].step_count)
            return am_fail(error, AM_ERROR_INTERNAL, "", "devices 0 and %d have different programs", device);
    }
    TRY(find_partitions(self, arena, error));
    self->is_uniform = is_uniform(self);
    return price_collectives(self, arena, error);
}

void stage_costs_add_collectives(const StageCosts *self, CollectivePrice *by_kind) {
    const ProgramCosts *costs = &self->programs[0];
    for (int32_t s = 0; s < costs->step_count; s++) {
        const ProgramInstruction *instruction = executed_collective(&costs->steps[s]);
        if (!instruction) continue;
        const ProgramCollective *collective = instruction->collective;
        const CollectivePartition *partition = &self->partitions[collective->axes];
        CollectivePrice *price = &by_kind[collective->kind];
        double times = costs->turns[s] * costs->steps[s].times;
        Ticks slowest = 0;
        for (int32_t g = 0; g < (self->is_uniform ? 1 : partition->group_count); g++)
            if (self->collectives[s][g] > slowest) slowest = self->collectives[s][g];
        price->count += (int64_t)rint(times);
        price->tensor_bytes += times * costs->tensor_bytes[s];
        price->sent_bytes +=
            times * collective_sent_bytes(collective->kind, costs->tensor_bytes[s], partition->group_size);
        price->seconds += costs->turns[s] * seconds_of_ticks(slowest);
    }
}
