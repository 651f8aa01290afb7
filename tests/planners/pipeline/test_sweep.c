/* Sweeps: all degrees are there, best first, and each figure is that of the plan simulated by itself. */
/* labels: threads */
#include "tests/support/cluster_case.h"

#include "cost/simulate/simulate.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/degree_sweep.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/single_stage/single_stage_search.h"
#include "tests/support/sample.h"

#define FRACTION 0.9

static Sweep sweep_with(ClusterCase *self, const SweepOptions *options) {
    Sweep found;
    AmError error = {0};
    if (sweep(&found, &self->arena, self->context, self->cluster, options, &error) != AM_OK)
        fail_msg("%s", error.text);
    return found;
}

static const SweepRow *find_row(const Sweep *sweep, int32_t data, int32_t tensor, int32_t stages,
                                int32_t micro_batches) {
    for (int32_t k = 0; k < sweep->row_count; k++) {
        const SweepRow *row = &sweep->rows[k];
        if (row->data == data && row->tensor == tensor && row->stages == stages &&
            row->micro_batches == micro_batches)
            return row;
    }
    return NULL;
}

/* 8 devices: 10 ways to deal them; a batch of 16: 5 numbers of micro-batches. */
static void test_all_degrees(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* test_threads() starts the same threads */
    ClusterCase self;
    open_case(&self, "bert_tiny", "nominal:8");
    Sweep found = sweep_with(&self, &(SweepOptions){.memory_fraction = FRACTION});
    assert_int_equal(found.batch, 16);
    assert_int_equal(found.row_count, 50);
    for (int32_t k = 0; k < found.row_count; k++) {
        const SweepRow *row = &found.rows[k];
        assert_int_equal(row->data * row->tensor * row->stages, 8);
        assert_true(find_row(&found, row->data, row->tensor, row->stages, row->micro_batches) == row);
        /* The rest of a batch cannot be divided among more devices than it has examples. */
        assert_int_equal(row->reason != NULL, row->data * row->micro_batches > 16);
        if (k == 0 || row->reason) continue;
        assert_true(row->step_seconds >= found.rows[k - 1].step_seconds);
    }
    close_case(&self);
}

static double baseline_seconds(ClusterCase *self, Baseline baseline, const char *mesh) {
    const SearchRequest request = {.space.mesh = mesh, .constraints.memory_fraction = FRACTION};
    SearchScope scope = {.request = &request, .searcher = SEARCHER_BASELINE, .baseline = baseline};
    SearchResult result;
    AmError error = {0};
    if (single_stage_search(&result, &self->arena, self->context, self->cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    return result.plan->predicted_step_seconds;
}

static void test_rows_are_the_baseline_plans(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* test_threads() starts the same threads */
    ClusterCase self;
    open_case(&self, "bert_tiny", "nominal:8");
    Sweep found = sweep_with(&self, &(SweepOptions){.micro_batches = 1, .memory_fraction = FRACTION});
    assert_int_equal(found.row_count, 10);
    double data = baseline_seconds(&self, BASELINE_DATA_PARALLEL, "data=8,model=1");
    double both = baseline_seconds(&self, BASELINE_MEGATRON, "data=2,model=4");
    assert_true(find_row(&found, 8, 1, 1, 1)->step_seconds == data);
    assert_true(find_row(&found, 2, 4, 1, 1)->step_seconds == both);
    close_case(&self);
}

static Plan *even_plan(ClusterCase *self, const PlanContext *split, const char *schedule) {
    const SearchRequest request = {
        .space.mesh = "data=2", .constraints.memory_fraction = FRACTION, .space.schedule = schedule};
    const SearchScope scope = {.request = &request};
    Plan *plan;
    const char *reason;
    int64_t evaluations;
    AmError error = {0};
    if (even_pipeline_plan(&plan, &reason, &evaluations, &self->arena, split, self->cluster, &scope,
                           &error) != AM_OK)
        fail_msg("%s", error.text);
    return plan;
}

static const SweepRow *find_scheduled(const Sweep *sweep, int32_t data, int32_t stages,
                                      const char *schedule) {
    for (int32_t k = 0; k < sweep->row_count; k++) {
        const SweepRow *row = &sweep->rows[k];
        if (row->data == data && row->stages == stages && strcmp(row->schedule, schedule) == 0) return row;
    }
    fail_msg("no row of %s", schedule);
    return NULL;
}

/* By default under 1f1b; else a row for each requested schedule. */
static void test_rows_are_the_even_pipelines(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* test_threads() starts the same threads */
    static const ScheduleKind kinds[] = {SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_INTERLEAVED};
    ClusterCase self;
    SweepOptions options = {.micro_batches = 4, .memory_fraction = FRACTION};
    MicroBatchSettings settings = {.micro_batches = 4, .separate_backward = true};
    const PlanContext *split;
    AmError error = {0};
    open_case(&self, "bert_tiny", "nominal:4");
    assert_int_equal(plan_context_for(&split, self.context, &settings, &error), AM_OK);
    Sweep found = sweep_with(&self, &options);
    const SweepRow *row = find_row(&found, 2, 1, 2, 4);
    assert_string_equal(row->schedule, "1f1b");
    assert_true(row->step_seconds == even_plan(&self, split, NULL)->predicted_step_seconds);
    int32_t by_default = found.row_count, of_one_stage = 0;
    for (int32_t k = 0; k < by_default; k++) of_one_stage += found.rows[k].stages == 1;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) options.schedules |= 1u << kinds[k];
    found = sweep_with(&self, &options);
    assert_int_equal(found.row_count, of_one_stage + 3 * (by_default - of_one_stage));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const char *schedule = schedule_kind_name(kinds[k]);
        row = find_scheduled(&found, 2, 2, schedule);
        assert_true(row->step_seconds == even_plan(&self, split, schedule)->predicted_step_seconds);
    }
    close_case(&self);
}

