/* Screening of one mesh: walks over axis plans by estimates, from the best baseline, from the plan that
 * splits nothing, and a climb from the best of both. For each score a list of the best different plans is
 * kept. The lists are then priced in turn.
 */
#include "planners/single_stage/screen.h"

#include <math.h>
#include <string.h>

#include "base/system/stop.h"
#include "ir/analysis/loops.h"
#include "planners/single_stage/estimate.h"
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage_state.h"

enum { MOST_STEPS = 300, LEAST_STEPS = 40 };
/* Steps times instructions: an estimate clears memory for all of the module. */
enum { MOST_WORK = 4000000 };
/* Estimates nearer than this belong to axis priorities that give equal plans, or plans as good. */
#define LEAST_DIFFERENCE 1e-6

/* The estimated cost of a plan. */
typedef enum ScreenScore {
    SCREEN_SUM,    /* computing and communication one after the other */
    SCREEN_HIDDEN, /* all but a part of the shorter one of the two hidden behind the other */
    SCREEN_SCORES
} ScreenScore;
#define LEFT_OVER 0.2

typedef struct Screen {
    StageProblem *problem;
    Estimator *estimator;
    Screening found[SCREEN_SCORES]; /* by each of the scores */
    ScreenScore score;              /* of the walk */
    int32_t steps;                  /* of a walk */
} Screen;

static double score_of(const PlanPrice *estimate, ScreenScore score) {
    double shorter = fmin(estimate->compute_seconds, estimate->communication_seconds);
    PlanPrice hidden = *estimate;
    if (score == SCREEN_HIDDEN) hidden.seconds -= (1 - LEFT_OVER) * shorter;
    return plan_price_score(&hidden);
}

/* Keeps an axis plan if it is among the best; of equal ones the first. */
static void keep(Screening *self, const AxisPlan *axis_plan, const PlanPrice *estimate, ScreenScore by) {
    double score = score_of(estimate, by);
    int32_t at = self->count;
    while (at > 0 && score < score_of(&self->kept[at - 1].estimate, by) * (1 - LEAST_DIFFERENCE)) at--;
    bool is_known = at > 0 && score <= score_of(&self->kept[at - 1].estimate, by) * (1 + LEAST_DIFFERENCE);
    if (is_known || at == SCREEN_MOST_OF_SCORE) return;
    if (self->count < SCREEN_MOST_OF_SCORE) self->count++;
    for (int32_t k = self->count - 1; k > at; k--) self->kept[k] = self->kept[k - 1];
    self->kept[at] = (Screened){*axis_plan, *estimate};
}

static AmStatus score_by_estimate(void *user, const AxisPlan *axis_plan, double *score, AmError *error) {
    Screen *self = user;
    PlanPrice estimate;
    TRY(estimate_axis_plan(&estimate, self->estimator, axis_plan, error));
    *score = score_of(&estimate, self->score);
    for (ScreenScore by = 0; by < SCREEN_SCORES; by++) keep(&self->found[by], axis_plan, &estimate, by);
    return AM_OK;
}

/* Walks from one axis plan by estimates: annealing, or hill climbing. */
static AmStatus walk_by_estimates(Screen *self, const AxisPlan *start, bool is_climb, Random *random,
                                  AmError *error) {
    const AnnealWalk estimates = {.problem = self->problem,
                                  .random = random,
                                  .score = score_by_estimate,
                                  .user = self,
                                  .steps = self->steps,
                                  .is_climb = is_climb};
    double score;
    TRY(score_by_estimate(self, start, &score, error));
    return anneal_walk(&estimates, start, score, error);
}

/* Walks from the best baseline, from the plan that splits nothing, and from the best of both. */
static AmStatus walk_from_starts(Screen *self, Random *random, AmError *error) {
    AxisPlan axis_plan = {0};
    for (int32_t e = 0; e < BASELINE_COUNT && !problem_must_stop(self->problem); e++) {
        const char *reason;
        double score;
        if (baseline_has_groups((Baseline)e)) continue;
        TRY(baseline_axis_plan(self->problem, (Baseline)e, &axis_plan, &reason, error));
        if (!reason) TRY(score_by_estimate(self, &axis_plan, &score, error));
    }
    if (self->found[self->score].count > 0) {
        axis_plan = self->found[self->score].kept[0].axis_plan;
        TRY(walk_by_estimates(self, &axis_plan, false, random, error));
    }
    axis_plan = (AxisPlan){0};
    TRY(walk_by_estimates(self, &axis_plan, false, random, error));
    axis_plan = self->found[self->score].kept[0].axis_plan;
    return walk_by_estimates(self, &axis_plan, true, random, error);
}

AmStatus screen_price(const Screening *screening, StageProblem *problem, AmError *error) {
    AxisPlan axis_plans[SCREEN_MOST_KEPT];
    for (int32_t k = 0; k < screening->count; k++) axis_plans[k] = screening->kept[k].axis_plan;
    for (int32_t k = 0; k < screening->count && !problem_must_stop(problem); k += PROBLEM_BATCH) {
        int32_t left = screening->count - k, count = left < PROBLEM_BATCH ? left : PROBLEM_BATCH;
        TRY(problem_price_batch(problem, &axis_plans[k], count, error));
    }
    return AM_OK;
}

AmStatus screen_search(Screening *screening, StageProblem *problem, uint64_t seed, AmError *error) {
    int32_t steps = MOST_WORK / (ir_represented(problem->context->canonical) + 1);
    Screen self = {.problem = problem,
                   .steps = steps < LEAST_STEPS  ? LEAST_STEPS
                            : steps > MOST_STEPS ? MOST_STEPS
                                                 : steps};
    const StopSignal stop = problem->budget.stop;
    Random random;
    random_seed(&random, seed);
    screening->count = 0;
    if (stop_wanted(&stop)) return AM_OK;
    TRY(estimator_of(&self.estimator, problem, error));
    if (!self.estimator) return AM_OK;
    AmStatus status = AM_OK;
    for (self.score = 0; self.score < SCREEN_SCORES && status == AM_OK; self.score++)
        status = walk_from_starts(&self, &random, error);
    for (int32_t k = 0; k < SCREEN_MOST_OF_SCORE; k++) /* the best by each score alternately */
        for (ScreenScore by = 0; by < SCREEN_SCORES; by++) {
            bool is_new = k < self.found[by].count;
            for (int32_t other = 0; other < screening->count && is_new; other++)
                is_new = memcmp(&screening->kept[other].axis_plan, &self.found[by].kept[k].axis_plan,
                                sizeof screening->kept->axis_plan) != 0;
            if (is_new) screening->kept[screening->count++] = self.found[by].kept[k];
        }
    return status;
}
