/* The least cost of a pipeline over all cuts, and over all widths of its stages in any order: a bound of its
 * step (docs/planning.md, Bounds of pipelines, 5).
 *
 * A step takes at least as long as each of its paths (pipeline_paths.h), and so as any mean of them. A state
 * is the number of the stages so far and that of their devices of each type. Each kind of path has a
 * potential at each state: 0 at the first, monotone, and all kinds together 1 at the last. The path that
 * stays on a stage has as weight the increase of its potential on that stage, so that the weights of every
 * pipeline add up to 1. A second of work of stage s in an iteration then has the weight
 *
 *     once * (potential of the last state) + above * (increase on earlier stages) + more * (increase here)
 *
 * which depends on its state, its width and its places alone. The least weighted sum over all cuts is
 * therefore a shortest path over states and places. An item that a border may divide counts with its least
 * cost anywhere, if the stage of its first place ends before it does.
 *
 * A border between two stages that have places costs a transfer of each pass, which is on a path as often as
 * the path passes from the one stage to the other (CutWork.transfers). The width of the one stage alone
 * bounds it: its devices send, or receive, all that crosses the border.
 *
 * Three files: tables of work (cut_tables.c), the shortest path for given weights (cut_path.c), and the
 * ascent over weights (cut_weights.c).
 */
#ifndef PLANNERS_BOUNDS_CUT_SEARCH_H
#define PLANNERS_BOUNDS_CUT_SEARCH_H

#include "base/status.h"
#include "planners/bounds/pipeline_paths.h"
#include "planners/bounds/work_groups.h"

/* The seconds of a class in one iteration on stages of one width. */
typedef struct ClassSeconds {
    double of[PATH_PASSES][BOUND_ORDERS];
} ClassSeconds;

/* Returns the seconds of every pass and order, each times its weight [PATH_PASSES * BOUND_ORDERS]. */
static inline double class_seconds_weighed(const double *weights, const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum += weights[pass * BOUND_ORDERS + order] * seconds->of[pass][order];
    return sum;
}

/* The share of each kind of path in the mean; adds up to 1. */
typedef struct PathMix {
    double share[PATH_KINDS];
} PathMix;

/* A choice of potentials: those by which each stage would have equal weighted work, if all work were alike.
 * `once` and `above` are factors on work that passes a stage. They are below 1, since a part of the work lies
 * on borders. */
typedef struct CutMix {
    PathMix paths;
    double once, above;
} CutMix;

typedef struct CutWork {
    int32_t micro_batches, places; /* places of borders in [0, places - 1) */
    int32_t width_count, class_count, placed_count, type_count;
    const int32_t *devices;      /* [type] of all stages together */
    const int32_t *widths;       /* [width * type_count + type] devices of a stage */
    const ClassSeconds *seconds; /* [class * width_count + width] */
    const Placed *placed;
    /* [(pass * width_count + width) * (places + 1) + q] seconds of a transfer in one iteration between a
     * stage of a width that ends before place q and the next one; NULL: none */
    const double *transfers;
    const double *memory; /* [width] bytes of a stage's devices that plans may fill; NULL: any */
    bool offloads_optimizer;
} CutWork;

/* Tables of a work; in an arena, with that. */
typedef struct CutTables CutTables;

AmStatus cut_tables_create(CutTables **tables, Arena *arena, const CutWork *work, AmError *error);

/* Returns the bound in seconds for a number of stages with a choice of potentials, improved by that many
 * steps of subgradient ascent, or until it is `enough`. 0: the problem is too large, or memory is exhausted;
 * INFINITY: no widths add up to all devices. */
double cut_tables_bound(const CutTables *tables, int32_t stages, const CutMix *mix, int32_t ascent_steps,
                        double enough);

/* ---- shared by the three files ---- */

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
    /* [width * (places + 1) + q] the first place of a stage up to place q - 1 whose weights fit; NULL: 0 */
    int32_t *first_places;
};

/* Returns the first place of a stage of a width that ends before place q. */
static inline int32_t cut_first_place(const CutTables *tables, int32_t width, int32_t q) {
    return tables->first_places ? tables->first_places[width * (tables->work->places + 1) + q] : 0;
}

/* Adds seconds of every pass and order. */
void class_seconds_add(ClassSeconds *sum, const ClassSeconds *seconds);

/* A stage of some width between two states. */
typedef struct Step {
    int32_t stage, width, from, to;
    double weights[COUNTS];      /* of a second of each pass and order on the stage */
    double across[COUNTS];       /* of a second of items across a border */
    double passing[PATH_PASSES]; /* of a second of a transfer between the stage and the next one */
} Step;

/* Returns the seconds of a transfer after a stage that ends before place q. */
static inline double cut_transfer(const CutWork *work, int32_t pass, int32_t width, int32_t q) {
    if (!work->transfers || q == 0 || q == work->places) return 0;
    return work->transfers[(pass * work->width_count + width) * (work->places + 1) + q];
}

/* Returns the weighted seconds of the transfers after a stage that ends before place q. */
static inline double cut_transfers_weighed(const CutWork *work, const Step *step, int32_t q) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        sum += step->passing[pass] * cut_transfer(work, pass, step->width, q);
    return sum;
}

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
        int32_t *lane_windows;                      /* [lane * (places + 1) + k] */
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
