/* Offline training of the assignment policy on generated problems (assignment_problems.h).
 *
 * Each problem is priced by a teacher first: the baselines, and a short annealing. Episodes of the policy
 * follow, with noise, from the plan that splits nothing or from the teacher's plan, then demonstrations of
 * the best plan so far. Every plan on the way is priced. An action's return is the largest gain that follows
 * it in its episode. The network of errors learns from the same plans, and has no part in the episodes
 * (assignment_policy.h). A supervised training has demonstrations in place of the episodes,
 * with random other actions: a regression without reinforcement.
 *
 * Everything is a function of the seed and the modules: a training continued from its checkpoint ends with
 * the same network, bit for bit, on the same kind of processor.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_TRAIN_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_TRAIN_H

#include <signal.h>

#include "planners/problem/search_watch.h"
#include "planners/single_stage/assignment_problems.h"

/* One point of the learning curve. */
typedef struct AssignmentProgress {
    int64_t problems, problem_count;
    double loss;
    double gain;   /* mean over the validation problems of the zero-shot plan's */
    double error;  /* mean difference between the predicted and the achieved gain of an episode */
    double regret; /* mean of log P - log P of the teacher's plan there, each at most 1 */
} AssignmentProgress;

typedef struct AssignmentTraining {
    const AssignmentModule *modules; /* [module_count] */
    int32_t module_count;
    uint64_t seed;
    int64_t problems;       /* in all */
    const char *learner;    /* parts of Rainbow (learner_parts.h); NULL: the usual ones */
    bool is_supervised;     /* demonstrations of the teacher's plan alone, no episodes of the policy */
    const char *checkpoint; /* written at every report and at the end; or NULL */
    bool resume;            /* from the checkpoint */
    const volatile sig_atomic_t *interrupted;
    int64_t report_every;        /* problems; 0: never */
    int32_t validation_problems; /* of a report, never trained on */
    void (*on_report)(void *user, const AssignmentProgress *progress);
    void *user;
    SearchWatch *watch; /* counts the problems; or NULL */
} AssignmentTraining;

/* Returns the trained policy; assignment_policy_close() releases it. When interrupted it writes the
 * checkpoint and returns the policy in its current state, with `*done` problems behind it. AM_ERROR_INPUT:
 * the checkpoint belongs to another training. */
AmStatus assignment_train(AssignmentPolicy *policy, int64_t *done, const AssignmentTraining *training,
                          AmError *error);

#endif
