/* Stages: plans that are cut anywhere among the forward operators give the losses of one device, and
 * operators, weights and updates are where the method says. */
/* labels: threads */
/* cost: 15 seconds */
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/ranks.h"
#include "tests/support/runner_case.h"
#include "tests/support/sample.h"

/* Forward operators of the entry, ascending. */
static int32_t list_forward(int32_t *list, const PlanContext *context) {
    int32_t count = 0;
    for (int32_t i = 0; i < context->rules->entry_count; i++)
        if (context->split_options->live[i] && context->roles->phases[i] == IR_PHASE_FORWARD)
            list[count++] = i;
    return count;
}

/* `stages` equal to one another but for their ranges: cut before instructions `cuts` [stages - 1]. */
static Plan *cut_plan(Arena *arena, const PlanContext *context, const Split *split, int32_t stages,
                      const int32_t *cuts) {
    Plan *plan = make_plan(arena, context, split->mesh, split->choose, split->seed);
    PlanStage *list = ARENA_ARRAY(arena, PlanStage, stages);
    for (int32_t s = 0; s < stages; s++) {
        list[s] = plan->stages[0];
        list[s].ranges = arena_alloc(arena, sizeof *list[s].ranges);
        list[s].ranges[0][0] = s == 0 ? 0 : cuts[s - 1];
        list[s].ranges[0][1] = s == stages - 1 ? context->rules->entry_count : cuts[s];
    }
    plan->stages = list;
    plan->stage_count = stages;
    plan->schedule = "gpipe";
    return plan;
}

/* Random cuts; 2 + seed % 3 stages. */
static Plan *random_stages(Arena *arena, const PlanContext *context, const Split *split) {
    int32_t *forward = ARENA_ARRAY(arena, int32_t, context->rules->entry_count);
    int32_t count = list_forward(forward, context), stages = 2 + (int32_t)(split->seed % 3), cuts[4];
    for (int32_t s = 0; s + 1 < stages; s++) {
        int32_t least = count * s / (stages - 1), room = count / (stages - 1);
        cuts[s] = forward[least + (int32_t)(random_at(split->seed, 7, (uint64_t)s) % (uint64_t)room)];
    }
    return cut_plan(arena, context, split, stages, cuts);
}

static void check_stages(const char *model, const char *mesh, Choose *choose, uint64_t seed,
                         double tolerance) {
    check_plan_by("cpu", NULL, model, (Split){mesh, choose, seed}, random_stages, tolerance,
                  tolerance == 0 ? 0 : 1e-4);
}

static void test_random_cuts(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < (uint64_t)sample_of(6, 1); seed++) {
        check_stages("mlp_tiny", "data=1", choose_batch, seed, 2e-6);
        check_stages("exact_linear", "data=2", choose_some, seed, 0);
        check_stages("exact_gather", "data=2", choose_some, seed, 0);
    }
    for (uint64_t seed = 0; seed < (uint64_t)sample_of(3, 1); seed++) {
        check_stages("gpt2_tiny", "data=2", choose_batch, seed, 5e-6);
        check_stages("t5_tiny", "data=1", choose_batch, seed, 5e-6);
        check_stages("adamw_tiny", "data=2", choose_some, seed, 5e-6);
    }
}

/* Directions: forward arrays go up the stages, backward ones down, optimizers keep theirs. */
static void check_directions(const PlanContext *context, const StageMap *map, int32_t cut) {
    for (int32_t i = 0; i < context->rules->entry_count; i++) {
        const IrInstruction *instruction = &context->canonical->instructions[i];
        if (!context->split_options->live[i] || stages_is_transparent(context, i)) continue;
        if (map->held[i] == 0) fail_msg("cut before %d: nobody computes %s", cut, instruction->name);
        StageSet sent = map->needed[i] & ~map->held[i];
        bool is_scalar =
            instruction->shape.type != DTYPE_TUPLE && ir_shape_elements(&instruction->shape) <= 1;
        if (sent == 0 || is_scalar || instruction->opcode == IR_PARAMETER) continue;
        IrPhase phase = context->roles->phases[i];
        bool goes_up = stage_first(sent) > stage_first(map->held[i]);
        bool is_right = phase == IR_PHASE_FORWARD ? goes_up : phase != IR_PHASE_OPTIMIZER && !goes_up;
        if (!is_right)
            fail_msg("cut before %d: %s of %s goes from stage %d to %d", cut, ir_phase_name(phase),
                     instruction->name, stage_first(map->held[i]), stage_first(sent));
    }
}

