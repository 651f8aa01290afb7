/* 1F1B and ZB-H1: the loops of the passes stand together, what passes between them has as many
 * places as the stage may be iterations ahead; 1F1B's plan is faster and smaller than GPipe's, and ZB-H1
 * computes the same in three loops, chunks of a stage in two
 * each. */
#include "tests/support/model_case.h"

#include <string.h>

#include "cost/cluster/cluster.h"
#include "cost/simulate/simulate.h"
#include "lowering/interleave/interleave.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/ranks.h"
#include "planners/baselines/even_pipeline.h"

enum { STAGES = 4, ITERATIONS = 8 };

typedef struct Fixture {
    Arena arena;
    PlanContext *primary;
    const PlanContext *split;
    Cluster *cluster;
} Fixture;

static void open_case(Fixture *self, const char *model) {
    MicroBatchSettings settings = {.micro_batches = ITERATIONS, .separate_backward = true};
    AmError error = {0};
    *self = (Fixture){.primary = read_model(model)};
    assert_int_equal(plan_context_for(&self->split, self->primary, &settings, &error), AM_OK);
    assert_int_equal(cluster_read(&self->cluster, &self->arena, "nominal:4", &error), AM_OK);
}

static void close_case(Fixture *self) {
    cluster_free(self->cluster);
    plan_context_free(self->primary);
    arena_free(&self->arena);
}

