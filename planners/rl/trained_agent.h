/* Agents that are trained offline to rank actions, such as the cut agent and the assignment policy. The
 * network has one output for an action in its state: the estimate of the whole return after it.
 */
#ifndef PLANNERS_RL_TRAINED_AGENT_H
#define PLANNERS_RL_TRAINED_AGENT_H

#include <stddef.h>

#include "base/files/array_file.h"
#include "base/files/file.h"
#include "dqn/agent.h"

/* Settings of an agent with two hidden layers of `hidden` units. It does not explore by itself. */
AgentSettings trained_agent_settings(int32_t hidden, int32_t replay_capacity);

/* Creates an agent over `features` with parameters[0..count), or initial ones if `parameters` is NULL.
 * `source` names them in errors. */
AmStatus trained_agent_create(Agent **agent, const AgentSettings *settings, int32_t features,
                              const float *parameters, int64_t count, const char *source, AmError *error);
/* Replaces *agent by one of other settings with the same parameters; NULL: creates one. */
AmStatus trained_agent_continue(Agent **agent, const AgentSettings *settings, int32_t features,
                                AmError *error);

/* Gives the settings the parts of Rainbow that the metadata "learner" of a file name (learner_parts.h); NULL:
 * the usual ones. AM_ERROR_INPUT: there is no such part. */
AmStatus trained_agent_parts(AgentSettings *settings, const char *parts, const char *source, AmError *error);

/* Checks that the array `hidden` of a file has the sizes of the settings' hidden layers; else
 * AM_ERROR_INPUT. */
AmStatus trained_agent_check_layers(const AgentSettings *settings, ArrayFile *file, AmError *error);

/* Writes the sizes of the hidden layers (`hidden`), the parameters, and those of a second agent (`errors`;
 * NULL: none) to a safetensors file whose metadata have `format`, `about`, `prices` where not NULL, and
 * "learner" where the settings have unusual parts. */
AmStatus trained_agent_write(Agent *agent, Agent *errors, const char *path, const char *format,
                             const char *about, const char *prices, AmError *error);

/* Writes a checkpoint of a training: head[0..head_bytes), then the agent. `path` NULL: nothing. */
AmStatus trained_checkpoint_write(const char *path, const void *head, size_t head_bytes, Agent *agent,
                                  AmError *error);
/* Reads the head of a checkpoint; a file that is too short leaves it unchanged. The caller releases
 * `bytes`. */
AmStatus trained_checkpoint_read(FileBytes *bytes, void *head, size_t head_bytes, const char *path,
                                 AmError *error);
/* Loads the agent after the head. AM_ERROR_INPUT if it has other features. */
AmStatus trained_checkpoint_agent(Agent **agent, const FileBytes *bytes, size_t head_bytes, DqnDevice device,
                                  int32_t features, const char *path, AmError *error);

#endif
