/* Random actor graphs: 10^6 messages with rates, quotas, cycles with initial registers, 1 to 8
 * workers, delays. No message is lost, early, or out of order, no quota is exceeded, and all runs
 * end. */
/* labels: threads */
#include "tests/support/actor_case.h"
#include "tests/support/sample.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MAX_ACTORS = 24, MAX_EDGES = 96, MAX_QUOTA = 80 };

typedef struct CaseEdge {
    int32_t edge, producer, consumer, initial, gather, spread, quota;
    int64_t registers[MAX_QUOTA]; /* the producer's iteration that filled it */
    int64_t produced, consumed;   /* registers so far; those from the start are produced */
    _Atomic int32_t live;
} CaseEdge;

typedef struct CaseActor {
    struct CaseGraph *graph;
    int32_t index, iterations_per_step;
    int64_t iterations; /* that it did */
    Random random;
    bool delays;
} CaseActor;

typedef struct CaseGraph {
    ActorGraph *graph;
    CaseActor actors[MAX_ACTORS];
    CaseEdge edges[MAX_EDGES];
    int32_t actor_count, edge_count;
    atomic_llong messages;
} CaseGraph;

static void delay(CaseActor *actor) {
    int64_t kind = actor->delays ? random_below(&actor->random, 400) : 400;
    if (kind == 0) usleep(200);
    else if (kind < 20) sched_yield();
    else if (kind < 100)
        for (volatile int64_t k = kind * 10; k > 0; k--) {}
}

/* Checks the registers of a firing: those of the producer's firings that it needs, and no others. */
static AmStatus check_in(const CaseEdge *edge, int64_t iteration, AmError *error) {
    for (int32_t k = 0; k < edge->gather; k++) {
        int64_t expected = iteration / edge->spread * edge->gather + k - edge->initial;
        int64_t at = (edge->consumed + k) % edge->quota;
        if (edge->registers[at] != expected)
            return am_fail(error, AM_ERROR_INTERNAL, "", "turn %lld found turn %lld instead of %lld",
                           (long long)iteration, (long long)edge->registers[at], (long long)expected);
    }
    return AM_OK;
}

static AmStatus act(void *user, int64_t iteration, AmError *error) {
    CaseActor *actor = user;
    CaseGraph *graph = actor->graph;
    if (iteration != actor->iterations++)
        return am_fail(error, AM_ERROR_INTERNAL, "", "iterations are out of order");
    for (int32_t e = 0; e < graph->edge_count; e++) {
        CaseEdge *edge = &graph->edges[e];
        if (edge->producer == actor->index) {
            if (atomic_fetch_add(&edge->live, 1) >= edge->quota)
                return am_fail(error, AM_ERROR_INTERNAL, "", "more registers than the quota");
            edge->registers[edge->produced++ % edge->quota] = iteration;
            if (random_below(&actor->random, 2) == 0) actors_fill(graph->graph, edge->edge);
        }
    }
    delay(actor);
    for (int32_t e = 0; e < graph->edge_count; e++) {
        CaseEdge *edge = &graph->edges[e];
        if (edge->consumer != actor->index) continue;
        TRY(check_in(edge, iteration, error));
        if ((iteration + 1) % edge->spread == 0) {
            edge->consumed += edge->gather;
            atomic_fetch_sub(&edge->live, edge->gather);
        }
        atomic_fetch_add(&graph->messages, 1 + edge->gather);
    }
    return AM_OK;
}

static void connect(CaseGraph *graph, int32_t producer, int32_t consumer, int32_t quota, int32_t initial) {
    AmError error = {0};
    CaseEdge *edge = &graph->edges[graph->edge_count++];
    int32_t from = graph->actors[producer].iterations_per_step,
            to = graph->actors[consumer].iterations_per_step;
    *edge = (CaseEdge){.producer = producer,
                       .consumer = consumer,
                       .initial = initial,
                       .gather = from > to ? from / to : 1,
                       .spread = from > to ? 1 : to / from};
    assert_int_equal(actors_connect(graph->graph, producer, consumer, quota, initial, &edge->edge, &error),
                     AM_OK);
}

