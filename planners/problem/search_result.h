/* The result of a search, and of each of its parts: the candidates, the best of them, and the baselines. */
#ifndef PLANNERS_PROBLEM_SEARCH_RESULT_H
#define PLANNERS_PROBLEM_SEARCH_RESULT_H

#include "cost/step/memory.h"
#include "planners/problem/baseline_list.h"
#include "planners/problem/candidate_pool.h"

/* The Pareto front of choices of devices, fastest first: each is faster or cheaper than any other choice. */
typedef struct DeviceFrontRow {
    const int32_t *of_type; /* [type] devices */
    double seconds, price_per_step;
    bool is_chosen; /* the plan of the result has these devices */
} DeviceFrontRow;

typedef struct DeviceFront {
    DeviceFrontRow *rows; /* [count] */
    int32_t count;
} DeviceFront;

/* The reason of a baseline that is too slow on a sample of the layers to be priced on all. */
#define BASELINE_IS_FAR "on a sample of the layers it is far from the best"

typedef struct BaselineResult {
    double seconds;        /* NAN: no such plan, or it does not fit */
    const char *reason;    /* why not, else NULL */
    int32_t micro_batches; /* of that step */
    const char *recompute; /* "full" or "selective" recomputation of its layers; NULL: none */
    int64_t needed_bytes;  /* of the fullest device, where it does not fit; else 0 */
    bool is_of_other_form; /* of the module than the plan */
} BaselineResult;

/* The fastest step of a baseline by the tables of stages: a screen, not a price. */
typedef struct BaselineEstimate {
    double seconds;        /* INFINITY: no number of micro-batches fits */
    int32_t micro_batches; /* of that step; 0: there is no estimate */
} BaselineEstimate;

/* Returns whether a price is the first of a baseline, or faster than the best so far; NAN is none. */
bool baseline_is_faster(double seconds, const BaselineResult *best);
/* Returns whether a baseline lacks memory, and `other` lacks more of it or has another reason. */
bool baseline_lacks_less(const BaselineResult *baseline, const BaselineResult *other);

typedef struct SearchResult {
    CandidatePool pool; /* the candidates of all parts, in the caller's arena */
    Plan *plan;         /* pool_best() */
    BaselineResult baselines[BASELINE_COUNT];
    BaselineEstimate estimates[BASELINE_COUNT]; /* of those with recomputation, for a large module */
    int64_t evaluations;
    bool is_cut;             /* SearchBudget.is_cut at the end of the search */
    int64_t space_size;      /* SEARCHER_EXHAUSTIVE: plans in the space, else 0 */
    double bound_seconds;    /* SEARCHER_EXACT: no plan of the space takes less; else 0 */
    bool is_exact;           /* the result is the best plan of the space */
    double model_gap;        /* of the plan (bound.h); NAN */
    const char *exact_space; /* which that is, in words; or NULL */
    double search_seconds;
    bool interrupted;
    bool has_baselines;       /* all one-stage baselines were priced, with the micro-batches of the search */
    Plan *nearest;            /* pool_nearest(): AM_ERROR_INFEASIBLE for lack of memory */
    MemoryFit nearest_fit;    /* of its device with least room */
    const DeviceFront *front; /* explores_prices; else NULL */
    const struct PaperReport *paper; /* OBJECTIVE_PAPER, else NULL */
} SearchResult;

/* Empties a result: no plans, no baselines, and an unknown model gap. */
void search_result_clear(SearchResult *result);
/* Sets `plan`, `nearest` and `nearest_fit` by the pool. */
void search_result_choose(SearchResult *result);
/* Adds a plan that fits to the result, and takes it if it is the best. */
void search_result_add(SearchResult *result, Plan *plan, PlanOrigin origin, const char *note);
/* Adds the candidates, the baselines and the counts of a part to a result. */
void search_result_merge(SearchResult *result, const SearchResult *found);
/* Takes the baselines of another form of the module that are faster, or lack less memory. */
void search_result_add_form(SearchResult *result, const SearchResult *other);

#endif
