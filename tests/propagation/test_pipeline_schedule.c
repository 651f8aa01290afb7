/* Orders of iterations: every iteration runs once, no stage deadlocks, the micro-batches in flight are those
 * of the schedule, and bubbles equal their closed forms. */
#include "tests/support/model_case.h"

#include <stdlib.h>
#include <string.h>

#include "propagation/plan/pipeline_schedule.h"

enum { MOST_STAGES = 8, MOST_MICRO_BATCHES = 16, MOST_CHUNKS = 4, MOST_PARTS = MOST_STAGES * MOST_CHUNKS };

/* The orders of all stages, and a simulated step: part p of the model is chunk p / S of stage p % S. */
typedef struct Paper {
    Arena arena;
    int32_t stages, micro_batches, chunks;
    ScheduleIteration *iterations[MOST_STAGES];
    int32_t counts[MOST_STAGES];
    int32_t seconds[SCHEDULE_PASSES];
    int32_t ends[SCHEDULE_PASSES][MOST_PARTS][MOST_MICRO_BATCHES]; /* 0: not yet */
} Paper;

static void open_paper(Paper *self, ScheduleKind kind, int32_t stages, int32_t micro_batches,
                       int32_t chunks) {
    AmError error = {0};
    *self = (Paper){.stages = stages, .micro_batches = micro_batches, .chunks = chunks};
    for (int32_t s = 0; s < stages; s++) {
        const ScheduledStage stage = {
            .kind = kind, .stages = stages, .stage = s, .micro_batches = micro_batches, .chunks = chunks};
        if (schedule_iterations(&self->iterations[s], &self->counts[s], &self->arena, &stage, &error) !=
            AM_OK)
            fail_msg("%s", error.text);
    }
}

/* The time at which the inputs of an iteration are there; -1: not yet. */
static int32_t executable_at(const Paper *self, const ScheduleIteration *iteration, int32_t part) {
    int32_t m = iteration->micro_batch, last = self->stages * self->chunks - 1, latest = 0, need = 0;
    int32_t ends[2];
    if (iteration->pass == SCHEDULE_FORWARD && part > 0)
        ends[need++] = self->ends[SCHEDULE_FORWARD][part - 1][m];
    if (iteration->pass == SCHEDULE_BACKWARD) ends[need++] = self->ends[SCHEDULE_FORWARD][part][m];
    if (iteration->pass == SCHEDULE_BACKWARD && part < last)
        ends[need++] = self->ends[SCHEDULE_BACKWARD][part + 1][m];
    if (iteration->pass == SCHEDULE_WEIGHTS) ends[need++] = self->ends[SCHEDULE_BACKWARD][part][m];
    for (int32_t k = 0; k < need; k++) {
        if (ends[k] == 0) return -1;
        if (ends[k] > latest) latest = ends[k];
    }
    return latest;
}

/* Runs the step; returns its seconds. */
static int32_t play(Paper *self, int32_t forward, int32_t backward, int32_t weights) {
    int32_t clock[MOST_STAGES] = {0}, at[MOST_STAGES] = {0}, latest = 0;
    const int32_t seconds[] = {forward, backward, weights};
    memset(self->ends, 0, sizeof self->ends);
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < self->stages; s++)
            for (; at[s] < self->counts[s]; at[s]++, moved = true) {
                const ScheduleIteration *iteration = &self->iterations[s][at[s]];
                int32_t part = iteration->chunk * self->stages + s,
                        ready = executable_at(self, iteration, part);
                if (ready < 0) break;
                int32_t *end = &self->ends[iteration->pass][part][iteration->micro_batch];
                assert_int_equal(*end, 0); /* each iteration once */
                clock[s] = (ready > clock[s] ? ready : clock[s]) + seconds[iteration->pass];
                *end = clock[s];
            }
    }
    for (int32_t s = 0; s < self->stages; s++) {
        assert_int_equal(at[s], self->counts[s]); /* no stage deadlocks */
        if (clock[s] > latest) latest = clock[s];
    }
    return latest;
}

