/* Hill climb over the single changes of a plan that `explain` prices: other numbers of micro-batches and
 * schedules, gathered weights kept or not, cuts one unit away, overrides and decisions taken out. Prefixes of
 * axis priorities and swaps of devices (plan_moves.h) are changes, too.
 *
 * Each change is completed, lowered and simulated; that is one evaluation. The best change of a batch is
 * taken if it shortens the step by more than PLAN_CLIMB_GAIN; the climb ends when a pass over all changes
 * finds none. A plan that was priced before takes no evaluation.
 */
#ifndef PLANNERS_IMPROVE_PLAN_CLIMB_H
#define PLANNERS_IMPROVE_PLAN_CLIMB_H

#include "planners/explain/explain_parts.h"
#include "planners/problem/price_memo.h"
#include "planners/problem/search_scope.h"

#define PLAN_CLIMB_GAIN    1e-3
#define PLAN_CLIMB_PROMISE 3e-3
#define PLAN_CLIMB_BATCH   2 /* plans that are simulated side by side, whatever the number of threads */

/* The climbs of one search. */
typedef struct PlanClimb {
    PlanContext *primary; /* the module as read; owns the contexts of other numbers of micro-batches */
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    bool keeps_micro_batches;     /* the number is given */
    bool keeps_devices;           /* no swaps: they lead from one order of mixed servers to another */
    SearchBudget budget;          /* a part of the search's; `limit` is not used */
    const int32_t *places; /* [place_count] of cuts, ascending; NULL before the first plan_climb_open() */
    int32_t place_count;
    PriceMemo memo;                  /* of plan_memo.h */
    Arena scratch[PLAN_CLIMB_BATCH]; /* of the simulations of a batch */
    Arena of_base;                   /* of the changes of the present plan */
} PlanClimb;

/* Returns whether the scope leaves plans to change: no kept shardings, a searcher that
 * explores. */
bool plan_climb_applies(const SearchScope *scope);

/* Returns the number of a search's default evaluations that is left to the climb. */
int64_t plan_climb_reserve(const SearchScope *scope, int64_t evaluations);

/* Begins to use self->budget. `arena` outlives all climbs of `self`. */
AmStatus plan_climb_open(PlanClimb *self, Arena *arena, AmError *error);
/* Replaces `*plan` by the plan at the end of the climb, made in `arena`. A plan that cannot be
 * simulated is unchanged. The climb lists no further changes after `limit` evaluations (0: eight
 * passes). */
AmStatus plan_climb(Plan **plan, PlanClimb *self, int64_t limit, Arena *arena, AmError *error);
void plan_climb_close(PlanClimb *self);

/* ---- parts of a climb, which restarts use, too ---- */

/* A plan with its single changes. */
typedef struct ClimbBase {
    Arena *arena;
    Explanation explanation;
    Explainer explainer;
    json_t *root;
} ClimbBase;

/* Climbs from two plans. Each one climbs as long as 32 evaluations shorten its step by PLAN_CLIMB_PROMISE;
 * the faster one then climbs to its end. `is_short`: each one has 8 evaluations, once. */
AmStatus plan_climb_rivals(Plan **plan, Plan *rival, PlanClimb *self, bool is_short, Arena *arena,
                           AmError *error);

/* One plan of a batch. */
typedef struct ClimbStep {
    const Plan *plan;
    uint64_t key; /* plan_memo_key() */
    AmStatus status;
    AmError error;
    Simulation *simulation;
    double seconds; /* NAN: refused, or too large */
} ClimbStep;

typedef struct ClimbBatch {
    ClimbStep steps[PLAN_CLIMB_BATCH];
    int32_t count;
    ClimbStep *best;     /* the fastest that fits, or NULL */
    double most_seconds; /* plans that certainly take longer need no exact price; 0: all do */
} ClimbBatch;

/* Simulates the plan and lists its changes in `arena`, which plan_climb_unlist() empties, after errors,
 * too. */
AmStatus plan_climb_list(ClimbBase *base, const Plan *plan, const PlanClimb *self, Arena *arena,
                         AmError *error);
void plan_climb_unlist(ClimbBase *base);
/* Adds a plan to a batch that has room. False: it is known to be no faster than `seconds`. */
bool plan_climb_add(ClimbBatch *batch, const Plan *plan, double seconds, PlanClimb *self);
/* Simulates the batch, as far as the cap allows. Plans share their unchanged parts with that of `base`. */
AmStatus plan_climb_price(ClimbBatch *batch, PlanClimb *self, const ClimbBase *base, AmError *error);
/* Copies a step's plan into `arena`, with its prediction and with the origin and the bound of `*plan`. */
AmStatus plan_climb_take(Plan **plan, const ClimbStep *step, const PlanClimb *self, Arena *arena,
                         AmError *error);
/* Ends a batch and empties the scratch memory. */
void plan_climb_clear(ClimbBatch *batch, PlanClimb *self);

#endif
