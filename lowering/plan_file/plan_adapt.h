/* Plans of earlier versions, and plans for a module that differs from the plan's own in donations and unused
 * parameters only.
 *
 * JAX drops parameters that nothing reads (keep_unused=False) and XLA notes donations in the module, so that
 * the dump of a step and its export have different hashes. Both have one structure hash; the numbers of
 * instructions and parameters in the plan are then changed to those of the module at hand.
 */
#ifndef LOWERING_PLAN_FILE_PLAN_ADAPT_H
#define LOWERING_PLAN_FILE_PLAN_ADAPT_H

#include "propagation/plan/plan.h"

/* Returns the value of $.module.structure, or NULL without memory. */
json_t *plan_structure_to_json(const PlanContext *primary);

/* Renames the keys that stages of earlier versions have: lists, exceptions, boxing. */
AmStatus plan_rename_keys(json_t *root, AmError *error);

/* Renumbers the parsed plan `root` for `primary` if their structure hashes agree and their sha256 differ.
 * AM_ERROR_INPUT names a faulty $.module.structure. */
AmStatus plan_adapt(json_t *root, const PlanContext *primary, const char *source, AmError *error);

/* Appends the first difference between the plan's module and `primary` that the plan can show. */
void plan_append_difference(Text *text, const json_t *root, const PlanContext *primary);

#endif
