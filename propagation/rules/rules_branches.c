/* Conditionals that are planned through their branches (rules_values.h).
 *
 * As in a loop, the arrays of a tuple are taken one by one: inside a branch, and
 * after the conditional, such an array is known by the first get-tuple-element
 * that reads it; a parameter or result that is an array is known by itself. All
 * ranks take the same branch, since the selector is whole, so collectives inside
 * meet. A branch that serves elsewhere too stays whole, with its conditional.
 */

#include "propagation/rules/rules_values.h"

bool branches_can_be_planned(const IrModule *module, const IrInstruction *conditional,
                             const int32_t *mentions) {
    if (conditional->opcode != IR_CONDITIONAL || conditional->called_count < 1 ||
        conditional->operand_count != conditional->called_count + 1 ||
        !values_are_arrays(&conditional->shape))
        return false;
    for (int32_t k = 0; k < conditional->called_count; k++) {
        const IrComputation *branch = &module->computations[conditional->called[k]];
        const IrShape *given = &module->instructions[conditional->operands[1 + k]].shape;
        if (mentions[conditional->called[k]] != 1 || branch->parameter_count != 1 ||
            !values_are_arrays(given))
            return false;
    }
    return true;
}

static void plan_branch(Rules *rules, Arena *arena, PlannedConditional *planned, int32_t k) {
    const IrModule *module = rules->module;
    PlannedBranch *branch = &planned->branches[k];
    int32_t computation = module->instructions[planned->instruction].called[k];
    int32_t parameter = module->computations[computation].parameters[0];
    const IrShape *shape = &module->instructions[parameter].shape;
    int32_t count = rules_leaf_count(shape);
    *branch = (PlannedBranch){.computation = computation,
                              .leaf_count = count,
                              .leaves = ARENA_ARRAY(arena, BranchLeaf, count + 1),
                              .made = ARENA_ARRAY(arena, int32_t, planned->result_count + 1),
                              .made_leaf = ARENA_ARRAY(arena, int32_t, planned->result_count + 1)};
    bool is_array = shape->type != DTYPE_TUPLE;
    for (int32_t leaf = 0; !arena->failed && leaf < count; leaf++)
        branch->leaves[leaf] = (BranchLeaf){.shape = rules_leaf(shape, leaf),
                                            .given = -1,
                                            .parameter = parameter,
                                            .reader = is_array ? parameter : -1};
}

void branches_plan(Rules *rules, Arena *arena, int32_t computation, int32_t instruction) {
    const IrInstruction *conditional = &rules->module->instructions[instruction];
    int32_t results = rules_leaf_count(&conditional->shape);
    PlannedConditional *planned = &rules->conditionals[rules->conditional_count];
    *planned = (PlannedConditional){.instruction = instruction,
                                    .branch_count = conditional->called_count,
                                    .result_count = results,
                                    .branches = ARENA_ARRAY(arena, PlannedBranch, conditional->called_count),
                                    .result_shapes = ARENA_ARRAY(arena, const IrShape *, results + 1),
                                    .afterwards = ARENA_ARRAY(arena, int32_t, results + 1)};
    if (arena->failed) return;
    rules->conditional_of[instruction] = rules->conditional_count;
    for (int32_t r = 0; r < results; r++) {
        planned->result_shapes[r] = rules_leaf(&conditional->shape, r);
        planned->afterwards[r] = conditional->shape.type == DTYPE_TUPLE ? -1 : instruction;
    }
    for (int32_t k = 0; k < conditional->called_count; k++) {
        int32_t called = conditional->called[k];
        rules->is_planned[called] = true;
        rules->branch_of[called] = rules->conditional_count;
        /* Each is as likely as another. */
        rules->times[called] = rules->times[computation] / conditional->called_count;
        plan_branch(rules, arena, planned, k);
    }
    rules->conditional_count++;
}

int32_t *branches_reader(const Rules *rules, int32_t computation, int32_t instruction, int32_t leaf) {
    if (rules->conditional_of[instruction] >= 0)
        return &rules->conditionals[rules->conditional_of[instruction]].afterwards[leaf];
    if (computation < 0 || rules->branch_of[computation] < 0) return NULL;
    const PlannedConditional *planned = &rules->conditionals[rules->branch_of[computation]];
    for (int32_t k = 0; k < planned->branch_count; k++)
        if (planned->branches[k].computation == computation) return &planned->branches[k].leaves[leaf].reader;
    return NULL;
}

void branches_find_given(const Rules *rules, int32_t instruction) {
    const PlannedConditional *planned = rules_conditional(rules, instruction);
    const int32_t *operands = rules->module->instructions[instruction].operands;
    for (int32_t k = 0; k < planned->branch_count; k++) {
        for (int32_t l = 0; l < planned->branches[k].leaf_count; l++) {
            BranchLeaf *leaf = &planned->branches[k].leaves[l];
            leaf->given = operands[1 + k];
            leaf->given_leaf = l;
            rules_find_value(rules, &leaf->given, &leaf->given_leaf);
        }
    }
}

void branches_find_made(const Rules *rules, int32_t computation) {
    const PlannedConditional *planned = &rules->conditionals[rules->branch_of[computation]];
    for (int32_t k = 0; k < planned->branch_count; k++) {
        PlannedBranch *branch = &planned->branches[k];
        for (int32_t r = 0; branch->computation == computation && r < planned->result_count; r++) {
            branch->made[r] = rules->module->computations[computation].root;
            branch->made_leaf[r] = r;
            rules_find_value(rules, &branch->made[r], &branch->made_leaf[r]);
        }
    }
}
