/* Screening by estimates; see screen.h. */
#include "planners/screen.h"

#include "planners/estimate.h"
#include "planners/genome_changes.h"
#include "planners/searching.h"

enum { MOST_STEPS = 300, LEAST_STEPS = 40 };
/* Steps times instructions: an estimate clears memory for all of the module. */
enum { MOST_WORK = 6000000 };
/* Estimates nearer than this are of lists that come to the same, or might as well. */
#define LEAST_DIFFERENCE 1e-6

typedef struct Screen {
    Problem *problem;
    Estimator *estimator;
    Screening *best;
    int32_t steps; /* of a walk */
} Screen;

static double score_of(const Screening *screening, int32_t place) {
    return plan_price_score(&screening->kept[place].estimate);
}

/* Keeps a genome if it is among the best; of equal ones the first. */
static void keep(Screening *self, const Genome *genome, const PlanPrice *estimate) {
    double score = plan_price_score(estimate);
    int32_t at = self->count;
    while (at > 0 && score < score_of(self, at - 1) * (1 - LEAST_DIFFERENCE)) at--;
    bool is_known = at > 0 && score <= score_of(self, at - 1) * (1 + LEAST_DIFFERENCE);
    if (is_known || at == SCREEN_MOST_KEPT) return;
    if (self->count < SCREEN_MOST_KEPT) self->count++;
    for (int32_t k = self->count - 1; k > at; k--) self->kept[k] = self->kept[k - 1];
    self->kept[at] = (Screened){*genome, *estimate};
}

static AmStatus score_genome(Screen *self, const Genome *genome, double *score, AmError *error) {
    PlanPrice estimate;
    TRY(estimate_genome(&estimate, self->estimator, genome, error));
    *score = plan_price_score(&estimate);
    keep(self->best, genome, &estimate);
    return AM_OK;
}

/* Annealing from one genome, by estimates. */
static AmStatus walk(Screen *self, const Genome *start, Random *random, AmError *error) {
    Genome genome = *start;
    double score;
    TRY(score_genome(self, &genome, &score, error));
    for (int32_t step = 0; step < self->steps && !problem_must_stop(self->problem); step++) {
        Genome changed = genome;
        double next;
        if (!genome_change(self->problem, random, &changed)) continue;
        TRY(score_genome(self, &changed, &next, error));
        if (!annealing_takes(random, next / score - 1, (double)step / self->steps)) continue;
        genome = changed;
        score = next;
    }
    return AM_OK;
}

/* From the best recipe, and from what splits nothing. */
static AmStatus walk_from_starts(Screen *self, Random *random, AmError *error) {
    Genome genome = {0};
    for (int32_t e = 0; e < EXPERT_COUNT && !problem_must_stop(self->problem); e++) {
        const char *reason;
        double score;
        TRY(expert_genome(self->problem, (Expert)e, &genome, &reason, error));
        if (!reason) TRY(score_genome(self, &genome, &score, error));
    }
    if (self->best->count > 0) {
        genome = self->best->kept[0].genome;
        TRY(walk(self, &genome, random, error));
    }
    genome = (Genome){0};
    return walk(self, &genome, random, error);
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
                   .best = screening,
                   .steps = steps < LEAST_STEPS  ? LEAST_STEPS
                            : steps > MOST_STEPS ? MOST_STEPS
                                                 : steps};
    Random random;
    random_seed(&random, seed);
    screening->count = 0;
    TRY(estimator_open(&self.estimator, problem, error));
    if (!self.estimator) return AM_OK;
    AmStatus status = walk_from_starts(&self, &random, error);
    estimator_close(self.estimator);
    return status;
}
