/* The insides of a folded sharding graph, for what builds it (graph_fold.c), passes its messages and
 * bounds it (graph_bound.c), divides reshard costs among readers (graph_shares.c) and looks for changes of
 * a plan (graph_changes.c). */
#ifndef COST_RELAXATION_GRAPH_FOLD_H
#define COST_RELAXATION_GRAPH_FOLD_H

#include "cost/relaxation/graph_bound.h"

/* One end of alike edges. */
typedef struct End {
    int32_t label_count, state_count;
    int32_t main;               /* class, that of most of the edges */
    const uint8_t *state;       /* [label_count]: which of the states that occur */
    const ReshardState *values; /* [state_count]: which they are */
    const int8_t *number;       /* [RESHARD_STATES + 1]: a state's place in `values`; -1: it does not occur */
    double *message;            /* [label_count]: from the other end */
} End;

/* Edges that share their messages. ends[0] comes before ends[1] in the order of nodes. */
typedef struct Group {
    End ends[2];
    bool is_transposed; /* ends[0] is the one that takes */
    /* [states of end 0][states of end 1], unweighted: this edge's share of the cost of resharding
     * that no other reader needs (NULL: zero). */
    float *seconds;
    const float *alone;
    float *slack; /* scratch */
} Group;

/* Edges of a group between two classes. */
typedef struct Pair {
    int32_t group, first, second; /* classes of ends 0 and 1 */
    double count;
} Pair;

/* A class's part in a group. */
typedef struct Incidence {
    int32_t group, end;
    int32_t count; /* edges of each of its nodes */
} Incidence;

/* Nodes alike. */
typedef struct Class {
    double count;
    int32_t label_count, first_incidence, incidence_count;
    int32_t edges[2]; /* of each node: with it as end 0, as end 1 */
    const float *seconds;
} Class;

/* The cost of an edge for one pair of states. */
typedef struct Cell {
    float *seconds;
    double alone, slack;
    int32_t times; /* edges */
} Cell;

/* The cells of an edge for one needed state. */
typedef struct Sharing {
    float *seconds; /* of the first kept state */
    const float *alone, *slack;
    int32_t stride, times; /* from one kept state to the next; edges */
} Sharing;

struct ShardingGraphFold {
    const ShardingGraph *graph;
    const int32_t *class_of, *group_of; /* [node], [edge] */
    const int32_t *pair_of;             /* [edge] */
    const StopSignal *stop;             /* or NULL */
    Class *classes;                     /* in the order of their first nodes */
    Group *groups;
    Pair *pairs;
    Incidence *incidences; /* by class */
    int32_t class_count, group_count, pair_count, incidence_count;
    double *phi, *best; /* scratch: labels, states */
    int32_t *sharers;   /* scratch: incidences of a class */
    Sharing *sharing;   /* scratch: as many */
    Cell *cells;        /* scratch: as many */
};

/* Numbers of keys, in the order of their first use. */
typedef struct NumberTable {
    uint64_t *keys; /* open addressing; 0: empty */
    int32_t *numbers;
    int32_t capacity, count;
} NumberTable;

/* Opens an empty table for at most `most` keys, in the arena. Returns false if there is no memory. */
bool number_table_open(NumberTable *self, Arena *arena, int32_t most);
/* Returns the number of a key; a new key gets the next number, from 0. */
int32_t number_table_find(NumberTable *self, uint64_t key);

/* Computes phi of a class: its cost and all that is sent to it. Returns gamma. */
double sharding_graph_gather(const ShardingGraphFold *fold, int32_t c, const ShardingGraphWeights *weights);
/* Computes the message of a class along a group to the other end, by its states: in fold->best. The
 * result is not normalised, unlike a message. */
double *sharding_graph_send(const ShardingGraphFold *fold, const Group *group, int32_t end, double gamma,
                            const ShardingGraphWeights *weights);
/* Returns the least of fold->phi, which is the class's. */
double sharding_graph_least_phi(const ShardingGraphFold *fold, const Class *class);

/* Moves the reshard costs of readers to the places where they raise the bound. */
void split_reshard_cost(ShardingGraphFold *fold, const ShardingGraphWeights *weights);

/* A class and by how much a plan is dearer there than the bound. */
typedef struct ShardingGraphSeed {
    int32_t class;
    double slack, near; /* near: the most of it and of those that share an edge with it */
} ShardingGraphSeed;

/* Lists all classes, those with most slack near them first (graph_changes.c). In the arena. */
AmStatus sharding_graph_seeds(ShardingGraphSeed **seeds, int32_t *count, Arena *arena,
                              ShardingGraphFold *fold, const int32_t *labels,
                              const ShardingGraphWeights *weights, AmError *error);
/* Returns the cheapest label of a class by fold->phi, except `count` others; -1 if all are excluded. */
int32_t sharding_graph_next_label(const ShardingGraphFold *fold, const Class *class, const int32_t *others,
                                  int32_t count);

#endif
