/* StageChoices: the pipelines among which a policy chooses, beside one-stage plans.
 *
 * A choice is a number of stages with its cuts, widths and micro-batches, which the tables of stages give.
 * Its plans differ in the axis plan of a group of equal stages, for which the policy has actions:
 *
 *     choices->seconds[k]            by the tables: what the policy knows before it opens the choice
 *     choices->open(.., k, ..)       simulates it, and makes the problems of the group's meshes
 *     choices->price(.., k, ..)      simulates it with another axis plan in the group
 *
 * planners/pipeline/pipeline_policy.h implements it. An evaluation is one simulation.
 */
#ifndef PLANNERS_SINGLE_STAGE_STAGE_CHOICES_H
#define PLANNERS_SINGLE_STAGE_STAGE_CHOICES_H

#include "planners/problem/problem.h"

enum { STAGE_CHOICES_MOST = 96, STAGE_CHOICES_MESHES = 8 };

/* A choice that was simulated as the tables have it. */
typedef struct StageOpening {
    PlanPrice price;    /* infinite seconds: the module does not allow it, or the search was stopped */
    AxisPlan axis_plan; /* of the group, on problems[0] */
    StageProblem *problems[STAGE_CHOICES_MESHES]; /* the module on each mesh of the group; owned by `user` */
    int32_t problem_count;
} StageOpening;

typedef struct StagePrice {
    PlanPrice price; /* infinite seconds as in StageOpening */
    bool is_new;     /* an evaluation; false: the axis plan comes to a plan that was simulated before */
} StagePrice;

typedef struct StageChoices {
    void *user;
    int32_t count;
    double seconds[STAGE_CHOICES_MOST];
    bool is_priced[STAGE_CHOICES_MOST]; /* before: opening it takes no evaluation */
    AmStatus (*open)(void *user, int32_t choice, StageOpening *opening, AmError *error);
    AmStatus (*price)(void *user, int32_t choice, StageProblem *problem, const AxisPlan *axis_plan,
                      StagePrice *price, AmError *error);
} StageChoices;

#endif
