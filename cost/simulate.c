/* Simulation: every device has a clock; steps advance it.
 *
 * Each stage runs its steps (stage_clock.c) up to where it meets another one. A
 * transfer starts when the last rank that takes part arrives, and ends for all
 * of them together, as in the executor; so the filling and draining of a
 * pipeline, and who waits in between, come out by themselves. What a device
 * waited is idle time, and so is what is left at the end of the step, which is
 * over when the last device is done. A transfer with slots (1F1B) does not hold up who gives. On equal
 * devices of one stage nobody waits and the step is the sum that price_program() gives.
 */
#include "cost/simulate.h"

#include "cost/exchange.h"
#include "cost/stage_clock.h"
#include "cost/stream_clock.h"
#include "cost/useful.h"
#include "propagation/transfer.h"

typedef struct Simulator {
    Arena *arena;
    const PlanRanks *ranks;
    const Plan *plan;
    const Cluster *cluster;
    Simulation *simulation;
    StageClock *stages;                 /* [stage_count] */
    const ProgramTransfer **waiting;    /* [stage_count]: what the stage has come to; NULL: its end */
    int32_t *device_of;                 /* [rank]: device of the cluster */
    const SimulationObserver *observer; /* or NULL */
    StreamClocks streams;               /* of transfers with slots */
} Simulator;

static AmStatus open_stages(Simulator *self, AmError *error) {
    int32_t stages = self->plan->stage_count;
    self->stages = ARENA_ARRAY(self->arena, StageClock, stages);
    self->waiting = ARENA_ARRAY(self->arena, const ProgramTransfer *, stages);
    self->device_of = ARENA_ARRAY(self->arena, int32_t, self->simulation->device_count);
    if (self->arena->failed) return am_fail_memory(error, stages);
    for (int32_t s = 0, rank = 0; s < stages; s++) {
        TRY(stage_clock_open(&self->stages[s], self->arena, self->ranks, s, self->cluster, self->simulation,
                             error));
        self->stages[s].observer = self->observer;
        for (int32_t d = 0; d < self->plan->stages[s].mesh.device_count; d++)
            self->device_of[rank++] = self->plan->stages[s].devices[d];
    }
    return AM_OK;
}

static double *clock_of(Simulator *self, int32_t rank) {
    int32_t stage = plan_ranks_stage(self->ranks, rank);
    return &self->stages[stage].clock[rank - self->ranks->first_rank[stage]];
}

/* Seconds of a transfer that a stage has come to, and what it moves, once. */
static AmStatus price_waiting(Simulator *self, int32_t stage, ExchangePrice **price, AmError *error) {
    const StageClock *clocks = &self->stages[stage];
    *price = &clocks->costs[0].exchanges[clocks->at];
    if ((*price)->bytes > 0) return AM_OK;
    return exchange_price(*price, self->arena, self->cluster, self->waiting[stage], self->device_of, error);
}

/* The ranks that take part meet; the transfer takes all of them the same time. */
static AmStatus exchange(Simulator *self, int32_t stage, AmError *error) {
    const ProgramTransfer *transfer = self->waiting[stage];
    const StageClock *clocks = &self->stages[stage];
    ExchangePrice *price;
    double start = 0, times = clocks->costs[0].steps[clocks->at].times;
    TRY(price_waiting(self, stage, &price, error));
    double seconds = times * price->seconds;
    for (int32_t k = 0; k < transfer->rank_count; k++)
        if (*clock_of(self, transfer->ranks[k]) > start) start = *clock_of(self, transfer->ranks[k]);
    for (int32_t k = 0; k < transfer->rank_count; k++) {
        double *clock = clock_of(self, transfer->ranks[k]);
        SimulatedDevice *device = &self->simulation->devices[transfer->ranks[k]];
        device->idle_seconds += start - *clock;
        device->communication_seconds += seconds;
        *clock = start + seconds;
        stage_clock_tell(&self->stages[plan_ranks_stage(self->ranks, transfer->ranks[k])], transfer->ranks[k],
                         start, *clock);
    }
    self->simulation->transfers.count += (int64_t)times;
    self->simulation->transfers.bytes += times * price->bytes;
    self->simulation->transfers.seconds += seconds;
    return AM_OK;
}

/* The stage that waits for this one with the same transfer, or -1. */
static int32_t find_partner(const Simulator *self, int32_t stage) {
    const ProgramTransfer *own = self->waiting[stage];
    for (int32_t s = 0; own && own->slots == 0 && s < self->plan->stage_count; s++) {
        const ProgramTransfer *other = self->waiting[s];
        if (s == stage || !other || other->shape != own->shape) continue;
        if (other->route->source.first_rank == own->route->source.first_rank &&
            other->route->target.first_rank == own->route->target.first_rank)
            return s;
    }
    return -1;
}

