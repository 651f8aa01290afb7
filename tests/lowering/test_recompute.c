/* Recomputation as a rewriting: inputs of a range are kept, so that values used by another range
 * are not recomputed, and other values of a range that the backward pass uses are. */
#include "tests/support/model_case.h"

#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/even_pipeline.h"
#include "propagation/stages/stages.h"

enum { PIECES = 4 };

typedef struct Fixture {
    PlanContext *primary, *again;
    int32_t cuts[PIECES + 1];
} Fixture;

static void open_case(Fixture *self, const char *model) {
    int32_t ranges[PIECES][2];
    bool found;
    AmError error = {0};
    *self = (Fixture){.primary = read_model(model)};
    assert_int_equal(even_pipeline_cuts(self->cuts, &found, self->primary, PIECES, 1, &error), AM_OK);
    assert_true(found);
    for (int32_t r = 0; r < PIECES; r++) {
        ranges[r][0] = self->cuts[r];
        ranges[r][1] = self->cuts[r + 1];
    }
    const PlanRecomputation recomputed = {.ranges = ranges, .range_count = PIECES};
    if (plan_context_recompute(&self->again, self->primary, &recomputed, NULL, &error) != AM_OK)
        fail_msg("%s", error.text);
}

static void close_case(Fixture *self) {
    plan_context_free(self->again);
    plan_context_free(self->primary);
}

static int32_t range_of(const Fixture *self, int32_t instruction) {
    int32_t r = 0;
    while (instruction >= self->cuts[r + 1]) r++;
    return r;
}

/* Returns whether a forward operator of another range takes the value. */
static bool leaves_range(const Fixture *self, int32_t value) {
    const PlanContext *primary = self->primary;
    if (stages_is_transparent(primary, value)) return false;
    for (int32_t i = value + 1; i < primary->rules->entry_count; i++) {
        if (primary->roles->phases[i] != IR_PHASE_FORWARD || !primary->split_options->live[i]) continue;
        if (stages_is_transparent(primary, i) || range_of(self, i) == range_of(self, value)) continue;
        for (int32_t k = 0; k < primary->canonical->instructions[i].operand_count; k++)
            if (primary->canonical->instructions[i].operands[k] == value) return true;
    }
    return false;
}

static void test_what_enters_is_kept(void **state) {
    (void)state;
    const char *models[] = {"gpt2_tiny", "t5_tiny", "mlp_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        Fixture self;
        int32_t copies = 0;
        open_case(&self, models[m]);
        for (int32_t i = 0; i < self.again->rules->entry_count; i++) {
            if (self.again->roles->phases[i] != IR_PHASE_RECOMPUTED) continue;
            copies++;
            assert_false(leaves_range(&self, self.again->original[i]));
        }
        assert_true(copies > 0);
        close_case(&self);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_enters_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
