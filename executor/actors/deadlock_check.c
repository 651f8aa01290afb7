/* Proves before a run that an actor graph cannot deadlock.
 *
 * An actor graph is a marked graph (a Petri net in which each place has one producer and one
 * consumer; Commoner, Holt, Even, Pnueli 1971) with rates: full registers are tokens of an arc from
 * producer to consumer, free ones tokens of an arc back. Firing one actor never disables another,
 * so that the order of firings does not determine which actors can fire; and a step in which every
 * actor makes all its firings leads back to the first marking. If one step can be fired in one
 * order, then any number of steps can be fired in every order that workers choose: the simulation
 * below is the proof (Lee, Messerschmitt 1987). If it stops because no register is free, one is
 * added; if it stops otherwise, the actors of a cycle wait for each other.
 *
 * Followers are bound to their leaders' order, which the simulation does not model. They cannot
 * deadlock either, if every cause that delays a follower also delays its leader. Consider the
 * oldest unused grant. Its leader fired, so that all its inputs had fired before, on leaders, and
 * by older grants, which are all used, on followers too. The follower is therefore enabled, and it
 * is first in its worker's queue. Edges to and from the leader ("mirrors") establish that condition
 * here. If req is sent within a firing (actors_fill()), "fired" means "began": a firing that has
 * begun waits only for its leader's and that one's other followers, whose grants are as old.
 */
#include <string.h>

#include "base/text.h"
#include "executor/actors/actor_graph.h"

enum { MOST_NAMED = 8 };

/* Adds the edge between groups that stands for edge e of a follower, unless there is one that is as
 * strict. */
static AmStatus mirror_edge(ActorGraph *graph, int32_t e, int32_t count, AmError *error) {
    const ActorEdge edge = graph->edges[e];
    int32_t from = actor_group(graph, edge.producer), to = actor_group(graph, edge.consumer);
    if (from == edge.producer && to == edge.consumer) return AM_OK;
    for (int32_t k = 0; k < count; k++) {
        const ActorEdge *other = &graph->edges[k];
        if (other->producer != from || other->consumer != to || other->initial > edge.initial ||
            other->quota - other->initial > edge.quota - edge.initial)
            continue;
        graph->edges[e].mirror = k;
        return AM_OK;
    }
    int32_t mirror;
    TRY(actor_graph_add_edge(
        graph, (ActorEdge){.producer = from, .consumer = to, .quota = edge.quota, .initial = edge.initial},
        &mirror, error));
    graph->edges[e].mirror = mirror;
    return AM_OK;
}

AmStatus deadlock_check_mirror(ActorGraph *graph, AmError *error) {
    /* Checks that a worker follows one other, which follows none. */
    ArenaMark mark = arena_mark(&graph->arena);
    int32_t *follows = ARENA_ARRAY(&graph->arena, int32_t, graph->worker_count + 1); /* worker + 1; 0: none */
    if (!follows) return am_fail_memory(error, (int64_t)sizeof(int32_t) * graph->worker_count);
    AmStatus status = AM_OK;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t a = 0; a < graph->actor_count && status == AM_OK; a++) {
            const ActorState *follower = &graph->actors[a];
            if (follower->leader < 0) continue;
            if (follower->actor.runs_ahead || graph->actors[follower->leader].actor.runs_ahead)
                status = am_fail(error, AM_ERROR_USAGE, "", "'%s' cannot follow '%s' where one runs ahead",
                                 follower->actor.name, graph->actors[follower->leader].actor.name);
            int32_t led = graph->actors[follower->leader].actor.worker;
            int32_t *own = &follows[follower->actor.worker];
            if (*own == 0) *own = led + 1;
            if (*own == led + 1 && (pass == 0 || follows[led] == 0)) continue;
            status = am_fail(
                error, AM_ERROR_USAGE, "",
                "'%s' of worker %d follows '%s' of worker %d: a worker follows one other, which follows none",
                follower->actor.name, follower->actor.worker, graph->actors[follower->leader].actor.name,
                led);
        }
    }
    arena_release(&graph->arena, mark);
    TRY(status);
    int32_t count = graph->edge_count;
    for (int32_t e = 0; e < count; e++) TRY(mirror_edge(graph, e, graph->edge_count, error));
    for (int32_t a = 0; a < graph->actor_count; a++) {
        int32_t leader = graph->actors[a].leader;
        if (leader < 0) continue;
        int32_t ahead = 2 * graph->actors[a].actor.iterations_per_step + 2;
        ActorEdge grant = {.producer = leader, .consumer = a, .quota = ahead, .is_grant = true};
        TRY(actor_graph_add_edge(graph, grant, NULL, error));
    }
    return AM_OK;
}

/* Returns the first edge into the actor that lacks registers, or -1. */
static int32_t find_empty(const ActorGraph *graph, const ActorState *state) {
    for (int32_t k = 0; k < state->in_count; k++)
        if (graph->edges[state->in_edges[k]].full < graph->edges[state->in_edges[k]].gather)
            return state->in_edges[k];
    return -1;
}

