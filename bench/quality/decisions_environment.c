/* Decision problems as an environment of deep Q-learning.
 *
 * Decisions are taken one after another. An action is a rank: strategies are ordered by an optimistic
 * estimate of the plan with each. The reward of a step is the decrease of the expected seconds, less a part
 * of the surprise, so that trying an unknown strategy costs little.
 */
#include "bench/quality/decisions_environment.h"

#include <math.h>

#define MOST_FEATURE 4.0
#define CURIOSITY    0.7 /* of a disappointment that is not held against who finds it out */

static int32_t compare_ranks(const DecisionRank *a, const DecisionRank *b) {
    if (a->hopeful != b->hopeful) return a->hopeful < b->hopeful ? -1 : 1;
    return a->strategy - b->strategy;
}

/* Ranks what decision `position` may take. */
static void rank(DecisionEnvironment *self) {
    const Decisions *decisions = self->meter->decisions;
    DecisionEstimate *estimate = &self->estimate;
    int32_t i = self->position;
    self->rank_count = 0;
    for (int32_t k = 0; i < decisions->count && k < decisions->strategies[i]; k++) {
        DecisionPlan next = self->plan;
        next.choice[i] = (int8_t)k;
        if (!decision_plan_fits(decisions, &next)) continue;
        DecisionRank new = {.strategy = (int8_t)k,
                            .is_known = decision_estimate_knows(estimate, &next, i),
                            .likely = decision_estimate_total(&estimate->likely, estimate->likely_after,
                                                              &next, i, self->seconds),
                            .hopeful = decision_estimate_total(&estimate->hopeful, estimate->hopeful_after,
                                                               &next, i, self->seconds),
                            .reshard = decision_estimate_reshard(estimate, &next, i),
                            .bytes = decisions->bytes[i][k]};
        int32_t at = self->rank_count++;
        for (; at > 0 && compare_ranks(&new, &self->ranks[at - 1]) < 0; at--)
            self->ranks[at] = self->ranks[at - 1];
        self->ranks[at] = new;
    }
}

/* Optimistic seconds of the whole plan; exact once it is complete. */
static double expected_gain(const DecisionEnvironment *self) {
    return self->rank_count > 0 ? self->ranks[0].hopeful : self->seconds;
}

static AmStatus reset(Environment *environment, AmError *error) {
    (void)error;
    DecisionEnvironment *self = (DecisionEnvironment *)environment;
    if (self->updated != self->estimate.sample_count)
        decision_estimate_update(&self->estimate, self->meter->best);
    self->updated = self->estimate.sample_count;
    self->plan = decision_plan_open();
    self->position = 0;
    self->seconds = 0;
    rank(self);
    return AM_OK;
}

static float limited(double value) {
    return (float)fmax(-MOST_FEATURE, fmin(value, MOST_FEATURE));
}

static void observe(const Environment *environment, float *observation) {
    const DecisionEnvironment *self = (const DecisionEnvironment *)environment;
    const DecisionMeter *meter = self->meter;
    const Decisions *decisions = meter->decisions;
    double unit = self->estimate.unit, total = expected_gain(self);
    double slack = decisions->memory - decision_plan_bytes(decisions, &self->plan);
    double share = decisions->memory / decisions->count;
    float *next = observation;
    *next++ = (float)self->position / (float)decisions->count;
    *next++ = limited(slack / share / 4);
    *next++ = (float)meter->evaluations / (float)meter->limit;
    *next++ = isfinite(meter->best) ? limited((meter->best - total) / unit) : 0;
    for (int32_t r = 0; r < DECISIONS_MOST_STRATEGIES; r++) {
        static const DecisionRank none = {.likely = 1e30, .hopeful = 1e30};
        const DecisionRank *candidate = r < self->rank_count ? &self->ranks[r] : &none;
        *next++ = limited(2 * sqrt(fmax(candidate->likely - total, 0) / unit));
        *next++ = limited(2 * sqrt(fmax(candidate->hopeful - self->ranks[0].hopeful, 0) / unit));
        *next++ = candidate->is_known;
        *next++ = limited(candidate->reshard / unit);
        *next++ = limited(candidate->bytes / share / 4);
    }
}

static void mask(const Environment *environment, uint8_t *legal) {
    const DecisionEnvironment *self = (const DecisionEnvironment *)environment;
    for (int32_t r = 0; r < environment->action_count; r++)
        legal[r] = r < self->rank_count &&
                   self->ranks[r].hopeful <= self->ranks[0].hopeful + self->most_behind * self->estimate.unit;
}

static AmStatus step(Environment *environment, int32_t action, double *reward, bool *done, AmError *error) {
    DecisionEnvironment *self = (DecisionEnvironment *)environment;
    double before = expected_gain(self), seconds;
    int32_t i = self->position;
    *reward = 0;
    *done = true;
    if (action < 0 || action >= self->rank_count)
        return am_fail(error, AM_ERROR_INTERNAL, "", "decision %d has no strategy of rank %d", i, action);
    double expected = self->ranks[action].hopeful;
    self->plan.choice[i] = self->ranks[action].strategy;
    if (!decision_meter_price(self->meter, &self->plan, &seconds)) return AM_OK; /* no budget is left */
    TRY(decision_estimate_add(&self->estimate, &self->plan, i, seconds - self->seconds, error));
    self->seconds = seconds;
    self->position++;
    rank(self);
    double after = expected + (1 - CURIOSITY) * (expected_gain(self) - expected);
    if (self->updated > 0) *reward = (before - after) / self->estimate.unit; /* else nothing was believed */
    *done = self->rank_count == 0;
    return AM_OK;
}

AmStatus decision_environment_create(DecisionEnvironment *environment, DecisionMeter *meter, AmError *error) {
    static const EnvironmentMethods methods = {reset, observe, mask, step};
    *environment = (DecisionEnvironment){.base = {.methods = &methods,
                                                  .observation_size = DECISION_OBSERVATION,
                                                  .action_count = DECISIONS_MOST_STRATEGIES},
                                         .meter = meter,
                                         .updated = -1,
                                         .most_behind = DECISION_MOST_BEHIND};
    return decision_estimate_create(&environment->estimate, meter->decisions, error);
}

void decision_environment_free(DecisionEnvironment *environment) {
    decision_estimate_free(&environment->estimate);
}
