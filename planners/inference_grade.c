/* Grading (see inference_grade.h). */
#include "planners/inference_grade.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Adds a baseline's excess to its sum, or counts that it does not fit. */
static void add_baseline(const ChainProblem *problem, const ChainPlan *plan, double exact, double *sum,
                         int32_t *invalid) {
    if (chain_plan_is_valid(problem, plan)) *sum += chain_plan_length(problem, plan) / exact - 1;
    else ++*invalid;
}

static AmStatus grade_one(InferenceGrade *grade, double *excess, const ChainProblem *problem, Agent *agent,
                          AmError *error) {
    ChainPlan plan;
    ChainExact exact;
    double start = clock_seconds();
    TRY(inference_plan(&plan, problem, agent, error));
    double seconds = clock_seconds() - start;
    grade->mean_seconds += seconds;
    grade->most_seconds = fmax(grade->most_seconds, seconds);
    TRY(chain_exact(&exact, problem, false, error));
    if (!chain_plan_is_valid(problem, &plan)) grade->invalid++;
    *excess = chain_plan_length(problem, &plan) / exact.length - 1;
    grade->mean += *excess;
    grade->by_events += chain_simulate(problem, &plan) / chain_simulate(problem, &exact.plan) - 1;
    chain_even_plan(problem, &plan);
    add_baseline(problem, &plan, exact.length, &grade->even_mean, &grade->even_invalid);
    chain_greedy_plan(problem, &plan);
    add_baseline(problem, &plan, exact.length, &grade->greedy_mean, &grade->greedy_invalid);
    return AM_OK;
}

AmStatus inference_grade(InferenceGrade *grade, Agent *agent, uint64_t seed, int32_t count, AmError *error) {
    Arena arena = {0};
    AmStatus status = AM_OK;
    double *excess = ARENA_ARRAY(&arena, double, count);
    InferenceSet *set = ARENA_ARRAY(&arena, InferenceSet, 1);
    *grade = (InferenceGrade){.count = count};
    if (!excess || !set) {
        status = am_fail_memory(error, count * (int64_t)sizeof(double));
        goto fail;
    }
    for (int32_t k = 0; k < count; k++) {
        inference_generate(set, seed, (uint64_t)k, false);
        TRY_OR_FAIL(grade_one(grade, &excess[k], &set->problem, agent, error));
    }
    qsort(excess, (size_t)count, sizeof(double), compare);
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
