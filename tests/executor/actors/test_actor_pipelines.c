/* Pipeline schedules come out of quotas and priorities: 1F1B, GPipe, interleaved and
 * zero-bubble, by the order of turns on every worker and by the time of a step. */
/* labels: threads */
#include "tests/support/actor_clock.h"

#include <stdio.h>

enum { MAX_STAGES = 8, MAX_PARTS = 32, LOG = 4096, STEPS = 2 };

typedef struct Pipeline Pipeline;

/* An actor of a stage: `kind` F, B, W (gradients of weights), U (update), ... */
typedef struct Part {
    Pipeline *pipeline;
    char kind;
    int32_t worker, duration, index;
} Part;

struct Pipeline {
    ActorGraph *graph;
    VirtualClock clock;
    Part parts[MAX_PARTS];
    int32_t part_count, stages, iterations;
    char logs[MAX_STAGES][LOG];
    int32_t in_flight[MAX_STAGES], most_in_flight[MAX_STAGES];
};

static AmStatus act(void *user, int64_t iteration, AmError *error) {
    (void)error;
    Part *part = user;
    Pipeline *pipeline = part->pipeline;
    char *log = pipeline->logs[part->worker];
    size_t used = strlen(log);
    int32_t *in_flight = &pipeline->in_flight[part->worker];
    if (part->kind == 'U' || part->kind == '|') snprintf(log + used, LOG - used, "%c ", part->kind);
    else snprintf(log + used, LOG - used, "%c%d ", part->kind, (int)(iteration % pipeline->iterations));
    if (part->kind == 'F' && ++*in_flight > pipeline->most_in_flight[part->worker])
        pipeline->most_in_flight[part->worker] = *in_flight;
    clock_pass(&pipeline->clock, part->worker, part->duration);
    if (part->kind == 'B') --*in_flight;
    return AM_OK;
}

static void begin(Pipeline *pipeline, int32_t stages, int32_t iterations) {
    AmError error = {0};
    ActorGraphOptions options = {.worker_count = stages, .steps = STEPS};
    memset(pipeline, 0, sizeof *pipeline);
    pipeline->stages = stages;
    pipeline->iterations = iterations;
    clock_begin(&pipeline->clock);
    assert_int_equal(actors_open(&pipeline->graph, &options, &error), AM_OK);
}

static int32_t add(Pipeline *pipeline, char kind, int32_t worker, int32_t priority, int32_t duration,
                   int32_t iterations) {
    AmError error = {0};
    Part *part = &pipeline->parts[pipeline->part_count++];
    char name[16];
    snprintf(name, sizeof name, "%c%d", kind, worker);
    *part = (Part){.pipeline = pipeline, .kind = kind, .worker = worker, .duration = duration};
    Actor actor = {.name = name,
                   .worker = worker,
                   .priority = priority,
                   .iterations_per_step = iterations,
                   .act = act,
                   .user = part};
    assert_int_equal(actors_add(pipeline->graph, &actor, &part->index, &error), AM_OK);
    return part->index;
}

static void connect(Pipeline *pipeline, int32_t from, int32_t to, int32_t quota, int32_t initial) {
    AmError error = {0};
    assert_int_equal(actors_connect(pipeline->graph, from, to, quota, initial, NULL, &error), AM_OK);
}

static int64_t run(Pipeline *pipeline) {
    AmError error = {0};
    assert_int_equal(actors_ready(pipeline->graph, &error), AM_OK);
    int64_t time = clock_run(&pipeline->clock, pipeline->graph);
    actors_close(pipeline->graph);
    return time;
}

/* Forward, backward and update of S stages; quota(s) registers between forward and backward. */
static void build_plain(Pipeline *pipeline, int32_t stages, int32_t iterations, bool flushes) {
    int32_t forward[MAX_STAGES], backward[MAX_STAGES];
    begin(pipeline, stages, iterations);
    for (int32_t s = 0; s < stages; s++) {
        forward[s] = add(pipeline, 'F', s, 1, 1, iterations);
        backward[s] = add(pipeline, 'B', s, 0, 1, iterations);
        int32_t update = add(pipeline, 'U', s, 0, 0, 1);
        connect(pipeline, forward[s], backward[s], flushes ? iterations : stages - s, 0);
        connect(pipeline, backward[s], update, iterations, 0);
        connect(pipeline, update, forward[s], 1, 1);
        if (s > 0) connect(pipeline, forward[s - 1], forward[s], 2, 0);
        if (s > 0) connect(pipeline, backward[s], backward[s - 1], 2, 0);
        if (!flushes) continue;
        int32_t flush = add(pipeline, '|', s, 0, 0, 1);
        connect(pipeline, forward[s], flush, iterations, 0);
        connect(pipeline, flush, backward[s], 1, 0);
    }
}

/* One step of 1F1B on a stage: forwards until the registers are full but one, then one of each, then the
 * rest. */
static void expect_1f1b(char *text, int32_t iterations, int32_t quota) {
    int32_t ahead = (quota < iterations ? quota : iterations) - 1, forward = 0, backward = 0;
    while (forward < ahead) text += sprintf(text, "F%d ", forward++);
    while (backward < iterations) {
        if (forward < iterations) text += sprintf(text, "F%d ", forward++);
        text += sprintf(text, "B%d ", backward++);
    }
    sprintf(text, "U ");
}

