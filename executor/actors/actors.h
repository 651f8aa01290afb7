/* Actors with credits (OneFlow, section 4).
 *
 * An actor repeats one action in the thread of its worker; a firing is one repetition. An edge
 * joins a producer to a consumer by a fixed number of registers, its quota: a firing of the
 * producer fills one and sends req, a firing of the consumer waits for its inputs and sends ack
 * after its last read. An actor is enabled when all its input registers are full and every outgoing
 * edge has a free register; among its enabled actors a worker takes the one with the best priority.
 * There is no other scheduler and no barrier: pipeline schedules result from quotas (S - s
 * registers between forward and backward of stage s: 1F1B; M: GPipe) and from priorities, and the
 * quotas bound memory. docs/running.md has the theory.
 *
 * Rates: an actor has `iterations_per_step` firings in a step (1, or the number of micro-batches). On an
 * edge one end's must divide the other's: either each register feeds several firings of the
 * consumer, which returns it after the last, or each firing of the consumer takes several registers
 * and returns them all. Firings are counted from 0 over the whole run.
 *
 * Use: actors_open(), actors_add(), actors_connect(), actors_ready(); then every worker in a thread
 * of its own by actors_run_worker(), graph-owned workers by actors_start() and actors_finish();
 * actors_close(). The building functions are for one thread; functions for later calls state so.
 * Workers allocate no memory while they run.
 */
#ifndef EXECUTOR_ACTORS_ACTORS_H
#define EXECUTOR_ACTORS_ACTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ActorGraph ActorGraph;

typedef struct ActorGraphOptions {
    int32_t worker_count; /* threads of the caller: workers 0 .. worker_count - 1 */
    int64_t steps; /* every actor does iterations_per_step * steps iterations; 0: until actors_stop_after() */
    /* The time without active workers and firings after which the run fails; the error names the
     * actors that wait and their inputs; 0: 10 s. */
    double stall_seconds;
    /* That time while an actor waits for an event outside the graph (actors_gate()); 0: unlimited. */
    double outside_seconds;
    /* Called once, by the worker that failed (or by actors_abort()), before the others are
     * notified: it releases workers that wait inside act(), such as by CommBackEnd.abort. May be
     * NULL. */
    void (*on_failure)(void *user);
    /* Called after each firing by the actor's worker, with the times at which act() began and ended
     * (clock_seconds()). May be NULL. */
    void (*on_iteration)(void *user, int32_t actor, int64_t iteration, double begin, double end);
    void *user;
} ActorGraphOptions;

typedef struct Actor {
    const char *name; /* for errors; copied */
    int32_t worker;
    int32_t priority; /* the smallest fires first; then the earlier step, then the order of adding */
    int32_t iterations_per_step; /* 1 .. ACTORS_MAX_ITERATIONS */
    /* Firings of this actor after the last step have no effect (data fetched in advance), so that
     * it may begin steps that are never finished: actors_stop_after() does not wait for it. */
    bool runs_ahead;
    /* One firing. Its input registers are full, its output registers are free. A failure ends the
     * run. */
    AmStatus (*act)(void *user, int64_t iteration, AmError *error);
    void *user;
} Actor;

enum { ACTORS_MAX_ITERATIONS = 1 << 16 };

/* Makes an empty graph with the caller's workers. AM_ERROR_USAGE: too many workers, or negative steps. */
AmStatus actors_open(ActorGraph **graph, const ActorGraphOptions *options, AmError *error);
/* Ends workers that still run, waits for the graph's own; the caller's must have returned. NULL is fine. */
void actors_close(ActorGraph *graph);

/* Adds a worker that is a thread of the graph's own: for input and output beside the ranks. */
AmStatus actors_add_worker(ActorGraph *graph, const char *name, int32_t *worker, AmError *error);

/* Adds an actor to a worker. AM_ERROR_USAGE: no such worker, or a number of iterations out of range. */
AmStatus actors_add(ActorGraph *graph, const Actor *actor, int32_t *index, AmError *error);

/* Adds registers from producer to consumer. `initial` of them are full before the first firing:
 * firing t of the consumer then needs the producer's firing t - initial (edges that close a cycle,
 * such as updated weights, have 1). actors_ready() raises a quota that would block, such as one
 * below the registers of a firing. `edge` may be NULL. AM_ERROR_USAGE if no rate divides the other. */
AmStatus actors_connect(ActorGraph *graph, int32_t producer, int32_t consumer, int32_t quota, int32_t initial,
                        int32_t *edge, AmError *error);

/* Makes `follower` fire in the order in which `leader` and the other leaders of that worker fired:
 * each firing of the leader grants one as it begins. The collectives of a stage's devices inside
 * act() therefore have one order on all of them. Both have the same iterations_per_step. All leaders of
 * a worker belong to one other worker, which has no leader. actors_ready() makes the leader wait
 * for all inputs of its followers. */
AmStatus actors_follow(ActorGraph *graph, int32_t follower, int32_t leader, AmError *error);

/* Makes the actor also wait until ready() returns true: for events outside the graph, such as a
 * message from another process. The actor's worker polls it once all other inputs are there, so
 * that it must be cheap, and not again after it has returned true for that firing. May be called
 * several times for one actor. */
typedef AmStatus ActorReady(void *user, int64_t iteration, bool *is_ready, AmError *error);
AmStatus actors_gate(ActorGraph *graph, int32_t actor, ActorReady *ready, void *user, AmError *error);

/* Rounds in which one of so many workers looks for messages before it offers its processor (spin_wait.h). */
int32_t actors_spins(int32_t worker_count);

/* Ends the building: lets one step fire on paper, which proves that every step can (a marked graph returns to
 * its first state), raising quotas where they block, and allocates. AM_ERROR_USAGE names the actors of a
 * cycle that has no initial registers. */
AmStatus actors_ready(ActorGraph *graph, AmError *error);

/* Registers of an edge after actors_ready(): so much memory it needs. */
int32_t actors_quota(const ActorGraph *graph, int32_t edge);

/* Marks the output of this firing on the edge as full, so that its consumer may begin during the rest of the
 * firing. To be called in act(), once per firing, and without later writes to the register. Without effect
 * if the consumer has the same worker. */
void actors_fill(ActorGraph *graph, int32_t edge);

/* Runs a worker in the calling thread until its actors have done their last iteration. AM_ERROR_RUNTIME: an
 * actor failed, here (its own error) or elsewhere ("stopped because another actor failed"), or a stall. */
AmStatus actors_run_worker(ActorGraph *graph, int32_t worker, AmError *error);

/* Starts the graph's own workers, after actors_ready(). */
AmStatus actors_start(ActorGraph *graph, AmError *error);
/* Waits for them, and gives the first failure of any worker, if there was one. Once all callers' workers have
 * returned. */
AmStatus actors_finish(ActorGraph *graph, AmError *error);

/* Returns the run ends after `step`, or after the last step that an actor has already begun if that is later
 * (actors that run ahead do not count); returns which. Any thread, any time after actors_ready(). */
int64_t actors_stop_after(ActorGraph *graph, int64_t step);
/* Ends the run now: `error` is its first failure if there was none. Any thread. */
void actors_abort(ActorGraph *graph, const AmError *error);
/* Returns AM_ERROR_RUNTIME or the status of the first failure, with its text; AM_OK without one.
 * Any thread. */
AmStatus actors_failure(ActorGraph *graph, AmError *error);

/* Describes the state for people: "'F1' is in iteration 7; 'B0' iteration 3 waits for 'B1' iteration 3". At
 * most four actors. Any thread. */
void actors_describe(const ActorGraph *graph, char *text, int32_t size);

#endif
