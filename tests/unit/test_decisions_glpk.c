/* The exact optimum of decision problems beside GLPK's, run as a process on the same problem stated as a
 * mixed integer program.
 *
 * x[i][k] says that decision i takes strategy k, y[e][a][b] that the two ends of edge e take a and b:
 *
 *   min  sum seconds[i][k] x[i][k] + sum seconds[e][a][b] y[e][a][b]
 *   sum_k x[i][k] = 1,   sum_b y[e][a][b] = x[from][a],   sum_a y[e][a][b] = x[to][b],
 *   sum bytes[i][k] x[i][k] <= memory,   x binary, y >= 0
 *
 * Skipped (77) where there is no glpsol.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "planners/decisions_exact.h"
#include "planners/decisions_planted.h"

enum { SKIPPED = 77, INSTANCES = 20, TAKEN = 8, MOST_NODES = 1000000 };

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

static void write_program(FILE *file, const Decisions *decisions) {
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

/* The optimum in the file that glpsol writes: "s mip ROWS COLUMNS o OBJECTIVE". */
static double read_optimum(const char *path) {
    char line[256], proven = 0;
    double optimum = NAN;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "s mip %*d %*d %c %lf", &proven, &optimum) == 2) break;
    fclose(file);
    assert_int_equal(proven, 'o');
    return optimum;
}

static double solve_by_glpk(const Decisions *decisions, const char *folder) {
    char program[128], solution[128], command[512];
    snprintf(program, sizeof program, "%s/program.lp", folder);
    snprintf(solution, sizeof solution, "%s/solution", folder);
    FILE *file = fopen(program, "w");
    assert_non_null(file);
    write_program(file, decisions);
    assert_int_equal(fclose(file), 0);
    snprintf(command, sizeof command, "glpsol --lp %s -w %s >%s/log", program, solution, folder);
    assert_int_equal(system(command), 0);
    return read_optimum(solution);
}

static void exact_is_what_glpk_finds(void **state) {
    (void)state;
    char folder[] = "/tmp/automap-glpk-XXXXXX", command[64];
    int32_t constrained = 0;
    assert_non_null(mkdtemp(folder));
    for (uint64_t seed = 1; seed <= INSTANCES; seed++) {
        Arena arena = {0};
        Decisions decisions = small_problem(&arena, seed);
        DecisionPlan plan;
        double seconds, unlimited;
        assert_int_equal(decisions_exact(&plan, &seconds, &decisions, MOST_NODES, NULL), AM_OK);
        double optimum = solve_by_glpk(&decisions, folder);
        if (fabs(optimum / seconds - 1) > 1e-9)
            fail_msg("seed %d: %.12g, GLPK %.12g", (int)seed, seconds, optimum);
        decisions.memory = 1e9; /* more than all bytes */
        assert_int_equal(decisions_exact(&plan, &unlimited, &decisions, MOST_NODES, NULL), AM_OK);
        constrained += unlimited < seconds;
        arena_free(&arena);
    }
    assert_true(constrained > INSTANCES / 2); /* the memory is what makes them hard */
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_is_what_glpk_finds)};
    if (system("glpsol --version >/dev/null 2>&1") != 0) {
        puts("skipped: there is no glpsol (Debian: glpk-utils)");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