/* The value is on the link for so long, up to `arrival`: for the ranks of this stage that have a piece of it.
 */
static void tell_stream(const StageClock *clocks, const ProgramTransfer *transfer, double arrival,
                        double seconds) {
    int32_t first = clocks->first_rank, end = first + clocks->stage->mesh.device_count;
    for (int32_t k = 0; k < transfer->rank_count; k++)
        if (transfer->ranks[k] >= first && transfer->ranks[k] < end)
            stage_clock_tell(clocks, transfer->ranks[k], arrival - seconds, arrival);
}

/* A transfer with slots: the giver goes on while one is free, and the taker waits for what has been sent.
 * What is under way delays nobody but the taker. `*moved`: the stage has passed it. */
static AmStatus pass_stream(Simulator *self, int32_t stage, bool *moved, AmError *error) {
    const ProgramTransfer *transfer = self->waiting[stage];
    const StageClock *clocks = &self->stages[stage];
    int32_t devices = self->plan->stages[stage].mesh.device_count;
    StreamClock *stream;
    TRY(stream_clock_find(&stream, &self->streams, self->arena, transfer, error));
    bool gives = transfer->route->source.first_rank == clocks->first_rank;
    *moved = gives ? stream_clock_may_send(stream) : stream_clock_may_take(stream);
    if (!*moved) return AM_OK;
    ExchangePrice *price;
    TRY(price_waiting(self, stage, &price, error));
    double times = clocks->costs[0].steps[clocks->at].times, ready = 0;
    double until = gives ? stream_clock_slot(stream) : stream_clock_arrival(stream);
    for (int32_t d = 0; d < devices; d++) {
        SimulatedDevice *device = &self->simulation->devices[clocks->first_rank + d];
        if (clocks->clock[d] < until) {
            device->idle_seconds += until - clocks->clock[d];
            clocks->clock[d] = until;
        }
        if (clocks->clock[d] > ready) ready = clocks->clock[d];
    }
    if (!gives) {
        tell_stream(clocks, transfer, until, times * price->seconds);
        stream_clock_take(stream, ready);
        return AM_OK;
    }
    stream_clock_send(stream, ready, times * price->seconds);
    tell_stream(clocks, transfer, stream->link_free, times * price->seconds);
    self->simulation->transfers.count += (int64_t)times;
    self->simulation->transfers.bytes += times * price->bytes;
    self->simulation->transfers.seconds += times * price->seconds;
    return AM_OK;
}

static AmStatus go_on(Simulator *self, int32_t stage, AmError *error) {
    stage_clock_pass(&self->stages[stage]);
    return stage_clock_advance(&self->stages[stage], &self->waiting[stage], error);
}

/* Every stage runs up to a transfer; of two that have come to the same one both go on. */
static AmStatus run(Simulator *self, AmError *error) {
    int32_t stages = self->plan->stage_count, waiting = 0;
    for (int32_t s = 0; s < stages; s++) TRY(stage_clock_advance(&self->stages[s], &self->waiting[s], error));
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < stages; s++) {
            bool passes = self->waiting[s] && self->waiting[s]->slots > 0;
            if (passes) TRY(pass_stream(self, s, &passes, error));
            int32_t partner = passes ? -1 : find_partner(self, s);
            if (partner >= 0) TRY(exchange(self, s, error));
            if (passes || partner >= 0) TRY(go_on(self, s, error));
            if (partner >= 0) TRY(go_on(self, partner, error));
            moved |= passes || partner >= 0;
        }
    }
    for (int32_t s = 0; s < stages; s++) waiting += self->waiting[s] != NULL;
    if (waiting > 0)
        return am_fail(error, AM_ERROR_INTERNAL, "", "the stages' transfers do not meet in one order");
    return AM_OK;
}

/* The step is over when the last device is done. */
static void finish(Simulator *self) {
    Simulation *simulation = self->simulation;
    for (int32_t r = 0; r < simulation->device_count; r++)
        if (*clock_of(self, r) > simulation->step_seconds) simulation->step_seconds = *clock_of(self, r);
    for (int32_t r = 0; r < simulation->device_count; r++)
        simulation->devices[r].idle_seconds += simulation->step_seconds - *clock_of(self, r);
}

