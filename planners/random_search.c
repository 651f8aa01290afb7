/* Random plans: for tests, which want any valid plan rather than a good one. */
#include "planners/searchers.h"

void random_genome(const Problem *problem, Random *random, Genome *genome) {
    *genome = (Genome){0};
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double density = random_uniform(random);
        for (int32_t k = 0; k < problem->candidate_count; k++) {
            if (!problem_usable(problem, k, axis) || random_uniform(random) > density) continue;
            genome_insert(genome, axis, (int32_t)random_below(random, genome->count[axis] + 1), k);
        }
        int32_t kinds = problem_storage_kinds(problem, axis);
        if (kinds > 0) genome->storage[axis] = (uint8_t)random_below(random, kinds + 1);
    }
}
