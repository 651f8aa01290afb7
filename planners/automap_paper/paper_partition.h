/* Auto-MAP's environment of operator partitioning and of auto data parallelism (its sections 3.2,
 * 3.3, 4.2 and 4.3).
 *
 * The decision vector has an entry for every dimension of every weight (or data input): 1
 * partitioned over the axis, 0 replicated, -1 undecided. One decision is taken per step, to
 * partition or to replicate; the strict engine (strict.h) infers the consequences, on its undo
 * trail. A decided dimension earns 0.4 if partitioned and 0.1 if replicated; a conflict costs 1 and
 * ends the episode.
 *
 * Weights are decided by linkage groups, the largest first: dimensions that are split together are
 * one decision, and the dimensions that a decision excludes are replicated with it. Data inputs
 * have no linkage groups (section 4.3): every dimension is a decision, also one that cannot be
 * split.
 */
#ifndef PLANNERS_AUTOMAP_PAPER_PAPER_PARTITION_H
#define PLANNERS_AUTOMAP_PAPER_PAPER_PARTITION_H

#include "planners/rl/environment.h"
#include "propagation/groups/strict.h"

#define PAPER_REWARD_PARTITIONED 0.4
#define PAPER_REWARD_REPLICATED  0.1
#define PAPER_REWARD_CONFLICT    (-1.0)

/* A decision vector without an undecided place. */
typedef struct PaperStrategy {
    int8_t *status; /* [dimension_count] 1 partitioned, 0 replicated */
    int32_t partitioned, replicated;
} PaperStrategy;

typedef struct PaperPartition {
    Environment base;          /* actions: 0 replicate, 1 partition */
    LinkageMember *dimensions; /* [dimension_count]: by parameter, then dimension */
    int32_t dimension_count;
    int32_t decision_count; /* a step each, unless earlier ones have decided it */
    int64_t conflicts;      /* episodes that ended in one, so far */
    bool has_best;
    PaperStrategy best; /* of the episodes without a conflict that which splits most, the first of equals */
} PaperPartition;

/* Creates the environment. `roots`: STRICT_STATE or STRICT_DATA. Everything lives in the arena.
 * AM_ERROR_USAGE for an axis below 2, AM_ERROR_INFEASIBLE for a module without a dimension to decide. */
AmStatus paper_partition_create(PaperPartition **partition, Arena *arena, const PlanContext *context,
                                int32_t axis_size, StrictRoots roots, AmError *error);

/* Returns the reward of a strategy over its whole vector, without discount. */
double paper_strategy_reward(const PaperStrategy *strategy);

#endif
