/* Benchmark of the agent that cuts pipelines on unseen sets.
 *
 *   bench_agent [AGENT [COUNT]]     (default datasets/agents/pipeline.safetensors, 10000 sets)
 *
 * Rows "name, ours, limit, ok or no": the excess of its plans over the exact optimum, mean and 95th
 * percentile in percent, invalid plans, and milliseconds of a plan, mean and most; then without a limit the
 * policy alone (one partial plan at a time, a tenth of the sets), the greedy and the even split, and the time
 * by events. Then Auto-MAP's table 8, the cuts of T5-11B on C as parts of 128, (34, 66, 98): the paper does
 * not say of how many micro-batches, so there is a row for each number, all of one size; the row is ok within
 * two parts, or where its plan is shorter than the one with the paper's cuts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "planners/cut_agent/cut_agent_grade.h"
#include "planners/pipeline/cut_agent_guess.h"
#include "zoo.h"

#define SEED 2000003 /* as automap agent evaluate */

enum { PARTS = 128, NEAR = 2, STAGES = 4, TABLED = 8 };
static const int32_t papers_cuts[STAGES - 1] = {34, 66, 98};

static void row(const char *name, double ours, double limit) {
    printf("%s\t%.4g\t%g\t%s\n", name, ours, limit, ours <= limit ? "ok" : "no");
}

static void plain_row(const char *name, double ours) {
    printf("%s\t%.4g\t-\t-\n", name, ours);
}

/* T5-11B's layers in micro-batches of an eighth of its batch, one stage for each server of C. */
static AmStatus read_layers(Chain *chain, ChainProblem *problem, Arena *arena, AmError *error) {
    char binary[4096], roles[4096];
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    AmStatus status;
    if (!zoo_paths("t5_pipeline_24_11b", binary, roles))
        return am_fail(error, AM_ERROR_INPUT, "", "no t5_pipeline_24_11b: run from the source folder");
    TRY_OR_FAIL(plan_context_read(&context, binary, roles, error));
    TRY_OR_FAIL(cluster_read(&cluster, arena, "C", error));
    TRY_OR_FAIL(cut_agent_module(chain, problem, arena, context, cluster, TABLED, STAGES, error));
fail:
    cluster_free(cluster);
    plan_context_free(context);
    return status;
}

/* The agent's cuts beside the paper's, and what both take. */
static AmStatus cut_row(Agent *agent, ChainProblem *problem, int32_t micro_batches, AmError *error) {
    int32_t layers = problem->chain->count, cuts[STAGES - 1];
    ChainPlan ours, theirs;
    bool is_near = true;
    problem->micro_batches = micro_batches;
    TRY(cut_agent_plan(&ours, problem, agent, CUT_AGENT_WIDTH, error));
    theirs = ours;
    for (int32_t k = 0; k < STAGES - 1; k++) {
        cuts[k] = (PARTS * ours.places[k + 1] + layers / 2) / layers;
        theirs.places[k + 1] = (papers_cuts[k] * layers + PARTS / 2) / PARTS;
        is_near = is_near && abs(cuts[k] - papers_cuts[k]) <= NEAR;
    }
    double seconds = chain_plan_length(problem, &ours), papers = chain_plan_length(problem, &theirs);
    printf("T5-11B on C, %d micro-batches: cuts of 128; ms, of the paper's cuts\t(%d, %d, %d); %.1f\t"
           "(34, 66, 98); %.1f\t%s\n",
           micro_batches, cuts[0], cuts[1], cuts[2], 1e3 * seconds, 1e3 * papers,
           is_near || seconds <= papers ? "ok" : "no");
    return AM_OK;
}

static AmStatus papers_rows(Agent *agent, AmError *error) {
    static const int32_t counts[] = {8, 16, 32, 64};
    Arena arena = {0};
    Chain chain;
    ChainProblem problem;
    AmStatus status = read_layers(&chain, &problem, &arena, error);
    for (size_t k = 0; k < sizeof counts / sizeof *counts && status == AM_OK; k++)
        status = cut_row(agent, &problem, counts[k], error);
    arena_free(&arena);
    return status;
}

int main(int count, char **words) {
    const char *path = count > 1 ? words[1] : "datasets/agents/pipeline.safetensors";
    int32_t sets = count > 2 ? atoi(words[2]) : 10000;
    AmError error = {0};
    CutAgentGrade grade, alone;
    Agent *agent;
    if (sets < 10) sets = 10;
    if (cut_agent_read(&agent, path, &error) != AM_OK ||
        cut_agent_grade(&grade, agent, CUT_AGENT_WIDTH, SEED, sets, NULL, &error) != AM_OK ||
        cut_agent_grade(&alone, agent, 1, SEED, sets / 10, NULL, &error) != AM_OK) {
        fprintf(stderr, "bench_agent: %s\n", error.text);
        return 1;
    }
    row("agent: mean excess %", 100 * grade.mean, 1);
    row("agent: 95th percentile %", 100 * grade.percentile_95, 3);
    row("agent: invalid plans", grade.invalid, 0);
    row("agent: mean ms a plan", 1e3 * grade.mean_seconds, 50);
    row("agent: most ms a plan", 1e3 * grade.most_seconds, 50);
    plain_row("agent: worst %", 100 * grade.worst);
    plain_row("agent: mean % by events", 100 * grade.by_events);
    plain_row("policy alone: mean %", 100 * alone.mean);
    plain_row("policy alone: 95th percentile %", 100 * alone.percentile_95);
    plain_row("policy alone: mean ms a plan", 1e3 * alone.mean_seconds);
    plain_row("greedy split: mean %", 100 * grade.greedy_mean);
    plain_row("even split: mean %", 100 * grade.even_mean);
    plain_row("even split: does not fit", grade.even_invalid);
    if (papers_rows(agent, &error) != AM_OK) fprintf(stderr, "bench_agent: %s\n", error.text);
    agent_free(agent);
    return error.code == AM_OK ? 0 : 1;
}
