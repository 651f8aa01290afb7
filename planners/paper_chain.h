/* A module as the chain that Auto-MAP cuts into a pipeline (its sections 3.4 and 4.4): the forward operators
 * in the order of the module, what is computed, kept and held up to each pivot, and what crosses there.
 *
 * Seconds are of one turn on one device that has its share of a micro-batch: the module is lowered once, with
 * the batch cut into as many parts, and every step of that program counts at the forward operator that it
 * belongs to: a backward operator at the last forward value (or weight) that it takes. Where there are
 * several micro-batches every weight's gradient is added up besides.
 *
 * Between two products (dots, convolutions, loops) nothing is computed that is worth moving, so that of the
 * cuts there only the one at which least crosses is a pivot.
 */
#ifndef PLANNERS_PAPER_CHAIN_H
#define PLANNERS_PAPER_CHAIN_H

#include "planners/problem.h"

typedef enum PaperPass {
    PAPER_FORWARD,
    PAPER_BACKWARD,  /* what the stage before waits for */
    PAPER_GRADIENTS, /* of weights, which come behind that in a turn */
    PAPER_UPDATE,
    PAPER_PASSES
} PaperPass;

/* A cut before `instruction`, and what lies before it. */
typedef struct PaperPivot {
    int32_t instruction;
    double crossing;              /* bytes of the whole batch that go over it in the forward pass */
    double seconds[PAPER_PASSES]; /* of operators before it, one turn; updates: one step */
    double weight_bytes,
        state_bytes;   /* of weights that are first used before it; of their optimizer's state */
    double kept_bytes; /* of the whole batch, that its operators keep for the backward pass */
    int32_t weights;   /* weights that are first used before it */
} PaperPivot;

/* One turn, forward and backward, of all that lies before a pivot. */
static inline double paper_turn_seconds(const PaperPivot *pivot) {
    return pivot->seconds[PAPER_FORWARD] + pivot->seconds[PAPER_BACKWARD] + pivot->seconds[PAPER_GRADIENTS];
}

typedef struct PaperChain {
    PaperPivot *pivots; /* [count], by instruction */
    int32_t count;
    PaperPivot whole; /* the end of the module */
    int32_t parts;    /* of the batch, of which a device has one in a turn */
} PaperChain;

/* Of the module as read, whose micro-batches `devices` devices share. Everything lives in the arena.
 * AM_ERROR_INFEASIBLE for a module without a batch or without two products to cut between. */
AmStatus paper_chain_build(PaperChain **chain, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, int32_t micro_batches, int32_t devices, AmError *error);

/* The paths of the weights that are first used last before a pivot and first behind it: near which layers it
 * lies. NULL: there is none. */
void paper_chain_layers(const char **before, const char **behind, const PlanContext *context,
                        int32_t instruction);

#endif
