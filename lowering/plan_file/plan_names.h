/* The names in a plan file, by which a plan of one form of a model applies to the other forms.
 *
 * A model has its layers in a loop over stacked parameters, or one after another. Both forms are trained
 * alike and have other numbers of parameters and instructions. `$.names` has a name for each number in the
 * stages:
 *
 *     "names": {
 *       "parameters": hash of the roles and shapes of all parameters, with one for each layer
 *       "instructions": [[605, "backward dot f32[16,128] 1/1 at params['layers'][3]['up']"], ...]
 *       "borders": [[824, "forward dot f32[16,64] 1/2 at params['layers'][4]['query']"], ...]
 *     }
 *
 * An instruction of a loop has one row for each layer. A border of a range is named by the first forward
 * arithmetic operator after it; null: none follows. Parameters have their paths in `$.parameters`.
 */
#ifndef LOWERING_PLAN_FILE_PLAN_NAMES_H
#define LOWERING_PLAN_FILE_PLAN_NAMES_H

#include "propagation/plan/plan.h"

/* Splits the loops over layers of a module that was read, together with the other rewritings of `rewriting`.
 * plan_names_to_json() then finds names for the instructions of its loops. Does nothing if the loops cannot
 * be split. */
AmStatus plan_names_prepare(PlanContext *source, PlanRewrites rewriting, AmError *error);

/* Sets `*names` to the names of the numbers in `stages` (the caller's reference), which are by the
 * instructions of `primary`; NULL: the module has no layers. A loop's instructions have names if
 * plan_context_rewrite() has split its layers before. */
AmStatus plan_names_to_json(json_t **names, const json_t *stages, const PlanContext *primary, AmError *error);

/* Rewrites the parsed plan `root`, if it is of another module with the same parameters by its names, so that
 * it is of the module in `source`, whose loops over layers it splits. The same if it is of this module, but
 * another version of automap numbered the instructions of the split layers. AM_ERROR_INPUT: a decision has no
 * counterpart in this module. */
AmStatus plan_names_carry(json_t *root, PlanContext *source, const char *file, AmError *error);

/* Sets `hex` to the hash of the roles and shapes of the parameters, in any order. */
AmStatus plan_names_hash_parameters(char hex[65], Arena *arena, const PlanContext *context, AmError *error);

#endif
