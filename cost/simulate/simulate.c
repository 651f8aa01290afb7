/* Simulation of one step: every device has streams, and stages rendezvous in transfers.
 *
 * The simulation walks the lowered programs only: a stage's steps are priced and cut into pieces
 * (stage_costs.c), its devices execute the pieces (stage_clock.c), and pipeline_clock.c makes the
 * stages wait for one another. Fill and drain of a pipeline and waiting times result from that. The
 * step ends with the last device; a device is idle when it neither computes nor communicates. Under zb_2p
 * the next step begins on a stage when this one has ended there. So a step lasts as long as the stage that
 * needs most time from its first input to its end.
 */
#include "cost/simulate/simulate.h"

#include <math.h>

#include "base/system/parallel.h"
#include "cost/memory/rank_memory.h"
#include "cost/operator/model_flops.h"
#include "cost/simulate/collective_report.h"
#include "cost/simulate/critical_path.h"
#include "cost/simulate/micro_batch_slices.h"
#include "cost/simulate/stage_clock.h"
#include "cost/simulate/transfer_report.h"
#include "lowering/spmd/transfer.h"

/* Events of a record: 48 MB. */
enum { MOST_EVENTS = 2000000 };

/* A value that one stage sends another, in every iteration. */
typedef struct TransferChannel {
    const IrShape *shape; /* identifies the value, together with the two stages */
    const ProgramTransfer *transfer;
    const ExecutedStep *sending, *receiving; /* the first step of each stage that executes it */
    TransferPrice price;
    int32_t previous; /* of the same sender, or -1 */
} TransferChannel;

struct PlanCosts {
    Arena *arena;
    const PlanRanks *ranks;
    const Cluster *cluster;
    StageCosts *stages;   /* [stage_count] */
    int32_t *device_of;   /* [rank]: device of the cluster */
    PipelineStage *lines; /* [stage_count] */
    PipelineChannel *channels;
    TransferChannel *transfers; /* [channel] */
    int32_t channel_count, channel_capacity, transfer_capacity;
    int32_t *newest;        /* [stage]: the last channel into which it sends, or -1 */
    int64_t *channel_bytes; /* [rank]: bytes of the slots of its incoming channels */
    double flops;           /* of the module */
    AmWarnings warnings;
};

AmStatus plan_check_devices(const Plan *plan, const Cluster *cluster, AmError *error) {
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++)
            if (plan->stages[s].devices[d] < 0 || plan->stages[s].devices[d] >= cluster->device_count)
                return am_fail(error, AM_ERROR_INPUT, plan->source ? plan->source : "",
                               "$.stages[%d].devices: %d is not a device of cluster %s (expected 0 to %d)", s,
                               plan->stages[s].devices[d], cluster->name, cluster->device_count - 1);
    return AM_OK;
}

AmStatus plan_check_own_devices(const Plan *plan, AmError *error) {
    Arena arena = {0};
    Cluster *cluster = NULL;
    AmStatus status = cluster_from_json(&cluster, &arena, plan->cluster_description,
                                        plan->source ? plan->source : "the plan", error);
    if (status == AM_OK) status = plan_check_devices(plan, cluster, error);
    cluster_free(cluster);
    arena_free(&arena);
    return status;
}

/* Lowers and prices stages until one is busy for more than `most` seconds, those that are not in
 * `options->known` first. `*busy`: the longest time of a stage that was priced. */
static AmStatus lower_within(PlanCosts *self, const uint8_t *gradients, const SimulationOptions *options,
                             double *busy, AmError *error) {
    const PlanRanks *ranks = self->ranks;
    const double most = options->most_seconds > 0 ? options->most_seconds : INFINITY;
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t s = 0; s < ranks->stage_count && *busy <= most; s++) {
            StageCosts *stage = &self->stages[s];
            bool is_changed = !options->known || options->known->stage_count != ranks->stage_count ||
                              options->known->assignments[s] != ranks->assignments[s];
            if (is_changed != (pass == 0)) continue;
            if (ranks->stop && stop_wanted(ranks->stop))
                return am_fail(error, AM_INTERRUPTED, "", "interrupted while a plan was priced");
            TRY(stage_costs_lower(stage, self->arena, ranks, s, self->cluster, gradients, options, error));
            *busy = fmax(*busy, stage->busy);
            if (isinf(most) || *busy > most) continue;
            TRY(stage_costs_price(stage, self->arena, error));
            *busy = fmax(*busy, stage_costs_busy(stage, 0));
        }
    return AM_OK;
}

