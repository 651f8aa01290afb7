/* Runs the workers of an actor graph (actors.h).
 *
 * A worker takes its messages, which change the counters of its actors' edges. An actor whose last
 * missing register has arrived joins the heap of enabled actors; the best of them fires, after
 * which its registers are passed on: by messages to other workers, at once if both ends are its
 * own. The cost of a firing is proportional to the actor's edges, for any number of actors. A
 * worker without an enabled actor sleeps in its inbox and periodically checks for a stall
 * (actor_stall.c).
 *
 * The last step. Steps flow without a barrier, so that an actor may be in a step that others have
 * not reached. The first actor of a step therefore begins it under the graph's mutex, and stopping
 * uses the mutex too: the run ends after the highest step that has begun, which all can finish.
 */
#define _POSIX_C_SOURCE 200809L
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/parallel.h"
#include "executor/actors/actor_graph.h"

enum { MESSAGES_AT_ONCE = 64, IN_WORK = INT32_MAX / 2, POLLS = 64 };
#define POLL_SECONDS 50e-6

/* Compares by smaller priority, then earlier step, then earlier added. */
static bool is_better(const ActorGraph *graph, int32_t a, int32_t b) {
    const ActorState *x = &graph->actors[a], *y = &graph->actors[b];
    if (x->actor.priority != y->actor.priority) return x->actor.priority < y->actor.priority;
    int64_t x_step = ACTOR_GET(x->iteration) / x->actor.iterations_per_step;
    int64_t y_step = ACTOR_GET(y->iteration) / y->actor.iterations_per_step;
    return x_step != y_step ? x_step < y_step : a < b;
}

static void heap_push(ActorWorker *worker, int32_t actor) {
    int32_t *heap = worker->ready, k = worker->ready_count++;
    while (k > 0 && is_better(worker->graph, actor, heap[(k - 1) / 2])) {
        heap[k] = heap[(k - 1) / 2];
        k = (k - 1) / 2;
    }
    heap[k] = actor;
}

static int32_t heap_pop(ActorWorker *worker) {
    int32_t *heap = worker->ready, best = heap[0], last = heap[--worker->ready_count], k = 0;
    for (;;) {
        int32_t child = 2 * k + 1;
        if (child >= worker->ready_count) break;
        if (child + 1 < worker->ready_count && is_better(worker->graph, heap[child + 1], heap[child]))
            child++;
        if (!is_better(worker->graph, heap[child], last)) break;
        heap[k] = heap[child];
        k = child;
    }
    heap[k] = last;
    return best;
}

/* Returns the follower whose iteration is next in its leader's order, or -1. */
static int32_t first_granted(const ActorWorker *worker) {
    return worker->grant_count > 0 ? worker->grants[worker->grant_head] : -1;
}

/* Lists an enabled actor: in the heap, or among those whose gates are polled. */
static void list_if_ready(ActorWorker *worker, int32_t a) {
    ActorState *state = &worker->graph->actors[a];
    if (state->missing > 0 || state->is_listed || ACTOR_GET(state->iteration) >= state->end_iteration) return;
    if (state->leader >= 0 && first_granted(worker) != a) return;
    state->is_listed = true;
    if (!state->gates) {
        heap_push(worker, a);
        return;
    }
    ACTOR_SET(state->is_gated, true);
    worker->gated[worker->gated_count++] = a;
}

/* Receives a message to an actor of this worker. */
static void receive_message(ActorWorker *worker, InboxMessage message) {
    ActorEdge *edge = &worker->graph->edges[message.edge];
    int32_t a = message.kind == INBOX_REQ ? edge->consumer : edge->producer;
    int32_t needed = message.kind == INBOX_REQ ? edge->gather : 1;
    _Atomic int32_t *counter = message.kind == INBOX_REQ ? &edge->full : &edge->free;
    int32_t old = ACTOR_GET(*counter);
    ACTOR_SET(*counter, old + message.count);
    if (edge->is_grant && message.kind == INBOX_REQ) {
        worker->grants[(worker->grant_head + worker->grant_count++) % worker->grant_capacity] = a;
        int32_t first = first_granted(worker);
        if (first != a) list_if_ready(worker, first);
    }
    if (old < needed && old + message.count >= needed) worker->graph->actors[a].missing--;
    list_if_ready(worker, a);
}

