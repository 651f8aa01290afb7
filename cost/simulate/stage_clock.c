/* The clock of a stage: its streams of computation and communication. A collective starts when the last
 * device of its group arrives and ends for all of them together. */
#include "cost/simulate/stage_clock.h"

#include "base/random.h"

/* Returns the factor by which a step on a device exceeds its price: the device's slowness, and jitter. */
static double stretch(StageClock *self, int32_t device) {
    const SimulationOptions *options = self->options;
    double factor = options->slowdowns ? options->slowdowns[self->costs->stage->devices[device]] : 1;
    if (options->jitter <= 0) return factor;
    uint64_t rank = (uint64_t)(self->first_rank + device);
    double uniform = random_uniform_at(options->seed, rank, self->drawn[device]++);
    return factor * (1 - options->jitter * log1p(-uniform));
}

static int32_t report_slice(const StageClock *self, int32_t device, const ExecutedStep *executed,
                            Moment start, Ticks ticks) {
    if (!self->watch || ticks <= 0) return start.event;
    int32_t event = -1, last = self->stream_count == 1 ? self->costs->stage->mesh.device_count - 1 : device;
    /* If one device represents all, the event of the first one counts. */
    for (int32_t each = last; each >= device; each--)
        event = self->watch->on_step(self->watch->user, self->first_rank + each, executed, start, ticks);
    return event;
}

static void communicate_step(StageClock *self, int32_t step, const ProgramCollective *collective) {
    const StageCosts *costs = self->costs;
    const CollectivePartition *partition = &costs->partitions[collective->axes];
    bool is_one = self->stream_count == 1;
    for (int32_t g = 0; g < (is_one ? 1 : partition->group_count); g++) {
        const int32_t *members = &partition->members[g * partition->group_size];
        Ticks ticks = costs->collectives[step][costs->is_uniform ? 0 : g];
        int32_t count = is_one ? 1 : partition->group_size;
        StreamLayers layers = executed_layers_beside(&costs->programs[0].steps[step]);
        Moment start = streams_ready_for_layers(&self->streams[is_one ? 0 : members[0]], ticks, layers);
        for (int32_t k = 1; k < count; k++)
            start = moment_later(start, streams_ready_for_layers(&self->streams[members[k]], ticks, layers));
        for (int32_t k = 0; k < count; k++) {
            int32_t device = is_one ? 0 : members[k];
            const ExecutedStep *executed = &stage_costs_of(costs, device)->steps[step];
            streams_communicate(&self->streams[device], step, start, ticks, layers,
                                report_slice(self, device, executed, start, ticks));
        }
    }
}

static void join_streams(StageClock *self) {
    for (int32_t l = 0; l < self->stream_count; l++) streams_join(&self->streams[l]);
}

static void run_steps(StageClock *self, const StagePiece *piece) {
    const ProgramEvents *events = &self->costs->programs[0];
    const ExecutedStep *steps = events->steps;
    bool is_sample = piece->first < piece->end && ir_is_sample(steps[piece->first].program->module);
    for (int32_t s = piece->first, next; s < piece->end; s = next) {
        next = self->sums && self->run_end[s] < piece->end ? self->run_end[s] : piece->end;
        if (!self->sums || events->work_of[s] == EVENT_COLLECTIVE) next = s + 1;
        if (s > piece->first && steps[s].program != steps[s - 1].program) join_streams(self);
        if (events->work_of[s] == EVENT_COLLECTIVE)
            communicate_step(self, s, steps[s].instruction->collective);
        else {
            /* Only the first of these steps may wait for a collective. */
            for (int32_t l = 0; l < self->stream_count; l++) {
                const ExecutedStep *step = &stage_costs_of(self->costs, l)->steps[s];
                Ticks ticks = self->sums ? self->sums[l][next] - self->sums[l][s] : self->ticks[l][s];
                Moment start = streams_ready(&self->streams[l], step->wait > 0 ? s - step->wait : -1);
                for (int32_t k = s; k < next && is_sample; k++)
                    executed_set_layers(&self->streams[l], &steps[k]);
                if (ticks > 0 && self->varies) ticks = rint(ticks * stretch(self, l));
                streams_compute(&self->streams[l], start, ticks, report_slice(self, l, step, start, ticks));
            }
        }
    }
    join_streams(self);
}

/* Does the work of run_steps() on the streams of a stage whose devices all do the same, when nothing
 * varies. */
static void run_folded(DeviceStreams *streams, const ProgramEvents *events, const Ticks *ticks,
                       const StagePiece *piece) {
    for (int32_t s = piece->first; s < piece->end; s++) {
        const ExecutedStep *step = &events->steps[s];
        if (s > piece->first && step->program != step[-1].program) streams_join(streams);
        if (events->work_of[s] == EVENT_COLLECTIVE) {
            StreamLayers layers = executed_layers_beside(step);
            Moment start = streams_ready_for_layers(streams, ticks[s], layers);
            streams_communicate(streams, s, start, ticks[s], layers, -1);
            continue;
        }
        executed_set_layers(streams, step);
        if (streams->count == streams->passed) {
            streams_compute_alone(streams, ticks[s], -1);
        } else {
            Moment start = streams_ready(streams, step->wait > 0 ? s - step->wait : -1);
            streams_compute(streams, start, ticks[s], -1);
        }
    }
    streams_join(streams);
}

