/* If no plan fits, the report names the device, the moment and the largest tensors, and sufficient
 * changes; each relaxation has the step of a plan that a search found. */
#include "planners/infeasible.h"
#include "tests/support/search_case.h"

typedef struct InfeasibleCase {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    InfeasibleReport report;
} InfeasibleCase;

/* Two weights of 268 MB whose gradients are as large, on four devices. */
static void begin(InfeasibleCase *self, int64_t memory_bytes, const SearchScope *scope) {
    static const int64_t width[] = {3, 8192, 8192, 8192};
    AmError error = {0};
    SearchResult result;
    Random random;
    Text text = {0};
    *self = (InfeasibleCase){0};
    random_seed(&random, 4000);
    write_layers(&text, 64, width, 3);
    self->context = read_model_text(text.data);
    text_free(&text);
    self->cluster = make_cluster(&random, &self->arena, memory_bytes);
    AmStatus status = plan_search(&result, &self->arena, self->context, self->cluster, scope, &error);
    assert_int_equal(status, AM_ERROR_INFEASIBLE);
    assert_non_null(result.nearest);
    error = (AmError){0};
    status =
        infeasible_report(&self->report, &self->arena, self->context, self->cluster, scope, &result, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
}

static void end(InfeasibleCase *self) {
    json_decref(self->report.details);
    text_free(&self->report.line);
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

static const json_t *relaxation(const InfeasibleCase *self, const char *kind) {
    const json_t *rows = json_object_get(self->report.details, "relaxations"), *row;
    size_t k;
    json_array_foreach(rows, k, row) {
        if (strcmp(json_string_value(json_object_get(row, "kind")), kind) != 0) continue;
        assert_true(json_real_value(json_object_get(row, "step_seconds")) > 0);
        assert_non_null(strstr(self->report.line.data, json_string_value(json_object_get(row, "change"))));
        return row;
    }
    return NULL;
}

static void test_more_memory_or_devices(void **state) {
    (void)state;
    const SearchRequest request = {.constraints.memory_fraction = 0.9};
    const SearchScope scope = {
        .request = &request, .searcher = SEARCHER_ANNEAL, .micro_batches = 1, .limits.evaluations = 60};
    InfeasibleCase self;
    begin(&self, 60000000, &scope);
    const json_t *binding = json_object_get(self.report.details, "binding");
    json_int_t needed = json_integer_value(json_object_get(binding, "needed_bytes"));
    assert_true(needed > json_integer_value(json_object_get(binding, "limit_bytes")));
    const json_t *peak = json_object_get(binding, "memory_peak");
    assert_true(json_array_size(json_object_get(peak, "tensors")) > 0);
    assert_non_null(json_string_value(json_object_get(peak, "operator")));
    assert_non_null(strstr(self.report.line.data, "device 0 (device, server 0) needs "));
    /* Devices of more memory are a plan's for certain; twice as many hold half of each weight. */
    assert_non_null(relaxation(&self, "memory"));
    assert_non_null(relaxation(&self, "devices"));
    assert_null(relaxation(&self, "zero"));          /* the space has it already */
    assert_null(relaxation(&self, "recomputation")); /* no search has it */
    end(&self);
}

/* A little more of the same memory is enough. */
static void test_memory_fraction(void **state) {
    (void)state;
    const SearchRequest request = {.constraints.memory_fraction = 0.5};
    const SearchScope scope = {
        .request = &request, .searcher = SEARCHER_ANNEAL, .micro_batches = 1, .limits.evaluations = 60};
    InfeasibleCase self;
    begin(&self, 350000000, &scope);
    const json_t *row = relaxation(&self, "memory");
    assert_non_null(row);
    const char *change = json_string_value(json_object_get(row, "change"));
    double fraction = 0;
    assert_int_equal(sscanf(change, "--memory-fraction %lf", &fraction), 1);
    SearchRequest relaxed_request = request;
    SearchScope relaxed = scope;
    relaxed_request.constraints.memory_fraction = fraction;
    relaxed.request = &relaxed_request;
    AmError error = {0};
    SearchResult result;
    assert_int_equal(single_stage_search(&result, &self.arena, self.context, self.cluster, &relaxed, &error),
                     AM_OK);
    end(&self);
}

/* A requested mesh has its own number of devices. */
static void test_given_mesh(void **state) {
    (void)state;
    const SearchRequest request = {.constraints.memory_fraction = 0.9, .space.mesh = "data=4"};
    const SearchScope scope = {.request = &request,
                               .searcher = SEARCHER_ANNEAL,
                               .micro_batches = 1,
                               .limits.evaluations = 60,
                               .kind = SPACE_OPERATOR};
    InfeasibleCase self;
    begin(&self, 60000000, &scope);
    assert_null(relaxation(&self, "devices"));
    end(&self);
}

/* A hybrid search names the fullest device of what came nearest, and fractions with which it finds a plan. */
static void test_hybrid(void **state) {
    (void)state;
    const SearchRequest request = {.constraints.memory_fraction = 0.3};
    const SearchScope scope = {.request = &request,
                               .searcher = SEARCHER_ANNEAL,
                               .micro_batches = 1,
                               .kind = SPACE_HYBRID,
                               .limits.evaluations = 60};
    InfeasibleCase self;
    begin(&self, 350000000, &scope);
    assert_non_null(strstr(self.report.line.data, " needs "));
    assert_true(json_is_object(json_object_get(self.report.details, "binding")));
    const json_t *row = relaxation(&self, "memory");
    assert_non_null(row);
    SearchRequest relaxed_request = request;
    SearchScope relaxed = scope;
    relaxed.request = &relaxed_request;
    assert_int_equal(sscanf(json_string_value(json_object_get(row, "change")), "--memory-fraction %lf",
                            &relaxed_request.constraints.memory_fraction),
                     1);
    AmError error = {0};
    SearchResult result;
    assert_int_equal(plan_search(&result, &self.arena, self.context, self.cluster, &relaxed, &error), AM_OK);
    end(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_more_memory_or_devices),
                                       cmocka_unit_test(test_memory_fraction),
                                       cmocka_unit_test(test_given_mesh), cmocka_unit_test(test_hybrid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
