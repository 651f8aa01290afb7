/* Costs of a group's collectives on the graph, computed once for every size.
 *
 * A collective has several algorithms, each a sequence of patterns (collective_pattern.h). Loads
 * are proportional to the bytes S, so that a step of a pattern has a latency and a term for each
 * kind of link that it crosses (edge_load.h):
 *     seconds = rounds x sum over steps of [latency + max over terms of b S / efficiency(S)].
 * An all-reduce takes two rounds of ring(s), halving, hierarchical or direct: one to reduce and
 * scatter, one to gather. The fastest algorithm is taken, each with the best division of the group
 * into islands (collective_group.h). If the groups of a partition would choose different
 * algorithms, each is priced as if the others chose the same.
 */
#ifndef COST_COLLECTIVE_COLLECTIVE_ALGORITHMS_H
#define COST_COLLECTIVE_COLLECTIVE_ALGORITHMS_H

#include "cost/collective/collective.h"
#include "cost/collective/collective_pattern.h"

/* One after another: messages, then bytes; and then the next step. */
typedef struct CollectiveStep {
    int32_t messages, term_count;
    double latency;
    const EdgeTerm *terms; /* per byte of S */
} CollectiveStep;

typedef struct CollectiveMove {
    bool is_possible;
    int32_t step_count;
    CollectiveStep *steps;
} CollectiveMove;

typedef struct LinkLoads {
    CollectiveMove moves[COLLECTIVE_PATTERNS];
    const struct LinkLoads *next; /* of the same devices in other islands, or NULL */
} LinkLoads;

/* Finds the topologies [group_count] of a partition, whose groups communicate together. Loads live in the
 * arena, one LinkLoads for all groups that are alike. `members`: cluster devices, group by group. Scratch
 * memory is given back. */
AmStatus collective_find_loads(CollectiveTopology *topologies, Arena *arena, const Cluster *cluster,
                               const int32_t *members, int32_t group_count, int32_t group_size,
                               AmError *error);

enum { COLLECTIVE_MOST_PATTERNS = 2 };

typedef struct CollectiveAlgorithm {
    const char *name;
    uint32_t kinds; /* bit mask of ProgramCollectiveKind */
    int32_t pattern_count;
    CollectivePatternKind patterns[COLLECTIVE_MOST_PATTERNS];
    bool is_both_ways; /* an all_reduce takes one round */
    bool moves_whole;  /* the pattern moves n times as much */
} CollectiveAlgorithm;

/* Returns all algorithms; whether one can run a kind of collective in a group; and the number of its
 * rounds. */
const CollectiveAlgorithm *collective_algorithms(int32_t *count);
bool collective_can_use(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind,
                        const CollectiveTopology *topology);
int32_t collective_rounds(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind);
/* Returns the seconds of an algorithm that can be used. */
double collective_algorithm_seconds(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind,
                                    double bytes, const CollectiveTopology *topology, const Cluster *cluster);
/* Returns the quickest, and the islands with which it is; NULL where there is nothing to do. */
const CollectiveAlgorithm *collective_choose(double *seconds, const LinkLoads **islands,
                                             ProgramCollectiveKind kind, double bytes,
                                             const CollectiveTopology *topology, const Cluster *cluster);

#endif
