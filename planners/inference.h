/* Pipelines by inference: a trained agent's cuts of a chain, in milliseconds.
 *
 * Stages are chosen from the left by the smallest Q of their environment (inference_environment.h),
 * with a beam of the best `width` partial plans, all at different places; with 1 the policy alone.
 * No plan is improved afterwards. A longer chain is coarsened to 128 layers first (Auto-MAP section
 * 4.5.1).
 *
 * A trained agent is a file of named arrays with the network's parameters; the file's metadata
 * describes its training.
 */
#ifndef PLANNERS_INFERENCE_H
#define PLANNERS_INFERENCE_H

#include "dqn/agent.h"
#include "planners/inference_environment.h"

#define INFERENCE_WIDTH      64 /* partial plans side by side, unless told otherwise */
#define INFERENCE_MOST_WIDTH 1024

/* Settings of agents of this environment, with the default sizes of their network. */
AgentSettings inference_settings(void);

/* Reads a file of inference_agent_write; agent_free releases the agent. AM_ERROR_INPUT: the file is
 * no agent.
 */
AmStatus inference_agent_read(Agent **agent, const char *path, AmError *error);
/* The agent that the library was built with, datasets/agents/pipeline.safetensors. */
AmStatus inference_agent_built_in(Agent **agent, AmError *error);
/* `about`: one line on how it was trained. */
AmStatus inference_agent_write(Agent *agent, const char *path, const char *about, AmError *error);

/* The partition of a chain in problem->stages stages. AM_ERROR_INFEASIBLE: none fits the memory;
 * AM_ERROR_USAGE: the places are not those of a chain. */
AmStatus inference_plan(ChainPlan *plan, const ChainProblem *problem, Agent *agent, int32_t width,
                        AmError *error);

/* Many episodes side by side, for training and for the plan of one. */
typedef struct InferenceBatch {
    InferenceState *states;
    InferenceRest **asked;     /* [rows]: the inputs of the network */
    float *features, *outputs; /* of each of them */
    int32_t count;
} InferenceBatch;

AmStatus inference_batch_create(InferenceBatch *batch, Arena *arena, int32_t count, AmError *error);

/* Asks the network about all rests of candidates that it was not asked about yet, at once; chosen[count] is
 * the best one of each state that is not done, -1 for others. lengths[count][INFERENCE_CANDIDATES], where not
 * NULL, are their Q. */
AmStatus inference_choose(InferenceBatch *batch, Agent *agent, int32_t *chosen,
                          double (*lengths)[INFERENCE_CANDIDATES], AmError *error);

#endif
