/* Benchmark of the learning step.
 *
 *   bench_dqn [--device cpu|cuda] [--update graph|own|block]
 *
 * For a few shapes: full updates per second (draw a batch, two forward passes,
 * backward, Adam, new priorities), the time to store one transition, and the
 * time of one greedy choice; on the CPU also how much of an update is drawing
 * and setting priorities, and how much is Adam.
 * The limit: 80 microseconds for an update of the first case, a 64-128-16 network
 * with a batch of 32, on one core; the last line says whether it is kept. Times
 * are the least of many short rounds. An update
 * on a card is a graph with cuBLASLt's products, a graph with our own, or the work
 * of one block of threads (learner.h); the last column has the form that ran. Without
 * --update the first case is measured in all three.
 */
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "base/system/clock.h"
#include "dqn/agent_state.h"
#include "dqn/replay.h"

#define LIMIT_SECONDS    80e-6
#define ROUND_SECONDS    0.001 /* short, so that some rounds are not interrupted */
#define SECONDS          0.5   /* of all rounds */
#define MOST_OBSERVATION 512
#define UPDATES_PER_CALL 10
#define MOST_CALLS       20000 /* a device may be slower than what asks it */
#define CALLS_PER_LOOK   4     /* at the clock */

typedef struct Case {
    const char *name;
    int32_t observation_size, action_count, batch, hidden_count;
    int32_t hidden[2];
    int32_t channels, length; /* with two convolutions if channels > 0 */
    bool noisy;
    int32_t atoms;
} Case;

static const Case cases[] = {
    {"64-128-16 batch 32", 64, 16, 32, 1, {128}, 0, 0, false, 0},
    {"64-128-16 batch 64", 64, 16, 64, 1, {128}, 0, 0, false, 0},
    {"16-64-64-4 batch 64", 16, 4, 64, 2, {64, 64}, 0, 0, false, 0},
    {"128-256-256-128 batch 64", 128, 128, 64, 2, {256, 256}, 0, 0, false, 0},
    {"3x128 conv-128-128 batch 64", 448, 128, 64, 1, {128}, 3, 128, false, 0},
    {"64-128-16 batch 32 noisy", 64, 16, 32, 1, {128}, 0, 0, true, 0},
    {"64-128-16 batch 32 51 atoms", 64, 16, 32, 1, {128}, 0, 0, false, 51},
};

/* The agent and the buffers of one case. */
typedef struct Bench {
    Agent *agent;
    AgentSettings settings;
    AgentStep step;
    float observation[MOST_OBSERVATION];
    Arena arena;
    Replay replay;
    Adam adam;
    float *parameters, *gradients, *errors, *weights;
    int32_t *indices;
    int64_t draws;
} Bench;

static int32_t updates_per_call(const Bench *bench) {
    return bench->settings.device == DQN_CPU ? 1 : UPDATES_PER_CALL;
}

static void update(Bench *bench) {
    agent_learn(bench->agent, updates_per_call(bench));
}

static void observe(Bench *bench) {
    agent_observe(bench->agent, &bench->step, NULL);
}

static void act(Bench *bench) {
    agent_act(bench->agent, bench->observation, NULL, true);
}

static void draw_and_set_priorities(Bench *bench) {
    int32_t batch = bench->settings.batch;
    replay_sample(&bench->replay, 1, bench->draws++, batch, bench->indices, bench->weights);
    replay_update(&bench->replay, bench->indices, bench->errors, batch);
}

static void adam(Bench *bench) {
    adam_update(&bench->adam, bench->parameters, bench->gradients);
}

/* Seconds of one call in one round; updates asked of a device are waited for now and then. */
static double time_of_round(void (*call)(Bench *), Bench *bench) {
    int64_t calls = 0;
    agent_loss(bench->agent);
    double begin = clock_seconds(), now = begin;
    while (now - begin < ROUND_SECONDS && calls < MOST_CALLS) {
        for (int32_t i = 0; i < CALLS_PER_LOOK; i++, calls++) call(bench);
        agent_loss(bench->agent);
        now = clock_seconds();
    }
    agent_loss(bench->agent);
    return (clock_seconds() - begin) / (double)calls;
}

static double time_of(void (*call)(Bench *), Bench *bench) {
    double begin = clock_seconds(), least = time_of_round(call, bench);
    while (clock_seconds() - begin < SECONDS) {
        double seconds = time_of_round(call, bench);
        if (seconds < least) least = seconds;
    }
    return least;
}

static AmStatus create(Bench *bench, const Case *c, const AgentSettings *chosen, AmError *error) {
    AgentSettings *settings = &bench->settings;
    *settings = *chosen;
    settings->batch = c->batch;
    settings->noisy = c->noisy;
    settings->atoms = c->atoms;
    settings->hidden_count = c->hidden_count;
    for (int32_t k = 0; k < c->hidden_count; k++) settings->hidden[k] = c->hidden[k];
    if (c->channels > 0) {
        settings->channels = c->channels;
        settings->length = c->length;
        settings->convolution_count = 2;
        settings->convolutions[0] = (NetworkConvolution){16, 8, 2};
        settings->convolutions[1] = (NetworkConvolution){32, 4, 2};
    }
    TRY(agent_create(&bench->agent, settings, c->observation_size, c->action_count, error));
    int64_t parameters = agent_parameter_count(bench->agent);
    const ReplayPriorities priorities = {settings->alpha, settings->beta, settings->priority_epsilon};
    TRY(replay_create(&bench->replay, &bench->arena, c->observation_size, c->action_count,
                      settings->replay_capacity, priorities, error));
    TRY(adam_create(&bench->adam, &bench->arena, parameters, settings->learning_rate, error));
    bench->parameters = ARENA_ARRAY(&bench->arena, float, parameters);
    bench->gradients = ARENA_ARRAY(&bench->arena, float, parameters);
    bench->errors = ARENA_ARRAY(&bench->arena, float, c->batch);
    bench->weights = ARENA_ARRAY(&bench->arena, float, c->batch);
    bench->indices = ARENA_ARRAY(&bench->arena, int32_t, c->batch);
    return bench->arena.failed ? am_fail_memory(error, 4 * parameters) : AM_OK;
}

