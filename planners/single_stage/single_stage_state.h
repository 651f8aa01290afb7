/* The state of a search of one-stage plans, which the files of this folder share.
 *
 *     single_stage_search.c   begins and ends the search, makes the problems, runs the rounds
 *     baseline_prices.c       prices the baselines, each on its own mesh
 *     searchers.c             the table of the searchers that --searcher names
 *     exploration.c           shares the evaluations among the meshes, for the searchers that explore
 *     round_plans.c           makes plans of the best axis plans of a round, and chooses the result
 *     one_stage_shares.c      gives plans unequal shares on mixed devices
 */
#ifndef PLANNERS_SINGLE_STAGE_SINGLE_STAGE_STATE_H
#define PLANNERS_SINGLE_STAGE_SINGLE_STAGE_STATE_H

#include "cost/simulate/simulate.h"
#include "planners/improve/plan_climb.h"
#include "planners/single_stage/single_stage_search.h"

#define SEARCH_MOST_MESHES 64

/* The best plan of a problem when it got unequal shares last: seconds with equal ones. */
typedef struct ProblemShare {
    const StageProblem *problem;
    double seconds;
} ProblemShare;

/* Unequal shares of mixed devices (one_stage_shares.c). */
typedef struct SingleStageShares {
    int64_t left;    /* evaluations of the round that are left for shares */
    bool are_wanted; /* the round began with some */
    bool is_short;   /* shares may have ended because no evaluations were left */
    ProblemShare of[SEARCH_MOST_MESHES];
    int32_t count;
} SingleStageShares;

/* Climbs over single changes at the ends of rounds. */
typedef struct SingleStageClimbs {
    PlanClimb climb;
    int64_t used; /* evaluations, which the budget of the search has, too */
    double from;  /* seconds of the last plan that was climbed from */
} SingleStageClimbs;

typedef struct SingleStageRounds {
    int64_t size;          /* evaluations of the first round */
    int64_t for_overrides; /* evaluations of the present round for overrides (override_search.h) */
    uint64_t seed;         /* of the present round */
    bool has_episode;      /* SEARCHER_AUTO: the policy's plans are priced */
} SingleStageRounds;

/* A baseline as priced on its own mesh. */
typedef struct SingleStageBaseline {
    Plan *plan; /* NULL: it has no plan */
    StageProblem *problem;
    double least_seconds; /* of its meshes, whether it fits or not */
    bool is_priced;
} SingleStageBaseline;

typedef struct SingleStageSearch {
    /* -- the request -- */
    Arena *arena;
    const PlanContext *context; /* of the problems */
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
    PlanSpace space;              /* that of the scope, SPACE_SINGLE_STAGE for SPACE_AUTO */
    /* -- the result -- */
    SearchResult *result; /* its pool has the plans of all rounds */
    AmError refusal;      /* of the first plan that the user's decisions exclude */
    /* -- the space -- */
    StageProblem *problems[SEARCH_MOST_MESHES];
    int32_t problem_count;
    /* Problems of other numbers of micro-batches, which a policy opened (single_stage_split()). */
    StageProblem *others[SEARCH_MOST_MESHES];
    int32_t other_count;
    Scratch *scratch; /* of all problems */
    int32_t *devices; /* 0, 1, ... */
    /* -- the work -- */
    /* `used`: evaluations beside those of the problems, which count their own. `limit`: of both at the end of
     * the round, before overrides and shares. */
    SearchBudget budget;
    SingleStageRounds rounds;
    SingleStageShares shares;
    SingleStageClimbs climbs;
    SingleStageBaseline baselines[BASELINE_COUNT];
} SingleStageSearch;

/* Returns the recomputation of the search's module, or NULL. */
const PlanRecomputation *single_stage_recomputation(const SingleStageSearch *self);

/* Creates a problem of the search on a mesh of all devices, with at most `limit` evaluations. */
AmStatus single_stage_problem(StageProblem **problem, const SingleStageSearch *self, const Mesh *mesh,
                              int64_t limit, AmError *error);
/* Adds the problems of `problem`'s meshes with twice its micro-batches to the others; `*count` of them, 0
 * where the batch cannot be split so, or where the scope fixes the number. */
