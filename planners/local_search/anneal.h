/* Simulated annealing over random changes of any kind of plan (Kirkpatrick, Gelatt and Vecchi 1983).
 *
 * A change is taken if it lowers the score, and else with probability exp(-d / T), where d is the rise as a
 * fraction of the score. The temperature T falls geometrically from `hot` to `cold`:
 *
 *     T = hot (cold / hot)^p,   p: the part of the budget that is used
 */
#ifndef PLANNERS_LOCAL_SEARCH_ANNEAL_H
#define PLANNERS_LOCAL_SEARCH_ANNEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"

typedef struct Anneal {
    double hot, cold; /* temperatures, as fractions of the score */
    bool is_climb;    /* takes only changes that lower the score */
    Random *random;
    void *user; /* the first argument of all functions */
    bool (*is_over)(void *user);
    double (*progress)(void *user); /* the used part of the budget, 0 to 1 */
    /* Draws a change of the present plan; false if the drawn change is impossible. */
    bool (*change)(void *user, Random *random);
    /* Returns the score of the changed plan. */
    AmStatus (*score)(void *user, double *score, AmError *error);
    void (*take)(void *user); /* makes the changed plan the present one */
} Anneal;

/* Anneals from the present plan, whose score is `score`, until is_over(). */
AmStatus anneal_run(const Anneal *anneal, double score, AmError *error);

#endif
