/* Trains the agent that cuts pipelines on generated sets, and writes checkpoints of the training.
 *
 * train_network() is the loop. It generates the sets of CUT_AGENT_ROUND episodes, run_round() plays them side
 * by side, store_choices() puts the stages since the last exploration into the replay, and a fixed number of
 * updates follows. A phase begins with another learning rate.
 */
#include "planners/cut_agent/cut_agent_train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/system/stop.h"
#include "planners/rl/learner_parts.h"
#include "planners/rl/trained_agent.h"

#define MAGIC             "AMINFTR2"
#define UPDATES_PER_ROUND 32
#define EXPLORING_STREAM  1

static const double exploring_slack = 0.1;

static const struct {
    double until, learning_rate; /* part of the episodes */
} phases[] = {{0.6, 1e-3}, {0.9, 3e-4}, {1, 1e-4}};
#define PHASES ((int32_t)(sizeof(phases) / sizeof(*phases)))

/* The header of a checkpoint; the agent follows. */
typedef struct Head {
    char magic[8];
    uint64_t seed;
    int64_t episodes, done;
    int32_t phase, unused;
    char learner[LEARNER_TEXT_BYTES];
} Head;

typedef struct Trainer {
    const CutAgentTraining *training;
    Arena arena;
    Head head;
    Agent *agent;
    CutAgentBatch batch;
    CutAgentSet *sets;                        /* [CUT_AGENT_ROUND] */
    CutAgentRest *(*taken)[CHAIN_MAX_STAGES]; /* by each episode and stage */
    double (*lengths)[CUT_AGENT_CANDIDATES];
    int32_t exploring[CUT_AGENT_ROUND]; /* stages chosen with exploration */
    Random randoms[CUT_AGENT_ROUND];
    double returns; /* over the estimates, since the last report */
    int64_t stored;
} Trainer;

static AmStatus begin_phase(Trainer *trainer, AmError *error) {
    AgentSettings settings = cut_agent_settings();
    settings.device = trainer->training->device;
    settings.seed = random_at(trainer->head.seed, 2, (uint64_t)trainer->head.phase);
    settings.learning_rate = phases[trainer->head.phase].learning_rate;
    TRY(learner_parts_apply(&settings, trainer->training->learner, CUT_AGENT_PARTS, error));
    return trained_agent_continue(&trainer->agent, &settings, CUT_AGENT_FEATURES, error);
}

static AmStatus write_checkpoint(const Trainer *trainer, AmError *error) {
    return trained_checkpoint_write(trainer->training->checkpoint, &trainer->head, sizeof(Head),
                                    trainer->agent, error);
}

static AmStatus read_checkpoint(Trainer *trainer, AmError *error) {
    const CutAgentTraining *training = trainer->training;
    FileBytes bytes;
    Head head = {0};
    AmStatus status;
    TRY(trained_checkpoint_read(&bytes, &head, sizeof(Head), training->checkpoint, error));
    if (memcmp(head.magic, MAGIC, sizeof(head.magic)) != 0 || head.seed != training->seed ||
        head.episodes != training->episodes ||
        memcmp(head.learner, trainer->head.learner, sizeof head.learner) != 0 || head.done < 0 ||
        head.done % CUT_AGENT_ROUND || head.phase < 0 || head.phase >= PHASES)
        status = am_fail(error, AM_ERROR_INPUT, training->checkpoint,
                         "expected a checkpoint of a training of %lld episodes under seed %llu",
                         (long long)training->episodes, (unsigned long long)training->seed);
    else
        status = trained_checkpoint_agent(&trainer->agent, &bytes, sizeof(Head), training->device,
                                          CUT_AGENT_FEATURES, training->checkpoint, error);
    file_release(&bytes);
    if (status == AM_OK) trainer->head = head;
    return status;
}

/* Returns one of the candidates that are nearly as good as the best. */
static int32_t explore_candidates(Trainer *trainer, int32_t k, int32_t best) {
    const double *lengths = trainer->lengths[k];
    int32_t count = trainer->batch.states[k].candidate_count, near = 0;
    double most = lengths[best] * (1 + exploring_slack);
    for (int32_t c = 0; c < count; c++) near += lengths[c] <= most;
    int64_t chosen = random_below(&trainer->randoms[k], near);
    for (int32_t c = 0; c < count; c++)
        if (lengths[c] <= most && chosen-- == 0) return c;
    return best;
}

static AmStatus run_round(Trainer *trainer, AmError *error) {
    int32_t chosen[CUT_AGENT_ROUND];
    for (bool going = true; going;) {
        going = false;
        TRY(cut_agent_choose(&trainer->batch, trainer->agent, chosen, trainer->lengths, error));
        for (int32_t k = 0; k < CUT_AGENT_ROUND; k++) {
            CutAgentState *state = &trainer->batch.states[k];
            if (chosen[k] < 0) continue;
            going = true;
            if (state->chosen < trainer->exploring[k]) chosen[k] = explore_candidates(trainer, k, chosen[k]);
            trainer->taken[k][state->chosen] = state->candidates[chosen[k]].rest;
            TRY(cut_agent_step(state, chosen[k], error));
        }
    }
    return AM_OK;
}

/* Returns the length of the stages from `from` on. With n-step returns, only the first n are those that were
 * chosen, and the network predicts the length of the others. */
