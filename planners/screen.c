/* Screening by estimates; see screen.h. */
#include "planners/screen.h"

#include <math.h>
#include <string.h>

#include "planners/estimate.h"
#include "planners/genome_changes.h"
#include "planners/searching.h"

enum { MOST_STEPS = 300, LEAST_STEPS = 40 };
/* Steps times instructions: an estimate clears memory for all of the module. */
enum { MOST_WORK = 4000000 };
/* Estimates nearer than this are of lists that come to the same, or might as well. */
#define LEAST_DIFFERENCE 1e-6

/* The estimated cost of a plan. */
typedef enum ScreenScore {
    SCREEN_SUM,    /* computing and communication one after the other */
    SCREEN_HIDDEN, /* all but a part of the shorter one of the two hidden behind the other */
    SCREEN_SCORES
} ScreenScore;
#define LEFT_OVER 0.2

typedef struct Screen {
    Problem *problem;
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

/* Keeps a genome if it is among the best; of equal ones the first. */
static void keep(Screening *self, const Genome *genome, const PlanPrice *estimate, ScreenScore by) {
    double score = score_of(estimate, by);
    int32_t at = self->count;
    while (at > 0 && score < score_of(&self->kept[at - 1].estimate, by) * (1 - LEAST_DIFFERENCE)) at--;
    bool is_known = at > 0 && score <= score_of(&self->kept[at - 1].estimate, by) * (1 + LEAST_DIFFERENCE);
    if (is_known || at == SCREEN_MOST_OF_SCORE) return;
    if (self->count < SCREEN_MOST_OF_SCORE) self->count++;
    for (int32_t k = self->count - 1; k > at; k--) self->kept[k] = self->kept[k - 1];
    self->kept[at] = (Screened){*genome, *estimate};
}

static AmStatus score_genome(Screen *self, const Genome *genome, double *score, AmError *error) {
    PlanPrice estimate;
    TRY(estimate_genome(&estimate, self->estimator, genome, error));
    *score = score_of(&estimate, self->score);
    for (ScreenScore by = 0; by < SCREEN_SCORES; by++) keep(&self->found[by], genome, &estimate, by);
    return AM_OK;
}

/* Walks from one genome by estimates: annealing, or hill climbing. */
static AmStatus walk(Screen *self, const Genome *start, bool is_climb, Random *random, AmError *error) {
    Genome genome = *start;
    double score;
    TRY(score_genome(self, &genome, &score, error));
    for (int32_t step = 0; step < self->steps && !problem_must_stop(self->problem); step++) {
        Genome changed = genome;
        double next;
        if (!genome_change(self->problem, random, &changed)) continue;
        TRY(score_genome(self, &changed, &next, error));
        if (is_climb ? next >= score : !annealing_takes(random, next / score - 1, (double)step / self->steps))
            continue;
        genome = changed;
        score = next;
    }
    return AM_OK;
}

/* From the best recipe, from what splits nothing, and from the best of both. */
static AmStatus walk_from_starts(Screen *self, Random *random, AmError *error) {
    Genome genome = {0};
    for (int32_t e = 0; e < EXPERT_COUNT && !problem_must_stop(self->problem); e++) {
        const char *reason;
        double score;
        TRY(expert_genome(self->problem, (Expert)e, &genome, &reason, error));
        if (!reason) TRY(score_genome(self, &genome, &score, error));
    }
    if (self->found[self->score].count > 0) {
        genome = self->found[self->score].kept[0].genome;
        TRY(walk(self, &genome, false, random, error));
    }
    genome = (Genome){0};
    TRY(walk(self, &genome, false, random, error));
    genome = self->found[self->score].kept[0].genome;
    return walk(self, &genome, true, random, error);
}

static bool has(const Screening *screening, const Genome *genome) {
    for (int32_t k = 0; k < screening->count; k++)
        if (memcmp(&screening->kept[k].genome, genome, sizeof *genome) == 0) return true;
    return false;
}

/* Merges the best by each score alternately. */
static void merge(Screening *screening, const Screen *self) {
    for (int32_t k = 0; k < SCREEN_MOST_OF_SCORE; k++)
        for (ScreenScore by = 0; by < SCREEN_SCORES; by++)
            if (k < self->found[by].count && !has(screening, &self->found[by].kept[k].genome))
                screening->kept[screening->count++] = self->found[by].kept[k];
}

AmStatus screen_price(const Screening *screening, Problem *problem, AmError *error) {
    Genome genomes[SCREEN_MOST_KEPT];
    for (int32_t k = 0; k < screening->count; k++) genomes[k] = screening->kept[k].genome;
    for (int32_t k = 0; k < screening->count && !problem_must_stop(problem); k += PROBLEM_BATCH) {
        int32_t left = screening->count - k, count = left < PROBLEM_BATCH ? left : PROBLEM_BATCH;
        TRY(problem_price_batch(problem, &genomes[k], count, error));
    }
    return AM_OK;
}

AmStatus screen_search(Screening *screening, Problem *problem, uint64_t seed, AmError *error) {
    int32_t steps = MOST_WORK / (problem->context->rules->count + 1);
    Screen self = {.problem = problem,
                   .steps = steps < LEAST_STEPS  ? LEAST_STEPS
                            : steps > MOST_STEPS ? MOST_STEPS
                                                 : steps};
    Random random;
    random_seed(&random, seed);
    screening->count = 0;
    TRY(estimator_open(&self.estimator, problem, error));
    if (!self.estimator) return AM_OK;
    AmStatus status = AM_OK;
    for (self.score = 0; self.score < SCREEN_SCORES && status == AM_OK; self.score++)
        status = walk_from_starts(&self, &random, error);
    estimator_close(self.estimator);
    merge(screening, &self);
    return status;
}