/* Moves registers as one iteration of the actor does. */
static void fire(ActorGraph *graph, const ActorState *state) {
    for (int32_t k = 0; k < state->in_count; k++) {
        ActorEdge *edge = &graph->edges[state->in_edges[k]];
        if (++edge->fed < edge->spread) continue;
        edge->fed = 0;
        edge->full -= edge->gather;
        edge->free += edge->gather;
    }
    for (int32_t k = 0; k < state->out_count; k++) {
        ActorEdge *edge = &graph->edges[state->out_edges[k]];
        edge->free--;
        edge->full++;
    }
}

/* A simulated step: the remaining firings of each actor, and the actors to examine. */
typedef struct Trial {
    int32_t *left, *stack, depth;
    bool *is_stacked;
} Trial;

static void push_actor(Trial *trial, int32_t actor) {
    if (trial->is_stacked[actor] || trial->left[actor] == 0) return;
    trial->is_stacked[actor] = true;
    trial->stack[trial->depth++] = actor;
}

/* Fires until nothing on the stack can. */
static void fire_all(ActorGraph *graph, Trial *trial) {
    while (trial->depth > 0) {
        int32_t a = trial->stack[--trial->depth];
        const ActorState *state = &graph->actors[a];
        trial->is_stacked[a] = false;
        bool has_room = true;
        for (int32_t k = 0; k < state->out_count; k++)
            has_room &= graph->edges[state->out_edges[k]].free >= 1;
        if (trial->left[a] == 0 || find_empty(graph, state) >= 0 || !has_room) continue;
        fire(graph, state);
        trial->left[a]--;
        push_actor(trial, a);
        for (int32_t k = 0; k < state->in_count; k++)
            push_actor(trial, graph->edges[state->in_edges[k]].producer);
        for (int32_t k = 0; k < state->out_count; k++)
            push_actor(trial, graph->edges[state->out_edges[k]].consumer);
    }
}

/* Adds registers to the first actor that needs only these; false without one. */
static bool raise_quota(ActorGraph *graph, Trial *trial) {
    for (int32_t a = 0; a < graph->actor_count; a++) {
        const ActorState *state = &graph->actors[a];
        if (trial->left[a] == 0 || find_empty(graph, state) >= 0) continue;
        for (int32_t k = 0; k < state->out_count; k++) {
            ActorEdge *edge = &graph->edges[state->out_edges[k]];
            if (edge->free >= 1) continue;
            edge->quota++;
            edge->free++;
        }
        push_actor(trial, a);
        return true;
    }
    return false;
}

/* Every actor with iterations left waits for a register that another one with iterations left has to fill:
 * going from one to the next ends in a cycle. */
static AmStatus refuse_cycle(const ActorGraph *graph, const Trial *trial, AmError *error) {
    Text names = {0};
    int32_t a = 0, named = 0;
    while (trial->left[a] == 0) a++;
    for (int32_t k = 0; k < graph->actor_count; k++)
        a = graph->edges[find_empty(graph, &graph->actors[a])].producer;
    int32_t first = a;
    do {
        if (named++ < MOST_NAMED) text_append(&names, "'%s' waits for ", graph->actors[a].actor.name);
        a = graph->edges[find_empty(graph, &graph->actors[a])].producer;
    } while (a != first);
    text_append(&names, "%s'%s'", named > MOST_NAMED ? "... for " : "", graph->actors[first].actor.name);
    AmStatus status = names.failed ? am_fail_memory(error, 256)
                                   : am_fail(error, AM_ERROR_USAGE, "",
                                             "actors in a cycle without initial registers: %s", names.data);
    text_free(&names);
    return status;
}

/* Raises the quotas of followers: a follower must not wait for a register where its leader, whose quota was
 * raised, did not. */
static void raise_followers(ActorGraph *graph) {
    for (int32_t e = 0; e < graph->edge_count; e++) {
        ActorEdge *edge = &graph->edges[e];
        if (edge->mirror < 0) continue;
        const ActorEdge *mirror = &graph->edges[edge->mirror];
        int32_t least = mirror->quota - mirror->initial + edge->initial;
        if (edge->quota < least) edge->quota = least;
    }
}

AmStatus deadlock_check_prove(ActorGraph *graph, AmError *error) {
    Trial trial = {0};
    ArenaMark mark = arena_mark(&graph->arena);
    trial.left = ARENA_ARRAY(&graph->arena, int32_t, graph->actor_count + 1);
    trial.stack = ARENA_ARRAY(&graph->arena, int32_t, graph->actor_count + 1);
    trial.is_stacked = ARENA_ARRAY(&graph->arena, bool, graph->actor_count + 1);
    if (graph->arena.failed) return am_fail_memory(error, (int64_t)graph->actor_count * 9);
    int64_t left = 0;
    for (int32_t a = 0; a < graph->actor_count; a++)
        trial.left[a] = graph->actors[a].actor.iterations_per_step;
    for (int32_t a = 0; a < graph->actor_count; a++) push_actor(&trial, a);
    do fire_all(graph, &trial);
    while (raise_quota(graph, &trial));
    for (int32_t a = 0; a < graph->actor_count; a++) left += trial.left[a];
    AmStatus status = left == 0 ? AM_OK : refuse_cycle(graph, &trial, error);
    if (status == AM_OK) raise_followers(graph);
    arena_release(&graph->arena, mark);
    return status;
}
