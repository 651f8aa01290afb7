/* A table of prices by a 64-bit key: the hash of the assignment that an axis plan comes to. Axis plans with
 * equal assignments have one price, which is computed once (problem_assignment_key()).
 */
#ifndef PLANNERS_PROBLEM_PRICE_MEMO_H
#define PLANNERS_PROBLEM_PRICE_MEMO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/open_table.h"

/* The cost of a plan. Plans that do not fit keep their time; `excess` is the fraction by which the
 * fullest device exceeds the limit. */
typedef struct PlanPrice {
    double seconds, compute_seconds, communication_seconds;
    int64_t peak_bytes;
    double excess;      /* 0: fits */
    bool gathers_again; /* as in AxisPlan: it would not fit otherwise */
} PlanPrice;

typedef OpenTable PriceMemo;

const PlanPrice *price_memo_find(const PriceMemo *memo, uint64_t key); /* NULL: not there */
/* Adds a price. Returns false without memory. A key that is there already keeps its price. */
bool price_memo_add(PriceMemo *memo, uint64_t key, const PlanPrice *price);

#endif
