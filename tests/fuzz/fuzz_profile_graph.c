/* Profile graphs and arrays of layers: what is read makes a chain, which is cut exactly. */
#include <math.h>

#include "planners/cut_agent/chain_cluster.h"
#include "planners/cut_agent/chain_exact.h"
#include "planners/cut_agent/profile_graph.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_PLACES = 200 };

static void cut(ChainProblem *problem) {
    ChainExact exact;
    AmError error = {0};
    if (problem->chain->count > MOST_PLACES || chain_problem_prepare(problem, &error) != AM_OK) return;
    if (chain_exact(&exact, problem, false, &error) != AM_OK || isinf(exact.length)) return;
    fuzz_check(chain_plan_is_valid(problem, &exact.plan), "an exact plan that is none", &error);
    chain_simulate(problem, &exact.plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    AmError error = {0};
    Arena arena = {0};
    Chain chain;
    ChainProblem problem;
    ProfileGraph graph;
    const char *space, *text = (const char *)data;
    if (size > 0 && text[0] == '{') {
        if (chain_arrays_parse(&chain, &problem, &arena, "arrays", text, (int64_t)size, &error) == AM_OK &&
            problem.micro_batches <= 1000)
            cut(&problem);
    } else if (profile_graph_parse(&graph, &arena, "graph", text, (int64_t)size, &error) == AM_OK &&
               profile_graph_chain(&chain, &space, &arena, &graph, false, &error) == AM_OK) {
        double rates[3] = {1, 0.5, 1}, memory[3] = {1e9, 1e9, 1e9};
        problem = (ChainProblem){.chain = &chain, .stages = 2, .micro_batches = 4, .weight_factor = 4};
        problem.unit_count = chain_units(problem.units, 3, rates, memory, 3, 1, 1e9, 1e9);
        cut(&problem);
    }
    arena_free(&arena);
    return 0;
}
