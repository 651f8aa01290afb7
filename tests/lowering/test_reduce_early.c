/* Sums over devices: gradients begin during the backward pass, updates wait for later sums, and the
 * operands of a sum are not overwritten meanwhile; so that most of the communication is hidden. */
#include "tests/support/model_case.h"

#include <math.h>

#include "cost/simulate/simulate.h"
#include "lowering/passes/reduce_early.h"
#include "lowering/spmd/ranks.h"
#include "planners/single_stage/single_stage_search.h"

typedef struct Fixture {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    Plan *plan;
} Fixture;

static void open_case(Fixture *self, const char *model) {
    const SearchRequest request = {.space.mesh = "data=32", .constraints.memory_fraction = 1};
    SearchScope scope = {
        .request = &request, .searcher = SEARCHER_BASELINE, .baseline = BASELINE_DATA_PARALLEL};
    SearchResult result;
    AmError error = {0};
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb.zst", model);
    *self = (Fixture){0};
    assert_int_equal(plan_context_read(&self->context, path, NULL, &error), AM_OK);
    assert_int_equal(cluster_read(&self->cluster, &self->arena, "C", &error), AM_OK);
    if (single_stage_search(&result, &self->arena, self->context, self->cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    self->plan = result.plan;
}

static void close_case(Fixture *self) {
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

static Program *lower(Fixture *self) {
    PlanRanks ranks;
    Program *program;
    AmError error = {0};
    assert_int_equal(plan_ranks(&ranks, &self->arena, self->context, self->plan, &error), AM_OK);
    assert_int_equal(plan_ranks_lower(&program, &self->arena, &ranks, 0, &error), AM_OK);
    return program;
}

static bool is_beside(const Program *program, int32_t s) {
    const ProgramStep *step = &program->execution.steps[s];
    return step->fusion < 0 && program_reduces_beside(program, &program->instructions[step->instruction]);
}

static int32_t operand_count(const Program *program, const ProgramStep *step) {
    return step->fusion >= 0 ? program->execution.fusions[step->fusion].input_count
                             : program->instructions[step->instruction].operand_count;
}

static int32_t operand(const Program *program, const ProgramStep *step, int32_t k) {
    return step->fusion >= 0 ? program->execution.fusions[step->fusion].inputs[k].value
                             : program->instructions[step->instruction].operands[k];
}

/* The first step that uses a result of step s. */
static int32_t first_user(const Program *program, int32_t s) {
    const ProgramInstruction *sum = &program->instructions[program->execution.steps[s].instruction];
    for (int32_t u = s + 1; u < program->execution.step_count; u++)
        for (int32_t k = 0; k < operand_count(program, &program->execution.steps[u]); k++) {
            int32_t root = program->values[operand(program, &program->execution.steps[u], k)].storage;
            if (root >= sum->first_result && root < sum->first_result + sum->result_count) return u;
        }
    return program->execution.step_count;
}

static void test_order(void **state) {
    (void)state;
    Fixture self;
    open_case(&self, "gpt2");
    const Program *program = lower(&self);
    int32_t *sums = ARENA_ARRAY(&self.arena, int32_t, program->execution.step_count), count = 0, dots = 0,
            before = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        if (is_beside(program, s)) sums[count++] = s;
        const ProgramStep *step = &program->execution.steps[s];
        if (step->fusion < 0 && program->instructions[step->instruction].opcode == IR_DOT) dots++;
        if (count <= 1) before = dots;
    }
    assert_true(count >= 6);
    /* A third of the dots is the forward pass; the second sum begins well before the backward pass ends. */
    assert_true(before < dots * 2 / 3);
    for (int32_t k = 0; k + REDUCE_EARLY_UNDER_WAY < count; k++)
        assert_true(first_user(program, sums[k]) > sums[k + REDUCE_EARLY_UNDER_WAY]);
    close_case(&self);
}

/* Gradients of 16 bits are rounded in shards: these are gathered in buckets as their sums are, while the
 * backward pass goes on. */
static void test_rounded_sums_are_gathered_early(void **state) {
    (void)state;
    Fixture self;
    open_case(&self, "gpt2_bf16");
    const Program *program = lower(&self);
    int32_t dots = 0, dots_before = -1, gathers = 0, sums = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        const ProgramInstruction *instruction =
            step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        if (!instruction) continue;
        dots += instruction->kind == PROGRAM_COMPUTE && instruction->opcode == IR_DOT;
        sums += program_reduces(instruction);
        if (!instruction->gathers_late) continue;
        if (gathers++ == 0) dots_before = dots;
    }
    assert_true(gathers >= 3 && gathers <= sums);
    assert_true(dots_before < dots * 3 / 4);
    close_case(&self);
}

static void test_communication_is_hidden(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2", "gpt2_bf16"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        Fixture self;
        Simulation *simulation;
        AmError error = {0};
        open_case(&self, models[m]);
        assert_int_equal(simulate_plan(&simulation, &self.arena, self.context, self.plan, self.cluster,
                                       &(SimulationOptions){.memory_fraction = 1}, &error),
                         AM_OK);
        const SimulatedDevice *device = &simulation->devices[0];
        double least = fmin(device->communication_seconds, device->compute_seconds);
        if (device->hidden_seconds <= 0.4 * least)
            fail_msg("%s: %.3g of %.3g s is hidden", models[m], device->hidden_seconds, least);
        close_case(&self);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_rounded_sums_are_gathered_early),
        cmocka_unit_test(test_communication_is_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
