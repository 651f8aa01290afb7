/* Annealing, greedy and exact search against every plan of spaces that are small enough to enumerate. */
/* cost: 6 seconds */
#include "lowering/spmd/lower.h"
#include "tests/support/model_case.h"
#include "tests/support/sample.h"
#include "tests/support/search_case.h"

typedef struct SearcherCase {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    SearchRequest request;
    SearchScope scope;
    double best; /* of all plans */
    int64_t plans;
} SearcherCase;

static SearchResult search_case(SearcherCase *self, Searcher searcher, int64_t evaluations) {
    AmError error = {0};
    SearchResult result;
    SearchScope scope = self->scope;
    scope.request = &self->request;
    scope.searcher = searcher;
    scope.limits.evaluations = evaluations;
    AmStatus status =
        single_stage_search(&result, &self->arena, self->context, self->cluster, &scope, &error);
    if (status != AM_OK) fail_msg("%s: %s", searcher_name(searcher), error.text);
    return result;
}

static void begin(SearcherCase *self, int32_t number) {
    Random random;
    random_seed(&random, 5000 + (uint64_t)number);
    int32_t layers = 1 + number % 2;
    *self = (SearcherCase){.request = {.space.mesh = layers == 1 ? "data=2,model=2" : "data=4",
                                       .constraints.memory_fraction = 0.9},
                           .scope.seed = (uint64_t)number};
    if (number % 4 == 2) { /* products take most of the time */
        static const int64_t width[] = {8192, 8192, 8192};
        Text text = {0};
        write_layers(&text, 4096, width, layers);
        self->context = read_model_text(text.data);
        text_free(&text);
    } else {
        self->context = make_context(&random, layers);
    }
    self->cluster = make_cluster(&random, &self->arena, LARGE_MEMORY);
    SearchResult all = search_case(self, SEARCHER_EXHAUSTIVE, 0);
    self->best = all.plan->predicted_step_seconds;
    self->plans = all.evaluations;
}