static void test_directions(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny", "gpt2_tiny", "t5_tiny", "adamw_tiny", "bert_tiny"};
    for (size_t m = 0; m < (size_t)sample_of(5, 3); m++) {
        char path[512];
        PlanContext *context;
        Arena arena = {0};
        join(path, sizeof path, models[m], "model.hlo.pb");
        assert_int_equal(plan_context_read(&context, path, NULL, NULL), AM_OK);
        int32_t *forward = ARENA_ARRAY(&arena, int32_t, context->rules->entry_count);
        int32_t count = list_forward(forward, context);
        for (int32_t k = 1; k < count; k++) {
            Split split = {"data=1", choose_batch, 0};
            StageMap *map;
            AmError error = {0};
            Plan *plan = cut_plan(&arena, context, &split, 2, &forward[k]);
            if (stages_assign(&map, &arena, context, plan, &error) != AM_OK) fail_msg("%s", error.text);
            check_directions(context, map, forward[k]);
        }
        arena_free(&arena);
        plan_context_free(context);
    }
}

static int32_t find(const PlanContext *context, const char *name) {
    for (int32_t i = 0; i < context->canonical->instruction_count; i++)
        if (strcmp(context->canonical->instructions[i].name, name) == 0) return i;
    fail_msg("no instruction %s", name);
    return -1;
}

#define RECOMPUTED "recomputed_layers.hlo.txt"

/* Two stages of a module, cut before the instruction of that name. */
typedef struct TwoStages {
    Arena arena;
    PlanContext *context;
    Plan *plan;
    StageMap *map;
    AmError error;
} TwoStages;

/* `file`: of tests/data/text. */
static AmStatus open_two(TwoStages *self, const char *file, const char *cut) {
    char path[512];
    *self = (TwoStages){0};
    snprintf(path, sizeof path, SOURCE_DIR "/tests/data/text/%s", file);
    if (plan_context_read(&self->context, path, NULL, &self->error) != AM_OK)
        fail_msg("%s", self->error.text);
    Split split = {"data=1", choose_batch, 0};
    int32_t at = find(self->context, cut);
    self->plan = cut_plan(&self->arena, self->context, &split, 2, &at);
    return stages_assign(&self->map, &self->arena, self->context, self->plan, &self->error);
}

static void close_two(TwoStages *self) {
    arena_free(&self->arena);
    plan_context_free(self->context);
}

static void assert_stage(const TwoStages *self, const char *name, int32_t stage) {
    StageSet held = self->map->held[find(self->context, name)];
    if (held != stage_bit(stage)) fail_msg("%s is on stages %llx", name, (unsigned long long)held);
}

/* Recomputed values are on the stage of the original, and the gradients too. */
static void test_recomputed(void **state) {
    (void)state;
    TwoStages self;
    static const char *const first[] = {"w1", "h1", "a1", "h1r", "a1r", "slope1", "dh1", "dw1", "new1"};
    static const char *const second[] = {"w2", "h2", "a2", "h2r", "a2r", "dh2", "dw2", "da1", "new2", "loss"};
    if (open_two(&self, RECOMPUTED, "h2") != AM_OK) fail_msg("%s", self.error.text);
    for (size_t k = 0; k < sizeof first / sizeof *first; k++) assert_stage(&self, first[k], 0);
    for (size_t k = 0; k < sizeof second / sizeof *second; k++) assert_stage(&self, second[k], 1);
    check_directions(self.context, self.map, 0);
    close_two(&self);
}

/* A table that both stages use has one owner, to which the other sends its part of the gradient; the norm of
 * all gradients is added up on one stage, and all scale by it. */
