/* StageProblem: the one-stage plans on one mesh, and their costs.
 *
 * An axis plan is a compact plan: for each mesh axis an ordered list of class sets, and the storage in
 * shards. A class set holds tied dimension classes: repeated layers get one decision. Every
 * searcher prices axis plans through problem_price(), which assigns, lowers and prices the real
 * program, caches results, counts new ones, and keeps the best.
 */
#ifndef PLANNERS_PROBLEM_PROBLEM_H
#define PLANNERS_PROBLEM_PROBLEM_H

#include "cost/cluster/cluster.h"
#include "lowering/spmd/lower.h"
#include "planners/problem/budget.h"
#include "planners/problem/mesh_pins.h"
#include "planners/problem/plan_constraints.h"
#include "planners/problem/price_memo.h"
#include "planners/problem/scratch.h"
#include "planners/problem/search_watch.h"

#define AXIS_PLAN_MAX_ENTRIES 12
#define AXIS_PLAN_AXES        3
#define PROBLEM_BATCH         4
#define BUDGET_REPEATS        8

typedef struct AxisPlan {
    uint8_t count[AXIS_PLAN_AXES];
    uint8_t entries[AXIS_PLAN_AXES][AXIS_PLAN_MAX_ENTRIES]; /* class set indices */
    /* How many kinds of storage end the axis priority: 1 optimizer state, 2 gradients too, 3 weights too (the
     * stages of ZeRO). */
    uint8_t storage[AXIS_PLAN_AXES];
    uint8_t gathers_again; /* weights are not kept gathered from the forward to the backward pass, even if
                              they might fit */
} AxisPlan;
#define AXIS_PLAN_STORAGE_KINDS 3

typedef enum PlanSpace {
    SPACE_AUTO,         /* every space; of a problem, all one-stage plans */
    SPACE_SINGLE_STAGE, /* all one-stage plans */
    SPACE_OPERATOR,
    SPACE_DATA,
    SPACE_PIPELINE,
    SPACE_HYBRID,
    SPACE_COUNT
} PlanSpace;
const char *plan_space_name(PlanSpace space);

typedef struct ClassSet {
    const int32_t *classes; /* dimension classes, ascending */
    int32_t class_count;
    int32_t linkage_size; /* classes with weights in it: the linkage group's size */
    bool splits_data;     /* holds a dimension of a data input */
    bool splits_weights;
    double weight_share, flops_share; /* of the module's weights and dot FLOPs */
    double size;                      /* smallest class size */
} ClassSet;

/* The class sets that Auto-MAP's strict rules split on an axis (baseline_megatron()), from which all
 * baselines with a model axis are made: computed at the first request. */
typedef struct StrictClassSets {
    bool is_known;
    bool chosen[UINT8_MAX + 1]; /* [class set] */
} StrictClassSets;

/* The plans of a problem, and the extent of its search. Each problem has its own budget, so that the meshes
 * of a search can be worked on side by side with the same result. */
typedef struct ProblemSettings {
    PlanSpace space;
    PlanConstraints constraints; /* other plans are not made, or take infinitely long */
    SearchBudget budget;
    SearchWatch *watch; /* receives each count and price; or NULL */
    Scratch *scratch;   /* which plans are priced in, shared with other problems; NULL: the problem's own */
} ProblemSettings;

/* Settings for single plans of a space, whose only constraint is memory. */
static inline ProblemSettings problem_settings(PlanSpace space, double memory_fraction) {
    return (ProblemSettings){
        .space = space, .constraints.memory_fraction = memory_fraction, .budget = {.limit = 1}};
}

