/* Feeding: the batch of every rank at every step, in order and shuffled, for any ranks; positions;
 * and errors in data in one line. */
/* labels: threads */
#define _XOPEN_SOURCE 700
#include "tests/support/feed_case.h"

#include <pthread.h>
#include <time.h>

#include "base/random.h"
#include "executor/actors/actors.h"

enum { EXAMPLES = 22 }; /* five batches of 4, and two that fill none */

/* Example e has tokens 2 e and 2 e + 1 modulo the vocabulary, x = e and e + 1/2; the rate of batch b is b. */
static void save_arrays(const FeedCase *self, const char *name, int32_t extra) {
    int32_t tokens[EXAMPLES][LENGTH], targets[EXAMPLES][LENGTH];
    float x[EXAMPLES][WIDTH], rate[5] = {0, 1, 2, 3, 4};
    for (int32_t e = 0; e < EXAMPLES; e++) {
        for (int32_t t = 0; t < LENGTH; t++) {
            tokens[e][t] = (2 * e + t) % VOCABULARY;
            targets[e][t] = (2 * e + t + 1) % VOCABULARY;
        }
        x[e][0] = (float)e;
        x[e][1] = (float)e + 0.5f;
    }
    const int64_t text[2] = {EXAMPLES, LENGTH}, image[2] = {EXAMPLES, WIDTH}, five[1] = {5};
    ArrayToWrite arrays[16] = {{"tokens", DTYPE_S32, 2, text, tokens},
                               {"targets", DTYPE_S32, 2, text, targets},
                               {"x", DTYPE_F32, 2, image, x},
                               {"rate", DTYPE_F32, 1, five, rate}};
    static const char *const names[] = {"q0", "q1", "q2", "q3", "q4", "q5", "q6"};
    for (int32_t k = 0; k < extra; k++) arrays[4 + k] = (ArrayToWrite){names[k], DTYPE_F32, 1, five, rate};
    assert_int_equal(array_file_write(in_folder(self, name), arrays, 4 + extra, NULL, NULL), AM_OK);
}

/* Step `step` to all ranks, one after the other; as many batches are loaded ahead as there are places. */
static AmStatus take_all(FeedCase *self, Feeds *feeds, int64_t step) {
    for (; self->loaded < step + feeds_depth(feeds); self->loaded++)
        TRY(feeds_load(feeds, self->loaded, &self->error));
    for (int32_t r = 0; r < self->rank_count; r++) TRY(feeds_take(feeds, r, step, &self->error));
    return AM_OK;
}

/* The examples of the batch that the ranks hold, found by x; everything else must belong to them. */
static void read_examples(const FeedCase *self, int32_t parts, int32_t examples[BATCH]) {
    int32_t each = BATCH / parts;
    for (int32_t r = 0; r < self->rank_count; r++) {
        const FedRank *fed = &self->fed[r];
        for (int32_t k = 0; k < each; k++) {
            int32_t e = (int32_t)fed->x[k * WIDTH];
            assert_true(fed->x[k * WIDTH + 1] == (float)e + 0.5f);
            for (int32_t t = 0; t < LENGTH; t++) {
                assert_int_equal(fed->tokens[k * LENGTH + t], (2 * e + t) % VOCABULARY);
                assert_int_equal(fed->targets[k * LENGTH + t], (2 * e + t + 1) % VOCABULARY);
            }
            int32_t place = r % parts * each + k;
            if (r >= parts) assert_int_equal(examples[place], e);
            examples[place] = e;
        }
    }
}

