/* The clock of a pipeline beside closed forms and recursions: schedules of equal stages, 1F1B with unequal
 * ones, meetings, slots, lower bounds, and that nothing gets slower when a part gets faster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "cost/simulate/clock_1f1b.h"
#include "cost/simulate/pipeline_clock.h"
#include "propagation/plan/pipeline_schedule.h"

enum { MOST_STAGES = 8, MOST_ITERATIONS = 24, MOST_CHUNKS = 3, MOST_PIECES = 9 * MOST_CHUNKS };

/* Durations of one pipeline, whole numbers. */
typedef struct Case {
    ScheduleKind kind;
    int32_t stages, iterations, chunks, slots;
    Ticks forward[MOST_STAGES], backward[MOST_STAGES], weights[MOST_STAGES]; /* of a chunk's iteration */
    Ticks transfer;
} Case;

typedef struct Line {
    PipelinePiece pieces[MOST_PIECES];
    PipelineSpan spans[3 * MOST_CHUNKS];
    Ticks ticks[MOST_PIECES]; /* of the computation */
    Moment now;
} Line;

static void compute(void *user, int32_t stage, int32_t piece) {
    Line *line = &((Line *)user)[stage];
    line->now.at += line->ticks[piece];
}
static Moment arrive(void *user, int32_t stage, int32_t piece) {
    (void)piece;
    return ((Line *)user)[stage].now;
}
static void wait(void *user, int32_t stage, int32_t piece, Moment until) {
    Line *line = &((Line *)user)[stage];
    (void)piece;
    line->now = moment_later(line->now, until);
}
static void rendezvous(void *user, int32_t stage, int32_t piece, Moment end, Ticks ticks) {
    (void)ticks;
    wait(user, stage, piece, end);
}

/* Channels: forward between model parts p and p + 1 is number p, backward parts + p. */
static void add_pass(Line *line, PipelineStage *stage, const Case *test, int32_t s, SchedulePass pass,
                     int32_t chunk) {
    int32_t parts = test->stages * test->chunks, part = chunk * test->stages + s;
    bool goes_up = pass == SCHEDULE_FORWARD, travels = pass != SCHEDULE_WEIGHTS;
    int32_t from = goes_up ? part - 1 : part + 1, to = goes_up ? part + 1 : part - 1;
    PipelineSpan *span = &line->spans[stage->span_count++];
    *span = (PipelineSpan){.first = stage->piece_count, .iterations = test->iterations};
    if (travels && from >= 0 && from < parts)
        line->pieces[stage->piece_count++] =
            (PipelinePiece){.channel = goes_up ? from : parts + part, .ticks = test->transfer};
    line->ticks[stage->piece_count] = goes_up                    ? test->forward[s]
                                      : pass == SCHEDULE_WEIGHTS ? test->weights[s]
                                                                 : test->backward[s];
    line->pieces[stage->piece_count++] = (PipelinePiece){.channel = -1};
    if (travels && to >= 0 && to < parts)
        line->pieces[stage->piece_count++] =
            (PipelinePiece){.channel = goes_up ? part : parts + to, .sends = true, .ticks = test->transfer};
    span->end = stage->piece_count;
}

