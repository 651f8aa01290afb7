/* Channels: messages between ranks in the slots of a ring, each read without a change, with random delays;
 * and a back end that simulates two processes, as MPI: two graphs with one end each, joined by gates. */
/* labels: threads */
#include "tests/support/actor_case.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "executor/comm/channel.h"

enum { RANKS = 4, TURNS = 3, STEPS = 200, MAX_WORDS = 50, PIPES = 2 * RANKS };

typedef struct End {
    Channel *channel;
    int64_t words;
    Random random;
} End;

static int64_t word(const Channel *channel, int64_t turn, int64_t k) {
    return (channel->sender * 10 + channel->receiver) * 1000003 + turn * 1009 + k;
}

static void delay(Random *random) {
    if (random_below(random, 60) == 0) usleep((useconds_t)random_below(random, 100));
    if (random_below(random, 8) == 0) sched_yield();
}

static AmStatus put(void *user, int64_t turn, AmError *error) {
    End *end = user;
    int64_t *slot = channel_put(end->channel, turn);
    delay(&end->random);
    for (int64_t k = 0; k < end->words; k++) slot[k] = word(end->channel, turn, k);
    return channel_put_end(end->channel, turn, error);
}

static AmStatus get(void *user, int64_t turn, AmError *error) {
    End *end = user;
    const int64_t *slot = channel_get(end->channel, turn);
    for (int64_t k = 0; k < end->words; k++)
        if (slot[k] != word(end->channel, turn, k))
            return am_fail(error, AM_ERROR_INTERNAL, "", "turn %lld: word %lld is %lld", (long long)turn,
                           (long long)k, (long long)slot[k]);
    delay(&end->random);
    return channel_get_end(end->channel, turn, error);
}

static int32_t add(ActorGraph *graph, int32_t worker, AmStatus (*act)(void *, int64_t, AmError *), End *end,
                   Channel *channel, int64_t words) {
    AmError error = {0};
    int32_t index;
    *end = (End){.channel = channel, .words = words};
    random_seed(&end->random, (uint64_t)channel->number + 77);
    Actor actor = {.name = "end", .worker = worker, .iterations_per_step = TURNS, .act = act, .user = end};
    assert_int_equal(actors_add(graph, &actor, &index, &error), AM_OK);
    return index;
}

static void test_ranks_of_one_process(void **state) {
    (void)state;
    AmError error = {0};
    CaseWorker workers[RANKS];
    ActorGraph *graph;
    ChannelSet *set;
    End ends[PIPES][2];
    ActorGraphOptions options = {.worker_count = RANKS, .steps = STEPS};
    assert_int_equal(actors_open(&graph, &options, &error), AM_OK);
    assert_int_equal(channels_open(&set, 0, RANKS, NULL, NULL, &error), AM_OK);
    for (int32_t k = 0; k < PIPES; k++) {
        int32_t sender = k % RANKS, receiver = (k + 1 + k / RANKS) % RANKS;
        int64_t words = 1 + k * 7 % MAX_WORDS;
        Channel *channel;
        assert_int_equal(channels_add(set, sender, receiver, words * (int64_t)sizeof(int64_t), 1 + k % 3,
                                      &channel, &error),
                         AM_OK);
        int32_t putter = add(graph, sender, put, &ends[k][0], channel, words);
        int32_t getter = add(graph, receiver, get, &ends[k][1], channel, words);
        assert_int_equal(channels_connect(channel, graph, putter, getter, &error), AM_OK);
    }
    assert_int_equal(actors_ready(graph, &error), AM_OK);
    assert_int_equal(channels_start(set, &error), AM_OK);
    for (int32_t k = 0; k < PIPES; k++) assert_int_equal((intptr_t)ends[k][0].channel->slots % 64, 0);
    AmStatus status = case_run(graph, workers, RANKS, &error);
    if (status != AM_OK) print_error("%s\n", error.text);
    assert_int_equal(status, AM_OK);
    channels_close(set);
    actors_close(graph);
}

/* The wire between two sets: turns that were sent and slots that were read, per channel number. */
typedef struct Wire {
    atomic_llong sent[PIPES], read[PIPES];
    Channel *receiving[PIPES]; /* the receiver's end, with the slots */
    int32_t closed;
} Wire;

static AmStatus wire_put_ready(void *user, int64_t turn, bool *is_ready, AmError *error) {
    (void)error;
    const Channel *channel = user;
    const Wire *wire = channel->set->user;
    *is_ready = turn - atomic_load(&wire->read[channel->number]) < channel->quota;
    return AM_OK;
}

static AmStatus wire_put_end(Channel *channel, int64_t turn, AmError *error) {
    (void)error;
    Wire *wire = channel->set->user;
    const Channel *other = wire->receiving[channel->number];
    memcpy(other->slots + turn % other->quota * other->slot_bytes, channel_put(channel, turn),
           (size_t)channel->bytes);
    atomic_store(&wire->sent[channel->number], turn + 1);
    return AM_OK;
}

