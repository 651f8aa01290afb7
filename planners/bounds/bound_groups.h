/* The work of a bound over pipelines in groups, and these in windows (docs/planning.md,
 * Bounds of pipelines, 2 and 4): equal work is one class with a count.
 */
#ifndef PLANNERS_BOUNDS_BOUND_GROUPS_H
#define PLANNERS_BOUNDS_BOUND_GROUPS_H

#include "planners/bounds/border_loss.h"
#include "planners/bounds/bound_work.h"

/* The work of one item or several. */
typedef struct DifferentWork {
    OperatorWork work;
    double seconds; /* where that is not run */
    double sum_bytes;
    bool is_after; /* the iterations */
} DifferentWork;

/* Groups that are alike. */
typedef struct GroupClass {
    uint64_t signature;
    int32_t count;
    int32_t first_part, part_count; /* in BoundGroups.parts */
} GroupClass;

/* An item of a group: one of the different works. */
typedef struct GroupPart {
    int32_t work;
    bool is_backward;
    BoundOrder order;
} GroupPart;

/* Groups near one another are on one stage unless a border divides them: a window of the spine, or a group
 * that is in none. Windows of like classes are one. */
typedef struct WindowClass {
    uint64_t signature;
    int32_t count;
    int32_t first_member, member_count; /* in Windows.members: classes, sorted */
} WindowClass;

typedef struct Windows {
    int32_t *members, member_count;
    WindowClass *classes;
    int32_t class_count, count;
    /* The borders that divide each window with several members; then those that each of them may lie across.
     */
    BorderInterval *intervals;
    int32_t *class_of; /* [interval]: a window class, a class */
    int32_t interval_count;
} Windows;

/* A group, or an item of none. */
typedef struct Placed {
    int32_t class;
    BorderInterval borders; /* first < 0: none are known to it, nor its place */
    bool is_placed;         /* on the stage of borders.first, unless one of them is between stages */
} Placed;

typedef struct BoundGroups {
    Arena *arena;
    BoundWork work;
    DifferentWork *works;
    int32_t work_count;
    GroupClass *classes;
    int32_t class_count;
    GroupPart *parts;
    int32_t part_count, part_capacity;
    Placed *placed;
    int32_t placed_count, places; /* of the forward spine, and one after it */
} BoundGroups;

/* Derives the groups of a work, in an arena; both are set. */
AmStatus bound_groups_find(BoundGroups *self, AmError *error);
/* Windows of so many places, or, where that is 0, every group by itself. */
AmStatus bound_windows_find(Windows *windows, const BoundGroups *self, int32_t places, AmError *error);

/* Mixes a class for signatures that are sums over several classes. */
static inline uint64_t bound_scramble(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

#endif
