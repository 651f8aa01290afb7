/* Plans that a search over the hybrid space simulates: all of them in order, the best, and how many more it
 * may. The same whatever the number of threads. */
#ifndef PLANNERS_PIPELINE_PIPELINE_CANDIDATES_H
#define PLANNERS_PIPELINE_PIPELINE_CANDIDATES_H

#include "planners/pipeline/device_orders.h"
#include "planners/pipeline/pipeline_plans.h"
#include "planners/problem/candidate_pool.h"

enum { PIPELINE_MOST_PRICED = 256, PIPELINE_BATCH = 2 /* simulated side by side */ };

typedef struct PipelineCandidates {
    PipelinePlans plans;
    LayerCosts *costs;
    StageModel *model;           /* tables of the costs; NULL: not made yet */
    const PipelineLayout *found; /* [found_count] by the tables, fastest first; some of them are simulated */
    int32_t found_count;
    DeviceOrders orders;                             /* of mixed servers, beside that of the cluster */
    PipelineCandidate *best;                         /* of those that fit; or NULL */
    PipelineCandidate *priced[PIPELINE_MOST_PRICED]; /* all that were simulated, in order */
    int32_t priced_count;
    bool is_settled[PIPELINE_MOST_PRICED]; /* [candidate]: its cuts need not be moved again */
    CandidatePool pool;                    /* all of them, and their improved plans */
    AmError refusal;                       /* of the first pipeline that could not be made */
    SearchBudget budget;                   /* `limit`: INT64_MAX where the scope has none */
    int64_t most_candidates, most_changes; /* simulated pipelines; changes of the best of them */
    int64_t most_single_changes;           /* of the best one-stage plan */
} PipelineCandidates;

/* Returns the remaining evaluations; pipelines may use half of those that remain when their tables are
 * made. */
int64_t pipeline_evaluations_left(const PipelineCandidates *self);
/* Returns the evaluations that are kept for shares of mixed devices of the best pipeline; 0 where there are
 * too few. */
int64_t uneven_shares_reserve(const PipelineCandidates *self);
/* Sets how many pipelines are simulated at most, and how many changes of the best. */
void pipeline_allow_candidates(PipelineCandidates *self);
/* Returns whether the search is interrupted, out of time, or cut by the cap. */
bool pipeline_must_stop(const PipelineCandidates *self);
ScheduleKind pipeline_wanted_schedule(const SearchScope *scope);

/* Simulates one, also where the search is stopped from the start. */
AmStatus pipeline_price_one(PipelineCandidates *self, PipelineCandidate *candidate, AmError *error);
/* Simulates candidates, PIPELINE_BATCH at a time; `best` is then up to date. They must live as long as the
 * plans' arena. */
AmStatus pipeline_price_all(PipelineCandidates *self, PipelineCandidate *candidates, int32_t count,
                            AmError *error);
/* Simulates pipelines. Modules in micro-batches serve several of them and are made at once; those
 * with recomputation are made one by one, since most belong to one pipeline. */
AmStatus pipeline_price_layouts(PipelineCandidates *self, const PipelineLayout *pipelines, int32_t count,
                                AmError *error);
bool pipeline_was_priced(const PipelineCandidates *self, const PipelineLayout *pipeline);

/* Returns whether candidate_is_better() puts candidate `a` before `b`. */
bool pipeline_is_before(const PipelineCandidate *a, const PipelineCandidate *b);

#endif
