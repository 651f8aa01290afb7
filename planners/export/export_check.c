/* Calls the exporter of a target and drops its output: automap accepts every plan, the others may refuse.
 */
#include "planners/export/export_check.h"

#include "planners/export/export_dtensor.h"
#include "planners/export/export_hlo.h"
#include "planners/export/export_jax.h"
#include "planners/export/export_megatron.h"
#include "planners/export/export_torchtitan.h"

AmStatus export_check_form(Target target, const PlanContext *primary, AmError *error) {
    if (target == TARGET_AUTOMAP) return AM_OK;
    if (primary->rewriting.undoes_recomputation)
        return am_fail(
            error, AM_ERROR_INFEASIBLE, "",
            "the plan undoes the recomputation of the source (expected a plan of search --keep-remat)");
    if (!primary->layer_map || target_row(target)->splits_layers) return AM_OK;
    return am_fail(
        error, AM_ERROR_INFEASIBLE, "",
        "the plan splits the layers of stacked parameters (expected a plan of search --layers loop)");
}

AmStatus export_check(Target target, const PlanContext *primary, const Plan *plan, AmError *error) {
    AmStatus status = AM_OK;
    json_t *root = NULL;
    if (target == TARGET_AUTOMAP) return AM_OK;
    TRY(export_check_form(target, primary, error));
    TRY(target_check_module(target, primary, error));
    switch (target) {
    case TARGET_JAX: status = export_jax(&root, primary, plan, error); break;
    case TARGET_TORCH: status = export_dtensor(&root, primary, plan, error); break;
    case TARGET_MEGATRON: status = export_megatron(&root, primary, plan, error); break;
    case TARGET_TORCHTITAN: status = export_torchtitan(&root, primary, plan, error); break;
    default: status = export_hlo(NULL, primary, plan, SHARDING_TILES, error); break;
    }
    json_decref(root);
    return status;
}