/* A row's plan, made again, has the figures of the row. */
static void test_plans_of_rows(void **state) {
    (void)state;
    ClusterCase self;
    const SweepOptions options = {.memory_fraction = FRACTION,
                                  .schedules = 1u << SCHEDULE_1F1B | 1u << SCHEDULE_INTERLEAVED};
    open_case(&self, "gpt2_tiny", "nominal:4");
    Sweep found = sweep_with(&self, &options);
    int32_t several = 0;
    for (int32_t k = 0; k < found.row_count && !found.rows[k].reason; k += 3) {
        const SweepRow *row = &found.rows[k];
        Simulation *simulation;
        Plan *plan;
        AmError error = {0};
        if (sweep_plan(&plan, &self.arena, self.context, self.cluster, &options, row, &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_string_equal(plan->schedule, row->schedule);
        assert_int_equal(plan->micro_batches, row->micro_batches);
        assert_int_equal(simulate_plan(&simulation, &self.arena, self.context, plan, self.cluster,
                                       &(SimulationOptions){.memory_fraction = FRACTION}, &error),
                         AM_OK);
        assert_true(simulation->step_seconds == row->step_seconds);
        assert_true(plan->predicted_step_seconds == row->step_seconds);
        several += plan->stage_count > 1;
    }
    assert_true(several > 0);
    close_case(&self);
}

/* The same rows whatever the number of threads. */
static void test_threads(void **state) {
    (void)state;
    ClusterCase self;
    open_case(&self, "mlp_tiny", "nominal:4");
    Sweep one = sweep_with(&self, &(SweepOptions){.memory_fraction = FRACTION, .threads = 1});
    Sweep two = sweep_with(&self, &(SweepOptions){.memory_fraction = FRACTION, .threads = 2});
    assert_int_equal(one.row_count, two.row_count);
    for (int32_t k = 0; k < one.row_count; k++) {
        assert_int_equal(one.rows[k].stages, two.rows[k].stages);
        assert_int_equal(one.rows[k].peak_bytes, two.rows[k].peak_bytes);
        assert_true(one.rows[k].step_seconds == two.rows[k].step_seconds);
    }
    close_case(&self);
}

/* Statistics over the batch: one micro-batch alone, and the operator is named. */
static void test_refused_micro_batches(void **state) {
    (void)state;
    if (is_searched_for_races()) skip(); /* test_threads() starts the same threads */
    ClusterCase self;
    AmError error = {0};
    Sweep found;
    SweepOptions two = {.micro_batches = 2, .memory_fraction = FRACTION};
    open_case(&self, "resnet_tiny", "nominal:2");
    found = sweep_with(&self, &(SweepOptions){.memory_fraction = FRACTION});
    assert_int_equal(found.refused, 2);
    assert_non_null(strstr(found.refusal, "reduce_sum"));
    for (int32_t k = 0; k < found.row_count; k++) assert_int_equal(found.rows[k].micro_batches, 1);
    assert_int_equal(sweep(&found, &self.arena, self.context, self.cluster, &two, &error),
                     AM_ERROR_INFEASIBLE);
    two.relaxations = 1u << RELAXATION_BATCH_STATISTICS_PER_MICRO_BATCH;
    assert_int_equal(sweep_with(&self, &two).row_count, 3);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_degrees),
        cmocka_unit_test(test_rows_are_the_baseline_plans),
        cmocka_unit_test(test_rows_are_the_even_pipelines),
        cmocka_unit_test(test_plans_of_rows),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_refused_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
