/* The search for the greatest bound over cuts, in three files: tables of work (cut_tables.c), the shortest
 * path for given weights (cut_path.c), and the ascent over weights (cut_weights.c).
 */
#ifndef PLANNERS_BOUNDS_CUT_SEARCH_H
#define PLANNERS_BOUNDS_CUT_SEARCH_H

#include "planners/bounds/cut_tables.h"

enum { COUNTS = PATH_PASSES * BOUND_ORDERS };
enum { CUT_LANES = 4 }; /* steps that are extended together */

/* Classes that are together at a place or across a border. */
typedef struct PlaceSet {
    uint64_t signature;
    int32_t first_member, member_count; /* in CutTables.members */
} PlaceSet;

struct CutTables {
    const CutWork *work;
    PlaceSet *sets;
    ClassSeconds *seconds; /* [set * width_count + width] */
    int32_t set_count, set_capacity;
    int32_t *members, member_count, member_capacity; /* classes */
    int32_t *at;                                     /* [place]: the set of the items there */
    /* [place * longest + k]: of the items that the border after the place may divide, at the k
     * places up to it. */
    int32_t *across;
    int32_t longest;    /* places that borders of one item lie between */
    int32_t *unplaced;  /* [class]: how many may be on any stage */
    int32_t *divisible; /* [class]: how many of these a border may divide */
    ClassSeconds *all;  /* [width]: of all that is placed, or unplaced */
};

/* Adds seconds of every pass and order. */
void class_seconds_add(ClassSeconds *sum, const ClassSeconds *seconds);

/* A stage of some width between two states. */
typedef struct Step {
    int32_t stage, width, from, to;
    double weights[COUNTS]; /* of a second of each pass and order there */
    double across[COUNTS];  /* and of items across a border */
} Step;

/* The least weight of a second of one pass and order on stages of a width, or across their borders. */
typedef struct LeastWeights {
    double weights[COUNTS], across[COUNTS];
} LeastWeights;

typedef struct CutSearch {
    const CutTables *tables;
    int32_t stages;
    Step *steps; /* by stages */
    int32_t step_count, step_capacity, state_count;
    PathCounts *counts[PATH_KINDS]; /* [stage] */
    double *potentials[PATH_KINDS]; /* [state]; the last one is the last state */
    /* [state]: the least weight that paths of earlier stages add to work that passes the state. */
    double *above[PATH_KINDS][PATH_PASSES];
    double *across; /* [class]: its least cost across a border */
    double *least;  /* [state * (places + 1) + places]: least cost of the stages so far */
    struct {
        double *set_across, *of_sets; /* [set] */
        double *sums;                 /* [places + 1] */
        double *balance;              /* [state] */
        LeastWeights *least_weights;  /* [width] */
        /* For the CUT_LANES steps that are extended together. */
        double *lane_sets;                          /* [set * CUT_LANES + lane] */
        double *lane_sums, *lane_before, *lane_any; /* [(places + 1) * CUT_LANES + lane] */
    } scratch;
    Arena arena;
} CutSearch;

/* Lists the steps and allocates the arrays of a search, whose `tables` and `stages` are set; false: it has
 * too many steps, or no memory. The caller frees the arena. */
bool cut_path_open(CutSearch *self);
/* Returns the least cost of any pipeline for the potentials, and keeps the least cost of every state. */
double cut_path_search(CutSearch *self);
/* Sums the costs of all items before each place on a stage, and the reductions by a border after it. */
void cut_path_sum(CutSearch *self, const Step *step);

#endif