/* Computes the duration of each piece, run once from an idle start. */
static AmStatus fold_pieces(StageClock *self, Arena *arena, AmError *error) {
    const StagePieces *of_all = &self->costs->of_all;
    const Ticks *ticks = stage_costs_ticks(self->costs, 0);
    self->folded = ARENA_ARRAY(arena, FoldedPiece, of_all->piece_count + 1);
    if (!self->folded) return am_fail_memory(error, of_all->piece_count);
    DeviceStreams *streams = &self->streams[0], fresh = *streams;
    for (int32_t p = 0; p < of_all->piece_count; p++) {
        if (of_all->pieces[p].transfer) continue;
        run_folded(streams, &self->costs->programs[0], ticks, &of_all->pieces[p]);
        self->folded[p] = (FoldedPiece){.ticks = streams->compute.at, .totals = streams->totals};
        *streams = fresh;
    }
    return AM_OK;
}

/* Adds the ticks of steps up, and finds the runs of steps that no device interrupts. Sums of integers are
 * exact, so that a run ends when its steps end one by one. */
static AmStatus sum_runs(StageClock *self, Arena *arena, AmError *error) {
    const StageCosts *costs = self->costs;
    const ProgramEvents *events = &costs->programs[0];
    int32_t count = events->step_count;
    self->sums = ARENA_ARRAY(arena, Ticks *, self->stream_count);
    self->run_end = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t l = 0; l < self->stream_count; l++) {
        for (int32_t k = 0; k < l && !self->sums[l]; k++)
            if (self->ticks[k] == self->ticks[l]) self->sums[l] = self->sums[k];
        if (self->sums[l]) continue;
        self->sums[l] = ARENA_ARRAY(arena, Ticks, count + 1);
        if (!self->sums[l]) return am_fail_memory(error, count);
        for (int32_t s = 0; s < count; s++) self->sums[l][s + 1] = self->sums[l][s] + self->ticks[l][s];
    }
    for (int32_t s = count - 1, end = count; s >= 0; s--) {
        bool is_begin = events->work_of[s] == EVENT_COLLECTIVE || s == 0 ||
                        events->steps[s].program != events->steps[s - 1].program;
        for (int32_t program = 0; program < costs->program_count && !is_begin; program++)
            is_begin = costs->programs[program].steps[s].wait > 0;
        self->run_end[s] = end;
        if (is_begin) end = s;
    }
    return AM_OK;
}

AmStatus stage_clock_open(StageClock *self, Arena *arena, const StageCosts *costs, int32_t first_rank,
                          const SimulationOptions *options, const StageWatch *watch, AmError *error) {
    bool varies = options->jitter > 0;
    for (int32_t d = 0; options->slowdowns && d < costs->stage->mesh.device_count; d++)
        varies |= options->slowdowns[costs->stage->devices[d]] != 1;
    *self = (StageClock){.costs = costs,
                         .first_rank = first_rank,
                         .stream_count = costs->is_uniform && !varies ? 1 : costs->stage->mesh.device_count,
                         .watch = watch,
                         .options = options,
                         .varies = varies};
    self->streams = ARENA_ARRAY(arena, DeviceStreams, self->stream_count);
    self->ticks = ARENA_ARRAY(arena, const Ticks *, self->stream_count);
    self->drawn = ARENA_ARRAY(arena, uint64_t, self->stream_count);
    if (arena->failed) return am_fail_memory(error, self->stream_count);
    for (int32_t l = 0; l < self->stream_count; l++) {
        self->ticks[l] = stage_costs_ticks(costs, l);
        TRY(streams_open(
            &self->streams[l], arena, costs->of_all.most_collectives,
            cluster_device_type(costs->cluster, costs->stage->devices[l])->overlaps_communication, error));
    }
    if (watch || varies) return AM_OK;
    return self->stream_count == 1 ? fold_pieces(self, arena, error) : sum_runs(self, arena, error);
}

void stage_clock_compute(StageClock *self, int32_t piece) {
    if (!self->folded) {
        run_steps(self, &self->costs->of_all.pieces[piece]);
        return;
    }
    DeviceStreams *streams = &self->streams[0];
    const FoldedPiece *folded = &self->folded[piece];
    streams_wait(streams, moment_after(streams->compute, folded->ticks, -1));
    streams->totals.computed += folded->totals.computed;
    streams->totals.communicated += folded->totals.communicated;
    streams->totals.hidden += folded->totals.hidden;
}

/* Finds the next streams that take part in a transfer, from `*next` on; false without one. */
static bool takes_part(const StageClock *self, const ProgramTransfer *transfer, int32_t *next,
                       DeviceStreams **streams) {
    if (self->stream_count == 1) {
        *streams = &self->streams[0];
        return (*next)++ == 0;
    }
    for (; *next < transfer->rank_count; ++*next) {
        int32_t l = transfer->ranks[*next] - self->first_rank;
        if (l < 0 || l >= self->stream_count) continue;
        *streams = &self->streams[l];
        ++*next;
        return true;
    }
    return false;
}

Moment stage_clock_arrive(StageClock *self, int32_t piece) {
    Moment latest = MOMENT_BEGIN;
    int32_t next = 0;
    for (DeviceStreams *streams;
         takes_part(self, self->costs->of_all.pieces[piece].transfer, &next, &streams);) {
        streams_join(streams);
        latest = moment_later(latest, streams->compute);
    }
    return latest;
}

void stage_clock_wait(StageClock *self, int32_t piece, Moment until) {
    int32_t next = 0;
    for (DeviceStreams *streams;
         takes_part(self, self->costs->of_all.pieces[piece].transfer, &next, &streams);)
        streams_wait(streams, until);
}

void stage_clock_rendezvous(StageClock *self, int32_t piece, Moment end, Ticks ticks) {
    int32_t next = 0;
    for (DeviceStreams *streams;
         takes_part(self, self->costs->of_all.pieces[piece].transfer, &next, &streams);) {
        streams_wait(streams, end);
        streams->totals.communicated += ticks;
    }
}
