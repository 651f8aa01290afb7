/* A stage's clocks. A step that computes adds its seconds on the device's type; a
 * collective starts when the last device of its group arrives and ends for all of
 * them together. What a loop runs is taken step by step, each with all its times
 * at once, but for loops that meet other stages inside: those run turn by turn,
 * so that it shows who waits for whom.
 *
 * With equal shares all devices run the program of the stage's first device, so
 * it is lowered once; unequal shares are lowered for each device.
 */
#include "cost/stage_clock.h"

static AmStatus cost_program(StageClock *self, LoweredCosts *costs, const Program *program, AmError *error) {
    const Cluster *cluster = self->cluster;
    ExecutedStep *steps;
    const ClusterDeviceType *type = cluster_device_type(cluster, self->stage->devices[0]);
    TRY(executed_stage(&costs->steps, &costs->step_count, &costs->spans, &costs->span_count, self->arena,
                       program, type, error));
    steps = costs->steps;
    int32_t count = costs->step_count;
    size_t row = (size_t)count + 1;
    double *turns = ARENA_ARRAY(self->arena, double, row);
    costs->seconds = ARENA_ARRAY(self->arena, double, row *(size_t)cluster->type_count);
    costs->tensor_bytes = ARENA_ARRAY(self->arena, double, row);
    costs->exchanges = ARENA_ARRAY(self->arena, ExchangePrice, row);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)row);
    for (int32_t s = 0; s < count; s++) turns[s] = 1;
    for (int32_t k = 0; k < costs->span_count; k++)
        for (int32_t s = costs->spans[k].first; s < costs->spans[k].end; s++)
            turns[s] *= (double)costs->spans[k].turns;
    for (int32_t s = 0; s < count; s++) {
        const ProgramInstruction *collective = executed_collective(&steps[s]);
        if (collective) {
            costs->tensor_bytes[s] = collective_tensor_bytes(steps[s].program, collective);
            continue;
        }
        for (int32_t t = 0; t < cluster->type_count; t++)
            costs->seconds[(size_t)t * row + (size_t)s] =
                steps[s].times * executed_seconds(&steps[s], &cluster->types[t]);
        if (steps[s].step == steps[s].program->step_count) continue;
        OperatorWork work;
        operator_work(&work, steps[s].program, &steps[s].program->steps[steps[s].step]);
        costs->flops += turns[s] * steps[s].times * work.flops;
    }
    for (int32_t t = 0; t < cluster->type_count; t++)
        costs->seconds[(size_t)t * row + row - 1] = price_updates(program, &cluster->types[t]);
    return memory_use(&costs->memory, program, error);
}

static bool has_equal_shares(const Mesh *mesh) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].shares) return false;
    return true;
}

AmStatus stage_clock_open(StageClock *self, Arena *arena, const PlanRanks *ranks, int32_t stage,
                          const Cluster *cluster, Simulation *simulation, AmError *error) {
    const PlanStage *of_plan = &ranks->plan->stages[stage];
    int32_t first_rank = ranks->first_rank[stage], devices = of_plan->mesh.device_count;
    *self = (StageClock){.arena = arena,
                         .cluster = cluster,
                         .stage = of_plan,
                         .first_rank = first_rank,
                         .is_equal = has_equal_shares(&of_plan->mesh),
                         .clock = ARENA_ARRAY(arena, double, devices),
                         .devices = simulation->devices + first_rank,
                         .collectives = simulation->collectives};
    int32_t programs = self->is_equal ? 1 : devices;
    self->costs = ARENA_ARRAY(arena, LoweredCosts, programs);
    if (arena->failed) return am_fail_memory(error, devices);
    for (int32_t device = 0; device < programs; device++) {
        Program *program;
        TRY(plan_ranks_lower(&program, arena, ranks, first_rank + device, error));
        TRY(cost_program(self, &self->costs[device], program, error));
        if (device == 0) price_warn_types(&simulation->warnings, program, cluster);
        if (self->costs[device].step_count != self->costs[0].step_count)
            return am_fail(error, AM_ERROR_INTERNAL, "", "devices 0 and %d have different programs", device);
    }
    self->turns = ARENA_ARRAY(arena, SpanTurn, self->costs[0].span_count + 1);
    return arena->failed ? am_fail_memory(error, self->costs[0].span_count) : AM_OK;
}

void stage_clock_tell(const StageClock *self, int32_t rank, double start, double end) {
    const LoweredCosts *costs = stage_clock_costs(self, rank - self->first_rank);
    const SimulatedSlice slice = {.rank = rank,
                                  .executed = self->at < costs->step_count ? &costs->steps[self->at] : NULL,
                                  .start = start,
                                  .end = end};
    if (self->observer && slice.end > slice.start) self->observer->on_slice(self->observer->user, &slice);
}

static void compute(StageClock *self, int32_t step) {
    size_t row = (size_t)self->costs[0].step_count + 1;
    for (int32_t d = 0; d < self->stage->mesh.device_count; d++) {
        const ClusterDeviceType *type = cluster_device_type(self->cluster, self->stage->devices[d]);
        size_t t = (size_t)(type - self->cluster->types);
        double seconds = stage_clock_costs(self, d)->seconds[t * row + (size_t)step];
        double start = self->clock[d];
        self->clock[d] += seconds;
        self->devices[d].compute_seconds += seconds;
        stage_clock_tell(self, self->first_rank + d, start, self->clock[d]);
    }
}