static AmStatus check_devices(const Plan *plan, const Cluster *cluster, AmError *error) {
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++)
            if (plan->stages[s].devices[d] < 0 || plan->stages[s].devices[d] >= cluster->device_count)
                return am_fail(error, AM_ERROR_INPUT, "",
                               "the plan uses device %d; cluster %s has %d devices",
                               plan->stages[s].devices[d], cluster->name, cluster->device_count);
    return AM_OK;
}

static void describe_devices(Simulator *self) {
    Simulation *simulation = self->simulation;
    double fullest = -1;
    for (int32_t d = 0; d < simulation->device_count; d++) {
        SimulatedDevice *device = &simulation->devices[d];
        int32_t stage = plan_ranks_stage(self->ranks, d);
        const LoweredCosts *costs =
            stage_clock_costs(&self->stages[stage], d - self->ranks->first_rank[stage]);
        device->device = self->device_of[d];
        device->name = cluster_device_name(self->cluster, self->arena, device->device);
        device->memory = costs->memory;
        device->memory_bytes = cluster_device_type(self->cluster, device->device)->memory_bytes;
        simulation->executed_flops += costs->flops;
        double fullness = (double)device->memory.peak_bytes / (double)device->memory_bytes;
        if (fullness <= fullest) continue;
        fullest = fullness;
        simulation->fit = memory_fit(device->memory.peak_bytes, self->cluster, &device->device, 1,
                                     simulation->memory_fraction);
    }
}

static AmStatus simulate(Simulation **simulation, Arena *arena, const PlanRanks *ranks,
                         const Cluster *cluster, double memory_fraction, const SimulationObserver *observer,
                         AmError *error) {
    Simulation *result = ARENA_ARRAY(arena, Simulation, 1);
    SimulatedDevice *devices = ARENA_ARRAY(arena, SimulatedDevice, ranks->rank_count);
    Simulator self = {.arena = arena,
                      .ranks = ranks,
                      .plan = ranks->plan,
                      .cluster = cluster,
                      .simulation = result,
                      .observer = observer};
    if (arena->failed) return am_fail_memory(error, ranks->rank_count);
    *result = (Simulation){.module_name = ranks->plan->module_name,
                           .cluster_name = cluster->name,
                           .device_count = ranks->rank_count,
                           .devices = devices,
                           .memory_fraction = memory_fraction,
                           .warnings = {.arena = arena}};
    TRY(open_stages(&self, error));
    TRY(run(&self, error));
    finish(&self);
    UsefulWork work;
    TRY(useful_work(&work, ranks->context->rules, error));
    result->flops = work.flops;
    describe_devices(&self);
    *simulation = result;
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

AmStatus simulate_ranks(Simulation **simulation, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                        double memory_fraction, AmError *error) {
    return simulate(simulation, arena, ranks, cluster, memory_fraction, NULL, error);
}

AmStatus simulate_plan(Simulation **simulation, Arena *arena, const PlanContext *context, const Plan *plan,
                       const Cluster *cluster, double memory_fraction, AmError *error) {
    return simulate_plan_observed(simulation, arena, context, plan, cluster, memory_fraction, NULL, error);
}

AmStatus simulate_plan_observed(Simulation **simulation, Arena *arena, const PlanContext *context,
                                const Plan *plan, const Cluster *cluster, double memory_fraction,
                                const SimulationObserver *observer, AmError *error) {
    PlanRanks ranks;
    context = plan_context_used(plan, context);
    TRY(check_devices(plan, cluster, error));
    TRY(plan_ranks(&ranks, arena, context, plan, error));
    return simulate(simulation, arena, &ranks, cluster, memory_fraction, observer, error);
}

AmStatus simulation_predict(Plan *plan, Arena *arena, const Simulation *simulation, AmError *error) {
    plan->predicted = ARENA_ARRAY(arena, PlanDevicePrediction, simulation->device_count);
    if (!plan->predicted) return am_fail_memory(error, simulation->device_count);
    plan->predicted_step_seconds = simulation->step_seconds;
    plan->device_count = simulation->device_count;
    for (int32_t d = 0; d < simulation->device_count; d++) {
        const SimulatedDevice *device = &simulation->devices[d];
        plan->predicted[d] = (PlanDevicePrediction){.peak_bytes = device->memory.peak_bytes,
                                                    .weights_bytes = device->memory.weights_bytes,
                                                    .gradients_bytes = device->memory.gradients_bytes,
                                                    .optimizer_bytes = device->memory.optimizer_bytes,
                                                    .activation_bytes = device->memory.activation_bytes,
                                                    .compute_seconds = device->compute_seconds,
                                                    .communication_seconds = device->communication_seconds,
                                                    .idle_seconds = device->idle_seconds};
    }
    return AM_OK;
}
