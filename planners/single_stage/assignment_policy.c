/* The assignment policy: one network that values every action of every problem; its episodes and its file. */
#include "planners/single_stage/assignment_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "automap_assignment.h"
#include "base/files/array_file.h"
#include "planners/rl/trained_agent.h"

/* Targets beyond it count as it: prices of plans that do not fit differ by more. */
#define MOST_TARGET 8

AgentSettings assignment_settings(void) {
    return trained_agent_settings(64, 1 << 16);
}

AmStatus assignment_agent_write(Agent *agent, const char *path, const char *about, AmError *error) {
    return trained_agent_write(agent, path, ASSIGNMENT_VERSION, about, false, error);
}

static AmStatus read_parameters(Agent **agent, const AgentSettings *settings, ArrayFile *file,
                                AmError *error) {
    const ArrayEntry *entry = array_file_find(file, "parameters");
    const char *format = array_file_metadata(file, "format");
    if (!format) format = "none";
    if (strcmp(format, ASSIGNMENT_VERSION) != 0 || !entry || entry->type != DTYPE_F32 || entry->rank != 1)
        return am_fail(error, AM_ERROR_INPUT, file->path,
                       "expected an assignment policy of format %s, got format %.40s; train it again",
                       ASSIGNMENT_VERSION, format);
    float *parameters = arena_alloc(&file->arena, (size_t)entry->bytes + 1);
    if (!parameters) return am_fail_memory(error, entry->bytes);
    TRY(array_file_read(file, entry, parameters, error));
    return trained_agent_create(agent, settings, ASSIGNMENT_FEATURES, parameters, entry->dimensions[0],
                                file->path, error);
}

AmStatus assignment_agent_read(Agent **agent, const AgentSettings *settings, const char *path,
                               AmError *error) {
    ArrayFile file;
    *agent = NULL;
    TRY(array_file_open(&file, path, error));
    AmStatus status = read_parameters(agent, settings, &file, error);
    array_file_close(&file);
    return status;
}

AmStatus assignment_agent_built_in(Agent **agent, const AgentSettings *settings, AmError *error) {
    static const char source[] = "the assignment policy built in";
    ArrayImage image;
    int64_t bytes;
    *agent = NULL;
    TRY(array_image_open(&image, assignment_agent, source, error));
    const void *values = array_image_find(&image, "parameters", &bytes);
    const char *format = array_image_metadata(&image, "format");
    bool is_known = format && strcmp(format, ASSIGNMENT_VERSION) == 0;
    array_image_close(&image);
    if (!is_known || bytes < 1)
        return am_fail(error, AM_ERROR_INPUT, source, "expected format %s; train it again",
                       ASSIGNMENT_VERSION);
    float *parameters = malloc((size_t)bytes);
    if (!parameters) return am_fail_memory(error, bytes);
    memcpy(parameters, values, (size_t)bytes);
    AmStatus status = trained_agent_create(agent, settings, ASSIGNMENT_FEATURES, parameters,
                                           bytes / (int64_t)sizeof(float), source, error);
    free(parameters);
    return status;
}

AmStatus assignment_totals(double *totals, Agent *agent, const Assignments *self,
                           const AssignmentState *state, double trust, AmError *error) {
    float values[ASSIGNMENT_MOST_ACTIONS];
    TRY(agent_values(agent, state->features[0], state->action_count, values, error));
    for (int32_t a = 0; a < state->action_count; a++)
        totals[a] = assignment_so_far(self, &state->actions[a].estimate) + trust * values[a];
    return AM_OK;
}

static bool is_visited(const AssignmentEpisode *episode, const AxisPlan *axis_plan) {
    for (int32_t k = 0; k <= episode->count; k++)
        if (memcmp(&episode->plans[k], axis_plan, sizeof *axis_plan) == 0) return true;
    return false;
}

/* The action of the largest total, with noise; the stop where nothing else is left. */
static int32_t choose(const AssignmentEpisode *episode, const AssignmentState *state, const double *totals,
                      const AssignmentManner *manner, Random *random) {
    int32_t best = state->action_count - 1;
    double most = -INFINITY;
    double temperature = manner->temperature;
    bool is_random = manner->epsilon > 0 && random_uniform(random) < manner->epsilon;
    for (int32_t a = 0; a < state->action_count; a++) {
        bool is_stop = state->actions[a].kind == ASSIGNMENT_STOP;
        if (!is_stop && is_visited(episode, &state->actions[a].next)) continue;
        double noise = temperature > 0 || is_random ? -log(-log(random_uniform(random) + 1e-12) + 1e-12) : 0;
        double total = is_random ? (is_stop ? -INFINITY : noise) : totals[a] + temperature * noise;
        if (total <= most) continue;
        most = total;
        best = a;
    }
    return best;
}

