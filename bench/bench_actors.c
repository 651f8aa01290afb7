/* Benchmark of the actors' messages.
 *
 *   bench_actors
 *
 * How long an iteration takes that does nothing: of actors of one worker, of a chain and of a ring. No
 * message leaves the one worker. The chain has two workers and many registers, so that both work while
 * messages are on their way. The ring has two workers and one register, so that every iteration waits for a
 * message: the latency. Best of several runs; the last column is req and ack messages per second, those
 * within a worker included.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/system/clock.h"
#include "executor/actors/actors.h"

enum { RUNS = 5, MOST_WORKERS = 8 };

typedef struct Case {
    const char *name;
    int32_t workers, actors, quota;
    bool is_ring; /* the last feeds the first */
    int64_t iterations;
} Case;

static const Case cases[] = {
    {"1 worker, 1 actor", 1, 1, 1, true, 1000000},
    {"1 worker, chain of 4", 1, 4, 2, false, 200000},
    {"1 worker, chain of 1000", 1, 1000, 2, false, 500},
    {"2 workers, chain of 2, 64 registers", 2, 2, 64, false, 200000},
    {"2 workers, ring of 2, 1 register", 2, 2, 1, true, 20000},
    {"8 workers, chain of 32, 4 registers", 8, 32, 4, false, 5000},
};

static AmStatus nothing(void *user, int64_t iteration, AmError *error) {
    (void)user, (void)iteration, (void)error;
    return AM_OK;
}

typedef struct Thread {
    ActorGraph *graph;
    int32_t worker;
    pthread_t thread;
} Thread;

static void *run_worker(void *argument) {
    Thread *thread = argument;
    actors_run_worker(thread->graph, thread->worker, NULL);
    return NULL;
}

static AmStatus build(ActorGraph **graph, const Case *c, AmError *error) {
    ActorGraphOptions options = {.worker_count = c->workers, .steps = c->iterations};
    TRY(actors_open(graph, &options, error));
    for (int32_t a = 0; a < c->actors; a++) {
        int32_t index;
        Actor actor = {.name = "actor", .worker = a % c->workers, .iterations_per_step = 1, .act = nothing};
        TRY(actors_add(*graph, &actor, &index, error));
        if (a > 0) TRY(actors_connect(*graph, a - 1, a, c->quota, 0, NULL, error));
    }
    if (c->is_ring) TRY(actors_connect(*graph, c->actors - 1, 0, 1, 1, NULL, error));
    return actors_ready(*graph, error);
}

static AmStatus run(const Case *c, double *seconds, AmError *error) {
    ActorGraph *graph = NULL;
    Thread threads[MOST_WORKERS];
    AmStatus status = build(&graph, c, error);
    if (status == AM_OK) {
        double begin = clock_seconds();
        int32_t started = 1;
        for (int32_t w = 0; w < c->workers; w++) threads[w] = (Thread){.graph = graph, .worker = w};
        while (started < c->workers &&
               pthread_create(&threads[started].thread, NULL, run_worker, &threads[started]) == 0)
            started++;
        if (started < c->workers) {
            am_fail(error, AM_ERROR_RUNTIME, "", "cannot start a thread");
            actors_abort(graph, error);
        }
        run_worker(&threads[0]);
        for (int32_t w = 1; w < started; w++) pthread_join(threads[w].thread, NULL);
        *seconds = clock_seconds() - begin;
        status = actors_failure(graph, error);
    }
    actors_close(graph);
    return status;
}

int main(void) {
    printf("%-38s %12s %14s\n", "", "ns per iteration", "messages/s");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const Case *c = &cases[k];
        double best = 0;
        for (int r = 0; r < RUNS; r++) {
            AmError error = {0};
            double seconds;
            if (run(c, &seconds, &error) != AM_OK) {
                fprintf(stderr, "%s: %s\n", c->name, error.text);
                return error.code;
            }
            if (r == 0 || seconds < best) best = seconds;
        }
        double iterations = (double)c->iterations * c->actors;
        double edges = c->is_ring ? c->actors : c->actors - 1;
        printf("%-38s %12.1f %14.3g\n", c->name, best / iterations * 1e9,
               2 * edges * (double)c->iterations / best);
    }
    return 0;
}