/* The lowering of one stage beside the others. */
typedef struct StageTask {
    Arena arena;
    AmStatus status;
    AmError error;
} StageTask;

typedef struct StageTasks {
    PlanCosts *costs;
    const uint8_t *gradients;
    const SimulationOptions *options;
    StageTask *of; /* [stage] */
} StageTasks;

static void lower_task(void *user, int32_t s) {
    const StageTasks *tasks = user;
    PlanCosts *self = tasks->costs;
    StageTask *task = &tasks->of[s];
    if (self->ranks->stop && stop_wanted(self->ranks->stop))
        task->status = am_fail(&task->error, AM_INTERRUPTED, "", "interrupted while a plan was priced");
    else
        task->status = stage_costs_lower(&self->stages[s], &task->arena, self->ranks, s, self->cluster,
                                         tasks->gradients, tasks->options, &task->error);
}

/* Lowers all stages side by side. */
static AmStatus lower_all(PlanCosts *self, const uint8_t *gradients, const SimulationOptions *options,
                          AmError *error) {
    const int32_t count = self->ranks->stage_count;
    StageTasks tasks = {self, gradients, options, ARENA_ARRAY(self->arena, StageTask, count)};
    if (!tasks.of) return am_fail_memory(error, count);
    AmStatus status = AM_OK;
    parallel_for(count, 0, lower_task, &tasks);
    for (int32_t s = 0; s < count; s++) {
        arena_join(self->arena, &tasks.of[s].arena);
        if (status == AM_OK) status = am_pass_error(tasks.of[s].status, &tasks.of[s].error, error);
    }
    return status;
}

/* Does the work of plan_costs_lower() until a stage is busy for more than `options->most_seconds`. */
static AmStatus plan_costs_lower_within(PlanCosts **result, Arena *arena, const PlanRanks *ranks,
                                        const Cluster *cluster, const SimulationOptions *options,
                                        double *busy, AmError *error) {
    const Plan *plan = ranks->plan;
    PlanCosts *self = *result = ARENA_ARRAY(arena, PlanCosts, 1);
    if (!self) return am_fail_memory(error, 0);
    *self = (PlanCosts){.arena = arena,
                        .ranks = ranks,
                        .cluster = cluster,
                        .stages = ARENA_ARRAY(arena, StageCosts, plan->stage_count),
                        .device_of = ARENA_ARRAY(arena, int32_t, ranks->rank_count),
                        .lines = ARENA_ARRAY(arena, PipelineStage, plan->stage_count),
                        .channel_bytes = ARENA_ARRAY(arena, int64_t, ranks->rank_count),
                        .newest = ARENA_ARRAY(arena, int32_t, plan->stage_count),
                        .warnings = {.arena = arena}};
    if (arena->failed) return am_fail_memory(error, ranks->rank_count);
    TRY(plan_check_devices(plan, cluster, error));
    const PlanContext *context = ranks->context;
    const uint8_t *gradients = memory_find_gradients(arena, context->canonical, context->roles);
    if (!gradients) return am_fail_memory(error, context->canonical->instruction_count);
    *busy = 0;
    if (options->in_parallel && !(options->most_seconds > 0)) TRY(lower_all(self, gradients, options, error));
    else TRY(lower_within(self, gradients, options, busy, error));
    if (options->most_seconds > 0 && *busy > options->most_seconds) return AM_OK;
    for (int32_t s = 0, rank = 0; s < plan->stage_count; s++) {
        price_warn_types(&self->warnings, self->stages[s].lowered[0], cluster);
        self->newest[s] = -1;
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++)
            self->device_of[rank++] = plan->stages[s].devices[d];
    }
    ModelFlops work;
    TRY(model_flops(&work, ranks->context->rules, error));
    self->flops = work.flops;
    return AM_OK;
}

AmStatus plan_costs_lower(PlanCosts **costs, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                          AmError *error) {
    const SimulationOptions options = {.with_details = true}; /* the programs are kept */
    double busy;
    return plan_costs_lower_within(costs, arena, ranks, cluster, &options, &busy, error);
}