static void send_message(ActorWorker *worker, int32_t actor, InboxMessage message) {
    ActorWorker *to = actor_worker(worker->graph, actor);
    if (to == worker) receive_message(worker, message);
    else inbox_post(&to->inbox, message);
}

static void wake_all(ActorGraph *graph) {
    if (!graph->is_ready) return;
    for (int32_t w = 0; w < graph->worker_count; w++) inbox_alert(&graph->workers[w].inbox);
}

void actor_graph_fail(ActorGraph *graph, const char *actor, const AmError *error) {
    pthread_mutex_lock(&graph->mutex);
    bool is_first = !graph->has_failure;
    if (is_first) {
        graph->has_failure = true;
        graph->first_failure = *error;
        if (actor) snprintf(graph->failed_actor, sizeof graph->failed_actor, "%s", actor);
    }
    pthread_mutex_unlock(&graph->mutex);
    if (!is_first) return;
    if (graph->options.on_failure) graph->options.on_failure(graph->options.user);
    atomic_store(&graph->has_failed, true);
    wake_all(graph);
}

void actors_abort(ActorGraph *graph, const AmError *error) {
    actor_graph_fail(graph, NULL, error);
}

AmStatus actors_failure(ActorGraph *graph, AmError *error) {
    pthread_mutex_lock(&graph->mutex);
    AmStatus status = graph->has_failure ? graph->first_failure.code : AM_OK;
    if (status != AM_OK && error && error->code == AM_OK) *error = graph->first_failure;
    pthread_mutex_unlock(&graph->mutex);
    return status;
}

int64_t actors_stop_after(ActorGraph *graph, int64_t step) {
    pthread_mutex_lock(&graph->mutex);
    int64_t begun = ACTOR_GET(graph->highest_begun), last = ACTOR_GET(graph->last_step);
    if (step < begun) step = begun;
    if (step < last) ACTOR_SET(graph->last_step, last = step);
    pthread_mutex_unlock(&graph->mutex);
    wake_all(graph);
    return last;
}

/* Returns whether the actor's next iteration belongs to the run; notes that its step has begun. */
static bool may_begin(ActorGraph *graph, const ActorState *state) {
    int64_t step = ACTOR_GET(state->iteration) / state->actor.iterations_per_step;
    if (state->actor.runs_ahead) return step <= ACTOR_GET(graph->last_step);
    if (step <= ACTOR_GET(graph->highest_begun)) return true;
    pthread_mutex_lock(&graph->mutex);
    bool may = step <= ACTOR_GET(graph->last_step);
    if (may && step > ACTOR_GET(graph->highest_begun)) ACTOR_SET(graph->highest_begun, step);
    pthread_mutex_unlock(&graph->mutex);
    return may;
}

/* Notes how many iterations are left where the last step has changed. */
static void follow_last_step(ActorWorker *worker) {
    int64_t last = ACTOR_GET(worker->graph->last_step);
    if (last == worker->last_step) return;
    worker->last_step = last;
    worker->unfinished = 0;
    for (int32_t k = 0; k < worker->actor_count; k++) {
        ActorState *state = &worker->graph->actors[worker->actors[k]];
        state->end_iteration = (last + 1) * state->actor.iterations_per_step;
        worker->unfinished += ACTOR_GET(state->iteration) < state->end_iteration;
    }
}

/* Counts the actor's edges that do not let it fire. */
static int32_t count_missing(const ActorGraph *graph, const ActorState *state) {
    int32_t missing = 0;
    for (int32_t k = 0; k < state->in_count; k++) {
        const ActorEdge *edge = &graph->edges[state->in_edges[k]];
        missing += ACTOR_GET(edge->full) < edge->gather;
    }
    for (int32_t k = 0; k < state->out_count; k++)
        missing += ACTOR_GET(graph->edges[state->out_edges[k]].free) < 1;
    return missing;
}

