/* Decisions: a search problem in one table, for comparing searchers.
 *
 * Decision i takes one of a few strategies k. The cost of a plan is the seconds of every decision's
 * own strategy plus, for each pair of decisions that exchange data, the seconds of resharding
 * between their strategies; a plan must keep within a number of bytes in total. Pairs are few, so
 * that the exact optimum is known (decisions_exact.h).
 *
 * Searchers may read the graph and the bytes, stored and moved, which follow from shapes alone. They learn
 * seconds only by paying for them: each plan, whole or in part, that is priced for the first time is one
 * evaluation of the meter, for any purpose. An increment is the price of a partial plan with one more
 * decision. Repeated queries are free.
 */
#ifndef BENCH_QUALITY_DECISIONS_H
#define BENCH_QUALITY_DECISIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

enum { DECISIONS_MOST = 32, DECISIONS_MOST_STRATEGIES = 8, DECISIONS_MOST_EDGES = 128, DECISIONS_LOADS = 4 };
#define DECISION_OPEN (-1)

/* The exchange of two decisions; `from` < `to`. */
typedef struct DecisionEdge {
    int32_t from, to;
    double seconds[DECISIONS_MOST_STRATEGIES][DECISIONS_MOST_STRATEGIES]; /* by strategy of from, of to */
    /* Bytes that resharding moves over either kind of link, and whether it is over that link at all. */
    double moved[DECISIONS_LOADS][DECISIONS_MOST_STRATEGIES][DECISIONS_MOST_STRATEGIES];
} DecisionEdge;

typedef struct Decisions {
    int32_t count, edge_count;
    int32_t strategies[DECISIONS_MOST];
    double seconds[DECISIONS_MOST][DECISIONS_MOST_STRATEGIES];
    double bytes[DECISIONS_MOST][DECISIONS_MOST_STRATEGIES];
    double memory;                          /* bytes that a plan may have in sum */
    DecisionEdge *edges;                    /* [edge_count] by `to` */
    int32_t first_edge[DECISIONS_MOST + 1]; /* edges into decision i from here */
    double least_after[DECISIONS_MOST + 1]; /* least bytes of decisions i and later in sum */
} Decisions;

/* Sorts the edges and fills derived fields. */
void decisions_complete(Decisions *decisions);

typedef struct DecisionPlan {
    int8_t choice[DECISIONS_MOST]; /* strategy or DECISION_OPEN */
} DecisionPlan;

DecisionPlan decision_plan_open(void);
bool decision_plan_is_complete(const Decisions *decisions, const DecisionPlan *plan);
/* Returns the seconds, without charge; an edge counts when both its decisions are taken. */
double decision_plan_seconds(const Decisions *decisions, const DecisionPlan *plan);
/* Returns the bytes in sum, open decisions by their least: a plan above `memory` cannot be completed. */
double decision_plan_bytes(const Decisions *decisions, const DecisionPlan *plan);
/* Returns a load of the resharding into decision i from the earlier ones, all taken. */
double decision_plan_moved(const Decisions *decisions, const DecisionPlan *plan, int32_t i, int32_t load);
static inline bool decision_plan_fits(const Decisions *decisions, const DecisionPlan *plan) {
    return decision_plan_bytes(decisions, plan) <= decisions->memory;
}

/* The best plan became better. */
typedef struct DecisionImprovement {
    int64_t evaluations;
    double clock_seconds; /* since the meter started */
    double seconds;       /* of the plan */
} DecisionImprovement;

/* Prices plans for one searcher and counts. */
typedef struct DecisionMeter {
    const Decisions *decisions;
    int64_t evaluations, limit;
    int64_t questions, most_questions; /* with those whose answer was known */
    double started;                    /* clock_seconds() */
    double best;                       /* seconds of the best whole plan that fits; INFINITY: none */
    DecisionPlan best_plan;
    DecisionImprovement *improvements;
    int32_t improvement_count, improvement_capacity;
    struct DecisionMemo *memo;
    int64_t memo_capacity; /* a power of 2 */
    Arena arena;
} DecisionMeter;

AmStatus decision_meter_create(DecisionMeter *meter, const Decisions *decisions, int64_t limit,
                               AmError *error);
void decision_meter_free(DecisionMeter *meter);
/* Finds the seconds of a plan, whole or in part. Returns false if the evaluations are used up, or if the
 * searcher has repeated known queries for too long. */
bool decision_meter_price(DecisionMeter *meter, const DecisionPlan *plan, double *seconds);
/* Returns whether nothing can be priced any more. */
bool decision_meter_is_spent(const DecisionMeter *meter);

#endif