static Plan *find_plan(Fixture *self, const char *schedule) {
    const SearchRequest request = {
        .space.mesh = "data=1", .constraints.memory_fraction = 1, .space.schedule = schedule};
    SearchScope scope = {.request = &request};
    Plan *plan;
    const char *reason = NULL;
    int64_t evaluations = 0;
    AmError error = {0};
    if (even_pipeline_plan(&plan, &reason, &evaluations, &self->arena, self->split, self->cluster, &scope,
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
    while (s < program->execution.step_count && program_steps_together(program, s) == 1) s++;
    assert_true(s + 1 < program->execution.step_count);
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
    int32_t kept = schedule_kept_for_backward(STAGES, stage, ITERATIONS), stacks = 0;
    if (plan_ranks_lower(&program, &self->arena, ranks, stage, &error) != AM_OK) fail_msg("%s", error.text);
    int32_t s = find_joined(program);
    const ProgramInstruction *first = &program->instructions[program->execution.steps[s].instruction];
    const ProgramInstruction *second = &program->instructions[program->execution.steps[s + 1].instruction];
    assert_int_equal(program->execution.steps[s + 1].instruction, first->loop.iterations->second);
    assert_int_equal(first->loop.iterations->count, ITERATIONS);
    assert_int_equal(first->loop.iterations->kept, kept);
    for (int32_t k = 0; k < second->operand_count; k++) {
        int32_t result = second->operands[k] - first->first_result;
        if (result < 0 || result >= first->result_count) continue;
        assert_true(count_of(&program->values[second->operands[k]].shape, kept) > 0);
        assert_int_equal(program->values[second->operands[k]].state.axis[0], SBP_B);
        stacks++;
    }
    assert_true(stacks > 0);
    /* Both loops work at the same time: their memory is apart. */
    bool apart = first->regions.workspace + first->regions.workspace_bytes <= second->regions.workspace ||
                 second->regions.workspace + second->regions.workspace_bytes <= first->regions.workspace;
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

static const ProgramInstruction *joined_loop(const Program *program, int32_t s, int32_t k) {
    return &program->instructions[program->execution.steps[s + k].instruction];
}

/* Returns the arrays of `first` that `second` reads; all have a dimension of `places` and are replicated. */
static int32_t count_taken(const Program *program, const ProgramInstruction *first,
                           const ProgramInstruction *second, int32_t places) {
    int32_t taken = 0;
    for (int32_t k = 0; k < second->operand_count; k++) {
        int32_t result = second->operands[k] - first->first_result;
        if (result < 0 || result >= first->result_count) continue;
        assert_true(count_of(&program->values[second->operands[k]].shape, places) > 0);
        taken++;
    }
    return taken;
}

static int32_t count_steps(const ProgramInstruction *loop, ProgramKind kind, IrOpcode opcode) {
    const Program *body = loop->regions.programs[0];
    int32_t count = 0;
    for (int32_t s = 0; s < body->execution.step_count; s++) {
        if (body->execution.steps[s].fusion >= 0) continue;
        const ProgramInstruction *step = &body->instructions[body->execution.steps[s].instruction];
        count += step->kind == kind && (kind == PROGRAM_TRANSFER || step->opcode == opcode);
    }
    return count;
}

/* One backward loop, and its two parts: the same work, once, and transfers in the second alone. */
static void check_three(const Program *two, const Program *three, ScheduleKind kind, int32_t stage) {
    int32_t s = find_joined(two), z = find_joined(three);
    const ProgramInstruction *whole = joined_loop(two, s, 1), *first = joined_loop(three, z, 0);
    const ProgramInstruction *second = joined_loop(three, z, 1), *third = joined_loop(three, z, 2);
    int32_t kept_from_second = schedule_kept_from_backward(kind, stage, ITERATIONS);
    assert_int_equal(program_steps_together(three, z), 3);
    for (int32_t k = 0; k < 3; k++) assert_int_equal(program_first_together(three, z + k), z);
    assert_int_equal(three->execution.steps[z + 1].instruction, first->loop.iterations->second);
    assert_int_equal(three->execution.steps[z + 2].instruction, first->loop.iterations->third);
    int32_t ahead = kind == SCHEDULE_ZB_2P ? schedule_kept(ITERATIONS, 2 * (STAGES - stage) - 1)
                                           : schedule_kept_for_backward(STAGES, stage, ITERATIONS);
    assert_int_equal(first->loop.iterations->kept, ahead);
    assert_int_equal(first->loop.iterations->kept_until_third,
                     schedule_kept_for_weights(kind, STAGES, ITERATIONS));
    assert_int_equal(first->loop.iterations->kept_from_second, kept_from_second);
    assert_true(count_taken(three, first, third, first->loop.iterations->kept_until_third) > 0);
    assert_true(count_taken(three, second, third, kept_from_second) > 0);
    int32_t products = count_steps(third, PROGRAM_COMPUTE, IR_DOT);
    assert_true(products > 0);
    assert_int_equal(count_steps(second, PROGRAM_COMPUTE, IR_DOT) + products,
                     count_steps(whole, PROGRAM_COMPUTE, IR_DOT));
    assert_int_equal(count_steps(third, PROGRAM_TRANSFER, IR_DOT), 0);
    assert_int_equal(count_steps(second, PROGRAM_TRANSFER, IR_DOT),
                     count_steps(whole, PROGRAM_TRANSFER, IR_DOT));
    const ProgramInstruction *loops[] = {first, second, third};
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < a; b++)
            assert_true(loops[a]->regions.workspace + loops[a]->regions.workspace_bytes <=
                            loops[b]->regions.workspace ||
                        loops[b]->regions.workspace + loops[b]->regions.workspace_bytes <=
                            loops[a]->regions.workspace);
}

static void test_three(void **state) {
    (void)state;
    Fixture self;
    PlanRanks ranks[3];
    open_case(&self, "gpt2_tiny");
    Plan *plans[] = {find_plan(&self, "1f1b"), find_plan(&self, "zb_h1"), find_plan(&self, "zb_2p")};
    for (int k = 0; k < 3; k++)
        assert_int_equal(plan_ranks(&ranks[k], &self.arena, self.split, plans[k], NULL), AM_OK);
    for (int32_t stage = 0; stage < STAGES; stage++) {
        Program *programs[3];
        for (int k = 0; k < 3; k++)
            assert_int_equal(plan_ranks_lower(&programs[k], &self.arena, &ranks[k], stage, NULL), AM_OK);
        check_three(programs[0], programs[1], SCHEDULE_ZB_H1, stage);
        check_three(programs[0], programs[2], SCHEDULE_ZB_2P, stage);
    }
    /* No stage needs much more than the fullest one under 1F1B. */
    for (int32_t d = 0; d < STAGES; d++)
        assert_true((double)plans[1]->predicted[d].peak_bytes <
                    1.05 * (double)plans[0]->predicted[0].peak_bytes);
    close_case(&self);
}

static int32_t count_products(const Program *program) {
    int32_t s = find_joined(program), count = 0;
    for (int32_t k = 0; k < program_steps_together(program, s); k++)
        count += count_steps(joined_loop(program, s, k), PROGRAM_COMPUTE, IR_DOT);
    return count;
}

enum { CHUNKS = 2, HALF = STAGES / 2 };

/* Four loops, each kind's side by side; each chunk's second one takes of its first one alone. */
static void check_chunks(Fixture *self, const Program *program, int32_t stage) {
    AmError error = {0};
    int32_t s = find_joined(program);
    const InterleavedLoops *iterations = joined_loop(program, s, 0)->loop.iterations;
    assert_int_equal(program_steps_together(program, s), 2 * CHUNKS);
    assert_int_equal(program_first_together(program, s + 2 * CHUNKS - 1), s);
    assert_int_equal(iterations->chunks, CHUNKS);
    assert_int_equal(iterations->stage, stage);
    assert_int_equal(iterations->stage_count, HALF);
    for (int32_t c = 0; c < CHUNKS; c++) {
        const ProgramInstruction *first = joined_loop(program, s, c);
        int32_t kept;
        const ScheduledStage scheduled = {.kind = SCHEDULE_INTERLEAVED,
                                          .stages = HALF,
                                          .stage = stage,
                                          .micro_batches = ITERATIONS,
                                          .chunks = CHUNKS};
        assert_int_equal(schedule_kept_of_chunk(&kept, &self->arena, &scheduled, c, &error), AM_OK);
        assert_int_equal(iterations->kept_of_chunk[c], kept);
        assert_true(count_taken(program, first, joined_loop(program, s, CHUNKS + c), kept) > 0);
        assert_int_equal(count_taken(program, first, joined_loop(program, s, CHUNKS + 1 - c), kept), 0);
    }
}

/* Two stages of two chunks compute what two stages of one do. */
static void test_chunks(void **state) {
    (void)state;
    static const char *const schedules[] = {"1f1b", "interleaved_1f1b"};
    Fixture self;
    int32_t products[2] = {0, 0};
    open_case(&self, "gpt2_tiny");
    for (int k = 0; k < 2; k++) {
        const SearchRequest request = {
            .space.mesh = "data=2", .constraints.memory_fraction = 1, .space.schedule = schedules[k]};
        SearchScope scope = {.request = &request};
        const char *reason = NULL;
        int64_t evaluations = 0;
        AmError error = {0};
        PlanRanks ranks;
        Plan *plan;
        if (even_pipeline_plan(&plan, &reason, &evaluations, &self.arena, self.split, self.cluster, &scope,
                               &error) != AM_OK)
            fail_msg("%s", error.text);
        assert_int_equal(plan_ranks(&ranks, &self.arena, self.split, plan, &error), AM_OK);
        assert_int_equal(ranks.stage_count, HALF);
        assert_int_equal(ranks.rank_count, STAGES);
        for (int32_t stage = 0; stage < HALF; stage++) {
            Program *program;
            assert_int_equal(plan_ranks_lower(&program, &self.arena, &ranks, 2 * stage, &error), AM_OK);
            assert_int_equal(program->first_rank, 2 * stage);
            products[k] += count_products(program);
            if (k == 1) check_chunks(&self, program, stage);
        }
    }
    assert_true(products[0] > 0);
    assert_int_equal(products[0], products[1]);
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
    /* Kept values shrink from stage to stage. */
    assert_true(alternating->predicted[STAGES - 1].peak_bytes < alternating->predicted[1].peak_bytes);
    close_case(&self);
}

/* Loops of one module form one pair; without separate iterations of the backward pass there is no
 * pair. */
static void test_pairs(void **state) {
    (void)state;
    Fixture self;
    LoopPair *pairs;
    int32_t count;
    MicroBatchSettings together = {.micro_batches = ITERATIONS};
    open_case(&self, "gpt2_tiny");
    assert_int_equal(interleave_pairs(&pairs, &count, &self.arena, self.split->rules, NULL), AM_OK);
    assert_int_equal(count, 1);
    assert_int_equal(pairs[0].iterations, ITERATIONS);
    assert_true(pairs[0].first < pairs[0].second);
    assert_int_equal(plan_context_for(&self.split, self.primary, &together, NULL), AM_OK);
    assert_int_equal(interleave_pairs(&pairs, &count, &self.arena, self.split->rules, NULL), AM_OK);
    assert_int_equal(count, 0);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places), cmocka_unit_test(test_three),
        cmocka_unit_test(test_chunks), cmocka_unit_test(test_faster_and_smaller),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
