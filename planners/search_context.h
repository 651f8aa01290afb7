/* The state that all parts of one plan_search() share: module, cluster, scope, budget and result. */
#ifndef PLANNERS_SEARCH_CONTEXT_H
#define PLANNERS_SEARCH_CONTEXT_H

#include "planners/improve/plan_climb.h"
#include "planners/problem/search_watch.h"
#include "planners/single_stage/single_stage_search.h"

typedef struct SearchContext {
    SearchResult *result; /* its pool receives the candidates of every round */
    Arena *arena;         /* of plans */
    PlanContext *primary; /* the module as read */
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    int32_t micro_batches; /* of the part in work: that of the scope, or one that plan_search() chose */
    SearchBudget budget;   /* no cap: the rounds of the default budget */
    bool has_floor;        /* the plans that every budget has are among the candidates */
    int64_t most_climbed;  /* plans that a climb prices; 0: the budget alone limits it */
    double enough_seconds; /* a baseline that fits and is as fast ends their pricing; 0: none does */
    PlanClimb climb;       /* of all rounds, so that no plan is priced twice */
} SearchContext;

/* Starts the clock of a search that adds to the result. The caller closes the climb. */
SearchContext search_context(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                             const SearchScope *scope);

/* Adds the evaluations of a part to those used. */
void search_spend(SearchContext *self, const SearchResult *found);

/* Returns the error of a part of a search; AM_OK if it has a plan, or has none because nothing fits. */
AmStatus search_check_part(AmStatus status, const AmError *failure, AmError *error);

/* Adds the end of a climb from the result's plan over single changes; with `has_rival` also from the fastest
 * plan with another number of stages or micro-batches, if it is nearly as fast. */
AmStatus search_add_climb(SearchResult *result, SearchContext *self, bool has_rival, AmError *error);
/* Adds the best plan of restarts from the result's plan, of about `size` evaluations. */
AmStatus search_add_restarts(SearchResult *result, SearchContext *self, int64_t size, uint64_t seed,
                             AmError *error);

#endif
