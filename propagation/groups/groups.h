/* Linkage groups: dimensions of weights that are decided together.
 *
 * Auto-MAP's own mode (strict.h) uses its rules. Otherwise a group is a dimension class restricted
 * to weights, and two groups exclude each other on one axis if they split different dimensions of
 * one weight.
 */
#ifndef PROPAGATION_GROUPS_GROUPS_H
#define PROPAGATION_GROUPS_GROUPS_H

#include <jansson.h>

#include "propagation/plan/plan.h"

typedef struct LinkageMember {
    int32_t parameter, dimension;
} LinkageMember;

typedef struct LinkageGroup {
    LinkageMember *members; /* by parameter number */
    int32_t member_count;
    int32_t *excludes; /* groups that it contradicts */
    int32_t exclude_count;
    int32_t class_index; /* -1 in strict mode */
    double flops;        /* of the products that it splits, in one step; set by groups_sort() */
    double bytes;        /* of the weights that it splits; likewise */
} LinkageGroup;

typedef struct LinkageRejection {
    LinkageMember member;
    int32_t instruction; /* canonical, or -1 */
    const char *reason;
} LinkageRejection;

typedef struct LinkageGroups {
    bool is_strict;
    int32_t axis_size;
    LinkageGroup *groups; /* by their first member */
    int32_t group_count;
    LinkageRejection *rejected;
    int32_t rejected_count;
    int32_t dimension_count; /* of the decidable parameters: those in groups and the rejected ones */
    /* A largest set of groups that go together. */
    int32_t *best;
    int32_t best_count, best_partitioned;
    bool best_is_exact; /* false: too large to search through */
} LinkageGroups;

/* Finds the groups of all classes that have weights, for an axis of `axis_size`. */
AmStatus groups_of_classes(LinkageGroups **groups, Arena *arena, const PlanContext *context,
                           int32_t axis_size, AmError *error);

/* Pairs of groups that exclude one another, in any order, some of them twice. */
typedef struct Exclusions {
    uint64_t *pairs; /* the smaller number in the upper half */
    int32_t count, capacity;
} Exclusions;

/* Notes that two groups exclude one another; without memory the arena is marked failed. */
void groups_add_exclusion(Exclusions *exclusions, Arena *arena, int32_t a, int32_t b);

/* Fills `excludes` of every group from the pairs, which it sorts, and a first `best`. Memory of the arena. */
AmStatus groups_exclude(LinkageGroups *groups, Arena *arena, Exclusions *exclusions, AmError *error);

/* The orders in which groups are decided. */
typedef enum GroupOrder {
    GROUPS_BY_MEMBER, /* by their first member */
    GROUPS_BY_SIZE,   /* Auto-MAP's: most dimensions first */
    GROUPS_BY_IMPACT, /* most FLOPs of products that they split first, then most bytes of weights */
    GROUP_ORDER_COUNT
} GroupOrder;
const char *groups_order_name(GroupOrder order); /* "member", "size", "impact" */

/* Finds the groups' numbers in that order, ties by number; `order` has room for all. Fills flops and bytes of
 * the groups. */
AmStatus groups_sort(int32_t *order, LinkageGroups *groups, const PlanContext *context, GroupOrder by,
                     AmError *error);

/* Writes {"mode","axis_size","groups":[...],"rejected":[...],"best":{...}}, groups in `order` (NULL: as
 * numbered); the caller's reference. */
AmStatus groups_to_json(json_t **root, const LinkageGroups *groups, const PlanContext *context,
                        const int32_t *order, AmError *error);
/* Appends the groups as text, in `order` (NULL: as numbered). */
void groups_print(Text *text, const LinkageGroups *groups, const PlanContext *context, const int32_t *order);

#endif
