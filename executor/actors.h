/* Actors with credits: who may work now (OneFlow, section 4).
 *
 * An actor does one thing, turn after turn, in the thread of its worker. An edge
 * joins a producer to a consumer by a fixed number of registers, its quota: a
 * turn of the producer fills one and sends req, a turn of the consumer waits for
 * what it needs and sends ack when it needs it no more. An actor fires when all its
 * in-registers are full and it has a free register on every edge that leaves
 * it; of those that may, a worker takes the one with the best priority. There is no
 * other scheduler and no barrier: pipeline schedules come out of quotas (S - s
 * registers between forward and backward of stage s: 1F1B; M: GPipe) and of
 * priorities, and memory is bounded by the quotas. docs/actors.md has the theory.
 *
 * Rates: an actor has `turns_per_step` turns in a step (1, or the number of
 * micro-batches). On an edge one end's must divide the other's: either each register
 * feeds several turns of the consumer, which gives it back after the last, or
 * each turn of the consumer takes several registers and gives them all back.
 * Turns are counted from 0 over the whole run.
 *
 * Use: actors_open(), actors_add(), actors_connect(), actors_ready(); then every
 * worker in a thread of its own by actors_run_worker(), graph-owned workers by
 * actors_start() and actors_finish(); actors_close(). The building functions are
 * for one thread; what may be called later says so. Nothing is allocated while
 * workers run.
 */
#ifndef EXECUTOR_ACTORS_H
#define EXECUTOR_ACTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ActorGraph ActorGraph;

typedef struct ActorGraphOptions {
    int32_t worker_count; /* threads of the caller: workers 0 .. worker_count - 1 */
    int64_t steps;        /* every actor does turns_per_step * steps turns; 0: until actors_stop_after() */
    /* Nothing is in work and nothing has fired for so long: the run fails and the error
     * names who waits for what; 0: 10 s. */
    double stall_seconds;
    /* The same where somebody waits for what is outside the graph (actors_gate()); 0: for ever. */
    double outside_seconds;
    /* Called once, by the worker that failed (or by actors_abort()), before the others are told:
     * to release those that wait inside act(), such as by CommBackEnd.abort. May be NULL. */
    void (*on_failure)(void *user);
    /* Called after each turn by the actor's worker, with the times at which act() began and ended
     * (clock_seconds()). May be NULL. */
    void (*on_turn)(void *user, int32_t actor, int64_t turn, double begin, double end);
    void *user;
} ActorGraphOptions;

typedef struct Actor {
    const char *name; /* for errors; copied */
    int32_t worker;
    int32_t priority;       /* the smallest fires first; then the earlier step, then the order of adding */
    int32_t turns_per_step; /* 1 .. ACTORS_MAX_TURNS */
    /* This actor's turns beyond the last step do no harm (data that was fetched in advance), so it may begin
     * steps that nobody will finish: actors_stop_after() does not wait for it. */
    bool runs_ahead;
    /* One turn. What it reads is full, what it writes is free. A failure ends the run. */
    AmStatus (*act)(void *user, int64_t turn, AmError *error);
    void *user;
} Actor;

enum { ACTORS_MAX_TURNS = 1 << 16 };

AmStatus actors_open(ActorGraph **graph, const ActorGraphOptions *options, AmError *error);
/* Ends workers that still run, waits for the graph's own; the caller's must have returned. NULL is fine. */
void actors_close(ActorGraph *graph);

/* A worker that is a thread of the graph's own: for input and output beside the ranks. */
AmStatus actors_add_worker(ActorGraph *graph, const char *name, int32_t *worker, AmError *error);

AmStatus actors_add(ActorGraph *graph, const Actor *actor, int32_t *index, AmError *error);

/* Registers from producer to consumer. `initial` of them are full before the first turn: turn t of the
 * consumer then needs the producer's turn t - initial (edges that close a cycle, such as updated
 * weights, have 1). A quota that would block, such as fewer than a turn of the consumer takes, is raised by
 * actors_ready(). `edge` may be NULL. AM_ERROR_USAGE where the rates do not divide one another. */
