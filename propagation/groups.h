/* Linkage groups: which dimensions of which weights are decided together.
 *
 * In Auto-MAP's own mode (strict.h) by its rules; otherwise a group is a
 * dimension class seen from the weights, and two groups exclude one another on
 * one axis if they split different dimensions of one weight.
 */
#ifndef PROPAGATION_GROUPS_H
#define PROPAGATION_GROUPS_H

#include <jansson.h>

#include "propagation/plan.h"

typedef struct LinkageMember {
    int32_t parameter, dimension;
} LinkageMember;

typedef struct LinkageGroup {
    LinkageMember *members; /* by parameter number */
    int32_t member_count;
    int32_t *excludes; /* groups that it contradicts */
    int32_t exclude_count;
    int32_t class_index; /* -1 in strict mode */
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

/* The groups of all classes that have weights, for an axis of `axis_size`. */
AmStatus groups_of_classes(LinkageGroups **groups, Arena *arena, const PlanContext *context,
                           int32_t axis_size, AmError *error);

/* Fills `excludes` of every group from a symmetric [group][group] relation, and
 * a first `best` from it. Memory of the arena. */
AmStatus groups_exclude(LinkageGroups *groups, Arena *arena, const bool *is_excluding, AmError *error);

/* {"mode","axis_size","groups":[...],"rejected":[...],"best":{...}}; the caller's reference. */
AmStatus groups_to_json(json_t **root, const LinkageGroups *groups, const PlanContext *context,
                        AmError *error);
/* The same for readers. */
void groups_print(Text *text, const LinkageGroups *groups, const PlanContext *context);

#endif
