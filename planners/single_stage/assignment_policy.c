/* The assignment policy: its networks, its episodes and its file. */
#include "planners/single_stage/assignment_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "automap_assignment.h"
#include "base/files/array_file.h"
#include "planners/rl/trained_agent.h"

/* Targets beyond it count as it. */
#define MOST_TARGET 2
#define PATIENCE    2 /* steps of an episode without a better plan */

static const char built_in[] = "the assignment policy built in";

AgentSettings assignment_settings(void) {
    return trained_agent_settings(64, 1 << 16);
}

AmStatus assignment_policy_write(const AssignmentPolicy *policy, const char *path, const char *about,
                                 const char *prices, AmError *error) {
    return trained_agent_write(policy->actions, policy->errors, path, ASSIGNMENT_VERSION, about, prices,
                               error);
}

void assignment_policy_close(AssignmentPolicy *policy) {
    agent_free(policy->actions);
    agent_free(policy->errors);
    *policy = (AssignmentPolicy){0};
}

static AmStatus read_array(Agent **agent, const AgentSettings *settings, ArrayFile *file, const char *name,
                           int32_t features, AmError *error) {
    const ArrayEntry *entry = array_file_find(file, name);
    if (!entry || entry->type != DTYPE_F32 || entry->rank != 1)
        return am_fail(error, AM_ERROR_INPUT, file->path, "expected a vector of f32 named %s", name);
    float *parameters = arena_alloc(&file->arena, (size_t)entry->bytes + 1);
    if (!parameters) return am_fail_memory(error, entry->bytes);
    TRY(array_file_read(file, entry, parameters, error));
    return trained_agent_create(agent, settings, features, parameters, entry->dimensions[0], file->path,
                                error);
}

AmStatus assignment_policy_read(AssignmentPolicy *policy, const AgentSettings *settings, const char *path,
                                AmError *error) {
    ArrayFile file;
    AgentSettings trained = *settings;
    AmStatus status;
    *policy = (AssignmentPolicy){0};
    TRY(array_file_open(&file, path, error));
    const char *format = array_file_metadata(&file, "format");
    if (!format) format = "none";
    if (strcmp(format, ASSIGNMENT_VERSION) != 0)
        TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, file.path,
                            "expected an assignment policy of format %s, got format %.40s; train it again",
                            ASSIGNMENT_VERSION, format));
    TRY_OR_FAIL(trained_agent_parts(&trained, array_file_metadata(&file, "learner"), file.path, error));
    TRY_OR_FAIL(trained_agent_check_layers(&trained, &file, error));
    TRY_OR_FAIL(read_array(&policy->actions, &trained, &file, "parameters", ASSIGNMENT_FEATURES, error));
    status = read_array(&policy->errors, &trained, &file, "errors", ASSIGNMENT_FACTS, error);
fail:
    array_file_close(&file);
    if (status != AM_OK) assignment_policy_close(policy);
    return status;
}

static AmStatus read_image(Agent **agent, const AgentSettings *settings, const ArrayImage *image,
                           const char *name, int32_t features, AmError *error) {
    int64_t bytes;
    const void *values = array_image_find(image, name, &bytes);
    float *parameters = malloc((size_t)bytes + 1);
    if (!parameters) return am_fail_memory(error, bytes);
    if (bytes > 0) memcpy(parameters, values, (size_t)bytes);
    AmStatus status = trained_agent_create(agent, settings, features, parameters,
                                           bytes / (int64_t)sizeof(float), built_in, error);
    free(parameters);
    return status;
}

AmStatus assignment_policy_built_in(AssignmentPolicy *policy, const AgentSettings *settings, AmError *error) {
    ArrayImage image;
    *policy = (AssignmentPolicy){0};
    TRY(array_image_open(&image, assignment_agent, built_in, error));
    const char *format = array_image_metadata(&image, "format");
    AmStatus status = AM_OK;
    if (!format || strcmp(format, ASSIGNMENT_VERSION) != 0)
        status = am_fail(error, AM_ERROR_INPUT, built_in, "expected format %s; train it again",
                         ASSIGNMENT_VERSION);
    if (status == AM_OK)
        status = read_image(&policy->actions, settings, &image, "parameters", ASSIGNMENT_FEATURES, error);
    if (status == AM_OK)
        status = read_image(&policy->errors, settings, &image, "errors", ASSIGNMENT_FACTS, error);
    array_image_close(&image);
    if (status != AM_OK) assignment_policy_close(policy);
    return status;
}

