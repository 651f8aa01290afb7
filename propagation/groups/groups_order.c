/* The order in which linkage groups are decided.
 *
 * Auto-MAP sorts by size, so that the first decisions leave the fewest open. The order by impact
 * uses two numbers of a group: the FLOPs of the products of its classes in one step, which a decision
 * divides by the axis, and the bytes of its weights, for memory and gradient traffic.
 */
#include <stdlib.h>

#include "propagation/groups/groups.h"

typedef struct Rank {
    double first, second; /* larger ones come first */
    int32_t group;
} Rank;

static const char *const names[GROUP_ORDER_COUNT] = {"member", "size", "impact"};

const char *groups_order_name(GroupOrder order) {
    return names[order];
}

/* Adds up the FLOPs of the group's classes, each counted once, and the bytes of its weights. */
static void weigh(LinkageGroup *group, const PlanContext *context, int32_t *seen_by, int32_t number) {
    group->flops = group->bytes = 0;
    for (int32_t m = 0; m < group->member_count; m++) {
        int32_t instruction = context->roles->parameters[group->members[m].parameter].instruction;
        int32_t class =
            classes_of(context->classes, context->rules, instruction, group->members[m].dimension);
        group->bytes += (double)ir_shape_bytes(&plan_context_instruction(context, instruction)->shape);
        if (class < 0 || seen_by[class] == number + 1) continue;
        seen_by[class] = number + 1;
        group->flops += context->classes->classes[class].flops;
    }
}

static int compare_ranks(const void *left, const void *right) {
    const Rank *a = left, *b = right;
    if (a->first != b->first) return a->first > b->first ? -1 : 1;
    if (a->second != b->second) return a->second > b->second ? -1 : 1;
    return (a->group > b->group) - (a->group < b->group);
}

AmStatus groups_sort(int32_t *order, LinkageGroups *groups, const PlanContext *context, GroupOrder by,
                     AmError *error) {
    Arena scratch = {0};
    Rank *ranks = ARENA_ARRAY(&scratch, Rank, groups->group_count + 1);
    int32_t *seen_by = ARENA_ARRAY(&scratch, int32_t, context->classes->count + 1);
    AmStatus status = scratch.failed ? am_fail_memory(error, groups->group_count) : AM_OK;
    for (int32_t g = 0; status == AM_OK && g < groups->group_count; g++) {
        LinkageGroup *group = &groups->groups[g];
        weigh(group, context, seen_by, g);
        ranks[g] = (Rank){.group = g};
        if (by == GROUPS_BY_SIZE) ranks[g].first = group->member_count;
        if (by == GROUPS_BY_IMPACT) {
            ranks[g].first = group->flops;
            ranks[g].second = group->bytes;
        }
    }
    if (status == AM_OK) qsort(ranks, (size_t)groups->group_count, sizeof *ranks, compare_ranks);
    for (int32_t g = 0; status == AM_OK && g < groups->group_count; g++) order[g] = ranks[g].group;
    arena_free(&scratch);
    return status;
}
