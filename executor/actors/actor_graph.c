/* Building an actor graph: actors, edges, and the arrays that running needs.
 *
 * The room of an inbox follows from the quotas. A register of an edge is free at its producer, in
 * a req that is under way, full at its consumer, or in an ack that is under way. So each direction of an edge
 * has at most as many messages under way as its quota. A worker's inbox has room for the quotas of the edges
 * that come from other workers (req) and that go to them (ack).
 */
#include "executor/actors/actor_graph.h"

#include <stdlib.h>

#include "base/system/process.h"

enum { MAX_WORKERS = 4096, MAX_QUOTA = 1 << 20, SPINS = 2000 };

AmStatus actors_open(ActorGraph **result, const ActorGraphOptions *options, AmError *error) {
    if (options->worker_count < 0 || options->worker_count > MAX_WORKERS || options->steps < 0)
        return am_fail(error, AM_ERROR_USAGE, "", "an actor graph has 0 to %d workers and no negative steps",
                       MAX_WORKERS);
    ActorGraph *graph = calloc(1, sizeof *graph);
    if (!graph) return am_fail_memory(error, (int64_t)sizeof *graph);
    const int64_t most = INT64_MAX / ACTORS_MAX_ITERATIONS;
    graph->options = *options;
    if (graph->options.stall_seconds <= 0) graph->options.stall_seconds = 10;
    atomic_init(&graph->highest_begun, -1);
    atomic_init(&graph->last_step, (options->steps > 0 && options->steps < most ? options->steps : most) - 1);
    atomic_init(&graph->has_failed, false);
    pthread_mutex_init(&graph->mutex, NULL);
    for (int32_t w = 0; w < options->worker_count; w++) {
        int32_t worker;
        AmStatus status = actors_add_worker(graph, NULL, &worker, error);
        if (status == AM_OK) continue;
        actors_close(graph);
        return status;
    }
    *result = graph;
    return AM_OK;
}

void actors_close(ActorGraph *graph) {
    static const AmError closed = {.code = AM_ERROR_RUNTIME, .text = "the actor graph was closed"};
    if (!graph) return;
    if (graph->started_count > 0) {
        actors_abort(graph, &closed);
        actors_finish(graph, NULL);
    }
    for (int32_t w = 0; w < graph->worker_count; w++) inbox_close(&graph->workers[w].inbox);
    pthread_mutex_destroy(&graph->mutex);
    arena_free(&graph->arena);
    free(graph);
}

static AmStatus check_building(const ActorGraph *graph, AmError *error) {
    if (!graph->is_ready) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, "", "an actor graph that is ready cannot be changed");
}

AmStatus actors_add_worker(ActorGraph *graph, const char *name, int32_t *worker, AmError *error) {
    TRY(check_building(graph, error));
    if (graph->worker_count == MAX_WORKERS)
        return am_fail(error, AM_ERROR_USAGE, "", "an actor graph has at most %d workers", MAX_WORKERS);
    ARENA_RESERVE(&graph->arena, graph->workers, graph->worker_count, graph->worker_capacity);
    const char *copy = name ? arena_copy_string(&graph->arena, name) : NULL;
    if (graph->arena.failed) return am_fail_memory(error, (int64_t)sizeof(ActorWorker));
    *worker = graph->worker_count++;
    graph->workers[*worker] = (ActorWorker){.name = copy};
    return AM_OK;
}

AmStatus actors_add(ActorGraph *graph, const Actor *actor, int32_t *index, AmError *error) {
    TRY(check_building(graph, error));
    if (actor->worker < 0 || actor->worker >= graph->worker_count)
        return am_fail(error, AM_ERROR_USAGE, "", "actor '%s' has worker %d of %d", actor->name,
                       actor->worker, graph->worker_count);
    if (actor->iterations_per_step < 1 || actor->iterations_per_step > ACTORS_MAX_ITERATIONS)
        return am_fail(error, AM_ERROR_USAGE, "", "actor '%s' has %d iterations a step (expected 1 to %d)",
                       actor->name, actor->iterations_per_step, ACTORS_MAX_ITERATIONS);
    ARENA_RESERVE(&graph->arena, graph->actors, graph->actor_count, graph->actor_capacity);
    const char *name = arena_copy_string(&graph->arena, actor->name);
    if (graph->arena.failed) return am_fail_memory(error, (int64_t)sizeof(ActorState));
    ActorState *state = &graph->actors[graph->actor_count];
    *state = (ActorState){.actor = *actor, .leader = -1};
    state->actor.name = name;
    *index = graph->actor_count++;
    return AM_OK;
}