static void end(SearcherCase *self) {
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

static bool is_best(const SearcherCase *self, const SearchResult *result) {
    return fabs(result->plan->predicted_step_seconds / self->best - 1) < 1e-12;
}

/* Exact search finds the optimum of all plans without pricing more of them, and knows that it has; cut short
 * it gives a bound that no plan is below. */
static void test_exact_equals_exhaustive(void **state) {
    (void)state;
    int32_t cases = sample_of(24, 4), fewer = 0;
    for (int32_t number = 0; number < cases; number++) {
        SearcherCase self;
        begin(&self, number);
        self.request.method.no_seeds = number % 3 == 0;
        SearchResult exact = search_case(&self, SEARCHER_EXACT, 0);
        if (!is_best(&self, &exact))
            fail_msg("case %d: exact %.17g, exhaustive %.17g", number, exact.plan->predicted_step_seconds,
                     self.best);
        assert_true(exact.is_exact);
        assert_string_equal(exact.plan->bound, "exact");
        assert_non_null(exact.exact_space);
        assert_true(exact.evaluations <= self.plans);
        fewer += exact.evaluations < self.plans;
        SearchResult cut = search_case(&self, SEARCHER_EXACT, 8);
        assert_true(cut.evaluations <= 8);
        if (!cut.is_exact) assert_string_equal(cut.plan->bound, "lower");
        assert_true(cut.plan->bound_seconds <= self.best * (1 + 1e-12));
        assert_true(cut.plan->bound_seconds > 0);
        end(&self);
    }
    assert_true(fewer > 0); /* branches are cut */
}

/* Many axis priorities of a small module come to one plan: the tree is walked to its end nevertheless. */
static void test_exact_ends(void **state) {
    (void)state;
    AmError error = {0};
    SearcherCase self = {.context = read_model("mlp_tiny"),
                         .request = {.space.mesh = "model=4", .constraints.memory_fraction = 0.9}};
    assert_int_equal(cluster_read(&self.cluster, &self.arena, "nominal:4", &error), AM_OK);
    SearchResult exact = search_case(&self, SEARCHER_EXACT, 3000);
    assert_true(exact.is_exact && exact.evaluations < 1000);
    end(&self);
}

/* With evaluations for the whole space and the same polish as all, both end at the optimum; with few they
 * keep to them. */
static void test_anneal_and_greedy(void **state) {
    (void)state;
    static const Searcher searchers[] = {SEARCHER_ANNEAL, SEARCHER_GREEDY};
    int32_t cases = sample_of(16, 3), unpolished_was_worse = 0;
    for (int32_t number = 0; number < cases; number++) {
        SearcherCase self;
        begin(&self, number);
        for (size_t k = 0; k < sizeof searchers / sizeof *searchers; k++) {
            self.request.method.no_seeds = true;
            self.request.method.no_polish = false;
            self.request.space.no_overrides = true; /* the space of axis priorities has none */
            SearchResult result = search_case(&self, searchers[k], 500);
            if (!is_best(&self, &result))
                fail_msg("case %d: %s %.17g, exhaustive %.17g", number, searcher_name(searchers[k]),
                         result.plan->predicted_step_seconds, self.best);
            SearchResult again = search_case(&self, searchers[k], 500);
            assert_memory_equal(&again.plan->predicted_step_seconds, &result.plan->predicted_step_seconds,
                                sizeof(double));
            assert_int_equal(again.evaluations, result.evaluations);
            self.request.method.no_polish = true;
            SearchResult few = search_case(&self, searchers[k], 6);
            assert_true(few.evaluations <= 6);
            unpolished_was_worse += !is_best(&self, &few);
        }
        end(&self);
    }
    assert_true(unpolished_was_worse > 0);
}

/* The plans of the trained policy are priced first, a fiftieth of the evaluations, and the rest is annealing
 * that starts from them. */
static void test_auto_prices_the_policy(void **state) {
    (void)state;
    int32_t cases = sample_of(16, 4), better = 0;
    for (int32_t number = 0; number < cases; number++) {
        SearcherCase self;
        begin(&self, number);
        self.request.method.no_seeds = false;
        SearchResult result = search_case(&self, SEARCHER_AUTO, 100);
        const PlanCandidate *policy = &result.pool.of[PLAN_ORIGIN_POLICY];
        assert_non_null(policy->plan);
        assert_true(result.evaluations <= 100);
        assert_true(!policy->fit.fits || result.plan->predicted_step_seconds <= policy->seconds);
        SearchResult without = search_case(&self, SEARCHER_ANNEAL, 100);
        assert_null(without.pool.of[PLAN_ORIGIN_POLICY].plan);
        better += policy->fit.fits && policy->seconds <= without.plan->predicted_step_seconds * 1.1;
        end(&self);
    }
    assert_true(better > 0);
}

/* The same plan from one thread and from several. */
static void test_threads_change_nothing(void **state) {
    (void)state;
    static const Searcher searchers[] = {SEARCHER_AUTO, SEARCHER_DQN, SEARCHER_ANNEAL, SEARCHER_GREEDY,
                                         SEARCHER_EXACT};
    static const char *const threads[] = {"1", "3", "8"};
    SearcherCase self;
    begin(&self, 1);
    self.request.space.mesh = NULL;
    for (size_t k = 0; k < sizeof searchers / sizeof *searchers; k++) {
        json_t *first = NULL;
        for (int32_t t = 0; t < sample_of(3, 2); t++) {
            AmError error = {0};
            json_t *root;
            setenv("AUTOMAP_THREADS", threads[t], 1);
            SearchResult result = search_case(&self, searchers[k], 120);
            assert_int_equal(plan_to_json(&root, result.plan, self.context, &error), AM_OK);
            if (first && !json_equal(first, root))
                fail_msg("%s: another plan with %s threads", searcher_name(searchers[k]), threads[t]);
            if (first) json_decref(root);
            else first = root;
        }
        json_decref(first);
    }
    unsetenv("AUTOMAP_THREADS");
    end(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_equals_exhaustive), cmocka_unit_test(test_exact_ends),
        cmocka_unit_test(test_anneal_and_greedy), cmocka_unit_test(test_auto_prices_the_policy),
        cmocka_unit_test(test_threads_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
