/* Baselines as axis plans. They are found from the module alone, so they hold for any model: by the data
 * inputs and by the strict linkage groups. */
#include "planners/baselines/baseline.h"

#include <string.h>

#include "base/system/parallel.h"
#include "planners/baselines/layer_path.h"
#include "propagation/groups/strict.h"

static int32_t class_set_of_class(const StageProblem *problem, int32_t class) {
    for (int32_t k = 0; k < problem->class_set_count; k++)
        for (int32_t c = 0; c < problem->class_sets[k].class_count; c++)
            if (problem->class_sets[k].classes[c] == class) return k;
    return -1;
}

bool baseline_batch(const StageProblem *problem, int32_t axis, AxisPlan *axis_plan) {
    const PlanContext *context = problem->context;
    int32_t votes[UINT8_MAX + 1] = {0}, best = -1, inner = -1;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (context->roles->parameters[p].role != IR_ROLE_DATA) continue;
        int32_t class =
            classes_of(context->classes, context->rules, context->roles->parameters[p].instruction, 0);
        int32_t class_set = class < 0 ? -1 : class_set_of_class(problem, class);
        if (class_set < 0 || !problem_can_split(problem, class_set, axis)) continue;
        votes[class_set]++;
        if (best < 0 || votes[class_set] > votes[best]) best = class_set;
    }
    /* For a batch in micro-batches: its remainder in the products. */
    for (int32_t k = 0; k < problem->class_set_count && best < 0; k++) {
        const ClassSet *class_set = &problem->class_sets[k];
        bool splits = class_set->splits_data && !class_set->splits_weights && class_set->flops_share > 0;
        if (!splits || !problem_can_split(problem, k, axis)) continue;
        if (inner < 0 || class_set->flops_share > problem->class_sets[inner].flops_share) inner = k;
    }
    if (best < 0) best = inner;
    return best >= 0 && axis_plan_insert(axis_plan, axis, axis_plan->count[axis], best);
}

/* Returns the class of a weight's dimension, or the one in blocks of it (STRICT_IN_BLOCKS). */
static int32_t class_of_member(const PlanContext *context, const LinkageMember *member) {
    int32_t instruction = context->roles->parameters[member->parameter].instruction;
    int32_t d = member->dimension % STRICT_IN_BLOCKS;
    int32_t class = classes_of(context->classes, context->rules, instruction, d);
    if (d == member->dimension) return class;
    const ClassBlocks *inside = classes_in_blocks(
        context->classes, class, plan_context_instruction(context, instruction)->shape.dimensions[d]);
    return inside ? inside->class_index : -1;
}

/* The class sets that the best partition by the strict rules splits, and how many elements of weights. */
typedef struct StrictChoice {
    bool chosen[UINT8_MAX + 1];
    int64_t elements;
} StrictChoice;

static AmStatus choose_strictly(StrictChoice *choice, const StageProblem *problem, int32_t axis,
                                StrictRoots roots, AmError *error) {
    const PlanContext *context = problem->context;
    Arena arena = {0};
    LinkageGroups *groups;
    *choice = (StrictChoice){.elements = 0};
    AmStatus status = strict_groups(&groups, &arena, context, problem->mesh.axes[axis].size, roots, error);
    for (int32_t b = 0; status == AM_OK && b < groups->best_count; b++) {
        const LinkageGroup *group = &groups->groups[groups->best[b]];
        for (int32_t m = 0; m < group->member_count; m++) {
            int32_t instruction = context->roles->parameters[group->members[m].parameter].instruction;
            int32_t class = class_of_member(context, &group->members[m]);
            int32_t class_set = class < 0 ? -1 : class_set_of_class(problem, class);
            if (class_set < 0 || !problem_can_split(problem, class_set, axis)) continue;
            choice->chosen[class_set] = true;
            choice->elements += ir_shape_elements(&plan_context_instruction(context, instruction)->shape);
        }
    }
    arena_free(&arena);
    return status;
}

