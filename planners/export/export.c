/* Checks of plans before they are exported; see export.h. */
#include "planners/export/export.h"

static AmStatus check_shares(const Mesh *mesh, const char *form, AmError *error) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].shares)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s are even, and the plan has unequal shares on axis %s", form,
                           mesh->axes[axis].name);
    return AM_OK;
}

AmStatus export_check_stages(const Plan *plan, const char *form, AmError *error) {
    for (int32_t s = 0; s < plan->stage_count; s++) TRY(check_shares(&plan->stages[s].mesh, form, error));
    return AM_OK;
}

AmStatus export_check_plan(const Plan *plan, const char *form, AmError *error) {
    if (plan->stage_count != 1)
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "%s cannot hold pipeline stages, and the plan has %d; --format dtensor can, search "
                       "--even finds plans of one stage",
                       form, plan->stage_count);
    if (plan->micro_batches != 1)
        return am_fail(error, AM_ERROR_INFEASIBLE, "",
                       "%s cannot hold micro-batches, and the plan has %d; --format dtensor can, search "
                       "--even --micro-batches 1 finds plans without",
                       form, plan->micro_batches);
    const Mesh *mesh = &plan->stages[0].mesh;
    TRY(check_shares(mesh, form, error));
    for (int32_t d = 0; d < mesh->device_count; d++)
        if (plan->stages[0].devices[d] != d)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "%s number devices in mesh order, and the plan has device %d at %d", form,
                           plan->stages[0].devices[d], d);
    return AM_OK;
}

AmStatus export_check_even(const Mesh *mesh, SbpState state, const IrInstruction *instruction,
                           const char *form, AmError *error) {
    const IrShape *shape = &instruction->shape;
    int32_t rank = shape->type == DTYPE_TUPLE ? 0 : shape->rank;
    for (int32_t d = 0; d < rank; d++) {
        int32_t ways = sbp_ways(mesh, state, d);
        if (!sbp_is_even(mesh, state, d, shape->dimensions[d]) || sbp_blocks(state, d) > 1)
            return am_fail(
                error, AM_ERROR_INFEASIBLE, "",
                "%s are even and contiguous, and the plan cuts dimension %d of %s, of size %lld, into "
                "%d%s; search --even finds plans that can be exported",
                form, d, instruction->name, (long long)shape->dimensions[d], ways,
                sbp_blocks(state, d) > 1 ? " of pieces of several blocks" : "");
    }
    return AM_OK;
}

/* Returns whether a state splits a dimension along which the windows of a pool overlap. */
static bool splits_windows(const FactorRule *rule, SbpState state) {
    for (int32_t f = 0; f < rule->factor_count; f++)
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
            if (rule->factors[f].halo == HALO_OVERLAP &&
                state.axis[axis] == sbp_split(rule->factors[f].dimension[0]))
                return true;
    return false;
}

AmStatus export_check_pools(const PlanContext *context, const SbpState *states, const char *form,
                            AmError *error) {
    const Rules *rules = context->rules;
    for (int32_t i = 0; i < rules->count; i++) {
        const IrInstruction *pool = &context->canonical->instructions[i];
        if (pool->opcode != IR_SELECT_AND_SCATTER || !context->choices->live[i]) continue;
        const FactorRule *rule = &rules->rules[i];
        if (rule->operand_count < 1) continue;
        if (splits_windows(rule, states[i]) || splits_windows(rule, states[rules->alias[pool->operands[0]]]))
            return am_fail(
                error, AM_ERROR_INFEASIBLE, context->canonical->source,
                "%s: XLA gives wrong gradients of overlapping windows that are split, and the plan "
                "splits %s in space",
                form, pool->name);
    }
    return AM_OK;
}

int32_t export_output_source(const PlanContext *context, int32_t output) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (context->roles->parameters[p].output == output) return context->roles->parameters[p].instruction;
    return context->roles->outputs[output];
}
