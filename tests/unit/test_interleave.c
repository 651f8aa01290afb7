/* 1F1B: the loops of the two passes stand together, what passes between them has as many
 * places as the stage may be turns ahead, and the plan is faster and smaller than GPipe's. */
#include "model_case.h"

#include <string.h>

#include "cost/cluster.h"
#include "cost/simulate.h"
#include "planners/even_pipeline.h"
#include "propagation/interleave.h"
#include "propagation/micro_batches.h"
#include "propagation/ranks.h"

enum { STAGES = 4, TURNS = 8 };

typedef struct Fixture {
    Arena arena;
    PlanContext *whole;
    const PlanContext *split;
    Cluster *cluster;
} Fixture;

static void open_case(Fixture *self, const char *model) {
    MicroBatching settings = {.micro_batches = TURNS, .separate_backward = true};
    AmError error = {0};
    *self = (Fixture){.whole = read_model(model)};
    assert_int_equal(plan_context_for(&self->split, self->whole, &settings, &error), AM_OK);
    assert_int_equal(cluster_read(&self->cluster, &self->arena, "host:4", &error), AM_OK);
}

static void close_case(Fixture *self) {
    cluster_free(self->cluster);
    plan_context_free(self->whole);
    arena_free(&self->arena);
}

static Plan *find_plan(Fixture *self, const char *schedule) {
    SearchOptions options = {.mesh = "data=1", .memory_fraction = 1, .schedule = schedule};
    Plan *plan;
    const char *reason = NULL;
    int64_t evaluations = 0;
    AmError error = {0};
    if (even_pipeline_plan(&plan, &reason, &evaluations, &self->arena, self->split, self->cluster, &options,
                           &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_non_null(plan);
    assert_string_equal(plan->schedule, schedule);
    assert_int_equal(plan->stage_count, STAGES);
    return plan;
}

/* Step of the first of two joined loops. */
static int32_t find_joined(const Program *program) {
    int32_t s = 0;
    while (s < program->step_count && program_steps_together(program, s) == 1) s++;
    assert_true(s + 1 < program->step_count);
    return s;
}

static int32_t count_of(const IrShape *shape, int64_t size) {
    int32_t count = 0;
    for (int32_t d = 0; d < shape->rank; d++) count += shape->dimensions[d] == size;
    return count;
}

/* Every array that the second loop takes from the first has `kept` places. */
static void check_stage(Fixture *self, const PlanRanks *ranks, int32_t stage) {
    Program *program;
    AmError error = {0};
    int32_t kept = interleave_kept(stage, STAGES, TURNS), stacks = 0;
    if (plan_ranks_lower(&program, &self->arena, ranks, stage, &error) != AM_OK) fail_msg("%s", error.text);
    int32_t s = find_joined(program);
    const ProgramInstruction *first = &program->instructions[program->steps[s].instruction];
    const ProgramInstruction *second = &program->instructions[program->steps[s + 1].instruction];
    assert_int_equal(program->steps[s + 1].instruction, first->turns->second);
    assert_int_equal(first->turns->count, TURNS);
    assert_int_equal(first->turns->kept, kept);
    for (int32_t k = 0; k < second->operand_count; k++) {
        int32_t result = second->operands[k] - first->first_result;
        if (result < 0 || result >= first->result_count) continue;
        assert_true(count_of(&program->values[second->operands[k]].shape, kept) > 0);
        assert_int_equal(program->values[second->operands[k]].state.axis[0], SBP_B);
        stacks++;
    }
    assert_true(stacks > 0);
    /* Both loops work at the same time: their memory is apart. */
    bool apart = first->workspace + first->workspace_bytes <= second->workspace ||
                 second->workspace + second->workspace_bytes <= first->workspace;
    assert_true(apart);
}

static void test_places(void **state) {
    (void)state;
    Fixture self;
    PlanRanks ranks;
    open_case(&self, "gpt2_tiny");
    assert_int_equal(plan_ranks(&ranks, &self.arena, self.split, find_plan(&self, "1f1b"), NULL), AM_OK);
    for (int32_t stage = 0; stage < STAGES; stage++) check_stage(&self, &ranks, stage);
    close_case(&self);
}

static void test_faster_and_smaller(void **state) {
    (void)state;
    Fixture self;
    open_case(&self, "gpt2_tiny");
    Plan *alternating = find_plan(&self, "1f1b"), *filling = find_plan(&self, "gpipe");
    assert_true(alternating->predicted_step_seconds < filling->predicted_step_seconds);
    for (int32_t d = 0; d < STAGES; d++)
        assert_true(alternating->predicted[d].peak_bytes < filling->predicted[d].peak_bytes);
    /* What is kept shrinks from stage to stage. */
    assert_true(alternating->predicted[STAGES - 1].peak_bytes < alternating->predicted[1].peak_bytes);
    close_case(&self);
}

/* Loops of one module pair up once; without turns of its own for the backward pass there is no pair. */
static void test_pairs(void **state) {
    (void)state;
    Fixture self;
    LoopPair *pairs;
    int32_t count;
    MicroBatching together = {.micro_batches = TURNS};
    open_case(&self, "gpt2_tiny");
    assert_int_equal(interleave_pairs(&pairs, &count, &self.arena, self.split->rules, NULL), AM_OK);
    assert_int_equal(count, 1);
    assert_int_equal(pairs[0].turns, TURNS);
    assert_true(pairs[0].first < pairs[0].second);
    assert_int_equal(plan_context_for(&self.split, self.whole, &together, NULL), AM_OK);
    assert_int_equal(interleave_pairs(&pairs, &count, &self.arena, self.split->rules, NULL), AM_OK);
    assert_int_equal(count, 0);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_faster_and_smaller),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