static AmStatus wire_get_ready(void *user, int64_t turn, bool *is_ready, AmError *error) {
    (void)error;
    const Channel *channel = user;
    const Wire *wire = channel->set->user;
    *is_ready = atomic_load(&wire->sent[channel->number]) > turn;
    return AM_OK;
}

static AmStatus wire_get_end(Channel *channel, int64_t turn, AmError *error) {
    (void)error;
    Wire *wire = channel->set->user;
    atomic_store(&wire->read[channel->number], turn + 1);
    return AM_OK;
}

static AmStatus wire_start(ChannelSet *set, AmError *error) {
    (void)error;
    Wire *wire = set->user;
    for (int32_t k = 0; k < set->count; k++) {
        Channel *channel = set->channels[k];
        assert_true(channel_is_remote(channel));
        assert_non_null(channel->slots);
        if (channel->receiver == set->first_rank) wire->receiving[channel->number] = channel;
    }
    return AM_OK;
}

static void wire_close(ChannelSet *set) {
    ((Wire *)set->user)->closed++;
}

static const ChannelBackEnd wire_back_end = {.name = "wire",
                                             .start = wire_start,
                                             .close = wire_close,
                                             .put_ready = wire_put_ready,
                                             .put_end = wire_put_end,
                                             .get_ready = wire_get_ready,
                                             .get_end = wire_get_end};

static void test_two_processes(void **state) {
    (void)state;
    enum { CHANNELS = 3, WORDS = 9 };
    AmError error = {0};
    Wire wire = {0};
    ActorGraph *graphs[2];
    ChannelSet *sets[2];
    End ends[2][CHANNELS];
    CaseWorker workers[2];
    for (int32_t p = 0; p < 2; p++) {
        ActorGraphOptions options = {.worker_count = 1, .steps = STEPS};
        assert_int_equal(actors_open(&graphs[p], &options, &error), AM_OK);
        assert_int_equal(channels_open(&sets[p], p, 1, &wire_back_end, &wire, &error), AM_OK);
        for (int32_t k = 0; k < CHANNELS; k++) {
            Channel *channel;
            assert_int_equal(
                channels_add(sets[p], 0, 1, WORDS * (int64_t)sizeof(int64_t), 1 + k, &channel, &error),
                AM_OK);
            assert_int_equal(channel->number, k);
            int32_t actor = add(graphs[p], 0, p == 0 ? put : get, &ends[p][k], channel, WORDS);
            assert_int_equal(
                channels_connect(channel, graphs[p], p == 0 ? actor : -1, p == 1 ? actor : -1, &error),
                AM_OK);
        }
        assert_int_equal(actors_ready(graphs[p], &error), AM_OK);
        assert_int_equal(channels_start(sets[p], &error), AM_OK);
    }
    for (int32_t p = 0; p < 2; p++) {
        workers[p] = (CaseWorker){.graph = graphs[p]};
        assert_int_equal(pthread_create(&workers[p].thread, NULL, case_run_worker, &workers[p]), 0);
    }
    for (int32_t p = 0; p < 2; p++) {
        pthread_join(workers[p].thread, NULL);
        if (workers[p].status != AM_OK) print_error("%s\n", workers[p].error.text);
        assert_int_equal(workers[p].status, AM_OK);
    }
    for (int32_t k = 0; k < CHANNELS; k++) assert_int_equal(wire.read[k], STEPS * TURNS);
    for (int32_t p = 0; p < 2; p++) {
        channels_close(sets[p]);
        actors_close(graphs[p]);
    }
    assert_int_equal(wire.closed, 2);
}

static void test_misuse_is_refused(void **state) {
    (void)state;
    AmError error = {0};
    ChannelSet *set;
    Channel *channel;
    assert_int_equal(channels_open(&set, 2, 2, NULL, NULL, &error), AM_OK);
    assert_int_equal(channels_add(set, 2, 4, 8, 1, &channel, &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "leaves this process"));
    error = (AmError){0};
    assert_int_equal(channels_add(set, 0, 1, 8, 1, &channel, &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, "neither is in this process"));
    error = (AmError){0};
    assert_int_equal(channels_add(set, 2, 3, -1, 1, &channel, &error), AM_ERROR_USAGE);
    error = (AmError){0};
    assert_int_equal(channels_add(set, 2, 3, INT64_MAX / 2, 1 << 20, &channel, &error), AM_OK);
    assert_int_equal(channels_start(set, &error), AM_ERROR_INTERNAL);
    channels_close(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_one_process),
        cmocka_unit_test(test_two_processes),
        cmocka_unit_test(test_misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
