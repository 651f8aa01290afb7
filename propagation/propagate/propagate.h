/* Propagation of a user's own shardings through a module (`automap propagate`).
 *
 * A pin splits dimensions of the parameters whose path matches over mesh axes. It becomes a seed of a
 * propagation (incremental.h) or an entry of an axis priority, and assignment (assign.h) decides every other
 * tensor. In strict mode a pin is a decision of strict.h instead.
 */
#ifndef PROPAGATION_PROPAGATE_PROPAGATE_H
#define PROPAGATION_PROPAGATE_PROPAGATE_H

#include "propagation/propagate/pins.h"

/* Appends a pin of one parameter, in the state that it requires, to the axis priorities of `stage`, whose
 * mesh is set. AM_ERROR_INFEASIBLE names a pin of a dimension that has fewer elements than shards, that does
 * not divide where the stage is even, or that no operator can split. */
AmStatus propagation_pin_parameter(PlanStage *stage, Arena *arena, const PlanContext *context,
                                   const PropagationPin *pin, const IrParameter *parameter, SbpState state,
                                   AmError *error);

/* Adds pins as seeds to an Incremental on `mesh`, whose state does not depend on their order. AM_ERROR_USAGE
 * as propagation_for_each_pinned() (pins.h); AM_ERROR_INFEASIBLE names a pin of a dimension that has fewer
 * elements than shards or that no operator can split. */
struct Incremental;
AmStatus propagation_pin_seeds(struct Incremental *incremental, const PlanContext *context, const Mesh *mesh,
                               const PropagationPin *pins, int32_t count, AmError *error);

/* The shardings that the module's own entry instructions carry, as seeds. */
typedef struct KeptShardings KeptShardings;
/* Reads the shardings of a module. AM_ERROR_INPUT names the instruction whose sharding cannot be read or is
 * of another rank. Shardings of tuples other than those that `tuple` makes are left out. */
AmStatus propagation_read_shardings(KeptShardings **kept, Arena *arena, const PlanContext *context,
                                    AmError *error);
/* Returns whether the value that an instruction makes is among them. */
bool propagation_is_kept(const KeptShardings *kept, int32_t instruction);
/* Finds the mesh of fewest axes on which all of them can be; axes are x0, x1, ... unless they have names. */
AmStatus propagation_infer_mesh(Mesh *mesh, Arena *arena, const KeptShardings *kept, AmError *error);
/* Appends to the axis priorities of `stage`, after any pins, the entries that reproduce these shardings, and
 * overrides for those that they do not reproduce; a pinned class stays pinned. Dimensions that
 * do not divide stay replicated, with a warning. AM_ERROR_INPUT names a value whose sharding is no
 * state on the mesh. */
AmStatus propagation_keep_shardings(PlanStage *stage, Arena *arena, const PlanContext *context,
                                    const KeptShardings *kept, AmWarnings *warnings, AmError *error);

/* Finds the state of every canonical instruction, [rules->count], of its first leaf; whole in computations
 * that are not planned. Values made on demand show the state that their first use needs. */
AmStatus propagate(SbpState **states, Arena *arena, const PlanContext *context, const PlanStage *stage,
                   AmError *error);

/* Finds the state of every canonical instruction [rules->count], of its first leaf, by strict rules on a
 * mesh of one axis. AM_ERROR_INFEASIBLE names the operator that allows no state beside the pins. */
AmStatus propagate_strictly(SbpState **states, Arena *arena, const PlanContext *context, const Mesh *mesh,
                            const PropagationPin *pins, int32_t count, AmError *error);

#endif