static AmStatus check_actor(const ActorGraph *graph, int32_t actor, AmError *error) {
    if (actor >= 0 && actor < graph->actor_count) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "there is no actor %d among %d", actor, graph->actor_count);
}

AmStatus actor_graph_add_edge(ActorGraph *graph, ActorEdge edge, int32_t *index, AmError *error) {
    int32_t from = graph->actors[edge.producer].actor.iterations_per_step;
    int32_t to = graph->actors[edge.consumer].actor.iterations_per_step;
    ARENA_RESERVE(&graph->arena, graph->edges, graph->edge_count, graph->edge_capacity);
    if (graph->arena.failed) return am_fail_memory(error, (int64_t)sizeof(ActorEdge));
    edge.gather = from > to ? from / to : 1;
    edge.spread = from > to ? 1 : to / from;
    edge.mirror = -1;
    if (index) *index = graph->edge_count;
    graph->edges[graph->edge_count++] = edge;
    return AM_OK;
}

AmStatus actors_connect(ActorGraph *graph, int32_t producer, int32_t consumer, int32_t quota, int32_t initial,
                        int32_t *edge, AmError *error) {
    TRY(check_building(graph, error));
    TRY(check_actor(graph, producer, error));
    TRY(check_actor(graph, consumer, error));
    const Actor *from = &graph->actors[producer].actor, *to = &graph->actors[consumer].actor;
    if (from->iterations_per_step % to->iterations_per_step != 0 &&
        to->iterations_per_step % from->iterations_per_step != 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "'%s' has %d iterations a step and '%s' %d: one must divide the other", from->name,
                       from->iterations_per_step, to->name, to->iterations_per_step);
    if (quota < 1 || quota > MAX_QUOTA || initial < 0 || initial > MAX_QUOTA)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "from '%s' to '%s': %d registers, %d of them full, where 1 to %d can be", from->name,
                       to->name, quota, initial, MAX_QUOTA);
    return actor_graph_add_edge(graph,
                                (ActorEdge){.producer = producer,
                                            .consumer = consumer,
                                            .quota = quota > initial ? quota : initial,
                                            .initial = initial},
                                edge, error);
}

AmStatus actors_follow(ActorGraph *graph, int32_t follower, int32_t leader, AmError *error) {
    TRY(check_building(graph, error));
    TRY(check_actor(graph, follower, error));
    TRY(check_actor(graph, leader, error));
    if (graph->actors[follower].actor.iterations_per_step != graph->actors[leader].actor.iterations_per_step)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "'%s' cannot follow '%s', which has another number of iterations a step",
                       graph->actors[follower].actor.name, graph->actors[leader].actor.name);
    graph->actors[follower].leader = leader;
    return AM_OK;
}

AmStatus actors_gate(ActorGraph *graph, int32_t actor, ActorReady *ready, void *user, AmError *error) {
    TRY(check_building(graph, error));
    TRY(check_actor(graph, actor, error));
    ActorGate *gate = ARENA_ARRAY(&graph->arena, ActorGate, 1);
    if (!gate) return am_fail_memory(error, (int64_t)sizeof *gate);
    *gate = (ActorGate){.ready = ready, .user = user, .next = graph->actors[actor].gates};
    graph->actors[actor].gates = gate;
    return AM_OK;
}

