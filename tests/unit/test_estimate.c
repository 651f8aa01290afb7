/* Estimates come near to what the whole additive model says of the same plan, deciding about a part of the
 * module, and a search that is screened by them begins with better plans than the recipes'. */
#include <math.h>

#include "problem_case.h"

#include "cost/additive.h"
#include "planners/estimate.h"
#include "planners/screen.h"
#include "planners/searchers.h"
#include "planners/searching.h"
#include "propagation/lower.h"

/* By what fraction the estimate of a genome differs from the whole model's figure. */
static double difference(ProblemCase *self, const Estimator *estimator, const AdditiveModel *model,
                         const Genome *genome) {
    AmError error = {0};
    ArenaMark mark = arena_mark(&self->arena);
    PlanStage stage;
    Completion *completion;
    PlanPrice estimate;
    problem_stage(self->problem, genome, &self->arena, &stage);
    assert_int_equal(plan_complete(&completion, &self->arena, self->context, &stage, &error), AM_OK);
    const AdditiveCost cost = additive_cost(model, completion);
    assert_int_equal(estimate_genome(&estimate, estimator, genome, &error), AM_OK);
    assert_true(estimate.seconds == estimate.compute_seconds + estimate.communication_seconds);
    arena_release(&self->arena, mark);
    return fabs(estimate.seconds / (cost.compute_seconds + cost.communication_seconds) - 1);
}

static void test_near_the_model(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "bert_tiny", "t5_tiny", "vgg_tiny", "llama_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        enum { GENOMES = 30 };
        ProblemCase self;
        AmError error = {0};
        Estimator *estimator;
        AdditiveModel *model;
        AdditiveSample *sample;
        Random random;
        double sum = 0;
        problem_case_open(&self, models[m], "C", "data=4,model=8", 1);
        random_seed(&random, m);
        assert_int_equal(estimator_open(&estimator, self.problem, &error), AM_OK);
        assert_non_null(estimator);
        assert_int_equal(additive_create(&model, &self.arena, self.context, &self.mesh, self.cluster,
                                         self.devices, &error),
                         AM_OK);
        assert_int_equal(additive_sample(&sample, &self.arena, model, &error), AM_OK);
        assert_true(additive_sample_size(sample) <= self.context->choices->decided_count);
        for (int32_t k = 0; k < GENOMES; k++) {
            Genome genome;
            random_genome(self.problem, &random, &genome);
            sum += difference(&self, estimator, model, &genome) / GENOMES;
        }
        if (sum > 0.01) fail_msg("%s: estimates are %.1f %% off", models[m], 100 * sum);
        estimator_close(estimator);
        problem_case_close(&self);
    }
}

/* With as many evaluations: what is priced after screening, and the recipes. */
static void test_screening_beats_recipes(void **state) {
    (void)state;
    static const char *const models[] = {"t5_tiny", "bert_tiny", "moe_tiny"};
    int32_t better = 0;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        ProblemCase screened, recipes;
        AmError error = {0};
        problem_case_open(&screened, models[m], "C", "data=4,model=8", EXPERT_COUNT);
        problem_case_open(&recipes, models[m], "C", "data=4,model=8", EXPERT_COUNT);
        Screening screening;
        assert_int_equal(screen_search(&screening, screened.problem, 0, &error), AM_OK);
        assert_int_equal(screen_price(&screening, screened.problem, &error), AM_OK);
        assert_int_equal(expert_price_seeds(recipes.problem, &error), AM_OK);
        assert_true(screened.problem->has_best);
        assert_true(screened.problem->budget.evaluations <= EXPERT_COUNT);
        better += screened.problem->best_price.seconds < 0.95 * recipes.problem->best_price.seconds;
        problem_case_close(&screened);
        problem_case_close(&recipes);
    }
    assert_true(better >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near_the_model),
                                       cmocka_unit_test(test_screening_beats_recipes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
