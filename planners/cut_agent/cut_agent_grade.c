/* Grades the agent that cuts pipelines: its plans beside the exact optimum, an even split and a greedy one.
 */
#include "planners/cut_agent/cut_agent_grade.h"

#include <math.h>
#include <stdlib.h>

#include "base/compare.h"
#include "base/system/clock.h"
#include "base/system/stop.h"

static double length_or_nan(const ChainProblem *problem, const ChainPlan *plan) {
    return chain_plan_is_valid(problem, plan) ? chain_plan_length(problem, plan) : NAN;
}

AmStatus cut_agent_grade_case(CutAgentCase *result, const ChainProblem *problem, Agent *agent, int32_t width,
                              AmError *error) {
    ChainExact exact;
    ChainPlan plan;
    *result = (CutAgentCase){0};
    double start = clock_thread_seconds();
    TRY(cut_agent_plan(&result->plan, problem, agent, width, error));
    double middle = clock_thread_seconds();
    TRY(chain_exact(&exact, problem, false, error));
    result->exact_seconds = clock_thread_seconds() - middle;
    result->seconds = middle - start;
    result->exact = exact.length;
    result->exact_plan = exact.plan;
    result->is_valid = chain_plan_is_valid(problem, &result->plan);
    result->agent = chain_plan_length(problem, &result->plan);
    result->agent_by_events = chain_simulate(problem, &result->plan);
    result->exact_by_events = chain_simulate(problem, &exact.plan);
    chain_greedy_plan(problem, &plan);
    result->greedy = length_or_nan(problem, &plan);
    chain_even_plan(problem, &plan);
    result->even = length_or_nan(problem, &plan);
    return AM_OK;
}

/* Adds a baseline's excess to its sum, or counts that it does not fit. */
static void add_baseline(double length, double exact, double *sum, int32_t *invalid) {
    if (isnan(length)) ++*invalid;
    else *sum += length / exact - 1;
}

static AmStatus grade_one(CutAgentGrade *grade, double *excess, const ChainProblem *problem, Agent *agent,
                          int32_t width, AmError *error) {
    CutAgentCase one;
    TRY(cut_agent_grade_case(&one, problem, agent, width, error));
    grade->mean_seconds += one.seconds;
    grade->most_seconds = fmax(grade->most_seconds, one.seconds);
    if (!one.is_valid) grade->invalid++;
    *excess = one.agent / one.exact - 1;
    grade->mean += *excess;
    grade->by_events += one.agent_by_events / one.exact_by_events - 1;
    add_baseline(one.even, one.exact, &grade->even_mean, &grade->even_invalid);
    add_baseline(one.greedy, one.exact, &grade->greedy_mean, &grade->greedy_invalid);
    return AM_OK;
}

AmStatus cut_agent_grade(CutAgentGrade *grade, Agent *agent, int32_t width, uint64_t seed, int32_t count,
                         const volatile sig_atomic_t *interrupted, AmError *error) {
    Arena arena = {0};
    AmStatus status = AM_OK;
    double *excess = ARENA_ARRAY(&arena, double, count);
    CutAgentSet *set = ARENA_ARRAY(&arena, CutAgentSet, 1);
    *grade = (CutAgentGrade){.count = count};
    if (!excess || !set) {
        status = am_fail_memory(error, count * (int64_t)sizeof(double));
        goto fail;
    }
    for (int32_t k = 0; k < count; k++) {
        if (stop_flag_is_set(interrupted))
            TRY_OR_FAIL(am_fail(error, AM_INTERRUPTED, "", "interrupted while an agent was graded"));
        cut_agent_generate(set, seed, (uint64_t)k, false);
        TRY_OR_FAIL(grade_one(grade, &excess[k], &set->problem, agent, width, error));
    }
    qsort(excess, (size_t)count, sizeof(double), compare_doubles);
    grade->mean /= count;
    grade->by_events /= count;
    grade->mean_seconds /= count;
    grade->even_mean /= fmax(1, count - grade->even_invalid);
    grade->greedy_mean /= fmax(1, count - grade->greedy_invalid);
    grade->percentile_95 = excess[(int64_t)(count - 1) * 95 / 100];
    grade->worst = excess[count - 1];
fail:
    arena_free(&arena);
    return status;
}
