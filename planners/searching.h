/* What the parts of a search share: search.c begins and ends it, expert_quotes.c prices the recipes, and
 * search_methods.c is the table of searchers. */
#ifndef PLANNERS_SEARCHING_H
#define PLANNERS_SEARCHING_H

#include "cost/simulate.h"
#include "planners/plan_climb.h"
#include "planners/search.h"

#define SEARCH_MOST_MESHES 64

typedef struct Searching {
    Arena *arena;
    const PlanContext *context;
    const Cluster *cluster;
    const SearchOptions *options;
    Scratch *scratch; /* of all problems */
    int64_t cap;      /* evaluations of the whole search, 0: none */
    bool is_cut;      /* the cap has left something out: nothing may follow */
    int64_t limit;    /* evaluations of all problems together up to the end of the round, but for */
    int64_t refining; /* those that come after (refine.h) */
    int64_t sharing;  /* and those left for shares of mixed devices */
    int64_t shared;   /* of these, used */
    bool may_share;   /* there were some */
    int64_t climbed;  /* evaluations of climbs over single changes */
    PlanClimb climb;
    double climbed_from; /* seconds of the last plan that was climbed from */
    int64_t round_size;  /* evaluations of the first round */
    uint64_t seed;
    Plan *plan;    /* the best of all rounds, or NULL */
    MemoryFit fit; /* its */
    double deadline;
    SearchResult *result;
    int32_t *devices; /* 0, 1, ... */
    Problem *problems[SEARCH_MOST_MESHES];
    int32_t problem_count;
    Plan *expert_plans[EXPERT_COUNT]; /* as quoted; NULL where there is none */
    Problem *expert_problems[EXPERT_COUNT];
    bool is_quoted[EXPERT_COUNT];
} Searching;

/* A problem of the search on a mesh of all devices, with at most `limit` evaluations. */
AmStatus searching_problem(Problem **problem, const Searching *self, const Mesh *mesh, int64_t limit,
                           AmError *error);
/* A genome as a plan that is not yet priced, in the search's arena. */
AmStatus searching_plan(Searching *self, const Problem *problem, const Genome *genome, Plan **plan,
                        AmError *error);
/* Simulates a plan in full and writes what it predicts into it; figures that are shown are always these. All
 * but `plan` is scratch memory, so that several threads may do so. */
AmStatus searching_simulate(const Searching *self, Plan *plan, MemoryFit *fit, AmError *error);

bool searching_is_interrupted(const Searching *self);
/* Interrupted, or beyond the deadline. */
bool searching_must_end(const Searching *self);
int64_t searching_evaluations(const Searching *self);
/* Evaluations that the cap leaves. */
int64_t searching_left(const Searching *self);
/* Sets the problem's cap to its evaluations so far and what is left of the search's; false: nothing is left,
 * and the search is cut. */
bool searching_cap(Searching *self, Problem *problem);
/* Problems by their best plan so far, best first. */
void searching_sort(Searching *self);

/* The recipe's genome on this mesh, beside the pins; or why there is none. */
AmStatus expert_genome(const Problem *problem, Expert expert, Genome *genome, const char **reason,
                       AmError *error);
/* Prices every recipe on the problem's mesh, as starts. */
AmStatus expert_price_seeds(Problem *problem, AmError *error);
/* Quotes one recipe beside the result, or all that are not quoted yet side by side: on the mesh that is its
 * own. They are no evaluations of the search. After an interrupt or the deadline those that are left have no
 * price. */
AmStatus expert_quote(Searching *self, Expert expert, AmError *error);
AmStatus expert_quote_all(Searching *self, AmError *error);

/* Evaluations for unequal shares, out of `limit` if the options name it; 0 where shares are equal: no axis of
 * a mesh has coordinates of different devices, or the options ask for equal ones. */
int64_t searching_share_evaluations(const Searching *self, int64_t limit);
/* Replaces the plan by one with unequal shares where that is quicker, or fits where the plan does not. */
AmStatus searching_share(Searching *self, Plan **plan, MemoryFit *fit, AmError *error);

/* Lets the searcher that the options name do its work on all problems. */
AmStatus search_method_run(Searching *self, AmError *error);
/* Returns whether a recipe's own plan may be handed out in place of what the searcher found. */
bool search_method_takes_experts(Searcher searcher);
/* Returns whether it looks for good plans, and knows of none that it is the best. */
bool search_method_explores(Searcher searcher);
/* Returns whether more evaluations are spent in rounds; an exact search has passes of its own. */
bool search_method_has_rounds(Searcher searcher);

#endif