/* The largest lead of iterations of `begin` over those of `end`, on one stage. */
static int32_t most_ahead(const Paper *self, int32_t stage, SchedulePass begin, SchedulePass end) {
    int32_t ahead = 0, most = 0;
    for (int32_t k = 0; k < self->counts[stage]; k++) {
        ahead += self->iterations[stage][k].pass == begin;
        if (ahead > most) most = ahead;
        ahead -= self->iterations[stage][k].pass == end;
    }
    return most;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static const int32_t seconds[][3] = {{1, 1, 1}, {2, 3, 2}, {1, 4, 1}, {2, 2, 3}, {3, 2, 2}, {1, 1, 5}};
enum { SECONDS = sizeof seconds / sizeof *seconds };

/* Also of a schedule that no other test names. */
static void test_every_kind(void **state) {
    (void)state;
    static Paper paper;
    for (ScheduleKind kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (int32_t stages = 1; stages <= MOST_STAGES; stages++)
            for (int32_t iterations = 1; iterations <= MOST_MICRO_BATCHES; iterations++) {
                int32_t kept;
                AmError error = {0};
                open_paper(&paper, kind, stages, iterations, 1);
                int32_t work = paper.counts[0] / iterations; /* iterations of F, B and W of a micro-batch */
                assert_true(play(&paper, 1, 1, 1) >= work * iterations);
                for (int32_t s = 0; s < stages; s++) {
                    for (int32_t m = 0; m < iterations; m++)
                        assert_true(paper.ends[SCHEDULE_BACKWARD][s][m] > paper.ends[SCHEDULE_FORWARD][s][m]);
                    assert_int_equal(paper.counts[s], work * iterations);
                    const ScheduledStage stage = {
                        .kind = kind, .stages = stages, .stage = s, .micro_batches = iterations, .chunks = 1};
                    assert_int_equal(schedule_kept_of_chunk(&kept, &paper.arena, &stage, 0, &error), AM_OK);
                    assert_int_equal(kept, most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_BACKWARD));
                }
                arena_free(&paper.arena);
            }
}

static void test_plain(void **state) {
    (void)state;
    static Paper paper;
    for (int32_t stages = 1; stages <= MOST_STAGES; stages++)
        for (int32_t iterations = 1; iterations <= MOST_MICRO_BATCHES; iterations++)
            for (ScheduleKind kind = SCHEDULE_GPIPE; kind <= SCHEDULE_1F1B; kind++) {
                open_paper(&paper, kind, stages, iterations, 1);
                for (int32_t k = 0; k < SECONDS; k++) {
                    int32_t backward = seconds[k][1] + seconds[k][2];
                    assert_int_equal(play(&paper, seconds[k][0], backward, 0),
                                     (iterations + stages - 1) * (seconds[k][0] + backward));
                }
                for (int32_t s = 0; s < stages; s++) {
                    assert_int_equal(paper.counts[s], 2 * iterations);
                    assert_int_equal(most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_BACKWARD),
                                     kind == SCHEDULE_GPIPE ? iterations : least(iterations, stages - s));
                }
                arena_free(&paper.arena);
            }
}

static void test_zero_bubble(void **state) {
    (void)state;
    static Paper paper;
    for (int32_t stages = 1; stages <= MOST_STAGES; stages++)
        for (int32_t iterations = 1; iterations <= MOST_MICRO_BATCHES; iterations++) {
            open_paper(&paper, SCHEDULE_ZB_H1, stages, iterations, 1);
            for (int32_t k = 0; k < SECONDS; k++) {
                int32_t forward = seconds[k][0], backward = seconds[k][1], weights = seconds[k][2];
                int32_t time = play(&paper, forward, backward, weights);
                int32_t bubble = forward + (backward > weights ? backward - weights : 0);
                assert_true(time <= (iterations + stages - 1) * (forward + backward + weights));
                if (iterations >= stages)
                    assert_int_equal(time,
                                     iterations * (forward + backward + weights) + (stages - 1) * bubble);
            }
            for (int32_t s = 0; s < stages; s++) {
                assert_int_equal(paper.counts[s], 3 * iterations);
                assert_int_equal(most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_BACKWARD),
                                 schedule_kept_for_backward(stages, s, iterations));
                assert_int_equal(most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_WEIGHTS),
                                 schedule_kept_for_weights(SCHEDULE_ZB_H1, stages, iterations));
                assert_int_equal(most_ahead(&paper, s, SCHEDULE_BACKWARD, SCHEDULE_WEIGHTS),
                                 schedule_kept_from_backward(SCHEDULE_ZB_H1, s, iterations));
            }
            arena_free(&paper.arena);
        }
}

