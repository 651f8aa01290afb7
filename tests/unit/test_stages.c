/* Stages: plans that are cut anywhere among the forward operators give the losses of one device, and
 * operators, weights and updates are where the method says. */
#include "propagation/ranks.h"
#include "runner_case.h"

/* Forward operators of the entry, ascending. */
static int32_t list_forward(int32_t *list, const PlanContext *context) {
    int32_t count = 0;
    for (int32_t i = 0; i < context->rules->entry_count; i++)
        if (context->choices->live[i] && context->roles->phases[i] == IR_PHASE_FORWARD) list[count++] = i;
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

/* Cuts by chance; 2 + seed % 3 stages. */
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

static void test_cuts_by_chance(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        check_stages("mlp_tiny", "data=1", choose_batch, seed, 2e-6);
        check_stages("exact_linear", "data=2", choose_some, seed, 0);
        check_stages("exact_gather", "data=2", choose_some, seed, 0);
    }
    for (uint64_t seed = 0; seed < 3; seed++) {
        check_stages("gpt2_tiny", "data=2", choose_batch, seed, 5e-6);
        check_stages("t5_tiny", "data=1", choose_batch, seed, 5e-6);
        check_stages("adamw_tiny", "data=2", choose_some, seed, 5e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_by_chance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