/* Counts the slots of a receiver for each sender, with the executor's alignment
 * (executor/comm/channel.h). */
static AmStatus count_slots(PlanCosts *self, const ProgramTransfer *transfer, AmError *error) {
    enum { SLOT_ALIGNMENT = 64 };
    ArenaMark mark = arena_mark(self->arena);
    double width = (double)dtype_bytes(transfer->shape->type);
    TransferPair *pairs;
    int32_t count;
    if (transfer->slots == 0) return AM_OK;
    TRY(transfer_pairs(&pairs, &count, self->arena, transfer->shape, transfer->route, error));
    for (int32_t k = 0; k < count; k++)
        self->channel_bytes[pairs[k].receiver] +=
            transfer->slots * SLOT_ALIGNMENT * (int64_t)ceil(pairs[k].elements * width / SLOT_ALIGNMENT);
    arena_release(self->arena, mark);
    return AM_OK;
}

/* Finds the channel of a transfer, made at its first use. */
static AmStatus find_channel(PlanCosts *self, const ProgramTransfer *transfer, int32_t *channel,
                             AmError *error) {
    int32_t sender = plan_ranks_stage(self->ranks, transfer->route->source.first_rank);
    int32_t receiver = plan_ranks_stage(self->ranks, transfer->route->target.first_rank);
    for (*channel = self->newest[sender]; *channel >= 0; *channel = self->transfers[*channel].previous)
        if (self->transfers[*channel].transfer->number == transfer->number &&
            self->transfers[*channel].shape == transfer->shape &&
            self->channels[*channel].receiver == receiver)
            return AM_OK;
    *channel = self->channel_count;
    ARENA_RESERVE(self->arena, self->channels, self->channel_count, self->channel_capacity);
    ARENA_RESERVE(self->arena, self->transfers, self->channel_count, self->transfer_capacity);
    if (self->arena->failed) return am_fail_memory(error, self->channel_count);
    self->channel_count++;
    self->channels[*channel] =
        (PipelineChannel){.sender = sender, .receiver = receiver, .slots = transfer->slots};
    self->transfers[*channel] =
        (TransferChannel){.shape = transfer->shape, .transfer = transfer, .previous = self->newest[sender]};
    self->newest[sender] = *channel;
    TRY(count_slots(self, transfer, error));
    return transfer_price(&self->transfers[*channel].price, self->arena, self->cluster, transfer,
                          self->device_of, error);
}

/* Makes the pieces of a stage for the pipeline's clock. */
static AmStatus make_line(PlanCosts *self, int32_t s, AmError *error) {
    const StagePieces *stage = &self->stages[s].of_all;
    PipelinePiece *pieces = ARENA_ARRAY(self->arena, PipelinePiece, stage->piece_count + 1);
    if (!pieces) return am_fail_memory(error, stage->piece_count);
    for (int32_t p = 0; p < stage->piece_count; p++) {
        const ProgramTransfer *transfer = stage->pieces[p].transfer;
        pieces[p].channel = -1;
        /* A transfer between two chunks of one stage uses no link. */
        if (!transfer || plan_ranks_stage(self->ranks, transfer->route->source.first_rank) ==
                             plan_ranks_stage(self->ranks, transfer->route->target.first_rank))
            continue;
        const ExecutedStep *executed = &self->stages[s].programs[0].steps[stage->pieces[p].first];
        TRY(find_channel(self, transfer, &pieces[p].channel, error));
        TransferChannel *channel = &self->transfers[pieces[p].channel];
        pieces[p].sends = self->channels[pieces[p].channel].sender == s;
        pieces[p].ticks = ticks_of_seconds(executed->times * channel->price.seconds);
        const ExecutedStep **end = pieces[p].sends ? &channel->sending : &channel->receiving;
        if (!*end) *end = executed;
    }
    self->lines[s] = (PipelineStage){.pieces = pieces,
                                     .piece_count = stage->piece_count,
                                     .spans = stage->spans,
                                     .span_count = stage->span_count};
    return AM_OK;
}

AmStatus plan_costs_price(PlanCosts *self, AmError *error) {
    for (int32_t s = 0; s < self->ranks->stage_count; s++) {
        if (!self->stages[s].collectives) TRY(stage_costs_price(&self->stages[s], self->arena, error));
        TRY(make_line(self, s, error));
    }
    return AM_OK;
}

