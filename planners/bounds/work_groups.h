/* The work of a bound over pipelines in groups (docs/planning.md, Bounds of pipelines, 2): equal work is one
 * class with a count. */
#ifndef PLANNERS_BOUNDS_WORK_GROUPS_H
#define PLANNERS_BOUNDS_WORK_GROUPS_H

#include "planners/bounds/work_items.h"

/* Work that occurs in one item or several, which GroupPart.work refers to. */
typedef struct DifferentWork {
    OperatorWork work;
    double seconds;       /* the least time of an item without `work`, which a device does not execute */
    double *type_seconds; /* [type] on several types; or NULL */
    double launches, sum_bytes;
    bool is_after; /* runs once, after the iterations */
} DifferentWork;

/* A class of groups: `count` groups with equal work. An item of no group is a group by itself. */
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

/* Places of the forward spine [first, end) after which a border between stages may divide an item. */
typedef struct BorderInterval {
    int32_t first, end;
} BorderInterval;

/* The place of a group, or of an item of no group, in the pipeline. */
typedef struct Placed {
    int32_t class;
    BorderInterval borders; /* first < 0: they and its place are unknown */
    bool is_placed;         /* on the stage of borders.first, unless a border of `borders` divides stages */
    double kept_bytes[2];   /* as in BoundItem */
    BorderInterval kept;    /* of the forward product, whose stage keeps them */
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
/* Mixes a class for signatures that are sums over several classes. */
static inline uint64_t bound_scramble(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

#endif
