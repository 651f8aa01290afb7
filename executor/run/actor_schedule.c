/* Makes the actor graph of the executables of a process: cuts each program at its joined loops into actors,
 * and connects them by edges whose quotas are those of the pipeline schedule. */
#include "executor/run/actor_schedule.h"

#include <stdio.h>
#include <stdlib.h>

#include "executor/program/control_flow.h"
#include "executor/run/iteration_order.h"
#include "propagation/stages/stages.h"

/* Priorities; of chunks of one kind the later one goes first. */
enum { BACKWARD, FORWARD, WEIGHTS, PLAIN, CHUNKS = STAGES_MOST, REPORT = -1, LOAD = -2 };

/* An actor, which runs steps first .. end - 1 of a program. */
typedef struct ScheduledActor {
    Schedule *schedule;
    Rank *rank;
    const Executable *program; /* the rank's, or a body's */
    const Control *loop;       /* whose body it is; NULL: the rank's */
    int32_t first, end;
    int32_t iterations; /* in a step */
    int32_t kind, chunk;
    bool begins, ends; /* the step, or the body */
    int32_t number;    /* in the actor graph */
} ScheduledActor;

/* The actors of one rank, in the order in which they would run one after the other. */
typedef struct RankActors {
    ScheduledActor *actors;
    int32_t count;
    IterationEdge *edges; /* between them, by number */
    int32_t edge_count, edge_capacity;
    IterationOrder order; /* where others of the stage are in other processes; count 0: they are not */
} RankActors;

struct Schedule {
    ScheduleOptions options;
    ActorGraph *graph;
    Arena arena;
    RankActors *ranks; /* [rank_count] */
    bool has_loader;   /* its thread has been started */
};

static RankActors *actors_of(const ScheduledActor *actor) {
    return &actor->schedule->ranks[actor->rank - actor->schedule->options.ranks];
}

/* ---- actions of actors ---- */

/* Runs the range of instructions of an actor, in one iteration. */
static AmStatus run_range(void *user, int64_t iteration, AmError *error) {
    const ScheduledActor *actor = user;
    const ScheduleOptions *options = &actor->schedule->options;
    IterationOrder *order = &actors_of(actor)->order;
    if (order->count > 0) order->next = (order->next + 1) % order->count;
    if (actor->loop) {
        if (actor->begins && iteration % actor->iterations == 0) control_enter(actor->loop);
        for (int32_t s = actor->first; s < actor->end; s++)
            if (actor->program->steps[s].stream) actor->program->steps[s].stream->iteration = iteration;
        control_body(actor->loop)->iteration = iteration % actor->iterations;
        double start = timeline_start(actor->program->timeline);
        TRY(executable_run_steps(actor->program, actor->first, actor->end, error));
        executable_mark_iteration(actor->program, start);
        return AM_OK;
    }
    if (actor->begins) TRY(options->begin(options->user, actor->rank, iteration, error));
    if (actor->begins && actor->ends) TRY(executable_run(actor->rank->ready, error));
    else TRY(executable_run_steps(actor->program, actor->first, actor->end, error));
    return actor->ends ? options->end(options->user, actor->rank, iteration, error) : AM_OK;
}

static AmStatus report_iteration(void *user, int64_t iteration, AmError *error) {
    const ScheduleOptions *options = user;
    return options->report(options->user, iteration, error);
}

/* ---- cutting a program ---- */

static const InterleavedLoops *iterations_at(const Executable *program, int32_t s) {
    int32_t instruction = program->program->execution.steps[s].instruction;
    return instruction < 0 ? NULL : program->program->instructions[instruction].loop.iterations;
}

/* Returns the end of the actor of a body that begins at step `first`: before it receives after it has
 * sent. */
static int32_t actor_end(const Executable *body, int32_t first) {
    int32_t count = body->program->execution.step_count, s = first;
    for (bool has_sent = false; s < count; s++) {
        const Stream *stream = body->steps[s].stream;
        if (stream && stream->gets && has_sent) break;
        has_sent |= stream && stream->puts;
    }
    return s;
}

