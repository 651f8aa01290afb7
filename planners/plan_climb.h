/* Hill climb over the single changes of a plan that `explain` prices: other numbers of micro-batches and
 * schedules, gathered weights kept or not, cuts one unit away, overrides and decisions taken out.
 *
 * Each change is completed, lowered and simulated; that is one evaluation. The best change of a batch is
 * taken if it shortens the step by more than PLAN_CLIMB_GAIN; the climb ends when a pass over all changes
 * finds none.
 */
#ifndef PLANNERS_PLAN_CLIMB_H
#define PLANNERS_PLAN_CLIMB_H

#include "base/stop.h"
#include "planners/search.h"

#define PLAN_CLIMB_GAIN 1e-3

typedef struct PlanClimb {
    PlanContext *whole; /* the module as read; owns the contexts of other numbers of micro-batches */
    const Cluster *cluster;
    const SearchOptions *options;
    bool keeps_micro_batches; /* the number is given */
    StopSignal stop;
    int64_t cap;         /* evaluations of this climb at most; 0: no limit */
    int64_t evaluations; /* out */
    bool is_cut;         /* out: the cap or the stop signal ended the climb */
} PlanClimb;

/* Returns whether the options leave plans to change: no pins, no kept shardings, a searcher that explores. */
bool plan_climb_applies(const SearchOptions *options);

/* The part of a search's default evaluations that is left to the climb. */
int64_t plan_climb_reserve(const SearchOptions *options, int64_t evaluations);

/* Replaces `*plan` by the plan at the end of the climb, made in `arena`. A plan that cannot be simulated
 * stays as it is. */
AmStatus plan_climb(Plan **plan, PlanClimb *self, Arena *arena, AmError *error);

#endif
