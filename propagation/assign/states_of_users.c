/* States that the axis priorities leave open, chosen after the factors in one pass over all uses. */
#include "propagation/assign/states_of_users.h"

#include "propagation/assign/split.h"

/* The common need of a value's users, as far as they have been visited. */
typedef struct Wish {
    SbpState state;
    int32_t users;
    uint8_t differs; /* axes (bits) on which they do not agree */
} Wish;

static bool splits_elsewhere(SbpState state, int32_t axis, Sbp sbp) {
    for (int32_t other = 0; other < MESH_MAX_AXES; other++)
        if (other != axis && state.axis[other] == sbp) return true;
    return false;
}

static bool may_follow_users(const Assignment *assignment, const PlanContext *context, int32_t i) {
    const IrInstruction *instruction = &context->canonical->instructions[i];
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
    Wish *wishes = ARENA_ARRAY(scratch, Wish, context->rules->count + 1);
    if (!wishes) return am_fail_memory(error, context->rules->count);
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n], first = split_options->first_operand[i];
        uint8_t split = 0; /* axes (bits) that split a factor of i */
        for (int32_t axis = 0; axis < axis_count; axis++)
            if (assignment->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] >= 0)
                split |= (uint8_t)(1u << axis);
        for (int32_t k = first; k < split_options->first_operand[i + 1]; k++) {
            Wish *wish = &wishes[split_options->operands[k]];
            uint8_t whole = 0; /* axes (bits) on which the operand is replicated */
            for (int32_t axis = 0; axis < axis_count; axis++)
                if (assignment->stored[split_options->operands[k]].axis[axis] == SBP_B)
                    whole |= (uint8_t)(1u << axis);
            /* i needs the dimensions replicated that it does not split. */
            wish->differs |= whole & (uint8_t)~split;
            if (whole & ~wish->differs) {
                SbpState state = split_operand_state(assignment, context, i, k - first);
                for (int32_t m = 0; m < MESH_MAX_AXES && wish->users > 0; m++)
                    if (!sbp_equal_on(wish->state, state, m)) wish->differs |= (uint8_t)(1u << m);
                if (wish->users++ == 0) wish->state = state;
            } else wish->users++;
        }
    }
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n];
        const Wish *wish = &wishes[i];
        if (wish->users == 0 || wish->users != split_options->uses[i]) continue;
        for (int32_t axis = 0; axis < assignment->stage->mesh.axis_count; axis++) {
            SbpState *stored = &assignment->stored[i];
            Sbp wanted = wish->state.axis[axis];
            if (stored->axis[axis] != SBP_B || !sbp_is_split(wanted) || wish->differs >> axis & 1) continue;
            if (splits_elsewhere(*stored, axis, wanted) || splits_elsewhere(wish->state, axis, wanted))
                continue;
            if (may_follow_users(assignment, context, i)) sbp_take(stored, wish->state, axis);
        }
    }
    arena_release(scratch, mark);
    return AM_OK;
}