static void in_order_and_around(void **state) {
    FeedCase *self = *state;
    Feeds *feeds;
    save_arrays(self, "a.npz", 0);
    RunOptions options = {.data_path = in_folder(self, "a.npz")};
    make_ranks(self, 2, 2);
    assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
    for (int32_t k = 0; k < PARAMETERS; k++) assert_true(feeds_has_batches(feeds, k));
    assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
    for (int64_t step = 0; step < 12; step++) {
        int32_t examples[BATCH];
        assert_int_equal(take_all(self, feeds, step), AM_OK);
        read_examples(self, 2, examples);
        for (int32_t k = 0; k < BATCH; k++) assert_int_equal(examples[k], step % 5 * BATCH + k);
        for (int32_t r = 0; r < 4; r++) assert_true(self->fed[r].rate == (float)(step % 5));
    }
    feeds_close(feeds);
    assert_int_equal(self->warnings.count, 3);
    assert_non_null(strstr(self->warnings.texts[0], "the last 2 examples of 'tokens' fill no batch"));
}

enum { EPOCHS = 6, STEPS = 5 * EPOCHS };

/* The examples of every step under --shuffle. */
static void run_shuffled(FeedCase *self, int32_t parts, int32_t copies, uint64_t seed, int32_t prefetch,
                         int32_t (*examples)[BATCH]) {
    Feeds *feeds;
    RunOptions options = {
        .data_path = in_folder(self, "a.npz"), .shuffle = true, .seed = seed, .prefetch = prefetch};
    make_ranks(self, parts, copies);
    assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
    assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
    for (int64_t step = 0; step < STEPS; step++) {
        assert_int_equal(take_all(self, feeds, step), AM_OK);
        read_examples(self, parts, examples[step]);
        for (int32_t r = 0; r < self->rank_count; r++) assert_true(self->fed[r].rate == (float)(step % 5));
    }
    feeds_close(feeds);
}

static void shuffled_epochs(void **state) {
    FeedCase *self = *state;
    int32_t examples[STEPS][BATCH], left_out[EXAMPLES] = {0}, first_batches_alike = 0;
    save_arrays(self, "a.npz", 0);
    run_shuffled(self, 1, 1, 3, 0, examples);
    for (int32_t epoch = 0; epoch < EPOCHS; epoch++) {
        int32_t seen[EXAMPLES] = {0};
        for (int32_t k = 0; k < 5 * BATCH; k++) seen[examples[epoch * 5 + k / BATCH][k % BATCH]]++;
        for (int32_t e = 0; e < EXAMPLES; e++) {
            assert_true(seen[e] <= 1);
            left_out[e] += 1 - seen[e];
        }
        for (int32_t other = 0; other < epoch; other++)
            first_batches_alike += memcmp(examples[epoch * 5], examples[other * 5], sizeof *examples) == 0;
    }
    assert_int_equal(first_batches_alike, 0); /* of 15 pairs, one in 175560 at random */
    int32_t most = 0;
    for (int32_t e = 0; e < EXAMPLES; e++) most = left_out[e] > most ? left_out[e] : most;
    assert_true(most < EPOCHS); /* not the same two in every epoch */
}

static void ranks_and_depth_do_not_matter(void **state) {
    FeedCase *self = *state;
    static const int32_t forms[][3] = {{1, 4, 1}, {2, 1, 2}, {2, 2, 7}, {4, 1, 64}};
    int32_t alone[STEPS][BATCH], other[STEPS][BATCH];
    save_arrays(self, "a.npz", 0);
    run_shuffled(self, 1, 1, 9, 0, alone);
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        run_shuffled(self, forms[k][0], forms[k][1], 9, forms[k][2], other);
        assert_memory_equal(alone, other, sizeof alone);
    }
    run_shuffled(self, 1, 1, 10, 0, other);
    assert_memory_not_equal(alone, other, sizeof alone);
}

