/* Stalls: detected and reported by waiting workers.
 *
 * No watchdog thread is needed. A waiting worker wakes periodically and sums the counters of all
 * workers: each counter is even while its worker waits and grows when waiting begins or ends. If
 * all are even, no inbox of a waiting worker holds a message and the sum is unchanged, then no
 * worker is active, and none will be except through events outside the graph.
 */
#include <stdio.h>

#include "base/system/clock.h"
#include "executor/actors/actor_graph.h"

enum { MOST_NAMED = 4 };

static bool has_iterations(const ActorGraph *graph, const ActorState *state) {
    return ACTOR_GET(state->iteration) / state->actor.iterations_per_step <= ACTOR_GET(graph->last_step);
}

/* Returns the sum of all workers' activities, or -1 while any of them works or has messages. */
static int64_t sum_if_idle(ActorGraph *graph, bool *waits_outside) {
    int64_t sum = 0;
    *waits_outside = false;
    for (int32_t w = 0; w < graph->worker_count; w++) {
        const ActorWorker *worker = &graph->workers[w];
        int64_t activity = atomic_load(&worker->activity);
        if (activity % 2 != 0) return -1;
        if (!atomic_load(&worker->is_finished) && !inbox_is_empty(&worker->inbox)) return -1;
        sum += activity;
    }
    for (int32_t a = 0; a < graph->actor_count; a++)
        *waits_outside |= ACTOR_GET(graph->actors[a].is_gated) && has_iterations(graph, &graph->actors[a]);
    return sum;
}

void actor_stall_check(ActorGraph *graph, ActorWatch *watch) {
    bool waits_outside;
    int64_t sum = sum_if_idle(graph, &waits_outside);
    if (sum < 0 || sum != watch->seen) {
        watch->seen = sum;
        watch->since = clock_seconds();
        return;
    }
    double seconds = waits_outside ? graph->options.outside_seconds : graph->options.stall_seconds;
    if (seconds <= 0 || clock_seconds() - watch->since < seconds) return;
    char text[512];
    AmError error = {0};
    actors_describe(graph, text, sizeof text);
    am_fail(&error, AM_ERROR_RUNTIME, "", "stalled, as nothing has happened for %g s: %s", seconds, text);
    actor_graph_fail(graph, NULL, &error);
}

/* Describes the event for which an actor waits; false if the graph has no such event. */
static bool describe_wait(const ActorGraph *graph, const ActorState *state, char *text, int32_t size) {
    for (int32_t k = 0; k < state->in_count; k++) {
        const ActorEdge *edge = &graph->edges[state->in_edges[k]];
        int32_t full = ACTOR_GET(edge->full);
        if (full >= edge->gather) continue;
        snprintf(text, (size_t)size, " iteration %lld of %s'%.40s'",
                 (long long)(ACTOR_GET(edge->consumed) + full - edge->initial),
                 edge->is_grant ? "its leader " : "", graph->actors[edge->producer].actor.name);
        return true;
    }
    for (int32_t k = 0; k < state->out_count; k++) {
        const ActorEdge *edge = &graph->edges[state->out_edges[k]];
        if (ACTOR_GET(edge->free) >= 1) continue;
        snprintf(text, (size_t)size, " '%.40s' to give back one of %d register%s",
                 graph->actors[edge->consumer].actor.name, edge->quota, edge->quota == 1 ? "" : "s");
        return true;
    }
    return false;
}

void actors_describe(const ActorGraph *graph, char *text, int32_t size) {
    int32_t used = 0, named = 0, others = 0;
    if (size <= 0) return;
    text[0] = '\0';
    for (int32_t a = 0; a < graph->actor_count; a++) {
        const ActorState *state = &graph->actors[a];
        int64_t iteration = ACTOR_GET(state->iteration);
        char wait[128] = "";
        bool is_acting = ACTOR_GET(state->is_acting), is_gated = ACTOR_GET(state->is_gated);
        if (!has_iterations(graph, state)) continue;
        bool waits = !is_acting && describe_wait(graph, state, wait, sizeof wait);
        if (!is_acting && !is_gated && !waits && state->leader < 0) continue;
        if (named == MOST_NAMED || used >= size - 1) {
            others++;
            continue;
        }
        const char *what = is_acting ? "is in" : "cannot begin";
        used +=
            snprintf(text + used, (size_t)(size - used), "%s'%.40s' %s iteration %lld%s%s", named ? "; " : "",
                     state->actor.name, what, (long long)iteration, is_acting ? "" : " waiting for",
                     is_acting  ? ""
                     : waits    ? wait
                     : is_gated ? " what is outside"
                                : " its place in its leader's order");
        named++;
        if (used > size - 1) used = size - 1;
    }
    if (others > 0 && used < size - 1) snprintf(text + used, (size_t)(size - used), "; and %d more", others);
}