/* Notes the state in which the episode is. */
static void note_state(AssignmentEpisode *episode, const Assignments *self, const AssignmentState *state) {
    int32_t k = episode->count;
    episode->plans[k] = state->axis_plan;
    episode->so_far[k] = assignment_so_far(self, &state->estimate);
    episode->totals[k] = 0;
    memcpy(episode->stops[k], state->features[state->action_count - 1], sizeof episode->stops[k]);
}

static void note_action(AssignmentEpisode *episode, const AssignmentState *state, int32_t action) {
    memcpy(episode->rows[episode->count], state->features[action], sizeof episode->rows[0]);
    episode->best[episode->count++] = -INFINITY;
}

AmStatus assignment_play(AssignmentEpisode *episode, Agent *agent, const Assignments *self,
                         const AxisPlan *start, const AssignmentManner *manner, Random *random,
                         AssignmentState *state, AmError *error) {
    AxisPlan now = *start;
    for (episode->count = 0;;) {
        double totals[ASSIGNMENT_MOST_ACTIONS];
        TRY(assignment_enter(state, self, &now, error));
        TRY(assignment_totals(totals, agent, self, state, manner->trust, error));
        note_state(episode, self, state);
        episode->totals[episode->count] = totals[state->action_count - 1];
        int32_t action = choose(episode, state, totals, manner, random);
        bool is_over = episode->count == ASSIGNMENT_MOST_STEPS;
        if (is_over || state->actions[action].kind == ASSIGNMENT_STOP) return AM_OK;
        now = state->actions[action].next;
        note_action(episode, state, action);
    }
}

/* The action that brings the plan nearer to the target on the axis; -1: none. */
static int32_t next_action(const AssignmentState *state, const AxisPlan *target, int32_t axis) {
    const AxisPlan *now = &state->axis_plan;
    int32_t place = now->count[axis];
    bool appends = place < target->count[axis];
    for (int32_t a = 0; a < state->action_count; a++) {
        const AssignmentAction *action = &state->actions[a];
        if (action->axis != axis) continue;
        if (appends && action->kind == ASSIGNMENT_APPEND && action->candidate == target->entries[axis][place])
            return a;
        if (!appends && action->kind == ASSIGNMENT_STORE && now->storage[axis] != target->storage[axis] &&
            action->value == target->storage[axis])
            return a;
    }
    return -1;
}

AmStatus assignment_demonstrate(AssignmentEpisode *episode, const Assignments *self, const AxisPlan *target,
                                Random *random, AssignmentState *state, AmError *error) {
    AxisPlan now = {0};
    int32_t axes = self->problem->mesh.axis_count;
    for (episode->count = 0;;) {
        int32_t first = (int32_t)random_below(random, axes), action = -1;
        TRY(assignment_enter(state, self, &now, error));
        note_state(episode, self, state);
        for (int32_t k = 0; k < axes && action < 0; k++)
            action = next_action(state, target, (first + k) % axes);
        if (action < 0 || episode->count == ASSIGNMENT_MOST_STEPS) return AM_OK;
        now = state->actions[action].next;
        note_action(episode, state, action);
    }
}

static AmStatus store(Agent *agent, const float *row, double target, AmError *error) {
    double reward = fmax(-MOST_TARGET, fmin(MOST_TARGET, target));
    TRY(agent_observe(
        agent, &(AgentStep){.observation = row, .reward = reward, .next_observation = row, .terminal = true},
        error));
    agent_end_episode(agent);
    return AM_OK;
}

AmStatus assignment_observe(AssignmentEpisode *episode, Agent *agent, int32_t place, double gain,
                            AmError *error) {
    TRY(store(agent, episode->stops[place], gain - episode->so_far[place], error));
    for (int32_t k = 0; k < place; k++) {
        if (gain <= episode->best[k]) continue;
        episode->best[k] = gain;
        TRY(store(agent, episode->rows[k], gain - episode->so_far[k + 1], error));
    }
    return AM_OK;
}

AmStatus assignment_observe_all(AssignmentEpisode *episode, Agent *agent, const double *gains,
                                AmError *error) {
    double best = -INFINITY;
    for (int32_t k = episode->count; k >= 0; k--) {
        TRY(store(agent, episode->stops[k], gains[k] - episode->so_far[k], error));
        best = fmax(best, gains[k]);
        if (k > 0) TRY(store(agent, episode->rows[k - 1], best - episode->so_far[k], error));
    }
    return AM_OK;
}