static void test_tied_and_clipped(void **state) {
    (void)state;
    TwoStages self;
    static const char *const first[] = {"table",      "e",    "dtable_in", "dtable",
                                        "table_norm", "norm", "root",      "new_table"};
    static const char *const second[] = {"width", "z",  "h",      "logits",     "loss",     "dtable_out",
                                         "dh",    "dz", "dwidth", "width_norm", "new_width"};
    if (open_two(&self, "tied_clipped.hlo.txt", "z") != AM_OK) fail_msg("%s", self.error.text);
    for (size_t k = 0; k < sizeof second / sizeof *second; k++) assert_stage(&self, second[k], 1);
    for (size_t k = 0; k < sizeof first / sizeof *first; k++) assert_stage(&self, first[k], 0);
    assert_stage(&self, "de", 1); /* where its weight is */
    assert_true(stage_in(self.map->needed[find(self.context, "table")], 1));
    assert_true(stage_in(self.map->needed[find(self.context, "dtable_out")], 0));
    close_two(&self);
}

/* Fill and drain, for every cut: with several micro-batches the backward pass has a loop of its own, no array
 * goes down the stages in the forward one and none up in the backward one. */
static void test_iterations_of_their_own(void **state) {
    (void)state;
    char path[512];
    PlanContext *primary;
    const PlanContext *split;
    Arena arena = {0};
    StageMap *map;
    MicroBatchSettings settings = {.micro_batches = 4};
    join(path, sizeof path, "gpt2_tiny", "model.hlo.pb");
    assert_int_equal(plan_context_read(&primary, path, NULL, NULL), AM_OK);
    assert_int_equal(plan_context_for(&split, primary, &settings, NULL), AM_OK);
    assert_int_equal(split->rules->loop_count, 1);
    settings.separate_backward = true;
    assert_int_equal(plan_context_for(&split, primary, &settings, NULL), AM_OK);
    assert_int_equal(split->rules->loop_count, 2);
    int32_t *forward = ARENA_ARRAY(&arena, int32_t, primary->rules->entry_count);
    int32_t count = list_forward(forward, primary);
    Split choice = {"data=1", choose_batch, 0};
    for (int32_t c = 1; c < count; c++) {
        Plan *plan = cut_plan(&arena, primary, &choice, 2, &forward[c]);
        assert_int_equal(stages_assign(&map, &arena, split, plan, NULL), AM_OK);
        for (int32_t k = 0; k < 2; k++) {
            const PlannedLoop *loop = &split->rules->loops[k];
            const IrComputation *body = &split->canonical->computations[loop->body];
            int32_t sent = 0;
            for (int32_t i = body->first; i < body->first + body->count; i++) {
                StageSet missing = map->needed[i] & ~map->held[i];
                bool is_array = dtype_is_floating(split->canonical->instructions[i].shape.type);
                if (missing == 0 || stages_is_transparent(split, i) || !is_array) continue;
                if (map->held[i] != stage_bit(k))
                    fail_msg("cut before %s: loop %d sends %s of stages %llx",
                             primary->canonical->instructions[forward[c]].name, (int)k,
                             split->canonical->instructions[i].name, (unsigned long long)map->held[i]);
                sent++;
            }
            if (c == count / 2) assert_true(sent > 0 && map->held[loop->instruction] == 3);
        }
    }
    arena_free(&arena);
    plan_context_free(primary);
}

/* Ranges that are no order of the forward operators are refused by name. */
static void test_no_stage(void **state) {
    (void)state;
    TwoStages self;
    StageMap *map;
    assert_int_equal(open_two(&self, RECOMPUTED, "h2"), AM_OK);
    PlanStage first = self.plan->stages[0];
    self.plan->stages[0] = self.plan->stages[1];
    self.plan->stages[1] = first;
    self.error = (AmError){0};
    assert_int_equal(stages_assign(&map, &self.arena, self.context, self.plan, &self.error), AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "h2 is on stage 0 and takes a value of stage 1"));
    self.plan->stages[1].range_count = 0;
    self.error = (AmError){0};
    assert_int_equal(stages_assign(&map, &self.arena, self.context, self.plan, &self.error), AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "h1"));
    close_two(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directions),       cmocka_unit_test(test_recomputed),
        cmocka_unit_test(test_tied_and_clipped), cmocka_unit_test(test_iterations_of_their_own),
        cmocka_unit_test(test_no_stage),         cmocka_unit_test(test_random_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
