/* Stages run one at a time, each until it has to wait for another. A stage that sends, receives or
 * reaches a rendezvous wakes the stage at the other end. The order in which stages run does not affect
 * the result: a stage's times depend on its own past and on the values received through channels,
 * in order. */
#include "cost/simulate/pipeline_clock.h"

/* A span that is being run. */
typedef struct RunningSpan {
    int32_t span;
    int64_t done;    /* iterations: of the span, or of its order */
    int32_t current; /* the span whose turn it is */
} RunningSpan;

typedef struct RunningStage {
    const PipelineStage *stage;
    int32_t at; /* piece */
    RunningSpan *running;
    int32_t depth, next_span;
    bool is_waiting; /* has come to a transfer and cannot go on */
    bool is_queued;
} RunningStage;

typedef struct RunningChannel {
    const PipelineChannel *channel;
    int64_t sent, received;
    Moment *arrival, *released; /* [slots]: of value m in m mod slots */
    Moment *link_free;          /* of the pair of stages */
} RunningChannel;

typedef struct PipelineClock {
    const PipelineWorker *worker;
    RunningStage *stages;
    RunningChannel *channels;
    int32_t *queue; /* ring of stages that may go on */
    int32_t stage_count, queue_first, queue_count;
} PipelineClock;

static void wake(PipelineClock *self, int32_t stage) {
    RunningStage *running = &self->stages[stage];
    if (running->is_queued) return;
    running->is_queued = true;
    self->queue[(self->queue_first + self->queue_count++) % self->stage_count] = stage;
}

static void begin_spans(RunningStage *self) {
    const PipelineStage *stage = self->stage;
    for (; self->next_span < stage->span_count && stage->spans[self->next_span].first == self->at;
         self->next_span++)
        self->running[self->depth++] = (RunningSpan){.span = self->next_span, .current = self->next_span};
    if (self->depth == 0) return;
    RunningSpan *inner = &self->running[self->depth - 1];
    const PipelineSpan *span = &stage->spans[inner->span];
    if (span->order && inner->done == 0) inner->current = span->order[0];
}

/* Ends the present piece of a stage. */
static void pass_piece(RunningStage *self) {
    const PipelineStage *stage = self->stage;
    self->at++;
    while (self->depth > 0) {
        RunningSpan *inner = &self->running[self->depth - 1];
        const PipelineSpan *span = &stage->spans[inner->span];
        if (stage->spans[inner->current].end != self->at) return;
        inner->done++;
        if (inner->done < (span->order ? span->order_count : span->iterations)) {
            if (span->order) inner->current = span->order[inner->done];
            self->at = stage->spans[inner->current].first;
            self->next_span = inner->current + 1;
            return;
        }
        self->depth--;
        /* The stage goes on after all spans that are joined with `span`. */
        self->at = span->end;
        for (int64_t k = 0; k < span->order_count; k++)
            if (stage->spans[span->order[k]].end > self->at) self->at = stage->spans[span->order[k]].end;
        while (self->next_span < stage->span_count && stage->spans[self->next_span].first < self->at)
            self->next_span++;
    }
}

static Moment travel(PipelineClock *self, int32_t channel, int32_t piece, Moment start, Ticks ticks) {
    const PipelineWorker *worker = self->worker;
    int32_t event = worker->travel ? worker->travel(worker->user, channel, piece, start, ticks) : -1;
    return moment_after(start, ticks, event);
}

/* Runs the transfer of a channel without slots, if the other stage waits for it too. */
static bool rendezvous(PipelineClock *self, int32_t s, const PipelinePiece *piece) {
    const PipelineChannel *channel = self->channels[piece->channel].channel;
    int32_t other = channel->sender == s ? channel->receiver : channel->sender;
    RunningStage *partner = &self->stages[other];
    const PipelineWorker *worker = self->worker;
    if (!partner->is_waiting || partner->stage->pieces[partner->at].channel != piece->channel) return false;
    Moment start =
        moment_later(worker->arrive(worker->user, channel->sender, self->stages[channel->sender].at),
                     worker->arrive(worker->user, channel->receiver, self->stages[channel->receiver].at));
    Moment end = travel(self, piece->channel, self->stages[channel->sender].at, start, piece->ticks);
    worker->rendezvous(worker->user, s, self->stages[s].at, end, piece->ticks);
    worker->rendezvous(worker->user, other, partner->at, end, piece->ticks);
    partner->is_waiting = false;
    pass_piece(partner);
    wake(self, other);
    return true;
}

