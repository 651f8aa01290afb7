/* The pipelines of a search as choices of the policy (stage_choices.h): those that the tables found, and
 * those that were simulated. All plans that the policy prices are candidates of the search. */
#ifndef PLANNERS_PIPELINE_PIPELINE_POLICY_H
#define PLANNERS_PIPELINE_PIPELINE_POLICY_H

#include "planners/pipeline/pipeline_candidates.h"
#include "planners/single_stage/stage_choices.h"

typedef struct PipelinePolicy PipelinePolicy;

/* Returns whether the policy continues from the pipelines of the tables, so that the search changes none of
 * them, and simulates no plan that the policy has itself. */
bool pipeline_policy_chooses(const PipelineCandidates *candidates);

/* Lists the choices: none where pins or a target restrict the plans of stages. `candidates` must outlive the
 * policy. */
AmStatus pipeline_policy_open(PipelinePolicy **policy, PipelineCandidates *candidates, AmError *error);
void pipeline_policy_close(PipelinePolicy *policy);

const StageChoices *pipeline_policy_choices(const PipelinePolicy *policy);

#endif
