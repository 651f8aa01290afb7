/* Minimum cuts of random graphs have the capacity that trying every set of nodes finds, and the fewest nodes
 * on the side of the source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/min_cut.h"
#include "base/random.h"

enum { NODES = 9, MOST_EDGES = 40, GRAPHS = 300 };

typedef struct Graph {
    int32_t from[MOST_EDGES], to[MOST_EDGES];
    int64_t capacity[MOST_EDGES];
    int32_t edge_count;
} Graph;

static void draw(Graph *graph, Random *random) {
    graph->edge_count = 5 + (int32_t)random_below(random, MOST_EDGES - 5);
    for (int32_t e = 0; e < graph->edge_count; e++) {
        graph->from[e] = (int32_t)random_below(random, NODES);
        graph->to[e] = (int32_t)random_below(random, NODES);
        graph->capacity[e] = (int64_t)random_below(random, 7);
    }
}

/* The capacity of the edges that leave a set of nodes. */
static int64_t capacity_of(const Graph *graph, uint32_t set) {
    int64_t capacity = 0;
    for (int32_t e = 0; e < graph->edge_count; e++)
        if ((set >> graph->from[e] & 1) && !(set >> graph->to[e] & 1)) capacity += graph->capacity[e];
    return capacity;
}

/* The intersection of all minimum cuts is one of them: the one with the fewest nodes. */
static uint32_t least_set(const Graph *graph, int32_t sink, int64_t *least) {
    uint32_t common = 0;
    *least = INT64_MAX;
    for (uint32_t set = 1; set < 1u << NODES; set += 2) { /* node 0 is the source */
        if (set >> sink & 1) continue;
        int64_t capacity = capacity_of(graph, set);
        common = capacity < *least ? set : capacity == *least ? common & set : common;
        if (capacity < *least) *least = capacity;
    }
    return common;
}

static void test_random_graphs(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 7);
    for (int32_t g = 0; g < GRAPHS; g++) {
        Graph graph;
        Arena arena = {0};
        MinCut cut;
        int64_t least;
        uint32_t side = 0;
        draw(&graph, &random);
        min_cut_open(&cut, &arena, NODES);
        for (int32_t e = 0; e < graph.edge_count; e++)
            min_cut_add(&cut, graph.from[e], graph.to[e], graph.capacity[e]);
        min_cut_find(&cut, 0, NODES - 1);
        for (int32_t n = 0; n < NODES; n++) side |= (uint32_t)min_cut_is_source_side(&cut, n) << n;
        uint32_t expected = least_set(&graph, NODES - 1, &least);
        assert_int_equal(capacity_of(&graph, side), least);
        assert_int_equal(side, expected);
        arena_free(&arena);
    }
}

/* A chain that is longer than the stack of a recursive search. */
static void test_long_chain(void **state) {
    (void)state;
    enum { LENGTH = 200000, NARROW = LENGTH / 3 };
    Arena arena = {0};
    MinCut cut;
    min_cut_open(&cut, &arena, LENGTH + 1);
    for (int32_t n = 0; n < LENGTH; n++) min_cut_add(&cut, n, n + 1, n == NARROW ? 2 : MIN_CUT_UNLIMITED);
    min_cut_find(&cut, 0, LENGTH);
    assert_false(arena.failed);
    assert_true(min_cut_is_source_side(&cut, NARROW));
    assert_false(min_cut_is_source_side(&cut, NARROW + 1));
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs),
                                       cmocka_unit_test(test_long_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