AmStatus assignment_agent_untrained(Agent **agent, const AgentSettings *settings, int32_t features,
                                    AmError *error) {
    TRY(trained_agent_create(agent, settings, features, NULL, 0, "", error));
    if (settings->noisy || settings->atoms > 0) return AM_OK; /* small random values */
    int64_t count = agent_parameter_count(*agent);
    int32_t last = agent_shape(*agent)->hidden[agent_shape(*agent)->hidden_count - 1] + 1;
    float *parameters = malloc(sizeof(float) * (size_t)count);
    AmStatus status = parameters ? agent_parameters(*agent, parameters, error)
                                 : am_fail_memory(error, count * (int64_t)sizeof(float));
    if (status == AM_OK) {
        memset(parameters + count - last, 0, sizeof(float) * (size_t)last);
        status = agent_set_parameters(*agent, parameters, count, "", error);
    }
    free(parameters);
    if (status == AM_OK) return AM_OK;
    agent_free(*agent);
    *agent = NULL;
    return status;
}

/* Marks the actions to estimate, given the network's value of each. */
static void choose_actions(bool *chosen, const AssignmentPlayer *self, const float *values,
                           const bool *skipped) {
    const ActionChoice *choice = &self->choice;
    int32_t count = self->state->action_count;
    double scores[ASSIGNMENT_MOST_ACTIONS];
    for (int32_t a = 0; a < count; a++) {
        double noise = choice->temperature > 0 ? random_gumbel(self->random) : 0;
        chosen[a] = false;
        scores[a] = skipped && skipped[a] ? -INFINITY : (double)values[a] + choice->temperature * noise;
    }
    for (int32_t n = 0; n < choice->best + choice->random; n++) {
        int32_t best = -1;
        if (n == choice->best)
            for (int32_t a = 0; a < count; a++)
                if (!isinf(scores[a])) scores[a] = random_uniform(self->random);
        for (int32_t a = 0; a < count; a++)
            if (!isinf(scores[a]) && (best < 0 || scores[a] > scores[best])) best = a;
        if (best < 0) return;
        chosen[best] = true;
        scores[best] = -INFINITY;
    }
}

AmStatus assignment_estimate_actions(ActionEstimates *estimates, const AssignmentPlayer *self,
                                     const bool *skipped, AmError *error) {
    const AssignmentPolicy *policy = self->policy;
    const AssignmentState *state = self->state;
    Estimator *estimator = self->problem->estimator;
    float values[ASSIGNMENT_MOST_ACTIONS];
    bool chosen[ASSIGNMENT_MOST_ACTIONS];
    const AxisPlan *next[ASSIGNMENT_MOST_ESTIMATES];
    int32_t next_count = 0;
    estimates->count = 0;
    if (state->action_count == 0) return AM_OK;
    TRY(agent_values(policy->actions, state->features[0], state->action_count, values, error));
    choose_actions(chosen, self, values, skipped);
    for (int32_t a = 0; a < state->action_count; a++)
        if (chosen[a]) next[next_count++] = &state->actions[a].next;
    if (estimator) TRY(estimate_axis_plans(estimator, next, next_count, error));
    for (int32_t a = 0; a < state->action_count; a++) {
        ActionEstimate *estimated = &estimates->of[estimates->count];
        if (!chosen[a]) continue;
        TRY(assignment_estimate(&estimated->estimate, estimated->facts, self->problem,
                                &state->actions[a].next, error));
        estimated->action = a;
        estimates->count++;
    }
    /* Adds the errors that the policy expects to the estimates. */
    float facts[ASSIGNMENT_MOST_ESTIMATES][ASSIGNMENT_FACTS], expected[ASSIGNMENT_MOST_ESTIMATES] = {0};
    for (int32_t n = 0; n < estimates->count; n++) memcpy(facts[n], estimates->of[n].facts, sizeof facts[n]);
    if (policy->errors && estimates->count > 0)
        TRY(agent_values(policy->errors, facts[0], estimates->count, expected, error));
    for (int32_t n = 0; n < estimates->count; n++) {
        ActionEstimate *estimated = &estimates->of[n];
        estimated->value = estimated->estimate;
        estimated->value.seconds_gain += (double)expected[n];
        estimated->value.gain += (double)expected[n];
    }
    return AM_OK;
}