/* From any step, a second run continues with the first one's data. */
static void positions(void **state) {
    FeedCase *self = *state;
    int32_t whole[STEPS][BATCH];
    save_arrays(self, "a.npz", 0);
    run_shuffled(self, 1, 1, 4, 0, whole);
    for (int64_t done = 0; done < 12; done++) {
        Feeds *feeds;
        RunOptions options = {.data_path = in_folder(self, "a.npz"), .shuffle = true, .seed = 4};
        assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
        FeedPosition position = feeds_position(feeds, done);
        feeds_close(feeds);
        assert_true(position.epoch == done / 5 && position.batch == done % 5 && position.batches == 5);
        options.seed = 77; /* the position's counts */
        assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
        assert_int_equal(feeds_seek(feeds, &position, &self->error), AM_OK);
        FeedPosition again = feeds_position(feeds, 0);
        assert_true(again.seed == 4 && again.epoch == position.epoch && again.batch == position.batch);
        assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
        for (int64_t step = 0; step < 8; step++) {
            int32_t examples[BATCH];
            assert_int_equal(take_all(self, feeds, step), AM_OK);
            read_examples(self, 1, examples);
            assert_memory_equal(examples, whole[done + step], sizeof examples);
        }
        feeds_close(feeds);
    }
}

static void bad_positions(void **state) {
    FeedCase *self = *state;
    static const struct {
        FeedPosition position;
        const char *message;
    } cases[] = {
        {{.shuffled = true, .batches = 6}, "has 5 batches, the checkpoint's data had 6"},
        {{.shuffled = false, .batches = 5},
         "is shuffled, the checkpoint's data was in order (expected no --shuffle)"},
        {{.shuffled = true, .batches = 5, .batch = 5}, "batch 5 of 5 is outside the data"},
        {{.shuffled = true, .batches = 5, .epoch = -1}, "epoch -1"},
        {{.shuffled = true, .batches = 5, .epoch = INT64_MAX}, "is outside the data"},
    };
    Feeds *feeds;
    save_arrays(self, "a.npz", 0);
    RunOptions options = {.data_path = in_folder(self, "a.npz"), .shuffle = true};
    make_ranks(self, 1, 1);
    assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        AmError error = {0};
        assert_int_equal(feeds_seek(feeds, &cases[k].position, &error), AM_ERROR_INPUT);
        if (!strstr(error.text, cases[k].message)) fail_msg("%s", error.text);
        assert_non_null(strstr(error.source, "a.npz"));
    }
    feeds_close(feeds);
}

/* Data other than tokens, with the parameter's own shape: the same at every step. */
static void save_others(const FeedCase *self) {
    static const float x[BATCH * WIDTH], rate[1];
    const int64_t image[2] = {BATCH, WIDTH};
    ArrayToWrite arrays[] = {{"x", DTYPE_F32, 2, image, x}, {"rate", DTYPE_F32, 0, NULL, rate}};
    assert_int_equal(array_file_write(in_folder(self, "b.npz"), arrays, 2, NULL, NULL), AM_OK);
}

/* Tokens 0, 1, 2, ... modulo the vocabulary, but `bad` at place 40 where it is not 0. */
static void save_tokens(const FeedCase *self, const char *name, int32_t count, uint16_t bad) {
    uint16_t tokens[256];
    for (int32_t k = 0; k < count; k++) tokens[k] = (uint16_t)(k % VOCABULARY);
    if (bad) tokens[40] = bad;
    assert_int_equal(file_write(in_folder(self, name), tokens, (size_t)count * 2, NULL), AM_OK);
}

static AmStatus open_tokens(FeedCase *self, Feeds **feeds, const char *option, RunOptions options) {
    static const char *paths[1];
    paths[0] = option;
    options.data_path = in_folder(self, "b.npz");
    options.data_paths = paths;
    options.data_count = 1;
    return open_feeds(self, feeds, &options);
}

