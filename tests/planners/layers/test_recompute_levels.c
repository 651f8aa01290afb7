/* Levels of recomputation: each solution has the least cost of all that are possible, found by trying every
 * set of saved values; levels save fewer bytes one after the other. */
#include "tests/support/model_case.h"

#include <math.h>

#include "cost/cluster/cluster.h"
#include "lowering/micro_batch/recompute.h"
#include "planners/layers/recompute_levels.h"

enum { MOST_FREE = 14, MOST_WINDOW = 64 };

typedef struct Fixture {
    PlanContext *context;
    Cluster *cluster; /* in the arena */
    Arena arena;
    RecomputeLevels levels;
    int32_t cuts[2];
} Fixture;

static void open_case(Fixture *self, const char *model) {
    AmError error = {0};
    *self = (Fixture){.context = read_model(model)};
    self->cuts[1] = self->context->rules->entry_count;
    assert_int_equal(cluster_read(&self->cluster, &self->arena, "t4:1", &error), AM_OK);
    assert_int_equal(recompute_levels_find(&self->levels, &self->arena, self->context,
                                           &self->cluster->types[0], self->cuts, 1, &error),
                     AM_OK);
}

static void close_case(Fixture *self) {
    cluster_free(self->cluster);
    arena_free(&self->arena);
    plan_context_free(self->context);
}

static bool is_free(const Fixture *self, int32_t i, int32_t end) {
    return recompute_covers(self->context, i) && self->levels.last_use[i] < end;
}

/* The cost of saving a set of the free operators: all others that are needed are recomputed. */
static double cost_of(const Fixture *self, int32_t first, int32_t end, uint32_t saved, double price) {
    const IrInstruction *instructions = self->context->canonical->instructions;
    bool is_needed[MOST_WINDOW] = {false};
    int32_t bit[MOST_WINDOW], free_count = 0;
    double cost = 0;
    for (int32_t i = first; i < end; i++) {
        bit[i - first] = is_free(self, i, end) ? free_count++ : -1;
        is_needed[i - first] = bit[i - first] >= 0 && self->levels.is_needed[i];
    }
    for (int32_t i = end - 1; i >= first; i--) {
        if (!is_needed[i - first]) continue;
        if (saved >> bit[i - first] & 1) {
            cost += price * self->levels.bytes[i];
            continue;
        }
        cost += self->levels.seconds[i];
        for (int32_t k = 0; k < instructions[i].operand_count; k++) {
            int32_t operand = instructions[i].operands[k];
            if (operand >= first && bit[operand - first] >= 0) is_needed[operand - first] = true;
        }
    }
    return cost;
}

/* The end of a window from `first` on with as many free operators as can be enumerated. */
static int32_t window_end(const Fixture *self, int32_t first, int32_t entry) {
    int32_t end = first;
    for (int32_t free_count = 0; end < entry && end - first < MOST_WINDOW - 1; end++) {
        free_count += recompute_covers(self->context, end);
        if (free_count > MOST_FREE) break;
    }
    return end;
}

static void test_solutions_are_optimal(void **state) {
    (void)state;
    const char *models[] = {"mlp_tiny", "gpt2_tiny", "moe_tiny"};
    int32_t windows = 0, mixed = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        Fixture self;
        open_case(&self, models[m]);
        int32_t entry = self.context->rules->entry_count;
        uint8_t *choices = ARENA_ARRAY(&self.arena, uint8_t, entry + 1);
        for (int32_t first = 0; first < entry && windows < 24; first += 9) {
            int32_t end = window_end(&self, first, entry);
            double price = (first % 4 + 0.5) * 2 / self.cluster->types[0].memory_bytes_per_second;
            double least = INFINITY, found = 0;
            int32_t saved = 0, again = 0;
            assert_int_equal(recompute_solve(choices, &self.levels, self.context, first, end, price, NULL),
                             AM_OK);
            for (int32_t i = first; i < end; i++) {
                if (choices[i] == RECOMPUTE_SAVED) found += price * self.levels.bytes[i];
                if (choices[i] == RECOMPUTE_AGAIN) found += self.levels.seconds[i];
                saved += choices[i] == RECOMPUTE_SAVED;
                again += choices[i] == RECOMPUTE_AGAIN && self.levels.seconds[i] > 0;
            }
            for (uint32_t set = 0; set < 1u << MOST_FREE; set++)
                least = fmin(least, cost_of(&self, first, end, set, price));
            /* Capacities are rounded up to femtoseconds. */
            if (!(found <= least + 1e-12) || !(found >= least - 1e-12))
                fail_msg("%s, operators %d to %d: cost %g, the least is %g", models[m], first, end, found,
                         least);
            windows += found > 0;
            mixed += saved > 0 && again > 0;
        }
        close_case(&self);
    }
    assert_true(windows >= 10);
    assert_true(mixed >= 3);
}

static void test_levels_save_less_and_less(void **state) {
    (void)state;
    Fixture self;
    double before = INFINITY;
    open_case(&self, "gpt2");
    assert_true(self.levels.count >= 2);
    for (int32_t k = 0; k < self.levels.count; k++) {
        double bytes = 0;
        for (int32_t i = 0; i < self.context->rules->entry_count; i++)
            if (self.levels.choices[k][i] == RECOMPUTE_SAVED) bytes += self.levels.bytes[i];
        assert_true(bytes > 0 && bytes < before);
        before = bytes;
    }
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_solutions_are_optimal),
                                       cmocka_unit_test(test_levels_save_less_and_less)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