/* The time of a stage from its first iteration to its last. */
static int32_t longest_stage(const Paper *self, const int32_t *times) {
    int32_t longest = 0;
    for (int32_t s = 0; s < self->stages; s++) {
        const ScheduleIteration *last = &self->iterations[s][self->counts[s] - 1];
        int32_t begin = self->ends[SCHEDULE_FORWARD][s][0] - times[SCHEDULE_FORWARD];
        int32_t length = self->ends[last->pass][s][last->micro_batch] - begin;
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* With equal passes no stage waits between its first and its last iteration. */
static void test_two_fold_memory(void **state) {
    (void)state;
    static const int32_t equal[] = {1, 1, 1};
    static Paper paper;
    for (int32_t stages = 1; stages <= MOST_STAGES; stages++)
        for (int32_t iterations = 1; iterations <= MOST_MICRO_BATCHES; iterations++) {
            open_paper(&paper, SCHEDULE_ZB_2P, stages, iterations, 1);
            play(&paper, 1, 1, 1);
            if (iterations >= 2 * stages - 1) assert_int_equal(longest_stage(&paper, equal), 3 * iterations);
            for (int32_t s = 0; s < stages; s++) {
                assert_int_equal(paper.counts[s], 3 * iterations);
                assert_int_equal(most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_BACKWARD),
                                 least(iterations, 2 * (stages - s) - 1));
                assert_int_equal(most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_WEIGHTS),
                                 schedule_kept_for_weights(SCHEDULE_ZB_2P, stages, iterations));
                assert_int_equal(most_ahead(&paper, s, SCHEDULE_BACKWARD, SCHEDULE_WEIGHTS),
                                 schedule_kept_from_backward(SCHEDULE_ZB_2P, s, iterations));
            }
            arena_free(&paper.arena);
        }
}

static void test_interleaved(void **state) {
    (void)state;
    static Paper paper;
    for (int32_t stages = 1; stages <= MOST_STAGES; stages++)
        for (int32_t iterations = 1; iterations <= MOST_MICRO_BATCHES; iterations++)
            for (int32_t chunks = 1; chunks <= MOST_CHUNKS; chunks++) {
                open_paper(&paper, SCHEDULE_INTERLEAVED, stages, iterations, chunks);
                int32_t time = play(&paper, 1, 2, 0), ideal = 3 * iterations * chunks;
                if (iterations % stages == 0) assert_int_equal(time, ideal + 3 * (stages - 1));
                assert_true(time >= ideal);
                for (int32_t s = 0; s < stages; s++) {
                    int32_t group = iterations < stages ? iterations : stages + iterations % stages;
                    int32_t ahead = 2 * (stages - s - 1) + (chunks - 1) * group + 1;
                    assert_int_equal(paper.counts[s], 2 * iterations * chunks);
                    assert_int_equal(most_ahead(&paper, s, SCHEDULE_FORWARD, SCHEDULE_BACKWARD),
                                     least(iterations * chunks, ahead));
                }
                arena_free(&paper.arena);
            }
}

/* Returns the number of values that may be in flight from part p to part q. For neighbours it is the distance
 * of their stages plus 1, for other parts the number of stages plus the distance of the parts. */
static int32_t count_slots(int32_t stages, int32_t p, int32_t q) {
    int32_t parts = abs(p - q), apart = abs(p % stages - q % stages);
    return parts > 1 ? stages + parts : apart + 1;
}

