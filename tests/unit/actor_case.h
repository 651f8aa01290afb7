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

#include "base/clock.h"
#include "base/random.h"
#include "executor/actors.h"

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

/* Runs all workers to their end; `workers` [count] tells how each ended. Gives the first failure. */
static inline AmStatus case_run(ActorGraph *graph, CaseWorker *workers, int32_t count, AmError *error) {
    assert_int_equal(actors_start(graph, error), AM_OK);
    for (int32_t w = 0; w < count; w++) {
        workers[w] = (CaseWorker){.graph = graph, .worker = w};
        assert_int_equal(pthread_create(&workers[w].thread, NULL, case_run_worker, &workers[w]), 0);
    }
    for (int32_t w = 0; w < count; w++) pthread_join(workers[w].thread, NULL);
    return actors_finish(graph, error);
}

#endif