/* Notes the state in which the episode is. */
static void note_state(AssignmentEpisode *episode, const AssignmentState *state) {
    episode->plans[episode->count] = state->axis_plan;
    episode->estimates[episode->count] = state->estimate;
    memcpy(episode->facts[episode->count], state->facts, sizeof state->facts);
    episode->other_count[episode->count] = 0;
}

static void note_others(AssignmentEpisode *episode, const AssignmentState *state,
                        const ActionEstimates *estimates, int32_t taken) {
    int32_t k = episode->count;
    for (int32_t n = 0; n < estimates->count; n++) {
        const ActionEstimate *estimated = &estimates->of[n];
        if (estimated->action == taken) continue;
        int32_t place = episode->other_count[k]++;
        memcpy(episode->others[k][place], state->features[estimated->action],
               sizeof episode->others[k][place]);
        episode->other_gains[k][place] = estimated->estimate.gain;
    }
}

static void note_action(AssignmentEpisode *episode, const AssignmentState *state, int32_t action) {
    memcpy(episode->rows[episode->count], state->features[action], sizeof episode->rows[0]);
    episode->count++;
}

AmStatus assignment_play(AssignmentEpisode *episode, const AssignmentPlayer *self, const AxisPlan *start,
                         AmError *error) {
    AssignmentState *state = self->state;
    AxisPlan now = *start;
    double most = -INFINITY;
    int32_t best_at = 0;
    float first_value = 0;
    for (episode->count = 0;;) {
        ActionEstimates estimates;
        bool visited[ASSIGNMENT_MOST_ACTIONS];
        int32_t best = -1;
        TRY(assignment_enter(state, self->problem, &now, error));
        note_state(episode, state);
        if (state->estimate.gain > most) best_at = episode->count;
        most = fmax(most, state->estimate.gain);
        if (episode->count == ASSIGNMENT_MOST_STEPS || episode->count > best_at + PATIENCE) return AM_OK;
        for (int32_t a = 0; a < state->action_count; a++) {
            visited[a] = false;
            for (int32_t k = 0; k <= episode->count; k++)
                visited[a] |= memcmp(&episode->plans[k], &state->actions[a].next, sizeof(AxisPlan)) == 0;
        }
        TRY(assignment_estimate_actions(&estimates, self, visited, error));
        for (int32_t n = 0; n < estimates.count; n++)
            if (best < 0 || estimates.of[n].value.gain > estimates.of[best].value.gain) best = n;
        if (best < 0) return AM_OK;
        int32_t action = estimates.of[best].action;
        note_others(episode, state, &estimates, action);
        if (episode->count == 0)
            TRY(agent_values(self->policy->actions, state->features[action], 1, &first_value, error));
        episode->first_value = (double)first_value;
        now = state->actions[action].next;
        note_action(episode, state, action);
    }
}

/* Returns the action that brings the plan nearer to the target on the axis; -1: none. */
static int32_t next_action(const AssignmentState *state, const AxisPlan *target, int32_t axis) {
    const AxisPlan *now = &state->axis_plan;
    int32_t place = now->count[axis];
    bool appends = place < target->count[axis];
    for (int32_t a = 0; a < state->action_count; a++) {
        const AssignmentAction *action = &state->actions[a];
        if (action->axis != axis) continue;
        if (appends && action->kind == ASSIGNMENT_APPEND && action->class_set == target->entries[axis][place])
            return a;
        if (!appends && action->kind == ASSIGNMENT_STORE && now->storage[axis] != target->storage[axis] &&
            action->value == target->storage[axis])
            return a;
    }
    return -1;
}

