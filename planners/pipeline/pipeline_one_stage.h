/* One-stage plans and one micro-batch, which belong to the hybrid space besides its pipelines.
 * Docs: docs/planning.md, hybrid plans, step 5. */
#ifndef PLANNERS_PIPELINE_PIPELINE_ONE_STAGE_H
#define PLANNERS_PIPELINE_PIPELINE_ONE_STAGE_H

#include "planners/pipeline/pipeline_candidates.h"
#include "planners/problem/search_result.h"

PipelineLayout pipeline_one_stage_layout(const PipelineCandidates *self, const StageStrategy *strategy);

/* Prices the strategies of a large module that may be the best plan by the tables and were not tried. */
AmStatus pipeline_one_stage_price(PipelineCandidates *self, AmError *error);

/* Searches one-stage plans by the searcher of their own space, with the baselines; not of a large module
 * that is faster in several stages. `single`: zeroed; its pool is empty where none was searched for or
 * found. */
AmStatus pipeline_one_stage_search(SearchResult *single, PipelineCandidates *self, AmError *error);
/* Adds the best candidate with overrides, where it has one stage and is better than the best plan of
 * `single`, since its axis priorities were changed like those of pipelines. */
AmStatus pipeline_one_stage_add_overrides(const SearchResult *single, PipelineCandidates *self,
                                          AmError *error);

#endif
