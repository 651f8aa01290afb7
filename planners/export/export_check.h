/* Checks whether a plan can be exported for a target. The exporter itself decides: export_check() calls it
 * and drops its output, so that check and export cannot differ.
 */
#ifndef PLANNERS_EXPORT_EXPORT_CHECK_H
#define PLANNERS_EXPORT_EXPORT_CHECK_H

#include "planners/targets/target.h"

/* Returns AM_ERROR_INFEASIBLE, with the reason, if the export of the plan to the target would be refused.
 * `primary`: the context as read, or of its rewriting. */
AmStatus export_check(Target target, const PlanContext *primary, const Plan *plan, AmError *error);

/* Returns AM_ERROR_INFEASIBLE for a module whose stacked layers are apart, or whose recomputation is undone:
 * only automap runs it. */
AmStatus export_check_form(Target target, const PlanContext *primary, AmError *error);

#endif