static int32_t count_actors(const Executable *body) {
    int32_t count = 0, s = 0;
    do {
        s = actor_end(body, s);
        count++;
    } while (s < body->program->execution.step_count);
    return count;
}

static int32_t count_rank_actors(const Executable *program) {
    int32_t count = 1;
    for (int32_t s = 0, together; s < program->program->execution.step_count; s += together) {
        together = program_steps_together(program->program, s);
        if (!iterations_at(program, s)) continue;
        count++;
        for (int32_t k = 0; k < together; k++)
            count += count_actors(control_body(program->steps[s + k].control));
    }
    return count;
}

/* ---- building the graph ---- */

static AmStatus add_actor(Schedule *self, RankActors *list, int32_t r, const ScheduledActor *actor,
                          AmError *error) {
    static const char *const kinds[] = {"backward pass", "forward pass", "gradients of weights", "step"};
    ScheduledActor *added = &list->actors[list->count++];
    char name[64];
    *added = *actor;
    added->schedule = self;
    added->rank = &self->options.ranks[r];
    snprintf(name, sizeof name, "%s of rank %d, part %d", kinds[actor->kind], added->rank->comm->rank,
             list->count - 1);
    Actor added_actor = {.name = name,
                         .worker = r,
                         .priority = actor->kind * CHUNKS + CHUNKS - 1 - actor->chunk,
                         .iterations_per_step = added->iterations,
                         .act = run_range,
                         .user = added};
    return actors_add(self->graph, &added_actor, &added->number, error);
}

/* Adds an edge between two actors of a rank, also to the list for the order of iterations. */
static AmStatus connect_actors(Schedule *self, const ScheduledActor *from, const ScheduledActor *to,
                               int32_t quota, int32_t initial, AmError *error) {
    RankActors *list = actors_of(from);
    ARENA_RESERVE(&self->arena, list->edges, list->edge_count, list->edge_capacity);
    if (self->arena.failed) return am_fail_memory(error, list->edge_count);
    list->edges[list->edge_count++] = (IterationEdge){.producer = (int32_t)(from - list->actors),
                                                      .consumer = (int32_t)(to - list->actors),
                                                      .quota = quota,
                                                      .initial = initial};
    return actors_connect(self->graph, from->number, to->number, quota, initial, NULL, error);
}

/* A loop's body, actor after actor; its next iteration begins when the last actor has ended. */
static AmStatus add_loop(Schedule *self, RankActors *list, int32_t r, const Control *loop, int32_t iterations,
                         int32_t kind, int32_t chunk, AmError *error) {
    const Executable *body = control_body(loop);
    int32_t first = list->count, count = count_actors(body);
    for (int32_t k = 0, s = 0; k < count; k++) {
        ScheduledActor actor = {.program = body,
                                .loop = loop,
                                .first = s,
                                .end = actor_end(body, s),
                                .iterations = iterations,
                                .kind = kind,
                                .chunk = chunk,
                                .begins = k == 0,
                                .ends = k == count - 1};
        s = actor.end;
        TRY(add_actor(self, list, r, &actor, error));
        if (k > 0)
            TRY(connect_actors(self, &list->actors[first + k - 1], &list->actors[first + k], 1, 0, error));
    }
    return count > 1 ? connect_actors(self, &list->actors[list->count - 1], &list->actors[first], 1, 1, error)
                     : AM_OK;
}

/* The actors of one of joined loops. */
typedef struct LoopActors {
    int32_t first, last;
} LoopActors;

/* Connects two loops: an iteration of `to` needs the same iteration of `from`, which is at most
 * `kept` iterations ahead of its end. */
static AmStatus connect_loops(Schedule *self, const RankActors *list, LoopActors from, LoopActors to,
                              int32_t kept, AmError *error) {
    const ScheduledActor *actors = list->actors;
    TRY(connect_actors(self, &actors[from.last], &actors[to.first], kept, 0, error));
    if (from.first == from.last && to.first == to.last) return AM_OK;
    return connect_actors(self, &actors[from.first], &actors[to.last], kept, 0, error);
}

