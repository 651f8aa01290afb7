/* A plan as HLO with shardings.
 *
 * A partitioner decides by itself what nothing says, and not always as the plan
 * does: with constraints on products and reductions alone XLA's partitioner sends up to
 * 2.4 times the bytes. So a constraint stands after every array that the plan
 * stores. Scalars and values made on demand (constants, broadcasts) have none:
 * they cost nothing in the state that their use needs.
 */
#include "planners/export/export_hlo.h"

#include "lowering/spmd/lower.h"
#include "planners/targets/target_checks.h"
#include "propagation/propagate/propagate.h"
#include "propagation/propagate/sharded_module.h"

static AmStatus choose_constraints(bool *is_constrained, const PlanContext *context, const Mesh *mesh,
                                   const SbpState *states, AmError *error) {
    const Rules *rules = context->rules;
    for (int32_t i = 0; i < rules->count; i++) {
        const IrInstruction *instruction = plan_context_instruction(context, i);
        bool is_array = instruction->shape.type != DTYPE_TUPLE && instruction->shape.rank > 0;
        if (!context->split_options->live[i] || rules->on_demand[i] || !is_array) continue;
        if (rules->rules[i].result_count == 0 || rules->alias[i] != i) continue;
        TRY(target_check_even(TARGET_HLO, mesh, states[i], instruction, error));
        is_constrained[i] = instruction->opcode != IR_PARAMETER;
    }
    return AM_OK;
}

/* States and constraints of the module that was read, from those of its form with fused attention: values
 * inside of an operator have no constraint. */
static AmStatus unfuse(SbpState **states, bool **is_constrained, Arena *arena, const PlanContext *fused,
                       AmError *error) {
    int32_t count = fused->unfused->rules->count;
    SbpState *moved = ARENA_ARRAY(arena, SbpState, count + 1);
    bool *constrained = ARENA_ARRAY(arena, bool, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = fused->rules->count - 1; i >= 0; i--) {
        int32_t own = fused->original[i];
        const IrInstruction *instruction = plan_context_instruction(fused->unfused, own);
        bool is_same = ir_shape_equal(&plan_context_instruction(fused, i)->shape, &instruction->shape);
        if (!is_same || fused->rules->rules[i].result_count == 0) continue;
        moved[own] = (*states)[i];
        constrained[own] = (*is_constrained)[i];
    }
    *states = moved;
    *is_constrained = constrained;
    return AM_OK;
}

AmStatus export_hlo(Text *text, const PlanContext *context, const Plan *plan, ShardingSpelling spelling,
                    AmError *error) {
    TRY(target_check_plan(sharding_is_shardy(spelling) ? TARGET_SHARDY : TARGET_HLO, plan, error));
    const PlanStage *stage = &plan->stages[0];
    const IrRoles *roles = context->roles;
    Arena arena = {0};
    SbpState *states, *outputs = ARENA_ARRAY(&arena, SbpState, roles->output_count);
    bool *is_constrained = ARENA_ARRAY(&arena, bool, context->rules->count);
    AmStatus status;
    if (arena.failed) {
        arena_free(&arena);
        return am_fail_memory(error, context->rules->count);
    }
    TRY_OR_FAIL(propagate(&states, &arena, context, stage, error));
    TRY_OR_FAIL(target_check_pools(TARGET_HLO, context, states, error));
    TRY_OR_FAIL(choose_constraints(is_constrained, context, &stage->mesh, states, error));
    if (!text) goto fail;
    for (int32_t k = 0; k < roles->output_count; k++) outputs[k] = states[target_output_source(context, k)];
    if (context->unfused) {
        TRY_OR_FAIL(unfuse(&states, &is_constrained, &arena, context, error));
        context = context->unfused;
    }
    ShardedModule how = {.spelling = spelling,
                         .mesh = &stage->mesh,
                         .states = states,
                         .is_constrained = is_constrained,
                         .outputs = outputs};
    status = propagation_sharded_text(text, context, &how, error);
fail:
    arena_free(&arena);
    return status;
}
