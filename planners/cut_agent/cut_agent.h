/* The agent that cuts pipelines, Auto-MAP's inference agent: its cuts of a chain, in milliseconds.
 *
 * Stages are chosen from the left by the smallest Q of their environment (cut_agent_environment.h),
 * with a beam of the best `width` partial plans, all at different places; with 1 the policy alone.
 * No plan is improved afterwards. A longer chain is coarsened to 128 layers first (Auto-MAP section
 * 4.5.1).
 *
 * A trained agent is a file of named arrays with the network's parameters; the file's metadata
 * describes its training.
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_H

#include "dqn/agent.h"
#include "planners/cut_agent/cut_agent_environment.h"

#define CUT_AGENT_WIDTH      64 /* partial plans side by side, by default */
#define CUT_AGENT_MOST_WIDTH 1024

/* Settings of agents of this environment, with the default sizes of their network. */
AgentSettings cut_agent_settings(void);

/* Reads a file of cut_agent_write; agent_free releases the agent. AM_ERROR_INPUT: the file is
 * no agent.
 */
AmStatus cut_agent_read(Agent **agent, const char *path, AmError *error);
/* Reads the agent that the library was built with, datasets/agents/pipeline.safetensors. */
AmStatus cut_agent_built_in(Agent **agent, AmError *error);
/* Writes the agent. `about`: one line on its training. */
AmStatus cut_agent_write(Agent *agent, const char *path, const char *about, AmError *error);

/* Finds the partition of a chain in problem->stages stages. AM_ERROR_INFEASIBLE: none fits the memory;
 * AM_ERROR_USAGE: the places are not those of a chain. */
AmStatus cut_agent_plan(ChainPlan *plan, const ChainProblem *problem, Agent *agent, int32_t width,
                        AmError *error);

/* Many episodes side by side, for training and for the plan of one. */
typedef struct CutAgentBatch {
    CutAgentState *states;
    CutAgentRest **rests;      /* [rows]: the inputs of the network */
    float *features, *outputs; /* of each of them */
    int32_t count;
} CutAgentBatch;

AmStatus cut_agent_batch_create(CutAgentBatch *batch, Arena *arena, int32_t count, AmError *error);

/* Asks the network about all rests of candidates that it was not asked about yet, at once; chosen[count] is
 * the best one of each state that is not done, -1 for others. lengths[count][CUT_AGENT_CANDIDATES], where not
 * NULL, are their Q. */
AmStatus cut_agent_choose(CutAgentBatch *batch, Agent *agent, int32_t *chosen,
                          double (*lengths)[CUT_AGENT_CANDIDATES], AmError *error);

#endif
