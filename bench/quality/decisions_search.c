/* Greedy, restarts, annealing and polish on decision problems.
 *
 * Annealing: one decision is changed at random (Kirkpatrick et al. 1983). The
 * temperature falls geometrically over the budget, from and to the given shares
 * of the seconds that a decision takes in the first plan on average; both ends
 * were chosen on instances of other seeds (docs/learning.md). */
#include "bench/quality/decisions_search.h"

#include <math.h>

#include "base/random.h"

#define HOT  0.4
#define COLD 0.025

enum { MOST_CHANGES = DECISIONS_MOST * DECISIONS_MOST_STRATEGIES };

static void shuffle(int32_t *values, int32_t count, Random *random) {
    for (int32_t k = count - 1; k > 0; k--) {
        int32_t other = (int32_t)random_below(random, k + 1), value = values[k];
        values[k] = values[other];
        values[other] = value;
    }
}

DecisionPlan decision_random_plan(const Decisions *decisions, Random *random) {
    DecisionPlan plan = decision_plan_open();
    int32_t order[DECISIONS_MOST];
    for (int32_t i = 0; i < decisions->count; i++) order[i] = i;
    shuffle(order, decisions->count, random);
    for (int32_t n = 0; n < decisions->count; n++) {
        int8_t *choice = &plan.choice[order[n]], fitting[DECISIONS_MOST_STRATEGIES];
        int32_t count = 0;
        for (int32_t k = 0; k < decisions->strategies[order[n]]; k++) {
            *choice = (int8_t)k;
            if (decision_plan_fits(decisions, &plan)) fitting[count++] = (int8_t)k;
        }
        *choice = count > 0 ? fitting[random_below(random, count)] : 0;
    }
    return plan;
}

void decision_greedy(DecisionMeter *meter, uint64_t seed) {
    (void)seed;
    DecisionPlan plan = decision_plan_open();
    for (int32_t i = 0; i < meter->decisions->count; i++) {
        double least = INFINITY, seconds;
        int8_t best = DECISION_OPEN;
        for (int32_t k = 0; k < meter->decisions->strategies[i]; k++) {
            plan.choice[i] = (int8_t)k;
            if (!decision_plan_fits(meter->decisions, &plan)) continue;
            if (!decision_meter_price(meter, &plan, &seconds)) return;
            if (seconds < least) least = seconds, best = (int8_t)k;
        }
        plan.choice[i] = best;
        if (best == DECISION_OPEN) return;
    }
}

/* Takes the first better one of all single changes in random order, again and again. True where none is
 * left; false where the meter is spent. */
static bool descend(DecisionMeter *meter, DecisionPlan *plan, double *seconds, Random *random) {
    const Decisions *decisions = meter->decisions;
    int32_t changes[MOST_CHANGES], count = 0;
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++)
            changes[count++] = i * DECISIONS_MOST_STRATEGIES + k;
    shuffle(changes, count, random);
    for (int32_t at = 0, without = 0; without < count; at = (at + 1) % count, without++) {
        DecisionPlan next = *plan;
        int32_t i = changes[at] / DECISIONS_MOST_STRATEGIES;
        next.choice[i] = (int8_t)(changes[at] % DECISIONS_MOST_STRATEGIES);
        double value;
        if (next.choice[i] == plan->choice[i] || !decision_plan_fits(decisions, &next)) continue;
        if (!decision_meter_price(meter, &next, &value)) return false;
        if (value >= *seconds) continue;
        *plan = next;
        *seconds = value;
        without = -1;
    }
    return true;
}

void decision_restarts(DecisionMeter *meter, uint64_t seed) {
    Random random;
    random_seed(&random, seed);
    for (;;) {
        DecisionPlan plan = decision_random_plan(meter->decisions, &random);
        double seconds;
        if (!decision_meter_price(meter, &plan, &seconds)) return;
        if (!descend(meter, &plan, &seconds, &random)) return;
    }
}

void decision_anneal(DecisionMeter *meter, uint64_t seed) {
    decision_anneal_by(meter, seed, HOT, COLD);
}

void decision_anneal_by(DecisionMeter *meter, uint64_t seed, double hot, double cold) {
    const Decisions *decisions = meter->decisions;
    Random random;
    random_seed(&random, seed);
    DecisionPlan plan = isfinite(meter->best) ? meter->best_plan : decision_random_plan(decisions, &random);
    double seconds;
    if (!decision_meter_price(meter, &plan, &seconds)) return;
    int64_t first = meter->evaluations;
    while (!decision_meter_is_spent(meter)) {
        double progress = (double)(meter->evaluations - first) / (double)(meter->limit - first);
        double temperature = seconds / decisions->count * hot * pow(cold / hot, progress), value;
        DecisionPlan next = plan;
        int32_t i = (int32_t)random_below(&random, decisions->count);
        next.choice[i] = (int8_t)random_below(&random, decisions->strategies[i]);
        if (next.choice[i] == plan.choice[i] || !decision_plan_fits(decisions, &next)) continue;
        if (!decision_meter_price(meter, &next, &value)) return;
        if (value > seconds && random_uniform(&random) >= exp((seconds - value) / temperature)) continue;
        plan = next;
        seconds = value;
    }
}

/* The first better one of the changes of both ends of an edge, edges in random order. */
static bool change_pair(DecisionMeter *meter, DecisionPlan *plan, double *seconds, Random *random) {
    const Decisions *decisions = meter->decisions;
    int32_t edges[DECISIONS_MOST_EDGES];
    int32_t count = decisions->edge_count;
    for (int32_t e = 0; e < count; e++) edges[e] = e;
    shuffle(edges, count, random);
    for (int32_t n = 0; n < count; n++) {
        const DecisionEdge *edge = &decisions->edges[edges[n]];
        for (int32_t a = 0; a < decisions->strategies[edge->from]; a++)
            for (int32_t b = 0; b < decisions->strategies[edge->to]; b++) {
                DecisionPlan next = *plan;
                double value;
                next.choice[edge->from] = (int8_t)a;
                next.choice[edge->to] = (int8_t)b;
                if (a == plan->choice[edge->from] || b == plan->choice[edge->to] ||
                    !decision_plan_fits(decisions, &next))
                    continue;
                if (!decision_meter_price(meter, &next, &value)) return false;
                if (value >= *seconds) continue;
                *plan = next;
                *seconds = value;
                return true;
            }
    }
    return false;
}

void decision_polish(DecisionMeter *meter, uint64_t seed) {
    Random random;
    random_seed(&random, seed);
    DecisionPlan plan = meter->best_plan;
    double seconds = meter->best;
    if (!isfinite(seconds)) return;
    while (descend(meter, &plan, &seconds, &random) && change_pair(meter, &plan, &seconds, &random)) {}
}
