/* Virtual time for actors: acts that last as long as a test says, on any machine.
 *
 * An act enters the clock and stays until the clock has reached its end. The
 * driver moves the clock when all workers are in an act or wait with nothing in
 * their inboxes, and lets out one act at a time, the earliest first, so that the workers choose the same in
 * every run.
 */
#ifndef ACTOR_CLOCK_H
#define ACTOR_CLOCK_H

#include <sched.h>

#include "actor_case.h"
#include "executor/actors/actor_graph.h"

typedef struct ClockSeat {
    bool is_taken, is_let_out;
    int64_t end;
} ClockSeat;

typedef struct VirtualClock {
    pthread_mutex_t mutex;
    pthread_cond_t let_out;
    ClockSeat seats[CASE_MAX_WORKERS];
    int64_t now;
} VirtualClock;

static inline void clock_begin(VirtualClock *clock) {
    memset(clock, 0, sizeof *clock);
    pthread_mutex_init(&clock->mutex, NULL);
    pthread_cond_init(&clock->let_out, NULL);
}

/* In an act: takes `duration`; returns when it began. */
static inline int64_t clock_pass(VirtualClock *clock, int32_t worker, int64_t duration) {
    ClockSeat *seat = &clock->seats[worker];
    pthread_mutex_lock(&clock->mutex);
    int64_t begin = clock->now;
    *seat = (ClockSeat){.is_taken = true, .end = begin + duration};
    while (!seat->is_let_out) pthread_cond_wait(&clock->let_out, &clock->mutex);
    pthread_mutex_unlock(&clock->mutex);
    return begin;
}

/* The sum of all workers' counters if each is in an act or waits for messages, else -1. */
static inline int64_t clock_settled(VirtualClock *clock, const ActorGraph *graph) {
    int64_t sum = 0;
    for (int32_t w = 0; w < graph->worker_count; w++) {
        int64_t activity = atomic_load(&graph->workers[w].activity);
        sum += activity;
        if (clock->seats[w].is_taken) continue;
        if (activity % 2 != 0) return -1;
        if (!graph->workers[w].is_finished && !inbox_is_empty(&graph->workers[w].inbox)) return -1;
    }
    return sum;
}

/* Releases the earliest act, if all is settled; false: all is settled and no act is left. */
static inline bool clock_step(VirtualClock *clock, const ActorGraph *graph) {
    pthread_mutex_lock(&clock->mutex);
    int64_t first = clock_settled(clock, graph), second = clock_settled(clock, graph);
    bool is_settled = first >= 0 && first == second;
    ClockSeat *next = NULL;
    for (int32_t w = 0; w < graph->worker_count; w++) {
        ClockSeat *seat = &clock->seats[w];
        if (seat->is_taken && (!next || seat->end < next->end)) next = seat;
    }
    if (is_settled && next) {
        clock->now = next->end;
        next->is_taken = false;
        next->is_let_out = true;
        pthread_cond_broadcast(&clock->let_out);
    }
    pthread_mutex_unlock(&clock->mutex);
    if (!is_settled) sched_yield();
    return !is_settled || next;
}

/* Runs the graph by the clock; returns the virtual time at its end. */
static inline int64_t clock_run(VirtualClock *clock, ActorGraph *graph) {
    CaseWorker workers[CASE_MAX_WORKERS];
    AmError error = {0};
    for (int32_t w = 0; w < graph->worker_count; w++) {
        workers[w] = (CaseWorker){.graph = graph, .worker = w};
        assert_int_equal(pthread_create(&workers[w].thread, NULL, case_run_worker, &workers[w]), 0);
    }
    while (clock_step(clock, graph)) {}
    for (int32_t w = 0; w < graph->worker_count; w++) pthread_join(workers[w].thread, NULL);
    AmStatus status = actors_finish(graph, &error);
    if (status != AM_OK) print_error("%s\n", error.text);
    assert_int_equal(status, AM_OK);
    return clock->now;
}

#endif