static void test_1f1b(void **state) {
    (void)state;
    static const int32_t cases[][2] = {{1, 3}, {2, 1}, {2, 4}, {3, 8}, {4, 4}, {4, 6}, {5, 3}, {8, 16}};
    static Pipeline pipeline;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int32_t stages = cases[k][0], iterations = cases[k][1];
        build_plain(&pipeline, stages, iterations, false);
        int64_t time = run(&pipeline);
        assert_true(time <= STEPS * 2 * (iterations + stages - 1));
        for (int32_t s = 0; s < stages; s++) {
            char step[LOG], all[LOG] = "";
            expect_1f1b(step, iterations, stages - s);
            for (int t = 0; t < STEPS; t++) strcat(all, step);
            assert_string_equal(pipeline.logs[s], all);
            assert_int_equal(pipeline.most_in_flight[s], iterations < stages - s ? iterations : stages - s);
        }
    }
}

/* M registers, and a flush that waits for all of them: all forwards, then all backwards. */
static void test_gpipe(void **state) {
    (void)state;
    static Pipeline pipeline;
    const int32_t stages = 4, iterations = 5;
    build_plain(&pipeline, stages, iterations, true);
    int64_t time = run(&pipeline);
    assert_int_equal(time, STEPS * 2 * (iterations + stages - 1));
    for (int32_t s = 0; s < stages; s++) {
        const char *step = "F0 F1 F2 F3 F4 | B0 B1 B2 B3 B4 U ";
        char all[LOG] = "";
        for (int t = 0; t < STEPS; t++) strcat(all, step);
        assert_string_equal(pipeline.logs[s], all);
        assert_int_equal(pipeline.most_in_flight[s], iterations);
    }
}

/* Backward in two: B computes the gradient for which the previous stage waits, W those of the
 * weights, which fill the gaps. Memory is that of 1F1B if a register is kept until W. */
static int64_t run_zero_bubble(Pipeline *pipeline, int32_t stages, int32_t iterations, int32_t more) {
    int32_t forward[MAX_STAGES], backward[MAX_STAGES];
    begin(pipeline, stages, iterations);
    for (int32_t s = 0; s < stages; s++) {
        forward[s] = add(pipeline, 'F', s, 1, 1, iterations);
        backward[s] = add(pipeline, 'B', s, 0, 1, iterations);
        int32_t weights = add(pipeline, 'W', s, 2, 1, iterations);
        int32_t update = add(pipeline, 'U', s, 0, 0, 1);
        connect(pipeline, forward[s], backward[s], stages - s + more, 0);
        connect(pipeline, forward[s], weights, stages + more, 0);
        connect(pipeline, backward[s], weights, stages + more, 0);
        connect(pipeline, weights, update, iterations, 0);
        connect(pipeline, update, forward[s], 1, 1);
        if (s > 0) connect(pipeline, forward[s - 1], forward[s], 2, 0);
        if (s > 0) connect(pipeline, backward[s], backward[s - 1], 2, 0);
    }
    return run(pipeline);
}

/* The bubble of 1F1B is (S - 1) (F + B + W), that of zero-bubble H1 (S - 1) (F + B - W). */
static void test_zero_bubble(void **state) {
    (void)state;
    static Pipeline pipeline;
    const int32_t iterations = 8;
    for (int32_t stages = 2; stages < 6; stages++) {
        int32_t more = stages / 2;
        assert_true(run_zero_bubble(&pipeline, stages, iterations, more) <=
                    STEPS * (3 * iterations + stages - 1));
        for (int32_t s = 0; s < stages; s++) assert_true(pipeline.most_in_flight[s] <= stages - s + more);
    }
}

/* Stages in v chunks each: chunk c of worker w is stage c * S + w of the pipeline. Later chunks go first. */
static int64_t run_interleaved(Pipeline *pipeline, int32_t stages, int32_t chunks, int32_t iterations) {
    int32_t forward[MAX_PARTS], backward[MAX_PARTS], count = stages * chunks;
    begin(pipeline, stages, iterations);
    for (int32_t p = 0; p < count; p++) {
        int32_t worker = p % stages, chunk = p / stages;
        forward[p] = add(pipeline, (char)('a' + chunk), worker, 2 * chunks - chunk, 1, iterations);
        backward[p] = add(pipeline, (char)('A' + chunk), worker, chunks - chunk, 1, iterations);
        int32_t update = add(pipeline, 'U', worker, 0, 0, 1);
        connect(pipeline, forward[p], backward[p], count - p + 2, 0);
        connect(pipeline, backward[p], update, iterations, 0);
        connect(pipeline, update, forward[p], 1, 1);
        if (p > 0) connect(pipeline, forward[p - 1], forward[p], stages, 0);
        if (p > 0) connect(pipeline, backward[p], backward[p - 1], stages, 0);
    }
    return run(pipeline);
}

/* In v chunks the bubble is v times smaller: a step takes v (F + B) M + (S - 1) (F + B) where it fits. */
static void test_interleaved(void **state) {
    (void)state;
    static Pipeline pipeline;
    const int32_t chunks = 2, iterations = 8;
    assert_int_equal(run_interleaved(&pipeline, 2, chunks, iterations),
                     STEPS * 2 * (chunks * iterations + 1));
    for (int32_t stages = 3; stages < 5; stages++)
        assert_true(run_interleaved(&pipeline, stages, chunks, iterations) <
                    STEPS * 2 * chunks * (iterations + stages - 1) - 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1f1b),
        cmocka_unit_test(test_gpipe),
        cmocka_unit_test(test_zero_bubble),
        cmocka_unit_test(test_interleaved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