/* Seconds of the step, one tick each. */
static Ticks run(const Case *test) {
    static Line lines[MOST_STAGES];
    PipelineStage stages[MOST_STAGES];
    PipelineChannel channels[2 * MOST_STAGES * MOST_CHUNKS];
    Arena arena = {0};
    AmError error = {0};
    int32_t parts = test->stages * test->chunks, passes = schedule_splits_backward(test->kind) ? 3 : 2;
    memset(lines, 0, sizeof lines);
    for (int32_t p = 0; p < parts; p++) {
        int32_t own = p % test->stages, next = (p + 1) % test->stages;
        channels[p] = (PipelineChannel){own, next, test->slots};
        channels[parts + p] = (PipelineChannel){next, own, test->slots};
    }
    for (int32_t s = 0; s < test->stages; s++) {
        ScheduleIteration *iterations;
        int32_t count;
        stages[s] = (PipelineStage){.pieces = lines[s].pieces, .spans = lines[s].spans};
        lines[s].now = MOMENT_BEGIN;
        for (int32_t chunk = 0; chunk < test->chunks; chunk++)
            for (int32_t pass = 0; pass < passes; pass++)
                add_pass(&lines[s], &stages[s], test, s, (SchedulePass)pass, chunk);
        const ScheduledStage stage = {.kind = test->kind,
                                      .stages = test->stages,
                                      .stage = s,
                                      .micro_batches = test->iterations,
                                      .chunks = test->chunks};
        assert_int_equal(schedule_iterations(&iterations, &count, &arena, &stage, &error), AM_OK);
        int32_t *order = ARENA_ARRAY(&arena, int32_t, count + 1);
        for (int32_t k = 0; k < count; k++)
            order[k] = iterations[k].chunk * passes + (int32_t)iterations[k].pass;
        lines[s].spans[0].order = order;
        lines[s].spans[0].order_count = count;
    }
    const PipelineWorker worker = {compute, arrive, wait, rendezvous, NULL, lines};
    if (pipeline_clock_run(&arena, stages, test->stages, channels, 2 * parts, &worker, &error) != AM_OK)
        fail_msg("%s: %s", schedule_kind_name(test->kind), error.text);
    Ticks end = 0;
    for (int32_t s = 0; s < test->stages; s++) end = lines[s].now.at > end ? lines[s].now.at : end;
    arena_free(&arena);
    return end;
}

static Case equal_stages(ScheduleKind kind, int32_t stages, int32_t iterations, int32_t chunks, Ticks forward,
                         Ticks backward, Ticks weights) {
    Case test = {
        .kind = kind, .stages = stages, .iterations = iterations, .chunks = chunks, .slots = MOST_ITERATIONS};
    bool is_split = schedule_splits_backward(kind);
    for (int32_t s = 0; s < stages; s++) {
        test.forward[s] = forward;
        test.backward[s] = is_split ? backward : backward + weights;
        test.weights[s] = is_split ? weights : 0;
    }
    return test;
}

/* facts: (M + S - 1)(F + B + W); interleaved a V-th of the bubble; ZB-H1 (S - 1)(F + B - W). */
static void equal_stages_take_the_closed_forms(void **state) {
    (void)state;
    const Ticks f = 30, b = 32, w = 28;
    for (int32_t stages = 1; stages <= MOST_STAGES; stages++) {
        for (int32_t iterations = 1; iterations <= MOST_ITERATIONS; iterations++) {
            Ticks work = iterations * (f + b + w), bubble = (stages - 1) * (f + b + w);
            Case gpipe = equal_stages(SCHEDULE_GPIPE, stages, iterations, 1, f, b, w);
            Case one_each = equal_stages(SCHEDULE_1F1B, stages, iterations, 1, f, b, w);
            assert_true(run(&gpipe) == work + bubble);
            assert_true(run(&one_each) == work + bubble);
            Case zero_bubble = equal_stages(SCHEDULE_ZB_H1, stages, iterations, 1, f, b, w);
            if (iterations >= stages) assert_true(run(&zero_bubble) == work + (stages - 1) * (f + b - w));
            Case chunks = equal_stages(SCHEDULE_INTERLEAVED, stages, iterations, 3, f, b, w);
            if (iterations % stages == 0) assert_true(run(&chunks) == 3 * work + bubble);
        }
    }
}

static int64_t draw(Random *random, int64_t least, int64_t most) {
    return least + random_below(random, most - least + 1);
}

static Case random_case(Random *random, ScheduleKind kind) {
    Case test = {.kind = kind,
                 .stages = (int32_t)draw(random, 1, MOST_STAGES),
                 .iterations = (int32_t)draw(random, 1, MOST_ITERATIONS),
                 .chunks = kind == SCHEDULE_INTERLEAVED ? (int32_t)draw(random, 1, MOST_CHUNKS) : 1,
                 .slots = MOST_ITERATIONS * MOST_CHUNKS,
                 .transfer = (Ticks)draw(random, 0, 10)};
    for (int32_t s = 0; s < test.stages; s++) {
        test.forward[s] = (Ticks)draw(random, 10, 100);
        test.backward[s] = (Ticks)draw(random, 10, 200);
        test.weights[s] = schedule_splits_backward(kind) ? (Ticks)draw(random, 0, 100) : 0;
    }
    return test;
}

