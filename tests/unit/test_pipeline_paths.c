/* Paths of pipelines are held against pipelines taken turn by turn in the orders of their schedules, with
 * random stages; what borders meet against all sets of them. */
#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/random.h"
#include "planners/border_loss.h"
#include "planners/pipeline_paths.h"
#include "propagation/pipeline_schedule.h"
#include "sample.h"

enum { MOST_STAGES = 7, MOST_TURNS = 12, MOST_PLACES = 12 };

/* Seconds of a stage's turns; `early` of what may be anywhere is done before the stage waits for others. */
typedef struct Stage {
    double of[PATH_PASSES][BOUND_ORDERS], early[PATH_PASSES];
    bool puts_off_anywhere; /* of the backward pass until W */
    bool is_across;         /* what is between others lies across a border: it waits for nobody here */
} Stage;

typedef struct Pipeline {
    Stage stages[MOST_STAGES];
    int32_t stage_count, turns;
    ScheduleKind kind;
} Pipeline;

/* A stage takes a turn from `now`, when what it waits for comes at `arrival`; `*sent`: when the next one gets
 * what it waits for. */
static double take_turn(const Stage *stage, SchedulePass pass, bool has_weights, double now, double arrival,
                        double *sent) {
    const double(*of)[BOUND_ORDERS] = stage->of;
    PathPass side = pass == SCHEDULE_FORWARD ? PATH_FORWARD : PATH_BACKWARD;
    double anywhere = of[side][BOUND_ANYWHERE], behind = of[side][BOUND_BEHIND];
    bool is_split = has_weights && side == PATH_BACKWARD;
    if (pass == SCHEDULE_WEIGHTS) return now + behind + (stage->puts_off_anywhere ? anywhere : 0);
    if (is_split) behind = 0;
    if (is_split && stage->puts_off_anywhere) anywhere = 0;
    double loose = anywhere + (stage->is_across ? of[side][BOUND_BETWEEN] : 0);
    double between = stage->is_across ? 0 : of[side][BOUND_BETWEEN];
    now = fmax(now + stage->early[side] * loose, arrival) + of[side][BOUND_SPINE] + between;
    *sent = now;
    return now + (1 - stage->early[side]) * loose + behind;
}

/* When the last stage has ended. Turns are taken as soon as those that they wait for have been. */
static double run(const Pipeline *self) {
    ScheduleTurn *turns[MOST_STAGES];
    double sent[2][MOST_STAGES][MOST_TURNS], now[MOST_STAGES] = {0}, end = 0;
    int32_t done[MOST_STAGES] = {0}, count = 0, stages = self->stage_count;
    Arena arena = {0};
    for (int32_t s = 0; s < stages; s++) {
        assert_int_equal(
            schedule_turns(&turns[s], &count, &arena, self->kind, stages, s, self->turns, 1, NULL), AM_OK);
        for (int32_t m = 0; m < self->turns; m++) sent[0][s][m] = sent[1][s][m] = INFINITY;
    }
    for (int32_t left = stages * count, before = -1; left > 0 && left != before;) {
        before = left;
        for (int32_t s = 0; s < stages; s++)
            for (; done[s] < count; done[s]++, left--) {
                const ScheduleTurn *turn = &turns[s][done[s]];
                int32_t m = turn->micro_batch;
                double arrival = 0, ignored;
                if (turn->pass == SCHEDULE_FORWARD && s > 0) arrival = sent[0][s - 1][m];
                if (turn->pass == SCHEDULE_BACKWARD)
                    arrival = s + 1 < stages ? sent[1][s + 1][m] : sent[0][s][m];
                if (isinf(arrival)) break;
                double *to = turn->pass == SCHEDULE_WEIGHTS ? &ignored : &sent[turn->pass][s][m];
                now[s] = take_turn(&self->stages[s], turn->pass, self->kind == SCHEDULE_ZB_H1, now[s],
                                   arrival, to);
                end = fmax(end, now[s]);
            }
    }
    for (int32_t s = 0; s < stages; s++) assert_int_equal(done[s], count);
    arena_free(&arena);
    return end;
}

static double path_seconds(const Pipeline *self, PathKind kind, int32_t stage) {
    const PathCounts on = path_counts(kind, self->stage_count, self->turns, stage);
    double sum = 0;
    for (int32_t u = 0; u < self->stage_count; u++) {
        const PathCounts counts = path_counts(kind, self->stage_count, self->turns, u);
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            for (int32_t order = 0; order < BOUND_ORDERS; order++) {
                bool is_passed = order == BOUND_SPINE || order == BOUND_BETWEEN;
                bool is_across = order == BOUND_BETWEEN && self->stages[u].is_across;
                double times = counts.once[pass][order] + (u > stage && is_passed ? on.above[pass] : 0) +
                               (u == stage ? on.more[pass][order] : 0);
                if (is_across) times = u == stage ? on.across[pass][order] : 0;
                sum += times * self->stages[u].of[pass][order];
            }
    }
    return sum;
}

/* The longest path of those that hold for a schedule. */
static double longest_path(const Pipeline *self, uint32_t kinds) {
    double longest = 0;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t s = 0; s < self->stage_count && kinds >> kind & 1; s++)
            longest = fmax(longest, path_seconds(self, (PathKind)kind, s));
    return longest;
}

static const uint32_t every_kind[SCHEDULE_KINDS] = {[SCHEDULE_GPIPE] = (1u << PATH_KINDS) - 1,
                                                    [SCHEDULE_1F1B] = (1u << PATH_KINDS) - 1,
                                                    [SCHEDULE_ZB_H1] = 1u << PATH_WORK | 1u << PATH_WEIGHTS |
                                                                       1u << PATH_STAYS};

