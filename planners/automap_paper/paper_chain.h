/* A module as the chain that Auto-MAP cuts into a pipeline (its sections 3.4 and 4.4): the forward
 * operators in the order of the module, with computation, kept values and memory up to each pivot,
 * and the bytes across it.
 *
 * Seconds are of one iteration on one device with its share of a micro-batch: the module is lowered
 * once, with the batch split into that many parts, and every step of that program counts at its
 * forward operator: a backward operator at the last forward value (or weight) that it uses. With
 * several micro-batches every weight's gradient is accumulated in addition.
 *
 * Between two products (dots, convolutions, loops) no computation is worth moving, so that among
 * the cuts there only the one with the fewest crossing bytes is a pivot.
 */
#ifndef PLANNERS_AUTOMAP_PAPER_PAPER_CHAIN_H
#define PLANNERS_AUTOMAP_PAPER_PAPER_CHAIN_H

#include "planners/problem/problem.h"

typedef enum PaperPass {
    PAPER_FORWARD,
    PAPER_BACKWARD,  /* for which the previous stage waits */
    PAPER_GRADIENTS, /* of weights, which follow it in an iteration */
    PAPER_UPDATE,
    PAPER_PASSES
} PaperPass;

/* A cut before `instruction`, and the sums before it. */
typedef struct PaperPivot {
    int32_t instruction;
    double crossing;              /* bytes of the whole batch that go over it in the forward pass */
    double seconds[PAPER_PASSES]; /* of operators before it, one iteration; updates: one step */
    double weight_bytes,
        state_bytes;   /* of weights that are first used before it; of their optimizer's state */
    double kept_bytes; /* of the whole batch, that its operators keep for the backward pass */
    int32_t weights;   /* weights that are first used before it */
} PaperPivot;

/* Returns the seconds of one iteration, forward and backward, of all that lies before a pivot. */
static inline double paper_iteration_seconds(const PaperPivot *pivot) {
    return pivot->seconds[PAPER_FORWARD] + pivot->seconds[PAPER_BACKWARD] + pivot->seconds[PAPER_GRADIENTS];
}

typedef struct PaperChain {
    PaperPivot *pivots; /* [count], by instruction */
    int32_t count;
    PaperPivot end; /* the end of the module */
    int32_t parts;  /* of the batch; a device has one in an iteration */
} PaperChain;

/* Builds the chain of the module as read, whose micro-batches `devices` devices share. Allocates in
 * the arena. AM_ERROR_INFEASIBLE for a module without a batch or without two products to cut
 * between. */
AmStatus paper_chain_build(PaperChain **chain, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, int32_t micro_batches, int32_t devices, AmError *error);

/* Finds the neighbouring layers of a pivot: the paths of the weights that are first used last before it and
 * first after it. NULL: none. */
void paper_chain_layers(const char **before, const char **after, const PlanContext *context,
                        int32_t instruction);

#endif
