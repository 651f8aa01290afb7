/* Prices of decision problems, and the meter that remembers and counts them.
 *
 * The memo is a table by the plan itself: four bits a decision, 15 for an open
 * one, with linear probing at most half full. */
#include "bench/quality/decisions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/system/clock.h"

#define MOST_REPEATS 64 /* questions per evaluation before a searcher is taken to have settled */

typedef struct DecisionMemo {
    uint64_t key[2];
    double seconds;
    bool is_used;
} DecisionMemo;

static int compare_edges(const void *left, const void *right) {
    const DecisionEdge *a = left, *b = right;
    return a->to != b->to ? a->to - b->to : a->from - b->from;
}

void decisions_complete(Decisions *decisions) {
    qsort(decisions->edges, (size_t)decisions->edge_count, sizeof *decisions->edges, compare_edges);
    for (int32_t i = 0, e = 0; i <= decisions->count; i++) {
        while (e < decisions->edge_count && decisions->edges[e].to < i) e++;
        decisions->first_edge[i] = e;
    }
    decisions->least_after[decisions->count] = 0;
    for (int32_t i = decisions->count - 1; i >= 0; i--) {
        double least = decisions->bytes[i][0];
        for (int32_t k = 1; k < decisions->strategies[i]; k++) least = fmin(least, decisions->bytes[i][k]);
        decisions->least_after[i] = decisions->least_after[i + 1] + least;
    }
}

DecisionPlan decision_plan_open(void) {
    DecisionPlan plan;
    memset(plan.choice, DECISION_OPEN, sizeof plan.choice);
    return plan;
}

bool decision_plan_is_complete(const Decisions *decisions, const DecisionPlan *plan) {
    for (int32_t i = 0; i < decisions->count; i++)
        if (plan->choice[i] == DECISION_OPEN) return false;
    return true;
}

double decision_plan_seconds(const Decisions *decisions, const DecisionPlan *plan) {
    double seconds = 0;
    for (int32_t i = 0; i < decisions->count; i++)
        if (plan->choice[i] != DECISION_OPEN) seconds += decisions->seconds[i][plan->choice[i]];
    for (int32_t e = 0; e < decisions->edge_count; e++) {
        const DecisionEdge *edge = &decisions->edges[e];
        int8_t from = plan->choice[edge->from], to = plan->choice[edge->to];
        if (from != DECISION_OPEN && to != DECISION_OPEN) seconds += edge->seconds[from][to];
    }
    return seconds;
}

double decision_plan_bytes(const Decisions *decisions, const DecisionPlan *plan) {
    double bytes = 0;
    for (int32_t i = 0; i < decisions->count; i++)
        bytes += plan->choice[i] != DECISION_OPEN ? decisions->bytes[i][plan->choice[i]]
                                                  : decisions->least_after[i] - decisions->least_after[i + 1];
    return bytes;
}

double decision_plan_moved(const Decisions *decisions, const DecisionPlan *plan, int32_t i, int32_t load) {
    double moved = 0;
    for (int32_t e = decisions->first_edge[i]; e < decisions->first_edge[i + 1]; e++)
        moved += decisions->edges[e].moved[load][plan->choice[decisions->edges[e].from]][plan->choice[i]];
    return moved;
}

AmStatus decision_meter_create(DecisionMeter *meter, const Decisions *decisions, int64_t limit,
                               AmError *error) {
    *meter = (DecisionMeter){.decisions = decisions,
                             .limit = limit,
                             .most_questions = MOST_REPEATS * limit,
                             .best = INFINITY,
                             .best_plan = decision_plan_open(),
                             .started = clock_seconds()};
    meter->memo_capacity = 64;
    while (meter->memo_capacity < 2 * limit) meter->memo_capacity *= 2;
    meter->memo = ARENA_ARRAY(&meter->arena, DecisionMemo, meter->memo_capacity);
    if (!meter->memo) return am_fail_memory(error, meter->memo_capacity * (int64_t)sizeof(DecisionMemo));
    return AM_OK;
}

void decision_meter_free(DecisionMeter *meter) {
    arena_free(&meter->arena);
}

bool decision_meter_is_spent(const DecisionMeter *meter) {
    return meter->evaluations >= meter->limit || meter->questions >= meter->most_questions ||
           meter->arena.failed;
}

/* The entry of a plan, or the free one where it belongs. */
static DecisionMemo *find(DecisionMeter *meter, const DecisionPlan *plan) {
    uint64_t key[2] = {0, 0};
    for (int32_t i = 0; i < meter->decisions->count; i++)
        key[i / 16] |= (uint64_t)(plan->choice[i] & 15) << (4 * (i % 16));
    uint64_t mask = (uint64_t)meter->memo_capacity - 1;
    for (uint64_t at = hash_bytes(key, sizeof key, 0) & mask;; at = (at + 1) & mask) {
        DecisionMemo *entry = &meter->memo[at];
        if (entry->is_used && (entry->key[0] != key[0] || entry->key[1] != key[1])) continue;
        entry->key[0] = key[0];
        entry->key[1] = key[1];
        return entry;
    }
}

static void keep_better(DecisionMeter *meter, const DecisionPlan *plan, double seconds) {
    if (seconds >= meter->best || !decision_plan_is_complete(meter->decisions, plan) ||
        !decision_plan_fits(meter->decisions, plan))
        return;
    ARENA_RESERVE(&meter->arena, meter->improvements, meter->improvement_count, meter->improvement_capacity);
    if (!meter->improvements) return;
    meter->best = seconds;
    meter->best_plan = *plan;
    meter->improvements[meter->improvement_count++] =
        (DecisionImprovement){.evaluations = meter->evaluations,
                              .clock_seconds = clock_seconds() - meter->started,
                              .seconds = seconds};
}

bool decision_meter_price(DecisionMeter *meter, const DecisionPlan *plan, double *seconds) {
    if (meter->questions >= meter->most_questions) return false;
    meter->questions++;
    DecisionMemo *entry = find(meter, plan);
    if (!entry->is_used) {
        if (meter->evaluations >= meter->limit) return false;
        meter->evaluations++;
        entry->is_used = true;
        entry->seconds = decision_plan_seconds(meter->decisions, plan);
        keep_better(meter, plan, entry->seconds);
    }
    *seconds = entry->seconds;
    return true;
}
