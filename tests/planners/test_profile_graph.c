/* Profile graphs: the form, errors with their lines, cuts by hand, downsets against all partitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "planners/cut_agent/chain_exact.h"
#include "planners/cut_agent/profile_graph.h"

#define FIGURES "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"

static AmStatus parse(ProfileGraph *graph, Arena *arena, const char *text, AmError *error) {
    return profile_graph_parse(graph, arena, "g.txt", text, (int64_t)strlen(text), error);
}

static void a_graph_is_read(void **state) {
    (void)state;
    Arena arena = {0};
    ProfileGraph graph;
    AmError error = {0};
    const char *text = "node2 -- Conv2d(3, 64) -- x -- forward_compute_time=1.5, backward_compute_time=3e0, "
                       "activation_size=[8.0; 4], parameter_size=16 -- stage_id=0\r\n"
                       "\tnode1 -- node2\n\n"
                       "node1 -- Input -- " FIGURES;
    assert_int_equal(parse(&graph, &arena, text, &error), AM_OK);
    assert_int_equal(graph.node_count, 2);
    assert_int_equal(graph.edge_count, 1);
    assert_string_equal(graph.nodes[0].description, "Conv2d(3, 64) -- x");
    assert_true(graph.nodes[0].forward == 1.5e-3 && graph.nodes[0].backward == 3e-3);
    assert_true(graph.nodes[0].activation == 12 && graph.nodes[0].parameter == 16);
    assert_int_equal(graph.order[0], 1);
    arena_free(&arena);
}

static void errors_name_their_line(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t line;
        const char *expected;
    } cases[] = {
        {"", 0, "at least one node"},
        {"node1 -- a -- " FIGURES "\nnode2\n", 2, "NODE"},
        {"node1 -- a -- forward_compute_time=1.0\n", 1, "backward_compute_time"},
        {"node1 -- a -- forward_compute_time=-1.0, backward_compute_time=2.0, activation_size=8.0, "
         "parameter_size=4.0",
         1, "not negative"},
        {"node1 -- a -- forward_compute_time=nan, backward_compute_time=2.0, activation_size=8.0, "
         "parameter_size=4.0",
         1, "a number"},
        {"node1 -- a -- forward_compute_time=1, backward_compute_time=2.0, activation_size=[8.0, "
         "parameter_size=4.0",
         1, "; or ]"},
        {"node1 -- a -- " FIGURES " x\n", 1, "end of the line"},
        {"node1 -- a -- " FIGURES "\n\tnode1 -- node1\n", 2, "two nodes"},
        {"node1 -- a -- " FIGURES "\n\tnode1 -- node2\n", 2, "consumer is not a node"},
        {"node1 -- a -- " FIGURES "\n\tnode0 -- node1\n", 2, "producer is not a node"},
        {"node1 -- a -- " FIGURES "\n\tnode1\n", 2, "PRODUCER"},
        {"a -- a -- " FIGURES "\nb -- b -- " FIGURES "\n\ta -- b\n\ta -- b\n", 4, "twice"},
        {"a -- a -- " FIGURES "\nb -- b -- " FIGURES "\n\ta -- b\na -- c -- " FIGURES "\n", 4,
         "node a is listed twice"},
        {"a -- a -- " FIGURES "\nb -- b -- " FIGURES "\n\ta -- b\n\tb -- a\n", 3, "cycle"},
        {"a -- \x01 -- " FIGURES "\n", 1, "control"},
    };
    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        Arena arena = {0};
        ProfileGraph graph;
        AmError error = {0};
        assert_int_equal(parse(&graph, &arena, cases[k].text, &error), AM_ERROR_INPUT);
        if (cases[k].line) assert_int_equal(error.line, cases[k].line);
        if (!strstr(error.text, cases[k].expected))
            fail_msg("%s: expected %s", error.text, cases[k].expected);
        arena_free(&arena);
    }
}

/* a -> b -> d and a -> c -> d: a's result is sent until its last use, once. */
static void cuts_of_a_diamond(void **state) {
    (void)state;
    Arena arena = {0};
    ProfileGraph graph;
    Chain chain;
    const char *space, *text = "a -- - -- " FIGURES "\nb -- - -- " FIGURES "\nc -- - -- " FIGURES
                               "\nd -- - -- " FIGURES "\n\ta -- b\n\ta -- c\n\tb -- d\n\tc -- d\n";
    assert_int_equal(parse(&graph, &arena, text, NULL), AM_OK);
    assert_int_equal(profile_graph_chain(&chain, &space, &arena, &graph, true, NULL), AM_OK);
    assert_string_equal(space, "linear order");
    static const double sent[] = {0, 8, 16, 16, 0};
    for (int32_t place = 0; place <= 4; place++) assert_true(chain.activation[place] == sent[place]);
    assert_int_equal(profile_graph_chain(&chain, &space, &arena, &graph, false, NULL), AM_OK);
    assert_string_equal(space, "downsets");
    assert_int_equal(chain.count + 1, 6); /* {}, a, ab, ac, abc, abcd */
    assert_false(chain_follows(&chain, 2, 3));
    assert_true(chain_follows(&chain, 2, 4) && chain_follows(&chain, 3, 4));
    arena_free(&arena);
}

