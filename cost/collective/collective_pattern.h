/* Communication patterns: the building blocks of collective algorithms.
 *
 * One round of a pattern, for a group of n devices in m parts (servers, or islands of one server)
 * with g in each, S bytes of global tensor; fractions of S cross a link:
 *   ring           each to the next, (n-1)/n; n-1 messages. Reduces and scatters, or gathers.
 *   rings          the same around r rings without a common link, both ways, (n-1)/n 1/2r each
 *   halving        log2 n exchanges with the device at distance 1, 2, 4 .. , of 1/2, 1/4 ..
 *   inside ring, inside halving    the same among the g of a part: (g-1)/g
 *   across ring, across halving    the same among equal positions of the parts, each with
 *                  1/g: (m-1)/m 1/g. If parts have unequal numbers, g is the smallest: inside
 *                  a part, the other devices send their bytes to the first g.
 *   tree           up and down again, all of S: chains inside parts, and between their
 *                  first devices two binary trees, S/2 each, in which every device is a leaf
 *                  once (Sanders, Speck, Traeff 2009): 2 (g-1) + 2 log2 m messages, 2 S.
 *                  If the cluster lists edges, 1/g of it on each of g such trees, which
 *                  begin at different positions, since each may have a network card.
 *   direct         each its 1/n to every other: n-1 messages, (n-1)/n
 *   inside pairs, across pairs     each 1/n^2 to every other of its part, then to those
 *                  of other parts: g-1 and n-g messages
 *   inside share, across share     first inside, all data for equal positions of any
 *                  part: (g-1)/g 1/n; then to equal positions: (m-1)/m 1/n
 *   neighbours     each all of S to the next, which is as much as from both sides together;
 *                  min(n-1, 2) messages
 * All groups of a partition send at once; their loads add up on common edges. In a vast group
 * (collective_group.h), halving stays inside a part, and a tree begins at one position. A message
 * costs the latency of its route. Data that is passed on hop by hop waits for all hops but one, so
 * that a ring takes the sum of latencies without the smallest.
 */
#ifndef COST_COLLECTIVE_COLLECTIVE_PATTERN_H
#define COST_COLLECTIVE_COLLECTIVE_PATTERN_H

#include "cost/collective/collective_group.h"
#include "cost/collective/edge_load.h"

typedef enum CollectivePatternKind {
    PATTERN_RING,
    PATTERN_RINGS,
    PATTERN_HALVING,
    PATTERN_INSIDE_RING,
    PATTERN_INSIDE_HALVING,
    PATTERN_ACROSS_RING,
    PATTERN_ACROSS_HALVING,
    PATTERN_TREE,
    PATTERN_DIRECT,
    PATTERN_INSIDE_PAIRS,
    PATTERN_ACROSS_PAIRS,
    PATTERN_INSIDE_SHARE,
    PATTERN_ACROSS_SHARE,
    PATTERN_NEIGHBOURS,
    COLLECTIVE_PATTERNS
} CollectivePatternKind;

enum { COLLECTIVE_MOST_PARTNERS = 16 };

/* Follows the flows of a pattern: adds them to the loads, or looks for the busiest edges. */
typedef struct CollectiveWalk {
    EdgeLoads *loads;
    bool follows;
    int32_t partners; /* representative partners of a device in graphs that are no tree */
    int32_t messages; /* of the last step, one after another */
    double latency;   /* of all of them */
} CollectiveWalk;

typedef struct CollectivePattern {
    const char *name;
    /* Steps that wait for one another; 0: the pattern is not for this group. */
    int32_t (*steps)(const CollectiveGroup *group);
    void (*walk)(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step);
} CollectivePattern;

extern const CollectivePattern collective_patterns[COLLECTIVE_PATTERNS];

#endif
