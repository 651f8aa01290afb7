/* Assignment: the decision problem that the assignment policy walks (docs/learning.md).
 *
 * A state is an axis plan of a problem. An action appends a candidate to an axis's list or puts it in front
 * where the order matters, raises the storage in shards of an axis, drops an entry, or stops. A row of
 * ASSIGNMENT_FEATURES numbers describes an action in its state without identities, so that one network
 * values the actions of every module, mesh and cluster.
 *
 * Prices are logarithms of seconds with a bounded addend for missing memory. With P the price and E the
 * estimate (estimate.h) of a plan, and 0 the plan that splits nothing, the rewards are
 *
 *   of a change s -> s'     log E(s) - log E(s')
 *   of stopping at s        (log E(s) - log P(s)) - (log E(0) - log P(0))
 *
 * which add up to log P(0) - log P(s): one price for each episode, and a reward for each action. Without
 * estimates E is 1.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_H

#include "dqn/agent.h"
#include "planners/single_stage/estimate.h"

/* Changed with every change of the features' meaning: files of other versions are refused. */
#define ASSIGNMENT_VERSION      "automap-assignment-1"
#define ASSIGNMENT_FEATURES     60
#define ASSIGNMENT_MOST_ACTIONS 256
#define ASSIGNMENT_MOST_STEPS   12
#define ASSIGNMENT_MOST_CHOSEN  24 /* candidates: those of the largest shares of FLOPs, weights and bytes */

typedef enum AssignmentKind {
    ASSIGNMENT_APPEND,
    ASSIGNMENT_PREPEND,
    ASSIGNMENT_STORE, /* `value`: the new storage of the axis */
    ASSIGNMENT_DROP,  /* `value`: the place of the entry */
    ASSIGNMENT_STOP,
    ASSIGNMENT_KINDS
} AssignmentKind;

typedef struct AssignmentAction {
    AssignmentKind kind;
    int32_t axis, candidate, value;
    AxisPlan next;      /* after the action */
    PlanPrice estimate; /* of it */
} AssignmentAction;

typedef struct AssignmentState {
    AxisPlan axis_plan;
    PlanPrice estimate;
    int32_t action_count; /* the last action is to stop */
    AssignmentAction actions[ASSIGNMENT_MOST_ACTIONS];
    float features[ASSIGNMENT_MOST_ACTIONS][ASSIGNMENT_FEATURES];
} AssignmentState;

/* The facts of a problem. */
typedef struct Assignments {
    Problem *problem;
    Estimator *estimator;        /* NULL: no estimates */
    PlanPrice unsplit, estimate; /* price and estimate of the plan that splits nothing */
    double *overlap;             /* [candidate, candidate]: fraction of the first one's bytes in tensors and
                                    operators of both */
    bool *is_chosen;             /* [candidate]: may be listed by an action */
    double *bytes_share;         /* [candidate]: fraction of all bytes in its tensors */
    double limit_bytes, state_bytes, weight_bytes;
    double launches; /* seconds of launching every instruction once */
} Assignments;

/* `unsplit`: the price of the plan that splits nothing, on whichever mesh. Memory is the problem's arena,
 * but for the estimator: assignments_close(). */
AmStatus assignments_open(Assignments *self, Problem *problem, const PlanPrice *unsplit, bool has_estimates,
                          AmError *error);
void assignments_close(Assignments *self);

/* Lists the actions at an axis plan, with their features. */
AmStatus assignment_enter(AssignmentState *state, const Assignments *self, const AxisPlan *axis_plan,
                          AmError *error);

/* The features of stopping at a plan. */
void assignment_stop_row(float row[ASSIGNMENT_FEATURES], const Assignments *self, const AxisPlan *axis_plan,
                         const PlanPrice *estimate);

/* log P(0) - log P of a price: the sum of the rewards of an episode that ends there. */
double assignment_gain(const Assignments *self, const PlanPrice *price);
/* The part of that sum up to a state, given its estimate. */
double assignment_so_far(const Assignments *self, const PlanPrice *estimate);

#endif