const Program *plan_costs_program(const PlanCosts *self, int32_t rank) {
    int32_t stage = plan_ranks_stage(self->ranks, rank);
    const StageCosts *costs = &self->stages[stage];
    return costs->lowered[costs->program_of[rank - self->ranks->first_rank[stage]]];
}

typedef struct Simulator {
    const PlanCosts *costs;
    const SimulationOptions *options;
    Simulation *simulation;
    StageClock *stages;
    Ticks *waited; /* [stage]: for its first input; below 0: it has made no transfer yet */
    SimulationRecord record;
    MicroBatchSlices slices; /* for the observer */
} Simulator;

static int32_t on_step(void *user, int32_t rank, const ExecutedStep *executed, Moment start, Ticks ticks) {
    Simulator *self = user;
    const SimulationObserver *observer = self->options->observer;
    if (observer) {
        const SimulatedSlice slice = {.rank = rank,
                                      .executed = executed,
                                      .start = seconds_of_ticks(start.at),
                                      .end = seconds_of_ticks(start.at + ticks),
                                      .times = executed ? executed->times : 1,
                                      .entry = plan_costs_program(self->costs, rank),
                                      .channel_bytes = self->costs->channel_bytes[rank]};
        micro_batch_slices_add(&self->slices, &slice);
    }
    const RecordedEvent event = {.executed = executed, .rank = rank, .cause = start.event, .ticks = ticks};
    return self->options->with_details ? record_event(&self->record, &event) : -1;
}

/* Notes that a value is under way, for all ranks that have a shard of it. */
static int32_t on_travel(void *user, int32_t channel, int32_t piece, Moment start, Ticks ticks) {
    Simulator *self = user;
    const PlanCosts *costs = self->costs;
    const TransferChannel *transfer = &costs->transfers[channel];
    const StageCosts *sender = &costs->stages[costs->channels[channel].sender];
    double times = sender->programs[0].steps[sender->of_all.pieces[piece].first].times;
    TransferTotal *const totals[] = {&self->simulation->transfers, &self->simulation->values[channel].total};
    for (int32_t k = 0; k < 2; k++) {
        totals[k]->count += (int64_t)rint(times);
        totals[k]->bytes += times * transfer->price.bytes;
        totals[k]->seconds += times * transfer->price.seconds;
    }
    bool is_watched = self->options->observer || self->options->with_details;
    if (!is_watched || ticks <= 0) return start.event;
    int32_t event = -1;
    for (int32_t k = transfer->transfer->rank_count - 1; k >= 0; k--) {
        int32_t rank = transfer->transfer->ranks[k];
        bool sends = plan_ranks_stage(costs->ranks, rank) == costs->channels[channel].sender;
        event = on_step(self, rank, sends ? transfer->sending : transfer->receiving, start, ticks);
    }
    return event;
}

static void compute_piece(void *user, int32_t stage, int32_t piece) {
    stage_clock_compute(&((Simulator *)user)->stages[stage], piece);
}
static Moment arrive(void *user, int32_t stage, int32_t piece) {
    return stage_clock_arrive(&((Simulator *)user)->stages[stage], piece);
}
static void wait_until(void *user, int32_t stage, int32_t piece, Moment until) {
    Simulator *self = user;
    if (self->waited[stage] < 0)
        self->waited[stage] = fmax(0, until.at - stage_clock_arrive(&self->stages[stage], piece).at);
    stage_clock_wait(&self->stages[stage], piece, until);
}
static void rendezvous(void *user, int32_t stage, int32_t piece, Moment end, Ticks ticks) {
    stage_clock_rendezvous(&((Simulator *)user)->stages[stage], piece, end, ticks);
}

/* Ends the step when the last device is done, under zb_2p without its wait for the first input. Returns the
 * event that ended it. */
