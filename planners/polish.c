/* Local search over single changes of the lists: an entry removed, moved,
 * replaced or inserted. The best plan whose changes have not all been tried is
 * taken next; a change that beats the best plan so far is followed at once. With
 * evaluations enough this walks the whole space, since every plan is within
 * reach of every other, so a local optimum ends nothing.
 */
#include "planners/searchers.h"

typedef struct Polish {
    Problem *problem;
    Genome genome; /* whose changes are being tried */
    double best;   /* score of the best plan when they were begun */
    int64_t last;  /* evaluations at which the share is spent */
    bool improved;
} Polish;

static bool goes_on(const Polish *self) {
    return !self->improved && !problem_must_stop(self->problem) &&
           self->problem->budget->evaluations < self->last;
}

static AmStatus try_genome(Polish *self, const Genome *genome, AmError *error) {
    PlanPrice price;
    if (!goes_on(self)) return AM_OK;
    TRY(problem_price(self->problem, genome, &price, error));
    self->improved = plan_price_score(&self->problem->best_price) < self->best;
    return AM_OK;
}

/* Entry `place` of `axis` taken out, put back elsewhere, or replaced. */
static AmStatus try_moves(Polish *self, int32_t axis, int32_t place, AmError *error) {
    const Problem *problem = self->problem;
    int32_t candidate = self->genome.entries[axis][place];
    Genome without = self->genome;
    genome_remove(&without, axis, place);
    TRY(try_genome(self, &without, error));
    for (int32_t target = 0; target < problem->mesh.axis_count; target++) {
        if (!problem_usable(problem, candidate, target)) continue;
        for (int32_t k = 0; k <= without.count[target]; k++) {
            Genome moved = without;
            if (target == axis && k == place) continue;
            if (genome_insert(&moved, target, k, candidate)) TRY(try_genome(self, &moved, error));
        }
    }
    for (int32_t other = 0; other < problem->candidate_count; other++) {
        Genome replaced = without;
        if (other == candidate || !problem_usable(problem, other, axis)) continue;
        if (genome_insert(&replaced, axis, place, other)) TRY(try_genome(self, &replaced, error));
    }
    return AM_OK;
}

static AmStatus try_insertions(Polish *self, int32_t axis, int32_t candidate, AmError *error) {
    for (int32_t place = self->genome.count[axis]; place >= 0; place--) {
        Genome inserted = self->genome;
        if (genome_insert(&inserted, axis, place, candidate)) TRY(try_genome(self, &inserted, error));
    }
    return AM_OK;
}

AmStatus polish_search(Problem *problem, int64_t share, AmError *error) {
    Polish self = {.problem = problem, .last = problem->budget->evaluations + share};
    while (problem->budget->evaluations < self.last && !problem_must_stop(problem) &&
           problem_best_untried(problem, &self.genome)) {
        self.improved = false;
        self.best = plan_price_score(&problem->best_price);
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
            for (int32_t place = 0; place < self.genome.count[axis]; place++)
                TRY(try_moves(&self, axis, place, error));
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
            for (int32_t k = 0; k < problem->candidate_count; k++)
                if (problem_usable(problem, k, axis)) TRY(try_insertions(&self, axis, k, error));
        if (goes_on(&self)) problem_set_tried(problem, &self.genome);
    }
    return AM_OK;
}
