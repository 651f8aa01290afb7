/* Random single changes of lists: what annealing goes by. */
#ifndef PLANNERS_GENOME_CHANGES_H
#define PLANNERS_GENOME_CHANGES_H

#include "base/random.h"
#include "planners/problem.h"

/* On a random axis a candidate inserted, removed, replaced or moved, also to another axis, or another amount
 * kept in shards. False: what was drawn cannot be done, and the genome may be changed all the same. */
bool genome_change(const Problem *problem, Random *random, Genome *genome);

/* Returns whether annealing goes on from a plan that is dearer by the fraction `rise` (cheaper: below 0),
 * when the fraction `used` of its steps is used up. */
bool annealing_takes(Random *random, double rise, double used);

#endif