static Ticks later(Ticks a, Ticks b) {
    return a > b ? a : b;
}

/* f[i][s] = max(f[i-1][s], f[i][s-1] + c, b[i-w_s][s]) + F_s, b[i][s] = max(free, b[i][s+1] + c) + B_s. */
static Ticks recursion(const Case *test) {
    Ticks f[MOST_ITERATIONS][MOST_STAGES], b[MOST_ITERATIONS][MOST_STAGES], free_at[MOST_STAGES] = {0},
                                                                            end = 0;
    int32_t next_f[MOST_STAGES] = {0}, next_b[MOST_STAGES] = {0}, stages = test->stages,
            iterations = test->iterations;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < stages; s++) {
            int32_t i = next_f[s], j = next_b[s], kept = iterations < stages - s ? iterations : stages - s;
            bool is_forward = i < iterations && i - j < kept;
            if (is_forward && (s == 0 || next_f[s - 1] > i)) {
                Ticks come = s == 0 ? 0 : f[i][s - 1] + test->transfer;
                f[i][s] = free_at[s] = later(free_at[s], come) + test->forward[s];
                next_f[s]++;
                moved = true;
            } else if (!is_forward && j < iterations && (s + 1 == stages || next_b[s + 1] > j)) {
                Ticks come = s + 1 == stages ? 0 : b[j][s + 1] + test->transfer;
                b[j][s] = free_at[s] = later(free_at[s], come) + test->backward[s];
                next_b[s]++;
                moved = true;
            }
        }
    }
    for (int32_t s = 0; s < stages; s++) end = later(end, free_at[s]);
    return end;
}

/* The end of a step by the clock of stages alone. */
static double by_stages(const Case *test, bool is_serial) {
    ClockStage stages[MOST_STAGES];
    double end = 0;
    for (int32_t s = 0; s < test->stages; s++)
        stages[s] = (ClockStage){.forward = (double)test->forward[s],
                                 .backward = (double)test->backward[s],
                                 .to_next = (double)test->transfer,
                                 .to_previous = (double)test->transfer};
    assert_true(clock_1f1b(stages, test->stages, test->iterations, is_serial));
    for (int32_t s = 0; s < test->stages; s++) end = fmax(end, stages[s].end);
    return end;
}

static void transfers_in_a_row_take_longer(void **state) {
    Case test = {.kind = SCHEDULE_1F1B, .stages = 2, .iterations = 2, .chunks = 1, .transfer = 30};
    (void)state;
    for (int32_t s = 0; s < 2; s++) test.forward[s] = test.backward[s] = 10;
    assert_true(by_stages(&test, false) == 120);
    assert_true(by_stages(&test, true) == 130);
}

static void unequal_stages_take_the_recursion(void **state) {
    Random random;
    (void)state;
    random_seed(&random, 1);
    for (int32_t k = 0; k < 10000; k++) {
        Case test = random_case(&random, SCHEDULE_1F1B);
        Ticks own = run(&test), expected = recursion(&test);
        assert_true(by_stages(&test, k % 2 == 0) == (double)expected);
        if (own != expected)
            fail_msg("case %d: %d stages, %d micro-batches: %.0f, not %.0f", k, test.stages, test.iterations,
                     own, expected);
    }
}

/* max(sum_s t_s + 2c(S-1), max_s [M t_s + sum_{u<s}(F_u + B_u) + 2cs]). If W is separate it may all
 * run while the last B goes up: then W and the B of the stages below do not add up. */
static Ticks lower_bound(const Case *test) {
    Ticks down = 0, up = 0, bound = 0, c = test->transfer;
    for (int32_t s = 0; s < test->stages; s++) {
        Ticks passes = test->iterations * (test->forward[s] + test->backward[s]) * test->chunks;
        Ticks weights = test->iterations * test->weights[s];
        bool counts = test->chunks == 1; /* chunks come to a stage before the whole model is through */
        bound = later(bound, passes + weights + (counts ? down + c * s : 0));
        bound = later(bound, passes + (counts ? down + up + 2 * c * s : 0));
        down += test->forward[s] * test->chunks;
        up += test->backward[s] * test->chunks;
    }
    return later(bound, down + up + 2 * c * (test->stages * test->chunks - 1));
}

