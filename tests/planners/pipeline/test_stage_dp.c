/* The dynamic program over stages: compared with all pipelines of up to three stages one by one,
 * and 1F1B's recursion compared with known results of equal stages. */
#include "tests/support/stages_case.h"

#include <math.h>

#include "planners/pipeline/pipeline_changes.h"

typedef struct Enumeration {
    const StagesCase *fixture;
    int32_t micro_batches, stages;
    double best;
} Enumeration;

/* Visits all pipelines of the remaining units and devices in `left` stages. */
static void enumerate(Enumeration *self, int32_t unit, int32_t device, int32_t left, double sum,
                      double most) {
    const StageModel *model = self->fixture->model;
    int32_t units = model->costs->units.count, devices = model->costs->cluster->device_count;
    if (left == 0) {
        if (unit == units && device == devices)
            self->best = fmin(self->best, sum + (self->micro_batches - 1) * most);
        return;
    }
    for (int32_t p = 0; p < model->place_count; p++) {
        const DeviceRange *place = &model->places[p];
        if (place->first != device || device + place->width > devices) continue;
        if ((left == 1) != (device + place->width == devices)) continue;
        for (int32_t end = left == 1 ? units : unit + 1; end <= units; end++) {
            StageLayout stage = {.first_unit = unit, .end_unit = end, .place = *place};
            StageCost cost;
            if (!best_stage(self->fixture, self->micro_batches, &stage, left, &cost)) continue;
            int32_t behind = device + place->width;
            double transfer = stage_model_transfer(model, self->micro_batches, end, behind, false) +
                              stage_model_transfer(model, self->micro_batches, end, behind, true);
            if (end == units) transfer = 0;
            double iteration = cost.forward + cost.backward;
            enumerate(self, end, behind, left - 1, sum + iteration + transfer,
                      fmax(most, fmax(iteration + cost.rest / self->micro_batches, transfer)));
        }
    }
}

/* The objective of the program for one pipeline. */
static double value_of(const StagesCase *self, const PipelineLayout *pipeline) {
    double sum = 0, most = 0;
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        const StageLayout *stage = &pipeline->stages[s];
        StageCost cost;
        int32_t behind = stage->place.first + stage->place.width;
        assert_true(stage_model_cost(self->model, pipeline->micro_batches, stage, &cost));
        double transfer =
            stage_model_transfer(self->model, pipeline->micro_batches, stage->end_unit, behind, false) +
            stage_model_transfer(self->model, pipeline->micro_batches, stage->end_unit, behind, true);
        sum += cost.forward + cost.backward + transfer;
        most = fmax(most, fmax(cost.forward + cost.backward + cost.rest / pipeline->micro_batches, transfer));
    }
    return sum + (pipeline->micro_batches - 1) * most;
}