/* Edges run from earlier to later actors; back edges hold a step's registers, so cycles are live. */
static void build(CaseGraph *graph, Random *random, int32_t workers, int64_t steps, bool delays) {
    static const int32_t iterations[] = {1, 2, 3, 4, 8};
    AmError error = {0};
    ActorGraphOptions options = {.worker_count = workers, .steps = steps, .stall_seconds = 5};
    int32_t most = iterations[random_below(random, 5)];
    memset(graph, 0, sizeof *graph);
    assert_int_equal(actors_open(&graph->graph, &options, &error), AM_OK);
    graph->actor_count = 2 + (int32_t)random_below(random, MAX_ACTORS - 2);
    for (int32_t a = 0; a < graph->actor_count; a++) {
        CaseActor *state = &graph->actors[a];
        int32_t index;
        *state = (CaseActor){.graph = graph, .index = a, .delays = delays};
        state->iterations_per_step = random_below(random, 3) == 0 ? 1 : most;
        random_seed(&state->random, random_bits(random));
        Actor actor = {.name = "actor",
                       .worker = (int32_t)random_below(random, workers),
                       .priority = (int32_t)random_below(random, 4),
                       .iterations_per_step = state->iterations_per_step,
                       .act = act,
                       .user = state};
        assert_int_equal(actors_add(graph->graph, &actor, &index, &error), AM_OK);
        assert_int_equal(index, a);
    }
    int32_t edges = graph->actor_count + (int32_t)random_below(random, MAX_EDGES - MAX_ACTORS);
    for (int32_t e = 0; e < edges; e++) {
        int32_t a = (int32_t)random_below(random, graph->actor_count);
        int32_t b = (int32_t)random_below(random, graph->actor_count);
        int32_t initial = a < b ? (int32_t)random_below(random, 2) : graph->actors[a].iterations_per_step;
        if (a == b) initial = 1;
        connect(graph, a, b, 1 + (int32_t)random_below(random, 4), initial);
    }
    assert_int_equal(actors_ready(graph->graph, &error), AM_OK);
    for (int32_t e = 0; e < graph->edge_count; e++) {
        CaseEdge *edge = &graph->edges[e];
        edge->quota = actors_quota(graph->graph, edge->edge);
        edge->live = edge->initial;
        edge->produced = edge->initial;
        edge->consumed = 0;
        assert_true(edge->quota <= MAX_QUOTA);
        for (int32_t k = 0; k < edge->initial; k++) edge->registers[k] = k - edge->initial;
    }
}

static int64_t run_one(CaseGraph *graph, uint64_t seed, int64_t steps) {
    CaseWorker workers[CASE_MAX_WORKERS];
    AmError error = {0};
    Random random;
    random_seed(&random, seed);
    int32_t count = 1 + (int32_t)(seed % CASE_MAX_WORKERS);
    build(graph, &random, count, steps, seed % 3 == 0);
    AmStatus status = case_run(graph->graph, workers, count, &error);
    if (status != AM_OK) print_error("seed %llu: %s\n", (unsigned long long)seed, error.text);
    assert_int_equal(status, AM_OK);
    for (int32_t w = 0; w < count; w++) assert_int_equal(workers[w].status, AM_OK);
    for (int32_t a = 0; a < graph->actor_count; a++)
        assert_int_equal(graph->actors[a].iterations, steps * graph->actors[a].iterations_per_step);
    actors_close(graph->graph);
    return graph->messages;
}

static void test_million_messages(void **state) {
    (void)state;
    CaseGraph *graph = malloc(sizeof *graph);
    int64_t wanted = getenv("AUTOMAP_FULL") ? 1000000 : sample_of(1000000, 125000), messages = 0;
    for (uint64_t seed = 0; messages < wanted; seed++) messages += run_one(graph, seed, 60);
    free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_million_messages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