static int32_t finish_step(Simulator *self) {
    Simulation *simulation = self->simulation;
    const PlanCosts *costs = self->costs;
    bool follows_on = plan_schedule(costs->ranks->plan) == SCHEDULE_ZB_2P;
    Moment end = MOMENT_BEGIN;
    double idle = 0;
    for (int32_t s = 0; s < costs->ranks->stage_count; s++)
        for (int32_t l = 0; l < self->stages[s].stream_count; l++) {
            Moment own = self->stages[s].streams[l].compute;
            if (follows_on) own.at -= fmax(0, self->waited[s]);
            end = moment_later(end, own);
        }
    simulation->step_seconds = seconds_of_ticks(end.at);
    for (int32_t r = 0; r < simulation->device_count; r++) {
        int32_t stage = plan_ranks_stage(costs->ranks, r);
        const StreamTotals *totals =
            &stage_clock_streams(&self->stages[stage], r - costs->ranks->first_rank[stage])->totals;
        SimulatedDevice *device = &simulation->devices[r];
        device->compute_seconds = seconds_of_ticks(totals->computed);
        device->communication_seconds = seconds_of_ticks(totals->communicated);
        device->hidden_seconds = seconds_of_ticks(totals->hidden);
        device->idle_seconds =
            seconds_of_ticks(end.at - (totals->computed + totals->communicated - totals->hidden));
        idle += device->idle_seconds;
    }
    if (end.at > 0)
        simulation->bubble_fraction = idle / (simulation->step_seconds * simulation->device_count);
    return end.event;
}

/* Finds what each device needs, and the device and the host with least room. A plan whose state the host
 * cannot hold does not fit. */
static AmStatus find_fullest(Simulation *simulation, Arena *arena, const PlanCosts *costs, AmError *error) {
    double fullest = -1;
    int64_t *bytes = ARENA_ARRAY(arena, int64_t, simulation->device_count);
    if (!bytes) return am_fail_memory(error, simulation->device_count);
    for (int32_t d = 0; d < simulation->device_count; d++) {
        SimulatedDevice *device = &simulation->devices[d];
        MemoryUse use = device->memory;
        if (costs->ranks->plan->is_for_jax) memory_use_drop_spare(&use);
        device->needed_bytes = use.peak_bytes + device->channel_bytes + device->kept_bytes;
        bytes[d] = use.host_bytes;
        const MemoryFit fit =
            memory_fit(device->needed_bytes, costs->cluster, &device->device, 1, simulation->memory_fraction);
        device->limit_bytes = fit.limit_bytes;
        if (fit.needed_fraction <= fullest) continue;
        fullest = fit.needed_fraction;
        simulation->fullest = d;
        simulation->fit = fit;
    }
    TRY(memory_host_fit(&simulation->host, arena, bytes, costs->device_of, simulation->device_count,
                        costs->cluster, simulation->memory_fraction, error));
    simulation->fit.host = simulation->host;
    simulation->fit.fits = simulation->fit.fits && simulation->host.fits;
    return AM_OK;
}

static void describe_devices(Simulation *simulation, Arena *arena, const PlanCosts *costs) {
    for (int32_t d = 0; d < simulation->device_count; d++) {
        SimulatedDevice *device = &simulation->devices[d];
        int32_t stage = plan_ranks_stage(costs->ranks, d);
        const ProgramEvents *program =
            stage_costs_of(&costs->stages[stage], d - costs->ranks->first_rank[stage]);
        device->device = costs->device_of[d];
        device->stage = stage;
        device->name = cluster_device_name(costs->cluster, arena, device->device);
        device->memory = program->memory;
        device->is_even = program->is_even && mesh_has_equal_shares(&costs->stages[stage].stage->mesh);
        device->channel_bytes = costs->channel_bytes[d];
        if (costs->ranks->plan->is_for_jax) {
            memory_use_drop_spare(&device->memory);
            device->channel_bytes = 0; /* JAX moves a value when its reader runs */
        }
        device->memory_bytes = cluster_device_type(costs->cluster, device->device)->memory_bytes;
        device->flops = program->flops;
        simulation->executed_flops += program->flops;
        device->kept_bytes = costs->stages[stage].stage->kept_bytes;
    }
    for (int32_t s = 0; s < costs->ranks->stage_count; s++)
        stage_costs_add_collectives(&costs->stages[s], simulation->collectives);
}