/* 64 tokens are 21 windows of 4, three tokens apart: five batches. */
static void windows_of_tokens(void **state) {
    FeedCase *self = *state;
    Feeds *feeds;
    save_others(self);
    save_tokens(self, "a.bin", 64, 0);
    make_ranks(self, 2, 1);
    assert_int_equal(open_tokens(self, &feeds, in_folder(self, "a.bin"), (RunOptions){0}), AM_OK);
    assert_true(feeds_has_batches(feeds, TOKENS) && !feeds_has_batches(feeds, X));
    assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
    for (int64_t step = 0; step < 10; step++) {
        assert_int_equal(take_all(self, feeds, step), AM_OK);
        for (int32_t k = 0; k < BATCH * LENGTH; k++) {
            const FedRank *fed = &self->fed[k / (2 * LENGTH)];
            int32_t token = (int32_t)(step % 5) * BATCH * LENGTH + k;
            assert_int_equal(fed->tokens[k % (2 * LENGTH)], token % VOCABULARY);
            assert_int_equal(fed->targets[k % (2 * LENGTH)], (token + 1) % VOCABULARY);
        }
    }
    feeds_close(feeds);
    assert_non_null(strstr(self->warnings.texts[0], "the last window of 4 tokens fills no batch: "));
}

/* Named otherwise round, the second name gets the next tokens; a name alone gets windows that share their
 * ends. */
static void tokens_by_name(void **state) {
    FeedCase *self = *state;
    Feeds *feeds;
    char option[256];
    save_others(self);
    save_tokens(self, "a.bin", 64, 0);
    make_ranks(self, 1, 1);
    snprintf(option, sizeof option, "targets,tokens=%s", in_folder(self, "a.bin"));
    assert_int_equal(open_tokens(self, &feeds, option, (RunOptions){0}), AM_OK);
    assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
    assert_int_equal(take_all(self, feeds, 0), AM_OK);
    assert_int_equal(self->fed[0].targets[4], 4);
    assert_int_equal(self->fed[0].tokens[4], 5);
    feeds_close(feeds);
    snprintf(option, sizeof option, "tokens=%s", in_folder(self, "a.bin"));
    assert_int_equal(open_tokens(self, &feeds, option, (RunOptions){.state_path = "random"}), AM_OK);
    assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
    assert_int_equal(take_all(self, feeds, 0), AM_OK);
    for (int32_t k = 0; k < BATCH * LENGTH; k++)
        assert_int_equal(self->fed[0].tokens[k], k / LENGTH * (LENGTH - 1) + k % LENGTH);
    feeds_close(feeds);
}

/* In the first batch it is the input's fault; later the run's, which has trained on what came before. */
static void tokens_beyond_the_vocabulary(void **state) {
    FeedCase *self = *state;
    static const int32_t skipped[2] = {3, 0}; /* batches before the run: token 40 is in the fourth */
    save_others(self);
    save_tokens(self, "a.bin", 64, 50);
    make_ranks(self, 1, 1);
    for (int32_t k = 0; k < 2; k++) {
        Feeds *feeds;
        assert_int_equal(open_tokens(self, &feeds, in_folder(self, "a.bin"), (RunOptions){0}), AM_OK);
        FeedPosition position = feeds_position(feeds, skipped[k]);
        assert_int_equal(feeds_seek(feeds, &position, &self->error), AM_OK);
        AmStatus status = feeds_start(feeds, &self->error);
        assert_int_equal(status, k == 0 ? AM_ERROR_INPUT : AM_OK);
        for (int64_t step = 0; step < 3 && k == 1; step++)
            assert_int_equal(take_all(self, feeds, step), AM_OK);
        if (k == 1) assert_int_equal(take_all(self, feeds, 3), AM_ERROR_RUNTIME);
        assert_non_null(strstr(self->error.text, "token 40 (byte 80) is 50, expected 0 to 49"));
        assert_non_null(strstr(k == 0 ? self->error.source : self->error.text, "a.bin"));
        feeds_close(feeds);
    }
}

