/* Running actor graphs in tests: one thread for each worker of the caller. */
#ifndef ACTOR_CASE_H
#define ACTOR_CASE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "base/system/clock.h"
#include "executor/actors/actors.h"

enum { CASE_MAX_WORKERS = 8 };

typedef struct CaseWorker {
    ActorGraph *graph;
    int32_t worker;
    pthread_t thread;
    AmStatus status;
    AmError error;
} CaseWorker;

static inline void *case_run_worker(void *argument) {
    CaseWorker *worker = argument;
    worker->status = actors_run_worker(worker->graph, worker->worker, &worker->error);
    return NULL;
}

/* Runs all workers to their end; `workers` [count] receives the end of each. Returns the first
 * failure. */
static inline AmStatus case_run(ActorGraph *graph, CaseWorker *workers, int32_t count, AmError *error) {
    assert_int_equal(actors_start(graph, error), AM_OK);
    for (int32_t w = 0; w < count; w++) {
        workers[w] = (CaseWorker){.graph = graph, .worker = w};
        assert_int_equal(pthread_create(&workers[w].thread, NULL, case_run_worker, &workers[w]), 0);
    }
    for (int32_t w = 0; w < count; w++) pthread_join(workers[w].thread, NULL);
    return actors_finish(graph, error);
}

/* A graph, an actor and an edge of it, which must be accepted. */
static inline ActorGraph *case_open(int32_t workers, int64_t steps) {
    ActorGraph *graph;
    AmError error = {0};
    ActorGraphOptions options = {.worker_count = workers, .steps = steps, .stall_seconds = 0.1};
    assert_int_equal(actors_open(&graph, &options, &error), AM_OK);
    return graph;
}

static inline int32_t case_add(ActorGraph *graph, const char *name, int32_t worker, int32_t iterations,
                               AmStatus (*act)(void *, int64_t, AmError *), void *user) {
    int32_t index;
    AmError error = {0};
    Actor actor = {
        .name = name, .worker = worker, .iterations_per_step = iterations, .act = act, .user = user};
    assert_int_equal(actors_add(graph, &actor, &index, &error), AM_OK);
    return index;
}

static inline int32_t case_connect(ActorGraph *graph, int32_t from, int32_t to, int32_t quota,
                                   int32_t initial) {
    int32_t edge;
    AmError error = {0};
    assert_int_equal(actors_connect(graph, from, to, quota, initial, &edge, &error), AM_OK);
    return edge;
}

#endif
