/* Pipelines by inference: generated sets, masks, their files, valid plans of any network, training that can
 * be continued.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "base/random.h"
#include "planners/cut_agent/cut_agent_file.h"
#include "planners/cut_agent/cut_agent_grade.h"
#include "planners/cut_agent/cut_agent_train.h"
#include "tests/support/sample.h"

static void sets_are_scaled_together(void **state) {
    (void)state;
    CutAgentSet *set = malloc(sizeof(*set));
    int32_t mixed = 0, short_memory = 0, fewest = 100, most = 0;
    for (uint64_t index = 0; index < 200; index++) {
        double largest = 0;
        cut_agent_generate(set, 5, index, false);
        const Chain *chain = &set->chain;
        assert_int_equal(chain->count, CUT_AGENT_POINTS);
        for (int32_t k = 1; k <= chain->count; k++) {
            double computation = chain->forward[k] + chain->backward[k];
            assert_true(chain->forward[k] >= chain->forward[k - 1] &&
                        chain->weight[k] >= chain->weight[k - 1]);
            assert_true(chain->activation[k] >= 0);
            largest = fmax(largest, fmax(computation, fmax(chain->activation[k], chain->weight[k])));
        }
        assert_true(fabs(largest - 1) < 1e-9);
        for (int32_t k = 1; k < set->device_count; k++)
            if (set->rates[k] != set->rates[0]) {
                mixed++;
                break;
            }
        short_memory += set->memory < 1e29;
        fewest = set->device_count < fewest ? set->device_count : fewest;
        most = set->device_count > most ? set->device_count : most;
        assert_true(cut_agent_is_feasible(&set->problem));
    }
    assert_true(mixed > 40 && short_memory > 60 && fewest == 2 && most > 48 && most <= 64);
    free(set);
}

static Agent *random_agent(uint64_t seed) {
    Agent *agent;
    AgentSettings settings = cut_agent_settings();
    settings.hidden[0] = settings.hidden[1] = 16;
    settings.seed = seed;
    assert_int_equal(agent_create(&agent, &settings, CUT_AGENT_FEATURES, 1, NULL), AM_OK);
    return agent;
}

/* Whatever the network says, no plan leaves the memory and none is shorter than the optimum. */
static void plans_of_an_untrained_agent_are_valid(void **state) {
    (void)state;
    Agent *agent = random_agent(3);
    CutAgentGrade grade;
    assert_int_equal(cut_agent_grade(&grade, agent, 8, 11, 40, NULL, NULL), AM_OK);
    assert_int_equal(grade.invalid, 0);
    assert_true(grade.mean >= 0 && grade.worst >= grade.percentile_95 && grade.percentile_95 >= 0);
    agent_free(agent);
}

/* The mask allows exactly the plans that can be finished: by brute force on a short chain with
 * little memory. */
static bool can_finish(const ChainProblem *problem, ChainPlan *plan, int32_t s) {
    if (s == plan->stages) return chain_plan_is_valid(problem, plan);
    for (int32_t place = plan->places[s] + 1; place <= problem->chain->count; place++)
        for (int32_t unit = plan->units[s] + 1; unit <= problem->unit_count; unit++) {
            plan->places[s + 1] = place;
            plan->units[s + 1] = unit;
            if (can_finish(problem, plan, s + 1)) return true;
        }
    return false;
}

static void infeasible_is_said_exactly(void **state) {
    (void)state;
    int32_t feasible = 0;
    for (int32_t k = 1; k <= 60; k++) {
        Arena arena = {0};
        Chain chain;
        assert_int_equal(chain_create(&chain, &arena, 7, NULL), AM_OK);
        for (int32_t i = 1; i <= 7; i++) {
            chain.forward[i] = chain.forward[i - 1] + 1;
            chain.weight[i] = chain.weight[i - 1] + (i * k * 7919 % 6);
            chain.stored[i] = chain.stored[i - 1] + (i * k * 104729 % 5);
        }
        double rates[4] = {1, 1, 1, 1}, memory[4] = {10 + k % 9, 16, 8 + k % 7, 13};
        ChainProblem problem = {.chain = &chain, .stages = 3, .micro_batches = 2, .weight_factor = 1};
        problem.unit_count = chain_units(problem.units, 4, rates, memory, 4, 4, 1, 1);
        assert_int_equal(chain_problem_prepare(&problem, NULL), AM_OK);
        ChainPlan plan = {.stages = 3};
        bool is = can_finish(&problem, &plan, 0);
        assert_int_equal(cut_agent_is_feasible(&problem), is);
        feasible += is;
        arena_free(&arena);
    }
    assert_true(feasible > 5 && feasible < 55);
}