AmStatus single_stage_split(SingleStageSearch *self, const StageProblem *problem, int32_t *count,
                            AmError *error);
/* Makes the problems of this one's number of micro-batches those of the search, and the present ones others.
 */
void single_stage_take_number(SingleStageSearch *self, const StageProblem *problem);
/* Makes a plan of an axis plan, not yet priced, in the search's arena. */
AmStatus single_stage_plan(SingleStageSearch *self, const StageProblem *problem, const AxisPlan *axis_plan,
                           Plan **plan, AmError *error);
/* Simulates a plan in full and writes the prediction into it. Reports show these figures alone. All memory
 * but the plan is scratch memory, so that several threads may do so. */
AmStatus single_stage_simulate(const SingleStageSearch *self, Plan *plan, MemoryFit *fit, AmError *error);

/* Simulates an axis plan and adds it to the pool. */
AmStatus single_stage_add(SingleStageSearch *self, const StageProblem *problem, const AxisPlan *axis_plan,
                          PlanOrigin origin, AmError *error);

/* Returns whether a baseline that fits is a candidate. */
bool single_stage_has_baseline(const SingleStageSearch *self);
/* Adds the baselines that fit. */
void single_stage_add_baselines(SingleStageSearch *self);
/* Adds the best axis plan of the round with overrides, then with unequal shares and single changes. */
AmStatus single_stage_end_round(SingleStageSearch *self, AmError *error);
/* Adds the baselines, takes the best plan and bounds its space. `start`: seconds of the clock at the
 * begin. */
AmStatus single_stage_finish(SingleStageSearch *self, double start, AmError *error);
/* Fails because no one-stage plan has the fixed degrees. */
AmStatus single_stage_fail_degrees(const SingleStageSearch *self, AmError *error);

/* Returns whether the search is interrupted, or beyond the deadline. */
bool single_stage_must_end(const SingleStageSearch *self);
/* Returns the evaluations used, with those of the problems. */
int64_t single_stage_evaluations(const SingleStageSearch *self);
/* Returns budget_left() after the evaluations of the problems. */
int64_t single_stage_left(const SingleStageSearch *self);
/* Sets the problem's cap to its evaluations so far plus those that the search has left. False: none are left,
 * and the search is cut. */
bool single_stage_cap(SingleStageSearch *self, StageProblem *problem);
/* Sorts the problems by their best plans so far, best first. */
void single_stage_sort(SingleStageSearch *self);

/* Writes the baseline's axis plan on this mesh, beside the pins, or the reason why the mesh has none. */
AmStatus baseline_axis_plan(const StageProblem *problem, Baseline baseline, AxisPlan *axis_plan,
                            const char **reason, AmError *error);
/* Prices every baseline on the problem's mesh, so that searchers can start from them. */
AmStatus baseline_price_seeds(StageProblem *problem, AmError *error);
/* Prices one baseline, or side by side all that are not priced yet, on its own mesh. They do not count as
 * evaluations. After an interrupt or the deadline those that are left have no price. */
AmStatus baseline_price(SingleStageSearch *self, Baseline baseline, AmError *error);
AmStatus baseline_price_all(SingleStageSearch *self, AmError *error);

/* Evaluations for unequal shares, out of `limit` if the scope has it; 0 where shares are equal: no axis of
 * a mesh has coordinates of different devices, or the request asks for equal ones. */
int64_t single_stage_share_evaluations(const SingleStageSearch *self, int64_t limit);
/* Gives unequal shares to the baselines that take at most `near` times as long as the fastest, before the
 * searcher, and to the best plan of a problem, unless that has had them: small budgets have them, too. The
 * round's plans lose no evaluations by this. */
AmStatus single_stage_share_baselines(SingleStageSearch *self, double near, AmError *error);
AmStatus single_stage_share_problem(SingleStageSearch *self, const StageProblem *problem, AmError *error);
/* Replaces the plan by one with unequal shares where that is quicker, or fits where the plan does not. */
AmStatus single_stage_share(SingleStageSearch *self, Plan **plan, MemoryFit *fit, AmError *error);

/* Runs the searcher of the scope on all problems. */
AmStatus search_method_run(SingleStageSearch *self, AmError *error);

#endif