static void file_that_changes(void **state) {
    FeedCase *self = *state;
    Feeds *feeds;
    save_others(self);
    save_tokens(self, "a.bin", 64, 0);
    make_ranks(self, 1, 1);
    assert_int_equal(open_tokens(self, &feeds, in_folder(self, "a.bin"), (RunOptions){.prefetch = 1}), AM_OK);
    assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
    assert_int_equal(take_all(self, feeds, 0), AM_OK);
    assert_int_equal(truncate(in_folder(self, "a.bin"), 60), 0);
    AmStatus status = AM_OK;
    for (int64_t step = 1; step < 4 && status == AM_OK; step++) status = take_all(self, feeds, step);
    assert_int_equal(status, AM_ERROR_RUNTIME);
    assert_non_null(strstr(self->error.text, "it had 128 bytes and has 60"));
    feeds_close(feeds);
}

enum { THREADED_STEPS = 400 };

/* A rank's actor: takes its batch, checks it, and delays at random. */
typedef struct Receiver {
    FeedCase *self;
    Feeds *feeds;
    int32_t rank, actor;
} Receiver;

static AmStatus take_iteration(void *user, int64_t iteration, AmError *error) {
    const Receiver *receiver = user;
    const FedRank *fed = &receiver->self->fed[receiver->rank];
    TRY(feeds_take(receiver->feeds, receiver->rank, iteration, error));
    int32_t half = receiver->rank % 2;
    for (int32_t k = 0; k < BATCH / 2; k++) {
        int32_t e = (int32_t)fed->x[k * WIDTH];
        int32_t expected = (int32_t)(iteration % 5) * BATCH + half * BATCH / 2 + k;
        if (e != expected || fed->tokens[k * LENGTH] != 2 * e % VOCABULARY ||
            fed->rate != (float)(iteration % 5))
            return am_fail(error, AM_ERROR_INTERNAL, "", "rank %d, step %d: example %d, expected %d",
                           receiver->rank, (int)iteration, e, expected);
    }
    struct timespec moment = {.tv_nsec = 50000};
    if (random_at(1, (uint64_t)receiver->rank, (uint64_t)iteration) % 16 == 0) nanosleep(&moment, NULL);
    return AM_OK;
}

static void *run_receiver(void *user) {
    const Receiver *receiver = ((void **)user)[0];
    AmError error = {0};
    actors_run_worker(((void **)user)[1], receiver->rank, &error);
    return NULL;
}

/* Four ranks in threads of their own and the loader in another, as in a run. */
static void threads(void **state) {
    FeedCase *self = *state;
    save_arrays(self, "a.npz", 0);
    make_ranks(self, 2, 2);
    for (int32_t depth = 1; depth <= 3; depth++) {
        Feeds *feeds;
        ActorGraph *graph;
        Receiver receivers[4];
        pthread_t thread[4];
        void *arguments[4][2];
        RunOptions options = {.data_path = in_folder(self, "a.npz"), .prefetch = depth};
        ActorGraphOptions of_graph = {.worker_count = 4, .steps = THREADED_STEPS};
        assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
        assert_int_equal(feeds_start(feeds, &self->error), AM_OK);
        assert_int_equal(actors_open(&graph, &of_graph, &self->error), AM_OK);
        Actor load = {
            .name = "data", .iterations_per_step = 1, .runs_ahead = true, .act = feeds_load, .user = feeds};
        int32_t loader;
        assert_int_equal(actors_add_worker(graph, "data", &load.worker, &self->error), AM_OK);
        assert_int_equal(actors_add(graph, &load, &loader, &self->error), AM_OK);
        for (int32_t r = 0; r < 4; r++) {
            receivers[r] = (Receiver){.self = self, .feeds = feeds, .rank = r};
            Actor receiver = {.name = "rank",
                              .worker = r,
                              .iterations_per_step = 1,
                              .act = take_iteration,
                              .user = &receivers[r]};
            assert_int_equal(actors_add(graph, &receiver, &receivers[r].actor, &self->error), AM_OK);
            assert_int_equal(actors_connect(graph, loader, receivers[r].actor, depth, 0, NULL, &self->error),
                             AM_OK);
        }
        assert_int_equal(actors_ready(graph, &self->error), AM_OK);
        assert_int_equal(actors_start(graph, &self->error), AM_OK);
        for (int32_t r = 0; r < 4; r++) {
            arguments[r][0] = &receivers[r];
            arguments[r][1] = graph;
            assert_int_equal(pthread_create(&thread[r], NULL, run_receiver, arguments[r]), 0);
        }
        for (int32_t r = 0; r < 4; r++) pthread_join(thread[r], NULL);
        if (actors_finish(graph, &self->error) != AM_OK) fail_msg("%s", self->error.text);
        actors_close(graph);
        feeds_close(feeds);
    }
}

