/* The lower bound on the step of every plan of a search over any number of stages (bounds/bound.h), and its
 * place in the plan and in the progress of the search.
 */
#ifndef PLANNERS_SEARCH_BOUND_H
#define PLANNERS_SEARCH_BOUND_H

#include "base/system/parallel.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/search_context.h"

/* Gives the watch a bound that is quick to compute, until the search has its own. */
AmStatus search_show_bound(const SearchContext *self, AmError *error);

/* Returns whether the bound of a result is that over any number of stages. */
bool search_bounds_stages(const SearchResult *result, const SearchScope *scope);

/* Returns the schedules of pipelines that the bound covers, bits by ScheduleKind: the requested one, else
 * those of BOUND_FILLED that the search may propose; and that of the plan. A search may propose ZB-H2 and
 * interleaved pipelines as well, which would weaken the bound. */
uint32_t search_bounded_schedules(const SearchRequest *request, const Plan *plan);

/* A bound that is found beside a search, for the plan that it will probably have. */
typedef struct BoundAhead {
    ParallelTask task;
    bool is_begun, is_done;
    const PlanContext *primary;
    const Cluster *cluster;
    BoundSpace space;
    PlanBound bound;
    AmStatus status;
    AmError error;
} BoundAhead;

/* Begins the bound over any number of stages for a plan of a sample of `self->primary`, if the scope has a
 * place for it. */
void search_bound_begin(const SearchContext *self, const Plan *plan);
/* Waits for the thread of the bound, if it has one. */
void search_bound_wait(BoundAhead *ahead);

/* Writes into the plan a lower bound on the step of every plan with the requested micro-batches: of one
 * stage, or of several under search_bounded_schedules(). Writes into the result the model gap of the plan's
 * stages. A bound of the same space that was begun is taken. */
AmStatus search_bound_plan(SearchResult *result, const PlanContext *primary, const Cluster *cluster,
                           const SearchScope *scope, int32_t micro_batches, const StopSignal *stop,
                           AmError *error);

#endif
