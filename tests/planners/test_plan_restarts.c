/* Restarts from a plan: a larger cap prices all that a smaller one does, and none is exceeded. From the plan
 * of a search, which no single change improves, they find a faster one. Shifts move one unit between parts
 * that are not neighbours. */
/* labels: threads */
/* cost: 7 seconds */
#include "tests/support/model_case.h"
#include "tests/support/sample.h"

#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/improve/plan_moves.h"
#include "planners/improve/plan_restarts.h"
#include "planners/plan_search.h"
#include "planners/search_context.h"

enum { MICRO_BATCHES = 4 };

typedef struct Fixture {
    Arena arena;
    PlanContext *primary;
    const PlanContext *split;
    Cluster *cluster;
    SearchRequest request;
    SearchScope scope;
    Plan *start; /* four stages of one device */
} Fixture;

static void open_case(Fixture *self, const char *model) {
    const MicroBatchSettings settings = {.micro_batches = MICRO_BATCHES, .separate_backward = true};
    const char *reason;
    int64_t evaluations;
    AmError error = {0};
    *self = (Fixture){.primary = read_model(model),
                      .request = {.space.mesh = "data=1", .constraints.memory_fraction = 0.9},
                      .scope.searcher = SEARCHER_DQN};
    self->scope.request = &self->request;
    assert_int_equal(plan_context_for(&self->split, self->primary, &settings, &error), AM_OK);
    assert_int_equal(cluster_read(&self->cluster, &self->arena, "nominal:4", &error), AM_OK);
    if (even_pipeline_plan(&self->start, &reason, &evaluations, &self->arena, self->split, self->cluster,
                           &self->scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_non_null(self->start);
    assert_int_equal(self->start->stage_count, 4);
}

static void close_case(Fixture *self) {
    cluster_free(self->cluster);
    plan_context_free(self->primary);
    arena_free(&self->arena);
}

static PlanClimb climb_of(Fixture *self, int64_t cap) {
    PlanClimb climb = {.primary = self->primary,
                       .cluster = self->cluster,
                       .request = &self->request,
                       .scope = &self->scope,
                       .keeps_micro_batches = true,
                       .budget = {.cap = cap, .has_cap = cap > 0}};
    AmError error = {0};
    assert_int_equal(plan_climb_open(&climb, &self->arena, &error), AM_OK);
    return climb;
}

/* A climb ends at its own limit, or at that of the search if it is smaller. Only the latter ends the
 * search. */
static void test_limit_of_a_climb(void **state) {
    (void)state;
    static const struct {
        int64_t cap, most, used;
        bool is_cut;
    } cases[] = {{0, 5, 5, false}, {9, 5, 5, false}, {4, 5, 4, true}, {7, 0, 7, true}};
    Fixture self;
    open_case(&self, "t5_tiny");
    self.scope.micro_batches = MICRO_BATCHES;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        AmError error = {0};
        SearchResult result;
        self.scope.limits.evaluations = cases[k].cap;
        search_result_clear(&result);
        SearchContext search = search_context(&result, &self.arena, self.primary, self.cluster, &self.scope);
        search.most_climbed = cases[k].most;
        search_result_add(&result, self.start, PLAN_ORIGIN_BASELINE, NULL);
        assert_int_equal(search_add_climb(&result, &search, false, &error), AM_OK);
        assert_int_equal(search.budget.used, cases[k].used);
        assert_int_equal(search.budget.is_cut, cases[k].is_cut);
        plan_climb_close(&search.climb);
    }
    close_case(&self);
}

static void test_larger_caps_are_never_worse(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* the first test starts the same threads */
    const int64_t most = sample_of_all(160, 60, 16);
    Fixture self;
    open_case(&self, "t5_tiny");
    double before = self.start->predicted_step_seconds;
    int32_t steps = 0;
    for (int64_t cap = 1; cap <= most; cap += 1 + cap / sample_of_all(3, 1, 1)) {
        PlanClimb climb = climb_of(&self, cap);
        Plan *plan = self.start;
        AmError error = {0};
        assert_int_equal(plan_restarts(&plan, &climb, most, 3, &self.arena, &error), AM_OK);
        assert_true(climb.budget.used <= cap);
        assert_true(plan->predicted_step_seconds <= before);
        steps += plan->predicted_step_seconds < before;
        before = plan->predicted_step_seconds;
        Simulation *simulation;
        assert_int_equal(simulate_plan(&simulation, &self.arena, plan->context, plan, self.cluster,
                                       &(SimulationOptions){.memory_fraction = 0.9}, &error),
                         AM_OK);
        assert_true(simulation->step_seconds == plan->predicted_step_seconds);
        plan_climb_close(&climb);
    }
    assert_true(steps >= sample_of(2, 1));
    if (sample_of(1, 0)) { /* a small cap need not reach the end of a climb */
        PlanClimb climb = climb_of(&self, 0);
        Plan *plan = self.start;
        assert_int_equal(plan_climb(&plan, &climb, 0, &self.arena, NULL), AM_OK);
        assert_true(before <= plan->predicted_step_seconds);
        plan_climb_close(&climb);
    }
    close_case(&self);
}

static void test_restarts_leave_a_local_optimum(void **state) {
    (void)state;
    if (sample_of(0, 1)) skip(); /* the other tests run the same lines */
    enum { SIZE = 450 };
    AmError error = {0};
    SearchResult result;
    Fixture self = {.primary = read_model("vit_tiny"),
                    .request.constraints.memory_fraction = 0.9,
                    .scope = {.searcher = SEARCHER_DQN, .skip_bound = true}};
    self.scope.request = &self.request;
    assert_int_equal(cluster_read(&self.cluster, &self.arena, "h100:1", &error), AM_OK);
    assert_int_equal(plan_search(&result, &self.arena, self.primary, self.cluster, &self.scope, &error),
                     AM_OK);
    PlanClimb climb = climb_of(&self, SIZE);
    climb.keeps_micro_batches = false;
    Plan *plan = result.plan;
    assert_int_equal(plan_climb(&plan, &climb, 0, &self.arena, &error), AM_OK);
    assert_true(plan->predicted_step_seconds == result.plan->predicted_step_seconds);
    assert_int_equal(plan_restarts(&plan, &climb, SIZE, 0, &self.arena, &error), AM_OK);
    assert_true(plan->predicted_step_seconds < result.plan->predicted_step_seconds * (1 - 1e-4));
    plan_climb_close(&climb);
    close_case(&self);
}

/* The second climb from one plan knows all its changes. */
static void test_known_plans_take_no_evaluation(void **state) {
    (void)state;
    if (sample_of(0, 1)) skip(); /* climbs of the next test run the same lines */
    Fixture self;
    open_case(&self, "t5_tiny");
    PlanClimb climb = climb_of(&self, 0);
    Plan *plan = self.start, *again;
    assert_int_equal(plan_climb(&plan, &climb, 0, &self.arena, NULL), AM_OK);
    int64_t evaluations = climb.budget.used;
    again = plan;
    assert_true(evaluations > 0);
    assert_int_equal(plan_climb(&again, &climb, 0, &self.arena, NULL), AM_OK);
    assert_int_equal(climb.budget.used, evaluations);
    assert_ptr_equal(again, plan);
    plan_climb_close(&climb);
    close_case(&self);
}

/* The result is the faster of two plans in any order and under any cap; a climb from both prices the plans of
 * a climb from one, and ends no slower. */
static void test_the_faster_of_rivals_is_taken(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* the first test starts the same threads */
    enum { CAP = 2 };
    Fixture self;
    open_case(&self, "t5_tiny");
    PlanClimb climb = climb_of(&self, 0), capped = climb_of(&self, CAP);
    Plan *fast = self.start, *plan = self.start;
    assert_int_equal(plan_climb(&fast, &climb, 0, &self.arena, NULL), AM_OK);
    assert_true(fast->predicted_step_seconds < self.start->predicted_step_seconds);
    assert_int_equal(plan_climb_rivals(&plan, fast, &capped, false, &self.arena, NULL), AM_OK);
    assert_ptr_equal(plan, fast);
    assert_true(capped.budget.used <= CAP);
    plan = fast;
    assert_int_equal(plan_climb_rivals(&plan, self.start, &climb, false, &self.arena, NULL), AM_OK);
    assert_true(plan->predicted_step_seconds <= fast->predicted_step_seconds);
    plan = self.start;
    assert_int_equal(plan_climb_rivals(&plan, self.start, &climb, false, &self.arena, NULL), AM_OK);
    assert_true(plan->predicted_step_seconds <= fast->predicted_step_seconds);
    plan_climb_close(&climb);
    plan_climb_close(&capped);
    close_case(&self);
}

/* A short race prices at most eight plans of a rival that stays slower. */
static void test_a_short_race_is_cheap(void **state) {
    (void)state;
    enum { MOST = 8 };
    Fixture self;
    open_case(&self, "t5_tiny");
    PlanClimb first = climb_of(&self, 0), alone = climb_of(&self, 0), both = climb_of(&self, 0);
    Plan *fast = self.start;
    assert_int_equal(plan_climb(&fast, &first, 0, &self.arena, NULL), AM_OK);
    Plan *plan = fast, *raced = fast;
    assert_int_equal(plan_climb(&plan, &alone, 0, &self.arena, NULL), AM_OK);
    assert_int_equal(plan_climb_rivals(&raced, self.start, &both, true, &self.arena, NULL), AM_OK);
    assert_true(raced->predicted_step_seconds == plan->predicted_step_seconds);
    assert_true(both.budget.used > alone.budget.used);
    assert_true(both.budget.used <= alone.budget.used + MOST);
    plan_climb_close(&first);
    plan_climb_close(&alone);
    plan_climb_close(&both);
    close_case(&self);
}

static void test_shifts_move_every_cut_between(void **state) {
    (void)state;
    Fixture self;
    open_case(&self, "t5_tiny");
    PlanClimb climb = climb_of(&self, 0);
    Arena arena = {0};
    ClimbBase base;
    const Plan *made;
    AmError error = {0};
    assert_int_equal(plan_climb_list(&base, self.start, &climb, &arena, &error), AM_OK);
    assert_int_equal(base.explanation.cuts.count, 3);
    assert_int_equal(plan_move_shift(&made, &self.arena, &base.explainer, 3, 1, &error), AM_OK);
    assert_non_null(made);
    const PlanStage *old = self.start->stages, *stages = made->stages;
    assert_int_equal(stages[0].ranges[0][1], old[0].ranges[0][1]);
    assert_true(stages[1].ranges[0][1] > old[1].ranges[0][1]);
    assert_true(stages[2].ranges[0][1] > old[2].ranges[0][1]);
    for (int32_t s = 0; s + 1 < 4; s++) assert_int_equal(stages[s].ranges[0][1], stages[s + 1].ranges[0][0]);
    const Plan *both;
    assert_int_equal(plan_move_join(&both, &self.arena, self.start, made, made, &error), AM_OK);
    assert_null(both);
    plan_climb_unlist(&base);
    arena_free(&arena);
    plan_climb_close(&climb);
    close_case(&self);
}

static void assert_entries(const PlanAxisPriority *priority, const int32_t *classes, int32_t count) {
    assert_int_equal(priority->count, count);
    for (int32_t k = 0; k < count; k++) assert_int_equal(priority->entries[k].class_index, classes[k]);
}

/* One or two of four compute entries are kept with the storage entry. */
static void test_prefixes_keep_storage(void **state) {
    (void)state;
    Fixture self;
    PrefixMove *moves;
    int32_t count;
    AmError error = {0};
    open_case(&self, "t5_tiny");
    PlanEntry entries[] = {
        {0, PLAN_COMPUTE}, {1, PLAN_COMPUTE}, {2, PLAN_COMPUTE}, {3, PLAN_COMPUTE}, {4, PLAN_WEIGHTS}};
    for (int32_t s = 0; s < 4; s++)
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
            self.start->stages[s].axis_priorities[axis].count = 0;
    self.start->stages[2].axis_priorities[0] = (PlanAxisPriority){.count = 5, .entries = entries};
    assert_int_equal(plan_list_prefixes(&moves, &count, &self.arena, self.start, &error), AM_OK);
    assert_int_equal(count, 2);
    static const int32_t kept[2][3] = {{0, 4}, {0, 1, 4}};
    for (int32_t k = 0; k < 2; k++) {
        const Plan *made;
        assert_int_equal(moves[k].stage, 2);
        assert_int_equal(plan_move_prefix(&made, &self.arena, self.start, &moves[k], &error), AM_OK);
        assert_entries(&made->stages[2].axis_priorities[0], kept[k], k + 2);
    }
    assert_int_equal(self.start->stages[2].axis_priorities[0].count, 5);
    close_case(&self);
}

/* Three stages with a fast and a slow device each have six swaps; each gives every device to one stage. */
static void test_swaps_exchange_two_types(void **state) {
    (void)state;
    static const int32_t devices[3][2] = {{1, 4}, {3, 2}, {0, 5}};
    Arena arena = {0};
    AmError error = {0};
    Cluster *cluster;
    DeviceSwap *swaps;
    int32_t count;
    PlanStage stages[3] = {0};
    Plan plan = {.stages = stages, .stage_count = 3};
    assert_int_equal(cluster_read(&cluster, &arena, "whale-dp", &error), AM_OK);
    const int32_t per_server = cluster->servers[0].device_count;
    int32_t numbers[3][2];
    assert_true(cluster->servers[0].type != cluster->servers[1].type);
    for (int32_t s = 0; s < 3; s++) {
        for (int32_t k = 0; k < 2; k++) /* 0 to 2 are fast, 3 to 5 slow */
            numbers[s][k] = devices[s][k] % 3 + (devices[s][k] < 3 ? 0 : per_server);
        stages[s] = (PlanStage){.mesh = {.device_count = 2}, .devices = numbers[s]};
    }
    assert_int_equal(plan_list_swaps(&swaps, &count, &arena, &plan, cluster, &error), AM_OK);
    assert_int_equal(count, 3 * 2); /* each stage has both types */
    for (int32_t k = 0; k < count; k++) {
        const Plan *made;
        bool has[6] = {false};
        int32_t changed = 0;
        assert_int_equal(plan_swap_devices(&made, &arena, &plan, &swaps[k], &error), AM_OK);
        for (int32_t s = 0; s < 3; s++)
            for (int32_t d = 0; d < 2; d++) {
                int32_t device = made->stages[s].devices[d];
                has[device < per_server ? device : 3 + device - per_server] = true;
                changed += device != numbers[s][d];
            }
        assert_int_equal(changed, 2);
        for (int32_t d = 0; d < 6; d++) assert_true(has[d]);
        int32_t first = numbers[swaps[k].stage][swaps[k].place],
                second = numbers[swaps[k].other_stage][swaps[k].other_place];
        assert_true(cluster_device_type(cluster, first) != cluster_device_type(cluster, second));
    }
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit_of_a_climb),
                                       cmocka_unit_test(test_larger_caps_are_never_worse),
                                       cmocka_unit_test(test_restarts_leave_a_local_optimum),
                                       cmocka_unit_test(test_known_plans_take_no_evaluation),
                                       cmocka_unit_test(test_the_faster_of_rivals_is_taken),
                                       cmocka_unit_test(test_a_short_race_is_cheap),
                                       cmocka_unit_test(test_shifts_move_every_cut_between),
                                       cmocka_unit_test(test_prefixes_keep_storage),
                                       cmocka_unit_test(test_swaps_exchange_two_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