static void no_schedule_beats_the_bound(void **state) {
    Random random;
    (void)state;
    random_seed(&random, 2);
    for (int32_t k = 0; k < 4000; k++) {
        Case test = random_case(&random, (ScheduleKind)(k % SCHEDULE_KINDS));
        /* Between chunks a value goes back to the first stage: with a single stage there is no
         * transfer. */
        if (test.stages == 1) test.transfer = 0;
        if (run(&test) < lower_bound(&test))
            fail_msg("case %d: %s, %d stages, %d micro-batches", k, schedule_kind_name(test.kind),
                     test.stages, test.iterations);
    }
}

/* In a fixed order all is sums and maxima, so what gets faster makes nothing slower. */
static void a_faster_part_never_lengthens_the_step(void **state) {
    Random random;
    (void)state;
    random_seed(&random, 3);
    for (int32_t k = 0; k < 4000; k++) {
        Case test = random_case(&random, (ScheduleKind)(k % SCHEDULE_KINDS));
        test.slots = (int32_t)draw(&random, 2, 4);
        if (test.kind == SCHEDULE_INTERLEAVED) test.slots = MOST_ITERATIONS * MOST_CHUNKS;
        Ticks before = run(&test);
        int32_t s = (int32_t)random_below(&random, test.stages);
        Ticks *durations[] = {&test.forward[s], &test.backward[s], &test.weights[s], &test.transfer};
        Ticks *faster = durations[random_below(&random, 4)];
        *faster = (Ticks)random_below(&random, (int64_t)*faster + 1);
        if (run(&test) > before) fail_msg("case %d: %s", k, schedule_kind_name(test.kind));
    }
}

/* Values on one link go one after the other; a sender without a free slot waits for the receiver. */
static void links_and_slots_are_waited_for(void **state) {
    (void)state;
    Case test = {
        .kind = SCHEDULE_GPIPE, .stages = 2, .iterations = 4, .chunks = 1, .slots = 4, .transfer = 50};
    for (int32_t s = 0; s < 2; s++) test.forward[s] = test.backward[s] = 10;
    /* F at 10, values at 60, 110, 160, 210; B after it at 230, and back by 4 x 50 more. */
    assert_true(run(&test) == 10 + 4 * 50 + 10 + 10 + 4 * 50 + 10);
    test.slots = 0; /* they rendezvous: the sender is held up too */
    assert_true(run(&test) >= 10 + 4 * 50 + 10 + 10 + 4 * 50 + 10);
    test.transfer = 0;
    test.slots = 1;
    test.forward[1] = 100;
    Ticks one = run(&test);
    test.slots = 4;
    assert_true(run(&test) == one); /* the receiver's pace decides, wherever the values wait */
}

/* Two stages that come to their transfers in opposite orders wait for ever. */
static void a_deadlock_is_told(void **state) {
    Arena arena = {0};
    AmError error = {0};
    Line lines[2] = {{.now = {0, -1}}, {.now = {0, -1}}};
    const PipelinePiece one[] = {{.channel = 0, .sends = true}, {.channel = 1, .sends = true}};
    const PipelinePiece other[] = {{.channel = 1}, {.channel = 0}};
    const PipelineStage stages[] = {{.pieces = one, .piece_count = 2}, {.pieces = other, .piece_count = 2}};
    const PipelineChannel channels[] = {{0, 1, 0}, {0, 1, 0}};
    const PipelineWorker worker = {compute, arrive, wait, rendezvous, NULL, lines};
    (void)state;
    assert_int_equal(pipeline_clock_run(&arena, stages, 2, channels, 2, &worker, &error),
                     AM_ERROR_INFEASIBLE);
    assert_non_null(strstr(error.text, "do not rendezvous"));
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_stages_take_the_closed_forms),
        cmocka_unit_test(unequal_stages_take_the_recursion),
        cmocka_unit_test(transfers_in_a_row_take_longer),
        cmocka_unit_test(no_schedule_beats_the_bound),
        cmocka_unit_test(a_faster_part_never_lengthens_the_step),
        cmocka_unit_test(links_and_slots_are_waited_for),
        cmocka_unit_test(a_deadlock_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