static AmStatus run_recorded(Simulator *self, Arena *arena, AmError *error) {
    Arena events = {0};
    self->record = (SimulationRecord){.arena = &events, .most = MOST_EVENTS};
    AmStatus status = AM_OK;
    if (self->options->observer)
        TRY_OR_FAIL(micro_batch_slices_open(&self->slices, &events, self->costs, self->costs->ranks,
                                            self->options->observer, error));
    const PlanCosts *costs = self->costs;
    int32_t stage_count = costs->ranks->stage_count;
    const StageWatch watch = {on_step, self};
    const PipelineWorker worker = {compute_piece, arrive, wait_until, rendezvous, on_travel, self};
    bool is_watched = self->options->observer || self->options->with_details;
    self->stages = ARENA_ARRAY(arena, StageClock, stage_count);
    self->waited = ARENA_ARRAY(arena, Ticks, stage_count);
    if (arena->failed) TRY_OR_FAIL(am_fail_memory(error, stage_count));
    for (int32_t s = 0; s < stage_count; s++) self->waited[s] = -1;
    for (int32_t s = 0; s < stage_count; s++)
        TRY_OR_FAIL(stage_clock_open(&self->stages[s], arena, &costs->stages[s], costs->ranks->first_rank[s],
                                     self->options, is_watched ? &watch : NULL, error));
    TRY_OR_FAIL(pipeline_clock_run(arena, costs->lines, stage_count, costs->channels, costs->channel_count,
                                   &worker, error));
    int32_t last = finish_step(self);
    if (self->options->with_details)
        TRY_OR_FAIL(critical_path_find(&self->simulation->critical_path, arena, &self->record, last, error));
    if (self->options->observer) micro_batch_slices_end(&self->slices);
    if (events.failed) status = am_fail_memory(error, self->record.count);
fail:
    arena_free(&events);
    return status;
}

/* Reports how transfers come to their prices, once the simulation has counted them. */
static AmStatus report_transfers(Text *text, Arena *arena, const PlanCosts *costs,
                                 const Simulation *simulation, AmError *error) {
    TransferRow *rows = ARENA_ARRAY(arena, TransferRow, costs->channel_count + 1);
    int32_t count = 0;
    if (!rows) return am_fail_memory(error, costs->channel_count);
    for (int32_t k = 0; k < costs->channel_count; k++) {
        const TransferTotal *total = &simulation->values[k].total;
        if (total->count == 0) continue;
        rows[count++] = (TransferRow){.transfer = costs->transfers[k].transfer,
                                      .sender = costs->channels[k].sender,
                                      .receiver = costs->channels[k].receiver,
                                      .count = (double)total->count,
                                      .bytes = total->bytes,
                                      .seconds = total->seconds};
    }
    return transfer_report(text, arena, costs->cluster, rows, count, costs->device_of, error);
}

