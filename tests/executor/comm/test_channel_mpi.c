/* Channels by MPI: messages of all sizes around a ring of 2 to 8 ranks, one or two to a
 * process, in both directions, each read as it was written; a second set after the first. */
#include "tests/support/mpi_case.h"

#include "executor/comm/comm_mpi.h"
#include "tests/support/actor_case.h"

enum { MOST_HERE = 2, PIPES = 4, TURNS = 3, STEPS = 30 };

/* One end of a channel. */
typedef struct Node {
    Channel *channel;
    bool gives;
} Node;

static const int64_t pipe_words[PIPES] = {0, 1, 1000, 100001};

static int64_t word(const Channel *channel, int64_t turn, int64_t k) {
    return (channel->sender * 10 + channel->receiver) * 1000003 + channel->number * 31 + turn * 1009 + k;
}

static AmStatus act(void *user, int64_t turn, AmError *error) {
    Node *node = user;
    Channel *channel = node->channel;
    int64_t words = channel->bytes / (int64_t)sizeof(int64_t);
    if (node->gives) {
        int64_t *slot = channel_put(channel, turn);
        for (int64_t k = 0; k < words; k++) slot[k] = word(channel, turn, k);
        return channel_put_end(channel, turn, error);
    }
    const int64_t *slot = channel_get(channel, turn);
    for (int64_t k = 0; k < words; k++)
        if (slot[k] != word(channel, turn, k))
            return am_fail(error, AM_ERROR_INTERNAL, "",
                           "rank %d: turn %lld of channel %d from %d: word %lld", channel->receiver,
                           (long long)turn, channel->number, channel->sender, (long long)k);
    return channel_get_end(channel, turn, error);
}

typedef struct Ring {
    ActorGraph *graph;
    ChannelSet *set;
    Node nodes[MOST_HERE * 8 * PIPES];
    int32_t node_count;
} Ring;

/* The actor of one end here, or -1. */
static AmStatus add_end(Ring *ring, const Comm *comms, int32_t here, Channel *channel, int32_t rank,
                        bool gives, int32_t *index, AmError *error) {
    int32_t worker = rank - comms[0].rank;
    *index = -1;
    if (worker < 0 || worker >= here) return AM_OK;
    Node *node = &ring->nodes[ring->node_count++];
    *node = (Node){.channel = channel, .gives = gives};
    Actor actor = {.name = gives ? "give" : "take",
                   .worker = worker,
                   .priority = channel->number,
                   .iterations_per_step = TURNS,
                   .act = act,
                   .user = node};
    return actors_add(ring->graph, &actor, index, error);
}

/* Every rank gives its neighbours on both sides, PIPES channels to each. */
static AmStatus build(Ring *ring, Comm *comms, int32_t here, AmError *error) {
    int32_t size = comms[0].size, first = comms[0].rank;
    for (int32_t k = 0; k < 2 * size * PIPES; k++) {
        int32_t sender = k / PIPES % size, receiver = (sender + (k / PIPES < size ? 1 : size - 1)) % size;
        bool is_here =
            (sender >= first && sender < first + here) || (receiver >= first && receiver < first + here);
        Channel *channel;
        int32_t putter, getter;
        if (!is_here) continue;
        TRY(channels_add(ring->set, sender, receiver, pipe_words[k % PIPES] * (int64_t)sizeof(int64_t),
                         1 + k % 3, &channel, error));
        TRY(add_end(ring, comms, here, channel, sender, true, &putter, error));
        TRY(add_end(ring, comms, here, channel, receiver, false, &getter, error));
        TRY(channels_connect(channel, ring->graph, putter, getter, error));
    }
    TRY(actors_ready(ring->graph, error));
    return channels_start(ring->set, error);
}

static void release(void *user) {
    Comm *comm = user;
    comm->back_end->abort(comm);
}

static AmStatus run_ring(Comm *comms, int32_t here, AmError *error) {
    Ring ring = {0};
    CaseWorker workers[MOST_HERE];
    ActorGraphOptions options = {
        .worker_count = here, .steps = STEPS, .outside_seconds = 60, .on_failure = release, .user = comms};
    TRY(actors_open(&ring.graph, &options, error));
    TRY(channels_open(&ring.set, comms[0].rank, here, &channel_mpi, comms[0].shared, error));
    AmStatus status = build(&ring, comms, here, error);
    if (status == AM_OK) status = case_run(ring.graph, workers, here, error);
    channels_close(ring.set);
    actors_close(ring.graph);
    return status;
}

static AmStatus be_process(ProcessGroup *processes, AmError *error) {
    KernelDevice *devices[MOST_HERE] = {&kernel_device_cpu, &kernel_device_cpu};
    Comm comms[MOST_HERE];
    for (int32_t here = 1; here <= MOST_HERE && here * processes->count <= 8; here++) {
        TRY(comm_mpi.open(comms, processes->process * here, here, processes->count * here, devices, processes,
                          error));
        for (int k = 0; k < 2; k++) TRY(run_ring(comms, here, error));
        comm_mpi.close(comms);
    }
    return AM_OK;
}

static void test_ring(void **state) {
    (void)state;
    mpi_case_run(2);
    mpi_case_run(3);
    mpi_case_run(8);
}

int main(void) {
    if (bootstrap_mpi_is_present()) return mpi_case_process(be_process);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ring)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
