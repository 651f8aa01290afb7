/* Assignment: the decision problem that the assignment policy walks (docs/planning.md).
 *
 * A state is an axis plan of a problem. An action appends a class set to an axis priority or puts it in front
 * where the order matters, sets the storage in shards of an axis, or drops an entry. A row of
 * ASSIGNMENT_FEATURES numbers describes an action in its state without identities and without what it leads
 * to, so that one network ranks the actions of every module, mesh and cluster.
 *
 * The gain of a plan s is log P(0) - log P(s), P being its price and 0 the plan that splits nothing; missing
 * memory adds a bounded number to the logarithm. The estimated gain is the same by estimates: those of
 * the sharding graph (estimate.h), with latencies and efficiencies of messages, and memory in proportion to
 * the bytes that a device holds.
 */
#ifndef PLANNERS_SINGLE_STAGE_ASSIGNMENT_H
#define PLANNERS_SINGLE_STAGE_ASSIGNMENT_H

#include "dqn/agent.h"
#include "planners/single_stage/estimate.h"

/* Changed with every change of the features' meaning or of the arrays: files of other versions are
 * refused. */
#define ASSIGNMENT_VERSION      "automap-assignment-3"
#define ASSIGNMENT_FACTS        47 /* of a plan */
#define ASSIGNMENT_FEATURES     74 /* of an action: the facts of the plan before it come first */
#define ASSIGNMENT_MOST_ACTIONS 256
#define ASSIGNMENT_MOST_STEPS   12
#define ASSIGNMENT_MOST_CHOSEN  24 /* class sets: those of the largest shares of FLOPs, weights and bytes */

#define ASSIGNMENT_SIZES 18 /* 1 byte to 16 GiB */

typedef enum AssignmentKind {
    ASSIGNMENT_APPEND,
    ASSIGNMENT_PREPEND,
    ASSIGNMENT_STORE, /* `value`: the new storage of the axis */
    ASSIGNMENT_DROP,  /* `value`: the place of the entry */
    ASSIGNMENT_KINDS
} AssignmentKind;

typedef struct AssignmentAction {
    AssignmentKind kind;
    int32_t axis, class_set, value;
    AxisPlan next; /* after the action */
} AssignmentAction;

/* A plan by its estimate, or by its price. */
typedef struct AssignmentValue {
    double gain;         /* with the bounded addend for missing memory */
    double seconds_gain; /* log of the seconds of the plan that splits nothing, over the plan's */
    double memory; /* log of the bytes of the fullest device over its limit; above 0 the plan does not fit */
} AssignmentValue;

typedef struct AssignmentState {
    AxisPlan axis_plan;
    AssignmentValue estimate;
    float facts[ASSIGNMENT_FACTS];
    int32_t action_count;
    AssignmentAction actions[ASSIGNMENT_MOST_ACTIONS];
    float features[ASSIGNMENT_MOST_ACTIONS][ASSIGNMENT_FEATURES];
} AssignmentState;

/* A stage problem with the figures by which its plans are estimated and its actions described. */
typedef struct AssignmentProblem {
    StageProblem *problem;
    Estimator *estimator;        /* NULL: the mesh has none, and all estimates are 1 second */
    PlanPrice unsplit, estimate; /* price and estimate of the plan that splits nothing */
    double *overlap;             /* [class set, class set]: fraction of the first one's bytes in tensors and
                                    operators of both */
    bool *is_chosen;             /* [class set]: may be listed by an action */
    double *bytes_share;         /* [class set]: fraction of all bytes in its tensors */
    double limit_bytes, state_bytes, weight_bytes;
    double launches;                             /* seconds of launching every instruction once */
    ShardingGraphCost unsplit_cost;              /* of that plan, by the sharding graph */
    double unsplit_held;                         /* bytes of a device, by the same */
    double sums[RESHARD_AXES][ASSIGNMENT_SIZES]; /* seconds of an all-reduce of 4^k bytes along the axes
                                                    that split */
    bool crosses[RESHARD_AXES];                  /* their groups span servers */
    double bits[RESHARD_AXES];                   /* log2 of their sizes */
} AssignmentProblem;

/* Computes these figures in the problem's arena. `unsplit`: the price of the plan that splits nothing, which
 * is equal on all meshes. */
AmStatus assignment_problem_open(AssignmentProblem *self, StageProblem *problem, const PlanPrice *unsplit,
                                 AmError *error);

/* Changes the price of the plan that splits nothing so that the estimate of an axis plan is its price. */
AmStatus assignment_problem_anchor(AssignmentProblem *self, const AxisPlan *axis_plan, const PlanPrice *price,
                                   AmError *error);

/* Lists the actions at an axis plan, with their features. Only the plan itself is estimated. */
AmStatus assignment_enter(AssignmentState *state, const AssignmentProblem *self, const AxisPlan *axis_plan,
                          AmError *error);

/* Estimates a plan, and finds its facts. */
AmStatus assignment_estimate(AssignmentValue *estimate, float facts[ASSIGNMENT_FACTS],
                             const AssignmentProblem *self, const AxisPlan *axis_plan, AmError *error);

/* Returns the value of a priced plan. */
AssignmentValue assignment_value(const AssignmentProblem *self, const PlanPrice *price);
/* Returns the addend to the logarithm of seconds for missing memory: 0 where the plan fits, at most 6. */
double assignment_missing(double memory);
/* Returns the gain of a price. */
double assignment_gain(const AssignmentProblem *self, const PlanPrice *price);

#endif
