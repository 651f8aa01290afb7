/* Pipelines of a module by the agent that cuts pipelines: initial candidates of the pipeline search.
 *
 * The units of layer_costs.h become the layers of a chain, with the seconds and bytes of a stage of
 * equal width without a tensor axis; the cluster's servers, or equal parts of them, become the
 * units of devices. For each number of micro-batches and of stages the agent cuts both at once;
 * cuts of devices where no stage is allowed are skipped. Every stage then uses the fastest strategy
 * of the model that fits all of them.
 */
#ifndef PLANNERS_PIPELINE_CUT_AGENT_GUESS_H
#define PLANNERS_PIPELINE_CUT_AGENT_GUESS_H

#include "planners/cut_agent/cut_agent.h"
#include "planners/pipeline/stage_dp.h"

/* Makes the chain and the problem of the cut agent for a module on a cluster, by tables of its own.
 * AM_ERROR_INFEASIBLE: it has no such stages. */
AmStatus cut_agent_module(Chain *chain, ChainProblem *problem, Arena *arena, const PlanContext *context,
                          const Cluster *cluster, int32_t micro_batches, int32_t stages, AmError *error);

/* Finds the best `most` guesses by the tables, fastest first, without those that do not fit. */
AmStatus cut_agent_guess(PipelineLayout *pipelines, int32_t most, int32_t *count, const StageModel *model,
                         Agent *agent, AmError *error);

#endif