static double length_from(const Trainer *trainer, int32_t k, int32_t from) {
    const CutAgentState *state = &trainer->batch.states[k];
    const ChainPlan *plan = &state->plan;
    int32_t n = agent_settings(trainer->agent)->n_step, end = plan->stages;
    double rest = 0;
    if (n > 0 && from + n < end) {
        end = from + n;
        rest = cut_agent_rest_length(trainer->taken[k][end - 1]);
    }
    for (int32_t s = end - 1; s >= from; s--) {
        ChainStage stage = chain_stage(state->problem, plan->places[s], plan->places[s + 1], plan->units[s],
                                       plan->units[s + 1]);
        rest = chain_length_with(state->problem, &stage, rest);
    }
    return rest;
}

/* Stores the choices of an episode since its last exploration. */
static AmStatus store_choices(Trainer *trainer, int32_t k, AmError *error) {
    const ChainPlan *plan = &trainer->batch.states[k].plan;
    for (int32_t s = plan->stages - 1; s > 0 && s >= trainer->exploring[k]; s--) {
        const CutAgentRest *taken = trainer->taken[k][s - 1];
        double rest = length_from(trainer, k, s);
        if (taken->is_known) continue;
        double target = cut_agent_target(taken, rest);
        TRY(agent_observe(trainer->agent,
                          &(AgentStep){.observation = taken->features,
                                       .reward = target < 2 ? target : 2,
                                       .next_observation = taken->features,
                                       .terminal = true},
                          error));
        agent_end_episode(trainer->agent);
        trainer->returns += rest / taken->estimate;
        trainer->stored++;
    }
    return AM_OK;
}

static AmStatus report_progress(Trainer *trainer, AmError *error) {
    const CutAgentTraining *training = trainer->training;
    CutAgentProgress progress = {.episodes = trainer->head.done,
                                 .episode_count = trainer->head.episodes,
                                 .loss = agent_loss(trainer->agent),
                                 .estimate = trainer->stored ? trainer->returns / (double)trainer->stored : 1,
                                 .agent = trainer->agent};
    trainer->returns = 0;
    trainer->stored = 0;
    if (training->on_report) TRY(training->on_report(training->user, &progress, error));
    return write_checkpoint(trainer, error);
}

static AmStatus train_network(Trainer *trainer, AmError *error) {
    const CutAgentTraining *training = trainer->training;
    Head *head = &trainer->head;
    search_watch_expect(training->watch, head->episodes - head->done);
    while (head->done < head->episodes && !stop_flag_is_set(training->interrupted)) {
        ArenaMark mark = arena_mark(&trainer->arena);
        if ((double)head->done >= phases[head->phase].until * (double)head->episodes) {
            head->phase++;
            TRY(begin_phase(trainer, error));
        }
        for (int32_t k = 0; k < CUT_AGENT_ROUND; k++) {
            uint64_t index = (uint64_t)(trainer->head.done + k);
            cut_agent_generate(&trainer->sets[k], trainer->head.seed, index, true);
            random_seed(&trainer->randoms[k], random_at(trainer->head.seed, EXPLORING_STREAM, index));
            trainer->exploring[k] =
                (int32_t)random_below(&trainer->randoms[k], trainer->sets[k].problem.stages);
            TRY(cut_agent_reset(&trainer->batch.states[k], &trainer->sets[k].problem, &trainer->arena,
                                error));
        }
        TRY(run_round(trainer, error));
        for (int32_t k = 0; k < CUT_AGENT_ROUND; k++) TRY(store_choices(trainer, k, error));
        agent_learn(trainer->agent, UPDATES_PER_ROUND);
        TRY(agent_check(trainer->agent, error));
        head->done += CUT_AGENT_ROUND;
        search_watch_count(training->watch, CUT_AGENT_ROUND, NAN);
        arena_release(&trainer->arena, mark);
        if (training->report_every > 0 && head->done % training->report_every < CUT_AGENT_ROUND)
            TRY(report_progress(trainer, error));
    }
    return write_checkpoint(trainer, error);
}

AmStatus cut_agent_train(Agent **agent, int64_t *done, const CutAgentTraining *training, AmError *error) {
    AmStatus status = AM_OK;
    Trainer *trainer = calloc(1, sizeof(*trainer));
    *agent = NULL;
    if (!trainer) return am_fail_memory(error, sizeof(*trainer));
    Arena *arena = &trainer->arena;
    trainer->training = training;
    trainer->head = (Head){.seed = training->seed, .episodes = training->episodes};
    memcpy(trainer->head.magic, MAGIC, sizeof(trainer->head.magic));
    if (training->learner)
        snprintf(trainer->head.learner, sizeof trainer->head.learner, "%s", training->learner);
    trainer->sets = ARENA_ARRAY(arena, CutAgentSet, CUT_AGENT_ROUND);
    trainer->taken = arena_alloc(arena, CUT_AGENT_ROUND * sizeof(*trainer->taken));
    trainer->lengths = arena_alloc(arena, CUT_AGENT_ROUND * sizeof(*trainer->lengths));
    TRY_OR_FAIL(cut_agent_batch_create(&trainer->batch, arena, CUT_AGENT_ROUND, error));
    if (!trainer->sets || !trainer->taken || !trainer->lengths) {
        status = am_fail_memory(error, CUT_AGENT_ROUND * (int64_t)sizeof(CutAgentSet));
        goto fail;
    }
    if (training->resume) TRY_OR_FAIL(read_checkpoint(trainer, error));
    else TRY_OR_FAIL(begin_phase(trainer, error));
    TRY_OR_FAIL(train_network(trainer, error));
    *agent = trainer->agent;
    *done = trainer->head.done;
    trainer->agent = NULL;
fail:
    agent_free(trainer->agent);
    arena_free(arena);
    free(trainer);
    return status;
}
