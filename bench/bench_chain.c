/* Benchmark of exact cuts of chains and graphs of layers.
 *
 *   bench_chain
 *
 * Rows "name, seconds, limit, ok or no": chains of 500 layers and graphs of 500 nodes with generated figures
 * on 4 servers of 8 devices in 16 units, for 4 stages and for every number of stages up to 16. Graphs: blocks
 * of a shortcut and two branches of 2 nodes each, whose downsets are listed, and one of random edges, too
 * wide for that, cut in a row.
 */
#include <stdio.h>

#include "base/random.h"
#include "base/system/clock.h"
#include "base/text.h"
#include "planners/cut_agent/chain_exact.h"
#include "planners/cut_agent/profile_graph.h"

enum { LAYERS = 500, DEVICES = 32, PER_SERVER = 8, UNITS = 16 };
static const double limit_seconds = 5;

/* Text of a graph in the form that readers get. */
static void add_node(Text *text, Random *random, int32_t n) {
    text_append(
        text,
        "node%d -- layer -- forward_compute_time=%.3f, backward_compute_time=%.3f, activation_size=%.1f, "
        "parameter_size=%.1f\n",
        n, 1 + random_uniform(random), 2 + 2 * random_uniform(random), 1e6 * (1 + random_uniform(random)),
        4e6 * random_uniform(random));
}

static void chain_text(Text *text, Random *random) {
    for (int32_t n = 0; n < LAYERS; n++) add_node(text, random, n);
    for (int32_t n = 1; n < LAYERS; n++) text_append(text, "\tnode%d -- node%d\n", n - 1, n);
}

/* Blocks of five: a node, two branches of two after it, all meeting in the first of the next block. */
static void blocks_text(Text *text, Random *random) {
    for (int32_t n = 0; n < LAYERS; n++) add_node(text, random, n);
    for (int32_t n = 0; n + 5 <= LAYERS; n += 5) {
        text_append(text, "\tnode%d -- node%d\n\tnode%d -- node%d\n\tnode%d -- node%d\n\tnode%d -- node%d\n",
                    n, n + 1, n, n + 3, n + 1, n + 2, n + 3, n + 4);
        if (n + 5 < LAYERS)
            text_append(text, "\tnode%d -- node%d\n\tnode%d -- node%d\n\tnode%d -- node%d\n", n, n + 5, n + 2,
                        n + 5, n + 4, n + 5);
    }
}

static void random_text(Text *text, Random *random) {
    for (int32_t n = 0; n < LAYERS; n++) add_node(text, random, n);
    for (int32_t n = 1; n < LAYERS; n++) {
        int32_t behind = 1 + (int32_t)random_below(random, n < 20 ? n : 20);
        text_append(text, "\tnode%d -- node%d\n", n - behind, n);
        if (behind > 2)
            text_append(text, "\tnode%d -- node%d\n", n - 1 - (int32_t)random_below(random, 2), n);
    }
}

static const struct {
    const char *name;
    void (*write)(Text *text, Random *random);
} graphs[] = {{"chain of 500 layers", chain_text},
              {"graph of 500 nodes", blocks_text},
              {"wide graph of 500 nodes", random_text}};

/* Reading included, as for a user. */
static AmStatus measure(size_t graph_number, int32_t stages, bool any_stages, AmError *error) {
    Arena arena = {0};
    Text text = {0};
    Random random;
    ProfileGraph graph;
    Chain chain;
    ChainExact exact;
    const char *space;
    AmStatus status;
    double rates[DEVICES], memory[DEVICES];
    random_seed(&random, 1);
    graphs[graph_number].write(&text, &random);
    for (int32_t k = 0; k < DEVICES; k++) {
        rates[k] = 1;
        memory[k] = 32e9;
    }
    ChainProblem *problem = ARENA_ARRAY(&arena, ChainProblem, 1);
    double start = clock_seconds();
    *problem = (ChainProblem){.chain = &chain, .stages = stages, .micro_batches = 16, .weight_factor = 4};
    problem->unit_count =
        chain_units(problem->units, UNITS, rates, memory, DEVICES, PER_SERVER, 120e9, 3.1e9);
    TRY_OR_FAIL(profile_graph_parse(&graph, &arena, "graph", text.data, (int64_t)text.length, error));
    TRY_OR_FAIL(profile_graph_chain(&chain, &space, &arena, &graph, false, error));
    TRY_OR_FAIL(chain_problem_prepare(problem, error));
    TRY_OR_FAIL(chain_exact(&exact, problem, any_stages, error));
    double seconds = clock_seconds() - start;
    printf("%s, %s%d stages, %s (%d places)\t%.3f\t%g\t%s\n", graphs[graph_number].name,
           any_stages ? "up to " : "", stages, space, chain.count + 1, seconds, limit_seconds,
           seconds <= limit_seconds ? "ok" : "no");
fail:
    text_free(&text);
    arena_free(&arena);
    return status;
}

int main(void) {
    AmError error = {0};
    for (size_t k = 0; k < sizeof(graphs) / sizeof(*graphs); k++)
        for (int32_t any = 0; any < 2; any++)
            if (measure(k, any ? UNITS : 4, any != 0, &error) != AM_OK) {
                fprintf(stderr, "bench_chain: %s\n", error.text);
                return 1;
            }
    return 0;
}
