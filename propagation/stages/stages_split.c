/* The stages of a module that was rewritten in micro-batches, from those of the original.
 *
 * An instruction derived from an original has its stages, and the accumulated sum over the
 * iterations too. Instructions that the rewriting has added are cheap and only slice, stack and
 * count: they are on the stages of their users, as far as the original is there. A value that one
 * stage computes for the backward pass of another is therefore sent in the iteration that computes
 * it, and stacked at its readers.
 */
#include "propagation/stages/stages.h"

/* Returns whether the rewriting added the instruction. It may have the opcode of its original, such as the
 * reshape of one row of the stack that keeps a reshape; then it takes a value of that original. */
static bool is_added(const PlanContext *context, int32_t i) {
    const IrInstruction *instruction = plan_context_instruction(context, i);
    int32_t original = context->original[i];
    if (instruction->opcode != plan_context_instruction(context->primary, original)->opcode) return true;
    for (int32_t k = 0; ir_opcode_has(instruction->opcode, FACT_MOVES) && k < instruction->operand_count; k++)
        if (context->original[instruction->operands[k]] == original) return true;
    return false;
}

AmStatus stages_seed_split(StageSeeds *seeds, Arena *arena, const PlanContext *context, const Plan *plan,
                           AmError *error) {
    const PlanContext *primary = context->primary;
    int32_t count = context->rules->count, parameters = context->roles->parameter_count;
    StageSeeds of_primary;
    StageMap *map;
    TRY(stages_seed(&of_primary, arena, primary, plan, error));
    TRY(stages_spread(&map, arena, primary, &of_primary, plan->stage_count, error));
    *seeds = (StageSeeds){.held = ARENA_ARRAY(arena, StageSet, count + 1),
                          .allowed = ARENA_ARRAY(arena, StageSet, count + 1),
                          .is_cheap = ARENA_ARRAY(arena, bool, count + 1),
                          .owner = ARENA_ARRAY(arena, int32_t, parameters + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < parameters; k++) seeds->owner[k] = map->owner[k];
    for (int32_t i = 0; i < count; i++) {
        IrOpcode opcode = plan_context_instruction(context, i)->opcode;
        if (context->split_options->live[i] && !stages_is_transparent(context, i) &&
            context->rules->loop_of[i] < 0 && opcode != IR_PARAMETER && opcode != IR_GET_TUPLE_ELEMENT) {
            int32_t original = context->original[i];
            if (!is_added(context, i) || context->split_options->accumulation_of[i] >= 0)
                seeds->held[i] = map->held[original];
            seeds->is_cheap[i] = true;
            const IrShape *shape = &plan_context_instruction(context, i)->shape;
            bool counts = shape->type != DTYPE_TUPLE && ir_shape_elements(shape) <= 1;
            if (!counts) seeds->allowed[i] = map->held[original] | map->needed[original];
        }
    }
    return AM_OK;
}