static void refused(FeedCase *self, const char *option, AmStatus expected, const char *message) {
    Feeds *feeds;
    assert_int_equal(open_tokens(self, &feeds, option, (RunOptions){0}), expected);
    if (!strstr(self->error.text, message)) fail_msg("'%s' is not '%s'", self->error.text, message);
}

static void bad_data(void **state) {
    FeedCase *self = *state;
    char option[256];
    save_others(self);
    make_ranks(self, 1, 1);
    refused(self, in_folder(self, "a.bin"), AM_ERROR_INPUT, "cannot be opened");
    save_tokens(self, "a.bin", 12, 0);
    refused(self, in_folder(self, "a.bin"), AM_ERROR_INPUT,
            "holds 12 tokens, too few for one batch: 4 windows of 4 take 13");
    save_tokens(self, "a.bin", 0, 0);
    refused(self, in_folder(self, "a.bin"), AM_ERROR_INPUT, "is empty");
    save_tokens(self, "a.bin", 64, 0);
    snprintf(option, sizeof option, "tokens,z=%s", in_folder(self, "a.bin"));
    refused(self, option, AM_ERROR_USAGE,
            "no parameter \"tokens,z\" (expected NAME=FILE or INPUTS,TARGETS=FILE)");
    snprintf(option, sizeof option, "x=%s", in_folder(self, "a.bin"));
    refused(self, option, AM_ERROR_INPUT, "holds tokens, which 'x' cannot take");
    snprintf(option, sizeof option, "tokens=%s", in_folder(self, "a.bin"));
    refused(self, option, AM_ERROR_INPUT,
            "no array named \"targets\" (data, entry parameter 1); expected in --data FILE");
    save_arrays(self, "a.npz", 0);
    refused(self, in_folder(self, "a.npz"), AM_ERROR_INPUT, "feeds 'x', and so does");
    snprintf(option, sizeof option, "tokens=%s", in_folder(self, "a.npz"));
    refused(self, option, AM_ERROR_INPUT, "holds 4 arrays: expected one for the parameter named");
    snprintf(option, sizeof option, "tokens,targets=%s", in_folder(self, "a.npz"));
    refused(self, option, AM_ERROR_INPUT, "expected tokens for two parameters");
}

static void extra_arrays_are_named(void **state) {
    FeedCase *self = *state;
    Feeds *feeds;
    save_arrays(self, "a.npz", 7);
    RunOptions options = {.data_path = in_folder(self, "a.npz")};
    make_ranks(self, 1, 1);
    assert_int_equal(open_feeds(self, &feeds, &options), AM_OK);
    feeds_close(feeds);
    assert_non_null(strstr(self->warnings.texts[0],
                           "no parameter of the module is named 'q0', 'q1', 'q2', 'q3', 'q4' and 2 more"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(in_order_and_around, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(shuffled_epochs, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(ranks_and_depth_do_not_matter, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(positions, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(bad_positions, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(windows_of_tokens, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(tokens_by_name, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(tokens_beyond_the_vocabulary, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(file_that_changes, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(threads, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(bad_data, feed_setup, feed_teardown),
        cmocka_unit_test_setup_teardown(extra_arrays_are_named, feed_setup, feed_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
