/* States of canonical values on a mesh, as shardings of the module that was read, and the contrary. */
#ifndef PROPAGATION_SPREAD_SPREAD_STATES_H
#define PROPAGATION_SPREAD_SPREAD_STATES_H

#include "propagation/plan/plan.h"
#include "propagation/spread/spread.h"

/* Gives the states [rules->count] of canonical values to the instructions that they come from; with
 * `splits_only` those alone that split something. */
AmStatus spread_give_states(Spread *spread, const PlanContext *context, const Mesh *mesh,
                            const SbpState *states, bool splits_only, AmError *error);
/* Checks that axes of the mesh, in their order, give every sharding that the module carries. AM_ERROR_INPUT
 * names the first instruction for which they do not. */
AmStatus spread_check_mesh(Spread *spread, const IrModule *module, const Mesh *mesh, AmError *error);

#endif
