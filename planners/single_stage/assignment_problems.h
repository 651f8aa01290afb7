/* Generated assignment problems: the training steps of given modules on random clusters.
 *
 * Problem `index` under a seed is a module, a cluster of 2 to 32 equal devices on 1 to 4 servers, and a mesh
 * of data x model. Rates are drawn relative to the module, so that small modules have the ratios of large
 * ones:
 *
 *     time of an unsplit step, over that of its launches    1.5 orders of magnitude
 *     rates of links, against the bytes of its weights      3 orders of magnitude
 *     memory, over that of an unsplit step                  1/6 to 4
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_PROBLEMS_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_PROBLEMS_H

#include "planners/single_stage/assignment_policy.h"

/* A module, and its step on one device of a reference cluster. */
typedef struct AssignmentModule {
    const PlanContext *context;
    double compute_seconds, weight_bytes;
    int64_t peak_bytes;
} AssignmentModule;

AmStatus assignment_module_measure(AssignmentModule *module, const PlanContext *context, AmError *error);

typedef struct GeneratedProblem {
    Arena arena;
    Cluster *cluster;
    StageProblem *problem;
    AssignmentProblem described;
} GeneratedProblem;

/* Opens a problem. generated_problem_close() releases it, also after a failure. */
AmStatus generated_problem_open(GeneratedProblem *self, const AssignmentModule *modules, int32_t count,
                                uint64_t seed, uint64_t index, AmError *error);
void generated_problem_close(GeneratedProblem *self);

/* Prices the baselines and `evaluations` plans of annealing: problem->best is then a plan to learn from. */
AmStatus generated_problem_teach(GeneratedProblem *self, int64_t evaluations, uint64_t seed, AmError *error);

/* Writes means over a few generated problems of a module: prices, estimates and features of the plans that
 * are one action away from the plan that splits nothing. They change with the prices, the actions or the
 * features. */
#define ASSIGNMENT_PRICES       4
#define ASSIGNMENT_PRICES_BYTES 96
AmStatus assignment_prices_text(char text[ASSIGNMENT_PRICES_BYTES], const AssignmentModule *module,
                                AmError *error);

/* Plays an episode with the player's choice of actions and random numbers of its own, and prices its first
 * ASSIGNMENT_ZERO_SHOT plans: `*gain` is that of the best one. `*surprise`, where not NULL: the difference
 * between the network's value of the first action and the estimated gain that followed. */
#define ASSIGNMENT_ZERO_SHOT 10
AmStatus assignment_zero_shot(double *gain, double *surprise, AssignmentEpisode *episode,
                              const AssignmentPlayer *player, AmError *error);

#endif