/* The choices by even shards and by any shards, side by side. */
typedef struct StrictTasks {
    const StageProblem *problem;
    int32_t axis;
    StrictChoice choices[2];
    AmStatus status[2];
    AmError error[2];
} StrictTasks;

static void strict_task(void *user, int32_t k) {
    static const StrictRoots roots[] = {STRICT_STATE, STRICT_STATE_ANY_CUT};
    StrictTasks *tasks = user;
    tasks->status[k] =
        choose_strictly(&tasks->choices[k], tasks->problem, tasks->axis, roots[k], &tasks->error[k]);
}

/* Smaller modules take less time than a thread to start. */
enum { LEAST_IN_PARALLEL = 5000 };

AmStatus baseline_megatron(const StageProblem *problem, int32_t axis, AxisPlan *axis_plan, bool *found,
                           AmError *error) {
    StrictClassSets *strict = &problem->strict[axis];
    *found = false;
    if (problem->mesh.axes[axis].size < 2) return AM_OK;
    if (!strict->is_known) {
        StrictTasks tasks = {.problem = problem, .axis = axis};
        const int32_t count = problem->constraints.is_even ? 1 : 2;
        parallel_for(count, plan_context_count(problem->context) < LEAST_IN_PARALLEL, strict_task, &tasks);
        for (int32_t k = 0; k < count; k++) TRY(am_pass_error(tasks.status[k], &tasks.error[k], error));
        /* Heads or a vocabulary whose number does not divide, and fused projections, are split too. */
        bool is_any_larger = tasks.choices[1].elements > tasks.choices[0].elements;
        const StrictChoice *choice = &tasks.choices[is_any_larger];
        memcpy(strict->chosen, choice->chosen, sizeof strict->chosen);
        strict->is_known = true;
    }
    for (int32_t k = 0; k < problem->class_set_count; k++)
        if (strict->chosen[k] && axis_plan_insert(axis_plan, axis, axis_plan->count[axis], k)) *found = true;
    return AM_OK;
}

/* Returns whether a product of the forward pass contracts the second dimension of a parameter against a
 * weight: the dimension is then one of features, such as the input width of a perceptron, while positions are
 * used at most in a table lookup. The module without micro-batches decides: their loops hide the products. */
static bool is_of_features(const PlanContext *context, int32_t parameter) {
    const PlanContext *primary = plan_context_primary(context);
    const Rules *rules = primary->rules;
    const Classes *classes = primary->classes;
    int32_t class = classes_of(classes, rules, primary->roles->parameters[parameter].instruction, 1);
    if (class < 0 || classes->classes[class].weight_count == 0) return false;
    for (int32_t i = 0; i < rules->entry_count; i++)
        for (int32_t f = 0; f < rules->rules[i].factor_count; f++) {
            const Factor *factor = &rules->rules[i].factors[f];
            bool is_summed = factor->kind == FACTOR_REDUCTION && rules->rules[i].operand_count == 2;
            if (!is_summed || classes->class_of_factor[classes->first_factor[i] + f] != class) continue;
            bool is_product = factor->dimension[0] >= 0 && factor->dimension[1] >= 0;
            if (is_product && layer_weight_of(primary, i)[0]) return true;
        }
    return false;
}

bool baseline_sequence(const StageProblem *problem, int32_t axis, AxisPlan *axis_plan) {
    const PlanContext *context = problem->context;
    bool found = false;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        int32_t instruction = context->roles->parameters[p].instruction;
        if (context->roles->parameters[p].role != IR_ROLE_DATA) continue;
        if (plan_context_instruction(context, instruction)->shape.rank < 2) continue;
        int32_t class = classes_of(context->classes, context->rules, instruction, 1);
        int32_t class_set = class < 0 ? -1 : class_set_of_class(problem, class);
        if (class_set < 0 || !problem_can_split(problem, class_set, axis)) continue;
        if (problem->class_sets[class_set].flops_share == 0 || is_of_features(context, p)) continue;
        found = axis_plan_insert(axis_plan, axis, axis_plan->count[axis], class_set) || found;
    }
    return found;
}