AmStatus actors_connect(ActorGraph *graph, int32_t producer, int32_t consumer, int32_t quota, int32_t initial,
                        int32_t *edge, AmError *error);

/* `follower` fires in the order in which `leader` and the other leaders of that worker fired: each turn of
 * the leader grants one as it begins. So what meets inside act() - the collectives of a stage's devices -
 * comes in one order on all of them. Both have the same turns_per_step. All that a worker follows is led by
 * one other worker, which follows nobody. actors_ready() has the leader wait for whatever a follower of it
 * waits for. */
AmStatus actors_follow(ActorGraph *graph, int32_t follower, int32_t leader, AmError *error);

/* The actor also waits until ready() says so: for what the graph does not see, such as a message from another
 * process. Asked again and again by the actor's worker once all else is there (so cheap to ask), and not
 * any more after it has said yes for that turn. May be called several times for one actor. */
typedef AmStatus ActorReady(void *user, int64_t turn, bool *is_ready, AmError *error);
AmStatus actors_gate(ActorGraph *graph, int32_t actor, ActorReady *ready, void *user, AmError *error);

/* Rounds in which one of so many workers looks for messages before it offers its processor (patience.h). */
int32_t actors_spins(int32_t worker_count);

/* Ends the building: lets one step fire on paper, which proves that every step can (a marked graph returns to
 * its first state), raising quotas where they block, and allocates. AM_ERROR_USAGE names the actors of a
 * cycle that has no initial registers. */
AmStatus actors_ready(ActorGraph *graph, AmError *error);

/* Registers of an edge after actors_ready(): so much memory it needs. */
int32_t actors_quota(const ActorGraph *graph, int32_t edge);
/* Inside act(): which register, of the quota, the producer's turn fills, and which is the consumer's k-th of
 * this turn (k is 0 but where a turn takes several). Initial ones are registers 0 .. initial - 1. */
int32_t actors_out_register(const ActorGraph *graph, int32_t edge);
int32_t actors_in_register(const ActorGraph *graph, int32_t edge, int32_t k);

/* Inside act(): what this turn fills on the edge is full already, so that its consumer may begin beside the
 * rest of the turn; once a turn, and no register of the edge is asked for after it. Nothing happens where the
 * consumer has the same worker. */
void actors_fill(ActorGraph *graph, int32_t edge);

/* Runs a worker in the calling thread until its actors have done their last turn. AM_ERROR_RUNTIME: an
 * actor failed, here (its own error) or elsewhere ("stopped because another actor failed"), or a stall. */
AmStatus actors_run_worker(ActorGraph *graph, int32_t worker, AmError *error);

/* Starts the graph's own workers, after actors_ready(). */
AmStatus actors_start(ActorGraph *graph, AmError *error);
/* Waits for them, and gives the first failure of any worker, if there was one. Once all callers' workers have
 * returned. */
AmStatus actors_finish(ActorGraph *graph, AmError *error);

/* The run ends after `step`, or after the last step that an actor has already begun if that is later (actors
 * that run ahead do not count); returns which. Any thread, any time after actors_ready(). */
int64_t actors_stop_after(ActorGraph *graph, int64_t step);
/* Ends the run now: `error` is its first failure if there was none. Any thread. */
void actors_abort(ActorGraph *graph, const AmError *error);
/* AM_ERROR_RUNTIME or what the first failure was, with its text; AM_OK if there is none. Any thread. */
AmStatus actors_failure(ActorGraph *graph, AmError *error);

/* What is going on, for people: "'F1' is in turn 7; 'B0' turn 3 waits for 'B1' turn 3". At most four actors.
 * Any thread. */
void actors_describe(const ActorGraph *graph, char *text, int32_t size);

#endif