/* A coarsened chain keeps its sums, and a plan of a long chain cuts it at its own places. */
static void long_chains_are_coarsened(void **state) {
    (void)state;
    Arena arena = {0};
    Chain chain, coarse;
    int32_t places[CUT_AGENT_POINTS + 1];
    assert_int_equal(chain_create(&chain, &arena, 1000, NULL), AM_OK);
    for (int32_t i = 1; i <= 1000; i++) {
        chain.forward[i] = i;
        chain.backward[i] = 2 * i;
        if (i < 1000) chain.activation[i] = i % 5 ? 50 : 1;
    }
    assert_int_equal(cut_agent_coarsen(&coarse, places, &chain, &arena, NULL), AM_OK);
    assert_true(places[0] == 0 && places[CUT_AGENT_POINTS] == 1000 &&
                coarse.forward[CUT_AGENT_POINTS] == 1000);
    for (int32_t k = 1; k < CUT_AGENT_POINTS; k++)
        assert_true(places[k] > places[k - 1] && coarse.activation[k] == 1 && places[k] % 5 == 0);
    double rates[4] = {1, 1, 1, 1}, memory[4] = {1, 1, 1, 1};
    ChainProblem problem = {.chain = &chain, .stages = 4, .micro_batches = 8};
    problem.unit_count = chain_units(problem.units, 4, rates, memory, 4, 1, 1, 1);
    assert_int_equal(chain_problem_prepare(&problem, NULL), AM_OK);
    ChainPlan plan;
    Agent *agent = random_agent(1);
    assert_int_equal(cut_agent_plan(&plan, &problem, agent, 4, NULL), AM_OK);
    assert_true(chain_plan_is_valid(&problem, &plan));
    agent_free(agent);
    arena_free(&arena);
}

static float *parameters_of(Agent *agent) {
    float *parameters = malloc(sizeof(float) * (size_t)agent_parameter_count(agent));
    assert_int_equal(agent_parameters(agent, parameters, NULL), AM_OK);
    return parameters;
}

static AmStatus stop_once(void *user, const CutAgentProgress *progress, AmError *error) {
    (void)progress;
    (void)error;
    *(volatile sig_atomic_t *)user = 1;
    return AM_OK;
}

/* Interrupted after some rounds and continued: the same network, bit for bit. */
static void training_goes_on_from_a_checkpoint(void **state) {
    (void)state;
    char path[] = "/tmp/automap_inference_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    volatile sig_atomic_t interrupted = 0;
    Agent *whole, *part, *rest;
    int64_t done;
    CutAgentTraining training = {.seed = 7, .episodes = sample_of(5, 3) * CUT_AGENT_ROUND};
    assert_int_equal(cut_agent_train(&whole, &done, &training, NULL), AM_OK);
    assert_int_equal(done, training.episodes);
    training.checkpoint = path;
    training.report_every = 2 * CUT_AGENT_ROUND;
    training.on_report = stop_once;
    training.user = (void *)&interrupted;
    training.interrupted = &interrupted;
    assert_int_equal(cut_agent_train(&part, &done, &training, NULL), AM_OK);
    assert_int_equal(done, 2 * CUT_AGENT_ROUND);
    training.resume = true;
    training.on_report = NULL;
    interrupted = 0;
    assert_int_equal(cut_agent_train(&rest, &done, &training, NULL), AM_OK);
    float *expected = parameters_of(whole), *parameters = parameters_of(rest);
    assert_memory_equal(parameters, expected, sizeof(float) * (size_t)agent_parameter_count(whole));
    training.seed = 8; /* of another training */
    Agent *none;
    assert_int_equal(cut_agent_train(&none, &done, &training, NULL), AM_ERROR_INPUT);
    assert_null(none);
    free(expected);
    free(parameters);
    agent_free(whole);
    agent_free(part);
    agent_free(rest);
    unlink(path);
}

enum { SET_SEED = 1234567 };

/* Mean excess over the exact cuts of unseen sets, by the policy alone. */
static double mean_excess(Agent *agent) {
    CutAgentGrade grade;
    assert_int_equal(cut_agent_grade(&grade, agent, 1, SET_SEED, sample_of(150, 5), NULL, NULL), AM_OK);
    return grade.mean;
}

/* The shipped network cuts better than one without learning, whose lengths are the plain estimates, and than
 * its own numbers in another order. */
static void learnt_cuts_are_better(void **state) {
    (void)state;
    Agent *agent;
    assert_int_equal(cut_agent_built_in(&agent, NULL), AM_OK);
    int64_t count = agent_parameter_count(agent);
    float *parameters = parameters_of(agent);
    double learnt = mean_excess(agent);
    Random random;
    random_seed(&random, 0);
    for (int64_t k = count - 1; k > 0; k--) {
        int64_t other = random_below(&random, k + 1);
        float kept = parameters[k];
        parameters[k] = parameters[other];
        parameters[other] = kept;
    }
    assert_int_equal(agent_set_parameters(agent, parameters, count, "", NULL), AM_OK);
    double shuffled = mean_excess(agent);
    memset(parameters, 0, sizeof(float) * (size_t)count);
    assert_int_equal(agent_set_parameters(agent, parameters, count, "", NULL), AM_OK);
    double unlearnt = mean_excess(agent);
    bool is_compared = sample_of(true, false); /* few sets prove nothing */
    if (is_compared && (learnt > 0.8 * unlearnt || learnt > 0.8 * shuffled))
        fail_msg("excess %.4f, without learning %.4f, shuffled %.4f", learnt, unlearnt, shuffled);
    free(parameters);
    agent_free(agent);
}