/* A loop with iterations, or joined ones, after the last actor of the list. */
static AmStatus add_loops(Schedule *self, RankActors *list, int32_t r, const Executable *program, int32_t s,
                          AmError *error) {
    const InterleavedLoops *iterations = iterations_at(program, s);
    int32_t before = list->count - 1, together = program_steps_together(program->program, s);
    int32_t chunks = iterations->chunks;
    const int32_t kinds[] = {iterations->is_backward ? BACKWARD : FORWARD, BACKWARD, WEIGHTS};
    LoopActors *loops = ARENA_ARRAY(&self->arena, LoopActors, together);
    if (!loops) return am_fail_memory(error, together);
    for (int32_t k = 0; k < together; k++) {
        loops[k].first = list->count;
        TRY(add_loop(self, list, r, program->steps[s + k].control, iterations->count, kinds[k / chunks],
                     k % chunks, error));
        loops[k].last = list->count - 1;
    }
    for (int32_t c = 0; c < chunks; c++) {
        int32_t kept = iterations->kept_of_chunk ? iterations->kept_of_chunk[c] : iterations->kept;
        TRY(connect_actors(self, &list->actors[before], &list->actors[loops[c].first], 1, 0, error));
        if (together > chunks) TRY(connect_loops(self, list, loops[c], loops[chunks + c], kept, error));
    }
    if (iterations->third < 0) return AM_OK;
    TRY(connect_loops(self, list, loops[0], loops[2], iterations->kept_until_third, error));
    return connect_loops(self, list, loops[1], loops[2], iterations->kept_from_second, error);
}

/* Adds an actor of the rank's steps first .. end - 1, after the loops that are directly before it. */
static AmStatus add_plain(Schedule *self, RankActors *list, int32_t r, int32_t first, int32_t end,
                          AmError *error) {
    const Executable *program = self->options.ranks[r].ready;
    ScheduledActor actor = {.program = program,
                            .first = first,
                            .end = end,
                            .iterations = 1,
                            .kind = PLAIN,
                            .begins = list->count == 0,
                            .ends = end == program->program->execution.step_count};
    TRY(add_actor(self, list, r, &actor, error));
    const ScheduledActor *own = &list->actors[list->count - 1];
    for (const ScheduledActor *before = own - 1; before >= list->actors && before->loop; before--)
        if (before->ends) TRY(connect_actors(self, before, own, before->iterations, 0, error));
    return AM_OK;
}

static AmStatus add_rank(Schedule *self, int32_t r, AmError *error) {
    const Executable *program = self->options.ranks[r].ready;
    RankActors *list = &self->ranks[r];
    int32_t first = 0, count = program->program->execution.step_count;
    list->actors = ARENA_ARRAY(&self->arena, ScheduledActor, count_rank_actors(program));
    if (!list->actors) return am_fail_memory(error, count);
    for (int32_t s = 0; s < count; s++) {
        if (!iterations_at(program, s)) continue;
        TRY(add_plain(self, list, r, first, s, error));
        TRY(add_loops(self, list, r, program, s, error));
        first = s + program_steps_together(program->program, s);
        s = first - 1;
    }
    TRY(add_plain(self, list, r, first, count, error));
    if (list->count == 1) return AM_OK;
    return connect_actors(self, &list->actors[list->count - 1], &list->actors[0], 1, 1, error);
}

/* Adds the end of a step: all ranks end it, one reports, all begin the next. */
static AmStatus add_report(Schedule *self, AmError *error) {
    int32_t actor;
    Actor reporter = {.name = "report of the step",
                      .worker = 0,
                      .priority = REPORT,
                      .iterations_per_step = 1,
                      .act = report_iteration,
                      .user = &self->options};
    TRY(actors_add(self->graph, &reporter, &actor, error));
    for (int32_t r = 0; r < self->options.rank_count; r++) {
        const RankActors *list = &self->ranks[r];
        TRY(actors_connect(self->graph, list->actors[list->count - 1].number, actor, 1, 0, NULL, error));
        TRY(actors_connect(self->graph, actor, list->actors[0].number, 1, 1, NULL, error));
    }
    return AM_OK;
}

