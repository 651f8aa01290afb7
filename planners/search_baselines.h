/* Plans that are known before a search, which no result may be slower than: baselines of one and several
 * stages, and a given plan. */
#ifndef PLANNERS_SEARCH_BASELINES_H
#define PLANNERS_SEARCH_BASELINES_H

#include "planners/search_context.h"

/* Adds every one-stage baseline with its best number of micro-batches: of the numbers that the settings
 * allow, the smallest that fits and larger ones as long as they are faster. `is_first_done`: the result has
 * those of the smallest number. `only` [BASELINE_COUNT], or NULL: the number of each one, 0 leaves it out.
 * The choice depends on the module and the cluster alone. They are not counted as evaluations. */
AmStatus search_add_stage_baselines(SearchResult *result, SearchContext *self, bool is_first_done,
                                    const int32_t *only, const SearchScope *scope, AmError *error);

/* Adds the pipeline baselines to a result, without `only` to one with a plan: with one micro-batch,
 * with as many as the plan has, and from there with more or fewer as long as that is faster; of a large
 * module also only as long as it may win. One that fits with neither begins with the largest number.
 * `is_large`: not with one micro-batch, but with eight where the plan has one. `only` [BASELINE_COUNT], or
 * NULL: the number of micro-batches of each one, 0 leaves it out. They are not counted as evaluations. */
AmStatus search_add_pipeline_baselines(SearchResult *result, SearchContext *self, bool is_large,
                                       const int32_t *only, const SearchScope *scope, AmError *error);

/* Returns whether the limits leave time for pipeline baselines, which take some time to price. */
bool search_may_price_pipelines(const SearchContext *search);
/* Gives the pipeline baselines the reason for which they have no price. */
void search_leave_out_pipelines(SearchResult *result);

/* Prices the baselines with selective and full recomputation beside the plan of a search: each with the
 * number of micro-batches of its form without recomputation, and with smaller and larger ones as long as they
 * are faster; with the largest number first where the baseline or that form does not fit. One that is faster
 * than the plan replaces it. They are not counted as evaluations. For a large module only those are priced
 * that may be near the plan by the estimates of the result. A search with a time limit, and one for a target
 * get reasons alone. */
AmStatus search_add_recomputed_baselines(SearchContext *self, AmError *error);
/* Searches the plan of scope->baseline, which recomputes: its fastest number of micro-batches. Pipelines
 * have equal stages of whole layers (strategy.h). AM_ERROR_INFEASIBLE has the reason why it has no plan. */
AmStatus search_recomputed_baseline(SearchContext *self, AmError *error);

/* -- baselines outside of the rounds -- */

/* Gives the fastest one-stage baselines unequal shares on mixed devices, before all other plans. One
 * evaluation is left for a given plan. */
AmStatus search_share_baselines(SearchContext *search, AmError *error);

/* Adds the plans that every budget has: the one-stage baselines, each with its best number of
 * micro-batches, or the unsplit plan, and, if the module is small, those of several stages with the least
 * number. They depend on the module, the cluster and the request alone, and take no evaluation. */
AmStatus search_add_floor(SearchContext *self, AmError *error);

/* Prices the one-stage baselines although the time is up, until one fits: a search without any other plan
 * returns it rather than none. */
AmStatus search_add_late_baselines(SearchContext *self, AmError *error);

/* -- a given plan -- */

/* Adds scope->request->space.initial unchanged, where no other source does: it has one stage, and the
 * request does not restrict it. */
AmStatus search_add_given(SearchContext *self, AmError *error);

/* Returns AM_ERROR_INPUT if a plan to start from (NULL: none) has replicas or devices that the cluster lacks,
 * or lacks some. */
AmStatus search_check_given(const Plan *given, const Cluster *cluster, AmError *error);

#endif
