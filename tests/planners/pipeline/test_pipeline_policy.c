/* The choices of the policy among pipelines: those of the baselines, and changes of a simulated one. */
#include "planners/pipeline/pipeline_policy.h"

#include <math.h>

#include "tests/support/stages_case.h"

enum { MICRO_BATCHES = 2, STAGES = 2 };

/* A policy on two devices, whose one choice is the even pipeline. */
typedef struct PolicyCase {
    StagesCase stages;
    SearchRequest request;
    SearchScope scope;
    PipelineCandidates candidates;
    PipelinePolicy *policy;
} PolicyCase;

static void open_policy(PolicyCase *self) {
    AmError error = {0};
    *self = (PolicyCase){0};
    open_stages(&self->stages, "bert_tiny", "nominal:2", MICRO_BATCHES);
    StagesCase *stages = &self->stages;
    self->request =
        (SearchRequest){.constraints.memory_fraction = STAGES_FRACTION, .method.changes_stages = true};
    self->scope = (SearchScope){.request = &self->request, .kind = SPACE_AUTO, .searcher = SEARCHER_DQN};
    PipelineCandidates *candidates = &self->candidates;
    candidates->plans = (PipelinePlans){.arena = &stages->arena,
                                        .primary = stages->context,
                                        .cluster = stages->cluster,
                                        .costs = stages->costs,
                                        .scope = &self->scope,
                                        .request = &self->request};
    candidates->costs = stages->costs;
    candidates->model = stages->model;
    candidates->budget.limit = INT64_MAX;
    if (pipeline_policy_open(&self->policy, candidates, &error) != AM_OK) fail_msg("%s", error.text);
}

static void close_policy(PolicyCase *self) {
    pipeline_policy_close(self->policy);
    pipeline_plans_close(&self->candidates.plans);
    close_stages(&self->stages);
}

/* Opens a choice, which takes no evaluation of the candidates, and returns its price. */
static PlanPrice open_number(PolicyCase *self, int32_t number) {
    const StageChoices *choices = pipeline_policy_choices(self->policy);
    StageOpening opening = {0};
    AmError error = {0};
    if (choices->open(choices->user, number, &opening, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(self->candidates.budget.used, 0);
    return opening.price;
}

/* Opens all choices that the first one adds, and returns those that have a plan. */
static int32_t open_rest(PolicyCase *self) {
    int32_t count = pipeline_policy_choices(self->policy)->count;
    for (int32_t k = 1; k < count; k++) open_number(self, k);
    return self->candidates.priced_count - 1;
}

/* Where the pipeline fits, the policy may double its micro-batches and take other schedules; it needs no
 * recomputation. */
static void test_changes_of_a_pipeline(void **state) {
    (void)state;
    PolicyCase self;
    open_policy(&self);
    const StageChoices *choices = pipeline_policy_choices(self.policy);
    assert_int_equal(choices->count, 1);
    assert_false(choices->is_priced[0]);
    PlanPrice price = open_number(&self, 0);
    assert_true(price.excess <= 0 && price.seconds > 0);
    const PipelineCandidate *even = self.candidates.priced[0];
    assert_int_equal(even->origin, PLAN_ORIGIN_BASELINE);
    assert_int_equal(even->pipeline.stage_count, STAGES);
    assert_non_null(even->cuts);
    assert_true(open_rest(&self) >= 2);
    bool has_twice = false, has_schedule = false;
    for (int32_t k = 1; k < self.candidates.priced_count; k++) {
        const PipelineCandidate *other = self.candidates.priced[k];
        bool is_once = other->pipeline.micro_batches == even->pipeline.micro_batches;
        assert_int_equal(other->origin, PLAN_ORIGIN_POLICY);
        assert_int_equal(other->pipeline.stages[0].strategy.recompute, RECOMPUTE_NONE);
        has_twice |= other->pipeline.micro_batches == 2 * even->pipeline.micro_batches;
        has_schedule |= is_once && other->schedule != SCHEDULE_1F1B;
    }
    assert_true(has_twice);
    assert_true(has_schedule);
    close_policy(&self);
}

/* Where it lacks memory, the stages that lack it may recompute, and the plan then needs less. */
static void test_recomputes_where_memory_lacks(void **state) {
    (void)state;
    PolicyCase self;
    open_policy(&self);
    PlanPrice full = open_number(&self, 0);
    double scarce = 0.95 * (double)full.peak_bytes / (double)self.candidates.priced[0]->fit.limit_bytes;
    close_policy(&self);
    open_policy(&self);
    self.request.constraints.memory_fraction = scarce * STAGES_FRACTION;
    for (int32_t k = 0; k < self.stages.model->class_count; k++)
        self.stages.model->classes[k].limit *= scarce;
    assert_true(open_number(&self, 0).excess > 0);
    open_rest(&self);
    bool has_less = false;
    for (int32_t k = 1; k < self.candidates.priced_count; k++) {
        const PipelineCandidate *other = self.candidates.priced[k];
        bool recomputes = false;
        for (int32_t s = 0; s < STAGES; s++)
            recomputes |= other->pipeline.stages[s].strategy.recompute != RECOMPUTE_NONE;
        has_less |= recomputes && other->plan && other->fit.needed_bytes < full.peak_bytes;
    }
    assert_true(has_less);
    close_policy(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes_of_a_pipeline),
        cmocka_unit_test(test_recomputes_where_memory_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
