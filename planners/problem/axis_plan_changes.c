/* Draws a change of an axis plan: first its kind and its axis, then the class set and its place. A draw that
 * the mesh does not allow makes no change.
 */
#include "planners/problem/axis_plan_changes.h"

static int32_t any(Random *random, int32_t count) {
    return (int32_t)random_below(random, count);
}

/* Returns a random class set that the axis can be split by; -1: none was drawn. */
static int32_t draw_class_set(const StageProblem *problem, Random *random, int32_t axis) {
    if (problem->class_set_count == 0) return -1;
    int32_t class_set = any(random, problem->class_set_count);
    return problem_can_split(problem, class_set, axis) ? class_set : -1;
}

static bool insert_any(const StageProblem *problem, Random *random, AxisPlan *axis_plan, int32_t axis) {
    int32_t class_set = draw_class_set(problem, random, axis);
    int32_t place = any(random, axis_plan->count[axis] + 1);
    return class_set >= 0 && axis_plan_insert(axis_plan, axis, place, class_set);
}

static bool remove_any(const StageProblem *problem, Random *random, AxisPlan *axis_plan, int32_t axis) {
    (void)problem;
    if (axis_plan->count[axis] == 0) return false;
    axis_plan_remove(axis_plan, axis, any(random, axis_plan->count[axis]));
    return true;
}

static bool replace_any(const StageProblem *problem, Random *random, AxisPlan *axis_plan, int32_t axis) {
    int32_t class_set = draw_class_set(problem, random, axis);
    if (axis_plan->count[axis] == 0 || class_set < 0) return false;
    int32_t place = any(random, axis_plan->count[axis]);
    axis_plan_remove(axis_plan, axis, place);
    return axis_plan_insert(axis_plan, axis, place, class_set);
}

/* Moves an entry to another place, of this axis or another one. */
static bool move_any(const StageProblem *problem, Random *random, AxisPlan *axis_plan, int32_t axis) {
    if (axis_plan->count[axis] == 0) return false;
    int32_t place = any(random, axis_plan->count[axis]), target = any(random, problem->mesh.axis_count);
    int32_t class_set = axis_plan->entries[axis][place];
    if (!problem_can_split(problem, class_set, target)) return false;
    axis_plan_remove(axis_plan, axis, place);
    return axis_plan_insert(axis_plan, target, any(random, axis_plan->count[target] + 1), class_set);
}

static bool change_storage(const StageProblem *problem, Random *random, AxisPlan *axis_plan, int32_t axis) {
    int32_t kinds = problem_storage_kinds(problem, axis);
    if (kinds == 0) return false;
    uint8_t drawn = (uint8_t)any(random, kinds + 1);
    bool differs = drawn != axis_plan->storage[axis];
    axis_plan->storage[axis] = drawn;
    return differs;
}

typedef bool Change(const StageProblem *problem, Random *random, AxisPlan *axis_plan, int32_t axis);
static Change *const changes[] = {insert_any, remove_any, replace_any, move_any, change_storage};
#define CHANGE_COUNT ((int32_t)(sizeof changes / sizeof changes[0]))

bool axis_plan_change(const StageProblem *problem, Random *random, AxisPlan *axis_plan) {
    Change *change = changes[any(random, CHANGE_COUNT)];
    return change(problem, random, axis_plan, any(random, problem->mesh.axis_count));
}
