/* The data of an actor graph, for the files that build, verify, run and describe it.
 *
 * Every counter has one writing thread: the producer's worker writes the producer's counters, the
 * consumer's worker the consumer's. They are atomic without ordering, so that any thread may read
 * them to describe the graph; the inboxes order memory between workers.
 */
#ifndef EXECUTOR_ACTORS_ACTOR_GRAPH_H
#define EXECUTOR_ACTORS_ACTOR_GRAPH_H

#include "base/arena.h"
#include "executor/actors/actors.h"
#include "executor/actors/inbox.h"

typedef struct ActorEdge {
    /* the consumer's worker writes */
    _Atomic int32_t full;     /* registers that the consumer may read */
    int32_t fed;              /* iterations that the first of them has fed */
    _Atomic int64_t consumed; /* registers that were given back */
    /* never changes */
    int32_t producer, consumer;
    int32_t quota, initial;
    int32_t gather; /* registers per firing of the consumer; one of gather and spread is 1 */
    int32_t spread; /* firings of the consumer per register */
    bool is_grant;  /* from a leader to a follower: full when the leader's iteration begins */
    int32_t mirror; /* the leader's edge that stands for this one of its follower; -1 */
    /* the producer's worker writes */
    bool is_filled;           /* by the iteration that is in work: actors_fill() */
    _Atomic int32_t free;     /* registers that the producer may fill */
    _Atomic int64_t produced; /* registers that were filled, initial ones included */
} ActorEdge;

typedef struct ActorGate {
    ActorReady *ready;
    void *user;
    struct ActorGate *next;
} ActorGate;

typedef struct ActorState {
    Actor actor;
    int32_t leader; /* -1: none */
    ActorGate *gates;
    const int32_t *in_edges, *out_edges; /* [in_count], [out_count] */
    int32_t in_count, out_count;
    /* its worker's */
    int32_t missing;           /* edges that do not let it fire; a large number while it fires */
    bool is_listed;            /* among its worker's ready or gated actors */
    _Atomic int64_t iteration; /* the next, or the one that is in work */
    int64_t end_iteration;     /* the first that it does not do */
    atomic_bool is_acting, is_gated;
} ActorState;

typedef struct ActorWorker {
    ActorGraph *graph;
    Inbox inbox;
    int32_t *ready; /* heap of actors that may fire, best first */
    int32_t ready_count;
    int32_t *gated; /* actors that wait for gates alone */
    int32_t gated_count;
    int32_t *grants; /* ring of followers in the order of their leaders */
    int32_t grant_capacity, grant_head, grant_count;
    int32_t *actors; /* all of this worker's */
    int32_t actor_count;
    int32_t unfinished; /* of them, with iterations left */
    int64_t last_step;  /* as this worker knows it */
    /* Odd: at work, or not yet begun; even: waiting, or finished. Grows with every change. */
    _Atomic int64_t activity;
    atomic_bool is_finished; /* the worker reads no more messages */
    const char *name;        /* of the graph's own workers, else NULL */
    pthread_t thread;
} ActorWorker;

struct ActorGraph {
    Arena arena;
    ActorGraphOptions options;
    ActorState *actors;
    int32_t actor_count, actor_capacity;
    ActorEdge *edges;
    int32_t edge_count, edge_capacity;
    ActorWorker *workers;
    int32_t worker_count, worker_capacity, started_count; /* own threads that were started */
    bool is_ready;
    int32_t spins;
    pthread_mutex_t mutex;         /* guards first_failure, and the growth of the next two */
    _Atomic int64_t highest_begun; /* step of any actor that does not run ahead */
    _Atomic int64_t last_step;     /* falls only */
    atomic_bool has_failed;
    bool has_failure; /* first_failure is set */
    AmError first_failure;
    char failed_actor[64];
};

static inline int32_t actor_group(const ActorGraph *graph, int32_t actor) {
    int32_t leader = graph->actors[actor].leader;
    return leader < 0 ? actor : leader;
}

static inline ActorWorker *actor_worker(const ActorGraph *graph, int32_t actor) {
    return &graph->workers[graph->actors[actor].actor.worker];
}

#define ACTOR_GET(counter)        atomic_load_explicit(&(counter), memory_order_relaxed)
#define ACTOR_SET(counter, value) atomic_store_explicit(&(counter), (value), memory_order_relaxed)

/* Adds an edge without checks (actor_graph.c). */
AmStatus actor_graph_add_edge(ActorGraph *graph, ActorEdge edge, int32_t *index, AmError *error);

/* Makes leaders wait for the inputs of their followers, whose firings they grant. */
AmStatus deadlock_check_mirror(ActorGraph *graph, AmError *error);
/* Lets one step fire on paper, raising quotas. */
AmStatus deadlock_check_prove(ActorGraph *graph, AmError *error);

/* Keeps the first failure, releases and wakes all workers. */
void actor_graph_fail(ActorGraph *graph, const char *actor, const AmError *error);

/* actor_stall.c: a waiting worker's observations of the others. */
typedef struct ActorWatch {
    int64_t seen; /* sum of activities */
    double since; /* when it was first so */
} ActorWatch;

/* Checks for a stall: no worker is active. Fails the graph if it lasts too long. */
void actor_stall_check(ActorGraph *graph, ActorWatch *watch);

#endif