/* Returns the actor that runs a stream; NULL: none of this process's. */
static const ScheduledActor *actor_of(const Schedule *self, int32_t rank, const Channel *channel, bool puts) {
    int32_t r = rank - self->options.ranks[0].comm->rank;
    if (r < 0 || r >= self->options.rank_count) return NULL;
    const RankActors *list = &self->ranks[r];
    for (int32_t g = 0; g < list->count; g++)
        for (int32_t s = list->actors[g].first; s < list->actors[g].end; s++) {
            const Stream *stream = list->actors[g].program->steps[s].stream;
            for (int32_t e = 0; stream && e < stream->end_count; e++)
                if (stream->ends[e].channel == channel && stream->ends[e].puts == puts)
                    return &list->actors[g];
        }
    return NULL;
}

/* The actor that loads data, in a thread beside the ranks' or, where that is short, in the first one's. */
static AmStatus add_loader(Schedule *self, AmError *error) {
    const ScheduleOptions *options = &self->options;
    Actor load = {.name = "data",
                  .priority = LOAD,
                  .iterations_per_step = 1,
                  .runs_ahead = true,
                  .act = options->load,
                  .user = options->load_user};
    int32_t actor;
    if (options->load_places == 0) return AM_OK;
    if (!options->load_is_short) TRY(actors_add_worker(self->graph, "data", &load.worker, error));
    TRY(actors_add(self->graph, &load, &actor, error));
    for (int32_t r = 0; r < options->rank_count; r++)
        TRY(actors_connect(self->graph, actor, self->ranks[r].actors[0].number, options->load_places, 0, NULL,
                           error));
    return AM_OK;
}

/* Returns whether the actor is next in its rank's order. */
static AmStatus is_next(void *user, int64_t iteration, bool *is_ready, AmError *error) {
    (void)iteration, (void)error;
    const ScheduledActor *actor = user;
    const RankActors *list = actors_of(actor);
    *is_ready = &list->actors[list->order.actors[list->order.next]] == actor;
    return AM_OK;
}

/* Orders the iterations of a stage in chunks by the schedule. */
static AmStatus order_chunks(Schedule *self, RankActors *list, const InterleavedLoops *iterations,
                             AmError *error) {
    static const int32_t kind_of_pass[] = {FORWARD, BACKWARD, WEIGHTS};
    ScheduleIteration *all;
    int32_t count, actors = 0;
    const ScheduledStage stage = {.kind = SCHEDULE_INTERLEAVED,
                                  .stages = iterations->stage_count,
                                  .stage = iterations->stage,
                                  .micro_batches = iterations->count,
                                  .chunks = iterations->chunks};
    TRY(schedule_iterations(&all, &count, &self->arena, &stage, error));
    for (int32_t g = 0; g < list->count; g++) actors += list->actors[g].iterations;
    list->order = (IterationOrder){.actors = ARENA_ARRAY(&self->arena, int32_t, actors)};
    if (!list->order.actors) return am_fail_memory(error, actors);
    list->order.actors[list->order.count++] = 0;
    for (int32_t k = 0; k < count; k++)
        for (int32_t g = 0; g < list->count; g++)
            if (list->actors[g].kind == kind_of_pass[all[k].pass] && list->actors[g].chunk == all[k].chunk)
                list->order.actors[list->order.count++] = g;
    list->order.actors[list->order.count++] = list->count - 1;
    if (list->order.count == actors) return AM_OK;
    return am_fail(
        error, AM_ERROR_USAGE, "",
        "schedule interleaved_1f1b: a stage whose passes communicate twice needs its devices in one process");
}