/* Sends a value by a channel. Returns false if no slot is free. */
static bool send_value(PipelineClock *self, int32_t s, const PipelinePiece *piece) {
    RunningChannel *channel = &self->channels[piece->channel];
    const PipelineWorker *worker = self->worker;
    int32_t slots = channel->channel->slots, at = self->stages[s].at;
    if (channel->sent - channel->received >= slots) return false;
    worker->wait(worker->user, s, at, channel->released[channel->sent % slots]);
    Moment start = moment_later(worker->arrive(worker->user, s, at), *channel->link_free);
    *channel->link_free = travel(self, piece->channel, at, start, piece->ticks);
    channel->arrival[channel->sent++ % slots] = *channel->link_free;
    wake(self, channel->channel->receiver);
    return true;
}

/* Receives the next value of a channel. Returns false if none was sent. */
static bool receive_value(PipelineClock *self, int32_t s, const PipelinePiece *piece) {
    RunningChannel *channel = &self->channels[piece->channel];
    const PipelineWorker *worker = self->worker;
    int32_t slots = channel->channel->slots, at = self->stages[s].at;
    if (channel->received >= channel->sent) return false;
    worker->wait(worker->user, s, at, channel->arrival[channel->received % slots]);
    channel->released[channel->received++ % slots] = worker->arrive(worker->user, s, at);
    wake(self, channel->channel->sender);
    return true;
}

/* Runs a stage until it waits or has come to its end. */
static void run_stage(PipelineClock *self, int32_t s) {
    RunningStage *running = &self->stages[s];
    const PipelineStage *stage = running->stage;
    while (running->at < stage->piece_count) {
        if (!running->is_waiting) begin_spans(running);
        const PipelinePiece *piece = &stage->pieces[running->at];
        bool moved = true;
        if (piece->channel < 0) self->worker->compute(self->worker->user, s, running->at);
        else if (self->channels[piece->channel].channel->slots == 0) moved = rendezvous(self, s, piece);
        else moved = piece->sends ? send_value(self, s, piece) : receive_value(self, s, piece);
        running->is_waiting = !moved;
        if (!moved) return;
        pass_piece(running);
    }
}

/* Channels of the same two stages in the same direction share a link. */
static Moment *find_link(PipelineClock *self, Moment *links, int32_t count) {
    const PipelineChannel *own = self->channels[count].channel;
    for (int32_t k = count - 1; k >= 0; k--)
        if (self->channels[k].channel->sender == own->sender &&
            self->channels[k].channel->receiver == own->receiver)
            return self->channels[k].link_free;
    return &links[count];
}

static AmStatus open_clock(PipelineClock *self, Arena *arena, const PipelineStage *stages,
                           const PipelineChannel *channels, int32_t channel_count, AmError *error) {
    Moment *links = ARENA_ARRAY(arena, Moment, channel_count + 1);
    self->stages = ARENA_ARRAY(arena, RunningStage, self->stage_count);
    self->channels = ARENA_ARRAY(arena, RunningChannel, channel_count + 1);
    self->queue = ARENA_ARRAY(arena, int32_t, self->stage_count);
    if (arena->failed) return am_fail_memory(error, self->stage_count);
    for (int32_t s = 0; s < self->stage_count; s++) {
        self->stages[s] = (RunningStage){
            .stage = &stages[s], .running = ARENA_ARRAY(arena, RunningSpan, stages[s].span_count + 1)};
        wake(self, s);
    }
    for (int32_t k = 0; k < channel_count && !arena->failed; k++) {
        Moment *times = ARENA_ARRAY(arena, Moment, 2 * channels[k].slots + 1);
        self->channels[k] = (RunningChannel){
            .channel = &channels[k], .arrival = times, .released = times ? times + channels[k].slots : NULL};
        for (int32_t slot = 0; times && slot < 2 * channels[k].slots; slot++) times[slot] = MOMENT_BEGIN;
        links[k] = MOMENT_BEGIN;
        self->channels[k].link_free = find_link(self, links, k);
    }
    return arena->failed ? am_fail_memory(error, channel_count) : AM_OK;
}

AmStatus pipeline_clock_run(Arena *arena, const PipelineStage *stages, int32_t stage_count,
                            const PipelineChannel *channels, int32_t channel_count,
                            const PipelineWorker *worker, AmError *error) {
    ArenaMark mark = arena_mark(arena);
    PipelineClock self = {.worker = worker, .stage_count = stage_count};
    AmStatus status;
    TRY_OR_FAIL(open_clock(&self, arena, stages, channels, channel_count, error));
    while (self.queue_count > 0) {
        int32_t s = self.queue[self.queue_first];
        self.queue_first = (self.queue_first + 1) % self.stage_count;
        self.queue_count--;
        self.stages[s].is_queued = false;
        run_stage(&self, s);
    }
    for (int32_t s = 0; s < self.stage_count; s++)
        if (self.stages[s].is_waiting)
            TRY_OR_FAIL(am_fail(error, AM_ERROR_INFEASIBLE, "",
                                "the stages wait for one another: under this schedule their transfers do not "
                                "rendezvous in one order"));
fail:
    arena_release(arena, mark);
    return status;
}