/* The shipped network's cuts are much nearer to the exact ones than those of the greedy split. */
static void learnt_cuts_beat_greedy(void **state) {
    (void)state;
    CutAgentGrade grade;
    Agent *agent;
    assert_int_equal(cut_agent_built_in(&agent, NULL), AM_OK);
    assert_int_equal(cut_agent_grade(&grade, agent, 1, SET_SEED, sample_of(150, 5), NULL, NULL), AM_OK);
    bool is_compared = sample_of(true, false);
    if (is_compared && grade.mean > 0.25 * grade.greedy_mean)
        fail_msg("excess %.4f, greedy %.4f", grade.mean, grade.greedy_mean);
    agent_free(agent);
}

static bool nearly(double found, double expected) {
    return fabs(found - expected) <= 1e-6 * fabs(expected);
}

/* Written sets are read again, up to f32; invalid rows, and files without an array, are refused. */
static void sets_are_written_and_read(void **state) {
    static const char *const suffixes[] = {"npz", "safetensors"};
    (void)state;
    CutAgentSet *expected = malloc(sizeof(*expected)), *set = malloc(sizeof(*set));
    for (size_t k = 0; k < 2; k++) {
        Arena arena = {0};
        CutAgentFile file;
        char path[64];
        snprintf(path, sizeof(path), "/tmp/automap_sets_%d.%s", (int)getpid(), suffixes[k]);
        assert_int_equal(cut_agent_file_write(path, 9, 20, NULL, NULL), AM_OK);
        assert_int_equal(cut_agent_file_read(&file, &arena, path, NULL), AM_OK);
        assert_int_equal(file.count, 20);
        for (int32_t row = 0; row < file.count; row++) {
            cut_agent_generate(expected, 9, (uint64_t)row, false);
            assert_int_equal(cut_agent_file_set(set, &file, row, NULL), AM_OK);
            const ChainProblem *problem = &set->problem;
            assert_int_equal(problem->stages, expected->problem.stages);
            assert_int_equal(problem->micro_batches, expected->problem.micro_batches);
            assert_int_equal(problem->unit_count, expected->problem.unit_count);
            assert_true(cut_agent_is_feasible(problem));
            for (int32_t i = 0; i <= CUT_AGENT_POINTS; i++)
                assert_true(nearly(set->chain.forward[i], expected->chain.forward[i]) &&
                            nearly(set->chain.backward[i], expected->chain.backward[i]) &&
                            nearly(set->chain.activation[i], expected->chain.activation[i]) &&
                            nearly(set->chain.weight[i], expected->chain.weight[i]) &&
                            nearly(set->chain.stored[i], expected->chain.stored[i]));
            for (int32_t unit = 0; unit < problem->unit_count; unit++)
                assert_true(
                    nearly(problem->units[unit].rate, expected->problem.units[unit].rate) &&
                    nearly(problem->units[unit].memory_bytes, expected->problem.units[unit].memory_bytes));
        }
        file.weight[5] = -1;
        file.rates[CUT_AGENT_DEVICES] = 0;
        file.stages[2] = CHAIN_MAX_STAGES + 1;
        file.per_server[3] = 0;
        file.memory[4] = NAN;
        for (int32_t row = 0; row < 5; row++)
            assert_int_equal(cut_agent_file_set(set, &file, row, NULL), AM_ERROR_INPUT);
        const int64_t shape[] = {20, CUT_AGENT_POINTS};
        const ArrayToWrite one = {"computation", DTYPE_F32, 2, shape, file.computation};
        AmError error = {0};
        assert_int_equal(array_file_write(path, &one, 1, NULL, NULL), AM_OK);
        assert_int_equal(cut_agent_file_read(&file, &arena, path, &error), AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "activation"));
        arena_free(&arena);
        unlink(path);
    }
    free(expected);
    free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_scaled_together),   cmocka_unit_test(plans_of_an_untrained_agent_are_valid),
        cmocka_unit_test(infeasible_is_said_exactly), cmocka_unit_test(long_chains_are_coarsened),
        cmocka_unit_test(sets_are_written_and_read),  cmocka_unit_test(training_goes_on_from_a_checkpoint),
        cmocka_unit_test(learnt_cuts_are_better),     cmocka_unit_test(learnt_cuts_beat_greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
