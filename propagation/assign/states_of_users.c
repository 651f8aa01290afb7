/* Unconstrained states: a value takes the state in which all of its users need it, if they agree.
 *
 * This runs after factors are chosen, in one pass over all uses.
 */
#include "propagation/assign/states_of_users.h"

#include "propagation/assign/split.h"

/* The state in which the users of a value need it, of those that have been visited. */
typedef struct CommonNeed {
    SbpState state;
    int32_t users;
    uint8_t differs; /* axes (bits) on which users need different states */
} CommonNeed;

static bool splits_elsewhere(SbpState state, int32_t axis, Sbp sbp) {
    for (int32_t other = 0; other < MESH_MAX_AXES; other++)
        if (other != axis && state.axis[other] == sbp) return true;
    return false;
}

static bool may_follow_users(const Assignment *assignment, const PlanContext *context, int32_t i) {
    const IrInstruction *instruction = plan_context_instruction(context, i);
    const PlanStage *stage = assignment->stage;
    if (instruction->operand_count == 0 || instruction->opcode == IR_GET_TUPLE_ELEMENT) return false;
    if (context->rules->rules[i].result_count != 1 || instruction->shape.type == DTYPE_TUPLE) return false;
    for (int32_t k = 0; k < stage->override_count; k++)
        if (stage->overrides[k].instruction == i && stage->overrides[k].has_states) return false;
    return true;
}

AmStatus states_follow_users(Assignment *assignment, Arena *scratch, const PlanContext *context,
                             AmError *error) {
    const SplitOptions *split_options = context->split_options;
    int32_t axis_count = assignment->stage->mesh.axis_count;
    ArenaMark mark = arena_mark(scratch);
    CommonNeed *needs = ARENA_ARRAY(scratch, CommonNeed, context->rules->count + 1);
    if (!needs) return am_fail_memory(error, context->rules->count);
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n], first = split_options->first_operand[i];
        uint8_t split = 0; /* axes (bits) that split a factor of i */
        for (int32_t axis = 0; axis < axis_count; axis++)
            if (assignment->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] >= 0)
                split |= (uint8_t)(1u << axis);
        for (int32_t k = first; k < split_options->first_operand[i + 1]; k++) {
            CommonNeed *need = &needs[split_options->operands[k]];
            uint8_t replicated = 0; /* axes (bits) on which the operand is replicated */
            for (int32_t axis = 0; axis < axis_count; axis++)
                if (assignment->stored[split_options->operands[k]].axis[axis] == SBP_B)
                    replicated |= (uint8_t)(1u << axis);
            /* i needs the dimensions replicated that it does not split. */
            need->differs |= replicated & (uint8_t)~split;
            if (replicated & ~need->differs) {
                SbpState state = split_operand_state(assignment, context, i, k - first);
                for (int32_t m = 0; m < MESH_MAX_AXES && need->users > 0; m++)
                    if (!sbp_equal_on(need->state, state, m)) need->differs |= (uint8_t)(1u << m);
                if (need->users++ == 0) need->state = state;
            } else need->users++;
        }
    }
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n];
        const CommonNeed *need = &needs[i];
        if (need->users == 0 || need->users != split_options->uses[i]) continue;
        for (int32_t axis = 0; axis < assignment->stage->mesh.axis_count; axis++) {
            SbpState *stored = &assignment->stored[i];
            Sbp wanted = need->state.axis[axis];
            if (stored->axis[axis] != SBP_B || !sbp_is_split(wanted) || need->differs >> axis & 1) continue;
            if (splits_elsewhere(*stored, axis, wanted) || splits_elsewhere(need->state, axis, wanted))
                continue;
            if (may_follow_users(assignment, context, i)) sbp_take(stored, need->state, axis);
        }
    }
    arena_release(scratch, mark);
    return AM_OK;
}