/* Returns whether part p can run its next iteration in a pass: all parts before it have sent, no
 * part after it is full. */
static bool may_play(const Paper *self, int32_t sent[][MOST_PARTS], int32_t taken[][MOST_PARTS], int32_t p,
                     const ScheduleIteration *iteration) {
    for (int32_t q = 0; q < self->stages * self->chunks; q++) {
        bool is_before = iteration->pass == SCHEDULE_FORWARD ? q < p : q > p;
        if (q % self->stages == p % self->stages) continue;
        if (is_before && sent[q][p] <= iteration->micro_batch) return false;
        if (!is_before && sent[p][q] - taken[p][q] >= count_slots(self->stages, p, q)) return false;
    }
    return true;
}

/* Returns whether each part can send to all parts after it in its pass, on other stages, in every
 * iteration.
 */
static bool can_be_played(const Paper *self) {
    static int32_t sent[2][MOST_PARTS][MOST_PARTS], taken[2][MOST_PARTS][MOST_PARTS];
    int32_t at[MOST_STAGES] = {0}, left = 0;
    memset(sent, 0, sizeof sent);
    memset(taken, 0, sizeof taken);
    for (int32_t s = 0; s < self->stages; s++) left += self->counts[s];
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < self->stages; s++) {
            if (at[s] == self->counts[s]) continue;
            const ScheduleIteration *iteration = &self->iterations[s][at[s]];
            int32_t p = iteration->chunk * self->stages + s;
            if (!may_play(self, sent[iteration->pass], taken[iteration->pass], p, iteration)) continue;
            for (int32_t q = 0; q < self->stages * self->chunks; q++) {
                if (iteration->pass == SCHEDULE_FORWARD ? q < p : q > p) taken[iteration->pass][q][p]++;
                else sent[iteration->pass][p][q]++;
            }
            at[s]++;
            left--;
            moved = true;
        }
    }
    return left == 0;
}

static void test_slots(void **state) {
    (void)state;
    static Paper paper;
    for (int32_t stages = 2; stages <= MOST_STAGES; stages += 1 + stages / 4)
        for (int32_t iterations = 1; iterations <= MOST_MICRO_BATCHES; iterations++)
            for (int32_t chunks = 1; chunks <= 3; chunks++) {
                open_paper(&paper, SCHEDULE_INTERLEAVED, stages, iterations, chunks);
                assert_true(can_be_played(&paper));
                arena_free(&paper.arena);
            }
}

static void test_names_and_refusals(void **state) {
    (void)state;
    Arena arena = {0};
    ScheduleIteration *iterations;
    int32_t count;
    for (ScheduleKind kind = SCHEDULE_GPIPE; kind < SCHEDULE_KINDS; kind++)
        assert_int_equal(schedule_kind_find(schedule_kind_name(kind)), kind);
    assert_int_equal(schedule_kind_find("none"), SCHEDULE_KINDS);
    static const ScheduledStage wrong[] = {
        {SCHEDULE_INTERLEAVED, 0, 0, 1, 1},  {SCHEDULE_INTERLEAVED, 2, 2, 1, 1},
        {SCHEDULE_INTERLEAVED, 2, -1, 1, 1}, {SCHEDULE_INTERLEAVED, 2, 0, 0, 1},
        {SCHEDULE_INTERLEAVED, 2, 0, 1, 0},  {SCHEDULE_1F1B, 2, 0, 4, 2}};
    static const ScheduledStage large = {SCHEDULE_INTERLEAVED, 2, 0, INT32_MAX, 9};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        assert_int_equal(schedule_iterations(&iterations, &count, &arena, &wrong[k], NULL), AM_ERROR_USAGE);
    assert_int_equal(schedule_iterations(&iterations, &count, &arena, &large, NULL), AM_ERROR_INTERNAL);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),         cmocka_unit_test(test_plain),
        cmocka_unit_test(test_zero_bubble),        cmocka_unit_test(test_two_fold_memory),
        cmocka_unit_test(test_interleaved),        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_names_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
