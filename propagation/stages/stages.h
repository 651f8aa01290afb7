/* Stages: the stage of a plan on which each value is computed, held and needed.
 *
 * A plan assigns forward operators to stages; stages_assign() finds a stage for every other
 * instruction of the planned computations, including bodies of loops. A program is correct for any
 * such assignment, since a value that is needed elsewhere is sent. The assignment keeps transfers
 * small and their direction uniform: up the stages in the forward pass, down in the backward pass.
 *
 *   weight, its optimizer state and update   where the weight is first used
 *   recomputed forward operators             where the forward operator is; other stages use the
 *                                            original, which is sent
 *   ancestors of one weight's gradient       at that weight, if their inputs are available there
 *   other backward operators                 the last stage, at most that of their gradient operands,
 *                                            with the forward values and weights that they use
 *   scalars over several stages              the first of these (global norm, is-finite)
 *   helpers, casts of weights, counters      at their users; cheap ones at all of them
 *
 * Values made on demand (Rules) are computed wherever they are used.
 */
#ifndef PROPAGATION_STAGES_STAGES_H
#define PROPAGATION_STAGES_STAGES_H

#include "propagation/plan/plan.h"

#define STAGES_MOST 64

/* A set of stages: bit s is stage s. */
typedef uint64_t StageSet;

static inline StageSet stage_bit(int32_t stage) {
    return (StageSet)1 << stage;
}
static inline bool stage_in(StageSet set, int32_t stage) {
    return set >> stage & 1;
}
/* Returns the first and the last stage of a set that is not empty. */
static inline int32_t stage_first(StageSet set) {
    return __builtin_ctzll(set);
}
static inline int32_t stage_last(StageSet set) {
    return 63 - __builtin_clzll(set);
}

/* A value that several stages hold is computed equally by each of them. A stage that needs a value
 * that it does not hold gets it from the first that does. */
typedef struct StageMap {
    int32_t stage_count; /* where stages are in chunks, of these: chunk c of stage s is number c S + s */
    int32_t chunks;      /* of each stage, mostly 1 */
    int32_t *first_rank; /* [stage_count + 1]: rank of stage s's device d is first_rank[s] + d */
    StageSet *held;      /* [instruction]; of a planned loop: the stages that it is on; of values made on
                            demand and of tuples: none */
    StageSet *needed;    /* [instruction] */
    StageSet **carried;  /* [planned loop][leaf]: stages that carry the array */
    int32_t *owner;      /* [entry parameter]: its only stage */
    int32_t *output;     /* [output]: its only stage, that of the parameter that it updates */
} StageMap;

/* The input of a pass over the module: the stages that compute instructions. */
typedef struct StageSeeds {
    StageSet *held;    /* [instruction]: empty where its users decide */
    StageSet *allowed; /* [instruction] of those: stages that have its operands; empty: any */
    bool *is_cheap;    /* [instruction] of those: computed by every stage that needs it */
    int32_t *owner;    /* [entry parameter]: -1 where its users decide */
} StageSeeds;

/* Finds the stages of a plan's instructions; everything lives in the arena. AM_ERROR_INPUT: a forward
 * operator is in no stage's ranges, or takes a value of a later stage (both are named). */
AmStatus stages_assign(StageMap **map, Arena *arena, const PlanContext *context, const Plan *plan,
                       AmError *error);

/* Does the two halves of it. Seeds from the plan's ranges (stages_seed.c; of a module in micro-batches by way
 * of the original's, stages_split.c), and from seeds the stages that everything is held and needed on
 * (stages.c). */
AmStatus stages_seed(StageSeeds *seeds, Arena *arena, const PlanContext *context, const Plan *plan,
                     AmError *error);
AmStatus stages_seed_split(StageSeeds *seeds, Arena *arena, const PlanContext *context, const Plan *plan,
                           AmError *error);
/* The seeds of a module in replicas (stages_replicas.c). */
AmStatus stages_seed_replicas(StageSeeds *seeds, Arena *arena, const PlanContext *context, const Plan *plan,
                              AmError *error);
AmStatus stages_spread(StageMap **map, Arena *arena, const PlanContext *context, const StageSeeds *seeds,
                       int32_t stage_count, AmError *error);

/* Returns the forward instruction whose value recomputed instruction i of the entry makes again, or -1. */
int32_t stages_repeated(const PlanContext *context, int32_t i);
/* Returns the forward instruction whose value a stage takes for that of recomputed instruction i, or i. */
int32_t stages_stand_in(const PlanContext *context, const StageMap *map, int32_t i, int32_t stage);

/* Returns whether the instruction forwards a value held elsewhere: tuples, their elements, values
 * made on demand. */
bool stages_is_transparent(const PlanContext *context, int32_t instruction);

#endif
