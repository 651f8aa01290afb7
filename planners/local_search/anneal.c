/* Simulated annealing: one random change after another, each taken or not. */
#include "planners/local_search/anneal.h"

#include <math.h>

AmStatus anneal_run(const Anneal *anneal, double score, AmError *error) {
    void *user = anneal->user;
    while (!anneal->is_over(user)) {
        double next;
        if (!anneal->change(user, anneal->random)) continue;
        TRY(anneal->score(user, &next, error));
        double rise = next / score - 1;
        double temperature = anneal->hot * pow(anneal->cold / anneal->hot, anneal->progress(user));
        bool is_taken = anneal->is_climb
                            ? next < score
                            : rise <= 0 || random_uniform(anneal->random) < exp(-rise / temperature);
        if (!is_taken) continue;
        anneal->take(user);
        score = next;
    }
    return AM_OK;
}
