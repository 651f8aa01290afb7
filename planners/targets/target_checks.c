/* Checks of the shardings of single tensors against a target. */
#include "planners/targets/target_checks.h"

AmStatus target_check_even(Target target, const Mesh *mesh, SbpState state, const IrInstruction *instruction,
                           AmError *error) {
    const IrShape *shape = &instruction->shape;
    int32_t rank = shape->type == DTYPE_TUPLE ? 0 : shape->rank;
    for (int32_t d = 0; d < rank; d++) {
        int32_t ways = sbp_ways(mesh, state, d);
        if (!sbp_is_even(mesh, state, d, shape->dimensions[d]) || sbp_blocks(state, d) > 1)
            return am_fail(
                error, AM_ERROR_INFEASIBLE, "",
                "%s are even and contiguous, and the plan cuts dimension %d of %s, of size %lld, into "
                "%d%s; search --for %s finds plans that can be exported",
                target_row(target)->form, d, instruction->name, (long long)shape->dimensions[d], ways,
                sbp_blocks(state, d) > 1 ? " in shards of several blocks" : "", target_row(target)->name);
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

AmStatus target_check_pools(Target target, const PlanContext *context, const SbpState *states,
                            AmError *error) {
    if (!target_row(target)->has_plain_pools) return AM_OK;
    const Rules *rules = context->rules;
    for (int32_t i = 0; i < rules->count; i++) {
        const IrInstruction *pool = plan_context_instruction(context, i);
        if (pool->opcode != IR_SELECT_AND_SCATTER || !context->split_options->live[i]) continue;
        const FactorRule *rule = &rules->rules[i];
        if (rule->operand_count < 1) continue;
        if (splits_windows(rule, states[i]) || splits_windows(rule, states[rules->alias[pool->operands[0]]]))
            return am_fail(
                error, AM_ERROR_INFEASIBLE, context->canonical->source,
                "%s: XLA gives wrong gradients of overlapping windows that are split, and the plan "
                "splits %s in space",
                target_row(target)->form, pool->name);
    }
    return AM_OK;
}

int32_t target_output_source(const PlanContext *context, int32_t output) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (context->roles->parameters[p].output == output) return context->roles->parameters[p].instruction;
    return context->roles->outputs[output];
}