static void fill_registers(ActorGraph *graph) {
    for (int32_t e = 0; e < graph->edge_count; e++) {
        ActorEdge *edge = &graph->edges[e];
        edge->fed = 0;
        ACTOR_SET(edge->full, edge->initial);
        ACTOR_SET(edge->free, edge->quota - edge->initial);
        ACTOR_SET(edge->consumed, 0);
        ACTOR_SET(edge->produced, edge->initial);
    }
}

/* Prepares a worker: its actors, lists of them, and an inbox. */
static AmStatus prepare_worker(ActorGraph *graph, int32_t w, AmError *error) {
    ActorWorker *worker = &graph->workers[w];
    Arena *arena = &graph->arena;
    int64_t messages = 0, grants = 0;
    for (int32_t e = 0; e < graph->edge_count; e++) {
        const ActorEdge *edge = &graph->edges[e];
        int32_t from = graph->actors[edge->producer].actor.worker;
        int32_t to = graph->actors[edge->consumer].actor.worker;
        if (from != to && (from == w || to == w)) messages += edge->quota;
        if (to == w && edge->is_grant) grants += edge->quota;
    }
    for (int32_t a = 0; a < graph->actor_count; a++)
        worker->actor_count += graph->actors[a].actor.worker == w;
    worker->actors = ARENA_ARRAY(arena, int32_t, worker->actor_count + 1);
    worker->ready = ARENA_ARRAY(arena, int32_t, worker->actor_count + 1);
    worker->gated = ARENA_ARRAY(arena, int32_t, worker->actor_count + 1);
    worker->grants = ARENA_ARRAY(arena, int32_t, grants + 1);
    if (arena->failed) return am_fail_memory(error, (grants + worker->actor_count) * 12);
    worker->grant_capacity = (int32_t)grants + 1;
    worker->actor_count = 0;
    for (int32_t a = 0; a < graph->actor_count; a++)
        if (graph->actors[a].actor.worker == w) worker->actors[worker->actor_count++] = a;
    worker->graph = graph;
    worker->last_step = -1;
    atomic_init(&worker->activity, 1);
    return inbox_open(&worker->inbox, messages, error);
}

int32_t actors_spins(int32_t worker_count) {
    return worker_count <= process_processors() ? SPINS : 0;
}

AmStatus actors_ready(ActorGraph *graph, AmError *error) {
    TRY(check_building(graph, error));
    TRY(deadlock_check_mirror(graph, error));
    /* The edges of every actor, in the order of adding, with the counters before the first iteration. */
    int32_t *in = ARENA_ARRAY(&graph->arena, int32_t, graph->edge_count + 1);
    int32_t *out = ARENA_ARRAY(&graph->arena, int32_t, graph->edge_count + 1);
    if (!in || !out) return am_fail_memory(error, (int64_t)graph->edge_count * 8);
    for (int32_t e = 0; e < graph->edge_count; e++) {
        graph->actors[graph->edges[e].consumer].in_count++;
        graph->actors[graph->edges[e].producer].out_count++;
    }
    for (int32_t a = 0; a < graph->actor_count; a++) {
        ActorState *state = &graph->actors[a];
        state->in_edges = in;
        state->out_edges = out;
        in += state->in_count;
        out += state->out_count;
        state->in_count = state->out_count = 0;
    }
    for (int32_t e = 0; e < graph->edge_count; e++) {
        ActorState *producer = &graph->actors[graph->edges[e].producer];
        ActorState *consumer = &graph->actors[graph->edges[e].consumer];
        ((int32_t *)consumer->in_edges)[consumer->in_count++] = e;
        ((int32_t *)producer->out_edges)[producer->out_count++] = e;
    }
    fill_registers(graph);
    TRY(deadlock_check_prove(graph, error));
    fill_registers(graph);
    for (int32_t w = 0; w < graph->worker_count; w++) TRY(prepare_worker(graph, w, error));
    /* Watching a counter helps only where who writes it runs at the same time. The callers' workers do; the
     * graph's own are for input and output, and sleep. */
    graph->spins = actors_spins(graph->options.worker_count);
    graph->is_ready = true;
    return AM_OK;
}

int32_t actors_quota(const ActorGraph *graph, int32_t edge) {
    return graph->edges[edge].quota;
}