/* All groups of the partition meet and move their tensors. */
static void communicate(StageClock *self, int32_t step, const CollectivePartition *partition) {
    const ExecutedStep *executed = &self->costs[0].steps[step];
    ProgramCollectiveKind kind = executed_collective(executed)->collective->kind;
    CollectivePrice *total = &self->collectives[kind];
    double slowest = 0, first_bytes = stage_clock_costs(self, 0)->tensor_bytes[step];
    for (int32_t g = 0; g < partition->group_count; g++) {
        const int32_t *members = &partition->members[g * partition->group_size];
        double start = 0, bytes = 0;
        for (int32_t k = 0; k < partition->group_size; k++) {
            double wanted = stage_clock_costs(self, members[k])->tensor_bytes[step];
            if (self->clock[members[k]] > start) start = self->clock[members[k]];
            if (wanted > bytes) bytes = wanted;
        }
        double seconds =
            executed->times * collective_seconds(kind, bytes, &partition->topologies[g], self->cluster);
        if (seconds > slowest) slowest = seconds;
        for (int32_t k = 0; k < partition->group_size; k++) {
            SimulatedDevice *device = &self->devices[members[k]];
            device->idle_seconds += start - self->clock[members[k]];
            device->communication_seconds += seconds;
            self->clock[members[k]] = start + seconds;
            stage_clock_tell(self, self->first_rank + members[k], start, start + seconds);
        }
    }
    total->count += (int64_t)executed->times;
    total->tensor_bytes += executed->times * first_bytes;
    total->sent_bytes += executed->times * collective_sent_bytes(kind, first_bytes, partition->group_size);
    total->seconds += slowest;
}

/* Begins the spans whose first step is next. */
static void begin_spans(StageClock *self) {
    const LoweredCosts *costs = &self->costs[0];
    for (; self->next_span < costs->span_count && costs->spans[self->next_span].first == self->at;
         self->next_span++)
        self->turns[self->turn_count++] = (SpanTurn){.span = self->next_span};
}

/* The span whose turn comes next: the first of joined ones as long as it may be ahead, then the second; -1:
 * all are done. */
static int32_t next_turn(const LoweredCosts *costs, SpanTurn *turn) {
    const ExecutedSpan *span = &costs->spans[turn->span];
    const int32_t spans[] = {turn->span, span->second, span->third};
    const int64_t *done = turn->done;
    bool has_third = span->third >= 0;
    const bool may_lead[] = {
        (span->second < 0 || done[0] - done[1] < span->kept) &&
            (!has_third || done[0] - done[2] < span->kept_until_third),
        !has_third || done[1] - done[2] < span->kept_from_second,
        true,
    };
    for (turn->runs = 0; turn->runs < 3; turn->runs++)
        if (spans[turn->runs] >= 0 && done[turn->runs] < span->turns && may_lead[turn->runs])
            return spans[turn->runs];
    return -1;
}

void stage_clock_pass(StageClock *self) {
    const LoweredCosts *costs = &self->costs[0];
    self->at++;
    while (self->turn_count > 0) {
        SpanTurn *turn = &self->turns[self->turn_count - 1];
        const ExecutedSpan *span = &costs->spans[turn->span];
        const int32_t spans[] = {turn->span, span->second, span->third};
        if (costs->spans[spans[turn->runs]].end != self->at) return;
        turn->done[turn->runs]++;
        int32_t next = next_turn(costs, turn);
        if (next >= 0) {
            self->at = costs->spans[next].first;
            self->next_span = next + 1;
            return;
        }
        self->turn_count--;
        int32_t last = span->third >= 0 ? span->third : span->second >= 0 ? span->second : turn->span;
        self->at = costs->spans[last].end;
        while (self->next_span < costs->span_count && costs->spans[self->next_span].first < self->at)
            self->next_span++;
    }
}

AmStatus stage_clock_advance(StageClock *self, const ProgramTransfer **transfer, AmError *error) {
    const LoweredCosts *costs = &self->costs[0];
    *transfer = NULL;
    for (; self->at < costs->step_count; stage_clock_pass(self)) {
        const ExecutedStep *step = &costs->steps[self->at];
        begin_spans(self);
        const ProgramInstruction *collective = executed_collective(step), *meeting = executed_transfer(step);
        if (meeting) {
            if (step->times <= 0) continue;
            *transfer = meeting->transfer;
            return AM_OK;
        }
        if (!collective) {
            compute(self, self->at);
            continue;
        }
        CollectivePartition *partition = &self->partitions[collective->collective->axes];
        if (partition->group_count == 0)
            TRY(collective_partition(partition, self->arena, self->cluster, &self->stage->mesh,
                                     self->stage->devices, collective->collective->axes, error));
        communicate(self, self->at, partition);
    }
    if (self->at == costs->step_count) compute(self, costs->step_count);
    self->at++;
    return AM_OK;
}