/* Passes the registers that a firing fills to the consumer. */
static void fill_register(ActorWorker *worker, int32_t e) {
    ActorEdge *edge = &worker->graph->edges[e];
    ACTOR_SET(edge->free, ACTOR_GET(edge->free) - 1);
    ACTOR_SET(edge->produced, ACTOR_GET(edge->produced) + 1);
    send_message(worker, edge->consumer, (InboxMessage){.kind = INBOX_REQ, .edge = e, .count = 1});
}

void actors_fill(ActorGraph *graph, int32_t e) {
    ActorEdge *edge = &graph->edges[e];
    ActorWorker *worker = actor_worker(graph, edge->producer);
    if (edge->is_filled || actor_worker(graph, edge->consumer) == worker) return;
    edge->is_filled = true;
    fill_register(worker, e);
}

/* Fires an actor once. */
static AmStatus fire(ActorWorker *worker, int32_t a, AmError *error) {
    ActorGraph *graph = worker->graph;
    ActorState *state = &graph->actors[a];
    state->missing = IN_WORK;
    if (state->leader >= 0) {
        worker->grant_head = (worker->grant_head + 1) % worker->grant_capacity;
        worker->grant_count--;
    }
    for (int32_t k = 0; k < state->out_count; k++)
        if (graph->edges[state->out_edges[k]].is_grant) fill_register(worker, state->out_edges[k]);
    const ActorGraphOptions *options = &graph->options;
    int64_t iteration = ACTOR_GET(state->iteration);
    double begin = options->on_iteration ? clock_seconds() : 0;
    ACTOR_SET(state->is_acting, true);
    AmStatus status = state->actor.act(state->actor.user, iteration, error);
    ACTOR_SET(state->is_acting, false);
    if (options->on_iteration && status == AM_OK)
        options->on_iteration(options->user, a, iteration, begin, clock_seconds());
    TRY(status);
    /* Registers that were not passed before the end of the firing: */
    ActorEdge *edges = worker->graph->edges;
    for (int32_t k = 0; k < state->out_count; k++) {
        ActorEdge *edge = &edges[state->out_edges[k]];
        if (!edge->is_grant && !edge->is_filled) fill_register(worker, state->out_edges[k]);
        edge->is_filled = false;
    }
    for (int32_t k = 0; k < state->in_count; k++) {
        /* Registers return to their producer after their last read. */
        ActorEdge *edge = &worker->graph->edges[state->in_edges[k]];
        if (++edge->fed < edge->spread) continue;
        edge->fed = 0;
        ACTOR_SET(edge->full, ACTOR_GET(edge->full) - edge->gather);
        ACTOR_SET(edge->consumed, ACTOR_GET(edge->consumed) + edge->gather);
        send_message(worker, edge->producer,
                     (InboxMessage){.kind = INBOX_ACK, .edge = state->in_edges[k], .count = edge->gather});
    }
    ACTOR_SET(state->iteration, ACTOR_GET(state->iteration) + 1);
    worker->unfinished -= ACTOR_GET(state->iteration) == state->end_iteration;
    state->missing = count_missing(graph, state);
    state->is_listed = false;
    list_if_ready(worker, a);
    int32_t first = first_granted(worker);
    if (first >= 0) list_if_ready(worker, first);
    return AM_OK;
}

/* Queries the gates of the actors that wait for nothing else. */
static AmStatus query_gates(ActorWorker *worker, AmError *error) {
    for (int32_t k = 0; k < worker->gated_count;) {
        ActorState *state = &worker->graph->actors[worker->gated[k]];
        bool is_ready = true;
        for (const ActorGate *gate = state->gates; gate && is_ready; gate = gate->next)
            TRY(gate->ready(gate->user, ACTOR_GET(state->iteration), &is_ready, error));
        if (!is_ready) {
            k++;
            continue;
        }
        ACTOR_SET(state->is_gated, false);
        heap_push(worker, worker->gated[k]);
        worker->gated[k] = worker->gated[--worker->gated_count];
    }
    return AM_OK;
}