typedef struct StageProblem {
    Arena arena;                 /* class sets, memo, estimator */
    struct Estimator *estimator; /* single_stage/estimate.h; NULL: not used so far, or there is none */
    bool has_estimator;          /* it was asked for */
    Scratch *scratch, *own_scratch;
    const PlanContext *context;
    const Cluster *cluster;
    Mesh mesh;
    const int32_t *devices;      /* mesh device -> cluster device */
    PlanConstraints constraints; /* those of the settings */
    SearchBudget budget;
    SearchWatch *watch; /* that of the settings */
    MeshPins pins;      /* constraints.pins on this mesh */
    PlanSpace space;
    bool has_storage;
    struct {
        double bytes;  /* all weights, gathered */
        bool may_stay; /* they are a small part of a device's memory, so that both passes may share them */
    } gathered;
    ClassSet *class_sets; /* by linkage group size, largest first, then weight */
    int32_t class_set_count;
    struct {
        struct ProblemMemo *axis_plans; /* by axis plan */
        PriceMemo plans;                /* by the resulting plan */
        int64_t repeats; /* axis plans that came to a plan priced before; at most BUDGET_REPEATS * limit */
    } priced;
    StrictClassSets *strict; /* [mesh axis]; one thread at a time asks for baselines */
    struct {
        AxisPlan axis_plan;
        PlanPrice price;
        bool is_known;
    } best; /* among those that fit; if none, the least excess */
} StageProblem;

/* Creates a problem. AM_ERROR_INFEASIBLE names a pin that cannot hold on this mesh. */
AmStatus problem_create(StageProblem **problem, const PlanContext *context, const Cluster *cluster,
                        const Mesh *mesh, const int32_t *devices, const ProblemSettings *settings,
                        AmError *error);
void problem_free(StageProblem *problem);

/* Returns the bytes that a plan may use on the device with least memory. */
double problem_memory_limit(const StageProblem *problem);

/* Prices an axis plan. One that comes to a plan not priced before counts as an evaluation; beyond the cap it
 * has infinite seconds and is not remembered. */
AmStatus problem_price(StageProblem *problem, const AxisPlan *axis_plan, PlanPrice *price, AmError *error);

/* Hashes all that lowering depends on, except the module and the mesh: assignments of equal keys cost the
 * same. */
uint64_t problem_assignment_key(const StageProblem *problem, const Assignment *assignment);

/* Lowers and prices an assignment of the problem's context in scratch memory; it is not remembered. */
AmStatus problem_price_assignment(PlanPrice *price, const StageProblem *problem, Arena *scratch,
                                  const Assignment *assignment, AmError *error);

/* Returns whether the axis plan has been priced; `price` is then its cost. */
bool problem_known(const StageProblem *problem, const AxisPlan *axis_plan, PlanPrice *price);

/* Prices up to PROBLEM_BATCH axis plans concurrently; caching, counts and the best plan do not depend
 * on the number of threads. Axis plans beyond the budget are omitted. */
AmStatus problem_price_batch(StageProblem *problem, const AxisPlan *axis_plans, int32_t count,
                             AmError *error);

/* Writes the fastest priced axis plans that fit, with different prices, fastest first; returns their number,
 * at most `most`. */
int32_t problem_fastest(AxisPlan *fastest, const StageProblem *problem, int32_t most);
/* Writes the cheapest priced axis plan without problem_set_tried(); false: all have it. */
bool problem_best_untried(StageProblem *problem, AxisPlan *axis_plan);
void problem_set_tried(StageProblem *problem, const AxisPlan *axis_plan);

/* Returns whether class set k can be split on the axis at all. */
bool problem_can_split(const StageProblem *problem, int32_t class_set, int32_t axis);
/* Returns the number of storage kinds of an axis plan's axis. Zero with pins, which determine the storage of
 * parameters, and in the space of operators alone. */
int32_t problem_storage_kinds(const StageProblem *problem, int32_t axis);
/* Returns whether the budget is over, or the limit of evaluations or of repeats is reached. */
bool problem_must_stop(const StageProblem *problem);
/* Returns one number to minimise: seconds, plus a penalty that grows with the excess. */
double plan_price_score(const PlanPrice *price);
bool plan_price_better(const PlanPrice *a, const PlanPrice *b);

/* Writes the axis plan's stage, in the arena; prices and plans use it alike. */
void problem_stage(const StageProblem *problem, const AxisPlan *axis_plan, Arena *arena, PlanStage *stage);
bool axis_plan_insert(AxisPlan *axis_plan, int32_t axis, int32_t place,
                      int32_t class_set); /* false: full or present */
void axis_plan_remove(AxisPlan *axis_plan, int32_t axis, int32_t place);
bool axis_plan_has(const AxisPlan *axis_plan, int32_t axis, int32_t class_set);

#endif