static double random_seconds(Random *rng) {
    double most = random_below(rng, 3) == 0 ? 0 : random_below(rng, 4) == 0 ? 10 : 1;
    return most * random_uniform(rng);
}

static void test_no_random_pipeline_is_quicker(void **state) {
    (void)state;
    Random rng;
    random_seed(&rng, 1);
    int32_t count = sample_of(200000, 1000);
    for (int32_t k = 0; k < count; k++) {
        static const ScheduleKind kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_ZB_H1};
        Pipeline pipeline = {.kind = kinds[k % 3],
                             .stage_count = 1 + (int32_t)random_below(&rng, MOST_STAGES),
                             .turns = 1 + (int32_t)random_below(&rng, MOST_TURNS)};
        for (int32_t s = 0; s < pipeline.stage_count; s++) {
            Stage *stage = &pipeline.stages[s];
            stage->puts_off_anywhere = random_below(&rng, 2) == 0;
            stage->is_across = random_below(&rng, 2) == 0;
            for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
                stage->early[pass] = (double)random_below(&rng, 3) / 2;
                for (int32_t order = 0; order < BOUND_ORDERS; order++)
                    stage->of[pass][order] = random_seconds(&rng);
            }
        }
        double seconds = run(&pipeline), longest = longest_path(&pipeline, every_kind[pipeline.kind]);
        if (longest > seconds * (1 + 1e-9))
            fail_msg("%s, %d stages, %d turns: %g s, a path has %g s", schedule_kind_name(pipeline.kind),
                     pipeline.stage_count, pipeline.turns, seconds, longest);
    }
}

/* With equal stages some path is the step. */
static void test_equal_stages_are_met(void **state) {
    (void)state;
    static const ScheduleKind kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_ZB_H1};
    for (int32_t k = 0; k < 3; k++)
        for (int32_t stages = 1; stages <= MOST_STAGES; stages++)
            for (int32_t turns = kinds[k] == SCHEDULE_ZB_H1 ? stages : 1; turns <= MOST_TURNS; turns++) {
                Pipeline pipeline = {.kind = kinds[k], .stage_count = stages, .turns = turns};
                for (int32_t s = 0; s < stages; s++)
                    pipeline.stages[s] =
                        (Stage){.of = {[PATH_FORWARD][BOUND_BETWEEN] = 3,
                                       [PATH_BACKWARD][BOUND_BETWEEN] = 4,
                                       [PATH_BACKWARD][BOUND_BEHIND] = kinds[k] == SCHEDULE_ZB_H1 ? 2 : 0}};
                assert_float_equal(longest_path(&pipeline, every_kind[kinds[k]]), run(&pipeline), 1e-9);
            }
}

static double most_of_all_sets(const BorderInterval *intervals, const double *weights, int32_t count,
                               int32_t places, int32_t points) {
    double most = 0;
    for (uint32_t set = 0; set < 1u << places; set++) {
        double sum = 0;
        if (__builtin_popcount(set) > points) continue;
        for (int32_t k = 0; k < count; k++) {
            uint32_t inside = (1u << intervals[k].end) - (1u << intervals[k].first);
            if (set & inside) sum += weights[k];
        }
        most = fmax(most, sum);
    }
    return most;
}

static void test_borders_meet_the_most(void **state) {
    (void)state;
    Random rng;
    random_seed(&rng, 2);
    for (int32_t k = 0; k < 200; k++) {
        Arena arena = {0};
        BorderInterval intervals[20];
        double weights[20];
        int32_t places = 1 + (int32_t)random_below(&rng, MOST_PLACES),
                count = (int32_t)random_below(&rng, 20);
        for (int32_t i = 0; i < count; i++) {
            int32_t first = (int32_t)random_below(&rng, places);
            intervals[i] = (BorderInterval){first, first + (int32_t)random_below(&rng, (places - first + 1))};
            weights[i] = random_uniform(&rng);
        }
        BorderLoss losses = border_loss_create(&arena, intervals, count, places);
        border_loss_weigh(&losses, weights);
        for (int32_t points = 0; points <= places; points++)
            assert_float_equal(border_loss_of(&losses, points),
                               most_of_all_sets(intervals, weights, count, places, points), 1e-9);
        assert_float_equal(border_loss_of_one(&losses),
                           most_of_all_sets(intervals, weights, count, places, 1), 1e-9);
        arena_free(&arena);
    }
}

/* Where intervals and the places between them are long, too. */
static void test_long_intervals_are_lost_always(void **state) {
    (void)state;
    Arena arena = {0};
    const BorderInterval intervals[] = {{0, 40}, {0, 1}, {39, 40}, {20, 21}};
    const double weights[] = {5, 1, 2, 4};
    BorderLoss losses = border_loss_create(&arena, intervals, 4, 40);
    border_loss_weigh(&losses, weights);
    assert_float_equal(border_loss_of(&losses, 0), 5, 0);
    assert_float_equal(border_loss_of(&losses, 1), 9, 0);
    assert_float_equal(border_loss_of(&losses, 2), 11, 0);
    assert_float_equal(border_loss_of(&losses, 9), 12, 0);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_random_pipeline_is_quicker), cmocka_unit_test(test_equal_stages_are_met),
        cmocka_unit_test(test_borders_meet_the_most), cmocka_unit_test(test_long_intervals_are_lost_always)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
