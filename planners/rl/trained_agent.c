/* Agents that are trained offline: their creation, files and checkpoints. */
#include "planners/rl/trained_agent.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "planners/rl/learner_parts.h"

#define MOST_RETURN 2 /* of a distribution: targets beyond it count as it */

AgentSettings trained_agent_settings(int32_t hidden, int32_t replay_capacity) {
    AgentSettings settings = agent_default_settings();
    settings.n_step = 0; /* returns are whole: every transition is terminal */
    settings.v_min = -MOST_RETURN;
    settings.v_max = MOST_RETURN;
    settings.dueling = false;
    settings.double_q = false;
    settings.hidden_count = 2;
    settings.hidden[0] = hidden;
    settings.hidden[1] = hidden;
    settings.batch = 128;
    settings.replay_capacity = replay_capacity;
    settings.learning_rate = 0.001;
    settings.epsilon_start = settings.epsilon_end = 0;
    return settings;
}

AmStatus trained_agent_create(Agent **agent, const AgentSettings *settings, int32_t features,
                              const float *parameters, int64_t count, const char *source, AmError *error) {
    TRY(agent_create(agent, settings, features, 1, error));
    AmStatus status = parameters ? agent_set_parameters(*agent, parameters, count, source, error) : AM_OK;
    if (status == AM_OK) return AM_OK;
    agent_free(*agent);
    *agent = NULL;
    return status;
}

/* Copies the agent's parameters, which the caller frees. */
static AmStatus copy_parameters(float **parameters, int64_t *count, Agent *agent, AmError *error) {
    *count = agent_parameter_count(agent);
    *parameters = malloc(sizeof(float) * (size_t)*count);
    if (!*parameters) return am_fail_memory(error, *count * (int64_t)sizeof(float));
    AmStatus status = agent_parameters(agent, *parameters, error);
    if (status != AM_OK) free(*parameters);
    return status;
}

AmStatus trained_agent_continue(Agent **agent, const AgentSettings *settings, int32_t features,
                                AmError *error) {
    Agent *next;
    float *parameters = NULL;
    int64_t count = 0;
    if (*agent) TRY(copy_parameters(&parameters, &count, *agent, error));
    AmStatus status = trained_agent_create(&next, settings, features, parameters, count, "", error);
    free(parameters);
    TRY(status);
    agent_free(*agent);
    *agent = next;
    return AM_OK;
}

AmStatus trained_agent_parts(AgentSettings *settings, const char *parts, const char *source, AmError *error) {
    AmError why = {0};
    AmStatus status = learner_parts_apply(settings, parts, (1U << LEARNER_PARTS) - 1, &why);
    return status == AM_OK ? AM_OK : am_fail(error, AM_ERROR_INPUT, source, "metadata learner: %s", why.text);
}

AmStatus trained_agent_check_layers(const AgentSettings *settings, ArrayFile *file, AmError *error) {
    const ArrayEntry *entry = array_file_find(file, "hidden");
    int32_t hidden[NETWORK_MAX_HIDDEN];
    size_t bytes = sizeof(int32_t) * (size_t)settings->hidden_count;
    bool is_equal = entry && entry->type == DTYPE_S32 && entry->rank == 1 && entry->bytes == (int64_t)bytes;
    if (is_equal) TRY(array_file_read(file, entry, hidden, error));
    if (is_equal && memcmp(hidden, settings->hidden, bytes) == 0) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path, "expected the array hidden with %d layers of %d units",
                   settings->hidden_count, settings->hidden[0]);
}

AmStatus trained_agent_write(Agent *agent, Agent *errors, const char *path, const char *format,
                             const char *about, const char *prices, AmError *error) {
    const NetworkShape *shape = agent_shape(agent);
    int64_t counts[2] = {0}, layers = shape->hidden_count;
    float *parameters[2] = {0};
    TRY(copy_parameters(&parameters[0], &counts[0], agent, error));
    AmStatus status = errors ? copy_parameters(&parameters[1], &counts[1], errors, error) : AM_OK;
    const ArrayToWrite arrays[] = {{"hidden", DTYPE_S32, 1, &layers, shape->hidden},
                                   {"parameters", DTYPE_F32, 1, &counts[0], parameters[0]},
                                   {"errors", DTYPE_F32, 1, &counts[1], parameters[1]}};
    const AgentSettings usual = trained_agent_settings(0, 0);
    char parts[LEARNER_TEXT_BYTES];
    learner_parts_text(parts, agent_settings(agent), &usual);
    const char *metadata[9] = {"format", format, "about", about};
    int32_t count = 4;
    if (prices) metadata[count++] = "prices", metadata[count++] = prices;
    if (parts[0]) metadata[count++] = "learner", metadata[count++] = parts;
    if (status == AM_OK) {
        status = array_file_write(path, arrays, errors ? 3 : 2, metadata, error);
        free(parameters[1]);
    }
    free(parameters[0]);
    return status;
}

AmStatus trained_checkpoint_write(const char *path, const void *head, size_t head_bytes, Agent *agent,
                                  AmError *error) {
    Text bytes = {0};
    if (!path) return AM_OK;
    text_append_bytes(&bytes, head, head_bytes);
    AmStatus status = agent_save(agent, &bytes, error);
    if (status == AM_OK)
        status = bytes.failed ? am_fail_memory(error, (int64_t)bytes.length)
                              : file_write(path, bytes.data, bytes.length, error);
    text_free(&bytes);
    return status;
}

AmStatus trained_checkpoint_read(FileBytes *bytes, void *head, size_t head_bytes, const char *path,
                                 AmError *error) {
    TRY(file_read(bytes, path, error));
    if ((size_t)bytes->length > head_bytes) memcpy(head, bytes->data, head_bytes);
    return AM_OK;
}

AmStatus trained_checkpoint_agent(Agent **agent, const FileBytes *bytes, size_t head_bytes, DqnDevice device,
                                  int32_t features, const char *path, AmError *error) {
    TRY(agent_load(agent, device, bytes->data + head_bytes, (size_t)bytes->length - head_bytes, path, error));
    const NetworkShape *shape = agent_shape(*agent);
    if (shape->observation_size != features || shape->action_count != 1)
        return am_fail(error, AM_ERROR_INPUT, path, "its network is of other features");
    return AM_OK;
}
