/* The canonical module as HLO text with shardings, in the forms that other systems read.
 *
 * The text is the module's own with a sharding on each instruction (`propagate`), or with constraints alone
 * (`export`), spelled for XLA or Shardy (sharding_message.h).
 */
#ifndef PROPAGATION_PROPAGATE_SHARDED_MODULE_H
#define PROPAGATION_PROPAGATE_SHARDED_MODULE_H

#include "propagation/plan/plan.h"
#include "propagation/propagate/sharding_message.h"

typedef struct ShardedModule {
    ShardingSpelling spelling;
    const Mesh *mesh;
    const SbpState *states; /* [rules->count] of every canonical instruction */
    /* [rules->count]: a custom call "Sharding" stands after these arrays, and beside
     * them only the entry's parameters and outputs are annotated. NULL: every planned
     * instruction has a sharding of its own. */
    const bool *is_constrained;
    const SbpState *outputs; /* [operands of the entry's root tuple], or NULL: as computed */
} ShardedModule;

/* Appends the canonical module with its shardings as HLO text. */
AmStatus propagation_sharded_text(Text *text, const PlanContext *context, const ShardedModule *how,
                                  AmError *error);

/* Finds the shardings of the canonical instructions, [instructions], by tiles: those of tuples leaf by leaf,
 * NULL in computations that are not planned. Messages are in the arena. */
AmStatus propagation_value_shardings(Hlo__OpSharding ***shardings, Arena *arena, const PlanContext *context,
                                     const Mesh *mesh, const SbpState *states, AmError *error);

#endif