/* Random graphs: the optimum over downsets is that of all partitions into downsets, and at least as good as
 * in a row. */
static double shortest(const ChainProblem *problem, ChainPlan *plan, int32_t s) {
    if (s == plan->stages)
        return chain_plan_is_valid(problem, plan) ? chain_plan_length(problem, plan) : INFINITY;
    double best = INFINITY;
    for (int32_t place = 0; place <= problem->chain->count; place++) {
        if (!chain_follows(problem->chain, plan->places[s], place)) continue;
        plan->places[s + 1] = place;
        plan->units[s + 1] = s + 1;
        best = fmin(best, shortest(problem, plan, s + 1));
    }
    return best;
}

static void random_graph(char *text, size_t size, Random *random) {
    size_t length = 0;
    for (int32_t n = 0; n < 8; n++)
        length += (size_t)snprintf(text + length, size - length,
                                   "n%d -- - -- forward_compute_time=%.2f, backward_compute_time=%.2f, "
                                   "activation_size=%.1f, parameter_size=0.0\n",
                                   n, random_uniform(random), random_uniform(random),
                                   1e-3 * random_uniform(random));
    for (int32_t n = 1; n < 8; n++)
        for (int32_t m = 0; m < n; m++)
            if (random_below(random, 4) == 0)
                length += (size_t)snprintf(text + length, size - length, "\tn%d -- n%d\n", m, n);
}

static void downsets_are_exact(void **state) {
    (void)state;
    int32_t better = 0;
    for (uint64_t seed = 0; seed < 30; seed++) {
        Arena arena = {0};
        Random random;
        ProfileGraph graph;
        Chain chain, row;
        ChainExact exact, in_a_row;
        const char *space;
        char text[4096];
        random_seed(&random, seed);
        random_graph(text, sizeof(text), &random);
        assert_int_equal(parse(&graph, &arena, text, NULL), AM_OK);
        assert_int_equal(profile_graph_chain(&chain, &space, &arena, &graph, false, NULL), AM_OK);
        assert_int_equal(profile_graph_chain(&row, &space, &arena, &graph, true, NULL), AM_OK);
        ChainProblem problem = {.chain = &chain, .stages = 3, .micro_batches = 4};
        double rates[3] = {1, 0.7, 1}, memory[3] = {1, 1, 1};
        problem.unit_count = chain_units(problem.units, 3, rates, memory, 3, 1, 1, 1);
        assert_int_equal(chain_problem_prepare(&problem, NULL), AM_OK);
        assert_int_equal(chain_exact(&exact, &problem, false, NULL), AM_OK);
        ChainPlan plan = {.stages = 3};
        assert_true(fabs(exact.length - shortest(&problem, &plan, 0)) < 1e-12);
        problem.chain = &row;
        assert_int_equal(chain_exact(&in_a_row, &problem, false, NULL), AM_OK);
        assert_true(exact.length <= in_a_row.length * (1 + 1e-12));
        better += exact.length < in_a_row.length * (1 - 1e-9);
        arena_free(&arena);
    }
    assert_true(better > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_is_read),
        cmocka_unit_test(errors_name_their_line),
        cmocka_unit_test(cuts_of_a_diamond),
        cmocka_unit_test(downsets_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
