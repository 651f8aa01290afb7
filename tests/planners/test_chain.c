/* Chains: lengths by hand, events beside known schedules, the exact partition against all partitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "base/random.h"
#include "planners/cut_agent/chain_exact.h"

enum { MOST_LAYERS = 10 };

/* A chain with random sums and the problem on it. */
typedef struct Case {
    Arena arena;
    Chain chain;
    ChainProblem problem;
} Case;

static void fill_chain(Chain *chain, Random *random) {
    for (int32_t i = 0; i < chain->count; i++) {
        chain->forward[i + 1] = chain->forward[i] + random_uniform(random);
        chain->backward[i + 1] = chain->backward[i] + 2 * random_uniform(random);
        chain->stored[i + 1] = chain->stored[i] + random_uniform(random);
        chain->weight[i + 1] = chain->weight[i] + random_uniform(random);
        if (i + 1 < chain->count) chain->activation[i + 1] = random_uniform(random);
    }
}

static void make_case(Case *test, uint64_t seed, int32_t stages) {
    Random random;
    random_seed(&random, seed);
    int32_t layers = stages + (int32_t)random_below(&random, MOST_LAYERS - stages + 1);
    *test = (Case){0};
    assert_int_equal(chain_create(&test->chain, &test->arena, layers, NULL), AM_OK);
    fill_chain(&test->chain, &random);
    double rates[8], memory[8], most = random_below(&random, 2) ? 1e9 : 2 + 6 * random_uniform(&random);
    int32_t per_server = 1 + (int32_t)random_below(&random, 2), count = per_server * 4;
    for (int32_t k = 0; k < count; k++) {
        rates[k] = 0.3 + random_uniform(&random);
        memory[k] = most;
    }
    test->problem = (ChainProblem){.chain = &test->chain,
                                   .stages = stages,
                                   .micro_batches = 1 + (int32_t)random_below(&random, 9),
                                   .weight_factor = 1};
    test->problem.unit_count = chain_units(test->problem.units, 5, rates, memory, count, per_server, 10, 1);
    assert_int_equal(chain_problem_prepare(&test->problem, NULL), AM_OK);
}

/* The shortest valid plan that begins as `plan` does up to stage s. */
static double shortest(const ChainProblem *problem, ChainPlan *plan, int32_t s) {
    if (s == plan->stages)
        return chain_plan_is_valid(problem, plan) ? chain_plan_length(problem, plan) : INFINITY;
    double best = INFINITY;
    for (int32_t place = plan->places[s] + 1; place <= problem->chain->count; place++)
        for (int32_t unit = plan->units[s] + 1; unit <= problem->unit_count; unit++) {
            plan->places[s + 1] = place;
            plan->units[s + 1] = unit;
            best = fmin(best, shortest(problem, plan, s + 1));
        }
    return best;
}

static void exact_is_the_shortest_of_all(void **state) {
    (void)state;
    int32_t infeasible = 0, feasible = 0;
    for (uint64_t seed = 0; seed < 120; seed++) {
        Case test;
        ChainExact exact;
        ChainPlan plan = {.stages = 1 + (int32_t)(seed % 4)};
        make_case(&test, seed, plan.stages);
        double best = shortest(&test.problem, &plan, 0);
        assert_int_equal(chain_exact(&exact, &test.problem, false, NULL), AM_OK);
        if (isinf(best)) {
            assert_true(isinf(exact.length));
            infeasible++;
        } else {
            assert_true(fabs(exact.length - best) <= 1e-12 * best);
            assert_true(chain_plan_is_valid(&test.problem, &exact.plan));
            assert_true(fabs(chain_plan_length(&test.problem, &exact.plan) - best) <= 1e-12 * best);
            feasible++;
        }
        arena_free(&test.arena);
    }
    assert_true(infeasible > 5 && feasible > 50);
}

/* Over any number of stages it is the best of those over each. */
static void any_number_of_stages(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        Case test;
        ChainExact exact, any;
        make_case(&test, seed, 4);
        assert_int_equal(chain_exact(&any, &test.problem, true, NULL), AM_OK);
        double best = INFINITY;
        for (test.problem.stages = 1; test.problem.stages <= 4; test.problem.stages++) {
            assert_int_equal(chain_exact(&exact, &test.problem, false, NULL), AM_OK);
            best = fmin(best, exact.length);
        }
        assert_true(any.length == best);
        arena_free(&test.arena);
    }
}

/* Two stages of one layer each: t = 3 and 6, c = 1 and M = 2: max(2 (3 + 2), 5 + 2 6) = 17, and
 * reductions. */
static void lengths_by_hand(void **state) {
    (void)state;
    Arena arena = {0};
    Chain chain;
    assert_int_equal(chain_create(&chain, &arena, 2, NULL), AM_OK);
    for (int32_t i = 1; i <= 2; i++) {
        chain.forward[i] = i == 1 ? 1 : 3;
        chain.backward[i] = i == 1 ? 2 : 6;
        chain.weight[i] = 4 * i;
    }
    chain.activation[1] = 10;
    ChainProblem problem = {.chain = &chain, .unit_count = 2, .stages = 2, .micro_batches = 2};
    for (int32_t k = 0; k < 2; k++)
        problem.units[k] = (ChainUnit){
            .devices = 1, .rate = 1, .fastest = 1, .memory_bytes = 100, .inside = 1, .outwards = 10};
    assert_int_equal(chain_problem_prepare(&problem, NULL), AM_OK);
    ChainPlan plan = {.stages = 2, .places = {0, 1, 2}, .units = {0, 1, 2}};
    assert_true(chain_plan_length(&problem, &plan) == 17);
    /* 1F1B: forwards at 0 and 1, the second stage works from 2 to 14, the last gradient is back at 15. */
    assert_true(chain_simulate(&problem, &plan) == 17);
    problem.units[1].devices = 2; /* the second stage reduces 4 bytes, 2 1 / 2 of them at 1 byte a second */
    assert_int_equal(chain_problem_prepare(&problem, NULL), AM_OK);
    assert_true(chain_plan_length(&problem, &plan) == 21);
    arena_free(&arena);
}

/* Equal stages without transfers: (M + S - 1) t, by the model and by events. */
static void equal_stages(void **state) {
    (void)state;
    Arena arena = {0};
    Chain chain;
    assert_int_equal(chain_create(&chain, &arena, 4, NULL), AM_OK);
    for (int32_t i = 1; i <= 4; i++) {
        chain.forward[i] = i;
        chain.backward[i] = 2 * i;
    }
    double rates[4] = {1, 1, 1, 1}, memory[4] = {1, 1, 1, 1};
    ChainProblem problem = {.chain = &chain, .stages = 4, .micro_batches = 6};
    problem.unit_count = chain_units(problem.units, 4, rates, memory, 4, 2, 5, 1);
    assert_int_equal(problem.unit_count, 4);
    assert_true(problem.units[0].outwards == 5 && problem.units[1].outwards == 1);
    assert_int_equal(chain_problem_prepare(&problem, NULL), AM_OK);
    ChainPlan plan;
    chain_even_plan(&problem, &plan);
    assert_true(chain_plan_length(&problem, &plan) == (6 + 4 - 1) * 3);
    assert_true(chain_simulate(&problem, &plan) == (6 + 4 - 1) * 3);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_is_the_shortest_of_all),
        cmocka_unit_test(any_number_of_stages),
        cmocka_unit_test(lengths_by_hand),
        cmocka_unit_test(equal_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
