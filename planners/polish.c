/* Local search: first improvement over single changes of the lists, round after
 * round, until a whole round finds none. */
#include "planners/searchers.h"

typedef struct Polish {
    Problem *problem;
    Genome genome;
    PlanPrice price;
    int64_t last; /* evaluations at which the share is spent */
    bool improved;
} Polish;

static AmStatus try_genome(Polish *self, const Genome *genome, AmError *error) {
    if (problem_must_stop(self->problem) || self->problem->budget->evaluations >= self->last) return AM_OK;
    PlanPrice price;
    TRY(problem_price(self->problem, genome, &price, error));
    if (plan_price_better(&price, &self->price)) {
        self->genome = *genome;
        self->price = price;
        self->improved = true;
    }
    return AM_OK;
}

/* Entry `place` of `axis` taken out, and put back everywhere else, on either axis. */
static AmStatus try_moves(Polish *self, int32_t axis, int32_t place, AmError *error) {
    const Problem *problem = self->problem;
    int32_t candidate = self->genome.entries[axis][place];
    Genome without = self->genome;
    genome_remove(&without, axis, place);
    TRY(try_genome(self, &without, error));
    for (int32_t target = 0; target < problem->mesh.axis_count && !self->improved; target++) {
        if (!problem_usable(problem, candidate, target)) continue;
        for (int32_t k = 0; k <= without.count[target] && !self->improved; k++) {
            Genome moved = without;
            if (target == axis && k == place) continue;
            if (genome_insert(&moved, target, k, candidate)) TRY(try_genome(self, &moved, error));
        }
    }
    for (int32_t other = 0; other < problem->candidate_count && !self->improved; other++) {
        Genome replaced = without;
        if (other == candidate || !problem_usable(problem, other, axis)) continue;
        if (genome_insert(&replaced, axis, place, other)) TRY(try_genome(self, &replaced, error));
    }
    return AM_OK;
}

static AmStatus try_insertions(Polish *self, int32_t axis, int32_t candidate, AmError *error) {
    for (int32_t place = self->genome.count[axis]; place >= 0 && !self->improved; place--) {
        Genome inserted = self->genome;
        if (genome_insert(&inserted, axis, place, candidate)) TRY(try_genome(self, &inserted, error));
    }
    return AM_OK;
}

AmStatus polish_search(Problem *problem, int64_t share, AmError *error) {
    if (!problem->has_best) return AM_OK;
    Polish self = {.problem = problem,
                   .genome = problem->best,
                   .price = problem->best_price,
                   .last = problem->budget->evaluations + share};
    do {
        self.improved = false;
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
            for (int32_t place = 0; place < self.genome.count[axis]; place++) {
                TRY(try_moves(&self, axis, place, error));
                if (self.improved) break;
            }
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
            for (int32_t k = 0; k < problem->candidate_count && !self.improved; k++)
                if (problem_usable(problem, k, axis)) TRY(try_insertions(&self, axis, k, error));
    } while (self.improved && !problem_must_stop(problem) && problem->budget->evaluations < self.last);
    return AM_OK;
}