static AmStatus fill(Bench *bench, const Case *c, AmError *error) {
    Random random;
    random_seed(&random, 7);
    for (int32_t i = 0; i < bench->settings.replay_capacity; i++) {
        for (int32_t k = 0; k < c->observation_size; k++)
            bench->observation[k] = (float)random_normal(&random);
        bench->step = (AgentStep){.observation = bench->observation,
                                  .action = (int32_t)random_below(&random, c->action_count),
                                  .reward = random_normal(&random),
                                  .next_observation = bench->observation,
                                  .terminal = i % 10 == 9};
        TRY(agent_observe(bench->agent, &bench->step, error));
        replay_add(&bench->replay, &(Transition){.observation = bench->observation,
                                                 .next_observation = bench->observation,
                                                 .reward = 1,
                                                 .discount = 0.5});
    }
    for (int64_t k = 0; k < bench->adam.count; k++) bench->gradients[k] = 1e-3f;
    return AM_OK;
}

/* *seconds: of an update. */
static AmStatus measure(const Case *c, const AgentSettings *chosen, double *seconds, AmError *error) {
    static Bench bench;
    bench = (Bench){0};
    AmStatus status = create(&bench, c, chosen, error);
    if (status == AM_OK) status = fill(&bench, c, error);
    if (status == AM_OK) {
        *seconds = time_of(update, &bench) / updates_per_call(&bench);
        printf("%-28s %10.0f %10.1f %10.2f %10.1f", c->name, 1 / *seconds, 1e6 * *seconds,
               1e6 * time_of(observe, &bench), 1e6 * time_of(act, &bench));
        if (chosen->device == DQN_CPU)
            printf(" %10.1f %10.1f", 1e6 * time_of(draw_and_set_priorities, &bench),
                   1e6 * time_of(adam, &bench));
        printf("  %s\n", bench.agent->learner->description);
        fflush(stdout);
        status = agent_check(bench.agent, error);
    }
    agent_free(bench.agent);
    arena_free(&bench.arena);
    return status;
}

static const char *const UPDATES[] = {
    [DQN_UPDATE_GRAPH] = "graph", [DQN_UPDATE_OWN_GRAPH] = "own", [DQN_UPDATE_BLOCK] = "block"};

/* *all: the form of updates was not chosen, and there are several. */
static bool read_arguments(AgentSettings *chosen, bool *all, int count, char **arguments) {
    *chosen = agent_default_settings();
    *all = true;
    for (int k = 1; k + 1 < count; k += 2) {
        bool known = false;
        for (int32_t d = 0; d < DQN_DEVICE_COUNT; d++)
            if (strcmp(arguments[k], "--device") == 0 &&
                strcmp(arguments[k + 1], dqn_device_name((DqnDevice)d)) == 0) {
                chosen->device = (DqnDevice)d;
                known = true;
            }
        for (size_t u = 0; u < sizeof(UPDATES) / sizeof(*UPDATES); u++)
            if (strcmp(arguments[k], "--update") == 0 && strcmp(arguments[k + 1], UPDATES[u]) == 0) {
                chosen->update = (DqnUpdate)u;
                *all = false;
                known = true;
            }
        if (!known) return false;
    }
    *all = *all && chosen->device == DQN_CUDA;
    return count % 2 == 1;
}

/* *seconds: of an update of the first case. */
static AmStatus measure_all(AgentSettings *chosen, bool all, double *seconds, AmError *error) {
    double other;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        bool possible = chosen->device == DQN_CPU || (!cases[i].noisy && cases[i].atoms == 0);
        if (possible) TRY(measure(&cases[i], chosen, i == 0 ? seconds : &other, error));
    }
    for (size_t u = 1; all && u < sizeof(UPDATES) / sizeof(*UPDATES); u++) {
        chosen->update = (DqnUpdate)u;
        TRY(measure(&cases[0], chosen, &other, error));
    }
    return AM_OK;
}

int main(int count, char **arguments) {
    AgentSettings chosen;
    bool all;
    AmError error = {0};
    if (!read_arguments(&chosen, &all, count, arguments)) {
        fprintf(stderr, "usage: bench_dqn [--device cpu|cuda] [--update graph|own|block]\n");
        return AM_ERROR_USAGE;
    }
    if (dqn_device_check(chosen.device, &error) != AM_OK) {
        fprintf(stderr, "bench_dqn: %s\n", error.text);
        return error.code;
    }
    printf("%-28s %10s %10s %10s %10s%s  %s\n", "network (input-..-actions)", "updates/s", "update us",
           "store us", "act us", chosen.device == DQN_CPU ? "  replay us    Adam us" : "", "updates by");
    double seconds = 0;
    if (measure_all(&chosen, all, &seconds, &error) != AM_OK) {
        fprintf(stderr, "bench_dqn: %s\n", error.text);
        return error.code;
    }
    if (chosen.device != DQN_CPU) return 0;
    printf("train step, 64-128-16, batch 32, one core\t%.1f us\t%.0f us\t%s\n", 1e6 * seconds,
           1e6 * LIMIT_SECONDS, seconds <= LIMIT_SECONDS ? "ok" : "no");
    return 0;
}