/* Simulates one step; find_fullest() follows. */
static AmStatus simulate_step(Simulation **simulation, Arena *arena, const PlanCosts *costs,
                              const SimulationOptions *options, AmError *error) {
    Simulation *result = ARENA_ARRAY(arena, Simulation, 1);
    SimulatedDevice *devices = ARENA_ARRAY(arena, SimulatedDevice, costs->ranks->rank_count);
    Simulator self = {.costs = costs, .options = options, .simulation = result};
    if (arena->failed) return am_fail_memory(error, costs->ranks->rank_count);
    *result = (Simulation){.module_name = costs->ranks->plan->module_name,
                           .cluster_name = costs->cluster->name,
                           .device_count = costs->ranks->rank_count,
                           .devices = devices,
                           .flops = costs->flops,
                           .memory_fraction = options->memory_fraction,
                           .warnings = costs->warnings};
    /* The values that stages transfer. */
    result->values = ARENA_ARRAY(arena, SimulatedTransfer, costs->channel_count);
    if (arena->failed) return am_fail_memory(error, costs->channel_count);
    result->value_count = costs->channel_count;
    for (int32_t k = 0; k < costs->channel_count; k++) {
        const ExecutedStep *sending = costs->transfers[k].sending;
        result->values[k] = (SimulatedTransfer){.sender = costs->transfers[k].transfer->sender,
                                                .receiver = costs->transfers[k].transfer->receiver,
                                                .origin = sending ? sending->instruction->origin : -1};
    }
    TRY(run_recorded(&self, arena, error));
    describe_devices(result, arena, costs);
    for (int32_t s = 0; options->collectives && s < costs->ranks->stage_count; s++)
        TRY(collective_report(options->collectives, arena, &costs->stages[s], s, error));
    if (options->collectives) TRY(report_transfers(options->collectives, arena, costs, result, error));
    *simulation = result;
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

AmStatus simulate_costs(Simulation **simulation, Arena *arena, const PlanCosts *costs,
                        const SimulationOptions *options, AmError *error) {
    TRY(simulate_step(simulation, arena, costs, options, error));
    return find_fullest(*simulation, arena, costs, error);
}

/* Gives each device the memory of its own rank: others of its stage can need less or more. */
static AmStatus use_rank_memory(Simulation *simulation, Arena *arena, const PlanCosts *costs,
                                AmError *error) {
    MemoryUse *uses;
    TRY(rank_memory(&uses, arena, costs->ranks, costs->cluster, NULL, error));
    for (int32_t d = 0; d < simulation->device_count; d++) {
        simulation->devices[d].memory = uses[d];
        simulation->devices[d].is_even = false; /* for JAX it is not that of describe_devices() */
    }
    return find_fullest(simulation, arena, costs, error);
}

AmStatus simulate_costs_by_rank(Simulation **simulation, Arena *arena, const PlanCosts *costs,
                                const SimulationOptions *options, AmError *error) {
    TRY(simulate_step(simulation, arena, costs, options, error));
    return use_rank_memory(*simulation, arena, costs, error);
}

/* Returns whether a plan that fits by the first rank of every stage may not fit by another one, which the
 * memory of all ranks shows within a second. */
static bool may_exceed(const Simulation *simulation, const PlanCosts *costs) {
    const double near = 0.95; /* of the limit; other ranks needed up to 4 % more than the first one */
    const int64_t most = 50000;
    const PlanRanks *ranks = costs->ranks;
    bool is_near = simulation->fit.needed_fraction >= near * simulation->memory_fraction;
    if (!simulation->fit.fits || !is_near) return false;
    if ((int64_t)ranks->rank_count * ranks->context->rules->count > most) return false;
    for (int32_t d = 0; d < simulation->device_count; d++) {
        const SimulatedDevice *device = &simulation->devices[d];
        if (!device->is_even && mesh_has_equal_shares(&ranks->plan->stages[device->stage].mesh)) return true;
    }
    return false;
}

AmStatus simulate_ranks(Simulation **simulation, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                        const SimulationOptions *options, AmError *error) {
    PlanCosts *costs;
    SimulationOptions within = *options;
    double busy;
    if (plan_schedule(ranks->plan) == SCHEDULE_ZB_2P) within.most_seconds = 0; /* steps overlap */
    TRY(plan_costs_lower_within(&costs, arena, ranks, cluster, &within, &busy, error));
    if (within.most_seconds > 0 && busy > within.most_seconds) {
        *simulation = ARENA_ARRAY(arena, Simulation, 1);
        if (!*simulation) return am_fail_memory(error, (int64_t)sizeof **simulation);
        **simulation = (Simulation){.step_seconds = busy, .is_left = true};
        return AM_OK;
    }
    TRY(plan_costs_price(costs, error));
    if (!options->with_details) {
        TRY(simulate_costs(simulation, arena, costs, options, error));
        bool is_by_rank = may_exceed(*simulation, costs);
        return is_by_rank ? use_rank_memory(*simulation, arena, costs, error) : AM_OK;
    }
    TRY(simulate_costs_by_rank(simulation, arena, costs, options, error));
    return memory_find_peak(&(*simulation)->peak, plan_costs_program(costs, (*simulation)->fullest), error);
}

AmStatus simulate_plan(Simulation **simulation, Arena *arena, const PlanContext *context, const Plan *plan,
                       const Cluster *cluster, const SimulationOptions *options, AmError *error) {
    PlanRanks ranks;
    context = plan_context_used(plan, context);
    TRY(plan_ranks_beside(&ranks, arena, context, plan, options->known, options->stop, error));
    return simulate_ranks(simulation, arena, &ranks, cluster, options, error);
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
                                                    .channel_bytes = device->channel_bytes,
                                                    .host_bytes = device->memory.host_bytes,
                                                    .compute_seconds = device->compute_seconds,
                                                    .communication_seconds = device->communication_seconds,
                                                    .idle_seconds = device->idle_seconds,
                                                    .is_even = device->is_even};
    }
    return AM_OK;
}