/* The rank takes the order that all devices of its stage work out, each in its process. */
static AmStatus keep_order(Schedule *self, RankActors *list, int32_t r, AmError *error) {
    static const int32_t priorities[] = {[BACKWARD] = 1, [FORWARD] = 2, [WEIGHTS] = 0, [PLAIN] = 3};
    const Executable *program = self->options.ranks[r].ready;
    const InterleavedLoops *chunks = NULL;
    for (int32_t s = 0; s < program->program->execution.step_count && !chunks; s++)
        if (iterations_at(program, s) && iterations_at(program, s)->chunks > 1)
            chunks = iterations_at(program, s);
    IterationActor *actors = ARENA_ARRAY(&self->arena, IterationActor, list->count);
    if (!actors) return am_fail_memory(error, list->count);
    for (int32_t g = 0; g < list->count; g++) {
        const ScheduledActor *actor = &list->actors[g];
        actors[g] = (IterationActor){.iterations = actor->iterations, .priority = priorities[actor->kind]};
        TRY(actors_gate(self->graph, actor->number, is_next, &list->actors[g], error));
    }
    if (chunks) return order_chunks(self, list, chunks, error);
    return iteration_order_find(&list->order, &self->arena, actors, list->count, list->edges,
                                list->edge_count, error);
}

/* Ranks with several actors take the order of their stage's first device, where all are in this process. */
static AmStatus follow_order(Schedule *self, int32_t r, AmError *error) {
    const Program *program = self->options.ranks[r].program;
    RankActors *list = &self->ranks[r];
    int32_t leader = program->first_rank - self->options.ranks[0].comm->rank;
    if (list->count == 1 || program->mesh->device_count == 1) return AM_OK;
    if (leader < 0 || leader + program->mesh->device_count > self->options.rank_count)
        return keep_order(self, list, r, error);
    if (leader == r) return AM_OK;
    for (int32_t g = 0; g < list->count; g++)
        TRY(actors_follow(self->graph, list->actors[g].number, self->ranks[leader].actors[g].number, error));
    return AM_OK;
}

AmStatus schedule_open(Schedule **result, const ScheduleOptions *options, AmError *error) {
    Schedule *self = *result = calloc(1, sizeof *self);
    ActorGraphOptions of_graph = {.worker_count = options->rank_count,
                                  .steps = options->steps,
                                  .stall_seconds = options->stall_seconds,
                                  .on_failure = options->on_failure,
                                  .user = options->user};
    if (!self) return am_fail_memory(error, sizeof *self);
    self->options = *options;
    self->ranks = ARENA_ARRAY(&self->arena, RankActors, options->rank_count);
    if (!self->ranks) return am_fail_memory(error, options->rank_count);
    TRY(actors_open(&self->graph, &of_graph, error));
    for (int32_t r = 0; r < options->rank_count; r++) TRY(add_rank(self, r, error));
    for (int32_t r = 0; r < options->rank_count; r++) TRY(follow_order(self, r, error));
    TRY(add_report(self, error));
    const ChannelSet *channels = self->options.channels;
    for (int32_t k = 0; channels && k < channels->count; k++) {
        Channel *channel = channels->channels[k];
        const ScheduledActor *putter = actor_of(self, channel->sender, channel, true);
        const ScheduledActor *getter = actor_of(self, channel->receiver, channel, false);
        TRY(channels_connect(channel, self->graph, putter ? putter->number : -1, getter ? getter->number : -1,
                             error));
    }
    TRY(add_loader(self, error));
    TRY(actors_ready(self->graph, error));
    return options->channels ? channels_start(options->channels, error) : AM_OK;
}

void schedule_close(Schedule *self) {
    if (!self) return;
    if (self->has_loader) {
        actors_stop_after(self->graph, -1); /* loads for steps that never begin */
        actors_finish(self->graph, NULL);
    }
    actors_close(self->graph);
    arena_free(&self->arena);
    free(self);
}

AmStatus schedule_start(Schedule *self, AmError *error) {
    if (self->options.load_places == 0 || self->options.load_is_short || self->options.steps < 1)
        return AM_OK;
    self->has_loader = true;
    return actors_start(self->graph, error);
}

AmStatus schedule_run(Schedule *self, int32_t r, AmError *error) {
    return actors_run_worker(self->graph, r, error);
}

void schedule_abort(Schedule *self, const AmError *error) {
    actors_abort(self->graph, error);
}

void schedule_stop_after(Schedule *self, int64_t step) {
    actors_stop_after(self->graph, step);
}
