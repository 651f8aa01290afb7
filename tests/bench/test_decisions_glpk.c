/* The exact optimum of decision problems compared with GLPK's, run as a process on the same problem
 * as a mixed integer program.
 *
 * x[i][k]: decision i takes strategy k; y[e][a][b]: the two ends of edge e take a and b:
 *
 *   min  sum seconds[i][k] x[i][k] + sum seconds[e][a][b] y[e][a][b]
 *   sum_k x[i][k] = 1,   sum_b y[e][a][b] = x[from][a],   sum_a y[e][a][b] = x[to][b],
 *   sum bytes[i][k] x[i][k] <= memory,   x binary, y >= 0
 *
 * Skipped (77) without glpsol.
 */
#include "tests/support/glpk_case.h"

#include "bench/quality/decisions_exact.h"
#include "bench/quality/decisions_planted.h"

enum { INSTANCES = 20, TAKEN = 8, MOST_NODES = 1000000 };

/* The first decisions of a planted problem, the edges among them, and the same part of the memory. */
static Decisions small_problem(Arena *arena, uint64_t seed) {
    Decisions decisions;
    assert_int_equal(decisions_planted(&decisions, arena, seed, NULL), AM_OK);
    double part = decisions.memory / decisions.least_after[0];
    int32_t kept = 0;
    for (int32_t e = 0; e < decisions.edge_count; e++)
        if (decisions.edges[e].to < TAKEN) decisions.edges[kept++] = decisions.edges[e];
    decisions.count = TAKEN;
    decisions.edge_count = kept;
    decisions_complete(&decisions);
    decisions.memory = part * decisions.least_after[0];
    return decisions;
}

static void write_program(FILE *file, const void *problem) {
    const Decisions *decisions = problem;
    fprintf(file, "Minimize\n total:");
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++)
            fprintf(file, " + %.17g x%d_%d\n", decisions->seconds[i][k], i, k);
    for (int32_t e = 0; e < decisions->edge_count; e++)
        for (int32_t a = 0; a < decisions->strategies[decisions->edges[e].from]; a++)
            for (int32_t b = 0; b < decisions->strategies[decisions->edges[e].to]; b++)
                fprintf(file, " + %.17g y%d_%d_%d\n", decisions->edges[e].seconds[a][b], e, a, b);
    fprintf(file, "Subject To\n");
    for (int32_t i = 0; i < decisions->count; i++) {
        for (int32_t k = 0; k < decisions->strategies[i]; k++) fprintf(file, " + x%d_%d", i, k);
        fprintf(file, " = 1\n");
    }
    for (int32_t e = 0; e < decisions->edge_count; e++) {
        const DecisionEdge *edge = &decisions->edges[e];
        int32_t from = decisions->strategies[edge->from], to = decisions->strategies[edge->to];
        for (int32_t a = 0; a < from; a++) {
            for (int32_t b = 0; b < to; b++) fprintf(file, " + y%d_%d_%d", e, a, b);
            fprintf(file, " - x%d_%d = 0\n", edge->from, a);
        }
        for (int32_t b = 0; b < to; b++) {
            for (int32_t a = 0; a < from; a++) fprintf(file, " + y%d_%d_%d", e, a, b);
            fprintf(file, " - x%d_%d = 0\n", edge->to, b);
        }
    }
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++)
            fprintf(file, " + %.17g x%d_%d\n", decisions->bytes[i][k], i, k);
    fprintf(file, " <= %.17g\nBinary\n", decisions->memory);
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++) fprintf(file, " x%d_%d\n", i, k);
    fprintf(file, "End\n");
}

static void exact_is_what_glpk_finds(void **state) {
    (void)state;
    int32_t constrained = 0;
    for (uint64_t seed = 1; seed <= INSTANCES; seed++) {
        Arena arena = {0};
        Decisions decisions = small_problem(&arena, seed);
        DecisionPlan plan;
        double seconds, unlimited;
        assert_int_equal(decisions_exact(&plan, &seconds, &decisions, MOST_NODES, NULL), AM_OK);
        double optimum = glpk_solve(write_program, &decisions);
        if (fabs(optimum / seconds - 1) > 1e-9)
            fail_msg("seed %d: %.12g, GLPK %.12g", (int)seed, seconds, optimum);
        decisions.memory = 1e9; /* more than all bytes */
        assert_int_equal(decisions_exact(&plan, &unlimited, &decisions, MOST_NODES, NULL), AM_OK);
        constrained += unlimited < seconds;
        arena_free(&arena);
    }
    assert_true(constrained > INSTANCES / 2); /* the memory limit makes them hard */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_is_what_glpk_finds)};
    if (!glpk_is_there()) return GLPK_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