/* Waits until there is a message or a gate has opened. */
static AmStatus wait_for_work(ActorWorker *worker, AmError *error) {
    ActorGraph *graph = worker->graph;
    ActorWatch watch = {.seen = -1};
    double seconds = graph->options.stall_seconds / 4;
    if (seconds > 0.5) seconds = 0.5;
    AmStatus status = AM_OK;
    ACTOR_SET(worker->activity, ACTOR_GET(worker->activity) + 1);
    for (int64_t queries = 0; worker->ready_count == 0 && status == AM_OK; queries++) {
        bool polls = worker->gated_count > 0;
        if (polls && queries < POLLS) sched_yield();
        if (inbox_wait(&worker->inbox, polls || worker->name ? -1 : graph->spins,
                       !polls            ? seconds
                       : queries < POLLS ? 0
                                         : POLL_SECONDS))
            break;
        actor_stall_check(graph, &watch);
        status = query_gates(worker, error);
    }
    ACTOR_SET(worker->activity, ACTOR_GET(worker->activity) + 1);
    return status;
}

static AmStatus run_until_end(ActorWorker *worker, AmError *error) {
    ActorGraph *graph = worker->graph;
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < worker->actor_count; k++) {
        ActorState *state = &graph->actors[worker->actors[k]];
        state->missing = count_missing(graph, state);
    }
    follow_last_step(worker);
    for (int32_t k = 0; k < worker->actor_count; k++) list_if_ready(worker, worker->actors[k]);
    while (status == AM_OK) {
        InboxMessage messages[MESSAGES_AT_ONCE];
        int32_t count;
        while ((count = inbox_take(&worker->inbox, messages, MESSAGES_AT_ONCE)) > 0)
            for (int32_t n = 0; n < count; n++) receive_message(worker, messages[n]);
        if (atomic_load_explicit(&graph->has_failed, memory_order_acquire)) {
            /* A stall, and a failure outside of the graph, belong to every worker. */
            if (graph->failed_actor[0] == '\0') return actors_failure(graph, error);
            return am_fail(error, AM_ERROR_RUNTIME, "", "stopped because another actor failed: '%s'",
                           graph->failed_actor);
        }
        follow_last_step(worker);
        if (worker->unfinished == 0) return AM_OK;
        if (worker->gated_count > 0) status = query_gates(worker, error);
        if (status != AM_OK) break;
        if (worker->ready_count == 0) {
            status = wait_for_work(worker, error);
            continue;
        }
        int32_t a = heap_pop(worker);
        if (!may_begin(graph, &graph->actors[a])) continue; /* the run ends before this iteration */
        status = fire(worker, a, error);
        if (status != AM_OK) {
            actor_graph_fail(graph, graph->actors[a].actor.name, error);
            return status;
        }
    }
    actor_graph_fail(graph, NULL, error);
    return status;
}

AmStatus actors_run_worker(ActorGraph *graph, int32_t w, AmError *error) {
    ActorWorker *worker = &graph->workers[w];
    AmError own = {0};
    AmStatus status = run_until_end(worker, &own);
    atomic_store(&worker->is_finished, true);
    atomic_store(&worker->activity, (ACTOR_GET(worker->activity) | 1) + 1);
    if (status != AM_OK && error && error->code == AM_OK) *error = own;
    return status;
}

static void *run_own_worker(void *argument) {
    ActorWorker *worker = argument;
    actors_run_worker(worker->graph, (int32_t)(worker - worker->graph->workers), NULL);
    return NULL;
}

AmStatus actors_start(ActorGraph *graph, AmError *error) {
    for (int32_t w = graph->options.worker_count; w < graph->worker_count; w++) {
        ActorWorker *worker = &graph->workers[w];
        AmStatus status = parallel_start_thread(&worker->thread, run_own_worker, worker, error);
        if (status != AM_OK) {
            actors_abort(graph, error);
            return status;
        }
        graph->started_count++;
    }
    return AM_OK;
}

AmStatus actors_finish(ActorGraph *graph, AmError *error) {
    for (int32_t k = 0; k < graph->started_count; k++)
        pthread_join(graph->workers[graph->options.worker_count + k].thread, NULL);
    graph->started_count = 0;
    return actors_failure(graph, error);
}
