/* Linkage groups of dimension classes, and both kinds as JSON and as text.
 *
 * A weight can be split along one dimension only on an axis, so that classes
 * that share a weight exclude one another there; the largest choice is a
 * maximum independent set (independent_set.h).
 */
#include "propagation/groups/groups.h"

#include <stdlib.h>

#include "propagation/groups/independent_set.h"

void groups_add_exclusion(Exclusions *exclusions, Arena *arena, int32_t a, int32_t b) {
    if (a == b) return;
    ARENA_RESERVE(arena, exclusions->pairs, exclusions->count, exclusions->capacity);
    if (arena->failed) return;
    uint64_t smaller = (uint64_t)(a < b ? a : b), larger = (uint64_t)(a < b ? b : a);
    exclusions->pairs[exclusions->count++] = smaller << 32 | larger;
}

static int compare_pairs(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Sorts the pairs, each kept once, and lists for every group those that it excludes, ascending. */
static AmStatus list_exclusions(LinkageGroups *groups, Arena *arena, Exclusions *exclusions, int32_t *first,
                                int32_t *others, AmError *error) {
    int32_t kept = 0;
    if (exclusions->count == 0) return AM_OK;
    qsort(exclusions->pairs, (size_t)exclusions->count, sizeof *exclusions->pairs, compare_pairs);
    for (int32_t k = 0; k < exclusions->count; k++)
        if (k == 0 || exclusions->pairs[k] != exclusions->pairs[k - 1])
            exclusions->pairs[kept++] = exclusions->pairs[k];
    exclusions->count = kept;
    int32_t *next = ARENA_ARRAY(arena, int32_t, groups->group_count + 1);
    if (!next) return am_fail_memory(error, groups->group_count);
    for (int32_t k = 0; k < kept; k++) {
        first[(exclusions->pairs[k] >> 32) + 1]++;
        first[(exclusions->pairs[k] & UINT32_MAX) + 1]++;
    }
    for (int32_t g = 0; g < groups->group_count; g++) first[g + 1] += first[g];
    for (int32_t g = 0; g < groups->group_count; g++) next[g] = first[g];
    /* Smaller ones first: as the larger of a pair, then as the smaller. */
    for (int32_t k = 0; k < kept; k++)
        others[next[exclusions->pairs[k] & UINT32_MAX]++] = (int32_t)(exclusions->pairs[k] >> 32);
    for (int32_t k = 0; k < kept; k++)
        others[next[exclusions->pairs[k] >> 32]++] = (int32_t)(exclusions->pairs[k] & UINT32_MAX);
    for (int32_t g = 0; g < groups->group_count; g++) {
        groups->groups[g].excludes = others + first[g];
        groups->groups[g].exclude_count = first[g + 1] - first[g];
    }
    return AM_OK;
}

AmStatus groups_exclude(LinkageGroups *groups, Arena *arena, Exclusions *exclusions, AmError *error) {
    int32_t count = groups->group_count;
    bool *is_chosen = ARENA_ARRAY(arena, bool, count + 1);
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, count + 1);
    int32_t *first = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *others = ARENA_ARRAY(arena, int32_t, 2 * (size_t)exclusions->count + 1);
    groups->best = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)count * 13);
    TRY(list_exclusions(groups, arena, exclusions, first, others, error));
    for (int32_t g = 0; g < count; g++) sizes[g] = groups->groups[g].member_count;
    ExclusionGraph graph = {count, first, others, sizes};
    TRY(independent_set(is_chosen, &groups->best_is_exact, &graph, error));
    for (int32_t g = 0; g < count; g++) {
        if (!is_chosen[g]) continue;
        groups->best[groups->best_count++] = g;
        groups->best_partitioned += groups->groups[g].member_count;
    }
    return AM_OK;
}

static const IrShape *parameter_shape(const PlanContext *context, int32_t parameter) {
    return plan_context_parameter_shape(context, parameter);
}

/* Puts every dimension of every weight into the group of its class, or rejects it. */
static void sort_dimensions(LinkageGroups *groups, const PlanContext *context, int32_t *group_of_class,
                            bool is_counting) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrShape *shape = parameter_shape(context, p);
        if (context->roles->parameters[p].role != IR_ROLE_WEIGHT || shape->type == DTYPE_TUPLE) continue;
        for (int32_t d = 0; d < shape->rank; d++) {
            int32_t class_index =
                classes_of(context->classes, context->rules, context->roles->parameters[p].instruction, d);
            bool divides = shape->dimensions[d] % groups->axis_size == 0;
            if (is_counting) groups->dimension_count++;
            if (class_index < 0 || !divides) {
                if (is_counting) continue;
                groups->rejected[groups->rejected_count++] =
                    (LinkageRejection){{p, d},
                                       -1,
                                       divides ? "every operator that uses it needs it whole"
                                               : "its size is no multiple of the axis size"};
                continue;
            }
            if (is_counting && group_of_class[class_index] < 0)
                group_of_class[class_index] = groups->group_count++;
            LinkageGroup *group = &groups->groups[group_of_class[class_index]];
            group->class_index = class_index;
            if (!is_counting) group->members[group->member_count] = (LinkageMember){p, d};
            group->member_count++;
        }
    }
}

AmStatus groups_of_classes(LinkageGroups **groups, Arena *arena, const PlanContext *context,
                           int32_t axis_size, AmError *error) {
    if (axis_size < 2) {
        return am_fail(error, AM_ERROR_USAGE, "", "axis size %d: expected at least 2 devices", axis_size);
    }
    int32_t class_count = context->classes->count;
    LinkageGroups *built = ARENA_ARRAY(arena, LinkageGroups, 1);
    int32_t *group_of_class = ARENA_ARRAY(arena, int32_t, class_count);
    LinkageGroup *list = ARENA_ARRAY(arena, LinkageGroup, class_count);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(LinkageGroup) * class_count);
    *built = (LinkageGroups){.axis_size = axis_size, .groups = list};
    for (int32_t c = 0; c < class_count; c++) group_of_class[c] = -1;
    sort_dimensions(built, context, group_of_class, true);
    for (int32_t g = 0; g < built->group_count; g++) {
        built->groups[g].members = ARENA_ARRAY(arena, LinkageMember, built->groups[g].member_count);
        built->groups[g].member_count = 0;
    }
    built->rejected = ARENA_ARRAY(arena, LinkageRejection, built->dimension_count);
    Exclusions exclusions = {0};
    if (arena->failed)
        return am_fail_memory(error, (int64_t)sizeof(LinkageRejection) * built->dimension_count);
    sort_dimensions(built, context, group_of_class, false);
    /* Groups that split different dimensions of one weight. */
    for (int32_t g = 0; g < built->group_count; g++) {
        for (int32_t m = 0; m < built->groups[g].member_count; m++) {
            LinkageMember member = built->groups[g].members[m];
            const IrShape *shape = parameter_shape(context, member.parameter);
            for (int32_t d = 0; d < shape->rank; d++) {
                int32_t class_index = classes_of(context->classes, context->rules,
                                                 context->roles->parameters[member.parameter].instruction, d);
                if (d == member.dimension || class_index < 0 || group_of_class[class_index] < 0 ||
                    shape->dimensions[d] % built->axis_size != 0)
                    continue;
                groups_add_exclusion(&exclusions, arena, g, group_of_class[class_index]);
            }
        }
    }
    if (arena->failed) return am_fail_memory(error, exclusions.count);
    TRY(groups_exclude(built, arena, &exclusions, error));
    *groups = built;
    return AM_OK;
}