AmStatus assignment_demonstrate(AssignmentEpisode *episode, const AssignmentPlayer *self,
                                const AxisPlan *target, AmError *error) {
    AssignmentState *state = self->state;
    AxisPlan now = {0};
    const StageProblem *problem = self->problem->problem;
    int32_t axes = problem->mesh.axis_count;
    for (episode->count = 0;;) {
        ActionEstimates estimates;
        int32_t first = (int32_t)random_below(self->random, axes), action = -1;
        TRY(assignment_enter(state, self->problem, &now, error));
        note_state(episode, state);
        for (int32_t k = 0; k < axes && action < 0; k++)
            action = next_action(state, target, (first + k) % axes);
        if (action < 0 || episode->count == ASSIGNMENT_MOST_STEPS) return AM_OK;
        TRY(assignment_estimate_actions(&estimates, self, NULL, error));
        note_others(episode, state, &estimates, action);
        now = state->actions[action].next;
        note_action(episode, state, action);
    }
}

AmStatus assignment_store(Agent *agent, const float *row, double target, AmError *error) {
    double reward = fmax(-MOST_TARGET, fmin(MOST_TARGET, target));
    TRY(agent_observe(
        agent, &(AgentStep){.observation = row, .reward = reward, .next_observation = row, .terminal = true},
        error));
    agent_end_episode(agent);
    return AM_OK;
}

/* Stores the action at place k with its gain after the steps to `end`, and the value of the next action. */
static AmStatus store_steps(const AssignmentEpisode *episode, int32_t k, int32_t end, Agent *agent,
                            Agent *chooser, const AssignmentValue *values, AmError *error) {
    const float *next;
    /* the action that a network values most, of those that were estimated there */
    float valued[ASSIGNMENT_MOST_ESTIMATES], taken;
    int32_t count = episode->other_count[end];
    next = episode->rows[end];
    TRY(agent_values(chooser, episode->rows[end], 1, &taken, error));
    if (count > 0) TRY(agent_values(chooser, episode->others[end][0], count, valued, error));
    for (int32_t n = 0; n < count; n++)
        if (valued[n] > taken) {
            taken = valued[n];
            next = episode->others[end][n];
        }
    double reward = fmax(-MOST_TARGET, fmin(MOST_TARGET, values[end].gain - values[k].gain));
    TRY(agent_observe(
        agent, &(AgentStep){.observation = episode->rows[k], .reward = reward, .next_observation = next},
        error));
    agent_end_episode(agent);
    return AM_OK;
}

AmStatus assignment_observe(const AssignmentEpisode *episode, Agent *agent, Agent *frozen,
                            const AssignmentValue *values, AmError *error) {
    const AgentSettings *settings = agent_settings(agent);
    int32_t best = episode->count; /* place of the best plan that follows */
    for (int32_t k = episode->count - 1; k >= 0; k--) {
        int32_t end = k + settings->n_step;
        if (settings->n_step > 0 && end < best)
            TRY(store_steps(episode, k, end, agent, settings->double_q ? agent : frozen, values, error));
        else TRY(assignment_store(agent, episode->rows[k], values[best].gain - values[k].gain, error));
        for (int32_t n = 0; n < episode->other_count[k]; n++)
            TRY(assignment_store(agent, episode->others[k][n],
                                 episode->other_gains[k][n] - episode->estimates[k].gain, error));
        if (values[k].gain > values[best].gain) best = k;
    }
    return AM_OK;
}

AmStatus assignment_observe_errors(const AssignmentEpisode *episode, Agent *errors,
                                   const AssignmentValue *values, AmError *error) {
    for (int32_t k = 0; k <= episode->count; k++)
        TRY(assignment_store(errors, episode->facts[k],
                             values[k].seconds_gain - episode->estimates[k].seconds_gain, error));
    return AM_OK;
}
