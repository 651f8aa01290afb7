/* Followers fire in their leader's order: acts that synchronize in barriers (all devices, or those that
 * follow, as in a mesh of two axes) under random delays; leaders that wait for their followers'
 * inputs; quotas that are raised for both. */
/* labels: threads */
#include "tests/support/actor_case.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { DEVICES = 3, GROUPS = 4, STAGES = 2 };

/* A stage's devices synchronize inside every act, as collectives do: all of them, or all but the first. */
typedef struct Stage {
    pthread_barrier_t barriers[2];
    atomic_int inside[GROUPS];
    atomic_bool is_mixed;
} Stage;

typedef struct Member {
    Stage *stage;
    int32_t group, device;
    Random random;
} Member;

static AmStatus synchronize(void *user, int64_t iteration, AmError *error) {
    (void)iteration, (void)error;
    Member *member = user;
    Stage *stage = member->stage;
    if (random_below(&member->random, 20) == 0) usleep((useconds_t)random_below(&member->random, 200));
    bool without_first = member->group >= 2;
    if (without_first && member->device == 0) return AM_OK;
    pthread_barrier_t *barrier = &stage->barriers[without_first];
    atomic_fetch_add(&stage->inside[member->group], 1);
    pthread_barrier_wait(barrier);
    if (stage->inside[member->group] != DEVICES - without_first) stage->is_mixed = true;
    pthread_barrier_wait(barrier);
    atomic_fetch_sub(&stage->inside[member->group], 1);
    pthread_barrier_wait(barrier);
    return AM_OK;
}

/* Two stages of three devices: forward, backward, and two free groups with a random choice on a
 * single device. Every device of the second stage receives from another one of the first. */
static void test_followers_synchronize(void **state) {
    (void)state;
    static const char *const names[GROUPS] = {"forward", "backward", "left", "right"};
    AmError error = {0};
    CaseWorker workers[STAGES * DEVICES];
    Stage stages[STAGES] = {0};
    Member members[STAGES][GROUPS][DEVICES];
    int32_t actors[STAGES][GROUPS][DEVICES];
    ActorGraph *graph = case_open(STAGES * DEVICES, 30);
    for (int s = 0; s < STAGES; s++) {
        for (int k = 0; k < 2; k++) pthread_barrier_init(&stages[s].barriers[k], NULL, DEVICES - k);
        for (int g = 0; g < GROUPS; g++)
            for (int d = 0; d < DEVICES; d++) {
                members[s][g][d] = (Member){.stage = &stages[s], .group = g, .device = d};
                random_seed(&members[s][g][d].random, (uint64_t)(s * 100 + g * 10 + d));
                actors[s][g][d] = case_add(graph, names[g], s * DEVICES + d, g == 3 ? 1 : 4, synchronize,
                                           &members[s][g][d]);
                if (d > 0)
                    assert_int_equal(actors_follow(graph, actors[s][g][d], actors[s][g][0], &error), AM_OK);
            }
    }
    for (int d = 0; d < DEVICES; d++) {
        int other = (d + 1) % DEVICES;
        case_connect(graph, actors[0][0][d], actors[1][0][other], 2, 0);
        case_connect(graph, actors[1][0][d], actors[1][1][d], 1, 0);
        case_connect(graph, actors[1][1][other], actors[0][1][d], 2, 0);
        case_connect(graph, actors[0][0][d], actors[0][1][d], 2, 0);
    }
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    AmStatus status = case_run(graph, workers, STAGES * DEVICES, &error);
    if (status != AM_OK) print_error("%s\n", error.text);
    assert_int_equal(status, AM_OK);
    for (int s = 0; s < STAGES; s++) {
        assert_false(stages[s].is_mixed);
        for (int k = 0; k < 2; k++) pthread_barrier_destroy(&stages[s].barriers[k]);
    }
    actors_close(graph);
}

static AmStatus nothing(void *user, int64_t iteration, AmError *error) {
    (void)user, (void)iteration, (void)error;
    return AM_OK;
}

/* The follower's "a" needs a result of its "b"; its leader, which needs nothing, would begin with
 * "a". */
static void test_leaders_wait_too(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[2];
    ActorGraph *graph = case_open(2, 50);
    int32_t a = case_add(graph, "a", 0, 1, nothing, NULL), b = case_add(graph, "b", 0, 1, nothing, NULL);
    int32_t a1 = case_add(graph, "a", 1, 1, nothing, NULL), b1 = case_add(graph, "b", 1, 1, nothing, NULL);
    int32_t between = case_add(graph, "between", 1, 1, nothing, NULL);
    assert_int_equal(actors_follow(graph, a1, a, &error), AM_OK);
    assert_int_equal(actors_follow(graph, b1, b, &error), AM_OK);
    case_connect(graph, b1, between, 1, 0);
    case_connect(graph, between, a1, 1, 0);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    AmStatus status = case_run(graph, workers, 2, &error);
    if (status != AM_OK) print_error("%s\n", error.text);
    assert_int_equal(status, AM_OK);
    actors_close(graph);
}

/* The leader's two firings of "a" come before "b", which waits for a flush: it needs two registers,
 * and the follower too, which has no flush but must fire in that order. */
static void test_quotas_of_followers(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[2];
    ActorGraph *graph = case_open(2, 50);
    int32_t a = case_add(graph, "a", 0, 2, nothing, NULL), b = case_add(graph, "b", 0, 2, nothing, NULL);
    int32_t a1 = case_add(graph, "a", 1, 2, nothing, NULL), b1 = case_add(graph, "b", 1, 2, nothing, NULL);
    int32_t flush = case_add(graph, "flush", 0, 1, nothing, NULL);
    assert_int_equal(actors_follow(graph, a1, a, &error), AM_OK);
    assert_int_equal(actors_follow(graph, b1, b, &error), AM_OK);
    int32_t edge = case_connect(graph, a, b, 1, 0), edge1 = case_connect(graph, a1, b1, 1, 0);
    case_connect(graph, a, flush, 2, 0);
    case_connect(graph, flush, b, 1, 0);
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    assert_int_equal(actors_quota(graph, edge), 2);
    assert_int_equal(actors_quota(graph, edge1), 2);
    AmStatus status = case_run(graph, workers, 2, &error);
    if (status != AM_OK) print_error("%s\n", error.text);
    assert_int_equal(status, AM_OK);
    actors_close(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_followers_synchronize),
        cmocka_unit_test(test_leaders_wait_too),
        cmocka_unit_test(test_quotas_of_followers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
