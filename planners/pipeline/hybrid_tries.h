/* Plans that a search over the hybrid space simulates: all of them in order, the best, and how many more it
 * may. The same whatever the number of threads. */
#ifndef PLANNERS_PIPELINE_HYBRID_TRIES_H
#define PLANNERS_PIPELINE_HYBRID_TRIES_H

#include "planners/pipeline/hybrid_plan.h"

enum { HYBRID_MOST_TRIED = 256, HYBRID_BATCH = 2 /* simulated side by side */ };

typedef struct HybridTries {
    HybridPlans plans;
    LayerCosts *costs;
    HybridModel *model;                  /* tables of the costs; NULL: not made yet */
    HybridTry *best;                     /* of those that fit; or NULL */
    HybridTry *tries[HYBRID_MOST_TRIED]; /* all that were simulated, in order */
    int32_t try_count;
    bool is_settled[HYBRID_MOST_TRIED]; /* [try]: its cuts need not be moved again */
    CandidatePool pool;                 /* all of them, and what was made of them */
    AmError refusal;                    /* of the first pipeline that could not be made */
    int64_t evaluations;
    bool is_cut;                      /* SearchOptions.cap has left something out: nothing may follow */
    int64_t most_tries, most_changes; /* simulated pipelines; changes of the best of them */
    int64_t most_single_changes;      /* of the best one-stage plan */
    StopSignal stop;
} HybridTries;

/* The remaining evaluations; pipelines may use half of those that remain when their tables are
 * made. */
int64_t hybrid_evaluations_left(const HybridTries *self);
/* The evaluations that are kept for shares of mixed devices of the best pipeline; 0 where there are too few.
 */
int64_t hybrid_shares_reserve(const HybridTries *self);
/* Sets how many pipelines are simulated at most, and how many changes of the best. */
void hybrid_allow_tries(HybridTries *self);
/* Interrupted, out of time, or cut by the cap. */
bool hybrid_must_stop(const HybridTries *self);
/* Evaluations that the cap leaves: INT64_MAX without one. */
int64_t hybrid_cap_left(const HybridTries *self);
/* Returns whether the cap leaves fewer than `more` evaluations; if so, the search is marked as cut. */
bool hybrid_is_capped(HybridTries *self, int64_t more);
ScheduleKind hybrid_wanted_schedule(const SearchOptions *options);

/* Simulates one, also where the search is stopped from the start. */
AmStatus hybrid_try_one(HybridTries *self, HybridTry *try, AmError *error);
/* Simulates tries, HYBRID_BATCH at a time; `best` is then up to date. They must live as long as the plans'
 * arena. */
AmStatus hybrid_try_all(HybridTries *self, HybridTry *tries, int32_t count, AmError *error);
/* Simulates pipelines. Modules in micro-batches serve several of them and are made at once; those
 * with recomputation are made one by one, since most belong to one pipeline. */
AmStatus hybrid_try_pipelines(HybridTries *self, const HybridPipeline *pipelines, int32_t count,
                              AmError *error);
bool hybrid_was_tried(const HybridTries *self, const HybridPipeline *pipeline);

/* Returns whether candidate_is_better() puts try `a` before `b`. */
bool hybrid_is_before(const HybridTry *a, const HybridTry *b);

#endif
