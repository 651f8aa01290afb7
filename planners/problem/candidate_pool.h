/* Candidates: the plans that the parts of a search have simulated, and which of them is best.
 *
 * Every part adds its plans to a pool. One comparison orders them: a plan that fits is better than one that
 * does not; of plans that fit, the one with the shorter step; of plans that do not, the one that needs the
 * smaller fraction of a device's memory. At a tie the candidate that was added first stays.
 *
 * The pool keeps the best candidate of all and of each part, and the fastest ones for further work: for each
 * target (exports), of each shape and order of devices (climbs), and of each structure (measurements).
 */
#ifndef PLANNERS_PROBLEM_CANDIDATE_POOL_H
#define PLANNERS_PROBLEM_CANDIDATE_POOL_H

#include "cost/step/memory.h"
#include "planners/targets/target.h"

typedef struct PlanCandidate {
    Plan *plan;     /* simulated; NULL: no candidate */
    double seconds; /* its step */
    MemoryFit fit;  /* whether it fits, and the fraction of memory that it needs */
    PlanOrigin origin;
    const char *note; /* the name of a baseline; or NULL */
} PlanCandidate;

enum { POOL_OF_TARGET = 4, POOL_SHAPES = 3, POOL_ORDERS = 6, POOL_STRUCTURES = 64 };
enum {
    POOL_CANDIDATES =
        1 + PLAN_ORIGIN_COUNT + TARGET_COUNT * POOL_OF_TARGET + POOL_SHAPES + POOL_ORDERS + POOL_STRUCTURES
};

typedef struct CandidatePool {
    PlanCandidate best;                  /* of all parts */
    PlanCandidate of[PLAN_ORIGIN_COUNT]; /* of each part */
    /* The fastest that fit of those that pass target_check_plan(), fastest first. */
    PlanCandidate on[TARGET_COUNT][POOL_OF_TARGET];
    /* The fastest that fits of each number of stages and of micro-batches, fastest first. */
    PlanCandidate shapes[POOL_SHAPES];
    /* The fastest that fits of each order of the devices, fastest first. */
    PlanCandidate orders[POOL_ORDERS];
    /* The fastest that fits of each structure, fastest first. */
    PlanCandidate structures[POOL_STRUCTURES];
} CandidatePool;

/* Returns whether a plan with this step and memory is better than another one, by the order above. */
bool plan_is_better(double seconds, const MemoryFit *fit, double than_seconds, const MemoryFit *than_fit);
/* Returns whether a candidate is better than another one; any is better than none. */
bool candidate_is_better(const PlanCandidate *a, const PlanCandidate *b);

/* Returns whether two plans have as many stages and micro-batches. */
bool plan_has_same_shape(const Plan *a, const Plan *b);
/* Returns whether the stages of two plans, one after another, have the same devices in the same order. */
bool plan_has_same_order(const Plan *a, const Plan *b);
/* Returns whether two plans of one module have the same numbers of stages and micro-batches, the same
 * schedule and meshes, axis priorities that begin with the same classes, the same storage in shards, and
 * recompute in the same stages. Cuts, overrides and further classes may differ. */
bool plan_has_same_structure(const Plan *a, const Plan *b);

/* Adds a simulated plan, which must outlive the pool and must not change. */
void pool_add(CandidatePool *pool, Plan *plan, const MemoryFit *fit, PlanOrigin origin, const char *note);
/* Adds the candidates of another pool. */
void pool_merge(CandidatePool *pool, const CandidatePool *other);

/* Returns whether the pool keeps the plan as one of its candidates. */
bool pool_has(const CandidatePool *pool, const Plan *plan);
/* Writes the contexts of the candidates to contexts[0..POOL_CANDIDATES), that of a plan once for each of its
 * places, and returns their number. */
int32_t pool_contexts(const PlanContext **contexts, const CandidatePool *pool);
/* Returns the best plan that fits; NULL: none. */
Plan *pool_best(const CandidatePool *pool);
/* Returns the plan of another structure that needs the least memory, less than the best plan, of those that
 * take at most `near` times as long as that; NULL: none. A climb from it has room for more changes. */
Plan *pool_leanest(const CandidatePool *pool, double near);
/* Returns the candidate that lacks the least memory, if none fits; NULL: one fits, or the pool is empty. */
const PlanCandidate *pool_nearest(const CandidatePool *pool);

/* Writes into the best plan the part that found it and the fastest plans of all parts. */
void pool_record(const CandidatePool *pool);

#endif
