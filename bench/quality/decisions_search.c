/* Greedy, restarts, annealing and polish on decision problems.
 *
 * Annealing: one decision is changed at random (Kirkpatrick et al. 1983). The
 * temperature falls geometrically over the budget, from and to the given shares
 * of the seconds that a decision takes in the first plan on average; both ends
 * were chosen on instances of other seeds (docs/planning.md). */
#include "bench/quality/decisions_search.h"

#include <math.h>

#include "base/random.h"
#include "planners/local_search/anneal.h"
#include "planners/local_search/climb.h"

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

/* Local search over single changes: a climb takes the first better one of all in random order, annealing
 * draws one after another. */
typedef struct Local {
    DecisionMeter *meter;
    DecisionPlan plan, changed;
    double seconds, changed_seconds;
    const int32_t *changes; /* [change_count] of a climb: decision and choice */
    int32_t change_count;
    int64_t first; /* evaluations of the meter before the search */
} Local;

static bool local_is_over(void *user) {
    const Local *self = user;
    return decision_meter_is_spent(self->meter);
}

/* Changes a decision; false if that is no change, or the plan does not fit. */
static bool change(Local *self, int32_t decision, int32_t choice) {
    self->changed = self->plan;
    self->changed.choice[decision] = (int8_t)choice;
    return self->changed.choice[decision] != self->plan.choice[decision] &&
           decision_plan_fits(self->meter->decisions, &self->changed);
}

static void local_take(void *user) {
    Local *self = user;
    self->plan = self->changed;
    self->seconds = self->changed_seconds;
}

static AmStatus climb_list(void *user, int32_t *count, AmError *error) {
    const Local *self = user;
    (void)error;
    *count = self->change_count;
    return AM_OK;
}

static AmStatus climb_make(void *user, int32_t move, ClimbMove *made, AmError *error) {
    Local *self = user;
    int32_t number = self->changes[move];
    (void)error;
    if (change(self, number / DECISIONS_MOST_STRATEGIES, number % DECISIONS_MOST_STRATEGIES))
        *made = CLIMB_ADDED;
    return AM_OK;
}

static AmStatus climb_price(void *user, bool *is_better, AmError *error) {
    Local *self = user;
    (void)error;
    *is_better = decision_meter_price(self->meter, &self->changed, &self->changed_seconds) &&
                 self->changed_seconds < self->seconds;
    return AM_OK;
}

static AmStatus climb_take(void *user, AmError *error) {
    (void)error;
    local_take(user);
    return AM_OK;
}

/* Climbs; true where no change is better; false where the meter is spent. */
static bool descend(DecisionMeter *meter, DecisionPlan *plan, double *seconds, Random *random) {
    const Decisions *decisions = meter->decisions;
    int32_t changes[MOST_CHANGES], count = 0;
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++)
            changes[count++] = i * DECISIONS_MOST_STRATEGIES + k;
    shuffle(changes, count, random);
    Local self = {
        .meter = meter, .plan = *plan, .seconds = *seconds, .changes = changes, .change_count = count};
    const Climb climb = {.order = CLIMB_ONWARD,
                         .batch = 1,
                         .user = &self,
                         .is_over = local_is_over,
                         .list = climb_list,
                         .make = climb_make,
                         .price = climb_price,
                         .take = climb_take};
    ClimbPlace place = {0};
    climb_run(&climb, &place, NULL);
    *plan = self.plan;
    *seconds = self.seconds;
    return place.is_end;
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

static double anneal_progress(void *user) {
    const Local *self = user;
    const DecisionMeter *meter = self->meter;
    return (double)(meter->evaluations - self->first) / (double)(meter->limit - self->first);
}

static bool anneal_change(void *user, Random *random) {
    Local *self = user;
    const Decisions *decisions = self->meter->decisions;
    int32_t i = (int32_t)random_below(random, decisions->count);
    return change(self, i, (int32_t)random_below(random, decisions->strategies[i]));
}

/* Infinite where the meter is spent. */
static AmStatus anneal_score(void *user, double *score, AmError *error) {
    Local *self = user;
    (void)error;
    if (!decision_meter_price(self->meter, &self->changed, &self->changed_seconds))
        self->changed_seconds = INFINITY;
    *score = self->changed_seconds;
    return AM_OK;
}

void decision_anneal_by(DecisionMeter *meter, uint64_t seed, double hot, double cold) {
    const Decisions *decisions = meter->decisions;
    Random random;
    random_seed(&random, seed);
    Local self = {.meter = meter};
    self.plan = isfinite(meter->best) ? meter->best_plan : decision_random_plan(decisions, &random);
    if (!decision_meter_price(meter, &self.plan, &self.seconds)) return;
    self.first = meter->evaluations;
    const Anneal anneal = {.hot = hot / decisions->count,
                           .cold = cold / decisions->count,
                           .random = &random,
                           .user = &self,
                           .is_over = local_is_over,
                           .progress = anneal_progress,
                           .change = anneal_change,
                           .score = anneal_score,
                           .take = local_take};
    anneal_run(&anneal, self.seconds, NULL);
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