static void check_against_all(const char *name, const char *cluster, int32_t micro_batches) {
    StagesCase self;
    PipelineLayout found[16];
    AmError error = {0};
    int32_t count;
    double best, all = INFINITY;
    open_stages(&self, name, cluster, micro_batches);
    if (stage_dp_find(self.model, found, 16, &count, &best, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(count > 0);
    for (int32_t k = 1; k < count; k++) assert_true(found[k].seconds >= found[k - 1].seconds);
    for (int32_t stages = 1; stages <= 3 && stages <= micro_batches; stages++) {
        Enumeration each = {&self, micro_batches, stages, INFINITY};
        enumerate(&each, 0, 0, stages, 0, 0);
        all = fmin(all, each.best);
    }
    assert_true(isfinite(all));
    if (!(best <= 1.051 * all))
        fail_msg("%s on %s: %g found, %g is the least of all", name, cluster, best, all);
    for (int32_t k = 0; k < count; k++)
        if (found[k].stage_count <= 3) assert_true(value_of(&self, &found[k]) >= all * (1 - 1e-5));
    close_stages(&self);
}

static void test_against_all(void **state) {
    (void)state;
    check_against_all("mlp_tiny", "nominal:4", 4);
    check_against_all("mlp_tiny", "whale-pp", 2);
    check_against_all("lstm_tiny", "nominal:2", 8);
}

static void test_equal_stages(void **state) {
    (void)state;
    const double none[PIPELINE_MOST_STAGES] = {0};
    StageCost costs[PIPELINE_MOST_STAGES];
    for (int32_t s = 0; s < PIPELINE_MOST_STAGES; s++) costs[s] = (StageCost){.forward = 1, .backward = 2};
    for (int32_t stages = 1; stages <= PIPELINE_MOST_STAGES; stages++)
        for (int32_t iterations = 1; iterations <= 40; iterations += 3)
            assert_true(fabs(stage_model_clock(costs, none, none, stages, iterations) -
                             3.0 * (iterations + stages - 1)) < 1e-9);
    costs[0].rest = 5; /* after the first stage's last iteration, which ends last */
    assert_true(fabs(stage_model_clock(costs, none, none, 4, 8) - (3.0 * 11 + 5)) < 1e-9);
}

/* Tables contain the module's needs: a stage of all units has all weights. */
static void test_tables(void **state) {
    (void)state;
    StagesCase self;
    StageLayout stage = {.strategy = {.tensor = 1}};
    StageCost one, two;
    open_stages(&self, "gpt2_tiny", "nominal:2", 1);
    stage.end_unit = self.costs->units.count;
    assert_true(stage_model_range(self.model, 0, 2, &stage.place));
    assert_true(stage_model_cost(self.model, 1, &stage, &one));
    assert_true(one.forward > 0 && one.backward > one.forward && one.fixed_bytes > 0 &&
                one.iteration_bytes > 0);
    stage.strategy.storage = 1;
    assert_true(stage_model_cost(self.model, 1, &stage, &two));
    assert_true(two.fixed_bytes < one.fixed_bytes);
    stage.strategy.recompute =
        RECOMPUTE_FULL; /* values at checkpoint boundaries are kept, the forward pass is recomputed */
    assert_true(stage_model_cost(self.model, 1, &stage, &one));
    assert_true(fabs(one.backward - two.backward - two.forward) < 1e-9);
    assert_true(one.iteration_bytes < 0.5 * two.iteration_bytes);
    assert_true(self.costs->recompute.levels.count > 0);
    for (int32_t k = self.costs->recompute.levels.count - 1; k >= 0;
         k--) { /* from full recomputation to none */
        StageCost level;
        stage.strategy.recompute = (uint8_t)(RECOMPUTE_LEVELS + k);
        assert_true(stage_model_cost(self.model, 1, &stage, &level));
        assert_true(level.backward < one.backward && level.backward > two.backward);
        assert_true(level.iteration_bytes > one.iteration_bytes &&
                    level.iteration_bytes < two.iteration_bytes);
        one = level;
    }
    close_stages(&self);
}

/* All places of each width exist, up to that of all devices; narrow ones of a large cluster do not. */
static void test_places(void **state) {
    (void)state;
    static const struct {
        const char *cluster;
        int32_t devices, least;
    } cases[] = {{"nominal:4", 4, 1}, {"h100:16", 128, 1}, {"h100:128", 1024, 8}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        StagesCase self;
        DeviceRange place;
        int32_t devices = cases[k].devices;
        open_stages(&self, "mlp_tiny", cases[k].cluster, 1);
        for (int32_t width = 1; width <= devices; width *= 2)
            for (int32_t first = 0; first < devices; first += width)
                assert_int_equal(stage_model_range(self.model, first, width, &place),
                                 width >= cases[k].least);
        close_stages(&self);
    }
}

/* Chunks are in order, contain the whole model, and begin where few bytes cross. */
static void test_chunks(void **state) {
    (void)state;
    StagesCase self;
    PipelineLayout pipeline = {.micro_batches = 4, .stage_count = 2};
    PipelineChunks chunks;
    open_stages(&self, "bert_tiny", "nominal:2", 4);
    int32_t units = self.costs->units.count;
    for (int32_t s = 0; s < 2; s++) {
        StageLayout *stage = &pipeline.stages[s];
        *stage = (StageLayout){.first_unit = s * units / 2, .end_unit = (s + 1) * units / 2};
        stage->strategy.tensor = 1;
        assert_true(stage_model_range(self.model, s, 1, &stage->place));
    }
    assert_true(pipeline_chunks_find(&chunks, self.model, &pipeline, 2));
    assert_int_equal(chunks.units[0], 0);
    assert_int_equal(chunks.units[4], units);
    for (int32_t p = 0; p < 4; p++) {
        assert_true(chunks.units[p] < chunks.units[p + 1]);
        assert_true(self.costs->checkpoints.is_at[chunks.units[p]]);
    }
    assert_false(pipeline_chunks_find(&chunks, self.model, &pipeline, units));
    close_stages(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_all),
                                       cmocka_unit_test(test_equal_stages), cmocka_unit_test(test_tables),
                                       cmocka_unit_test(test_chunks), cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
